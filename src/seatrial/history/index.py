"""The index: one SQLite table over run directories, which can be thrown away and made again.

It lies in the user's data directory and not beside the runs: these are often on a shared file system, where SQLite's
locks cannot be trusted, or belong to somebody else. Any number of processes may use it at once; what is read from a
directory is read outside of any lock, and written in one transaction.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seatrial.errors import InputError, reason_of
from seatrial.history.summary import COLUMNS, IndexRow, Value, stamp, summarise
from seatrial.runs.directory import is_run

APPLICATION_ID = 0x53454154  # "SEAT": whose file it is
VERSION = 5  # of the table; another one is rebuilt
BUSY_SECONDS = 30.0
MOST_LEVELS = 6  # below a root, so that a root of "/" ends

_MOVE_AWAY = "move the file away and run `seatrial history` again: the index is rebuilt from the run directories"
_SOMEWHERE_ELSE = "make it writable, or let XDG_DATA_HOME name a folder that is"
# What SQLite or the system says → what helps.
_FIXES = (
    ("locked", "another process has been writing to it for long: repeat this when it has ended"),
    ("unable to open", _SOMEWHERE_ELSE),
    ("readonly", _SOMEWHERE_ELSE),
    ("Permission", _SOMEWHERE_ELSE),
    ("exists", _SOMEWHERE_ELSE),
    ("Not a directory", _SOMEWHERE_ELSE),
    ("No such file", _SOMEWHERE_ELSE),
    ("full", "make room on that disk"),
)

_MAKE = f"CREATE TABLE runs (directory BLOB PRIMARY KEY, {', '.join(COLUMNS[1:])})"  # no types: a value stays as it is
_PUT = f"INSERT OR REPLACE INTO runs ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The run directories below a root that were read, new or changed since the last time, and those that are gone."""

    read: tuple[str, ...]
    gone: tuple[str, ...]


def default_path() -> Path:
    """The path of the user's index."""
    from platformdirs import user_data_path  # late: only who looks at the history pays for it

    return user_data_path("seatrial", appauthor=False) / "history.sqlite"


class Index:
    """The index in one file, opened for a while: `with Index(path) as index`.

    Raises InputError where the file is not an index or cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._as_input_error():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
            self._database.row_factory = sqlite3.Row
            try:
                self._prepare()
            except BaseException:
                self._database.close()
                raise

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def refresh(self, root: Path, *, rebuild: bool = False, levels: int = MOST_LEVELS) -> Changes:
        """Brings the rows up to `levels` below a root up to date with its directories.

        `rebuild` reads every one of them again.
        """
        root = root.resolve()
        before = {str(row["directory"]): row for row in self.rows(root)}
        known = {} if rebuild else before
        found = [folder for folder, has_run in folders_below(str(root), levels) if has_run]
        fresh = [
            summarise(Path(path))
            for path in found
            if path not in known or known[path]["outcome"] == "running" or known[path]["stamp"] != stamp(Path(path))
        ]
        gone = sorted(path for path in before.keys() - set(found) if not is_run(Path(path)))
        self.remember(fresh, gone)
        return Changes(read=tuple(str(row["directory"]) for row in fresh), gone=tuple(gone))

    def remember(self, rows: Iterable[IndexRow], gone: Iterable[str] = ()) -> None:
        """Keeps rows that were read of run directories, in the place of older ones; forgets those that are gone."""
        with self._as_input_error(), self._transaction():
            self._database.executemany(_PUT, [_values(row) for row in rows])
            self._database.executemany("DELETE FROM runs WHERE directory = ?", [(os.fsencode(path),) for path in gone])

    def rows(self, root: Path | None = None) -> list[IndexRow]:
        """Every row, or those below a root; the newest first."""
        where, values = "", list[Any]()
        if root is not None:
            itself = os.fsencode(root.resolve())
            below = itself.rstrip(b"/") + b"/"
            where, values = "WHERE directory = ? OR substr(directory, 1, ?) = ?", [itself, len(below), below]
        with self._as_input_error():
            order = "ORDER BY started_at IS NULL, started_at DESC, directory"
            found = self._database.execute(f"SELECT * FROM runs {where} {order}", values).fetchall()
        return [_row(row) for row in found]

    def _prepare(self) -> None:
        """Makes the table where the file is new or of another version; refuses a file that is not ours."""
        with self._transaction():
            tables = {str(row[0]) for row in self._database.execute("SELECT name FROM sqlite_master")}
            owner = self._value("PRAGMA application_id")
            if tables and owner != APPLICATION_ID:
                raise self._unusable("it is another program's database")
            if self._value("PRAGMA user_version") != VERSION or "runs" not in tables:
                self._database.execute("DROP TABLE IF EXISTS runs")
                self._database.execute(_MAKE)
                self._database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                self._database.execute(f"PRAGMA user_version = {VERSION}")

    def _value(self, query: str) -> Value:
        value: Value = self._database.execute(query).fetchone()[0]
        return value

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    @contextmanager
    def _as_input_error(self) -> Iterator[None]:
        """Turns any error of the file into one InputError."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise self._unusable(reason_of(error)) from error

    def _unusable(self, why: str) -> InputError:
        fix = next((fix for words, fix in _FIXES if words in why), _MOVE_AWAY)
        return InputError.single("history-index", str(self._path), f"the index of runs cannot be used: {why}", fix)


def _values(row: IndexRow) -> list[Any]:
    """The row for the database; a directory as its bytes, because its name need not be text."""
    return [os.fsencode(str(row[column])) if column == "directory" else row[column] for column in COLUMNS]


def _row(row: sqlite3.Row) -> IndexRow:
    return {column: os.fsdecode(row[column]) if column == "directory" else row[column] for column in COLUMNS}


def folders_below(root: str, levels: int = MOST_LEVELS) -> Iterator[tuple[str, bool]]:
    """A root and the folders below it, and whether each is a run directory; these are not looked into."""
    waiting = [(root, 0)]
    while waiting:
        folder, level = waiting.pop()
        has_run = is_run(Path(folder))
        yield folder, has_run
        if not has_run and level < levels:
            waiting += [(path, level + 1) for path in folders_in(folder)]


def folders_in(folder: str) -> list[str]:
    """The folders in a folder, without hidden ones and links."""
    try:
        with os.scandir(folder) as entries:
            return [e.path for e in entries if not e.name.startswith(".") and e.is_dir(follow_symlinks=False)]
    except OSError:
        return []  # not ours to look into, or gone meanwhile
