"""The checks before a run, on nodes with real daemons: each fault is found on the host that has it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from seatrial.cluster import Cluster as Hosts
from seatrial.cluster import Host
from seatrial.commands import preflight as readiness
from seatrial.commands.preflight import PreflightResult
from seatrial.dialects import cluster_of
from seatrial.engines import DEFAULT_PORT
from seatrial.launch.preflight import probing
from seatrial.launch.preflight.needs import Needs, Selection
from seatrial.launch.session import MAX_ANSWER
from seatrial.plan import Site
from tests.helpers.cluster import faults
from tests.helpers.cluster.image import IMAGE
from tests.helpers.cluster.nodes import USER_HOME, Cluster, Node
from tests.helpers.cluster.person import Person
from tests.helpers.processes import wait_until

pytestmark = pytest.mark.cluster

ROOT = "/var/tmp/seatrial-root/preflight"


class Site3:
    """A cluster and its user, who asks for what a test says."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        read, _ = cluster_of(cluster.cluster_json())
        assert read is not None
        self.hosts: Hosts = read

    def look(self, **asked: Any) -> PreflightResult:
        needs = Needs(hosts=self.hosts.hosts, root=ROOT, **{"python": sys.executable, **asked})
        site = Site(cluster=self.hosts, root=PurePosixPath(ROOT))
        return readiness.ask_hosts(site, needs, "asyncssh")


def said(looked: PreflightResult) -> set[tuple[str, str]]:
    return {(problem.code, problem.path) for problem in looked.problems}


