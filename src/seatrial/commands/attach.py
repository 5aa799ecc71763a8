"""Coming back to a run that was started before: follow it again, stop it, read its logs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seatrial.commands.judge import judge_and_report
from seatrial.errors import InputError, LaunchError
from seatrial.launch.display import watched
from seatrial.launch.launcher import STOP
from seatrial.launch.targets import Target, target
from seatrial.runs.directory import ATTEMPTS, rank_logs, read_spec, short_path
from seatrial.runs.files import read_object, touch, write_json
from seatrial.runs.mirror import shortage
from seatrial.runs.status import BETWEEN, STATUS_FILE, launcher_pid, read_status, starting_pid, state_of

if TYPE_CHECKING:
    from seatrial.verdict import Verdict

POLL_SECONDS = 0.5
CHUNK_BYTES = 1 << 16


def attach(run_dir: Path) -> Verdict:
    """Follows a run on a cluster again, to its verdict. Raises InputError if somebody does so, or it is over."""
    is_there = (run_dir / STATUS_FILE).exists()
    status = read_status(run_dir) if is_there or starting_pid(run_dir) is None else {}
    if state_of(run_dir, status) == "ended":
        raise _over(run_dir, status, f"read it: seatrial judge {short_path(run_dir)}")
    if pid := launcher_pid(status) if is_there else starting_pid(run_dir):
        why, fix = f"process {pid} follows it already", "look there, or end that one first; the run goes on without it"
        raise InputError.single("run-followed", str(run_dir), why, fix)
    spec, _ = read_spec(run_dir)
    assert spec is not None  # only of logs that were judged there is none, and they have no status
    there, engine = _planned(run_dir)
    try:
        with watched(run_dir, spec, engine) as following:
            there.attach(run_dir, following, name=spec.name, planned_steps=spec.steps)
    except OSError as error:
        raise LaunchError(f"the run cannot be followed here: {shortage(error, run_dir)}") from error
    text, verdict = judge_and_report(run_dir)
    print(text, flush=True)
    return verdict


def stop(run_dir: Path, *, now: bool) -> str:
    """Tells a run to end, wherever it is, and says so; one that only begins, as soon as there is something to tell.

    Raises InputError for a run that is over, unless hosts are left that could not be told.
    """
    status = _first_status(run_dir)
    if state_of(run_dir, status) == "ended":
        if not _left(status):
            raise _over(run_dir, status, "there is nothing to stop")
    else:
        _ask_to_stop(run_dir, status)
    while (state := state_of(run_dir, status)) in BETWEEN:
        time.sleep(POLL_SECONDS)
        status = read_status(run_dir)
    if state == "ended" and not _left(status):
        return f"{short_path(run_dir)}: it is over ({status.get('reason')}), and is not tried again"
    there, _ = _planned(run_dir)
    try:
        there.stop(run_dir, now=now)
    except FileNotFoundError as error:
        why = "none of its processes has been started"
        raise InputError.single("no-run", str(run_dir), why, "there is nothing to stop") from error
    if state == "ended":
        write_json(run_dir / STATUS_FILE, status | {"left": []})
    return f"{short_path(run_dir)}: its processes are told to {'end at once' if now else 'save what they must and end'}"


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
    except OSError:  # a full disk: what runs can be told where it runs
        if status.get("state") in BETWEEN:
            raise


def logs(run_dir: Path, *, rank: int | None, follow: bool) -> Iterator[bytes]:
    """What the processes of a run have printed, one after the other; with `follow`, until the run is over.

    Raises InputError for a rank that the run has not, and where nothing was printed.
    """
    status = read_status(run_dir)
    if rank is not None:
        _require_rank(run_dir, rank)
    read: dict[int, int] = {}  # inode → bytes; a log keeps its inode where an attempt is set aside
    while True:
        is_over = not follow or _is_over(run_dir, status)
        for path in (*_set_aside(run_dir, read), *(log for own, log in rank_logs(run_dir) if rank in (None, own))):
            with suppress(FileNotFoundError):  # set aside just now
                yield from _news(path, read)
        if is_over:
            break
        time.sleep(POLL_SECONDS)
        status = read_status(run_dir)
    if not read:
        why = f"it holds no log of rank {rank}" if rank is not None else "it holds no logs"
        raise InputError.single("no-logs", str(run_dir), why, "name the directory that a run printed")


def _is_over(run_dir: Path, status: dict[str, Any]) -> bool:
    """Whether no more is to come: what has lost its launcher only goes on elsewhere."""
    state = state_of(run_dir, status)
    return state == "ended" or (state == "abandoned" and _plan(run_dir).get("on") == "local")


def _set_aside(run_dir: Path, read: dict[int, int]) -> list[Path]:
    """The logs of earlier attempts of which the beginning was read."""
    found = (log for attempt in sorted(run_dir.glob(f"{ATTEMPTS}/*")) for _, log in rank_logs(attempt))
    return [log for log in found if log.stat().st_ino in read]


def _news(path: Path, read: dict[int, int]) -> Iterator[bytes]:
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        begun = read.get(found.st_ino, 0)
        read[found.st_ino] = begun if begun <= found.st_size else 0  # somebody may have cut it off
        file.seek(read[found.st_ino])
        while chunk := file.read(CHUNK_BYTES):
            read[found.st_ino] += len(chunk)
            yield chunk


def _over(run_dir: Path, status: dict[str, Any], fix: str) -> InputError:
    return InputError.single("run-over", str(run_dir), f"this run is over ({status.get('reason')})", fix)


def _left(status: dict[str, Any]) -> bool:
    """Whether hosts could not be told that the run is over."""
    left = status.get("left")
    return isinstance(left, list) and bool(left)


def _plan(run_dir: Path) -> dict[str, Any]:
    """The plan of a run. Raises InputError where it cannot be read."""
    try:
        return read_object(run_dir / "plan.json")
    except (OSError, ValueError) as error:
        raise _unplanned(run_dir, f"cannot be read ({error})") from error


def _planned(run_dir: Path) -> tuple[Target, str]:
    """Where a run is, and what trains there. Raises InputError where its plan does not say."""
    plan = _plan(run_dir)
    on, engine = plan.get("on"), plan.get("engine")
    if not isinstance(on, str) or not isinstance(engine, str):
        raise _unplanned(run_dir, "does not say where it runs")
    return target(on), engine


def _require_rank(run_dir: Path, rank: int) -> None:
    """Raises InputError for a rank that is none of the plan's."""
    try:
        ranks = {int(process["rank"]) for process in _plan(run_dir)["processes"]}
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _unplanned(run_dir, "does not say which ranks there are") from error
    if rank not in ranks:
        why = f"this run has no rank {rank}, but {len(ranks)} of them, from 0"
        raise InputError.single("no-such-rank", "--rank", why, "name one that it has, or leave it away for all")


def _unplanned(run_dir: Path, what: str) -> InputError:
    return InputError.single("no-run", str(run_dir), f"its plan.json {what}", "name the directory that a run printed")
