"""Processes that are slower than the others, where several of them report how fast they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from seatrial.events import Step
from seatrial.metrics.interval import is_number
from seatrial.metrics.record import Record

SLOWER_BY = 0.05
FEWEST_STEPS = 5


class Clock(NamedTuple):
    """What a step's time is taken from: proportional to seconds, or in seconds.

    `origin` says so of any but the times that the log gives; "" for these.
    """

    time_of: Callable[[Step], float | None]
    in_seconds: bool
    origin: str


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A process whose median step time is above the median of all of them by the fraction `slower_by`.

    `step_seconds` is None where the times are only known to be proportional to what the log reports; `origin` says what
    they are taken from: "" for the times that the log gives.
    """

    process: int
    host: str
    step_seconds: float | None
    slower_by: float
    origin: str = ""


def find_stragglers(
    records: Sequence[Record], clocks: Sequence[Clock], first_step: int, last_step: int
) -> tuple[Straggler, ...]:
    """The slow ones among the processes by the first of the clocks that two of them have, the slowest first.

    Only the steps between these count.
    """
    by_clock = ((clock, _medians(records, clock, first_step, last_step)) for clock in clocks)
    clock, medians = next((found for found in by_clock if len(found[1]) > 1), (None, {}))
    if clock is None:
        return ()
    # The lower one of two in the middle: of two processes, the slow one is the straggler.
    typical = sorted(time for time, _ in medians.values())[(len(medians) - 1) // 2]
    found = [
        Straggler(
            process=process,
            host=host,
            step_seconds=time if clock.in_seconds else None,
            slower_by=time / typical - 1,
            origin=clock.origin,
        )
        for process, (time, host) in medians.items()
        if time > typical * (1 + SLOWER_BY)
    ]
    return tuple(sorted(found, key=lambda straggler: -straggler.slower_by))


def _medians(records: Sequence[Record], clock: Clock, first_step: int, last_step: int) -> dict[int, tuple[float, str]]:
    """Process → (median step time, host), of those that give enough times."""
    medians = {}
    for record in records:
        times = [clock.time_of(step) for step in record.steps if first_step <= step.step <= last_step]
        known = [time for time in times if time is not None and is_number(time) and time > 0]
        if len(known) >= FEWEST_STEPS:
            medians[record.process] = (median(known), record.started.host if record.started else "")
    return medians
