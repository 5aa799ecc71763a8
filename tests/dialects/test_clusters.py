"""Cluster files, CVS's and native ones: which machines, in which order, reached how; and what is wrong with them."""

from __future__ import annotations

import json
import string
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial import source
from seatrial.cluster import MAX_HOSTS, Cluster, Host, hosts_of
from seatrial.dialects import clusters
from seatrial.dialects.clusters import is_cluster, read_cluster
from seatrial.errors import InputError, Problem
from seatrial.report.problems import render_text
from tests.helpers.seeds import ROOT

CVS: dict[str, Any] = {
    "_comment": "ours",
    "username": "{user-id}",
    "priv_key_file": "/home/{user-id}/.ssh/id_rsa",
    "head_node_dict": {"mgmt_ip": "10.0.0.1"},
    "node_dict": {
        "10.0.0.1": {"bmc_ip": "NA", "vpc_ip": "192.168.0.1"},
        "node-b": {"bmc_ip": "10.1.0.2", "vpc_ip": "NA"},
        "10.0.0.3": {},
    },
}


def read(tmp_path: Path, text: str | dict[str, Any], suffix: str = ".json") -> tuple[Cluster | None, list[Problem]]:
    path = tmp_path / f"cluster{suffix}"
    path.write_text(text if isinstance(text, str) else json.dumps(text, indent=2), encoding="utf-8")
    cluster, problems = read_cluster(path, user="ada", home=Path("/home/ada"))
    assert is_cluster(source.read(path).root)
    assert (cluster is None) == any(problem.severity == "error" for problem in problems)
    assert render_text(tuple(problems)) is not None
    return cluster, list(problems)


def codes(problems: list[Problem]) -> set[tuple[str, str, str]]:
    return {(p.severity, p.code, p.path) for p in problems}


# --- CVS --------------------------------------------------------------------------------------------------------------


def test_cvs_s_hosts_are_ranks_in_their_order(tmp_path: Path) -> None:
    cluster, problems = read(tmp_path, CVS)
    assert problems == []
    assert cluster == Cluster(
        hosts=(
            Host(name="10.0.0.1", address="192.168.0.1"),
            Host(name="node-b", address="node-b"),
            Host(name="10.0.0.3", address="10.0.0.3"),
        ),
        transport="ssh",
        user="ada",
        key_file="/home/ada/.ssh/id_rsa",
    )


def test_the_keys_of_2026_mean_the_same(tmp_path: Path) -> None:
    newer = {"username": "ada", "priv_key_file": "/k", "env_vars": {}, "head_node": "a", "nodes": {"a": {}, "b": {}},
             "orchestrator": "container", "container": {"image": "x", "name": "y"}}  # fmt: skip
    cluster, problems = read(tmp_path, newer)
    assert cluster is not None
    assert [host.name for host in cluster.hosts] == ["a", "b"]
    assert codes(problems) == {("info", "no-effect", "orchestrator"), ("info", "no-effect", "container")}


