"""The options of a JobSet as a closed table: each value must look as its row says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from seatrial.launch.scheduler_options import Option, read_words, seconds_of

_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"  # RFC 1123
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_KEY = rf"({_SUBDOMAIN}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"
_VALUE = r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
_SIZE = r"[0-9]+(\.[0-9]+)?([KMGTPE]i|[kMGTPE])?"
_REFERENCE = r"[A-Za-z0-9_][A-Za-z0-9_./:@+-]*"
_PATH = r"/[A-Za-z0-9_./@+=-]*"
_RESOURCE = rf"{_SUBDOMAIN}/[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"
_DURATION = r"[0-9]+(\.[0-9]+)?[smhd]?"

OPTIONS: Mapping[str, Option] = {
    "context": Option(_REFERENCE, "a context of your kubeconfig"),
    "namespace": Option(_LABEL, "a name of lower-case letters, digits and -"),
    "image": Option(_REFERENCE, "an image: ghcr.io/nvidia/jax:maxtext"),
    "image-pull-secret": Option(_SUBDOMAIN, "the name of a Secret"),
    "queue": Option(_SUBDOMAIN, "a LocalQueue of Kueue"),
    "queue-priority": Option(_SUBDOMAIN, "a WorkloadPriorityClass of Kueue"),
    "priority-class": Option(_SUBDOMAIN, "a PriorityClass"),
    "service-account": Option(_SUBDOMAIN, "a ServiceAccount"),
    "runtime-class": Option(_SUBDOMAIN, "a RuntimeClass: nvidia"),
    "node-selector": Option(rf"{_KEY}={_VALUE}", "LABEL=VALUE"),
    "toleration": Option(
        rf"{_KEY}(={_VALUE})?(:(NoSchedule|PreferNoSchedule|NoExecute))?", "TAINT, TAINT=VALUE or TAINT=VALUE:EFFECT"
    ),
    "exclude": Option(rf"{_SUBDOMAIN}(,{_SUBDOMAIN})*", "nodes: NODE,NODE"),
    "gpu": Option(_RESOURCE, "a resource: nvidia.com/gpu, amd.com/gpu"),
    "rdma": Option(rf"{_RESOURCE}(:[1-9][0-9]*)?", "a resource and a number: rdma/hca_shared_devices_a:1"),
    "host-network": Option(r"yes|no", "yes or no"),
    "cpu": Option(r"[0-9]+(\.[0-9]+)?m?", "a number of CPUs: 96"),
    "memory": Option(_SIZE, "a size: 512Gi"),
    "shm": Option(_SIZE, "a size: 64Gi"),
    "pvc": Option(_SUBDOMAIN, "a PersistentVolumeClaim that all pods can write to"),
    "volume": Option(rf"{_SUBDOMAIN}:{_PATH}(:ro)?", "CLAIM:/PATH or CLAIM:/PATH:ro"),
    "secret": Option(rf"[A-Za-z_][A-Za-z0-9_]*={_SUBDOMAIN}/[-.A-Za-z0-9_]+", "VARIABLE=SECRET/KEY"),
    "time": Option(_DURATION, "a duration: 4h"),
    "keep": Option(_DURATION, "a duration: 30m"),
    "ttl": Option(_DURATION, "a duration: 1d"),
    "nodes": Option(r"[1-9][0-9]{0,3}", "the number of pods for a rehearsal"),
}  # fmt: skip
USUAL = {"keep": "30m", "ttl": "1d"}


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A run's request to Kubernetes: the values of its options by name, and how long it may wait for its pods."""

    values: Mapping[str, Sequence[str]] = field(default_factory=dict)
    queue_seconds: float | None = None

    def get(self, name: str) -> str | None:
        """The value that counts: the last."""
        return self.values[name][-1] if name in self.values else USUAL.get(name)

    def all(self, name: str) -> tuple[str, ...]:
        """All values of an option that may be repeated."""
        return tuple(self.values.get(name, ()))

    def seconds(self, name: str) -> float | None:
        text = self.get(name)
        return seconds_of(text, f"--kubernetes {name}") if text else None


def options(given: Sequence[str], queue_deadline: str | None = None) -> Wish:
    """KEY=VALUE words as a table. Raises InputError for an unknown key or a wrong value."""
    values: dict[str, list[str]] = {}
    for key, value in read_words(given, OPTIONS, "kubernetes"):
        values.setdefault(key, []).append(value)
    limit = seconds_of(queue_deadline, "--queue-deadline") if queue_deadline else None
    return Wish(values=values, queue_seconds=limit)
