"""The step times of a configuration from run to run: its levels, and the runs from which it is slower or faster.

Runs are few, and one of them is often odd, so this is not the search for shifts within a run (`metrics/shifts.py`):
three runs make a level, one or two do not, and the noise between runs decides how clear a change has to be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from seatrial.metrics.dependence import SIGMA_PER_MAD, Values, correlation_time, student_quantile
from seatrial.metrics.shifts import best_split, clear_splits

FEWEST = 3  # runs on a level
LEAST_CHANGE = 0.01
FEWEST_FOR_DEPENDENCE = 40  # of fewer runs, it cannot be told from noise
BY_CHANCE = 0.005  # that the clearest of all places is one although nothing has changed
ROUNDS = 5  # of splits of splits
MOST_OF_IT = 0.8  # of a level's runs are nearer to it than to the next one
BY_CHANCE_IN_A_ROW = 0.05  # that odd runs make a level
FEWEST_FOR_ODD = 20  # runs of which single ones may be called odd: more than ODD standard deviations away
ODD = 4.0
UNCLEAR = 0.99
FITTED = 3  # two levels, and the place between them
MEDIAN_ERROR = 1.2533  # times that of a mean, of normal noise
SIGMA_PER_DEVIATION = 1.2533  # of the mean absolute deviation


@dataclass(frozen=True, kw_only=True)
class Level:
    """Neighbouring runs of one speed: from index `first` to before index `end`, with their median in seconds."""

    first: int
    end: int
    seconds: float

    @property
    def runs(self) -> int:
        """The number of its runs."""
        return self.end - self.first


def levels_of(seconds: Sequence[float]) -> list[Level]:
    """The levels of a series of step times above 0, the oldest run first; one level where nothing clear has changed."""
    if not len(seconds):
        return []
    values = np.asarray(seconds, dtype=np.float64)
    ends = [0, *_places(np.log(values)), len(values)]
    return [Level(first=a, end=b, seconds=float(np.median(values[a:b]))) for a, b in pairwise(ends)]


def change(before: Level, after: Level) -> float:
    """As a fraction; above 0 the configuration became slower."""
    return after.seconds / before.seconds - 1


def _places(values: Values) -> list[int]:
    """The places where a new level begins."""
    clearness = partial(_clearness, noise=_noise(values), total=len(values))
    ends = [0, *clear_splits(values, ROUNDS, FEWEST, clearness), len(values)]
    for number in range(1, len(ends) - 1):  # each was the best place between others that are dropped
        first, last = ends[number - 1], ends[number + 1]
        ends[number] = first + best_split(values[first:last], FEWEST)
    return ends[1:-1]


def _noise(values: Values) -> float:
    """The standard deviation of the noise by the differences of neighbours, in which no change of level counts."""
    return SIGMA_PER_MAD * float(np.median(np.abs(np.diff(values)))) / math.sqrt(2) if len(values) > 1 else 0.0


def _clearness(values: Values, place: int, noise: float, total: int) -> float:
    """The size of a split of a stretch over the size that it needs; it is clear above 1.

    `noise` is that of all runs, and `total` their number: a stretch may be too short to tell its own.
    """
    n, parts = len(values), (values[:place], values[place:])
    before, after = (float(np.median(part)) for part in parts)
    rest = np.concatenate([parts[0] - before, parts[1] - after])
    time = correlation_time(rest) if n >= FEWEST_FOR_DEPENDENCE else 1.0
    error = MEDIAN_ERROR * max(_sigma(rest), noise) * math.sqrt(time * (1 / place + 1 / (n - place)))
    quantile = student_quantile(
        1 - BY_CHANCE / max(1, total - 2 * FEWEST + 1), max(1.0, n / time - 2, total / 2 / time - 2)
    )
    clear = abs(after - before) / max(math.log1p(LEAST_CHANGE), quantile * error)
    doubt = min(_on_its_side(parts) / MOST_OF_IT, BY_CHANCE_IN_A_ROW / _streaks(parts, total))
    return clear if doubt >= 1 else min(UNCLEAR, clear * doubt)


def _sigma(rest: Values) -> float:
    """The standard deviation of the noise; odd runs count as far as they would if they were barely odd."""
    n, distance = len(rest), np.abs(rest)
    if n >= FEWEST_FOR_ODD:
        distance = np.minimum(distance, ODD * SIGMA_PER_MAD * float(np.median(distance)))
    usual = max(SIGMA_PER_MAD * float(np.median(distance)), SIGMA_PER_DEVIATION * float(np.mean(distance)))
    return usual * math.sqrt(n / (n - FITTED))


def _on_its_side(parts: tuple[Values, Values]) -> float:
    """The share of the shorter part's runs that are nearer to its own median than to the other's."""
    short, long = sorted(parts, key=len)
    own, other = float(np.median(short)), float(np.median(long))
    return float(np.mean(np.abs(short - own) <= np.abs(short - other)))


def _streaks(parts: tuple[Values, Values], total: int) -> float:
    """The expected number of streaks of odd runs as long as the shorter part, at the longer part's share of odd runs.

    In a configuration of which every twelfth run is slow, three slow ones in a row are no change.
    """
    short, long = sorted(parts, key=len)
    middle = float(np.median(long))
    distance = float(np.median(short)) - middle
    odd = np.count_nonzero((long - middle) * math.copysign(1.0, distance) > abs(distance) / 2)
    return float(total * ((odd + 1) / (len(long) + 2)) ** len(short))
