"""Agents around real processes, each marked so that a test can prove that nothing is left of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

AGENT = Path(__file__).parents[2] / "src" / "seatrial" / "node" / "agent.py"


class Agent:
    """An agent that is running a job of Python programs, and what it says about them."""

    def __init__(
        self, folder: Path, mark: str, programs: list[str], job: dict[str, Any], group: Path | None = None
    ) -> None:
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
        joins = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"] if group else []
        self.process = subprocess.Popen(
            [*joins, sys.executable, str(AGENT), "-"], stdin=subprocess.PIPE, start_new_session=True
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