def test_the_template_is_not_filled_in_and_its_equal_keys_are_not_one(tmp_path: Path) -> None:
    template = """{
  "username": "{user-id}",
  "priv_key_file": "/home/{user-id}/.ssh/id_rsa",
  "head_node_dict": {"mgmt_ip": "{xx.xx.xx.xx|hostname}"},
  "node_dict": {
    "{xx.xx.xx.xx|hostname}": {"bmc_ip": "NA", "vpc_ip": "{xx.xx.xx.xx|hostname}"},
    "{xx.xx.xx.xx|hostname}": {"bmc_ip": "NA", "vpc_ip": "{xx.xx.xx.xx|hostname}"}
  }
}"""
    cluster, problems = read(tmp_path, template)
    assert cluster is None
    found = [(p.code, p.mark.line) for p in problems if p.mark]
    assert found.count(("duplicate-key", 7)) == 1
    assert ("placeholder", 7) in found
    assert ("placeholder", 4) in found
    assert all("{xx.xx.xx.xx|hostname}" in p.why for p in problems if p.code == "placeholder")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"node_dict": {}}, ("error", "missing-key", "node_dict")),
        ({"node_dict": ["a"]}, ("error", "missing-key", "node_dict")),
        ({"node_dict": {"a": "b"}}, ("error", "bad-value", "node_dict.a")),
        ({"node_dict": {"-oProxyCommand=x": {}}}, ("error", "bad-value", "node_dict.-oProxyCommand=x")),
        ({"node_dict": {"a": {"vpc_ip": "b; rm -rf /"}}}, ("error", "bad-value", "node_dict.a.vpc_ip")),
        ({"node_dict": {"n[1-999999999]": {}}}, ("error", "bad-value", "node_dict.n[1-999999999]")),
        ({"node_dict": {"n[3-1]": {}}}, ("error", "bad-value", "node_dict.n[3-1]")),
        ({"node_dict": {"n[1-3]": {"vpc_ip": "10.0.0.1"}}}, ("error", "bad-value", "node_dict.n[1-3].vpc_ip")),
        ({"node_dict": {"n[1-3]": {}, "n2": {}}}, ("error", "repeated-host", "node_dict.n2")),
        ({"node_dict": {"a": {"vpc": "b"}}}, ("error", "unknown-key", "node_dict.a.vpc")),
        ({"node_dict": {"10.0.0.1": {"vpc_ip": "x"}, "b": {"vpc_ip": "x"}}},
         ("warning", "repeated-address", "node_dict.b")),
        ({"username": "<changeme>"}, ("error", "placeholder", "username")),
        ({"username": "-x"}, ("error", "bad-value", "username")),
        ({"user_name": "x"}, ("error", "unknown-key", "user_name")),
        ({"priv_key_file": "-F x"}, ("error", "bad-value", "priv_key_file")),
        ({}, ("info", "no-effect", "home_mount_dir_name")),
        ({"head_node_dict": {"mgmt_ip": "10.9.9.9"}}, ("warning", "unknown-head", "head_node_dict.mgmt_ip")),
        ({"head_node_dict": {"mgmt_ip": "node-b"}}, ("info", "head-not-first", "head_node_dict.mgmt_ip")),
        ({"password": "hunter2"}, ("warning", "secret-in-file", "password")),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_cvs_file_is_said(
    tmp_path: Path, change: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    _, problems = read(tmp_path, {**CVS, "home_mount_dir_name": "home", **change})
    assert expected in codes(problems)
    assert all(problem.why and problem.fix and problem.mark for problem in problems)
    assert all("hunter2" not in f"{problem.why}{problem.fix}" for problem in problems)


# --- native -----------------------------------------------------------------------------------------------------------


def test_a_native_cluster(tmp_path: Path) -> None:
    text = """
hosts:
  - login
  - node[08-10].cluster
  - {name: big, address: 10.0.0.9, devices: 16, port: 2222}
user: ada
key_file: ~/.ssh/id_ed25519
devices: 8
"""
    cluster, problems = read(tmp_path, text, ".yaml")
    assert problems == []
    assert cluster is not None
    named = ["login", "node08.cluster", "node09.cluster", "node10.cluster"]
    assert cluster.hosts[:4] == tuple(Host(name=name, address=name, devices=8) for name in named)
    assert cluster.hosts[4] == Host(name="big", address="10.0.0.9", devices=16, port=2222)
    assert (cluster.transport, cluster.user, cluster.key_file) == ("ssh", "ada", "~/.ssh/id_ed25519")


def test_hosts_may_be_one_text(tmp_path: Path) -> None:
    cluster, problems = read(tmp_path, "hosts: node[01-03], login\ndevices: 8\n", ".yaml")
    assert problems == []
    assert cluster is not None
    named = ["node01", "node02", "node03", "login"]
    assert cluster.hosts == tuple(Host(name=name, address=name, devices=8) for name in named)


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("node[01-03,07]", "node01 node02 node03 node07"),
        ("node[07,01-03]", "node07 node01 node02 node03"),
        ("rack[1-2]n[08-10].x", "rack1n08.x rack1n09.x rack1n10.x rack2n08.x rack2n09.x rack2n10.x"),
        ("n[0-6/3]", "n0 n3 n6"),
        ("n[1, 3-4]", "n1 n3 n4"),
        ("n[8-10]", "n8 n9 n10"),
        ("n[001]", "n001"),
        ("n[098-101]", "n098 n099 n100 n101"),  # the digits of the first number, as `scontrol show hostnames` prints
        ("n[98-0102]", "n98 n99 n100 n101 n102"),
        ("n[1-03]x[00-2/2]", "n1x00 n1x02 n2x00 n2x02 n3x00 n3x02"),
        ("10.0.0.[1-2]", "10.0.0.1 10.0.0.2"),
    ],
)
def test_ranges_stand_for_hosts_in_the_order_written(word: str, names: str, tmp_path: Path) -> None:
    for text in (f"hosts: '{word}'", f"hosts: ['{word}']", f"node_dict: {{'{word}': {{}}}}"):
        cluster, problems = read(tmp_path, text, ".yaml")
        assert problems == []
        assert cluster is not None
        assert [host.name for host in cluster.hosts] == names.split()


