"""Runs over SSH on nodes with real daemons: what a configuration says runs there, and nothing of it is left or lost."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from seatrial.report.gather import gather
from seatrial.report.nodes import lanes
from tests.helpers.cluster import faults
from tests.helpers.cluster.image import IMAGE, PROJECT
from tests.helpers.cluster.needs import REQUIRED
from tests.helpers.cluster.nodes import USER_HOME, Node
from tests.helpers.cluster.person import CANARY, HOSTILE, Lookout, Person, files_with, nothing_is_left, over, trainers
from tests.helpers.processes import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
LOST_SECONDS = 25.0  # after which a node that is gone has been named
SAMPLE = PROJECT / "configs/cvs/mi300x_distributed_llama3_1_70b.json"
DOCKER = Path("/usr/bin/docker")  # of Debian's podman-docker


def test_the_sample_for_many_nodes_passes_on_three_though_the_launcher_is_killed(
    make_person: Callable[..., Person],
) -> None:
    person = make_person(3)
    addresses = [node.address for node in person.cluster.nodes]
    values = {
        "nnodes": 3, "coordinator_ip": addresses[0], "training_steps": 40, "container_image": IMAGE, "nic_type": "cx7",
        "nccl_ib_hca_list": "mlx5_0", "nccl_ib_hca": "mlx5_0", "nccl_socket_ifname": "eth0",
        "gloo_socket_ifname": "eth0", "nccl_ib_gid_index": 3, "dcn_fsdp_parallelism": 1, "dcn_data_parallelism": 3,
        "tflops_per_sec_per_gpu": 380, "tokens_per_sec_per_gpu": 800,
    }  # fmt: skip
    arguments = person.over_ssh(SAMPLE, "--engine", "native", "--container", "podman")
    first = person.start(*arguments, *(f"{key}={value}" for key, value in values.items()))
    person.wait_for_steps(first, 3)
    code, told = person.run("attach", person.out)
    assert (code, "follows it already" in told) == (2, True), told
    first.send_signal(signal.SIGKILL)
    first.communicate()
    code, told = person.run("attach", person.out)
    assert code == 0, told
    assert "3 processes, 6 devices" in told
    assert "Completed all 40 steps" in told
    assert json.loads((person.out / "verdict.json").read_text())["outcome"] == "pass"
    processes = json.loads((person.out / "plan.json").read_text())["processes"]
    assert [process["host"] for process in processes] == addresses
    for argv in (process["argv"] for process in processes):
        assert argv[argv.index("--coordinator") + 1].startswith(f"{addresses[0]}:")
    assert [lane.host for lane in lanes(gather(person.out))] == addresses
    page = (person.out / "report.html").read_text()
    assert re.findall(r'<article class="node" id="node-(\d)">\s*<h3>(.*?)</h3>', page) == [
        (str(number), address) for number, address in enumerate(addresses)
    ]
    assert page.count('<div class="lane">') == 3
    assert nothing_is_left(person.cluster)
    for number, node in enumerate(person.cluster.nodes):
        log = f"nodes/{node.address}/rank{number}.log"
        assert (person.out / log).read_bytes() == node.path(f"/var/tmp/seatrial-root/run/{log}").read_bytes()
        assert node.run(["podman", "ps", "--all", "--quiet"]).stdout == ""


def environment(node: Node) -> dict[str, str]:
    """Of the trainer on a node, inside its container; the processes before it are what has started it."""
    pairs = node.path(f"/proc/{trainers(node)[-1]}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def test_what_travels_arrives_as_it_is_and_secrets_are_seen_nowhere(make_person: Callable[..., Person]) -> None:
    person = make_person(2)
    nodes = person.cluster.nodes
    (person.home / "token").write_text(f"{CANARY}-of-a-file")  # of which our own trainer needs nothing
    variables = {**HOSTILE, "HF_TOKEN": CANARY}
    config = person.configuration(steps=30, nodes=2, variables=variables, hf_token_file=str(person.home / "token"))
    with Lookout(nodes, CANARY) as lookout:
        run = person.start(*person.over_ssh(config, "--container", "podman"))
        person.wait_for_steps(run, 2)
        for node in nodes:
            found = environment(node)
            assert {name: found.get(name) for name in HOSTILE} == HOSTILE
            assert found["HF_TOKEN"] == CANARY
            (name,) = node.run(["podman", "ps", "--format", "{{.Names}}"]).stdout.split()
            assert CANARY not in node.run(["podman", "inspect", name]).stdout
            assert files_with(node, CANARY) == ""
        code, told = over(run, 200)
    assert code == 0, told
    assert lookout.found == []
    assert lookout.looks > 20
    assert {"podman", "conmon", "python3"} <= lookout.programs
    assert CANARY not in told
    kept = [path for path in person.out.rglob("*") if path.is_file() and not path.name.startswith("config.")]
    assert not any(CANARY.encode() in path.read_bytes() for path in kept)
    assert nothing_is_left(person.cluster)
    for node in nodes:
        assert node.run(["podman", "ps", "--all", "--quiet"]).stdout == ""
        assert not node.path("/tmp/executed").exists()


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
    run = person.begin()
    where, how = fault(person)
    killed = time.time()
    wait_until(lambda: not any(map(trainers, person.cluster.nodes)), 10)
    code, told = over(run)
    assert (code, person.first_fault()) == (4, ("process_died", where)), told
    assert person.faults()[0]["wall_time"] - killed <= 2
    verdict = " ".join((person.out / "verdict.json").read_text().split())
    assert where in verdict
    assert how in verdict
    assert nothing_is_left(person.cluster)


def test_a_cable_that_is_pulled_is_named_and_one_that_flaps_is_survived(make_person: Callable[..., Person]) -> None:
    person = make_person(3, containers=False)
    run = person.begin()
    node, before = person.cluster.nodes[2], person.last_step()
    with faults.cable_out(node):
        wait_until(lambda: person.last_step() == before or run.poll() is not None, 5)
        subprocess.run(["sleep", "5"], check=True)
    wait_until(lambda: person.last_step() > before + 2 or run.poll() is not None, 60)
    assert run.poll() is None
    with faults.cable_out(node):
        pulled = time.time()
        out, _ = run.communicate(timeout=60)
    assert run.returncode == 4, out
    (lost,) = [fault for fault in person.faults() if fault["fault"] == "node_lost"]
    assert (lost["where"], lost["wall_time"] - pulled <= LOST_SECONDS) == (node.address, True), lost
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


@pytest.mark.skipif(not (REQUIRED or DOCKER.exists()), reason="needs Debian's package podman-docker")
def test_containers_of_docker_train_together_through_the_systems_ssh(make_person: Callable[..., Person]) -> None:
    person = make_person(2)
    for node in person.cluster.nodes:
        node.path(USER_HOME / "bin" / "docker").symlink_to(DOCKER)
    config = person.endless(nodes=2, steps=30)
    code, told = person.run(*person.on_hosts(config, "--container", "docker", "--ssh", "system"))
    assert code == 0, told
    assert "2 processes, 2 devices" in told
    assert "Completed all 30 steps" in told
    assert nothing_is_left(person.cluster)
    for node in person.cluster.nodes:
        assert node.run(["podman", "ps", "--all", "--quiet"]).stdout == ""
