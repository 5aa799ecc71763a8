"""Events of other trainers' logs on the clock of their hosts: zones, missing years, counted seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from seatrial.events import FIRST_CLOCK, Event

ZONES_APART, MOST_AHEAD = 900.0, 14 * 3600.0  # seconds

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
