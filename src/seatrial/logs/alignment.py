"""One clock for the logs of several processes: by the steps that they did together, or by when their programs began.

A step of a synchronous training ends everywhere at once, so what its line says on one rank and on another is what their
clocks differ by: a zone, a clock that is wrong, one that drifts, or no clock at all but seconds that were added up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median_low
from typing import NamedTuple, TypeVar

import numpy as np

from seatrial.events import FIRST_CLOCK, Event, Fault
from seatrial.logs.clock import ZONES_APART
from seatrial.logs.lines import is_read_once, read_lines
from seatrial.logs.numbers import stated_time
from seatrial.recording import Numbers, Recording, Steps, median, shared

Moment = TypeVar("Moment", float, Numbers)

FEWEST_COMMON = 2  # steps, for clocks to be compared
LAST_COMMON = 9  # steps that say by how much clocks differ
FEWEST_FOR_DRIFT = 12
NOTHING = 1.0  # seconds; ranks print a step that much apart
HEAD_LINES, NEAR_START = 200, 200  # lines; characters of one
AT_START = 120.0  # seconds between the first lines of processes that were started together, but for their zones
# Of a date and time, from the last colon on: to look for a letter is fast.
_ZONE = re.compile(
    r":(?<=\d{4}-\d\d-\d\d[T ]\d\d:\d\d:)\d\d(?:[.,]\d{1,9})?(?P<sign>[+-])(?P<hours>\d\d):?(?P<minutes>\d\d)\b"
)


@dataclass(frozen=True, slots=True)
class Shift:
    """The part of a log's times that is taken off: `ahead` seconds at `at`, and `drift` of every second after that."""

    ahead: float = 0.0
    drift: float = 0.0
    at: float = 0.0

    def apply(self, moment: Moment) -> Moment:
        return moment - self.ahead - self.drift * (moment - self.at)


class StepClock(NamedTuple):
    """The steps of a process, each once and in their order, and when it did them by its own clock."""

    steps: Numbers
    times: Numbers


def clock_of(steps: Sequence[Steps]) -> StepClock:
    """The clock of a process by its steps; of several lines for one, the last counts."""
    numbers, times = (np.concatenate([each.values(name) for each in steps]) for name in ("step", "wall_time"))
    if (numbers[1:] > numbers[:-1]).all():
        return StepClock(numbers, times)
    found, last = np.unique(numbers[::-1], return_index=True)
    return StepClock(found, times[::-1][last])


def shifts(clocks: Mapping[int, StepClock]) -> dict[int, Shift]:
    """By process what its clock is ahead of that of most; only those that can be compared, by its times of steps.

    Of two processes, the first one's clock counts; so does that of the first one that has a clock.
    """
    timed = [process for process, clock in clocks.items() if clock.times.max() >= FIRST_CLOCK]
    if len(clocks) < 2:
        return {}
    reference = min(timed or clocks)
    known = {process: found for process in clocks if (found := _compared(clocks[process], clocks[reference]))}
    if len(known) < 2:
        return {}
    by_clock = [known[process].ahead for process in known if process in timed] or [0.0]
    usual = median_low(by_clock) if len(by_clock) > 2 else 0.0
    return {process: replace(shift, ahead=_of_note(shift.ahead - usual)) for process, shift in known.items()}


def _of_note(seconds: float) -> float:
    return seconds if abs(seconds) > NOTHING else 0.0


def _compared(own: StepClock, reference: StepClock) -> Shift | None:
    here, there = shared(own.steps, reference.steps)
    if len(here) < FEWEST_COMMON:
        return None
    times = own.times[here]
    apart = times - reference.times[there]
    last = slice(-LAST_COMMON, None)
    return Shift(median(apart[last]), _drift(times, apart), median(times[last]))


def _drift(times: Numbers, apart: Numbers) -> float:
    """The seconds that a clock gains in each second, from its first steps to its last; 0 if negligible."""
    third = len(times) // 3
    if len(times) < FEWEST_FOR_DRIFT:
        return 0.0
    begin, end = median(apart[:third]), median(apart[-third:])
    seconds = median(times[-third:]) - median(times[:third])
    return (end - begin) / seconds if seconds > 0 and abs(end - begin) > NOTHING else 0.0


def head_of(path: Path) -> list[str]:
    """The first lines of a log; none of the standard input and other pipes, which can be read but once."""
    return [] if is_read_once(path) else list(islice(read_lines(path), HEAD_LINES))


def zone_of(head: Sequence[str]) -> float:
    """The seconds by which the times at the head of a log are ahead of UTC, as they say themselves; else 0."""
    found = _ZONE.search("\n".join(line[:NEAR_START] for line in head))
    if found is None:
        return 0.0
    seconds = 3600.0 * int(found["hours"]) + 60.0 * int(found["minutes"])
    return -seconds if found["sign"] == "-" else seconds


def begun_at(head: Sequence[str]) -> float | None:
    """The first time that the head of a log states; None where that is no moment of a known year."""
    first = next((time for line in head if (time := stated_time(line)) is not None), None)
    return first if first is None or first >= FIRST_CLOCK else None


def zone_apart(begun: float | None, others: Iterable[float | None]) -> float | None:
    """By how many quarters of an hour a log began after another, if nothing else tells them apart; in seconds."""
    known = [other for other in others if other is not None]
    if begun is None or not known:
        return None
    apart = begun - min(known, key=lambda other: abs(begun - other))
    whole = round(apart / ZONES_APART) * ZONES_APART
    return whole if abs(apart - whole) < AT_START else None


def moved(events: Recording, shift: Shift) -> Recording:
    """The events on the clock of the others; seconds that were only added up are moved as well."""
    if shift == Shift():
        return events

    def change(_: int, event: Event) -> Event:
        at = shift.apply(event.wall_time)
        return replace(event, wall_time=at, monotonic_time=at) if event.wall_time else event

    return events.changed(change, shift.apply)


def after_steps(events: Recording) -> Recording:
    """The events; a fault whose line gives no time of its own says after which step it came."""
    if not any(isinstance(event, Fault) for event in events.others):
        return events
    times = events.times
    steps = events.all_steps

    def change(place: int, event: Event) -> Event:
        if not isinstance(event, Fault) or event.wall_time != (times[place - 1] if place else 0.0):
            return event
        before = int(np.searchsorted(steps.places, place))
        after = steps.some(slice(before - 1, before)).numbers[0] if before else -1
        return replace(event, facts={**event.facts, "after": after})

    return events.changed(change)


def clocked(events: Recording) -> Recording:
    """The events of a log whose clock was compared by its steps.

    Where these have no times, but seconds that were added up, nothing is known of the clock of a fault that has one.
    """
    is_timed = np.any(events.all_steps.values("wall_time") >= FIRST_CLOCK)
    return events if is_timed else marked(events, "own", since=FIRST_CLOCK)


def marked(events: Recording, order: str, *, since: float = -math.inf) -> Recording:
    """The events, with the faults saying that their order among those of other logs is not known for certain."""

    def change(_: int, event: Event) -> Event:
        if not isinstance(event, Fault) or event.wall_time < since:
            return event
        return replace(event, facts={**event.facts, "order": order})

    return events.changed(change)
