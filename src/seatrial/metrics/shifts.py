"""Finds the steps from which a run is slower or faster than before, and stays so.

Binary segmentation proposes: the best split of a stretch into two levels, then of each of the two. Of the proposed ones
the least clear is dropped, until all that are left are clear: far beyond what noise with the measured dependence gives
between the neighbouring two, and at once. A slow wave is none, nor is a spike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from seatrial.metrics.dependence import SIGMA_PER_MAD, Values, correlation_time, student_quantile
from seatrial.metrics.interval import rounding

SHORTEST = 10  # steps on a level; fewer are spikes
LEAST_CHANGE = 0.02
BY_CHANCE = 1e-4  # of a split at one given place; the best of many is by chance in one of a hundred
FITTED = 3  # two levels, and the place between them
AT_ONCE = 0.5  # of the change, within NEAR steps
NEAR = 5
APART_OF_NOISE, OF_FEW_STEPS = 1.0, 90.0  # times what neighbouring stretches differ by; of n steps, 90 ÷ n times
MEDIAN_ERROR = 1.2533  # times that of a mean, of normal noise
SIGMA_PER_ROUNDING = 1 / math.sqrt(3)  # of the half of the last decimal
MOST_TRIED = 200  # places of a split, coarse and then fine
ROUNDS = 3  # of splits of splits: up to seven shifts


@dataclass(frozen=True, kw_only=True)
class Shift:
    """A change of level: the median step times before and after it, in seconds, between its neighbours.

    `step` is the first on the new level, at index `place` of the series.
    """

    step: int
    place: int
    before_seconds: float
    after_seconds: float

    @property
    def change(self) -> float:
        """As a fraction; above 0 the run became slower."""
        return self.after_seconds / self.before_seconds - 1


def find_shifts(steps: Sequence[int], seconds: Values) -> tuple[Shift, ...]:
    """The shifts of a series in order; `steps` are its step numbers, `seconds` above 0."""
    if not len(seconds):
        return ()
    rounded = rounding(seconds) / float(np.median(seconds))  # what rounding may have moved the logarithms by
    places = clear_splits(np.log(seconds), ROUNDS, SHORTEST, partial(_clearness, rounded=rounded))
    ends = [0, *places, len(seconds)]
    levels = [float(np.median(seconds[a:b])) for a, b in pairwise(ends)]
    return tuple(
        Shift(step=steps[place], place=place, before_seconds=levels[n], after_seconds=levels[n + 1])
        for n, place in enumerate(places)
        if abs(levels[n + 1] / levels[n] - 1) >= LEAST_CHANGE
    )


def removed(seconds: Values, shifts: Sequence[Shift]) -> Values:
    """The series without its levels: each value less the median of its level."""
    parts = np.split(seconds, [shift.place for shift in shifts])
    return np.concatenate([part - np.median(part) for part in parts])


def clear_splits(values: Values, rounds: int, fewest: int, clearness: Callable[[Values, int], float]) -> list[int]:
    """The places of clear splits: of those proposed, the least clear is dropped until all that are left are above 1.

    `clearness` is that of a split of the stretch between its neighbours, at a place in it.
    """
    places = list(_proposed(values, 0, rounds, fewest))
    while places:
        ends = [0, *places, len(values)]
        clear = [
            clearness(values[first:last], place - first)
            for first, place, last in zip(ends, places, ends[2:], strict=False)
        ]
        least = int(np.argmin(clear))
        if clear[least] > 1:
            break
        places.pop(least)
    return places


def _proposed(values: Values, start: int, rounds: int, fewest: int) -> Iterator[int]:
    """The best splits of a stretch that begins at index `start`, in order; each part has `fewest` values or more."""
    if len(values) < 2 * fewest or not rounds:
        return
    place = best_split(values, fewest)
    yield from _proposed(values[:place], start, rounds - 1, fewest)
    yield start + place
    yield from _proposed(values[place:], start + place, rounds - 1, fewest)


def best_split(values: Values, fewest: int) -> int:
    """The place of the split whose two medians leave the least absolute deviation."""

    def cost(place: int) -> float:
        return float(sum(np.abs(part - np.median(part)).sum() for part in (values[:place], values[place:])))

    low, high = fewest, len(values) - fewest
    while True:
        tried = np.unique(np.linspace(low, high, min(MOST_TRIED, high - low + 1)).astype(int))
        best = min(tried.tolist(), key=cost)
        apart = (high - low) // MOST_TRIED + 1
        if apart == 1:
            return int(best)
        low, high = max(low, best - apart), min(high, best + apart)


def _clearness(values: Values, place: int, rounded: float) -> float:
    """The size of a split over the size that it needs, by the criterion that it meets least; it is clear above 1."""
    n, parts = len(values), (values[:place], values[place:])
    before, after = (float(np.median(part)) for part in parts)
    change = abs(after - before)
    rest = np.concatenate([parts[0] - before, parts[1] - after])
    sigma = max(SIGMA_PER_MAD * float(np.median(np.abs(rest))), SIGMA_PER_ROUNDING * rounded)
    time = correlation_time(rest, FITTED)
    error = MEDIAN_ERROR * sigma * math.sqrt(time * (1 / place + 1 / (n - place)))
    jump = abs(float(np.median(values[place : place + NEAR]) - np.median(values[place - NEAR : place])))
    smooth = np.median(sliding_window_view(rest, NEAR), axis=1)
    noise = float(np.abs(smooth[NEAR:] - smooth[:-NEAR]).max())
    needed = (
        math.log1p(LEAST_CHANGE),
        student_quantile(1 - BY_CHANCE, n / time - 2) * error,
        max(APART_OF_NOISE, OF_FEW_STEPS / n) * noise,
    )
    return min(change / max(needed), jump / (AT_ONCE * change) if change else 0.0)
