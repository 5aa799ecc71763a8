"""A plan as a JobSet, and what its pods are given: pure.

JobSet makes one indexed Job of it, whose pods are the nodes in rank order, and a headless service by which each has a
name: NAME-node-0-INDEX.NAME. So hosts are known before there are any. What a configuration says reaches a process
through the agent's job, as data; in the manifest are the image, its mounts and options of a closed table.
"""

from __future__ import annotations

import base64
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from pathlib import PurePosixPath
from typing import Any

import yaml

from seatrial.errors import InputError
from seatrial.estimate import hardware
from seatrial.launch.kubernetes.options import Wish
from seatrial.node import IN_A_POD, pod, text_of
from seatrial.spec import Container, RunSpec

Object = dict[str, Any]

API = "jobset.x-k8s.io/v1alpha2"
RUN_LABEL = "seatrial/run"
QUEUE_LABEL, PRIORITY_LABEL = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
INDEX = "batch.kubernetes.io/job-completion-index"  # of a pod, as a label and an annotation
CONTAINER, GROUP = "seatrial", "node"
FILES, DATA = PurePosixPath("/seatrial/files"), PurePosixPath("/seatrial/data")
SHARED = "/dev/shm"  # of the memory that processes share
_OWN = ("files", "data", "shm")  # volumes that every pod has
RUNS = DATA / "runs"  # a volume itself may be anybody's to write to; this folder is not
MAX_NAME = 45  # a pod is called NAME-node-0-9999-abcde, and that may have 63 characters
CLEAR_SECONDS = 40.0  # for an agent to end, and for what it wrote to be copied, once its processes are stopped
RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
_PULL = {"never": "Never", "missing": "IfNotPresent", "always": "Always"}
_STAYS = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}


def name_of(run: str, suffix: str) -> str:
    """A name that is a DNS label and begins with a letter, as services need: of the run's and a unique suffix."""
    slug = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")
    slug = slug if slug[:1].isalpha() else f"run-{slug}"
    return f"{slug[: MAX_NAME - 1 - len(suffix)].strip('-')}-{suffix}"


