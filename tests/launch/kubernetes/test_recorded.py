"""Reports of a real cluster while things went wrong, step by step, as `recorded/NAME.jsonl` has them.

Two nodes with Kubernetes 1.36.2, JobSet 0.13, Kueue 0.20 and containerd 2.1; in each a JobSet of ours of two pods. A
line is what `kubectl get` printed at a moment, cut to what is read; where several alike follow each other, the first.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seatrial.launch.kubernetes.states import Meaning, meaning, read

FOLDER = Path(__file__).parent / "recorded"
NAME = "run-x7k2p"
HOSTS = (f"{NAME}-node-0-0", f"{NAME}-node-0-1")


def recorded(name: str) -> list[list[dict[str, Any]]]:
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def meanings(name: str) -> list[Meaning]:
    """The meaning of each report, in turn."""
    begun, found = False, []
    for objects in recorded(name):
        seen = read(objects)
        begun = begun or any(pod.is_running or pod.is_over for pod in seen.pods.values())
        found.append(meaning(seen, HOSTS, begun=begun))
    return found


# Recording → the run's reason, the fault, its place, and words that have to be in it.
OVER = {
    "drain": ("interrupted", "evicted", HOSTS[1], "EvictionByEvictionAPI"),
    "taint": ("died", "node_lost", HOSTS[1], "DeletionByTaintManager"),
    "preempt": ("interrupted", "preempted", HOSTS[1], "PreemptionByScheduler"),
    "time": ("died", "time_limit", "", "Job was active longer than specified deadline"),
    "poddel": ("interrupted", "cancelled", HOSTS[1], "was deleted"),
    "jobsetdel": ("interrupted", "cancelled", "", "the JobSet was deleted"),
    "kqpreempt": ("interrupted", "preempted", "Kueue", "due to prioritization in the ClusterQueue"),
    "kqstop": ("interrupted", "preempted", "Kueue", "The ClusterQueue is stopped"),
    "kqoff": ("interrupted", "cancelled", "Kueue", "The workload is deactivated"),
    "nopython": ("could_not_run", "container_failed", HOSTS[0], "StartError"),
}


@pytest.mark.parametrize("name", OVER)
def test_what_ended_it_is_named_and_nothing_before_that(name: str) -> None:
    found = meanings(name)
    telling = next(index for index, each in enumerate(found) if each.phase == "over")
    assert all(not each.fault for each in found[:telling])
    assert "running" in {each.phase for each in found[:telling]} or name == "nopython"
    last = [each for each in found if each.fault][-1]
    assert (last.reason, last.fault, last.where) == OVER[name][:3], last
    assert OVER[name][3] in last.says
    # It is never blamed on something else; but Kueue suspends a JobSet a moment before it says why.
    assert {each.fault for each in found[telling:]} <= {last.fault, "", "preempted" if name == "kqoff" else ""}


# Recording → the fault that it ends with if nothing changes ("": with the deadline), and words that have to be in it.
WAITING = {
    "unsched": ("", "Insufficient nvidia.com/gpu"),
    "selector": ("", "didn't match Pod's node affinity/selector"),
    "novolume": ("", 'persistentvolumeclaim "absent" not found'),
    "kqwait": ("", "insufficient quota for cpu in flavor plain"),
    "quota": ("", "exceeded quota: one, requested: pods=1"),
    "pull": ("container_failed", "connection refused"),
    "never": ("container_failed", "ErrImageNeverPull"),
    "badname": ("container_failed", "InvalidImageName"),
    "nosecret": ("container_failed", 'secret "absent" not found'),
}


@pytest.mark.parametrize("name", WAITING)
def test_a_wait_says_why_and_what_cannot_come_is_known(name: str) -> None:
    fault, words = WAITING[name]
    found = [each for each in meanings(name) if each.phase == "waiting"]
    assert found[-1].fault == fault, found[-1]
    assert words in found[-1].says, found[-1]
    assert all(f'configmap "{NAME}" not found' not in each.says for each in found)  # it comes after the JobSet
