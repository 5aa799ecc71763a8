"""How sure the ratio of two medians is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]

BLOCK = 5  # neighbouring steps resemble each other, so they are drawn together
RESAMPLES = 2000
MOST_AT_ONCE = 2_000_000  # numbers drawn, to bound the memory
INTERVAL_Z = 1.96  # 95%
SEED = 20_240_229


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A ratio and its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def inverse(self) -> Ratio:
        return Ratio(value=1 / self.value, low=1 / self.high, high=1 / self.low)

    def scaled(self, factor: float) -> Ratio:
        return Ratio(value=self.value * factor, low=self.low * factor, high=self.high * factor)


def ratio_of_intervals(
    a: tuple[float, float, float], b: tuple[float, float, float]
) -> Ratio:  # fmt: skip
    """b ÷ a from two values with independent intervals (value, low, high), all above 0.

    The distances to the ends add in squares, on the logarithm (MOVER; Donner and Zou 2012).
    """
    (value_a, low_a, high_a), (value_b, low_b, high_b) = a, b
    down = math.hypot(math.log(value_b / low_b), math.log(high_a / value_a))
    up = math.hypot(math.log(high_b / value_b), math.log(value_a / low_a))
    value = value_b / value_a
    return Ratio(value=value, low=value * math.exp(-down), high=value * math.exp(up))


def ratio_of_medians(a: Seconds, b: Seconds) -> Ratio:
    """median(b) ÷ median(a) of two series of step times.

    The interval is the wider of two. Resampled blocks (Künsch 1989) know that steps resemble their neighbours, but are
    too narrow for few steps; order statistics are right for few steps, but take them for independent. Deterministic:
    the generator is seeded.
    """
    ordered = ratio_of_intervals(_order_interval(a), _order_interval(b))
    rng = np.random.Generator(np.random.PCG64(SEED))
    resampled = _resampled_medians(b, rng) / _resampled_medians(a, rng)
    low, high = (float(end) for end in np.percentile(resampled, [2.5, 97.5]))
    return Ratio(value=ordered.value, low=min(low, ordered.low), high=max(high, ordered.high))


def _order_interval(values: Seconds) -> tuple[float, float, float]:
    """The median and the order statistics between which it lies with 95%, whatever the distribution."""
    ordered, n = np.sort(values), len(values)
    spread = INTERVAL_Z * math.sqrt(n) / 2
    low, high = max(1, math.floor(n / 2 - spread)), min(n, math.ceil(n / 2 + 1 + spread))
    return float(np.median(ordered)), float(ordered[low - 1]), float(ordered[high - 1])


def _resampled_medians(values: Seconds, rng: np.random.Generator) -> Seconds:
    """The medians of RESAMPLES series of the same length, made of blocks of neighbours; the two ends are neighbours."""
    n = len(values)
    block = min(BLOCK, n)
    medians = np.empty(RESAMPLES)
    batch = max(1, MOST_AT_ONCE // n)
    for first in range(0, RESAMPLES, batch):
        size = min(batch, RESAMPLES - first)
        starts = rng.integers(0, n, size=(size, -(-n // block)))
        places = (starts[:, :, None] + np.arange(block)) % n
        medians[first : first + size] = np.median(values[places.reshape(size, -1)[:, :n]], axis=1)
    return medians
