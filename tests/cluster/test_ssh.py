"""Runs over SSH on nodes with real daemons: what a configuration says runs there, and nothing of it is left or lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import faults
from tests.cluster.image import IMAGE, PROJECT
from tests.cluster.nodes import Cluster, Node
from tests.processes import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

CANARY = "canary-7f3e9a"
ENDLESS = 100_000  # steps of a run that something is to happen to, however fast the machine is
HOSTILE = {
    "A": "$(touch /tmp/executed)", "B": "`touch /tmp/executed`", "C": "two words", "D": "it's \"quoted\"",
    "E": "-rf", "F": "two\nlines", "G": "; touch /tmp/executed", "H": "$HOME", "I": "\\", "J": "a=b", "K": "ü€𝄞",
    "L": "", "M": "*", "N": "| tee /tmp/executed", "O": "${IFS}", "P": "\t", "Q": "#no comment", "R": "%s%n", "S": "~",
}  # fmt: skip


class Person:
    """Somebody who uses a cluster from this machine: a home with known hosts, and the command line."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.home, self.out = cluster, folder / "home", folder / "run"
        (self.home / ".ssh").mkdir(parents=True)
        shutil.copy(cluster.known_hosts, self.home / ".ssh" / "known_hosts")

    def configuration(self, *, steps: int, nodes: int, variables: Mapping[str, str] = {}) -> Path:
        """CVS's file for many nodes, filled in for this cluster."""
        document = json.loads((PROJECT / "configs/cvs/mi300x_distributed_llama3_1_70b.json").read_text())
        config = document["config"]
        config |= {"nnodes": str(nodes), "coordinator_ip": self.cluster.nodes[0].address, "training_steps": str(steps)}
        config |= {"container_image": IMAGE, "nic_type": "cx7", "nccl_ib_hca_list": "mlx5_0", "nccl_ib_hca": "mlx5_0"}
        config |= dict.fromkeys(("nccl_socket_ifname", "gloo_socket_ifname"), "eth0") | {"nccl_ib_gid_index": "3"}
        config["container_config"]["env_dict"] |= variables
        cell = document["model_params"]["multi_node"]["llama3.1-70b"]["mi300x"]
        cell |= {"dcn_fsdp_parallelism": "1", "dcn_data_parallelism": str(nodes)}
        cell["result_dict"] |= {"tflops_per_sec_per_gpu": "380", "tokens_per_sec_per_gpu": "800"}
        path = self.home / "config.json"
        path.write_text(json.dumps(document))
        return path

    def start(self, *arguments: str | Path, variables: Mapping[str, str] = {}) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", "from seatrial.cli import main; main()", *map(str, arguments)]
        environment = {**os.environ, "HOME": str(self.home), "COLUMNS": "120", **variables}
        return subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, *arguments: str | Path) -> tuple[int, str]:
        with self.start(*arguments) as process:
            out, _ = process.communicate(timeout=240)
        return process.returncode, out

    def over_ssh(self, config: Path, *options: str) -> list[str | Path]:
        return [
            *("run", config, "--cluster", self.cluster.cluster_json(), "--on", "ssh", "--rehearse"),
            *("--python", sys.executable, "--out", self.out, *options),
        ]

    def last_step(self) -> int:
        try:
            return int(json.loads((self.out / "status.json").read_text())["last_step"] or 0)
        except (OSError, ValueError):
            return 0


@pytest.fixture
def make_person(make_cluster: Callable[..., Cluster], tmp_path: Path) -> Callable[..., Person]:
    return lambda nodes, **options: Person(make_cluster(nodes, **options), tmp_path)


def trainers(node: Node) -> list[int]:
    return [process.pid for process in node.processes("seatrial.train") if "podman" not in process.argv[0]]


def nothing_is_left(cluster: Cluster) -> bool:
    there = ("seatrial.train", "launch/agent.py", "launch/slurm_node.py", "conmon", "podman run")
    return not any(node.processes(text) for node in cluster.nodes for text in there)


def test_three_nodes_train_together_though_the_launcher_is_killed(make_person: Callable[..., Person]) -> None:
    person = make_person(3, containers=False)
    first = person.start(*person.over_ssh(person.configuration(steps=40, nodes=3)))
    wait_until(lambda: person.last_step() >= 3 or first.poll() is not None, 200)
    code, told = person.run("attach", person.out)
    assert (code, "follows it already" in told) == (2, True)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    code, told = person.run("attach", person.out)
    assert code == 0, told
    assert "3 processes, 6 devices" in told
    assert "All 40 steps were done" in told
    assert nothing_is_left(person.cluster)
    for number, node in enumerate(person.cluster.nodes):
        log = f"nodes/{node.address}/rank{number}.log"
        assert (person.out / log).read_bytes() == node.path(f"/var/tmp/seatrial-root/run/{log}").read_bytes()
    lanes = (person.out / "report.html").read_text()
    assert all(node.address in lanes for node in person.cluster.nodes)


