"""The time of a run: training, and what the rest was lost to; from its events alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from seatrial.events import Checkpoint, Eval, Event, RunStarted, Step

LOSSES = ("start", "compile", "data", "evaluation", "checkpoint", "restarts", "other")


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """Seconds of a run's record, from the start of its first process to its last event.

    `productive_seconds` were spent in steps that count, without their waiting for data. `lost_seconds` has the names of
    LOSSES: `checkpoint` is what the steps waited for saves, not what these took beside them; `restarts` are the steps
    that a later attempt did again, and the time between attempts; `other` is the rest.
    """

    wall_seconds: float
    productive_seconds: float
    lost_seconds: dict[str, float]

    @property
    def fraction(self) -> float:
        """The productive part of all time; nan without any time."""
        return self.productive_seconds / self.wall_seconds if self.wall_seconds > 0 else math.nan

    def line(self) -> str:
        """All of it in one line."""
        lost = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.lost_seconds.items() if seconds >= 0.05)
        return f"goodput: {self.fraction:.1%} of {self.wall_seconds:.1f} s; lost: {lost or 'nothing'}"


def measure_goodput(record: Iterable[Event]) -> Goodput | None:
    """The goodput of one process's events, all attempts of it; None where it never got as far as its first step."""
    attempts = _attempts(record)
    if not attempts:
        return None
    lost = dict.fromkeys(LOSSES, 0.0)
    productive, redone_from = 0.0, math.inf
    for attempt in reversed(attempts):
        steps = [event for event in attempt if isinstance(event, Step)]
        counted = [step for step in steps if step.step < redone_from]
        waiting = _total(counted, "data_seconds")
        productive += _total(counted) - waiting
        lost["data"] += waiting
        lost["restarts"] += _total(step for step in steps if step.step >= redone_from)
        lost["evaluation"] += _total(event for event in attempt if isinstance(event, Eval))
        lost["checkpoint"] += _saving(attempt, steps)
        redone_from = min([redone_from, *(step.step for step in steps)])
        phases = _phases(attempt)
        lost["compile"] += phases.pop("compile", 0.0)
        lost["start"] += sum(phases.values())
    for before, after in pairwise(attempts):
        lost["restarts"] += max(0.0, _began(after) - before[-1].wall_time)
    wall = attempts[-1][-1].wall_time - _began(attempts[0])
    lost["other"] = max(0.0, wall - productive - sum(lost.values()))
    return Goodput(wall_seconds=wall, productive_seconds=productive, lost_seconds=lost)


def _phases(attempt: list[Event]) -> dict[str, float]:
    """Seconds of each phase of an attempt's start."""
    assert isinstance(attempt[0], RunStarted)
    return {name: float(seconds) for name, seconds in attempt[0].facts.get("phases", {}).items()}


def _began(attempt: list[Event]) -> float:
    """When its process started, which is before it could say so."""
    return attempt[0].wall_time - sum(_phases(attempt).values())


def _attempts(record: Iterable[Event]) -> list[list[Event]]:
    """The events of each attempt, the first of which says that it has started."""
    attempts: list[list[Event]] = []
    for event in record:
        if isinstance(event, RunStarted):
            attempts.append([])
        if attempts:
            attempts[-1].append(event)
    return attempts


def _total(events: Iterable[Step | Eval], field: str = "seconds") -> float:
    return sum(getattr(event, field) or 0.0 for event in events)


def _saving(attempt: Sequence[Event], steps: Sequence[Step]) -> float:
    """The time between the steps of an attempt, or behind the last, where a checkpoint was saved."""
    saved = {event.step for event in attempt if isinstance(event, Checkpoint) and event.action == "save"}
    evaluations = {event.step: event.seconds or 0.0 for event in attempt if isinstance(event, Eval)}
    pauses = [(a.step + 1, b.monotonic_time - a.monotonic_time - (b.seconds or 0.0)) for a, b in pairwise(steps)]
    pauses += [(step.step + 1, attempt[-1].monotonic_time - step.monotonic_time) for step in steps[-1:]]
    return sum(max(0.0, pause - evaluations.get(done, 0.0)) for done, pause in pauses if done in saved)
