"""How sure the ratio of two medians is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from seatrial.metrics.interval import BLOCK, RESAMPLES, SEED, Values

FEWEST_RESAMPLES = 200
MOST_DRAWN = 40_000_000  # numbers in all, to bound the time of a long run
MOST_AT_ONCE = 2_000_000  # of them, to bound the memory


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A ratio and its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def inverse(self) -> Ratio:
        return Ratio(value=1 / self.value, low=1 / self.high, high=1 / self.low)

    def widened(self, low: float, high: float) -> Ratio:
        """With an interval that reaches to both ends, if it does not already."""
        return Ratio(value=self.value, low=min(self.low, low), high=max(self.high, high))

    def rounded(self, share: float) -> Ratio:
        """With an interval that allows for rounding by that share of the value."""
        return Ratio(value=self.value, low=self.low / (1 + share), high=self.high * (1 + share))


def ratio_of_intervals(a: tuple[float, float, float], b: tuple[float, float, float]) -> Ratio:
    """b ÷ a from two values with independent intervals (value, low, high), all above 0.

    The distances to the ends add in squares, on the logarithm (MOVER; Donner and Zou 2012).
    """
    (value_a, low_a, high_a), (value_b, low_b, high_b) = a, b
    down = math.hypot(math.log(value_b / low_b), math.log(high_a / value_a))
    up = math.hypot(math.log(high_b / value_b), math.log(value_a / low_a))
    value = value_b / value_a
    return Ratio(value=value, low=value * math.exp(-down), high=value * math.exp(up))


def ratio_of_medians(a: Values, b: Values) -> Ratio:
    """median(b) ÷ median(a) of two series of step times, with the interval that resampling blocks gives (Künsch 1989).

    It sees that steps resemble their neighbours, but is too narrow for few steps: take the wider of this and
    `ratio_of_intervals`. Deterministic: the generator is seeded.
    """
    rng = np.random.Generator(np.random.PCG64(SEED))
    count = max(FEWEST_RESAMPLES, min(RESAMPLES, MOST_DRAWN // max(len(a), len(b))))
    resampled = _resampled_medians(b, count, rng) / _resampled_medians(a, count, rng)
    low, high = (float(end) for end in np.percentile(resampled, [2.5, 97.5]))
    value = float(np.median(b) / np.median(a))
    return Ratio(value=value, low=min(low, value), high=max(high, value))


def _resampled_medians(values: Values, count: int, rng: np.random.Generator) -> Values:
    """The medians of `count` series of the same length, made of blocks of neighbours; the two ends are neighbours."""
    n = len(values)
    block = min(BLOCK, n)
    medians = np.empty(count)
    batch = max(1, MOST_AT_ONCE // n)
    for first in range(0, count, batch):
        size = min(batch, count - first)
        starts = rng.integers(0, n, size=(size, -(-n // block)))
        places = (starts[:, :, None] + np.arange(block)) % n
        medians[first : first + size] = np.median(values[places.reshape(size, -1)[:, :n]], axis=1)
    return medians
