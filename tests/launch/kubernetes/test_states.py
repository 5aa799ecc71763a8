"""The states of a JobSet and its pods in `kubectl get -o json`, and the run's ending that follows from them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.events import Fault
from seatrial.launch.kubernetes.manifest import INDEX
from seatrial.launch.kubernetes.states import TAKEN, Observed, explain, meaning, read
from seatrial.launch.progress import Ending
from seatrial.logs.faults import KINDS

NAME = "llama-x7k2p"
HOSTS = (f"{NAME}-node-0-0", f"{NAME}-node-0-1")
DIED = Fault(process=-1, fault="process_died", where=f"rank 1 on {HOSTS[1]}", text="it was ended by SIGKILL (9)")
LOST = Fault(process=-1, fault="process_died", where=f"agent on {HOSTS[1]}", text="the agent ended")


def jobset(*conditions: dict[str, str], suspend: bool = False, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": NAME, **metadata},
        "spec": {"suspend": suspend}, "status": {"conditions": list(conditions), "restarts": 0},
    }  # fmt: skip


def condition(kind: str, reason: str, message: str, status: str = "True") -> dict[str, str]:
    when = "2026-11-25T14:03:11Z"
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": when}


def pod(index: int, phase: str = "Running", *, suffix: str = "9k4zd", created: str = "2026-11-25T14:00:05Z",
        state: dict[str, Any] | None = None, node: str = "gpu-07", metadata: dict[str, Any] | None = None,
        **status: Any) -> dict[str, Any]:  # fmt: skip
    states = [{"name": "seatrial", "ready": phase == "Running", "restartCount": 0,
               "state": state or {"running": {"startedAt": created}}}]  # fmt: skip
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{HOSTS[index]}-{suffix}", "annotations": {INDEX: str(index)}, "creationTimestamp": created,
            **(metadata or {}),
        },
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase, "containerStatuses": states, **status},
    }  # fmt: skip


def terminated(code: int, reason: str, message: str = "") -> dict[str, Any]:
    return {
        "terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": "2026-11-25T15:00:00Z"}
    }


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


DISRUPTED = "DisruptionTarget"
LOW = "The node was low on resource: {}. Threshold quantity: 107374182, available: 81920Ki. "
FULL = "Pod ephemeral local storage usage exceeds the total limit of containers 50Gi. "
TAINT = "Taint manager: deleting due to NoExecute taint"
NOT_READY = condition("Ready", "NodeStatusUnknown", "Kubelet stopped posting node status.", "Unknown")


def taken_pod(**status: Any) -> list[dict[str, Any]]:
    return [jobset(), pod(0), pod(1, "Failed", **status)]


# What is reported, how the run has ended by that, and words of the sentence.
ENDS: dict[str, tuple[list[dict[str, Any]], str, str, str]] = {
    "out of memory": (
        taken_pod(state=terminated(137, "OOMKilled")), "died", "host_oom", "gpu-07 used more memory than its limit"),
    "evicted for memory": (
        taken_pod(reason="Evicted", message=LOW.format("memory")), "died", "host_oom", "low on resource: memory"),
    "evicted for its disk": (
        taken_pod(reason="Evicted", message=LOW.format("ephemeral-storage")), "died", "disk_full", "ephemeral-storage"),
    "evicted for its own disk": (
        taken_pod(reason="Evicted", message=FULL), "died", "disk_full", "exceeds the total limit"),
    "evicted, and its node says which": (
        taken_pod(reason="Evicted", message=LOW.format("memory"), conditions=[
            condition(DISRUPTED, "TerminationByKubelet", LOW.format("memory"))]), "died", "host_oom", "was evicted"),
    "preempted": (
        taken_pod(conditions=[condition(
            DISRUPTED, "PreemptionByScheduler", "default-scheduler: preempting to accommodate a higher priority pod")]),
        "interrupted", "preempted", "higher priority"),
    "drained": (
        taken_pod(conditions=[condition(DISRUPTED, "EvictionByEvictionAPI", "Eviction API: evicting")]),
        "interrupted", "evicted", "by request"),
    "node gone silent": (
        [jobset(), pod(0), pod(1, metadata={"deletionTimestamp": "2026-11-25T15:00:00Z"}, conditions=[
            condition(DISRUPTED, "DeletionByTaintManager", TAINT)])],
        "died", "node_lost", "does not answer"),
    "node not ready": (
        [jobset(), pod(0, node="gpu-06"), pod(1), {"kind": "Node", "metadata": {"name": "gpu-07"},
                                                   "status": {"conditions": [NOT_READY]}}],
        "died", "node_lost", "Kubelet stopped posting node status"),
    "no room for it after all": (
        taken_pod(reason="OutOfnvidia.com/gpu", message="Pod was rejected: Node didn't have enough resource"),
        "could_not_run", "launch_failed", "OutOfnvidia.com/gpu"),
    "cannot be started": (
        taken_pod(state=terminated(128, "StartError", 'exec: "python3": executable file not found in $PATH')),
        "could_not_run", "container_failed", "executable file not found"),
    "time limit": (
        [jobset(), {"kind": "Job", "metadata": {}, "status": {"conditions": [
            condition("Failed", "DeadlineExceeded", "Job was active longer than specified deadline")]}}, pod(0)],
        "died", "time_limit", "longer than specified deadline"),
    "preempted by Kueue": (
        [jobset(suspend=True), {"kind": "Workload", "status": {"conditions": [condition(
            "Evicted", "Preempted", "Preempted to accommodate a workload (UID: 8f) due to prioritization")]}}],
        "interrupted", "preempted", "was preempted by Kueue"),
    "not ready in time for Kueue": (
        [jobset(suspend=True), {"kind": "Workload", "status": {"conditions": [condition(
            "Evicted", "PodsReadyTimeout", "Exceeded the PodsReady timeout ml/jobset-llama")]}}],
        "could_not_run", "launch_failed", "not all pods were ready in time"),
    "deleted by somebody": ([pod(0), pod(1)], "interrupted", "cancelled", "the JobSet was deleted"),
    "one pod deleted": (
        [jobset(), pod(0), pod(1, metadata={"deletionTimestamp": "2026-11-25T15:00:00Z"})],
        "interrupted", "cancelled", "was deleted"),
    "suspended by somebody": ([jobset(suspend=True)], "interrupted", "preempted", "was suspended"),
}  # fmt: skip


def test_a_condition_that_does_not_hold_ends_nothing() -> None:
    late = condition("Failed", "DeadlineExceeded", "Job was active longer than specified deadline", "False")
    objects = [jobset(), {"kind": "Job", "metadata": {}, "status": {"conditions": [late]}}, pod(0), pod(1)]
    assert meaning(read(objects), HOSTS, begun=True).phase == "running"


@pytest.mark.parametrize("name", ENDS)
def test_what_kubernetes_did_to_a_pod_explains_the_end(name: str) -> None:
    objects, reason, fault, says = ENDS[name]
    found = explain(Ending(reason="died", exit_code=1, faults=(DIED,)), read(objects), HOSTS, begun=True)
    assert (found.reason, found.faults[0].fault) == (reason, fault), found
    assert says in found.faults[0].text
    assert [victim.fault for victim in found.faults[1:]] == ["peer_stopped"]
    assert found.faults[0].fault in KINDS


def test_what_a_pod_died_of_comes_before_what_followed() -> None:
    failed = condition("Failed", "FailedJobs", "jobset failed due to one or more job failures")
    deleted = {"deletionTimestamp": "2026-11-25T15:00:00Z"}
    objects = [jobset(failed), pod(0, metadata=deleted), pod(1, "Failed", state=terminated(137, "OOMKilled"))]
    found = explain(Ending(reason="died", faults=(DIED,)), read(objects), HOSTS, begun=True)
    assert (found.faults[0].fault, found.faults[0].where) == ("host_oom", HOSTS[1])


def test_a_process_that_failed_by_itself_is_described_by_its_agent() -> None:
    failed = condition("Failed", "FailedJobs", "jobset failed due to one or more job failures")
    objects = [jobset(failed), pod(0), pod(1, "Failed", state=terminated(1, "Error"))]
    ending = Ending(reason="died", exit_code=137, faults=(DIED,))
    assert explain(ending, read(objects), HOSTS, begun=True) is ending
    done = Ending(reason="completed", exit_code=0)
    assert all(explain(done, read(each[0]), HOSTS, begun=True) is done for each in ENDS.values())


def test_a_pod_that_ended_before_its_agent_says_its_last_words() -> None:
    objects = [jobset(), pod(0), pod(1, "Failed", state=terminated(1, "Error", "seatrial: KeyError: 'jobs'"))]
    found = explain(Ending(reason="died", faults=(LOST,)), read(objects), HOSTS, begun=False)
    assert (found.reason, found.faults[0].fault) == ("could_not_run", "start_failed")
    assert "KeyError: 'jobs'" in found.faults[0].text


SCHEDULER = "0/5 nodes are available: 2 Insufficient nvidia.com/gpu, 3 node(s) had untolerated taint {pool: cpu}."
UNSCHEDULABLE = condition("PodScheduled", "Unschedulable", SCHEDULER, "False")
QUOTA = "couldn't assign flavors to pod set node: insufficient unused quota for nvidia.com/gpu in flavor h100"
# What is reported, words of what it waits for, and for how long that may be (None: for as long as it takes).
WAITS: dict[str, tuple[list[dict[str, Any]], str, float | None]] = {
    "no pods yet": ([jobset()], "no pods yet", None),
    "unschedulable": ([jobset(), pod(0, "Pending", node="", state=waiting(""), conditions=[UNSCHEDULABLE])],
                      f"Unschedulable: {SCHEDULER}", None),
    "in Kueue's queue": ([jobset(suspend=True), {"kind": "Workload", "status": {"conditions": [
        condition("QuotaReserved", "Pending", QUOTA, "False")]}}], f"suspended until Kueue admits it: {QUOTA}", None),
    "pulling": ([jobset(), pod(0), pod(1, "Pending", state=waiting("ContainerCreating"))], "ContainerCreating", None),
    "no such image": ([jobset(), pod(0), pod(1, "Pending", state=waiting(
        "ImagePullBackOff", 'Back-off pulling image "ghcr.io/me/jax:1": ErrImagePull: not found'))],
        "ImagePullBackOff: Back-off pulling", 120),
    "no image's name": ([jobset(), pod(1, "Pending", state=waiting("InvalidImageName", "invalid reference format"))],
                        "InvalidImageName", 0),
    "no secret": ([jobset(), pod(0, "Pending", state=waiting("CreateContainerConfigError", 'secret "hf" not found'))],
                  'secret "hf" not found', 60),
    "no volume": ([jobset(), pod(0), pod(1, "Pending", state=waiting("ContainerCreating")), {
        "kind": "Event", "reason": "FailedMount", "message": 'MountVolume.SetUp failed for volume "host-0"',
        "involvedObject": {"kind": "Pod", "name": f"{HOSTS[1]}-9k4zd"}}], "FailedMount: MountVolume.SetUp", None),
    "no quota": ([jobset(), {"kind": "Event", "reason": "FailedCreate", "message": "exceeded quota: g",
                             "involvedObject": {"kind": "Job", "name": f"{NAME}-node-0"}}], "exceeded quota: g", None),
}  # fmt: skip


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_gives_its_reason(name: str) -> None:
    objects, says, seconds = WAITS[name]
    means = meaning(read(objects), HOSTS, begun=False)
    assert (means.phase, means.hopeless_seconds) == ("waiting", seconds), means
    assert says in means.says


def test_of_somebody_elses_events_nothing_is_said() -> None:
    other = {"kind": "Event", "reason": "FailedMount", "message": "x", "involvedObject": {"name": "another-pod"}}
    assert "FailedMount" not in meaning(read([jobset(), other]), HOSTS, begun=False).says


def test_of_several_pods_of_an_index_the_newest_counts() -> None:
    old = pod(1, "Failed", suffix="aaaaa", created="2026-11-25T13:00:00Z", state=terminated(137, "OOMKilled"))
    for objects in ([jobset(), pod(0), old, pod(1)], [jobset(), pod(1), old, pod(0)]):
        assert meaning(read(objects), HOSTS, begun=True).phase == "running"


def test_every_kind_of_fault_is_known() -> None:
    assert {fault for _, fault, _ in TAKEN.values()} <= set(KINDS)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["kind", "metadata", "status", "spec", "conditions", "name", "annotations", INDEX, "phase",
                         "containerStatuses", "state", "type", "reason"]), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(["JobSet", "Job", "Pod", "Event", "Workload", "Node"]), _JSON), max_size=5))
def test_odd_objects_are_passed_over(given_objects: list[tuple[str, Any]]) -> None:
    objects = [{**(each if isinstance(each, dict) else {}), "kind": kind} for kind, each in given_objects]
    seen = read(objects)
    assert isinstance(seen, Observed)
    meaning(seen, HOSTS, begun=True)
