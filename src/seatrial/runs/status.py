"""The state of a run, by its status.json: whether it is over, and whether somebody follows it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from seatrial.errors import InputError, Problem, reason_of
from seatrial.runs.directory import short_path
from seatrial.runs.files import read_object, read_text, write_json
from seatrial.runs.mirror import PLACES
from seatrial.spec import RunSpec

STATUS_FILE = "status.json"
UNDECIDED = "launch/undecided"  # holds the pid of a launcher that may retry what has ended
HEARTBEAT_SECONDS = 60.0  # older than that, and its writer is gone, or not here
BETWEEN = ("starting", "retrying")  # nothing runs yet
GOES_ON = (*BETWEEN, "running", "stopping")


def read_status(run_dir: Path) -> dict[str, Any]:
    """The run's status.json. Raises InputError where there is none."""
    try:
        return read_object(run_dir / STATUS_FILE)
    except (OSError, ValueError) as error:
        why = f"its {STATUS_FILE} cannot be read ({reason_of(error)})"
        if isinstance(error, (FileNotFoundError, NotADirectoryError)):
            there = "there is no such folder" if not run_dir.exists() else f"it has no {STATUS_FILE}"
            why = f"no run was started there: {'this is a file' if run_dir.is_file() else there}"
        raise InputError.single("no-run", str(run_dir), why, "name the directory that a run printed") from error


def state_of(run_dir: Path, status: Mapping[str, Any], now: float | None = None) -> str:
    """One of GOES_ON while somebody follows the run, "ended" when it is over, "abandoned" when its launcher is gone.

    An ended run is "retrying" until its launcher has decided whether to retry.
    """
    said = status.get("state")
    if said == "ended" and not _is_undecided(run_dir, status):
        return "ended"
    if not _is_followed(status, time.time() if now is None else now):
        return "ended" if said == "ended" else "abandoned"
    return "retrying" if said == "ended" else said if said in GOES_ON else "running"


def launcher_pid(status: Mapping[str, Any]) -> int | None:
    """The process here that follows the run, if it still does.

    Another process with its number started later; or, if the launcher is on another machine, is not Python.
    """
    import psutil  # late: who lists many runs seldom needs it

    from seatrial.runs.process_start import start_time

    pid, started = status.get("launcher_pid"), status.get("started")
    if type(pid) is not int or not isinstance(started, (int, float)):
        return None
    try:
        process = psutil.Process(pid)
        is_ours = any("python" in word or "seatrial" in word for word in process.cmdline()[:2])
        return pid if is_ours and start_time(pid) <= started + 1 else None
    except (psutil.Error, ValueError, OverflowError):
        return None


def starting_pid(run_dir: Path) -> int | None:
    """The process here that is to make a run directory and has not yet: `seatrial run … --out DIR`."""
    import psutil  # late: as above

    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError, ValueError):
            words = process.cmdline()
            if "run" not in words or not any("seatrial" in word for word in words):
                continue
            words = words[words.index("run") :]
            named = [word for option, word in pairwise(words) if option == "--out"]
            named += [word.removeprefix("--out=") for word in words if word.startswith("--out=")]
            if any(Path(process.cwd(), each).resolve() == run_dir.resolve() for each in named):
                return process.pid
    return None


def require_over(run_dir: Path) -> tuple[Problem, ...]:
    """Warnings before a run is judged. Raises InputError for one that goes on, or lacks files of its hosts.

    A run without a readable status does not go on.
    """
    try:
        status = read_status(run_dir)
    except InputError:
        return ()
    state = state_of(run_dir, status)
    if state in GOES_ON:
        step = status.get("last_step")
        why = f"this run goes on ({state}{f', step {step}' if type(step) is int else ''})"
        name = short_path(run_dir)
        wait = f"seatrial logs -f {name}, or on a cluster seatrial attach {name}"
        fix = f"wait for its end ({wait}), or end it: seatrial stop {name}"
        raise InputError.single("run-goes-on", str(run_dir), why, fix)
    if state != "ended" and status.get("uncopied"):
        why = "not all that its hosts wrote could be copied here, and steps would seem to be missing"
        name = short_path(run_dir)
        fix = f"make room here and copy the rest: seatrial attach {name}; if its hosts are gone for good, "
        fix += f"judge the logs that are here: seatrial judge {name / 'nodes'}"
        raise InputError.single("run-uncopied", str(run_dir), why, fix)
    if state != "abandoned" or not (run_dir / PLACES).exists():
        return ()
    fix = f"seatrial attach {short_path(run_dir)} copies it"
    why = f"it is no longer followed, and what its hosts have written since is not here: {fix}"
    return (Problem(severity="warning", code="run-abandoned", path=str(run_dir), why=why, fix=fix),)


def write_status(run_dir: Path, spec: RunSpec, state: str) -> None:
    """Writes the status of a run before its first process starts. Raises OSError."""
    write_json(run_dir / STATUS_FILE, new_status(spec.name, spec.step_limit, state))


def new_status(name: str, planned_steps: int, state: str) -> dict[str, Any]:
    """The status of a run that this process launches, and of which no process runs yet."""
    now = time.time()
    return {
        "v": 1, "run": name, "planned_steps": planned_steps, "launcher_pid": os.getpid(), "launcher_at": _here(),
        "started": now, "state": state, "reason": None, "heartbeat": now, "last_step": None, "processes": [],
    }  # fmt: skip


def _is_undecided(run_dir: Path, status: Mapping[str, Any]) -> bool:
    try:
        return read_text(run_dir / UNDECIDED) == str(status.get("launcher_pid"))
    except (OSError, ValueError):
        return False


def _is_followed(status: Mapping[str, Any], now: float) -> bool:
    heartbeat = status.get("heartbeat")
    if type(heartbeat) is int:
        heartbeat = float(heartbeat) if abs(heartbeat) < 2**63 else math.inf
    is_fresh = type(heartbeat) is float and abs(now - heartbeat) < HEARTBEAT_SECONDS
    is_gone = status.get("state") in BETWEEN and _is_gone(status)  # what runs already goes on for a while
    return (is_fresh and not is_gone) or launcher_pid(status) is not None


def _here() -> str | None:
    """A name of where this process's number is valid: this boot of this machine, and the PID namespace. Linux only."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _is_gone(status: Mapping[str, Any]) -> bool:
    """True if the launcher ran here and has ended; False as well where that cannot be known."""
    pid, at = status.get("launcher_pid"), status.get("launcher_at")
    if type(pid) is not int or not 0 < pid < 2**31 or at is None or at != _here():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # somebody else's
        pass
    return False