@pytest.fixture
def make_site(
    make_cluster: Callable[..., Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Site3]:
    def make(nodes: int, **options: Any) -> Site3:
        cluster = make_cluster(nodes, **options)
        (tmp_path / ".ssh").mkdir()
        shutil.copy(cluster.known_hosts, tmp_path / ".ssh" / "known_hosts")
        monkeypatch.setenv("HOME", str(tmp_path))
        return Site3(cluster)

    return make


def test_three_nodes_that_are_well(make_site: Callable[..., Site3]) -> None:
    site = make_site(3)
    shared = str(site.cluster.shared / "checkpoints" / "run")
    interfaces = (("GLOO_SOCKET_IFNAME", Selection.read("eth0", whole=True)),)
    looked = site.look(python=None, runtime="podman", image=IMAGE, shared=shared, interfaces=interfaces)
    assert looked.problems == []
    assert all(node.meeting and node.meeting.reached is True for node in looked.nodes)
    assert list(site.cluster.shared.iterdir()) == [], "nothing is left of what was looked for"
    for node, told in zip(site.cluster.nodes, looked.nodes, strict=True):
        assert told.facts is not None
        assert (told.facts.name and told.facts.name.resolves) == (node.address,)
        wait_until(lambda node=node: not node.processes("python3"), 5)
    bare = site.look()
    assert bare.problems == []
    assert {node.facts.trainer.libraries["jax"] is not None for node in bare.nodes if node.facts and node.facts.trainer}


def test_what_one_node_has_not(make_site: Callable[..., Site3]) -> None:
    site = make_site(3)
    first, second, third = site.cluster.nodes
    with (
        faults.image_missing(second),
        faults.port_taken(first, DEFAULT_PORT),
        faults.disk_full(third, "/var/tmp"),
    ):
        looked = site.look(python=None, runtime="podman", image=IMAGE)
        shown = readiness.shown(looked)
    found = said(looked)
    assert {("image-missing", second.address), ("port-taken", first.address), ("disk-full", third.address)} <= found
    assert not looked.ready
    assert f"podman pull {IMAGE}" in shown
    (row,) = [line.split() for line in shown.splitlines() if line.strip().startswith(second.address)]
    assert row.count("ERROR") == 1


@pytest.mark.slow
def test_the_network_is_not_as_named(make_site: Callable[..., Site3]) -> None:
    site = make_site(3, containers=False)
    first, second, third = site.cluster.nodes
    hosts = third.folder / "hosts"
    hosts.write_text(hosts.read_text().replace(f"{third.address} {third.name}\n", f"127.0.1.1 {third.name}\n"))
    interfaces = (("NCCL_SOCKET_IFNAME", Selection.read("ens7f0")), ("GLOO_SOCKET_IFNAME", Selection.read("eth0")))
    with faults.port_refused(first, DEFAULT_PORT):
        looked = site.look(interfaces=interfaces)
    assert said(looked) == {
        ("loopback-hostname", third.address),
        *(("no-interface", node.address) for node in site.cluster.nodes),
        *(("coordinator-unreachable", node.address) for node in (second, third)),
    }
    (fix,) = {problem.fix for problem in looked.problems if problem.code == "coordinator-unreachable"}
    assert "nftables 1 rules drop or reject" in fix


def test_a_path_that_only_seems_shared(make_site: Callable[..., Site3]) -> None:
    site = make_site(2, containers=False)
    looked = site.look(shared=str(site.cluster.not_shared / "checkpoints"))
    assert said(looked) == {("not-shared", site.cluster.nodes[1].address)}
    for node in site.cluster.nodes:
        assert list(node.path(site.cluster.not_shared).iterdir()) == []
    assert site.look(shared=str(site.cluster.shared)).ready


def test_nodes_that_cannot_be_asked(
    make_site: Callable[..., Site3], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seatrial.launch.transports.CONNECT_SECONDS", 3.0)
    site = make_site(3, containers=False)
    _, second, third = site.cluster.nodes
    known = (tmp_path / ".ssh" / "known_hosts").read_text().splitlines(keepends=True)
    (tmp_path / ".ssh" / "known_hosts").write_text("".join(line for line in known if second.address not in line))
    third.power_off(silently=True)
    looked = site.look()
    assert said(looked) == {("no-answer", second.address), ("no-answer", third.address)}
    whys = {problem.path: problem.why for problem in looked.problems}
    assert "host key is not in" in whys[second.address]
    assert "cannot be reached" in whys[third.address]
    assert looked.nodes[0].facts is not None


def impostor(node: Node, program: str) -> None:
    """Puts a program in place of the node's python3; its `begin()` writes what the real one writes first."""
    path = node.path(USER_HOME / "bin" / "python3")
    path.write_text(
        f"#!{sys.executable}\nimport json, os, sys, time\nwrite = sys.stdout.buffer.write\n"
        "def begin(): write(f'\\n{json.loads(sys.stdin.readline())[\"mark\"]}\\n'.encode())\n"
        f"{program}\n"
    )
    path.chmod(0o755)


HOSTILE = {
    "garbage": (r"begin(); write(b'\x1b]0;owned\x07{not json\n' * 9)", "no answer"),
    "a flood": (f"begin(); write(b'x' * {10 * MAX_ANSWER})", "that are no answer"),
    "a flood of lines": (f"write(b'{{\\n' * {5 * MAX_ANSWER})", "that are no answer"),
    "silence": ("time.sleep(1000)", "no answer within"),
    "nothing": ("", "printed nothing"),
    "nothing more": ("begin()", "printed nothing"),
    "depth": (r"begin(); write(b'{\"a\":' * 100000 + b'\n')", "no answer"),
    "an error": (r"begin(); write(b'{\"error\": \"\\u001b[2Jboo\"}\n')", "boo"),
    "another object": (r"begin(); write(b'{\"clock\": NaN}\n')", "makes no sense"),
    "control characters": (
        r"begin(); write(b'{\"clock\":1,\"took\":0,\"failed\":{\"machine\":\"\\u001b[31m\\u202egnp\"}}\n')",
        "unknown (",
    ),
}  # fmt: skip


@pytest.mark.slow
def test_hostile_nodes_stay_bounded_and_inert(make_site: Callable[..., Site3], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "NODE_SECONDS", 6.0)
    monkeypatch.setattr(probing, "MEET_SECONDS", 2.0)
    site = make_site(len(HOSTILE) + 1, containers=False)
    for node, (program, _) in zip(site.cluster.nodes[1:], HOSTILE.values(), strict=True):
        impostor(node, program)
    looked = site.look(python=None)
    shown = readiness.shown(looked)
    whys: dict[str, str] = {}
    for problem in looked.problems:
        whys[problem.path] = whys.get(problem.path, "") + problem.why
    for node, (name, (_, why)) in zip(site.cluster.nodes[1:], HOSTILE.items(), strict=True):
        assert why in whys[node.address], (name, whys[node.address])
    assert looked.nodes[0].facts is not None
    assert looked.nodes[0].host.name not in whys
    assert not set(shown) & set(map(chr, (*range(10), *range(11, 32), 127, 0x202E)))
    assert len(json.dumps(looked.as_dict())) < 100_000


def test_a_shell_that_talks_does_no_harm(make_site: Callable[..., Site3]) -> None:
    site = make_site(1, containers=False)
    (node,) = site.cluster.nodes
    impostor(
        node, "write(b'Welcome!\\n'); sys.stdout.flush(); os.execv('/usr/bin/python3', ['python3', *sys.argv[1:]])"
    )
    assert site.look(python=None).problems == []


@pytest.mark.slow
def test_the_command_line(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    person = Person(make_cluster(3, containers=False), tmp_path)
    first, second, _ = person.cluster.nodes
    config, cluster = person.configuration(steps=10, nodes=2), person.cluster.cluster_json()
    common = ["--cluster", cluster, "--python", sys.executable]
    code, told = person.run("preflight", *common, "--format", "json")
    document = json.loads(told)
    assert (code, document["ready"], len(document["hosts"])) == (0, True, 3)
    with faults.sshd_stopped(second):
        code, told = person.run("preflight", config, "--rehearse", *common)
        assert (code, "nobody listens on port 22" in told, "mlx5_0" in told) == (3, True, True)
        code, told = person.run(*person.over_ssh(config))
        assert (code, "nothing was started" in told) == (3, True)
        evidence = json.loads((person.out / "launch" / "preflight.json").read_text())
        assert [problem["file"] for problem in evidence["problems"] if problem["severity"] == "error"] == [None]
        assert not first.path("/var/tmp/seatrial-root").exists()
        shutil.rmtree(person.out)
        code, told = person.run("preflight", config, *common, "--rehearse", "--exclude", second.address)
        assert code == 0, told
    code, told = person.run("preflight", *common, "--exclude", "nobody")
    assert (code, "no host nobody" in told) == (2, True)


def test_host_names_are_compared_as_they_stand() -> None:
    hosts = Hosts(hosts=(Host(name="node1", address="10.0.0.1"), Host(name="node11", address="10.0.0.11")))
    assert [host.name for host in hosts.without(["10.0.0.1"]).hosts] == ["node11"]
