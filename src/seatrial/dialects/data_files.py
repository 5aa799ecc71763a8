"""Whether the files that a run is to learn from are there; of what a configuration names, only these are looked for."""

from __future__ import annotations

import glob
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from seatrial.errors import Problem
from seatrial.spec import Resolved

STANDARD_LIBRARY = "stdlib:"


def missing(resolved: Resolved) -> Iterator[Problem]:
    """An error for every pattern of `data.paths` that names no file here, by the rules of the trainer."""
    data = resolved.spec.data if resolved.spec else None
    for index, pattern in enumerate(data.paths if data and data.kind == "text" else ()):
        if not names_a_file(pattern):
            origin = resolved.origin(f"data.paths.{index}")
            yield Problem(
                severity="error", code="no-such-file", path=origin.key, mark=origin.mark,
                why=f"no file on this machine matches {pattern!r}",
                fix="correct the path or glob; stdlib:*.py names files that every machine with Python has",
            )  # fmt: skip


def names_a_file(pattern: str) -> bool:
    """Whether a path or glob names at least one file; `stdlib:` is the standard library's folder, ~ the home."""
    if pattern.startswith(STANDARD_LIBRARY):
        pattern = str(Path(sysconfig.get_paths()["stdlib"]) / pattern.removeprefix(STANDARD_LIBRARY))
    try:
        names = glob.iglob(str(Path(pattern).expanduser()), recursive=True)  # noqa: PTH207 - absolute patterns too
        return any(Path(name).is_file() for name in names)
    except (OSError, RuntimeError):  # a folder that may not be read; the home of a user that there is none
        return False
