"""The options of a JobSet as a closed table: each value must look as its row says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from seatrial.dialects.table.suggestions import did_you_mean
from seatrial.errors import InputError
from seatrial.launch.durations import seconds_of

_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"  # RFC 1123
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_KEY = rf"({_SUBDOMAIN}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"
_VALUE = r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
_SIZE = r"[0-9]+(\.[0-9]+)?([KMGTPE]i|[kMGTPE])?"
_PATH = r"/[\w./@+=-]*"
_RESOURCE = rf"{_LABEL}(\.{_LABEL})*/[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"
_DURATION = r"[0-9]+(\.[0-9]+)?[smhd]?"


@dataclass(frozen=True)
class Option:
    """The form of a value, as a pattern and in words; of what may be `repeated`, every one counts."""

    pattern: str
    says: str
    repeated: bool = False


OPTIONS: Mapping[str, Option] = {
    "context": Option(r"\w[\w./:@+-]*", "a context of your kubeconfig"),
    "namespace": Option(_LABEL, "a name of lower-case letters, digits and -"),
    "image": Option(r"\w[\w./:@+-]*", "an image: ghcr.io/nvidia/jax:maxtext"),
    "image-pull-secret": Option(_SUBDOMAIN, "the name of a Secret", repeated=True),
    "queue": Option(_SUBDOMAIN, "a LocalQueue of Kueue"),
    "queue-priority": Option(_SUBDOMAIN, "a WorkloadPriorityClass of Kueue"),
    "priority-class": Option(_SUBDOMAIN, "a PriorityClass"),
    "service-account": Option(_SUBDOMAIN, "a ServiceAccount"),
    "runtime-class": Option(_SUBDOMAIN, "a RuntimeClass: nvidia"),
    "node-selector": Option(rf"{_KEY}={_VALUE}", "LABEL=VALUE", repeated=True),
    "toleration": Option(
        rf"{_KEY}(={_VALUE})?(:(NoSchedule|PreferNoSchedule|NoExecute))?", "TAINT, TAINT=VALUE or TAINT=VALUE:EFFECT",
        repeated=True,
    ),
    "exclude": Option(rf"{_SUBDOMAIN}(,{_SUBDOMAIN})*", "nodes: NODE,NODE"),
    "gpu": Option(_RESOURCE, "a resource: nvidia.com/gpu, amd.com/gpu"),
    "rdma": Option(rf"{_RESOURCE}(:[1-9][0-9]*)?", "a resource and a number: rdma/hca_shared_devices_a:1"),
    "host-network": Option(r"yes|no", "yes or no"),
    "cpu": Option(r"[0-9]+(\.[0-9]+)?m?", "a number of CPUs: 96"),
    "memory": Option(_SIZE, "a size: 512Gi"),
    "shm": Option(_SIZE, "a size: 64Gi"),
    "pvc": Option(_SUBDOMAIN, "a PersistentVolumeClaim that all pods can write to"),
    "volume": Option(rf"{_SUBDOMAIN}:{_PATH}(:ro)?", "CLAIM:/PATH or CLAIM:/PATH:ro", repeated=True),
    "secret": Option(rf"[A-Za-z_]\w*={_SUBDOMAIN}/[-.\w]+", "VARIABLE=SECRET/KEY", repeated=True),
    "time": Option(_DURATION, "a duration: 4h"),
    "keep": Option(_DURATION, "a duration: 30m"),
    "ttl": Option(_DURATION, "a duration: 1d"),
    "nodes": Option(r"[1-9][0-9]{0,3}", "the number of pods for a rehearsal"),
}  # fmt: skip
USUAL = {"keep": "30m", "ttl": "1d", "host-network": "no"}


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A run's request to Kubernetes: options by name, and how long it may wait for its pods."""

    single: Mapping[str, str] = field(default_factory=dict)
    repeated: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    queue_seconds: float | None = None

    def get(self, name: str) -> str | None:
        return self.single.get(name, USUAL.get(name))

    def all(self, name: str) -> tuple[str, ...]:
        return self.repeated.get(name, ())

    def seconds(self, name: str) -> float | None:
        text = self.get(name)
        return seconds_of(text, f"--kubernetes {name}") if text else None


def options(given: Sequence[str], queue_deadline: str | None = None) -> Wish:
    """KEY=VALUE words as a table. Raises InputError for an unknown key or a wrong value."""
    single: dict[str, str] = {}
    repeated: dict[str, tuple[str, ...]] = {}
    for word in given:
        key, equals, value = word.partition("=")
        key = key.lstrip("-").replace("_", "-")
        if key not in OPTIONS:
            fix = did_you_mean(key, OPTIONS)
            raise InputError.single("unknown-kubernetes", "--kubernetes", f"there is no option {key!r}", fix)
        row = OPTIONS[key]
        if not equals or not re.fullmatch(row.pattern, value, re.ASCII):
            why = f"{key} cannot be {value!r}" if equals else f"{key} has no value"
            raise InputError.single("kubernetes-value", "--kubernetes", why, f"give {key}={row.says}")
        if row.repeated:
            repeated[key] = (*repeated.get(key, ()), value)
        else:
            single[key] = value
    limit = seconds_of(queue_deadline, "--queue-deadline") if queue_deadline else None
    return Wish(single=single, repeated=repeated, queue_seconds=limit)
