"""The findings about nodes, from their answers: a table of single changes to healthy nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import PurePosixPath
from typing import Any

import pytest

from seatrial.cluster import Cluster, Host
from seatrial.commands.preflight import PreflightResult, shown
from seatrial.launch.preflight.answers import Node, read_facts, read_meeting
from seatrial.launch.preflight.checks import AREAS, CHECKS, judge
from seatrial.launch.preflight.needs import Needs, Selection, needs_of
from seatrial.node.facts import Facts, Meeting
from seatrial.node.inventory import PARTS
from seatrial.plan import Site
from seatrial.spec import Batch, Checkpoint, Container, Data, Execution, RunSpec, Topology
from seatrial.spec.presets import MODELS

GIB, MIB = 2**30, 2**20
HOSTS = tuple(Host(name=f"node{number}", address=f"10.0.0.{number}") for number in range(1, 6))
CKPT, DATA, NONCE = "/shared/checkpoints", "/data/tokens.bin", "/shared/checkpoints/.seatrial-1"
NEEDS = Needs(
    hosts=HOSTS, root="/var/tmp/run", runtime="docker", image="rocm/train:1", devices=8, device="mi300x",
    interfaces=(
        ("NCCL_SOCKET_IFNAME", Selection.read("eth")), ("GLOO_SOCKET_IFNAME", Selection.read("eth0", whole=True)),
    ),
    cards=Selection.read("rdma0,rdma1:1"), gid_index=3, shared=CKPT, checkpoint_bytes=100 * GIB, data=(DATA,),
    given=("/dev/kfd",),
)  # fmt: skip


def told(number: int) -> dict[str, Any]:
    """The answer of a healthy node, as plain data."""
    disk = {"exists": True, "readable": True, "writable": True, "free_bytes": 900 * GIB, "free_files": 10**7}
    port = {
        "state": "ACTIVE", "link_layer": "Ethernet", "rate": "400 Gb/sec", "gid_type": "RoCE v2", "gid_interface": None,
        "gid": f"0000:0000:0000:0000:0000:ffff:0a01:000{number}",
    }  # fmt: skip
    device = {
        "model": "AMD Instinct MI300X",
        "memory_bytes": 192 * GIB,
        "used_bytes": 300 * MIB,
        "uncorrected_errors": 0,
    }
    return {
        "clock": 1000.4, "took": 0.5, "sent": 1000.0, "received": 1001.0, "failed": {},
        "machine": {
            "kernel": "6.8.0-50-generic", "architecture": "x86_64", "cores": 192, "memory_bytes": 2000 * GIB,
            "available_bytes": 1900 * GIB, "shm_bytes": 1000 * GIB, "shm_free_bytes": 1000 * GIB,
            "limits": {"memlock": None, "nofile": 1048576, "nproc": None}, "python": "3.10.12", "user": 1000,
            "cgroup": {"memory_bytes": None, "cores": None},
        },
        "name": {
            "hostname": f"node{number}", "resolves": [f"10.0.0.{number}"], "has_address": True,
            "machine": f"{number} net:[4026531840]",
        },
        "network": {
            "lo": {"up": True, "speed_mbits": None, "mtu": 65536, "address": "127.0.0.1"},
            "eth0": {"up": True, "speed_mbits": 100000, "mtu": 9000, "address": f"10.0.0.{number}"},
        },
        "cards": {name: {"firmware": "28.39.1002", "ports": {"1": port}} for name in ("rdma0", "rdma1")},
        "devices": {
            "vendor": "amd", "driver": "6.10.5", "rocm": "6.3.0", "found": [dict(device) for _ in range(8)],
            "files": ["/dev/kfd"], "usable": True,
        },
        "trainer": {"python": "3.12.3", "libraries": {"seatrial": "0.1.0", "jax": "0.10.2", "jaxlib": "0.10.2"}},
        "engine": {"version": "27.1", "image": "sha256:aa", "architecture": "amd64"},
        "port": {"free": True} if number == 1 else None,
        "storage": {
            "/var/tmp/run": {**disk, "exists": False, "nearest": "/var/tmp"},
            CKPT: {**disk, "nearest": CKPT, "nonce": NONCE if number == 1 else None},
            DATA: {**disk, "nearest": DATA, "size": 123456},
            "/dev/kfd": {**disk, "nearest": "/dev/kfd", "size": 0},
        },
        "firewall": {},
    }  # fmt: skip


def nodes(**changes: Any) -> list[Node]:
    """Nodes that are well, apart from those named: node3={"path.to.a.value": value}."""
    found = []
    for number, host in enumerate(HOSTS, 1):
        data = told(number)
        for path, value in changes.get(host.name, {}).items():
            *parents, last = path.split("/")
            place = data
            for parent in parents:
                place = place[parent.replace(":", "/")] if isinstance(place, dict) else place[int(parent)]
            place[last.replace(":", "/")] = value
        facts = read_facts(data)
        assert isinstance(facts, Facts), facts
        meeting = Meeting(reached=True, seen={} if number == 1 else {NONCE: True})
        found.append(Node(host=host, facts=facts, meeting=meeting))
    return found


def said(found: list[Node], needs: Needs = NEEDS) -> list[tuple[str, str, str]]:
    return sorted((problem.path, problem.severity, problem.code) for _, problem in judge(needs, found))


def test_of_nodes_that_are_well_nothing_is_said() -> None:
    assert said(nodes()) == []
    assert said(nodes(), replace(NEEDS, runtime=None, image=None, python="python3")) == []


def test_a_host_that_is_named_by_its_loopback_is_to_be_named_otherwise() -> None:
    found = nodes(node1={"name/resolves": ["127.0.1.1"]})
    for address in ("127.0.0.1", "localhost"):
        host = replace(HOSTS[0], address=address)
        needs = replace(NEEDS, hosts=(host, *HOSTS[1:]))
        (problem,) = [p for _, p in judge(needs, [replace(found[0], host=host), *found[1:]])]
        assert problem.code == "loopback-hostname"
        assert "an address that others can reach" in problem.fix


def test_an_image_that_the_run_fetches_need_not_be_there() -> None:
    assert said(nodes(node3={"engine/image": None}), replace(NEEDS, pulled=True)) == [
        ("node3", "warning", "image-missing")
    ]


ON_NODE_3: list[tuple[dict[str, Any], str, str]] = [
    ({"engine/image": None}, "error", "image-missing"),
    ({"engine/image": "sha256:bb"}, "error", "other-image"),
    ({"engine/architecture": "arm64"}, "error", "image-architecture"),
    ({"engine/version": "24.0"}, "warning", "other-engine"),
    ({"engine": None, "failed": {"engine": "there is no docker"}}, "error", "no-engine"),
    ({"trainer/libraries": {"seatrial": None, "jax": "0.10.2", "jaxlib": "0.10.2"}}, "error", "no-trainer"),
    ({"trainer/libraries/jax": "0.9.0"}, "error", "other-version"),
    ({"trainer": None, "failed": {"trainer": "there is no python3"}}, "error", "no-python"),
    ({"devices/found": []}, "error", "too-few-devices"),
    ({"devices": None, "failed": {"devices": "nvidia-smi has not answered within 10 s"}}, "error", "devices-not-told"),
    ({"devices/usable": False}, "error", "devices-closed"),
    ({"devices/driver": "6.8.0"}, "warning", "other-driver"),
    ({"devices/rocm": "6.2.0"}, "warning", "other-driver"),
    ({"devices/found/5/uncorrected_errors": 3}, "warning", "memory-errors"),
    ({"devices/found/5/used_bytes": 100 * GIB}, "warning", "device-in-use"),
    ({"name/resolves": ["127.0.1.1"]}, "error", "loopback-hostname"),
    ({"name/resolves": ["::1"]}, "error", "loopback-hostname"),
    ({"name/machine": "1 net:[4026531840]"}, "error", "same-machine"),
    ({"name/resolves": "Name or service not known"}, "error", "unknown-hostname"),
    ({"network/eth0/up": False}, "error", "interface-down"),
    ({"network/eth0/speed_mbits": 10000}, "warning", "other-link"),
    ({"network/eth0/mtu": 1500}, "warning", "other-link"),
    ({"cards/rdma1/ports/1/state": "DOWN"}, "error", "port-not-active"),
    ({"cards/rdma1/ports/1/gid": "0000:0000:0000:0000:0000:0000:0000:0000"}, "error", "no-gid"),
    ({"cards/rdma1/ports/1/gid": None}, "error", "no-gid"),
    ({"cards/rdma1/ports/1/gid_type": "IB/RoCE v1"}, "warning", "gid-type"),
    ({"cards/rdma1/firmware": "28.1"}, "warning", "other-firmware"),
    ({"clock": 1003.4}, "warning", "clock"),
    ({"clock": 997.4}, "warning", "clock"),
    ({"storage/:var:tmp:run/free_bytes": MIB}, "error", "disk-full"),
    ({"storage/:var:tmp:run/free_files": 3}, "error", "disk-full"),
    ({"storage/:var:tmp:run/free_bytes": 500 * MIB}, "warning", "little-disk"),
    ({"storage/:var:tmp:run/writable": False}, "error", "not-writable"),
    ({"storage/:shared:checkpoints/free_bytes": 50 * GIB}, "error", "no-room-for-checkpoints"),
    ({"storage/:data:tokens.bin/exists": False}, "error", "data-missing"),
    ({"storage/:data:tokens.bin/readable": False}, "error", "data-closed"),
    ({"storage/:data:tokens.bin/size": 99}, "warning", "other-data"),
    ({"storage/:dev:kfd/exists": False}, "error", "no-such-file"),
    ({"storage": None, "failed": {"storage": "no answer within 14 s"}}, "error", "not-told"),
    ({"network": None, "failed": {"network": "odd"}}, "warning", "not-told"),
    ({"machine/shm_bytes": 64 * MIB}, "warning", "little-shm"),
    ({"machine/limits/nofile": 256}, "warning", "little-nofile"),
    ({"machine/limits/memlock": 8 * MIB}, "warning", "little-memlock"),
    ({"machine/cgroup/memory_bytes": 8 * GIB}, "warning", "little-memory"),
    ({"machine/kernel": "5.15.0"}, "warning", "other-kernel"),
    ({"machine/cores": 96}, "warning", "other-processors"),
]


@pytest.mark.parametrize(("change", "severity", "code"), ON_NODE_3, ids=lambda value: str(value)[:60])
def test_one_node_is_not_like_the_others(change: dict[str, Any], severity: str, code: str) -> None:
    bare = code in ("no-python", "no-trainer", "other-version", "little-memlock")
    needs = replace(NEEDS, python="python3", runtime=None, image=None) if bare else replace(NEEDS, python=None)
    assert ("node3", severity, code) in (found := said(nodes(node3=change), needs))
    assert {host for host, _, _ in found} == {"node3"}, "the others are well"


def test_the_first_node_has_the_port() -> None:
    assert said(nodes(node1={"port": {"free": False, "why": "Address already in use"}})) == [
        ("node1", "error", "port-taken")
    ]
    assert said(nodes(node1={"name/has_address": False})) == [("node1", "warning", "not-its-address")]


def test_names_are_taken_as_nccl_takes_them() -> None:
    there = ["eth0", "eth1", "ib0", "docker0"]
    for text, whole, meant, absent in (
        ("eth", False, ["eth0", "eth1"], []),
        ("=eth", False, [], ["eth"]),
        ("=eth1,ib0", False, ["eth1", "ib0"], []),
        ("^docker,lo", False, ["eth0", "eth1", "ib0"], []),
        ("eth", True, [], ["eth"]),
        ("eth0,ens7", False, ["eth0"], ["ens7"]),
        ("", False, [], []),
    ):
        selection = Selection.read(text, whole=whole)
        assert (selection.of(there), selection.absent(there)) == (meant, absent), text
    assert Selection.read("mlx5_0:1, mlx5_2").names == ("mlx5_0", "mlx5_2")
    gone = replace(NEEDS, cards=Selection.read("mlx5_0"), interfaces=(("NCCL_SOCKET_IFNAME", Selection.read("ens")),))
    codes = [code for _, severity, code in said(nodes(), gone) if severity == "error"]
    assert sorted(codes) == ["no-card"] * 5 + ["no-interface"] * 5


def test_hardware_that_a_rehearsal_does_without_is_a_warning() -> None:
    needs = replace(NEEDS, cards=Selection.read("mlx5_0"), hardware="warning")
    assert {(severity, code) for _, severity, code in said(nodes(), needs)} == {("warning", "no-card")}


def test_a_tie_is_decided_by_the_first_node() -> None:
    two = replace(NEEDS, hosts=HOSTS[:2])
    assert said(nodes(node2={"machine/kernel": "5"})[:2], two) == [("node2", "warning", "other-kernel")]
    assert said(nodes(node1={"machine/kernel": "5"})[:2], two) == [("node2", "warning", "other-kernel")]
    assert said(nodes(node1={"machine/kernel": "5"})) == [("node1", "warning", "other-kernel")]


def test_who_cannot_reach_the_coordinator_is_told_of_its_firewall() -> None:
    found = nodes(node1={"firewall": {"nftables": "2 rules drop or reject"}})
    found[3] = replace(found[3], meeting=Meeting(reached="Connection refused", seen={NONCE: True}))
    ((_, problem),) = judge(NEEDS, found)
    assert (problem.path, problem.code) == ("node4", "coordinator-unreachable")
    assert "10.0.0.1:12355" in problem.why
    assert "Connection refused" in problem.why
    assert "2 rules drop or reject" in problem.fix
    found[0] = replace(found[0], meeting=Meeting(reached="Permission denied"))
    assert ("node1", "error", "coordinator-unreachable") in said(found)


def test_what_is_not_seen_is_not_shared() -> None:
    found = nodes()
    found[4] = replace(found[4], meeting=Meeting(seen={NONCE: False}))
    assert said(found) == [("node5", "error", "not-shared")]
    nothing = nodes(node1={"storage/:shared:checkpoints/nonce": None, "storage/:shared:checkpoints/why": "Read-only"})
    assert said(nothing) == [("node1", "error", "not-shared")]


def test_a_node_that_does_not_answer_hides_nothing_of_the_others() -> None:
    found = nodes(node4={"engine/image": None})
    found[0] = Node(host=HOSTS[0], trouble=("no answer within 30 s", "log in and look"))
    assert said(found) == [("node1", "error", "no-answer"), ("node4", "error", "image-missing")]
    text = shown(PreflightResult(NEEDS, found, judge(NEEDS, found)))
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines()[:6]}
    assert rows["host"] == list(AREAS)
    assert rows["node1"] == ["ERROR", *["-"] * (len(AREAS) - 1)]
    assert rows["node4"].count("ERROR") == 1
    assert set(rows["node2"]) == {"ok"}


def test_a_clock_is_blamed_only_if_no_delay_explains_it() -> None:
    late = {"sent": 1000.0, "received": 1010.0, "took": 0.5}
    assert said(nodes(node2={**late, "clock": 1011.0})) == []
    assert said(nodes(node2={**late, "clock": 1012.0})) == [("node2", "warning", "clock")]
    assert said(nodes(node2={**late, "clock": 1000.0 - 7200})) == [("node2", "warning", "clock")]


def test_of_many_hosts_only_those_with_something_to_say_are_rows() -> None:
    facts, hosts = nodes()[1].facts, [Host(name=f"n{number}", address=f"10.1.0.{number}") for number in range(60)]
    assert facts is not None
    assert facts.name is not None
    facts = replace(facts, name=replace(facts.name, machine=None))
    many = [Node(host=host, facts=facts, meeting=Meeting()) for host in hosts]
    many[7] = Node(host=many[7].host, trouble=("off", "switch it on"))
    needs = Needs(hosts=tuple(node.host for node in many), root="/var/tmp/run", python=None)
    text = shown(PreflightResult(needs, many, judge(needs, many)))
    assert "59 more hosts: no findings" in text
    assert len(text.splitlines()) < 12


BAD: list[Callable[[dict[str, Any]], object]] = [
    lambda data: data.pop("clock"),
    lambda data: data.update(clock=float("nan")),
    lambda data: data.update(clock="now"),
    lambda data: data.update(network=["eth0"]),
    lambda data: data.update(network={str(number): {"up": True} for number in range(5000)}),
    lambda data: data["machine"].update(cores=10**400),
    lambda data: data["devices"].update(found="many"),
    lambda data: data["storage"].update(x=None),
]


@pytest.mark.parametrize("spoil", BAD)
def test_what_makes_no_sense_is_refused(spoil: Callable[[dict[str, Any]], object]) -> None:
    data = told(1)
    spoil(data)
    wrong = read_facts(data)
    assert isinstance(wrong, str), wrong
    assert len(wrong) < 301


def test_long_texts_are_cut_and_odd_answers_to_the_second_question_refused() -> None:
    data = told(1)
    data["failed"] = {"machine": "x" * 10**6}
    facts = read_facts(data)
    assert isinstance(facts, Facts)
    assert len(facts.failed["machine"]) == 300
    assert isinstance(read_meeting({"reached": ["no"], "seen": {}}), str)
    assert read_meeting({"reached": "refused", "seen": {"/a": False}}) == Meeting(reached="refused", seen={"/a": False})


def test_every_part_that_a_node_can_tell_is_read() -> None:
    assert set(PARTS) <= {field.name for field in fields(Facts)}
    assert len({check.what for check in CHECKS}) == len(CHECKS)


# --- what a run asks for ----------------------------------------------------------------------------------------------

SITE = Site(cluster=Cluster(hosts=HOSTS, transport="ssh"), root=PurePosixPath("/var/tmp/seatrial-me/run"))
VARIABLES = {"NCCL_IB_HCA": "rdma0,rdma1", "NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_GID_INDEX": "3"}
SPEC = RunSpec(
    name="run", dialect="native", model=MODELS["llama2-7b"], steps=10,
    batch=Batch(global_batch_size=40, micro_batch_size=1, sequence_length=128),
    topology=Topology(num_nodes=5, devices_per_node=8, device="mi300x"),
    execution=Execution(environment=VARIABLES), checkpoint=Checkpoint(enabled=True, directory="/out/checkpoints"),
    data=Data(kind="megatron", paths=("/in/data/a_text_document", "relative")),
    container=Container(
        image="rocm/train:1", devices=("/dev/kfd", "/dev/dri:/dev/dri:rw"),
        volumes=(("/mnt/in", "/in"), ("/mnt/out", "/out")),
    ),
)  # fmt: skip


def test_what_a_run_asks_for() -> None:
    needs = needs_of(SPEC, SITE, hosts=HOSTS)
    assert (needs.python, needs.image, needs.devices, needs.device, needs.gid_index) == (
        "python3",
        None,
        8,
        "mi300x",
        3,
    )
    assert needs.data == ("/in/data/a_text_document.bin", "/in/data/a_text_document.idx")
    assert (needs.shared, needs.given, needs.hardware) == ("/out/checkpoints", (), "error")
    assert 80e9 < needs.checkpoint_bytes < 82e9
    assert needs.meet


def test_in_a_container_paths_are_those_of_the_host() -> None:
    needs = needs_of(SPEC, replace(SITE, runtime="docker"), hosts=HOSTS)
    assert (needs.python, needs.image, needs.shared) == (None, "rocm/train:1", "/mnt/out/checkpoints")
    assert needs.data == ("/mnt/in/data/a_text_document.bin", "/mnt/in/data/a_text_document.idx")
    assert needs.given == ("/dev/kfd", "/dev/dri", "/mnt/in", "/mnt/out")
    inside = replace(SPEC, checkpoint=Checkpoint(enabled=True, directory="/only/inside"))
    assert needs_of(inside, replace(SITE, runtime="docker"), hosts=HOSTS).shared is None


def test_a_rehearsal_and_a_single_node_ask_for_less() -> None:
    rehearsal = needs_of(SPEC, replace(SITE, runtime="docker"), hosts=HOSTS, rehearsing=True)
    assert (rehearsal.devices, rehearsal.given, rehearsal.hardware) == (None, (), "warning")
    alone = needs_of(SPEC, SITE, hosts=HOSTS[:1])
    assert (alone.meet, alone.shared, alone.cards, alone.interfaces) == (False, None, None, ())
    nothing = needs_of(None, SITE, hosts=HOSTS)
    assert (nothing.devices, nothing.image, nothing.paths) == (None, None, ("/var/tmp/seatrial-me/run",))
    assert needs_of(SPEC, SITE, hosts=HOSTS, engine="megatron").python is None


def test_of_a_glob_the_folder_is_looked_for() -> None:
    spec = replace(
        SPEC,
        data=Data(kind="text", paths=("/in/books/*.txt", "/in/one.txt", "stdlib:*.py"), tokenizer="/in/tokenizer.json"),
    )
    assert needs_of(spec, SITE, hosts=HOSTS).data == ("/in/books", "/in/one.txt", "/in/tokenizer.json")
