"""Finds the steps for which the log of one process gives two losses."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from seatrial.events import Event, RunStarted, Step
from seatrial.metrics.interval import last_digit

SAME = 1e-4  # relative; the difference that two ranks may have
ROUNDED = 1e-3  # relative; the most that one in the last digit may be
FEWEST_RETURNS = 2  # a line that is missing may look like one


@dataclass(frozen=True, kw_only=True)
class Contradiction:
    """A step and the losses that a log gives for it: two, or one that stands amid the steps of another run."""

    process: int
    source: str
    step: int
    losses: tuple[float, ...]


def find_contradictions(events: Iterable[Event]) -> tuple[Contradiction, ...]:
    """The steps for which the log of one process gives two losses: several ranks or runs have written into it.

    A copy of a line says the same loss. A program that starts again does its last steps once more, from a checkpoint
    on, and may find other losses: it goes back and then forward through every step. Where a step comes twice in a row,
    or the lines go back and the ones before go on afterwards, two of them write at the same time. Steps whose numbers
    are a progress bar's do not count, and no step that comes twice in a row where it is the description of one.
    """
    course = _Losses()
    inferred, source = False, ""
    for event in events:
        if isinstance(event, RunStarted):
            inferred, source = event.facts.get("steps_inferred") is True, str(event.facts.get("source", ""))
            course.is_redrawn = event.facts.get("steps_redrawn") is True
            if not event.facts.get("unannounced"):
                course.begin()
        elif isinstance(event, Step) and not inferred:
            course.take(event, source)
    if len(course.tangles) >= FEWEST_RETURNS:
        for redone in course.tangles:
            course.found = {**{each.step: each for each in redone}, **course.found}
    return tuple(found for _, found in sorted(course.found.items()))


@dataclass
class _Losses:
    """The losses of a log, line by line, since the last program that said that it began."""

    said: dict[int, float | None] = field(default_factory=dict)
    last: int | None = None
    broken: int | None = None  # the last step before the lines went back
    redone: list[Contradiction] = field(default_factory=list)  # since then
    is_redrawn: bool = False
    agrees: bool = False  # whether a loss since then was the same as before
    found: dict[int, Contradiction] = field(default_factory=dict)
    tangles: list[list[Contradiction]] = field(default_factory=list)

    def begin(self) -> None:
        self.said, self.last, self.broken = {}, None, None

    def take(self, step: Step, source: str) -> None:
        last, said = self.last, (self.said.get(step.step), step.loss)
        if said[0] is None:  # a family may spread a step over several lines
            self.said[step.step] = step.loss
        self.last = step.step
        if last is None or (step.step > last and self.broken is None):
            return
        losses = tuple(loss for loss in said if loss is not None)
        differs = len(losses) == 2 and not _same(*losses)
        contradiction = Contradiction(process=step.process, source=source, step=step.step, losses=losses)
        if step.step == last:
            if differs and not self.is_redrawn:
                self.found.setdefault(step.step, contradiction)
            return
        if step.step < last:
            self.broken, self.redone, self.agrees = last, [], False
        elif self.broken is not None:
            if last < self.broken < step.step and not self.agrees:
                self.tangles.append(self.redone)
            if step.step >= self.broken:
                self.broken = None
                return
        self.agrees |= len(losses) == 2 and not differs
        if differs or len(losses) < 2:
            self.redone.append(contradiction)


def _same(a: float, b: float) -> bool:
    """True if two losses are one but for the order of a sum and the last digit that is printed."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return a == b or (math.isnan(a) and math.isnan(b))
    size, digit = max(abs(a), abs(b)), min(last_digit(a), last_digit(b))
    return abs(a - b) <= max(SAME * size, min(1.001 * digit, ROUNDED * size))
