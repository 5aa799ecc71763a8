"""`seatrial stop`: end a run, from anywhere."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from seatrial.commands.attach import run_is_over, target_and_engine
from seatrial.errors import InputError
from seatrial.launch.launcher import STOP
from seatrial.runs.directory import short_path
from seatrial.runs.files import touch, write_json
from seatrial.runs.status import BETWEEN, STATUS_FILE, read_status, starting_pid, state_of

POLL_SECONDS = 0.5


def stop(run_dir: Path, *, now: bool) -> str:
    """Asks a run to stop, wherever it is, and says so; one that is only starting, as soon as it has processes.

    Raises InputError for a run that is over, unless hosts are left that could not be reached.
    """
    status = _first_status(run_dir)
    if state_of(run_dir, status) == "ended":
        if not _left(status):
            raise run_is_over(run_dir, status, "there is nothing to stop")
    else:
        _ask_to_stop(run_dir, status)
    while (state := state_of(run_dir, status)) in BETWEEN:
        time.sleep(POLL_SECONDS)
        status = read_status(run_dir)
    if state == "ended" and not _left(status):
        return f"{short_path(run_dir)}: it is over ({status.get('reason')}), without a retry"
    there, _ = target_and_engine(run_dir)
    try:
        there.stop(run_dir, now=now)
    except FileNotFoundError as error:
        why = "none of its processes has been started"
        raise InputError.single("no-run", str(run_dir), why, "there is nothing to stop") from error
    if state == "ended":
        write_json(run_dir / STATUS_FILE, status | {"left": []})
    return f"{short_path(run_dir)}: its processes are asked to {'stop now' if now else 'checkpoint and stop'}"


def _first_status(run_dir: Path) -> dict[str, Any]:
    """The status of a run; of one that somebody here has only just called for, as soon as there is one."""
    while True:
        is_starting = not (run_dir / STATUS_FILE).exists() and starting_pid(run_dir) is not None
        try:
            return read_status(run_dir)
        except InputError:
            if not is_starting:
                raise
        time.sleep(POLL_SECONDS)


def _ask_to_stop(run_dir: Path, status: dict[str, Any]) -> None:
    """Leaves the request where its launcher looks for it. Raises OSError where it can be left nowhere else."""
    try:
        touch(run_dir / STOP, below=run_dir)
    except FileNotFoundError:
        return
    except OSError:  # a full disk: what runs can be asked where it runs
        if status.get("state") in BETWEEN:
            raise


def _left(status: dict[str, Any]) -> bool:
    """True if hosts do not know that the run is over."""
    left = status.get("left")
    return isinstance(left, list) and bool(left)
