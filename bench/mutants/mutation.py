"""Changes to a run or to its log: whether the run is still good, and else by which words an answer says so."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mutants import made_logs as made
from mutants.made_logs import Course, Family, Line

Truth = Literal["bad", "good", "either"]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A changed log: whether its run may pass, and by which words an answer names what is wrong."""

    lines: Sequence[Line]
    truth: Truth
    named: str = ""
    tail: bytes | None = None  # instead of a last line
    glue: str = "\n"
    second: Sequence[Line] | None = None  # another log, in a file of its own
    names: tuple[str, str] = ("node0.log", "node1.log")
    more: Mapping[str, Sequence[Line]] = field(default_factory=dict)  # further logs, by their names
    steps: int | None = None  # what the configuration asks for, if it is not what the family is made with
    culprits: frozenset[str] | None = None  # the places that may be blamed; None: whoever is blamed is not looked at


Mutation = Callable[[Family, Course, random.Random], Mutant]


def log_of(family: Family, course: Course) -> list[Line]:
    """The log of a course."""
    return made.lines_of(family, course)


def bad(family: Family, course: Course, named: str) -> Mutant:
    """The log of a course that must not pass."""
    return Mutant(lines=log_of(family, course), truth="bad", named=named)


def good(lines: Sequence[Line]) -> Mutant:
    """A log of a run that is good."""
    return Mutant(lines=lines, truth="good")


def middle(course: Course, rng: random.Random) -> int:
    """A step in the middle third."""
    return rng.randrange(course.steps // 3, 2 * course.steps // 3)


def changed(values: Sequence[float | None], changes: Mapping[int, float | None]) -> list[Any]:
    """The values, some of them replaced."""
    return [changes.get(index, value) for index, value in enumerate(values)]


def next_printed(family: Family, step: int, course: Course) -> int:
    """The next step that the family prints."""
    return min(course.steps - 1, -(-(step + 1) // family.every) * family.every - 1) if family.every > 1 else step
