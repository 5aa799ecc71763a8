"""A look at the data of a configuration, as far as they lie on this machine, before anything starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from seatrial.errors import Problem
from seatrial.spec import Resolved, RunSpec

MOST_FILES = 20
MOST_BYTES = 64 << 20  # of an array of JSON, which is read as a whole


def data_problems(resolved: Resolved) -> Iterator[Problem]:
    """An error for each part of the data whose first records training could not read.

    Files that are not here may be on the hosts; those of other programs' pipelines are theirs.
    """
    spec = resolved.spec
    if spec is None or spec.data.kind not in ("records", "text"):
        return
    for key, paths in (("data.paths", spec.data.paths), ("data.validation_paths", spec.data.validation_paths)):
        if paths and (text := _unreadable(spec, paths)):
            why, _, fix = text.rpartition("; ")
            origin = resolved.origin(key)
            path, fix = origin.key or key, fix if why else "correct it, or give other files"
            why = why or text
            yield Problem(severity="error", code="data", path=path, why=why, fix=fix, mark=origin.mark)


def _unreadable(spec: RunSpec, paths: tuple[str, ...]) -> str:
    """What the first file that cannot be read raises, or nothing."""
    from seatrial.train.data.files import TABLES, find_files
    from seatrial.train.data.records import look

    try:
        files = find_files(paths, folders=spec.data.kind == "records")
    except (ValueError, OSError):
        return ""
    files = [path for path in files if spec.data.kind == "records" or path.name.endswith(TABLES)]
    for file in [path for path in files if not _is_long(path)][:MOST_FILES]:
        try:
            look(file, spec)
        except (ValueError, OSError) as error:
            return str(error)
    return ""


def _is_long(path: Path) -> bool:
    """Whether a file has to be read to its end, and is too large for that: it may be one array."""
    return path.name.endswith((".json", ".json.gz")) and path.stat().st_size > MOST_BYTES