def test_what_travels_arrives_as_it_is_and_secrets_are_seen_nowhere(make_person: Callable[..., Person]) -> None:
    person = make_person(2)
    variables = {**{f"HOSTILE_{name}": value for name, value in HOSTILE.items()}, "HF_TOKEN": CANARY}
    config = person.configuration(steps=30, nodes=2, variables=variables)
    run = person.start(*person.over_ssh(config, "--container", "podman"))
    wait_until(lambda: person.last_step() >= 2 or run.poll() is not None, 200)
    for node in person.cluster.nodes:
        inside = [pid for pid in trainers(node) if b"HOSTILE_A=" in node.path(f"/proc/{pid}/environ").read_bytes()]
        found: list[dict[str, str]] = [
            dict(
                pair.split("=", 1) for pair in node.path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in pair
            )
            for pid in inside
        ]
        assert found
        assert {name: found[-1][f"HOSTILE_{name}"] for name in HOSTILE} == HOSTILE
        assert found[-1]["HF_TOKEN"] == CANARY
        assert node.processes(CANARY) == []
        names = node.run(["podman", "ps", "--format", "{{.Names}}"]).stdout.split()
        assert len(names) == 1
        assert CANARY not in node.run(["podman", "inspect", *names]).stdout
        assert CANARY not in node.run(["sh", "-c", "cat $(find /var/tmp/seatrial-root -type f)"]).stdout
        assert not node.path("/tmp/executed").exists()
    out, _ = run.communicate(timeout=200)
    assert run.returncode == 0, out
    assert CANARY not in out
    kept = [path for path in person.out.rglob("*") if path.is_file() and not path.name.startswith("config.")]
    assert not any(CANARY.encode() in path.read_bytes() for path in kept)
    assert nothing_is_left(person.cluster)
    assert all(node.run(["podman", "ps", "--all", "--quiet"]).stdout == "" for node in person.cluster.nodes)


def killed_worker(person: Person) -> tuple[str, str]:
    node = person.cluster.nodes[1]
    node.kill(trainers(node)[0])
    return f"rank 1 on {node.address}", "SIGKILL"


def killed_coordinator(person: Person) -> tuple[str, str]:
    node = person.cluster.nodes[0]
    node.kill(trainers(node)[0])
    return f"rank 0 on {node.address}", "SIGKILL"


@pytest.mark.parametrize("fault", [killed_worker, killed_coordinator])
def test_who_is_killed_is_named(make_person: Callable[..., Person], fault: Callable[[Person], tuple[str, str]]) -> None:
    person = make_person(3, containers=False)
    run = person.start(*person.over_ssh(person.configuration(steps=ENDLESS, nodes=3)))
    wait_until(lambda: person.last_step() >= 2 or run.poll() is not None, 200)
    where, how = fault(person)
    out, _ = run.communicate(timeout=60)
    assert run.returncode == 4, out
    verdict = " ".join((person.out / "verdict.json").read_text().split())
    assert where in verdict
    assert how in verdict
    assert nothing_is_left(person.cluster)


def test_a_cable_that_is_pulled_is_named_and_one_that_flaps_is_survived(make_person: Callable[..., Person]) -> None:
    person = make_person(3, containers=False)
    run = person.start(*person.over_ssh(person.configuration(steps=ENDLESS, nodes=3)))
    wait_until(lambda: person.last_step() >= 2 or run.poll() is not None, 200)
    node, before = person.cluster.nodes[2], person.last_step()
    with faults.cable_out(node):
        wait_until(lambda: person.last_step() == before or run.poll() is not None, 5)
        subprocess.run(["sleep", "5"], check=True)
    wait_until(lambda: person.last_step() > before + 2 or run.poll() is not None, 60)
    assert run.poll() is None
    with faults.cable_out(node):
        out, _ = run.communicate(timeout=60)
    assert run.returncode == 4, out
    told: list[dict[str, Any]] = [
        json.loads(line) for line in (person.out / "events-launcher.jsonl").read_text().splitlines()
    ]
    assert [event["where"] for event in told if event.get("fault") == "node_lost"] == [node.address]
    wait_until(lambda: nothing_is_left(person.cluster), 60)


def test_hosts_that_cannot_be_used_are_all_told_each_with_its_fix(make_person: Callable[..., Person]) -> None:
    person = make_person(3, containers=False)
    first, second, third = person.cluster.nodes
    arguments = person.over_ssh(person.configuration(steps=10, nodes=3))
    known = (person.home / ".ssh" / "known_hosts").read_text().splitlines(keepends=True)
    (person.home / ".ssh" / "known_hosts").write_text("".join(known[1:]))
    with faults.host_key_changed(second), faults.sshd_stopped(third):
        code, told = person.run(*arguments)
    words = " ".join(told.split())
    assert code == 3, told
    assert f"{first.address} why: its host key is not in" in words
    assert f"{second.address} why: its host key is not the one in" in words
    assert f"{third.address} why: nobody listens on port 22" in words
    assert "Traceback" not in told
