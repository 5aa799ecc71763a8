"""A measured value, or the ratio of two, and the interval that it is known to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Statistic = Literal["median", "mean"]

INTERVAL_Z = 1.96  # 95%
BLOCK = 5  # neighbouring steps resemble each other, so they are drawn together
RESAMPLES = 2000
FEWEST_TO_RESAMPLE = 10
MOST_TO_RESAMPLE = 1024  # of a longer series so many are drawn, and the interval is scaled down
SEED = 20240229
FINEST, USUAL = 6, 3  # decimals
LARGEST = 1e30  # no time, rate or count is
TELLING = 4  # different values, to tell how many decimals are printed
FEWEST_RESAMPLES = 200
MOST_DRAWN = 40_000_000  # numbers in all for a ratio, to bound the time of a long run
MOST_AT_ONCE = 2_000_000  # of them, to bound the memory


def is_number(value: float | None) -> bool:
    """Whether a figure of a log can be one: finite, and not so large that arithmetic with it is not."""
    return value is not None and abs(value) < LARGEST


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A measured value with its 95% interval; `origin` says what it comes from if not from the times of the steps."""

    value: float
    low: float
    high: float
    origin: str = ""


def order_interval(values: Values) -> tuple[float, float]:
    """The 95% interval of the median: the order statistics between which it lies, whatever the distribution."""
    ordered, n = np.sort(values), len(values)
    spread = INTERVAL_Z * math.sqrt(n) / 2
    low = max(1, math.floor(n / 2 - spread))
    high = min(n, math.ceil(n / 2 + 1 + spread))
    return float(ordered[low - 1]), float(ordered[high - 1])


def bootstrap_interval(values: Values, statistic: Statistic = "median") -> tuple[float, float]:
    """The 95% interval of the median or mean of a series, by resampling moving blocks of it (Künsch 1989).

    Deterministic: the generator is seeded.
    """
    n = len(values)
    drawn = min(n, MOST_TO_RESAMPLE)
    rng = np.random.Generator(np.random.PCG64(SEED))
    starts = rng.integers(0, n - BLOCK + 1, size=(RESAMPLES, -(-drawn // BLOCK)))
    found = np.empty(RESAMPLES)
    batch = max(1, 2_000_000 // drawn)  # of resamples, to bound the memory
    for first in range(0, RESAMPLES, batch):
        places = starts[first : first + batch, :, None] + np.arange(BLOCK)
        resampled = values[places.reshape(len(places), -1)[:, :drawn]]
        found[first : first + batch] = (
            np.median(resampled, axis=1) if statistic == "median" else np.mean(resampled, axis=1)
        )
    low, high = np.percentile(found, [2.5, 97.5])
    if drawn == n:
        return float(low), float(high)
    centre, scale = np.median(found), math.sqrt(drawn / n)
    return float(centre + (low - centre) * scale), float(centre + (high - centre) * scale)


def estimate(values: Values, statistic: Statistic = "median", origin: str = "") -> Estimate:
    """The median or mean of a series with its 95% interval.

    Of the median it is the wider one of two: that of the order statistics, which is exact for independent values
    however few or tied, and the block bootstrap's, which sees that neighbours depend on each other. Below ten values
    only the first; a mean of so few is known to no better than their range.
    """
    value = float(np.median(values) if statistic == "median" else np.mean(values))
    low, high = order_interval(values) if statistic == "median" else (float(values.min()), float(values.max()))
    if len(values) >= FEWEST_TO_RESAMPLE:
        resampled = bootstrap_interval(values, statistic)
        if statistic == "mean":
            low, high = resampled
        low, high = min(low, resampled[0]), max(high, resampled[1])
    return Estimate(value=value, low=min(low, value), high=max(high, value), origin=origin)


def relative_rounding(values: Values) -> float:
    """What `rounding` can have moved a value by, as a fraction of their median; infinity if they all come out as 0."""
    half = rounding(values)
    median = float(np.median(np.abs(values[np.isfinite(values)]))) if half else 0.0
    return half / median if median else math.inf if half else 0.0


def rounding(values: Values) -> float:
    """Half of the last decimal that the values are printed with: 0 if they are not rounded; NaN counts for nothing."""
    present = np.abs(values[np.isfinite(values)])
    if not len(present):
        return 0.0
    fewest = 0 if len(np.unique(present)) >= TELLING else USUAL  # a few round numbers may be so by chance
    decimals = next((d for d in range(fewest, FINEST) if np.array_equal(np.round(present, d), present)), None)
    return 0.0 if decimals is None else 0.5 / 10**decimals


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
