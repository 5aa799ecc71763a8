"""Paths, folders and globs → the files that they name on this machine; FIFOs and circles of links hold nobody up."""

from __future__ import annotations

import errno
import glob
import json
import os
import stat
import sysconfig
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from seatrial.errors import reason_of
from seatrial.records import TABLES, DataError

STANDARD_LIBRARY = "stdlib:"

_FOLDER = "is a folder"
_OTHERS = "give other files"
_KINDS = (
    (stat.S_ISDIR, _FOLDER), (stat.S_ISFIFO, "is a FIFO"), (stat.S_ISSOCK, "is a socket"),
    (stat.S_ISCHR, "is a device"), (stat.S_ISBLK, "is a device"),
)  # fmt: skip


def find_files(patterns: Iterable[str], key: str = "data.paths", *, folders: bool = False) -> list[Path]:
    """The files that paths and globs name, sorted; with `folders`, the tables in these too.

    Raises DataError for a name of none.
    """
    files: set[Path] = set()
    for pattern in patterns:
        found = files_named(pattern, folders=folders)
        if not found:
            raise DataError(f"no file matches {pattern!r}", "give a path, folder or glob on this machine", key)
        files.update(found)
    return sorted(files)


def files_named(pattern: str, *, folders: bool) -> list[Path]:
    """The files of one path or glob, sorted; none where nothing is there.

    Raises DataError where what is there cannot be read, and there is nothing else.
    """
    files: set[Path] = set()
    refused: list[DataError] = []
    for path in named(pattern):
        why = why_no_file(path)
        if folders and why == _FOLDER:
            inside = _in_folder(path)
            files.update(inside)
            if not inside:
                fix = f"name the folder that holds them, or a glob, as {path / '**' / '*.jsonl'}"
                refused.append(DataError(f"{path}: there is no file in it that ends in {', '.join(TABLES)}", fix))
        elif why:
            refused.append(DataError(f"{path}: {why}", f"name files, as {path / '*'}" if why == _FOLDER else _OTHERS))
        else:
            files.add(path)
    if refused and not files:
        raise refused[0]
    return sorted(files)


def why_no_file(path: Path) -> str | None:
    """The reason that a path is no regular file that could be opened; "" if it is one, None if nothing is there.

    Any other file may block on opening, or never end.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        if getattr(error, "errno", errno.ENOENT) in (errno.ENOENT, errno.ENOTDIR):
            return None
        return f"cannot be read ({reason_of(error)})"
    return "" if stat.S_ISREG(mode) else next((words for is_one, words in _KINDS if is_one(mode)), "is no file")


def named(pattern: str) -> Iterator[Path]:
    """The paths that a path or glob names; `stdlib:` is the standard library's folder, ~ the home.

    What exists under just this name is no glob, whatever marks its name has.
    """
    if pattern.startswith(STANDARD_LIBRARY):
        pattern = str(Path(sysconfig.get_paths()["stdlib"]) / pattern.removeprefix(STANDARD_LIBRARY))
    try:
        path = Path(pattern).expanduser()
        is_glob = glob.has_magic(str(path)) and why_no_file(path) is None
        found = map(Path, _matches(path)) if is_glob else iter([path])
        yield from (each for each in found if why_no_file(each) is not None)
    except (OSError, RuntimeError, ValueError):  # the home of a user that there is none; no word is too odd
        return


def _matches(pattern: Path) -> Iterator[str]:
    """The matches of a glob, as `glob.glob` finds them; but links that lead back up are followed only once."""
    parts = [part for before, part in pairwise(("", *pattern.parts)) if (before, part) != ("**", "**")]
    if "**" not in parts:
        yield from glob.iglob(str(pattern))  # noqa: PTH207 - absolute patterns too
        return
    place = parts.index("**")
    after = parts[place + 1 :]
    for top in glob.iglob(str(Path(*parts[:place]))) if place else ["."]:  # noqa: PTH207
        for folder, files in _folders(top):
            if after:
                yield from _matches(Path(glob.escape(folder), *after))
            else:
                yield from (folder, *files)


def _folders(top: str) -> Iterator[tuple[str, list[str]]]:
    """A folder and those below it with their files, each once, whichever links lead to it; without hidden ones."""
    seen: set[tuple[int, int]] = set()
    for folder, inner, files in os.walk(top, followlinks=True):
        status = Path(folder).stat()
        if (status.st_dev, status.st_ino) in seen:
            inner.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        yield folder, [str(Path(folder, name)) for name in files if not name.startswith(".")]


def _in_folder(folder: Path) -> list[Path]:
    """The files that a folder of `save_to_disk` lists, else the tables that lie in it."""
    state = folder / "state.json"
    if why_no_file(state) == "":
        return _listed(folder, state)
    if why_no_file(folder / "dataset_dict.json") == "":
        raise DataError(f"{folder}: holds several splits", f"name the folder of one, as {folder / 'train'}")
    try:
        tables = sorted(path for path in folder.iterdir() if path.name.endswith(TABLES))
    except OSError as error:
        raise DataError(f"{folder}: cannot be read ({error.strerror})", "correct its permissions") from error
    for path in tables:
        if (why_not := why_no_file(path)) != "":
            raise DataError(f"{path}: {why_not or 'is a link to nothing'}", "remove it, or name the files to read")
    return tables


def _listed(folder: Path, state: Path) -> list[Path]:
    """The files that the `state.json` of a folder of `save_to_disk` lists."""
    try:
        names = [Path(entry["filename"]).name for entry in read_object(state)["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{state}: does not list data files as save_to_disk does", "save the data again") from error
    missing = [name for name in names if why_no_file(folder / name) != ""]
    if missing:
        why = f"{folder}: {missing[0]} is missing, which state.json lists"
        raise DataError(why, "copy or save the data again")
    return [folder / name for name in names]


def content_of(path: Path, key: str = "") -> bytes:
    """The bytes of a file. Raises DataError where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        why = f"{path}: cannot be read ({reason_of(error)})"
        raise DataError(why, "correct its permissions, or give another file", key) from error


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ValueError where there is none."""
    if why := why_no_file(path):
        raise ValueError(f"it {why}")
    try:
        data = json.loads(path.read_bytes())
    except (OSError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if not isinstance(data, dict):
        raise ValueError("no JSON object")
    return data
