"""A measured value, or the ratio of two, and the interval that it is known to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

from seatrial.metrics.dependence import Values, effective_size, student_quantile

Statistic = Literal["median", "mean"]

LEVEL = 0.95
CENTRAL = 1 / 3  # of the values on either side of the median; what lies further out may be spikes
FINEST, USUAL = 6, 3  # decimals
LARGEST = 1e30  # no time, rate or count is
TELLING = 4  # different values, to tell how many decimals are printed


def only_finite(values: Values) -> Values:
    """The values without NaN, which stands for what is not known, and without what is infinite."""
    return values[np.isfinite(values)]


def median_of_finite(values: Values) -> float | None:
    """The median of the finite values; None without any."""
    finite = only_finite(values)
    return float(np.median(finite)) if len(finite) else None


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A measured value with its 95% interval; `origin` says what it comes from if not from the times of the steps."""

    value: float
    low: float
    high: float
    origin: str = ""

    @classmethod
    def exactly(cls, value: float, origin: str) -> Estimate:
        """A figure that comes without an interval."""
        return cls(value=value, low=value, high=value, origin=origin)


def median_interval(values: Values, level: float = LEVEL) -> tuple[float, float]:
    """The interval of the median of a series in its order, of values that may depend on their neighbours.

    The order statistics between which the median lies, whatever the distribution (Mood & Graybill), for as many values
    as the series amounts to (`effective_size`), with Student's quantile for so many. Where these would lie outside of
    the middle two thirds, the distances to the ends of that are extended in proportion, on the logarithm.
    """
    n = len(values)
    if n == 1:
        return float(values[0]), float(values[0])
    size = effective_size(values)
    return around_median(values, size, student_quantile(level, size - 1))


def around_median(values: Values, size: float, errors: float) -> tuple[float, float]:
    """The values that are so many standard errors of the median to either side, if they amount to `size` values."""
    n, median = len(values), float(np.median(values))
    reach = errors * n / math.sqrt(size) / 2  # in ranks, from the middle
    if reach <= CENTRAL * n:
        ordered = np.sort(values)
        first, last = max(1, math.floor(n / 2 - reach)), min(n, math.ceil(n / 2 + 1 + reach))
        return float(ordered[first - 1]), float(ordered[last - 1])
    low, high = (float(end) for end in np.quantile(values, [0.5 - CENTRAL, 0.5 + CENTRAL]))
    factor = reach / (CENTRAL * n)
    return _extended(median, low, factor), _extended(median, high, factor)


def _extended(middle: float, end: float, factor: float) -> float:
    """As many times as far from the middle: on the logarithm where both are above 0, as times and rates are."""
    if min(middle, end) <= 0:
        return middle + factor * (end - middle)
    most = math.log(LARGEST)
    return middle * math.exp(max(-most, min(factor * math.log(end / middle), most)))


def mean_interval(values: Values) -> tuple[float, float]:
    """Student's interval of the mean of a series in its order, for as many values as it amounts to."""
    mean = float(np.mean(values))
    if len(values) == 1:
        return mean, mean
    size = effective_size(values)
    error = float(np.std(values, ddof=1)) / math.sqrt(size)
    factor = student_quantile(LEVEL, size - 1)
    return _extended(mean, mean - error, factor), _extended(mean, mean + error, factor)


def estimate(values: Values, statistic: Statistic = "median", origin: str = "") -> Estimate:
    """The median or mean of a series in its order, with its 95% interval, which ends where the values do."""
    value = float(np.median(values) if statistic == "median" else np.mean(values))
    low, high = median_interval(values) if statistic == "median" else mean_interval(values)
    low, high = max(low, float(values.min())), min(high, float(values.max()))
    return Estimate(value=value, low=min(low, value), high=max(high, value), origin=origin)


def relative_rounding(values: Values) -> float:
    """The most that `rounding` can have moved a value by, as a fraction of the median; infinity if the median is 0."""
    half = rounding(values)
    median = float(np.median(np.abs(only_finite(values)))) if half else 0.0
    return half / median if median else math.inf if half else 0.0


def rounding(values: Values) -> float:
    """Half of the last decimal that the values are printed with: 0 if they are not rounded; NaN counts for nothing."""
    present = np.abs(only_finite(values))
    if not len(present):
        return 0.0
    fewest = 0 if len(np.unique(present)) >= TELLING else USUAL  # a few round numbers may be so by chance
    decimals = next((d for d in range(fewest, FINEST) if np.array_equal(np.round(present, d), present)), None)
    return 0.0 if decimals is None else 0.5 / 10**decimals


def last_digit(value: float) -> float:
    """The value of the last digit of a number as Python writes it: of 2.31, 0.01."""
    text = repr(value)
    return 0.0 if "e" in text else 10.0 ** -len(text.partition(".")[2])


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A ratio and its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def inverse(self) -> Ratio:
        return Ratio(value=1 / self.value, low=1 / self.high, high=1 / self.low)

    def about(self, value: float) -> Ratio:
        """With an interval that reaches as far about another value, as a multiple of it."""
        return Ratio(value=value, low=value * self.low / self.value, high=value * self.high / self.value)

    def widened(self, other: Ratio) -> Ratio:
        """With an interval that reaches as far as that of another estimate of the same ratio."""
        return Ratio(value=self.value, low=min(self.low, other.low), high=max(self.high, other.high))

    def no_surer_than(self, share: float) -> Ratio:
        """With an interval that reaches at least that share of the value to either side."""
        return self.widened(Ratio(value=self.value, low=self.value / (1 + share), high=self.value * (1 + share)))

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


def at_level(found: Estimate, level: float) -> tuple[float, float, float]:
    """(value, low, high) of a 95% interval as it would be at another level, if the error is normal on the logarithm."""
    factor = NormalDist().inv_cdf((1 + level) / 2) / NormalDist().inv_cdf((1 + LEVEL) / 2)
    return found.value, _extended(found.value, found.low, factor), _extended(found.value, found.high, factor)
