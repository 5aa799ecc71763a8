"""Processes that are slower than the others, where several of them report their times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from seatrial.metrics.interval import is_number
from seatrial.metrics.record import Record

SLOWER_BY = 0.05
FEWEST_STEPS = 5


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A process whose median step time is above the median of all of them by the fraction `slower_by`."""

    process: int
    host: str
    step_seconds: float
    slower_by: float


def find_stragglers(records: Sequence[Record], first_step: int, last_step: int) -> tuple[Straggler, ...]:
    """The slow ones among the processes that report times between these steps, the slowest first."""
    medians = {}
    for record in records:
        own = [s.seconds for s in record.steps if s.seconds is not None and first_step <= s.step <= last_step]
        seconds = [value for value in own if is_number(value) and value > 0]
        if len(seconds) >= FEWEST_STEPS:
            medians[record.process] = (median(seconds), record.started.host if record.started else "")
    if len(medians) < 2:
        return ()
    # The lower one of two in the middle: of two processes, the slow one is the straggler.
    typical = sorted(seconds for seconds, _ in medians.values())[(len(medians) - 1) // 2]
    found = [
        Straggler(process=process, host=host, step_seconds=seconds, slower_by=seconds / typical - 1)
        for process, (seconds, host) in medians.items()
        if seconds > typical * (1 + SLOWER_BY)
    ]
    return tuple(sorted(found, key=lambda straggler: -straggler.step_seconds))
