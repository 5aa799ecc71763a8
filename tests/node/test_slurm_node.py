"""The program that finds its place on a node of a job: hosts, address, and the job's text with both in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.node import UNDER_SLURM, of_the_agent, text_of
from seatrial.node.job_secrets import with_secrets
from seatrial.node.slurm_node import expand, fill


@pytest.mark.parametrize(
    ("short", "hosts"),
    [
        ("node1", "node1"),
        ("node[1-3]", "node1 node2 node3"),
        ("node[08-11]", "node08 node09 node10 node11"),
        ("node[1-2,07],login", "node1 node2 node07 login"),
        ("a[1-2],b-[9-10]-ib", "a1 a2 b-9-ib b-10-ib"),
        ("rack[1-2]node[01-02]", "rack1node01 rack1node02 rack2node01 rack2node02"),
        ("gpu[099-101]", "gpu099 gpu100 gpu101"),
        ("n[5]", "n5"),
    ],
)
def test_slurm_s_short_form_is_written_out(short: str, hosts: str) -> None:
    assert expand(short) == hosts.split()


@pytest.mark.parametrize("text", ["", "[1-2", "node[a-b]", "node[]", "node[1-2]]"])
def test_what_names_no_hosts_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="no "):
        expand(text)


def known(what: str, number: int) -> str:
    return f"{what}{number}"


def test_stand_ins_are_replaced_and_nothing_else_is() -> None:
    data = {
        "argv": ["--at", "slurm-address-0.invalid:1234", "$(slurm)"],
        "log": "nodes/slurm-node-12.invalid/x",
        "n": 1,
    }
    assert fill(data, known) == {"argv": ["--at", "address0:1234", "$(slurm)"], "log": "nodes/node12/x", "n": 1}


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_other_data_stays_as_it_is(data: Any) -> None:
    assert fill(data, known) == data


def test_secrets_come_by_variables_which_are_gone_then() -> None:
    job: dict[str, Any] = {"processes": [{"environment": {}, "stdin": None}, {"environment": {"A": "1"}}]}
    job["secrets"] = [[0, "stdin", "", "SEATRIAL_SECRET_0"], [1, "environment", "TOKEN", "SEATRIAL_SECRET_1"]]
    variables = {"SEATRIAL_SECRET_0": "export X=1\n", "SEATRIAL_SECRET_1": "t\nü", "PATH": "/bin"}
    found = with_secrets(job, variables)
    assert found == {
        "processes": [{"environment": {}, "stdin": "export X=1\n"}, {"environment": {"A": "1", "TOKEN": "t\nü"}}]
    }
    assert variables == {"PATH": "/bin"}


def test_it_becomes_the_agent_of_its_node(tmp_path: Path) -> None:
    (tmp_path / "launch" / "slurm").mkdir(parents=True)
    for name, text in {**of_the_agent(), **{f"launch/{name}.py": text_of(name) for name in UNDER_SLURM}}.items():
        (tmp_path / name).write_text(text)
    own = tmp_path / "nodes" / "slurm-node-0.invalid"
    program = "import os; print(os.environ['TOKEN'], [name for name in os.environ if 'SECRET' in name])"
    process = {"rank": 0, "argv": [sys.executable, "-c", program], "environment": {}, "log": f"{own}/rank0.log"}
    job = {"v": 1, "run": "test", "directory": str(own), "processes": [process]}
    secrets = [[0, "environment", "TOKEN", "SEATRIAL_SECRET_0"]]
    (tmp_path / "launch" / "slurm" / "job-0.json").write_text(json.dumps({**job, "secrets": secrets}))
    variables = {"SLURM_NODEID": "0", "SLURM_JOB_NODELIST": "node[7]", "SEATRIAL_SECRET_0": "canary"}
    start = [sys.executable, "-I", str(tmp_path / "launch" / "slurm_node.py"), str(tmp_path)]
    subprocess.run(start, env={**os.environ, **variables}, check=True, timeout=60)
    assert (tmp_path / "nodes" / "node7" / "rank0.log").read_text() == "canary []\n"
    again = subprocess.run(start, env={**os.environ, **variables}, capture_output=True, text=True, timeout=60)
    assert again.returncode == 1  # a second run of this name gets no further
    assert again.stderr.startswith("seatrial: ")
    (tmp_path / "nodes" / "node7" / "stop").touch()
    told = {**process, "argv": [*process["argv"][:2], f"{program}; print('again')"]}
    (tmp_path / "launch" / "slurm" / "restart-0.json").write_text(
        json.dumps({**job, "processes": [told], "secrets": secrets})
    )
    subprocess.run(start, env={**os.environ, **variables, "SLURM_RESTART_COUNT": "1"}, check=True, timeout=60)
    assert (tmp_path / "nodes" / "node7" / "rank0.log").read_text() == 2 * "canary []\n" + "again\n"
    assert not (tmp_path / "nodes" / "node7" / "stop").exists()
