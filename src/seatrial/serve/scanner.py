"""The process that reads the run directories, for all readers of the page.

It goes through the folders again and again, and reads a run only if the size or the time of one of its files has
changed. Runs that go on are looked at twice a second, between two pieces of the way through the folders; so are those
that have just ended, by the time of their directory, which changes when a verdict is put there.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from seatrial.errors import InputError, reason_of
from seatrial.history.index import Index, folders_below, folders_in
from seatrial.history.summary import COLUMNS, IndexRow, stamp, summarise
from seatrial.runs.directory import is_run
from seatrial.runs.files import confine
from seatrial.serve.following import Following

LOOK_SECONDS = 0.4  # between two looks at the runs that go on
SWEEP_SECONDS = 10.0  # from the start of one way through the folders to the next, at the least
SHARE = 0.1  # of the time that this way may take, on a slow file system
PIECE_SECONDS = 0.2  # of it, between two looks
STILL_SECONDS = 3.0  # a directory that has changed since may change again within the same tick of its clock
MEMORY_BYTES = 4 << 30  # a file that needs more makes its run unreadable
ENDING_SECONDS = 600.0  # for which a verdict is looked for twice a second
RUNNING, UNREADABLE = "running", "unreadable"

Message = dict[str, Any]


class Scanner:
    """The run directories below the roots, as far as they are known. `known` are rows that may be old, by directory."""

    def __init__(self, roots: Sequence[Path], known: Mapping[str, IndexRow]) -> None:
        self._roots = roots
        self._rows = dict(known)
        self._times: dict[str, int] = {}  # of the directories, in ns, as of when they were read
        self._parents: dict[str, int] = {}  # the folders of runs, likewise
        self._live: dict[str, Following] = {}
        self._ending: dict[str, float] = {}  # runs that have ended and have no verdict yet; how long to look for it
        self._news = _News()
        self._for_index = _News()
        self._sweep: Iterator[None] | None = None
        self._sweep_began = self._sweep_seconds = self._next_sweep = 0.0
        self._is_whole = False

    def turn(self) -> Message:
        """A look at the runs that go on and a piece of the way through the folders: what has changed since the last."""
        self._look()
        self._go_on()
        news, self._news = self._news, _News()
        return {
            "rows": list(news.rows.values()), "gone": news.gone, "live": list(news.live.values()),
            "is_whole": self._is_whole,
        }  # fmt: skip

    @property
    def is_idle(self) -> bool:
        """True if the folders have all been gone through for now."""
        return self._sweep is None

    def to_remember(self) -> tuple[list[IndexRow], list[str]]:
        """(rows, directories that are gone) for the index; nothing in the middle of a way through the folders."""
        if self._sweep is not None:
            return [], []
        found, self._for_index = self._for_index, _News()
        return list(found.rows.values()), found.gone

    # --- twice a second ---

    def _look(self) -> None:
        now = time.time()
        for folder in [path for path, at in self._parents.items() if _time_of(path) != at]:
            self._list(folder)
        for directory, until in list(self._ending.items()):
            if now > until or directory in self._live:
                self._ending.pop(directory)
            elif _time_of(directory) != self._times.get(directory):
                self._read(directory)
        for directory, following in list(self._live.items()):
            figures = _figures(following, now)
            if figures is None:
                self._live.pop(directory)
                self._news.live.pop(directory, None)
                self._ending[directory] = now + ENDING_SECONDS
                self._read(directory)
            else:
                self._news.live[directory] = figures

    def _list(self, folder: str) -> None:
        """Reads the new run directories in a folder that has changed."""
        self._parents[folder] = _settled(folder)
        for path in folders_in(folder):
            if path not in self._rows and is_run(Path(path)):
                self._check(path)

    # --- the way through the folders ---

    def _go_on(self) -> None:
        started = time.monotonic()
        if self._sweep is None:
            if started < self._next_sweep:
                return
            self._sweep, self._sweep_began, self._sweep_seconds = self._way(), started, 0.0
        for _ in self._sweep:
            if time.monotonic() - started > PIECE_SECONDS:
                self._sweep_seconds += time.monotonic() - started
                return
        self._sweep_seconds += time.monotonic() - started
        self._next_sweep = max(self._sweep_began + SWEEP_SECONDS, time.monotonic() + self._sweep_seconds / SHARE)
        self._sweep, self._is_whole = None, True

    def _way(self) -> Iterator[None]:
        """Through all folders, run by run; at the end, those that were not met may be gone."""
        met: set[str] = set()
        for folder, has_run in chain.from_iterable(folders_below(str(root)) for root in self._roots):
            if has_run:
                self._check(folder)
                met.add(folder)
            yield
        for directory in self._rows.keys() - met:
            yield
            if not is_run(Path(directory)):
                self._forget(directory)

    def _check(self, directory: str) -> None:
        """Reads a run directory if a file of it has changed, also if it was overwritten where it lies."""
        self._parents.setdefault(str(Path(directory).parent), 0)
        if directory in self._live:
            return
        row = self._rows.get(directory)
        if row is None or row["outcome"] == RUNNING or row["stamp"] != stamp(Path(directory)):
            self._read(directory)

    def _read(self, directory: str) -> None:
        self._times[directory] = _settled(directory)
        row = _row(directory)
        if row["outcome"] == RUNNING:
            self._live.setdefault(directory, Following(Path(directory)))
        if self._rows.get(directory) != row:
            self._rows[directory] = self._news.rows[directory] = self._for_index.rows[directory] = row

    def _forget(self, directory: str) -> None:
        for kept in (self._rows, self._times, self._live, self._ending):
            kept.pop(directory, None)
        for news in (self._news, self._for_index):
            news.rows.pop(directory, None)
            news.live.pop(directory, None)
            news.gone.append(directory)


@dataclass
class _News:
    """Rows and figures that are new, by directory, and directories that are gone."""

    rows: dict[str, IndexRow] = field(default_factory=dict)
    live: dict[str, dict[str, Any]] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)


def _figures(following: Following, now: float) -> dict[str, Any] | None:
    try:
        found = following.look(now)
    except Exception:  # no run, however damaged, may end the looking at others
        return None
    return found.as_dict() if found else None


def _row(directory: str) -> IndexRow:
    try:
        return summarise(Path(directory))
    except Exception as error:  # likewise; too large for this process's memory, for one
        why = "too large to be read here" if isinstance(error, MemoryError) else reason_of(error)
        row: IndexRow = dict.fromkeys(COLUMNS)
        known = {"directory": directory, "name": Path(directory).name, "stamp": stamp(Path(directory))}
        return row | known | {"outcome": UNREADABLE, "note": why}


def _time_of(path: str) -> int | None:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return None


def _settled(path: str) -> int:
    """The time of a folder's last change; 0 if that is so recent that another one may have the same time."""
    at = _time_of(path) or 0
    return at if at / 1e9 < time.time() - STILL_SECONDS else 0


