"""`seatrial logs`: what the processes of a run have printed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from seatrial.commands.attach import plan_of, without_plan
from seatrial.errors import InputError
from seatrial.runs.directory import ATTEMPTS, rank_logs
from seatrial.runs.status import read_status, state_of

POLL_SECONDS = 0.5
CHUNK_BYTES = 1 << 16


def logs(run_dir: Path, *, rank: int | None, follow: bool) -> Iterator[bytes]:
    """The output of a run's processes, one after the other; with `follow`, until the run is over.

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
                yield from _new_bytes(path, read)
        if is_over:
            break
        time.sleep(POLL_SECONDS)
        status = read_status(run_dir)
    if not read:
        why = f"it holds no log of rank {rank}" if rank is not None else "it holds no logs"
        raise InputError.single("no-logs", str(run_dir), why, "name the directory that a run printed")


def _is_over(run_dir: Path, status: dict[str, Any]) -> bool:
    """True if no more output will come; a run that lost its launcher may still continue on other hosts."""
    state = state_of(run_dir, status)
    return state == "ended" or (state == "abandoned" and plan_of(run_dir).get("on") == "local")


def _set_aside(run_dir: Path, read: dict[int, int]) -> list[Path]:
    """The logs of earlier attempts of which the beginning was read."""
    found = (log for attempt in sorted(run_dir.glob(f"{ATTEMPTS}/*")) for _, log in rank_logs(attempt))
    return [log for log in found if log.stat().st_ino in read]


def _new_bytes(path: Path, read: dict[int, int]) -> Iterator[bytes]:
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        begun = read.get(found.st_ino, 0)
        read[found.st_ino] = begun if begun <= found.st_size else 0  # somebody may have cut it off
        file.seek(read[found.st_ino])
        while chunk := file.read(CHUNK_BYTES):
            read[found.st_ino] += len(chunk)
            yield chunk


def _require_rank(run_dir: Path, rank: int) -> None:
    """Raises InputError for a rank that is none of the plan's."""
    try:
        ranks = {int(process["rank"]) for process in plan_of(run_dir)["processes"]}
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise without_plan(run_dir, "does not say which ranks there are") from error
    if rank not in ranks:
        why = f"this run has no rank {rank}, but {len(ranks)} of them, from 0"
        raise InputError.single("no-such-rank", "--rank", why, "name one that it has, or omit it for all")
