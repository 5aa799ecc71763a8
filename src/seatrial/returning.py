"""Coming back to a run that was started before: follow it again, stop it, read its logs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from seatrial.errors import InputError
from seatrial.judging import judge_run, report_run
from seatrial.launch.live import watched
from seatrial.launch.targets import Target, target
from seatrial.run_directory import read_asked, short

if TYPE_CHECKING:
    from seatrial.verdict import Verdict

POLL_SECONDS = 0.5


def attach(run_dir: Path) -> Verdict:
    """Follows a run on a cluster again, to its verdict. Raises InputError if somebody does so, or it is over."""
    spec, _ = read_asked(run_dir)
    assert spec is not None  # only of logs that were judged there is none, and they have no status
    status = _status(run_dir)
    if status.get("state") == "ended":
        why, fix = f"this run is over ({status.get('reason')})", f"read it: seatrial judge {short(run_dir)}"
        raise InputError.single("run-over", str(run_dir), why, fix)
    if pid := _launcher(status):
        why, fix = f"process {pid} follows it already", "look there, or end that one first; the run goes on without it"
        raise InputError.single("run-followed", str(run_dir), why, fix)
    there, engine = _planned(run_dir)
    with watched(run_dir, spec, engine) as following:
        there.attach(run_dir, following, name=spec.name, planned_steps=spec.steps)
    text, verdict = judge_run(run_dir, as_json=False)
    print(text)
    print(report_run(run_dir, "html"), flush=True)
    return verdict


def stop(run_dir: Path, *, now: bool) -> str:
    """Tells a run to end, wherever it is, and says so. Raises InputError for a run that is over."""
    status = _status(run_dir)
    if status.get("state") == "ended":
        why = f"this run is over ({status.get('reason')})"
        raise InputError.single("run-over", str(run_dir), why, "there is nothing to stop")
    there, _ = _planned(run_dir)
    there.stop(run_dir, now=now)
    return f"{short(run_dir)}: its processes are told to {'end at once' if now else 'save what they must and end'}"


def _planned(run_dir: Path) -> tuple[Target, str]:
    """Where a run is, and what trains there. Raises InputError where its plan cannot be read."""
    try:
        plan = json.loads((run_dir / "plan.json").read_text(encoding="utf-8"))
        return target(plan["on"]), str(plan["engine"])
    except (OSError, ValueError, KeyError) as error:
        why = f"its plan.json cannot be read ({type(error).__name__})"
        raise InputError.single("no-run", str(run_dir), why, "name the directory that a run printed") from error


def logs(run_dir: Path, *, rank: int | None, follow: bool) -> Iterator[bytes]:
    """What the processes of a run have printed, one after the other; with `follow`, until the run is over."""
    pattern = "nodes/*/rank*.log" if rank is None else f"nodes/*/rank{rank}.log"
    read: dict[Path, int] = {}
    while True:
        is_over = _status(run_dir).get("state") == "ended"
        paths = sorted(run_dir.glob(pattern), key=lambda path: int(path.stem.removeprefix("rank")))
        if not paths and not follow:
            why = f"it holds no log of rank {rank}" if rank is not None else "it holds no logs"
            raise InputError.single("no-logs", str(run_dir), why, "name the directory that a run printed")
        for path in paths:
            with path.open("rb") as file:
                file.seek(read.get(path, 0))
                while chunk := file.read(1 << 16):
                    read[path] = read.get(path, 0) + len(chunk)
                    yield chunk
        if is_over or not follow:
            return
        time.sleep(POLL_SECONDS)


def _status(run_dir: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((run_dir / "status.json").read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        why = f"no run has been started there ({type(error).__name__})"
        raise InputError.single("no-run", str(run_dir), why, "name the directory that a run printed") from error


def _launcher(status: dict[str, Any]) -> int | None:
    """The process that follows the run, if it still does; another that was given its number began later."""
    try:
        process = psutil.Process(status["launcher_pid"])
        return process.pid if process.create_time() <= status["started"] + 1 else None
    except (psutil.Error, KeyError):
        return None