def host_name(name: str, index: int) -> str:
    """A pod's host name, which is its place in the Job; the pod itself is called so and a few letters."""
    return f"{name}-{GROUP}-0-{index}"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The parts of a JobSet. `secrets` are the names of variables that a Secret of its own holds."""

    name: str
    run: str
    pods: int
    container: Container
    root: PurePosixPath
    wish: Wish = field(default_factory=Wish)
    gpus: Mapping[str, int] = field(default_factory=dict)  # resource → number
    python: str = "python3"
    secrets: tuple[str, ...] = ()
    grace_seconds: float = 5.0


def gpus_of(spec: RunSpec, wish: Wish, *, rehearsing: bool) -> dict[str, int]:
    """The GPUs of each pod as a resource; none for a rehearsal, which computes on CPUs, and for unknown devices."""
    device = hardware.find(spec.topology.device)
    resource = wish.get("gpu") or (RESOURCES.get(device.vendor) if device else None)
    return {resource: spec.topology.devices_per_node} if resource and not rehearsing else {}


def jobset(made: Manifest) -> Object:
    """The JobSet, as the API takes it."""
    wish, labels = made.wish, {"app.kubernetes.io/name": "seatrial", RUN_LABEL: made.name}
    queue = {QUEUE_LABEL: wish.get("queue"), PRIORITY_LABEL: wish.get("queue-priority")}
    limit = wish.seconds("time")
    job = {
        "completionMode": "Indexed",
        "completions": made.pods,
        "parallelism": made.pods,
        "backoffLimit": 0,
        **({"activeDeadlineSeconds": ceil(limit)} if limit else {}),
        "template": {"metadata": {"labels": labels, "annotations": dict(_STAYS)}, "spec": pod_spec(made)},
    }
    namespace = wish.get("namespace")
    return {
        "apiVersion": API,
        "kind": "JobSet",
        "metadata": {
            "name": made.name,
            **({"namespace": namespace} if namespace else {}),
            "labels": labels | {key: value for key, value in queue.items() if value},
            "annotations": {"seatrial/configuration": made.run},
        },
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": made.name, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": 0},
            "ttlSecondsAfterFinished": ceil(wish.seconds("ttl") or 0),
            "replicatedJobs": [
                {"name": GROUP, "replicas": 1, "template": {"metadata": {"labels": labels}, "spec": job}}
            ],
        },
    }


def pod_spec(made: Manifest) -> Object:
    """The pods, all alike: each finds its place by its index."""
    wish, container = made.wish, made.container
    volumes = dict(_volumes(made.name, container, wish))
    privileges = _security(container, wish)
    groups = [int(group) for group in container.group_add if group.isdecimal()]
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": ceil(made.grace_seconds + CLEAR_SECONDS),
        "enableServiceLinks": False,
        **_placed(made),
        **({"securityContext": {"supplementalGroups": groups}} if groups else {}),
        "containers": [
            {
                "name": CONTAINER,
                "image": container.image.removeprefix("docker://"),
                **({"imagePullPolicy": _PULL[container.pull]} if container.pull else {}),
                "command": [made.python, "-I", str(FILES / "pod.py"), str(FILES), str(made.root)],
                **({"env": environment} if (environment := list(_environment(made))) else {}),
                **({"resources": resources} if (resources := _resources(made)) else {}),
                **({"securityContext": privileges} if privileges else {}),
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [{"name": name, **mount} for name, (_, mount) in volumes.items()],
            }
        ],
        "volumes": [{"name": name, **source} for name, (source, _) in volumes.items()],
    }


def _placed(made: Manifest) -> Object:
    """On which nodes pods may be, with what rights and which network."""
    wish = made.wish
    found: Object = {}
    if account := wish.get("service-account"):
        found["serviceAccountName"] = account
    else:
        found["automountServiceAccountToken"] = False
    if secrets := wish.all("image-pull-secret"):
        found["imagePullSecrets"] = [{"name": name} for name in secrets]
    for key, option in (("priorityClassName", "priority-class"), ("runtimeClassName", "runtime-class")):
        found |= {key: value} if (value := wish.get(option)) else {}
    if wish.get("host-network") == "yes":
        found |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if selectors := wish.all("node-selector"):
        found["nodeSelector"] = {key: value for key, _, value in (each.partition("=") for each in selectors)}
    if excluded := wish.get("exclude"):
        # By their names, which the label kubernetes.io/hostname need not repeat; a field takes one value.
        named = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in excluded.split(",")]
        required = {"nodeSelectorTerms": [{"matchFields": named}]}
        found["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    tolerations = [_toleration(text) for text in (*made.gpus, *wish.all("toleration"))]
    return found | ({"tolerations": tolerations} if tolerations else {})


def _toleration(text: str) -> Object:
    """TAINT[=VALUE][:EFFECT]; without an effect, all of them."""
    taint, _, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    how = {"operator": "Equal", "value": value} if equals else {"operator": "Exists"}
    return {"key": key, **how, **({"effect": effect} if effect else {})}


def _environment(made: Manifest) -> Iterator[Object]:
    """Variables from Secrets: those of the user's own, and those that hold the run's."""
    for each in made.wish.all("secret"):
        variable, _, place = each.partition("=")
        secret, _, key = place.partition("/")
        yield {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
    for variable in made.secrets:
        yield {"name": variable, "valueFrom": {"secretKeyRef": {"name": made.name, "key": variable}}}


def _resources(made: Manifest) -> Object:
    wish = made.wish
    devices = {resource: str(number) for resource, number in made.gpus.items()}
    if rdma := wish.get("rdma"):
        resource, _, number = rdma.partition(":")
        devices[resource] = number or "1"
    sizes = {name: value for name in ("cpu", "memory") if (value := wish.get(name))}
    limits = {**devices, **sizes}
    return {"requests": dict(limits), "limits": limits} if limits else {}


def _security(container: Container, wish: Wish) -> Object:
    """The rights of the container; RDMA pins its buffers, which takes one."""
    needs = ("IPC_LOCK",) if wish.get("rdma") else ()
    added = list(dict.fromkeys([*(name.upper().removeprefix("CAP_") for name in container.cap_add), *needs]))
    unconfined = {re.split("[=:]", each)[0] for each in _known(container)}
    return {
        **({"privileged": True} if container.privileged else {}),
        **({"capabilities": {"add": added}} if added else {}),
        **({"seccompProfile": {"type": "Unconfined"}} if "seccomp" in unconfined else {}),
        **({"appArmorProfile": {"type": "Unconfined"}} if "apparmor" in unconfined else {}),
    }


def _known(container: Container) -> list[str]:
    """The security options of which pods have a counterpart."""
    return [each for each in container.security_opt if re.fullmatch(r"(seccomp|apparmor)[=:]unconfined", each)]


def _volumes(run: str, container: Container, wish: Wish) -> Iterator[tuple[str, tuple[Object, Object]]]:
    """Name → what it is and where it is mounted."""
    yield "files", ({"configMap": {"name": run}}, {"mountPath": str(FILES), "readOnly": True})
    claim = wish.get("pvc")
    runs = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
    yield "data", (runs, {"mountPath": str(DATA)})
    size = wish.get("shm") or quantity(container.shm_size)
    memory = {"medium": "Memory", **({"sizeLimit": size} if size else {})}
    yield "shm", ({"emptyDir": memory}, {"mountPath": SHARED})
    for number, (here, there) in enumerate(container.volumes):
        place, _, choices = there.partition(":")
        if _place(place) == SHARED:
            continue
        only = {"readOnly": True} if "ro" in choices.split(",") else {}
        yield f"host-{number}", ({"hostPath": {"path": here}}, {"mountPath": place, **only})
    for number, each in enumerate(wish.all("volume")):
        claimed, _, place = each.partition(":")
        place, _, choice = place.partition(":")
        only = {"readOnly": True} if choice else {}
        yield f"claim-{number}", ({"persistentVolumeClaim": {"claimName": claimed}}, {"mountPath": place, **only})


def _require_places(container: Container, wish: Wish) -> None:
    """Raises InputError where two volumes are mounted at one path, which Kubernetes refuses."""
    there: dict[str, str] = {}
    for name, (_, mount) in _volumes("", container, wish):
        place = _place(mount["mountPath"])
        if place in there:
            why = f"Seatrial mounts a volume of its own at {place}" if there[place] in _OWN else "it is mounted twice"
            option = "--kubernetes volume" if name.startswith("claim-") else "container.volumes"
            fix = "mount it at another path, or leave it out"
            raise InputError.single("bad-volume", option, f"{place} can hold one volume of a pod: {why}", fix)
        there[place] = name


def _place(path: str) -> str:
    return posixpath.normpath(path)


def quantity(size: str | None) -> str | None:
    """docker's size (64g: GiB) as Kubernetes writes it; None where there is none, or it is not one."""
    match = re.fullmatch(r"(\d+)\s*([bkmgt]?)(?:i?b)?", size.strip().lower()) if size else None
    if match is None:
        return None
    unit = {"": "", "b": "", "k": "Ki", "m": "Mi", "g": "Gi", "t": "Ti"}[match[2]]
    return f"{match[1]}{unit}"