def test_a_range_of_cvs_hosts_may_have_a_range_of_addresses(tmp_path: Path) -> None:
    cluster, problems = read(tmp_path, {"node_dict": {"n[1-2]": {"vpc_ip": "10.0.0.[11-12]", "bmc_ip": "NA"}}})
    assert problems == []
    assert cluster is not None
    assert cluster.hosts == (Host(name="n1", address="10.0.0.11"), Host(name="n2", address="10.0.0.12"))


def test_many_hosts_cost_little_and_too_many_nothing(tmp_path: Path) -> None:
    assert len(hosts_of("n[1-100000]")) == MAX_HOSTS
    start = time.perf_counter()
    many = ("n[1-999999999]", "n[1-9999999999]", "n[1-9999]" * 20, "n[1-9]" * 20_000)
    for hostile in (*many, "n[" + "1-9," * 50_000 + "1]", "[" * 50_000):
        with pytest.raises(ValueError, match=r"\[01-03,07\]|correct the range"):
            hosts_of(hostile)
    assert time.perf_counter() - start < 10


def test_ranges_of_hosts_can_be_excluded() -> None:
    cluster = Cluster(hosts=tuple(Host(name=name, address=name) for name in hosts_of("n[1-5]")))
    assert [host.name for host in cluster.without(["n[1-2],n4"]).hosts] == ["n3", "n5"]
    for text, code in (("n[4-9]", "unknown-host"), ("n[4", "bad-value"), ("n[1-5]", "no-hosts")):
        with pytest.raises(InputError) as refused:
            cluster.without([text])
        assert (refused.value.problems[0].code, refused.value.problems[0].path) == (code, "--exclude")


