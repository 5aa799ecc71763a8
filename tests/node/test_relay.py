"""The relay, which starts agents on a host and reports on them: as processes on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from seatrial.node import of_the_agent, relay
from tests.helpers.processes import processes_with, wait_until

SOURCE = Path(relay.__file__).read_text(encoding="utf-8")
FOREVER = "import time; print('up', flush=True); time.sleep(600)"

Call = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def call() -> Iterator[Call]:
    """A relay that was told what to do: `call(verb, given)`; its input stays open."""
    begun: list[subprocess.Popen[bytes]] = []

    def start(verb: str, given: dict[str, Any]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", relay.BOOT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        begun.append(process)
        assert process.stdin
        text = {"mark": "the mark", "source": SOURCE, "verb": verb, "given": given}
        process.stdin.write(json.dumps(text).encode() + b"\n")
        process.stdin.flush()
        assert (_out(process).readline(), _out(process).readline()) == (b"\n", b"the mark\n")
        return process

    yield start
    for process in begun:
        process.kill()
        process.communicate()


def _out(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout
    return process.stdout


def to_begin(root: Path, mark: str, *, attempt: int = 1, version: int = 1) -> dict[str, Any]:
    process = {
        "rank": 0, "argv": [sys.executable, "-c", FOREVER, mark], "environment": {}, "cwd": str(root),
        "log": str(root / "nodes/h0/rank0.log"),
    }  # fmt: skip
    job = {"v": version, "run": "r", "directory": str(root / "nodes/h0"), "processes": [process], "grace_seconds": 1}
    return {"root": str(root), "files": of_the_agent(), "attempt": attempt, "port": None, "job": job}


def answered(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    return dict(json.loads(_out(process).readline()))


def root_of(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "root"


def test_an_agent_that_ends_before_it_reports_is_told_to_be_gone(call: Call, tmp_path: Path, mark: str) -> None:
    root = root_of(tmp_path)
    assert answered(call("begin", to_begin(root, mark, version=99)))["pid"]
    telling = call("send", {"root": str(root), "host": "h0", "ranks": [0], "offsets": {}})
    told: dict[str, bytes] = {}
    while True:
        frame = answered(telling)
        if "file" in frame:
            told[frame["file"]] = told.get(frame["file"], b"") + _out(telling).read(frame["size"])
        elif frame["agent"] is False and not frame["more"]:
            break
    assert b"version" in told["nodes/h0/agent.log"]


def test_two_attempts_never_run_at_once(call: Call, tmp_path: Path, mark: str) -> None:
    root = root_of(tmp_path)
    first = answered(call("begin", to_begin(root, mark)))["pid"]
    (old,) = wait_until(lambda: processes_with(mark))
    second = answered(call("begin", to_begin(root, mark, attempt=2)))
    assert second["pid"] != first
    (new,) = wait_until(lambda: [process for process in processes_with(mark) if process != old])
    assert old not in processes_with(mark)
    assert (root / "attempts/1/nodes/h0/rank0.log").read_text() == "up\n"
    assert json.loads((root / "attempts/1/nodes/h0/status.json").read_text())["state"] == "ended"
    answered(call("order", {"root": str(root), "host": "h0", "stop": "now"}))
    wait_until(lambda: new not in processes_with(mark))
