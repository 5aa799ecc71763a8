"""The pods of a JobSet, run by podman on nodes: they train together, are followed by exec, and who dies is named."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.helpers.cluster.image import IMAGE, MOUNTED, PROJECT
from tests.helpers.cluster.kubectl import written_for
from tests.helpers.cluster.person import CANARY, HOSTILE, Person, files_with, over, trainers
from tests.helpers.processes import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def with_kubectl(person: Person) -> Path:
    """Puts a kubectl whose cluster is the person's nodes before any other; where it keeps what it knows."""
    return written_for(person.cluster.nodes, person.home / "bin" / "kubectl", person.home / "cluster")


def configuration(person: Person, *, steps: int, variables: Mapping[str, str] = MappingProxyType({})) -> Path:
    environment = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": f"{PROJECT}/src"}
    return person.endless(
        nodes=2,
        steps=steps,
        execution={"environment": environment},
        container={
            "image": IMAGE, "pull": "never", "volumes": [[folder, f"{folder}:ro"] for folder in MOUNTED],
            "environment": dict(variables),
        },
    )  # fmt: skip


def on_kubernetes(person: Person, config: Path, *options: str) -> list[str | Path]:
    where = ["--on", "kubernetes", "--kubernetes", "host-network=yes", "--python", sys.executable]
    return ["run", config, *where, "--out", person.out, *options]


def test_two_pods_train_together_to_pass(make_person: Callable[..., Person]) -> None:
    person = make_person(2)
    folder = with_kubectl(person)
    variables = {**HOSTILE, "HF_TOKEN": CANARY}
    config = configuration(person, steps=30, variables=variables)
    code, told = over(person.start(*on_kubernetes(person, config)), 300)
    assert code == 0, told
    assert "2 processes, 2 devices" in told
    assert "Completed all 30 steps" in told
    hosts = [process["host"] for process in json.loads((person.out / "plan.json").read_text())["processes"]]
    for rank, (host, words) in enumerate(zip(hosts, ("completed step: 29", "connected to 1 peer"), strict=True)):
        assert words in (person.out / f"nodes/{host}/rank{rank}.log").read_text()
    wait_until(lambda: not any(map(trainers, person.cluster.nodes)), 20)
    shown = [person.cluster.nodes[0].run(["podman", "logs", f"{hosts[0]}-abcde-seatrial"]).stdout]
    assert "completed step: 29" in shown[0]  # by kubectl logs as well
    assert CANARY not in told
    assert CANARY not in (folder / "asked").read_text()
    for node in person.cluster.nodes:
        assert files_with(node, CANARY) == ""
        states = node.run(["podman", "ps", "--all", "--format", "{{.Names}} {{.Status}}"]).stdout
        assert "Exited (0)" in states, states
        assert not node.path("/tmp/executed").exists()


def test_who_is_killed_in_a_pod_is_named_though_the_launcher_left_and_came_back(
    make_person: Callable[..., Person],
) -> None:
    person = make_person(2)
    with_kubectl(person)
    run = person.start(*on_kubernetes(person, configuration(person, steps=10_000_000)))
    person.wait_for_steps(run, 3)
    run.send_signal(signal.SIGKILL)  # the pods go on
    run.communicate()
    seen = person.last_step()
    run = person.start("attach", person.out)
    wait_until(lambda: person.last_step() > seen or run.poll() is not None, 60)
    node = person.cluster.nodes[1]
    node.kill(trainers(node)[0])
    killed = time.time()
    code, told = over(run, 120)
    host = json.loads((person.out / "plan.json").read_text())["processes"][1]["host"]
    assert (code, person.first_fault()) == (4, ("process_died", f"rank 1 on {host}")), told
    assert person.faults()[0]["wall_time"] - killed <= 5
    assert "SIGKILL" in told


def test_a_run_is_stopped_in_order(make_person: Callable[..., Person]) -> None:
    person = make_person(2)
    with_kubectl(person)
    run = person.start(*on_kubernetes(person, configuration(person, steps=10_000_000)))
    person.wait_for_steps(run, 3)
    code, told = person.run("stop", person.out)
    assert code == 0, told
    code, told = over(run, 120)
    assert code == 130, told
    assert person.ended_in_order(0)
    assert not any(map(trainers, person.cluster.nodes))
