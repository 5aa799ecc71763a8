"""The states of a run's JobSet, pods and quota, as Kubernetes reports them, and their meaning for the run: pure.

`read` takes the objects of `kubectl get … -o json`. `meaning` is of all of them; `explain` says how a run ended whose
pods Kubernetes has taken away. What was done to a pod explains what its processes did, and comes first.

Reasons and messages are those of Kubernetes 1.32 (kubelet, scheduler, node life cycle and Job controllers) and Kueue.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from seatrial.launch.ending import seen_fault, with_victims
from seatrial.launch.kubernetes.manifest import CONTAINER, GROUP, INDEX
from seatrial.launch.progress import Ending

MAX_WORDS = 400


@dataclass(frozen=True)
class Condition:
    """One of an object's conditions, in Kubernetes' words."""

    status: str = ""
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A pod as it is reported; `waiting` and `ended` are the reasons of its container's state."""

    name: str
    index: int
    phase: str = ""
    node: str = ""
    created: str = ""
    reason: str = ""
    message: str = ""
    waiting: str = ""
    waiting_message: str = ""
    ended: str = ""
    ended_message: str = ""
    exit_code: int | None = None
    deleted: bool = False  # somebody has asked for its end
    conditions: Mapping[str, Condition] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return self.phase in ("Succeeded", "Failed") or self.exit_code is not None

    @property
    def is_running(self) -> bool:
        return self.phase == "Running" and not self.is_over


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The JobSet and all that belongs to it at one moment; without a JobSet, it has been deleted."""

    jobset: bool = False
    suspended: bool = False
    conditions: Mapping[str, Condition] = field(default_factory=dict)  # of the JobSet
    jobs: Mapping[str, Condition] = field(default_factory=dict)
    pods: Mapping[int, Pod] = field(default_factory=dict)  # the newest of each index
    workload: Mapping[str, Condition] = field(default_factory=dict)  # Kueue's
    events: tuple[tuple[str, str, str], ...] = ()  # warnings, the newest first: object, reason, message
    nodes: Mapping[str, Condition] = field(default_factory=dict)  # whether a node is ready

    def ended(self, name: str) -> bool:
        return self.conditions.get(name, Condition()).status == "True"


@dataclass(frozen=True)
class Meaning:
    """Its meaning for the run. Where it is over by a fault: the run's reason, the fault's kind, its place and words.

    `hopeless_seconds`: after so long in this state a wait will not end by itself; None: it may.
    """

    phase: str  # waiting, running, over
    says: str = ""
    reason: str = ""
    fault: str = ""
    where: str = ""
    hopeless_seconds: float | None = None


# --- reading ----------------------------------------------------------------------------------------------------------


def read(objects: Iterable[Mapping[str, Any]]) -> Observed:
    """The objects of `kubectl get`, whatever their order; what is none of ours, or odd, is passed over."""
    found = Observed()
    pods: dict[int, Pod] = {}
    events: list[tuple[str, str, str, str]] = []
    nodes: dict[str, Condition] = {}
    for each in objects:
        kind, status, spec = each.get("kind"), _table(each, "status"), _table(each, "spec")
        if kind == "JobSet":
            gone = "deletionTimestamp" in _table(each, "metadata")
            suspended = spec.get("suspend") is True
            found = replace(found, jobset=not gone, suspended=suspended, conditions=_conditions(status))
        elif kind == "Job":
            found = replace(found, jobs=_conditions(status))
        elif kind == "Workload":
            found = replace(found, workload=_conditions(status))
        elif kind == "Node":
            nodes[str(_table(each, "metadata").get("name"))] = _conditions(status).get("Ready", Condition())
        elif kind == "Event":
            about = _table(each, "involvedObject").get("name")
            events.append((_when(each), str(about), str(each.get("reason", "")), str(each.get("message", ""))))
        elif kind == "Pod" and (pod := _pod(each)):
            before = pods.get(pod.index)
            pods[pod.index] = pod if before is None or pod.created >= before.created else before
    newest = tuple(event[1:] for event in sorted(events, key=lambda event: event[0], reverse=True))
    return replace(found, pods=pods, events=newest, nodes=nodes)


def _when(event: Mapping[str, Any]) -> str:
    """The time at which an event came last; its field depends on who reported it."""
    times = (_table(event, "series").get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((time for time in times if isinstance(time, str)), "")


def _table(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = data.get(name)
    return value if isinstance(value, dict) else {}


def _conditions(status: Mapping[str, Any]) -> dict[str, Condition]:
    listed = status.get("conditions")
    return {
        str(each.get("type")): Condition(*(str(each.get(key, "")) for key in ("status", "reason", "message")))
        for each in (listed if isinstance(listed, list) else [])
        if isinstance(each, dict)
    }


def _pod(each: Mapping[str, Any]) -> Pod | None:
    metadata, status = _table(each, "metadata"), _table(each, "status")
    index = _table(metadata, "annotations").get(INDEX, _table(metadata, "labels").get(INDEX))
    if not isinstance(index, str) or not index.isdecimal():
        return None
    listed = status.get("containerStatuses")
    states = {each.get("name"): _table(each, "state") for each in (listed if isinstance(listed, list) else [])}
    state = states.get(CONTAINER, {})
    waiting, ended = _table(state, "waiting"), _table(state, "terminated")
    code = ended.get("exitCode")
    return Pod(
        name=str(metadata.get("name")),
        index=int(index),
        phase=str(status.get("phase", "")),
        node=str(_table(each, "spec").get("nodeName") or ""),
        created=str(metadata.get("creationTimestamp", "")),
        reason=str(status.get("reason", "")),
        message=str(status.get("message", "")),
        waiting=str(waiting.get("reason", "")),
        waiting_message=str(waiting.get("message", "")),
        ended=str(ended.get("reason", "")),
        ended_message=str(ended.get("message", "")),
        exit_code=code if isinstance(code, int) else None,
        deleted="deletionTimestamp" in metadata,
        conditions=_conditions(status),
    )


# --- what was done to a pod, or to all --------------------------------------------------------------------------------

# What explains the end of a pod: what Kubernetes calls it → the run's reason, the fault's kind, and our words.
TAKEN: Mapping[str, tuple[str, str, str]] = {
    # DisruptionTarget's reasons
    "PreemptionByScheduler": ("interrupted", "preempted", "was preempted by a pod of higher priority"),
    "PreemptionByKueueScheduler": ("interrupted", "preempted", "was preempted by Kueue"),
    "EvictionByEvictionAPI": ("interrupted", "evicted", "was evicted by request: its node is drained, perhaps"),
    "DeletionByTaintManager": ("died", "node_lost", "was removed because its node does not answer or was tainted"),
    "DeletionByPodGC": ("died", "node_lost", "was removed because its node is gone"),
    "TerminationByKubelet": ("died", "evicted", "was ended by its node"),
    # a pod's own reason
    "Evicted": ("died", "evicted", "was evicted by its node"),
    "Preempting": ("interrupted", "preempted", "was preempted by its node for a critical pod"),
    **dict.fromkeys(
        ("Terminated", "Shutdown", "NodeShutdown"), ("died", "evicted", "was ended by its node, which shuts down")
    ),
    "NodeLost": ("died", "node_lost", "was on a node that does not answer"),
    "DeadlineExceeded": ("died", "time_limit", "reached its time limit"),
    "UnexpectedAdmissionError": ("could_not_run", "launch_failed", "was rejected by its node"),
    "NodeAffinity": ("could_not_run", "launch_failed", "was rejected by its node"),
    # a container's
    "OOMKilled": ("died", "host_oom", "used more memory than its limit, and was killed"),
    "ContainerCannotRun": ("could_not_run", "container_failed", "could not start its container"),
    "StartError": ("could_not_run", "container_failed", "could not start its container"),
    "ContainerStatusUnknown": ("died", "node_lost", "was on a node that lost sight of it"),
}
# Kueue's reasons to take a workload's quota back.
_BY_KUEUE: Mapping[str, tuple[str, str, str]] = {
    "Preempted": ("interrupted", "preempted", "was preempted by Kueue"),
    "PodsReadyTimeout": ("could_not_run", "launch_failed", "was evicted by Kueue: not all pods were ready in time"),
    "NodeFailures": ("died", "node_lost", "was evicted by Kueue: a node failed"),
    "ClusterQueueStopped": ("interrupted", "preempted", "was evicted by Kueue: its queue was stopped"),
    "LocalQueueStopped": ("interrupted", "preempted", "was evicted by Kueue: its queue was stopped"),
    "AdmissionCheck": ("interrupted", "preempted", "was evicted by Kueue: an admission check failed"),
    "Deactivated": ("interrupted", "cancelled", "was deactivated in Kueue"),
}
_OF_MEMORY = re.compile(r"\bmemory\b")
_OF_DISK = re.compile(r"ephemeral|\binodes\b|\bdisk\b|emptyDir", re.IGNORECASE)
# Kinds of faults, what takes a pod away by itself before what may follow on it.
_FIRST = (
    "host_oom", "disk_full", "container_failed", "launch_failed", "preempted", "evicted", "node_lost", "time_limit",
)  # fmt: skip
# A state in which a container waits → the seconds in it after which nobody expects it to end.
_STUCK: Mapping[str, float] = {
    "InvalidImageName": 0, "ErrImageNeverPull": 0, "ImageInspectError": 60, "ErrImagePull": 120,
    "ImagePullBackOff": 120, "RegistryUnavailable": 300, "CreateContainerConfigError": 60, "CreateContainerError": 60,
    "RunContainerError": 60, "CrashLoopBackOff": 60,
}  # fmt: skip
_FAILING = ("FailureTarget", "Failed")  # conditions of a Job, in this order
# Warnings of events that say why nothing comes of a pod.
_EVENTS = {"FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "FailedCreate", "FailedScheduling"}


def taken(pod: Pod, nodes: Mapping[str, Condition]) -> tuple[str, str, str] | None:
    """(reason, fault, sentence) of what was done to a pod; None where nothing was, as far as is known."""
    disrupted = pod.conditions.get("DisruptionTarget", Condition())
    ready = nodes.get(pod.node, Condition(status="True"))
    named = [(disrupted.reason, disrupted.message)] if disrupted.status == "True" else []
    named += [(pod.reason, pod.message), (pod.ended, pod.ended_message)]
    if pod.reason.startswith("OutOf"):  # OutOfcpu, OutOfnvidia.com/gpu
        named = [("UnexpectedAdmissionError", f"{pod.reason}: {pod.message}"), *named]
    if "Evicted" in (pod.reason, *(name for name, _ in named)):  # the node says more than that it did so
        named.sort(key=lambda each: each[0] != "Evicted")
    for name, message in named:
        if name in TAKEN:
            reason, fault, says = TAKEN[name]
            if fault == "evicted":
                fault = "disk_full" if _OF_DISK.search(message) else fault
                fault = "host_oom" if fault == "evicted" and _OF_MEMORY.search(message) else fault
            return reason, fault, _sentence(pod, says, name, message)
    if ready.status not in ("True", ""):
        says = "is on a node that is not ready"
        return "died", "node_lost", _sentence(pod, says, ready.reason, ready.message)
    return None


def _sentence(pod: Pod, says: str, name: str, message: str) -> str:
    on = f" on node {pod.node}" if pod.node else ""
    code = f", exit code {pod.exit_code}" if pod.exit_code is not None else ""
    return f"pod {pod.name}{on} {says} ({name}{code}{': ' if message else ''}{_words(message)})"


def _host(hosts: Sequence[str], pod: Pod) -> str:
    """The host that a pod is, or its own name where there is none of its index."""
    return hosts[pod.index] if pod.index < len(hosts) else pod.name


def _words(text: str) -> str:
    """A message in one line, and not too long; of chained errors the last part is the cause."""
    text = " ".join(text.split())
    return text if len(text) <= MAX_WORDS else f"{text[: MAX_WORDS // 2]} … {text[-MAX_WORDS // 2 :]}"


def meaning(seen: Observed, hosts: Sequence[str], *, begun: bool) -> Meaning:
    """The state of the run; `hosts` are its pods' host names, in the order of their indices.

    `begun`: any of its pods has run; one that is suspended before that only waits.
    """
    return next(_over(seen, hosts, begun), None) or _waiting(seen, hosts) or Meaning("running")


def _over(seen: Observed, hosts: Sequence[str], begun: bool) -> Iterator[Meaning]:
    """The signs that the run is over, the most telling first."""
    evicted = seen.workload.get("Evicted", Condition())
    if evicted.status == "True" and seen.suspended and begun:
        reason, fault, says = _BY_KUEUE.get(evicted.reason, _BY_KUEUE["Preempted"])
        text = f"the JobSet {says} ({evicted.reason}: {_words(evicted.message)})"
        yield Meaning("over", text, reason, fault, "Kueue")
    found = {index: done for index, pod in seen.pods.items() if (done := taken(pod, seen.nodes))}
    for index in sorted(found, key=lambda index: (_FIRST.index(found[index][1]), index)):
        reason, fault, text = found[index]
        yield Meaning("over", text, reason, fault, _host(hosts, seen.pods[index]))
    conditions = [all_of[name] for all_of in (seen.jobs, seen.conditions) for name in _FAILING if name in all_of]
    failing = [each for each in conditions if each.status == "True"]  # a Job fails once its pods have ended
    if failed := next((each for each in failing if each.reason == "DeadlineExceeded"), None):
        yield Meaning("over", f"the Job reached its time limit ({_words(failed.message)})", "died", "time_limit")
    if not seen.jobset:
        yield Meaning("over", "the JobSet was deleted", "interrupted", "cancelled")
    if begun and seen.suspended:
        yield Meaning("over", "the JobSet was suspended", "interrupted", "preempted")
    deleted = [pod for pod in seen.pods.values() if pod.deleted and not pod.is_over]
    if deleted and not failing and not seen.suspended:
        pod = min(deleted, key=lambda pod: pod.index)
        text = f"pod {pod.name}{f' on node {pod.node}' * bool(pod.node)} was deleted"
        yield Meaning("over", text, "interrupted", "cancelled", _host(hosts, pod))
    if seen.ended("Failed") or seen.ended("Completed"):
        yield Meaning("over")


def _waiting(seen: Observed, hosts: Sequence[str]) -> Meaning | None:
    """The reason for the wait; None where all pods run, or have run."""
    held = sorted((pod for pod in seen.pods.values() if not (pod.is_running or pod.is_over)), key=lambda pod: pod.index)
    if not held and all(index in seen.pods for index in range(len(hosts))):
        return None
    for pod in held:
        if pod.waiting in _STUCK:
            text = f"pod {pod.name}: {pod.waiting}: {_words(pod.waiting_message)}"
            where, seconds = _host(hosts, pod), _STUCK[pod.waiting]
            return Meaning("waiting", text, "could_not_run", "container_failed", where, seconds)
    states = sorted({pod.waiting or pod.phase or "unknown" for pod in held})
    return Meaning("waiting", next(_reasons(seen, held, hosts), None) or ", ".join(states) or "no pods yet")


def _reasons(seen: Observed, held: Sequence[Pod], hosts: Sequence[str]) -> Iterator[str]:
    """The reasons that the pods do not start, the most telling first."""
    for pod in held:
        scheduled = pod.conditions.get("PodScheduled", Condition())
        if scheduled.status == "False":
            yield f"{scheduled.reason}: {_words(scheduled.message)}"
    if seen.suspended:
        why = seen.workload.get("QuotaReserved", Condition()).message
        yield f"suspended until Kueue admits it{f': {_words(why)}' if why else ''}"
    ours = hosts[0].removesuffix(f"-{GROUP}-0-0")
    not_yet = f'"{ours}" not found'  # our ConfigMap and Secret, which come after the JobSet that owns them
    for about, reason, message in seen.events:
        if reason in _EVENTS and about.startswith(ours) and not_yet not in message:
            yield f"{about}: {reason}: {_words(message)}"


# --- the end of a run -------------------------------------------------------------------------------------------------


def explain(ending: Ending, seen: Observed, hosts: Sequence[str], *, begun: bool) -> Ending:
    """The ending of the run, by its agents (`ending`) and by what Kubernetes reports.

    `begun`: any agent has reported.
    """
    if ending.reason == "completed":
        return ending
    means = meaning(seen, hosts, begun=begun)
    if means.phase == "over" and means.fault:
        fault = seen_fault(means.fault, means.where or "the JobSet", means.says)
        return Ending(reason=means.reason, exit_code=ending.exit_code, faults=with_victims(fault, ending.faults))
    if begun:
        return ending
    ended = [pod for _, pod in sorted(seen.pods.items()) if pod.is_over]
    if not ended:
        return ending
    pod = ended[0]
    says = "ended before it started a process"
    text = _sentence(pod, says, pod.ended or pod.phase, pod.ended_message or pod.message)
    fault = seen_fault("start_failed", _host(hosts, pod), text)
    return Ending(reason="could_not_run", exit_code=ending.exit_code, faults=(fault,))
