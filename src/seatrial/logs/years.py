"""The year of times that are logged without one, as absl's are ("I1231 23:59:58"), which are read as of `NO_YEAR`."""

from __future__ import annotations

import time
from calendar import isleap
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from seatrial.events import FIRST_CLOCK, Event
from seatrial.logs.numbers import NO_YEAR

DAY = 86_400.0
EASTERNMOST = 14 * 3600.0  # seconds by which a clock may be ahead of UTC
_BEGIN, _END = (datetime(year, 1, 1, tzinfo=UTC).timestamp() for year in (NO_YEAR, NO_YEAR + 1))


def dated(events: Iterable[Event], written: float) -> Iterator[Event]:
    """The events of one log as they come, changed in place where their time has no year.

    `written` is when the log was last written to, in seconds since the epoch: its first time lies in the last year that
    is not after that, and each further one in the year in which it is nearest to the time before, over New Year too.
    """
    day, offset, near = -1, 0.0, None
    for event in events:
        moment = event.wall_time
        if _BEGIN <= moment < _END:
            if moment // DAY != day:
                day = int(moment // DAY)
                near = _nearest(day, near) if near is not None else _latest(day, written)
                offset = near - day * DAY
            fields = vars(event)  # faster than to make another one
            fields["wall_time"] = fields["monotonic_time"] = moment + offset
        elif moment >= FIRST_CLOCK:
            near = moment
        yield event


def _latest(day: int, written: float) -> float:
    return max(date for date in _dates(day, written) if date <= written + EASTERNMOST)


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
