"""Runs that lose a machine and are tried again on others, from the last checkpoint."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seatrial import events, recording
from tests.helpers.cluster.nodes import Cluster
from tests.helpers.cluster.person import Person, nothing_is_left
from tests.helpers.cluster.slurm import Slurm
from tests.helpers.cluster.slurm_user import SlurmUser
from tests.helpers.processes import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
STEPS = 600


def saving(person: Person, nodes: int) -> Path:
    """A run that saves where all nodes see it."""
    kept = {"enabled": True, "interval_steps": 50, "directory": str(person.cluster.shared / "checkpoints")}
    return person.endless(nodes=nodes, steps=STEPS, checkpoint=kept)


def has_saved(person: Person) -> bool:
    return any((person.cluster.shared / "checkpoints").glob("*/commit_success.txt"))


def hosts(run_dir: Path) -> list[str]:
    return [process["host"] for process in json.loads((run_dir / "plan.json").read_text())["processes"]]


def restored(run_dir: Path) -> list[int]:
    return [e.step for e in recording.read_run(run_dir) if isinstance(e, events.Checkpoint) and e.action == "restore"]


@pytest.mark.timeout(600)
def test_a_spare_host_takes_the_place_of_one_that_is_lost(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    person = Person(make_cluster(4, containers=False), tmp_path)
    first, second, third, spare = person.cluster.nodes
    arguments: list[Any] = ["run", saving(person, 3), "--cluster", person.cluster.cluster_json(), "--on", "ssh"]
    run = person.start(*arguments, "--python", sys.executable, "--out", person.out, "--retries", "1")
    wait_until(lambda: has_saved(person) or run.poll() is not None, 200)
    assert run.poll() is None, run.communicate()[0]
    second.power_off(silently=True)
    told, _ = run.communicate(timeout=400)
    assert run.returncode == 0, told
    assert f"retry without {second.address}" in " ".join(told.split())
    assert hosts(person.out) == [first.address, third.address, spare.address]
    assert hosts(person.out / "attempts/1") == [first.address, second.address, third.address]
    lost = json.loads((person.out / "attempts/1/verdict.json").read_text())
    assert lost["outcome"] == "died"
    assert (person.out / f"attempts/1/nodes/{second.address}/rank1.log").stat().st_size
    assert min(restored(person.out)) >= 50
    assert f"Completed all {STEPS:,} steps, in 2 attempts" in " ".join(told.split())
    person.cluster.nodes.remove(second)
    assert nothing_is_left(person.cluster)


@pytest.mark.timeout(600)
def test_slurm_is_asked_for_other_hosts(make_slurm: Callable[..., Slurm], tmp_path: Path) -> None:
    user = SlurmUser(make_slurm(3, containers=False), tmp_path)
    lost = user.cluster.nodes[1]
    arguments: list[Any] = ["run", saving(user, 2), "--on", "slurm", "--python", sys.executable, "--out", user.out]
    run = user.start(*arguments, "--retries", "1")
    wait_until(lambda: has_saved(user) or run.poll() is not None, 200)
    assert run.poll() is None, run.communicate()[0]
    lost.power_off(silently=True)
    told, _ = run.communicate(timeout=400)
    assert run.returncode == 0, told
    assert hosts(user.out) == ["node1", "node3"]
    assert hosts(user.out / "attempts/1") == ["node1", "node2"]
    assert min(restored(user.out)) >= 50
    user.cluster.nodes.remove(lost)
    assert nothing_is_left(user.cluster)
