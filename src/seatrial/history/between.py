"""The differences between runs of one configuration, and what they mean for a comparison.

The same job on other nodes or on another day has another speed, and no number of steps within a run tells how far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from seatrial.metrics.dependence import student_quantile
from seatrial.metrics.interval import Ratio


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The noise between runs: `sigma` is the standard deviation of the logarithm of their speeds, about its fraction.

    It comes from `num_runs` runs and has `df` degrees of freedom.
    """

    sigma: float
    df: int
    num_runs: int


def spread_of(groups: Sequence[Sequence[float]]) -> Spread | None:
    """From groups of figures above 0, each of the same work, that all have the same noise; None if no group has two."""
    squares, df, num_runs = 0.0, 0, 0
    for group in groups:
        if len(group) < 2:
            continue
        logs = [math.log(value) for value in group]
        mean = math.fsum(logs) / len(logs)
        squares += math.fsum((value - mean) ** 2 for value in logs)
        df += len(group) - 1
        num_runs += len(group)
    return Spread(sigma=math.sqrt(squares / df), df=df, num_runs=num_runs) if df else None


def ratio_between(a: Sequence[float], b: Sequence[float], spread: Spread, level: float) -> Ratio:
    """The geometric mean of b over that of a, with Student's interval for runs that differ by that spread."""
    distance = mean_log(b) - mean_log(a)
    reach = student_quantile(level, spread.df) * spread.sigma * math.sqrt(1 / len(a) + 1 / len(b))
    return Ratio(value=math.exp(distance), low=math.exp(distance - reach), high=math.exp(distance + reach))


def mean_log(values: Sequence[float]) -> float:
    """The mean of the logarithms."""
    return math.fsum(math.log(value) for value in values) / len(values)
