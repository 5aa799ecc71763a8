"""Logs from other trainers → events: `parse` reads one stream of lines, `read` the files of a run.

What a log does not give is not reported: never 0, never guessed.

A *family* is all programs whose logs are spelled alike. A new one takes three things and no other change:

1. `families/NAME.py` with `FAMILY = Family(…)`, the table of its spellings; `grammar` explains each field, and
   `families/nanotron.py` is the shortest example. Lines that no table can describe have a `custom_reader`.
2. Its line in the list in `families/__init__.py`, and in the table of `docs/reference/logs.md`.
3. `tests/logs/NAME/CASE/log.txt`, a few lines for each version of the program. `make golden` writes what they are read
   as to `expected.json` beside it; review that and keep it.

A new kind of *fault* is a row of `fault_kinds.toml` with rows in `fault_patterns.toml`, and a case in
`tests/logs/faults`. One that its printer spreads over several lines has a row in `messages` as well, and a whole run
that it broke is a case in `tests/verdict/blame`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from seatrial.events import Event
from seatrial.logs import guess, metrics_file
from seatrial.logs.families import FAMILIES, transformers
from seatrial.logs.files import read_files
from seatrial.logs.folders import find, rotated, why_not_read
from seatrial.logs.grammar import Family
from seatrial.logs.lines import is_read_once, read_lines
from seatrial.logs.one_file import Spellings, read_file
from seatrial.logs.pattern_file import read_pattern
from seatrial.logs.reader import read_events
from seatrial.logs.runs import FolderOfLogs, RunOfLogs, runs_of
from seatrial.recording import Recording, singly

__all__ = [
    "AUTO", "FAMILIES", "NAMES", "FolderOfLogs", "RunOfLogs", "Spellings", "is_read_once", "parse", "parse_file",
    "read", "read_lines", "read_pattern", "read_runs", "why_not_read",
]  # fmt: skip

AUTO = "auto"
NAMES = (AUTO, *FAMILIES, metrics_file.NAME, guess.NAME)  # what `family` may be, besides a pattern of one's own


def parse(lines: Iterable[str], family: str = AUTO, *, process: int = 0, source: str = "") -> Iterator[Event]:
    """The events of the lines of one log of text, as they come; nothing of it is kept.

    `family` names the spelling; "auto" tries every family on every line, so a log may mix them. `process` is who
    printed the lines that name no rank, `source` the log's name for people. Raises KeyError for an unknown family.
    """
    return read_events(lines, _families(family), process=process, source=source)


def parse_file(path: Path, family: str | Spellings = AUTO) -> Iterator[Event]:
    """The events of one file or, for "-", of the standard input, as they come: a log or a metrics file.

    "auto" also recognises metrics files, and guesses the spelling of a log that no family knows; "metrics" and
    "generic" ask for one of these. Raises OSError, and KeyError for an unknown family.
    """
    return singly(read_file(path, spellings(family), process=0))


def _families(name: str) -> Sequence[Family]:
    return tuple(FAMILIES.values()) if name == AUTO else (FAMILIES[name],)


def spellings(family: str | Spellings) -> Spellings:
    """The spellings to try for files of this family. Raises KeyError for an unknown one."""
    if isinstance(family, Spellings):
        return family
    if family == guess.NAME:
        return Spellings(families=(), confirmed=True)
    if family == metrics_file.NAME:
        return Spellings(families=(), guessed=False)
    has_files = family in (AUTO, transformers.FAMILY.name)  # trainer_state.json
    return Spellings(families=tuple(_families(family)), metrics_files=has_files, guessed=family == AUTO)


def read(paths: Sequence[Path], family: str | Spellings = AUTO) -> Recording:
    """The events of the files of one run, by time: one file per node or rank, or several attempts.

    A folder stands for the log files in it, "-" for the standard input. Raises OSError, InputError for logs of several
    runs, and KeyError for an unknown family.
    """
    folders = {path: find(path) for path in paths if path.is_dir()}
    files, more = rotated([file for path in paths for file in (folders[path].logs if path in folders else [path])])
    earlier = {log: pieces for found in folders.values() for log, pieces in found.earlier.items()}
    return read_files(files, replace(spellings(family), earlier={**earlier, **more}))


def read_runs(folder: Path, family: str | Spellings = AUTO, *, without: Sequence[Path] = ()) -> FolderOfLogs:
    """The runs of which a folder holds logs or metrics, with the events of each, and the files that are not among them.

    Folders in `without` are not looked into. Raises KeyError for an unknown family.
    """
    return runs_of(find(folder, without), spellings(family), folder)
