"""The exceptions, as a tree; each branch knows its exit code.

    SeatrialError
    ├── InputError        2   the user's text is wrong; carries every Problem found
    └── LaunchError       3   the run could not be started (preflight, infrastructure)

What becomes of a run that was started is no error of ours but a verdict, which has its own (`verdict.EXIT_CODES`).
A *finding* about a configuration is a `Problem`, not an exception: all of them are collected and shown in one go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A place in a file; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One finding about a configuration: what (code, path), where (mark), why, and how to fix it.

    `code` is a stable kebab-case name for scripts; `path` is the key in the user's own spelling, dotted from the root.
    An "error" blocks the chosen action, a "warning" does not, an "info" is only for information.
    """

    severity: Severity
    code: str
    path: str
    why: str
    fix: str
    mark: Mark | None = None

    def as_dict(self) -> dict[str, str | int | None]:
        """The finding as plain data: severity, code, path, file, line, column, why, fix."""
        place = vars(self.mark) if self.mark else dict.fromkeys(("file", "line", "column"))
        head = {"severity": self.severity, "code": self.code, "path": self.path}
        return {**head, **place, "why": self.why, "fix": self.fix}


def some(names: Sequence[str], most: int) -> str:
    """The first of some names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def reason_of(error: BaseException) -> str:
    """The reason for a failure, in words alone: without the number of the error and the name of its class."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    return str(error).partition("\n")[0] or "it does not have the form that it should have"


class SeatrialError(Exception):
    """Anything that Seatrial reports to its user instead of a traceback."""

    exit_code = 1


class InputError(SeatrialError):
    """The configuration, an override or an argument is wrong; `problems` holds every finding, warnings included."""

    exit_code = 2

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(f"{p.path}: {p.why}" for p in self.problems if p.severity == "error"))

    @classmethod
    def single(cls, code: str, path: str, why: str, fix: str, mark: Mark | None = None) -> InputError:
        """An error that consists of one problem."""
        return cls([Problem(severity="error", code=code, path=path, why=why, fix=fix, mark=mark)])


class LaunchError(SeatrialError):
    """The run could not be started; `reason` is what to record of it, where that is less than the message."""

    exit_code = 3

    def __init__(self, message: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message