def about(container: Container, wish: Wish) -> list[str]:
    """Notes on what of a configuration's container has no counterpart in a pod. Raises InputError as pods would."""
    _require_places(container, wish)
    notes = []
    plain = "are not given to pods, which get devices from device plugins"
    if container.devices and not container.privileged:
        fix = "; --kubernetes rdma=RESOURCE requests one" if not wish.get("rdma") else ""
        notes.append(f"the container's devices ({', '.join(container.devices)}) {plain}{fix}")
    if names := [group for group in container.group_add if not group.isdecimal()]:
        notes.append(f"pods know groups by number only: not added are {', '.join(names)}")
    if unknown := [each for each in container.security_opt if each not in _known(container)]:
        notes.append(f"pods have no counterpart of security options {', '.join(unknown)}")
    if container.shm_size and not (wish.get("shm") or quantity(container.shm_size)):
        notes.append(f"the size of /dev/shm, {container.shm_size}, is not one: give --kubernetes shm=SIZE")
    memory = [here for here, there in container.volumes if _place(there.partition(":")[0]) == SHARED]
    if memory:
        notes.append(f"pods have a {SHARED} of their own: not mounted is {', '.join(memory)} of the nodes")
    if paths := ", ".join(here for here, _ in container.volumes if here not in memory):
        notes.append(f"volumes are folders of the nodes, as hostPath: {paths}; a cluster may forbid that")
    return notes


# --- what the pods are given ------------------------------------------------------------------------------------------


def belongings(made: Manifest, run: Mapping[str, Any], hidden: Mapping[str, str], owner: Mapping[str, str]) -> Object:
    """The ConfigMap and, where there are secrets, the Secret of a JobSet, deleted with it; `owner` is its uid."""
    metadata = {
        "name": made.name,
        "labels": {"app.kubernetes.io/name": "seatrial", RUN_LABEL: made.name},
        "ownerReferences": [{"apiVersion": API, "kind": "JobSet", "name": made.name, **owner}],
    }
    files = {f"{name}.py": text_of(name) for name in IN_A_POD} | {pod.RUN: pod.packed(dict(run))}
    kept: list[Object] = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": files}]
    if hidden:
        data = {name: base64.b64encode(value.encode()).decode() for name, value in hidden.items()}
        kept.append({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data})
    return {"apiVersion": "v1", "kind": "List", "items": kept}


# --- as text ----------------------------------------------------------------------------------------------------------

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9/_.-]*")
_AMBIGUOUS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"}


class _Text(yaml.SafeDumper):
    """YAML of which no reader takes a text for anything else: what is not plainly a word is quoted."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent(dumper: _Text, text: str) -> yaml.Node:
    plain = _PLAIN.fullmatch(text) and text.lower() not in _AMBIGUOUS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Text.add_representer(str, _represent)


def as_yaml(made: Object) -> str:
    """An object for kubectl and for people."""
    return yaml.dump(made, Dumper=_Text, sort_keys=False, allow_unicode=False, width=1_000_000)