@pytest.mark.parametrize("text", ["hosts: [node[01-03]]", "hosts: [a, node[01-03].x, b]"])
def test_a_range_in_a_list_without_quotes_is_told_at_its_place(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        read(tmp_path, text, ".yaml")
    (problem,) = refused.value.problems
    assert problem.mark is not None
    assert text[problem.mark.column - 1 :].startswith("[01-03]")
    assert "quotes, as 'node[01-03]'" in problem.fix


def test_slurm_allots_its_hosts_and_this_machine_is_one(tmp_path: Path) -> None:
    slurm, _ = read(tmp_path, "transport: slurm\n", ".yaml")
    assert slurm == Cluster(hosts=(), transport="slurm")
    assert read(tmp_path, "transport: local\n", ".yaml")[0] == Cluster.on_this_machine()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("transport: ssh", ("error", "missing-key", "hosts")),
        ("hosts: []", ("error", "missing-key", "hosts")),
        ("hosts: ''", ("error", "missing-key", "hosts")),
        ("hosts: a b", ("error", "bad-value", "hosts")),
        ("hosts: a,,b", ("error", "bad-value", "hosts")),
        ("hosts: a,n[1-2],n2", ("error", "repeated-host", "hosts")),
        ("hosts: [a]\nkey_file: ~nobody-of-this-name/key", ("error", "bad-value", "key_file")),
        ("hosts: [a, a]", ("error", "repeated-host", "hosts.1")),
        ("hosts: ['n[1-2]', n2]", ("error", "repeated-host", "hosts.1")),
        ("hosts: ['n[2-1]']", ("error", "bad-value", "hosts.0")),
        ("hosts: ['n[1-999999999]']", ("error", "bad-value", "hosts.0")),
        ("hosts: ['n[1-60000]', 'm[1-60000]']", ("error", "too-many-hosts", "hosts.1")),
        ("hosts: ['n[1-999]x[1-999]']", ("error", "bad-value", "hosts.0")),
        ("hosts: 'a,n[1-3'", ("error", "bad-value", "hosts")),
        ("hosts: ['n[1-3]]']", ("error", "bad-value", "hosts.0")),
        ("hosts: ['n[[1-3]]']", ("error", "bad-value", "hosts.0")),
        ("hosts: ['n[]']", ("error", "bad-value", "hosts.0")),
        ("hosts: ['n[1-]']", ("error", "bad-value", "hosts.0")),
        ("hosts: ['n[a-c]']", ("error", "bad-value", "hosts.0")),
        ("hosts: ['n[100-01]']", ("error", "bad-value", "hosts.0")),
        ("hosts: ['n[1-3/0]']", ("error", "bad-value", "hosts.0")),
        ("hosts: ['n[1-2,2]']", ("error", "repeated-host", "hosts.0")),
        ("hosts: ['-o[1-2]']", ("error", "bad-value", "hosts.0")),
        ("hosts: ['n[1-2];rm']", ("error", "bad-value", "hosts.0")),
        ("hosts: [[a]]", ("error", "bad-value", "hosts.0")),
        ("hosts: [a b]", ("error", "bad-value", "hosts.0")),
        ("hosts: [{address: x}]", ("error", "missing-key", "hosts.0.name")),
        ("hosts: [{name: a, devices: 0}]", ("error", "bad-value", "hosts.0.devices")),
        ("hosts: [{name: a, port: 99999}]", ("error", "bad-value", "hosts.0.port")),
        ("hosts: [{nam: a}]", ("error", "unknown-key", "hosts.0.nam")),
        ("hosts: [a]\ntransport: rsh", ("error", "bad-value", "transport")),
        ("hosts: [a]\ndevice: 8", ("error", "unknown-key", "device")),
        ("hosts: [a]\nuser: '<changeme>'", ("error", "placeholder", "user")),
    ],
)
def test_what_is_wrong_with_a_native_file_is_said(tmp_path: Path, text: str, expected: tuple[str, str, str]) -> None:
    _, problems = read(tmp_path, text, ".yaml")
    assert expected in codes(problems)
    assert all(problem.why and problem.fix and problem.mark for problem in problems)


# --- both -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(ROOT.glob("configs/*/*")), ids=lambda path: path.name)
def test_no_configuration_of_a_run_is_a_cluster(path: Path) -> None:
    if path.suffix in (".json", ".yaml", ".yml"):
        assert is_cluster(source.read(path).root) == path.stem.startswith("cluster")


@given(names=st.lists(st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,10}[a-z0-9])?", fullmatch=True), min_size=1, unique=True))
def test_any_hosts_come_in_their_order(names: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp()
    for text in ({**CVS, "node_dict": {name: {} for name in names}}, {"hosts": names}):
        cluster, _ = read(folder, text)
        assert cluster is not None
        assert [host.name for host in cluster.hosts] == names


@given(
    text=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(string.printable, max_size=6),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from([*clusters.CVS_KEYS, *clusters.NATIVE_KEYS, "name", "mgmt_ip"]), inner)
        ),
        max_leaves=12,
    )
)
def test_no_file_ends_in_a_traceback(text: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(text))
    try:
        cluster, problems = read_cluster(path, user="ada", home=Path("/home/ada"))
    except InputError:
        return
    assert render_text(problems) is not None
    assert (cluster is None) == any(problem.severity == "error" for problem in problems)
