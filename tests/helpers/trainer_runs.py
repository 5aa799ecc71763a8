"""The trainer as real processes: started, waited for, and read."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from seatrial import events
from seatrial.spec import RunSpec, to_dict
from tests.helpers.coverage import measured


def start(spec: RunSpec, out: Path, *arguments: str) -> subprocess.Popen[str]:
    out.mkdir(exist_ok=True)
    (out / "spec.json").write_text(json.dumps(to_dict(spec)))
    command = [sys.executable, "-m", "seatrial.train", str(out / "spec.json"), "--out", str(out)]
    command += ["--cpu-devices", str(spec.topology.devices_per_node), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=measured("train"))


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """A process's exit code and what it printed."""
    text, _ = process.communicate(timeout=600)
    return process.returncode, text


def wait_until(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    """Until it is so, or the process has ended."""
    deadline = time.monotonic() + 600
    while process.poll() is None and not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def recorded(out: Path, process: int = 0) -> list[events.Event]:
    path = out / f"events-{process}.jsonl"
    return list(events.read(path)) if path.exists() else []


def losses(out: Path, process: int = 0) -> dict[int, float]:
    """The loss of each step, as the last attempt at it saw it."""
    return {event.step: event.loss for event in recorded(out, process) if isinstance(event, events.Step)}


def committed(out: Path) -> list[int]:
    """The steps of which there is a checkpoint."""
    folder = out / "checkpoints"
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal()) if folder.exists() else []


def resumed_at(text: str) -> int:
    """The step from which a run went on by what it printed, 0 where it began anew."""
    line = next((line for line in text.splitlines() if line.startswith("resumed from")), "")
    return int(line.partition("(step ")[2].partition(",")[0] or 0)
