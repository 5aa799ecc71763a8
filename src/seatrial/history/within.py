"""The ratio of the medians of two sides of runs, as far as the noise within the runs lets it be known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from seatrial.history.between import mean_log
from seatrial.metrics.dependence import FEWEST_EFFECTIVE, Values, correlation_time, student_quantile
from seatrial.metrics.interval import Ratio, around_median, ratio_of_intervals

Ends = tuple[float, float, float]  # value, low, high


def ratio_within(a: Sequence[Values], b: Sequence[Values], level: float) -> Ratio:
    """The geometric mean of b's medians over that of a's, by the noise within these series of times above 0.

    Runs of the same work have noise of the same kind, and few steps make it look more independent than it is: the
    longest correlation time of them all holds for each. The errors of the medians add in squares, on the logarithm,
    and the quantile is Student's, with the degrees of freedom that such a sum has (Welch 1947; Satterthwaite 1946).
    """
    time = max(correlation_time(series) for series in (*a, *b))
    sizes = [[max(len(series) / time, min(len(series), FEWEST_EFFECTIVE)) for series in side] for side in (a, b)]
    one = [_ends(side, own, 1.0) for side, own in zip((a, b), sizes, strict=True)]
    variances = [(math.log(high / low) / 2 / len(ends)) ** 2 for ends in one for _, low, high in ends]
    df = degrees_of_freedom(variances, [size - 1 for own in sizes for size in own])
    errors = student_quantile(level, df)
    return ratio_of_intervals(*(side_of(_ends(side, own, errors)) for side, own in zip((a, b), sizes, strict=True)))


def _ends(side: Sequence[Values], sizes: Sequence[float], errors: float) -> list[Ends]:
    return [(float(np.median(own)), *around_median(own, size, errors)) for own, size in zip(side, sizes, strict=True)]


def degrees_of_freedom(variances: Sequence[float], each: Sequence[float]) -> float:
    """Those of a sum of independent estimates of variance, with so many `each` (Satterthwaite 1946); 1 at the least."""
    squares = math.fsum(own**2 / max(df, 1.0) for own, df in zip(variances, each, strict=True))
    return math.fsum(variances) ** 2 / squares if squares else max(1.0, math.fsum(each))


def side_of(runs: Sequence[Ends]) -> Ends:
    """(value, low, high) of the geometric mean of several runs, each with its own."""
    value = math.exp(mean_log([own for own, _, _ in runs]))
    down = math.sqrt(math.fsum(math.log(own / low) ** 2 for own, low, _ in runs)) / len(runs)
    up = math.sqrt(math.fsum(math.log(high / own) ** 2 for own, _, high in runs)) / len(runs)
    return value, value * math.exp(-down), value * math.exp(up)
