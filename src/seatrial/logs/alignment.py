"""One clock for the logs of several processes: by the steps that they did together, or by when their programs began.

A step of a synchronous training ends everywhere at once, so what its line says on one rank and on another is what their
clocks differ by: a zone, a clock that is wrong, one that drifts, or no clock at all but seconds that were added up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median, median_low

from seatrial.events import FIRST_CLOCK, Event, Fault, Step
from seatrial.logs.clock import ZONES_APART
from seatrial.logs.lines import read_lines
from seatrial.logs.numbers import stated_time

FEWEST_COMMON = 2  # steps, for clocks to be compared
LAST_COMMON = 9  # steps that say by how much clocks differ
FEWEST_FOR_DRIFT = 12
NOTHING = 1.0  # seconds; ranks print a step that much apart
HEAD_LINES = 200
AT_START = 120.0  # seconds between the first lines of processes that were started together, but for their zones
_ZONE = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?P<sign>[+-])(?P<hours>\d\d):?(?P<minutes>\d\d)\b"
)


@dataclass(frozen=True, slots=True)
class Shift:
    """What is taken off the times of a log: `ahead` seconds at `at`, and `drift` of every second after that."""

    ahead: float = 0.0
    drift: float = 0.0
    at: float = 0.0

    def apply(self, moment: float) -> float:
        return moment - self.ahead - self.drift * (moment - self.at)


def shifts(clocks: Mapping[int, Mapping[int, float]]) -> dict[int, Shift]:
    """By process what its clock is ahead of that of most; only those that can be compared, by its times of steps.

    Of two processes, the first one's clock counts; so does that of the first one that has a clock.
    """
    timed = [process for process, times in clocks.items() if times and max(times.values()) >= FIRST_CLOCK]
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


def _compared(own: Mapping[int, float], reference: Mapping[int, float]) -> Shift | None:
    common = sorted(own.keys() & reference.keys())
    if len(common) < FEWEST_COMMON:
        return None
    last = common[-LAST_COMMON:]
    ahead = median(own[step] - reference[step] for step in last)
    return Shift(ahead, _drift(common, own, reference), median(own[step] for step in last))


def _drift(common: Sequence[int], own: Mapping[int, float], reference: Mapping[int, float]) -> float:
    """How many seconds a clock gains in each, from its first steps to its last; 0 where that is nothing of note."""
    third = len(common) // 3
    if len(common) < FEWEST_FOR_DRIFT:
        return 0.0
    parts = (common[:third], common[-third:])
    begin, end = (median(own[step] - reference[step] for step in part) for part in parts)
    seconds = median(own[step] for step in parts[1]) - median(own[step] for step in parts[0])
    return (end - begin) / seconds if seconds > 0 and abs(end - begin) > NOTHING else 0.0


def zone_of(path: Path) -> float:
    """How many seconds the times at the head of a log are ahead of UTC, as they say themselves; else 0."""
    for line in _head(path):
        if found := _ZONE.search(line, 0, 200):
            seconds = 3600.0 * int(found["hours"]) + 60.0 * int(found["minutes"])
            return -seconds if found["sign"] == "-" else seconds
    return 0.0


def begun_at(path: Path) -> float | None:
    """The first time that a log states; None where that is no moment of a known year."""
    first = next((time for line in _head(path) if (time := stated_time(line)) is not None), None)
    return first if first is None or first >= FIRST_CLOCK else None


def zone_apart(begun: float | None, others: Iterable[float | None]) -> float | None:
    """By how many quarters of an hour a log began after another, if nothing else tells them apart; in seconds."""
    known = [other for other in others if other is not None]
    if begun is None or not known:
        return None
    apart = begun - min(known, key=lambda other: abs(begun - other))
    whole = round(apart / ZONES_APART) * ZONES_APART
    return whole if abs(apart - whole) < AT_START else None


def _head(path: Path) -> Iterable[str]:
    return islice(read_lines(path), HEAD_LINES) if str(path) != "-" else ()


def moved(events: Sequence[Event], shift: Shift) -> tuple[Event, ...]:
    """The events on the clock of the others; seconds that were only added up are moved as well."""
    if shift == Shift():
        return tuple(events)
    return tuple(
        replace(event, wall_time=(at := shift.apply(event.wall_time)), monotonic_time=at) if event.wall_time else event
        for event in events
    )


def after_steps(events: Sequence[Event]) -> tuple[Event, ...]:
    """The events; a fault whose line gives no time of its own says after which step it came."""
    last, moment = -1, 0.0
    found: list[Event] = []
    for event in events:
        if isinstance(event, Step):
            last = event.step
        elif isinstance(event, Fault) and event.wall_time == moment:
            event = replace(event, facts={**event.facts, "after": last})
        moment = event.wall_time
        found.append(event)
    return tuple(found)


def clocked(events: Sequence[Event]) -> tuple[Event, ...]:
    """The events of a log whose clock was compared by its steps.

    Where these have no times, but seconds that were added up, nothing is known of the clock of a fault that has one.
    """
    if any(isinstance(event, Step) and event.wall_time >= FIRST_CLOCK for event in events):
        return tuple(events)
    return tuple(
        replace(event, facts={**event.facts, "order": "own"})
        if isinstance(event, Fault) and event.wall_time >= FIRST_CLOCK
        else event
        for event in events
    )


def marked(events: Sequence[Event], order: str) -> tuple[Event, ...]:
    """The events, with the faults saying that their order among those of other logs is not known for certain."""
    return tuple(
        replace(event, facts={**event.facts, "order": order}) if isinstance(event, Fault) else event for event in events
    )
