"""Events of other trainers' logs on the clock of their hosts: zones, missing years, counted seconds.

Absl's times ("I1231 23:59:58") have no year: they are read as of `NO_YEAR`, and `dated` finds the right one.
"""

from __future__ import annotations

import math
import time
from calendar import isleap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from seatrial.events import FIRST_CLOCK, Event
from seatrial.logs.numbers import NO_YEAR
from seatrial.recording import Numbers, Steps

ZONES_APART, MOST_AHEAD = 900.0, 14 * 3600.0  # seconds; the latter is how far a clock may be ahead of UTC
DAY = 86_400.0
YEARLESS = _BEGIN, _END = tuple(datetime(year, 1, 1, tzinfo=UTC).timestamp() for year in (NO_YEAR, NO_YEAR + 1))

Lifetime = tuple[float, float]  # when a process was started, and when it ended or was last heard of


def on_host_clock(record: Sequence[Event], lifetimes: Mapping[int, Lifetime]) -> list[Event]:
    """The events, by process moved into its lifetime on its host; unchanged where no lifetime is known.

    Logs that give no time count seconds from the start of their process. The others give it in a zone of their own, and
    some without the year.
    """
    if not lifetimes:
        return list(record)
    whole = min(start for start, _ in lifetimes.values()), max(end for _, end in lifetimes.values())
    times: dict[int, list[float]] = {}
    for event in record:
        if event.wall_time >= FIRST_CLOCK:
            times.setdefault(event.process, []).append(event.wall_time)
    ahead = {rank: seconds_ahead(min(own), max(own), lifetimes.get(rank, whole)) for rank, own in times.items()}
    return [
        replace(
            event,
            wall_time=event.wall_time - ahead[event.process]
            if event.wall_time >= FIRST_CLOCK
            else event.wall_time + lifetimes.get(event.process, whole)[0],
        )
        for event in record
    ]


def seconds_ahead(first: float, last: float, lifetime: Lifetime) -> float:
    """By how much a log's clock is ahead of its host's, by its first and last time.

    Zones differ by quarters of an hour. Of several that fit, it is none, or else that with which the log ends as late
    as it can: most end with their process. Where none fits, it is another year, or another clock.
    """
    start, end = lifetime
    least = math.ceil((last - end) / ZONES_APART - 0.5) * ZONES_APART
    most = math.floor((first - start) / ZONES_APART + 0.5) * ZONES_APART
    if least <= 0 <= most:
        return 0.0
    return least if least <= most and abs(least) <= MOST_AHEAD else last - end


def dated(events: Iterable[Event | Steps], written: float) -> Iterator[Event | Steps]:
    """The events of one log as they come, changed in place where their time has no year.

    `written` is when the log was last written to, in seconds since the epoch: its first time lies in the last year that
    is not after that, and each further one in the year in which it is nearest to the time before, over New Year too.
    """
    calendar = _Calendar(written)
    for event in events:
        if isinstance(event, Event):
            if offset := calendar.offset_at(event.wall_time):
                fields = vars(event)  # faster than to make another one
                fields["wall_time"] = fields["monotonic_time"] = event.wall_time + offset
            yield event
        else:
            times = event.values("wall_time")
            offsets = calendar.offsets_at(times)
            yield event.at_times(times + offsets) if offsets.any() else event


class _Calendar:
    """Seconds to add to each time of a log without a year, in the order of the log."""

    def __init__(self, written: float) -> None:
        self._written = written
        self._day, self._offset = -1, 0.0
        self._near: float | None = None  # the last date that is known

    def offset_at(self, moment: float) -> float:
        if _BEGIN <= moment < _END:
            if moment // DAY != self._day:
                self._day = int(moment // DAY)
                near = self._near
                self._near = _latest(self._day, self._written) if near is None else _nearest(self._day, near)
                self._offset = self._near - self._day * DAY
            return self._offset
        if moment >= FIRST_CLOCK:
            self._near = moment
        return 0.0

    def offsets_at(self, times: Numbers) -> Numbers:
        """`offset_at` of each of the times, which come one after the other."""
        days = times // DAY
        if (days == days[0]).all():
            return np.full(len(times), self.offset_at(float(times[-1])))
        last = np.flatnonzero(np.diff(days, append=math.nan))  # of each day
        return np.repeat([self.offset_at(moment) for moment in times[last].tolist()], np.diff(last, prepend=-1))


def _latest(day: int, written: float) -> float:
    return max(date for date in _dates(day, written) if date <= written + MOST_AHEAD)


def _nearest(day: int, moment: float) -> float:
    return min(_dates(day, moment), key=lambda date: abs(date - moment))


def _dates(day: int, around: float) -> list[float]:
    """When a day of `NO_YEAR` began in the years up to the one after a moment; every eight years have a 29 February."""
    date, year = datetime.fromtimestamp(day * DAY, UTC), datetime.fromtimestamp(around, UTC).year
    is_rare = (date.month, date.day) == (2, 29)
    return [date.replace(year=each).timestamp() for each in range(year - 8, year + 2) if isleap(each) or not is_rare]


def last_written(paths: Sequence[Path]) -> float:
    """When the last of the logs of a run was written to; now for the standard input. Raises OSError."""
    return max(_written(path) for path in paths)


def _written(path: Path) -> float:
    """Files out of archives may have no time of their own: they were written by now."""
    known = path.stat().st_mtime if str(path) != "-" else 0.0
    return known if known >= FIRST_CLOCK else time.time()
