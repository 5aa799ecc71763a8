"""Nodes are watched while a run is there: their devices, their real interfaces, and what the real kernel says."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.cluster.nodes import Cluster, Node
from tests.helpers.cluster.person import Person, trainers
from tests.helpers.processes import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

NVIDIA = """#!/bin/sh
case "$*" in *driver_version*) echo "NVIDIA H100 80GB HBM3, 81559, 0, 0, 570.86.15"; exit;; esac
while :; do
  echo "0, NVIDIA H100 80GB HBM3, 81559, 0x0000000000000000, 98, 70000, 612.50, 61, 77, 1980, 0, 0"
  sleep 1
done
"""


def put(node: Node, name: str, text: str) -> None:
    path = node.path(Path.home() / "bin" / name)
    path.write_text(text)
    path.chmod(0o755)


def seen(person: Person, node: Node, kind: str) -> list[dict[str, Any]]:
    path = person.out / "nodes" / node.address / "observed.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [entry for entry in map(json.loads, lines) if entry["kind"] == kind]


class Starving:
    """A control group in which a process gets no more memory; when it asks for some, the kernel ends it."""

    def __init__(self) -> None:
        first = Path("/sys/fs/cgroup/memory")  # of the first kind
        parent, limit = (first, "memory.limit_in_bytes") if first.is_dir() else (first.parent, "memory.max")
        self.folder = parent / f"seatrial-test-{os.getpid()}"
        try:
            self.folder.mkdir()
            (self.folder / limit).write_text("16K")
        except OSError as error:
            self.end()
            pytest.skip(f"needs control groups of memory: {error}")

    def take(self, node: Node, pid: int) -> None:
        node.run(["sh", "-c", f"echo {pid} > {self.folder}/cgroup.procs"])

    def end(self) -> None:
        if self.folder.is_dir():
            wait_until(lambda: not (self.folder / "cgroup.procs").read_text().split())
            self.folder.rmdir()


@pytest.fixture
def starving() -> Iterator[Starving]:
    group = Starving()
    yield group
    group.end()


def test_a_process_that_the_kernel_ended_for_want_of_memory(
    make_cluster: Callable[..., Cluster], tmp_path: Path, starving: Starving
) -> None:
    person = Person(make_cluster(2, containers=False), tmp_path)
    second = person.cluster.nodes[1]
    for node in person.cluster.nodes:
        put(node, "nvidia-smi", NVIDIA)
    run = person.begin(nodes=2)
    wait_until(lambda: all(seen(person, node, "devices") for node in person.cluster.nodes), 60)
    starving.take(second, trainers(second)[0])
    out, _ = run.communicate(timeout=200)
    assert run.returncode == 4, out
    verdict = json.loads((person.out / "verdict.json").read_text())
    assert f"rank 1 on {second.address}" in verdict["headline"]
    assert "Killed process" in verdict["headline"]
    metrics = json.loads((person.out / "metrics.json").read_text())
    diagnosis = metrics["completion"]["diagnosis"]
    assert (diagnosis["kind"], diagnosis["cause"]["source"]) == ("host_oom", f"kernel log of {second.address}")
    died = [fault["text"] for fault in metrics["completion"]["faults"] if fault["fault"] == "process_died"]
    assert "SIGKILL" in died[0]
    report = (person.out / "report.html").read_text()
    for node in person.cluster.nodes:
        assert f"<h3>{node.address}</h3>" in report
        assert "rx_packets" in seen(person, node, "counters")[0]["counters"]["eth0"]
        assert seen(person, node, "ended")[0]["left_out"] == {}
        wait_until(lambda node=node: not node.processes("launch/observer.py") + node.processes("nvidia-smi"))
