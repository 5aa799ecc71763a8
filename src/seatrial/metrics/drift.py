"""Finds what a median hides: a speed that drifts, jumps between two levels, or is interrupted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from seatrial.metrics.dependence import Values, correlation_time, student_p
from seatrial.metrics.record import Ranges, ranges
from seatrial.metrics.shifts import Shift, removed

FEWEST_TO_DRIFT = 6  # fewer have no trend that could not be by chance
FEWEST_ON_LEVELS = 9
DRIFTS_BY = 0.03  # of the first third's median
DRIFT_P = 0.01
MOST_COMPARED = 2000  # values; the medians of as many stretches stand for more
SPIKE_MADS = 10.0
SPIKE = 1.2  # times the median
LEVELS_APART = 0.03
LEVEL_SHARE = 0.2  # of the steps, at the least, on either level


@dataclass(frozen=True, kw_only=True)
class Drift:
    """The median step times of the first and the last third in seconds, and the trend between (Mann–Kendall).

    `change` is the last against the first as a fraction: above 0 the run became slower. `p` is the probability of such
    a trend by chance, two-sided, of steps that resemble their neighbours as these do. `drifts` if both are beyond their
    limits. Not `in_window`: it is over all steps, since
    what looks like a warm-up was faster than the rest.
    """

    first_seconds: float
    last_seconds: float
    change: float
    p: float
    in_window: bool = True

    @property
    def drifts(self) -> bool:
        return self.exceeds(DRIFTS_BY)

    def exceeds(self, change: float) -> bool:
        """True if it is larger than that, and not by chance."""
        return abs(self.change) > change and self.p < DRIFT_P


@dataclass(frozen=True, kw_only=True)
class Spikes:
    """Steps that took far longer than the median, and the share of the window's time that they cost beyond it."""

    steps: Ranges
    count: int
    longest_seconds: float
    share_lost: float


@dataclass(frozen=True, kw_only=True)
class Levels:
    """Two speeds in turn, in seconds, with nothing between; `share_slow` of the steps are on the slow one."""

    fast_seconds: float
    slow_seconds: float
    share_slow: float


def find_drift(seconds: Values, shifts: Sequence[Shift] = ()) -> Drift | None:
    """First third against last third; None below six steps. `shifts` are those found in these steps."""
    third = len(seconds) // 3
    if len(seconds) < FEWEST_TO_DRIFT:
        return None
    first, last = float(np.median(seconds[:third])), float(np.median(seconds[-third:]))
    return Drift(
        first_seconds=first,
        last_seconds=last,
        change=last / first - 1,
        p=mann_kendall(seconds, _correlation_time(seconds, shifts)),
    )


def find_slowdown(window: Values, everything: Values, shifts: Sequence[Shift]) -> Drift | None:
    """The drift within the window; if there is none, that of all steps where the run only became slower.

    A warm-up is slow and gets faster. One that is the fastest part of a run is none: what came after it became slow.
    `window` is the end of `everything`, whose shifts these are.
    """
    start = len(everything) - len(window)
    found = find_drift(window, [replace(shift, place=shift.place - start) for shift in shifts if shift.place > start])
    whole = find_drift(everything, shifts)
    if (found is None or not found.drifts) and whole is not None and whole.drifts and whole.change > 0:
        return replace(whole, in_window=False)
    return found


def _correlation_time(seconds: Values, shifts: Sequence[Shift]) -> float:
    """That of the noise: without the shifts, or else without a smooth trend."""
    if shifts:
        return correlation_time(removed(seconds, shifts), fitted=1 + len(shifts))
    seconds = _in_stretches(seconds)
    places = np.linspace(-1, 1, len(seconds))
    return correlation_time(seconds - np.polyval(np.polyfit(places, seconds, 2), places), fitted=3)


def _in_stretches(values: Values) -> Values:
    """The values, or the medians of as many stretches as may be compared."""
    if len(values) <= MOST_COMPARED:
        return values
    return np.array([np.median(part) for part in np.array_split(values, MOST_COMPARED)])


def mann_kendall(values: Values, time: float = 1.0) -> float:
    """The two-sided p value of the Mann–Kendall test for a trend, with the correction for ties (Kendall 1975).

    `time` is the correlation time of what is not trend: the variance grows by it (Yue & Wang 2004). That it had to be
    estimated from as many effective values counts by Student's distribution.
    """
    values = _in_stretches(values)
    n = len(values)
    s = sum(int(np.sign(values[i + 1 :] - values[i]).sum()) for i in range(n - 1))
    _, tied = np.unique(values, return_counts=True)
    ties = float(np.sum(tied * (tied - 1.0) * (2 * tied + 5)))
    variance = (n * (n - 1) * (2 * n + 5) - ties) / 18 * time
    if variance <= 0 or s == 0:
        return 1.0
    z = (abs(s) - 1) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2)) if time == 1 else student_p(z, n / time - 2)


def find_spikes(steps: Sequence[int], seconds: Values) -> Spikes | None:
    """Steps above the median by ten median absolute deviations and by a fifth; None without any."""
    median = float(np.median(seconds))
    mad = float(np.median(np.abs(seconds - median)))
    high = seconds > max(median + SPIKE_MADS * mad, SPIKE * median)
    if not high.any():
        return None
    return Spikes(
        steps=ranges(step for step, is_high in zip(steps, high, strict=True) if is_high),
        count=int(high.sum()),
        longest_seconds=float(seconds.max()),
        share_lost=float((seconds[high] - median).sum() / seconds.sum()),
    )


def find_levels(seconds: Values) -> Levels | None:
    """Two levels: the widest gap in the middle of the sorted times is at least half of what lies between the two."""
    n = len(seconds)
    if n < FEWEST_ON_LEVELS:
        return None
    ordered = np.sort(seconds)
    least = max(1, math.ceil(LEVEL_SHARE * n))
    gaps = np.diff(ordered)[least - 1 : n - least]
    split = least + int(np.argmax(gaps))
    fast, slow = float(np.median(ordered[:split])), float(np.median(ordered[split:]))
    if gaps.max() < (slow - fast) / 2 or slow / fast - 1 < LEVELS_APART:
        return None
    return Levels(fast_seconds=fast, slow_seconds=slow, share_slow=(n - split) / n)
