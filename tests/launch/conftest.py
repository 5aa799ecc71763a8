"""Real agents around real processes, each marked so that a test can prove that nothing is left of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

AGENT = Path(__file__).parents[2] / "src" / "seatrial" / "launch" / "agent.py"


def wait_until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """The first true value of a condition; fails the test if there is none in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    pytest.fail(f"still not so after {seconds} s")


def processes_with(mark: str) -> list[int]:
    """The pids of living processes that carry a mark in their command line."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and any(mark in word for word in process.cmdline()):
                found.append(process.pid)
    return found


@pytest.fixture
def mark() -> Iterator[str]:
    """A word that no other process has; whatever still carries it after the test is ended."""
    word = f"mark-{uuid.uuid4().hex}"
    yield word
    for pid in processes_with(word):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Agent:
    """An agent that is running a job of Python programs, and what it says about them."""

    def __init__(self, folder: Path, mark: str, programs: list[str], job: dict[str, Any]) -> None:
        self.folder = folder
        processes = [
            {
                "rank": rank,
                "argv": [sys.executable, "-c", program, mark],
                "environment": {"PYTHONUNBUFFERED": "1"},
                "cwd": str(folder),
                "log": str(folder / f"rank{rank}.log"),
            }
            for rank, program in enumerate(programs)
        ]
        self.job = {"v": 1, "run": "test", "directory": str(folder), "processes": processes, "grace_seconds": 1, **job}
        self.process = subprocess.Popen(
            [sys.executable, str(AGENT), "-"], stdin=subprocess.PIPE, start_new_session=True
        )
        assert self.process.stdin is not None
        with self.process.stdin as pipe:
            pipe.write(json.dumps(self.job).encode())

    def status(self) -> dict[str, Any]:
        """The latest status; {} while there is none."""
        try:
            return dict(json.loads((self.folder / "status.json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}

    def ranks(self) -> list[dict[str, Any]]:
        return list(self.status().get("processes", []))

    def log(self, rank: int = 0) -> bytes:
        path = self.folder / f"rank{rank}.log"
        return path.read_bytes() if path.exists() else b""

    def wait(self, seconds: float = 20.0) -> int:
        """Waits for the agent's end; its exit code."""
        return self.process.wait(timeout=seconds)


@pytest.fixture
def start_agent(tmp_path: Path, mark: str) -> Iterator[Callable[..., Agent]]:
    """Starts an agent: `start_agent([program, …], key=value of the job …)`."""
    started: list[Agent] = []

    def start(programs: list[str], **job: Any) -> Agent:
        started.append(Agent(tmp_path, mark, programs, job))
        return started[-1]

    yield start
    for agent in started:
        if agent.process.poll() is None:
            agent.process.kill()
            agent.process.wait()
