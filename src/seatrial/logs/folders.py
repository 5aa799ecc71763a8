"""Finds what a folder holds of runs: logs, those that were rotated as one, and metrics files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from seatrial.logs.lines import ARCHIVE, COMPRESSED, why_no_text

_LOGS = {".log", ".out", ".txt", ".err", ".stdout", ".stderr", ".gz", ""}
_METRICS = {".jsonl", ".ndjson", ".csv", ".tsv"}
_STATE = "trainer_state.json"
_TEXT = r"\.(?:log|out|txt|err|stdout|stderr)"
# What log writers add to a name: train.log.1, train.log-20261103, train.log.2026-11-03_14; and to the output of a job.
_ROTATED = re.compile(
    rf"(?P<base>.+{_TEXT})(?:\.(?P<number>\d{{1,4}})|[-._](?P<date>\d{{4}}-?\d\d-?\d\d(?:[-_T]?[\d-]{{1,9}})?))$",
    re.IGNORECASE,
)
# Of PBS and Grid Engine: train.o4711; and of a rank: out.3.
_OF_PROCESS = re.compile(r"\.[oe]\d+(?:[.-]\d+)?$|^(?:log|out|err|output|stdout|stderr)\.\d+$")
# What may tell of a run and is not read, by its name, and why; others say so by their first bytes.
_NOT_READ = (
    (re.compile(r"(?:^|\.)tfevents\."), "TensorBoard's events are not read"),
    (re.compile(r"\.wandb$"), "the file of Weights & Biases is not read"),
    (re.compile(r"\.(?:tar(?:\.\w+)?|tgz|zip)$", re.IGNORECASE), ARCHIVE),
    (
        re.compile(rf"(?:{_TEXT}(?:[-._][\d-]+)?|\.jsonl|\.csv)\.(?:zst|xz|bz2|lz4)$", re.IGNORECASE),
        COMPRESSED,
    ),
)


@dataclass(frozen=True, kw_only=True)
class FolderFiles:
    """The files of a folder in the order of the numbers in their names.

    `earlier` are the older pieces of those logs that were rotated, the oldest first; they are not among the `logs`.
    `passed_over` and `unread` say of a file why it is not read, and why it cannot be.
    """

    logs: tuple[Path, ...]
    metrics: tuple[Path, ...]
    earlier: Mapping[Path, tuple[Path, ...]]
    passed_over: Mapping[Path, str]
    unread: Mapping[Path, str]


def find(folder: Path, without: Sequence[Path] = ()) -> FolderFiles:
    """The files of a folder and its subfolders, except those in `without` and hidden ones."""
    unread: dict[Path, str] = {}
    files = sorted(_files(folder, set(without), unread), key=_natural)
    passed = {path: why for path in files if (why := _why_by_name(path))}
    candidates = [path for path in files if path not in passed and (is_log(path) or is_metrics(path))]
    passed |= {path: why for path in candidates if (why := why_no_text(path))}
    passed |= {path: f"it is the same file as {other.relative_to(folder)}" for path, other in _links(candidates)}
    kept = [path for path in candidates if path not in passed]
    logs, earlier = rotated([path for path in kept if is_log(path)])
    metrics = tuple(path for path in kept if is_metrics(path))
    return FolderFiles(logs=tuple(logs), metrics=metrics, earlier=earlier, passed_over=passed, unread=unread)


def _files(folder: Path, without: set[Path], unread: dict[Path, str]) -> Iterator[Path]:
    def refused(error: OSError) -> None:
        unread[Path(error.filename)] = f"its files cannot be listed: {error.strerror}"

    for above, folders, names in os.walk(folder, onerror=refused):
        here = Path(above)
        folders[:] = [name for name in folders if not name.startswith(".") and here / name not in without]
        try:
            (here / "..").stat()
        except OSError as error:  # of a folder that may be listed, and not be entered
            unread[here] = f"its files cannot be read: {error.strerror}"
            folders.clear()
            continue
        for path in (here / name for name in names if not name.startswith(".") and here not in without):
            if not (why := _why_gone(path)):
                yield path
            elif path.is_symlink() and (is_log(path) or is_metrics(path)):
                unread[path] = why


def _why_gone(path: Path) -> str:
    """The reason why there is no file behind a name, which may be that of a link; "" where there is one."""
    try:
        return "" if path.is_file() else "it is a link to a file that is not there"
    except OSError as error:
        return f"it is a link to a file that cannot be read: {error.strerror}"


def _links(paths: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """The files that are others by another name, such as `latest.log`, a link to the newest log, and these others."""
    first: dict[tuple[int, int], Path] = {}
    for path in sorted(paths, key=Path.is_symlink):
        with suppress(OSError):  # it is gone
            about = path.stat()
            other = first.setdefault((about.st_dev, about.st_ino), path)
            if other != path:
                yield path, other


def why_not_read(path: Path) -> str:
    """The reason why a file is never read, by its name or its content; "" for any other, and for what is no file."""
    return (_why_by_name(path) or why_no_text(path)) if path.is_file() else ""


def _why_by_name(path: Path) -> str:
    return next((why for name, why in _NOT_READ if name.search(path.name)), "")


def _natural(path: Path) -> list[tuple[int, int, str]]:
    """Numbers by their value: 2.out before 10.out."""
    parts = re.split(r"(\d+)", str(path))
    return [(1, int(part), "") if part.isdecimal() and part.isascii() else (0, 0, part) for part in parts]


def is_metrics(path: Path) -> bool:
    """True if a file may be one of metrics, by its name."""
    return path.name == _STATE or Path(_unzipped(path.name)).suffix.lower() in _METRICS


def is_log(path: Path) -> bool:
    """True if a file may be a log, by its name."""
    name = _unzipped(path.name)
    if is_metrics(path):
        return False
    return path.suffix in _LOGS or bool(_ROTATED.match(name) or _OF_PROCESS.search(name))


def _unzipped(name: str) -> str:
    return name[:-3] if name.lower().endswith(".gz") else name


def rotated(paths: Sequence[Path]) -> tuple[list[Path], dict[Path, tuple[Path, ...]]]:
    """The logs without the pieces that a log writer has cut off, and these by the log that they belong to.

    Of numbers, the highest is the oldest. Numbers that begin at 0, or without the log itself, are none of a rotation.
    """
    pieces: dict[Path, list[tuple[tuple[int, str], Path]]] = {}
    for path in paths:
        match = _ROTATED.match(_unzipped(path.name))
        if match:
            order = (-int(match["number"]), "") if match["number"] else (0, match["date"])
            pieces.setdefault(path.with_name(match["base"]), []).append((order, path))
    there = set(paths)
    earlier = {
        base: tuple(path for _, path in sorted(own))
        for base, own in pieces.items()
        if base in there and all(order != (0, "") for order, _ in own)
    }
    cut_off = {path for own in earlier.values() for path in own}
    return [path for path in paths if path not in cut_off], earlier
