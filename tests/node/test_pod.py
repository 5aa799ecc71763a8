"""The first process of a pod: it starts the agent, repeats its logs, stops in order, and stays for its files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.node import IN_A_POD, of_the_agent, text_of
from seatrial.node.pod import RUN, packed, unpacked
from tests.helpers.processes import processes_with, wait_until

HOST = "it-x7k2p-node-0-0"


class Pod:
    """A pod's first process, with a program as the only rank of its index."""

    def __init__(self, folder: Path, program: str, *, keep_seconds: float = 60, **variables: str) -> None:
        self.root, files = folder / "runs" / "it", folder / "files"
        self.own = self.root / "nodes" / HOST
        files.mkdir()
        for name in IN_A_POD:
            (files / f"{name}.py").write_text(text_of(name))
        process = {
            "rank": 0, "argv": [sys.executable, "-u", "-c", program, str(folder)], "environment": {},
            "log": str(self.own / "rank0.log"), "cwd": str(folder),
        }  # fmt: skip
        secrets = [[0, "environment", "TOKEN", "SEATRIAL_SECRET_0"]]
        job = {"v": 1, "run": "it", "directory": str(self.own), "processes": [process], "grace_seconds": 5}
        given = {
            "jobs": [{**job, "secrets": secrets}], "files": of_the_agent(), "port": None, "coordinator": None,
            "keep_seconds": keep_seconds,
        }  # fmt: skip
        (files / RUN).write_text(packed(given))
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(files / "pod.py"), str(files), str(self.root)],
            env={**os.environ, "JOB_COMPLETION_INDEX": "0", "SEATRIAL_SECRET_0": "canary", **variables},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def wait_for(self, name: str) -> None:
        wait_until(lambda: (self.own / name).exists(), 30)

    def end(self) -> tuple[int, str]:
        out, _ = self.process.communicate(timeout=60)
        return self.process.returncode, out


@pytest.mark.parametrize("code", [0, 3])
def test_it_stays_until_it_is_released_and_ends_as_its_processes_did(tmp_path: Path, code: int) -> None:
    program = (
        f"import os, sys; print('token', os.environ['TOKEN'], 'SEATRIAL_SECRET_0' in os.environ); sys.exit({code})"
    )
    pod = Pod(tmp_path, program)
    pod.wait_for("rank0.log")
    wait_until(lambda: '"ended"' in (pod.own / "status.json").read_text() if (pod.own / "status.json").exists() else 0)
    time.sleep(1)
    assert pod.process.poll() is None
    (pod.own / "released").touch()
    ended, out = pod.end()
    assert ended == bool(code)
    assert "token canary False\n" in out  # as kubectl logs shows it
    assert (pod.own / "rank0.log").read_text() == "token canary False\n"


def test_without_anybody_it_ends_when_its_time_is_over(tmp_path: Path) -> None:
    began = time.monotonic()
    assert Pod(tmp_path, "print(1)", keep_seconds=1).end()[0] == 0
    assert time.monotonic() - began > 1


def test_sigterm_lets_its_processes_save(tmp_path: Path) -> None:
    program = (
        "import signal, sys, time\n"
        "def save(*_):\n    print('saved'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save); print('ready')\nwhile True: time.sleep(0.1)"
    )
    pod = Pod(tmp_path, program, keep_seconds=0)
    wait_until(lambda: (pod.own / "rank0.log").exists() and "ready" in (pod.own / "rank0.log").read_text(), 30)
    pod.process.send_signal(signal.SIGTERM)
    _, out = pod.end()
    assert "saved\n" in out
    assert processes_with(str(tmp_path)) == []


def test_what_it_cannot_do_is_its_last_line(tmp_path: Path) -> None:
    code, out = Pod(tmp_path, "print(1)", JOB_COMPLETION_INDEX="7").end()
    assert code == 1
    assert out.splitlines()[-1].startswith("seatrial: ")
    assert "IndexError" in out


@given(st.dictionaries(st.text(), st.text() | st.lists(st.text())))
def test_a_run_is_packed_the_same_each_time_and_comes_out_as_it_was(run: dict[str, Any]) -> None:
    assert packed(run) == packed(run)
    assert unpacked(packed(run)) == run
    assert "\n" not in packed(run)