def scan(roots: Sequence[Path], index: Path, pipe: Connection) -> None:
    """Sends what changes below the roots until the other end of the pipe is closed: JSON objects, as of `turn`.

    Rows of an index are sent at once, before they are compared with the directories; what is read goes into it.
    """
    limit_memory(MEMORY_BYTES)
    confine(roots)
    known = {str(row["directory"]): row for root in roots for row in _remembered(index, root)}
    with suppress(BrokenPipeError, ConnectionResetError, EOFError):
        _send(pipe, {"rows": list(known.values()), "gone": [], "live": [], "is_whole": False})
        scanner, was_whole = Scanner(roots, known), False
        while True:
            message = scanner.turn()
            if message["rows"] or message["gone"] or message["live"] or message["is_whole"] != was_whole:
                _send(pipe, message)
            was_whole = message["is_whole"]
            _remember(index, *scanner.to_remember())
            if pipe.poll(LOOK_SECONDS if scanner.is_idle else 0):
                return


def _send(pipe: Connection, message: Message) -> None:
    pipe.send_bytes(json.dumps(message).encode())


def _remembered(path: Path, root: Path) -> list[IndexRow]:
    """The rows of the index; none where it cannot be used."""
    try:
        with Index(path) as index:
            return index.rows(root)
    except InputError:
        return []


def _remember(path: Path, rows: Sequence[IndexRow], gone: Sequence[str]) -> None:
    if rows or gone:
        with suppress(InputError), Index(path) as index:  # without it, the next start takes longer
            index.remember(rows, gone)


def limit_memory(most: int) -> None:
    """Makes this process fail with MemoryError rather than take the machine's memory."""
    with suppress(ValueError, OSError):
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
