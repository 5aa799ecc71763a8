"""Tells a trend of the loss from losses that merely resemble their neighbours, as a running mean's do."""

from __future__ import annotations

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from seatrial.metrics.dependence import SIGMA_PER_MAD, Values, correlation_time, student_p

SHIFT_ERROR = math.sqrt(math.pi / 3)  # standard error of Hodges and Lehmann's shift, next to that of a mean's
MOST_COMPARED = 300  # losses of a third, for the shift between two
AROUND = 5  # losses, whose median tells which one of them is an outlier
OUTLIER = 5.0  # standard deviations
BEYOND_NOISE = 8.0  # standard deviations that no third of a stationary series is away from another
ROUNDING = 1e-12  # of the largest loss; what differs by less is the same


def p_of_fall(losses: Values) -> float:
    """The two-sided probability by chance of the fall from the first third to the last one.

    The noise is what is left of the losses without the non-increasing curve that fits them best, whatever the shape of
    the fall: its size is the median absolute deviation's, and its correlation time says how many independent losses
    the run amounts to, for Student's distribution. Noise alone is fitted by about ln(n) + 0.58 levels (Barlow et al.
    1972); if there are more, they are the curve's own and do not make the noise look more independent. A fall by many
    times the noise needs no test: few losses cannot tell their correlation time. 1.0 where they do not fall.
    """
    n = len(losses)
    third = n // 3
    every = -(-third // MOST_COMPARED)
    # The median of all differences (Hodges & Lehmann 1963): the shift that the rank-sum test is about.
    fall = float(np.median(np.subtract.outer(losses[:third:every], losses[n - third :: every])))
    if fall <= 0:
        return 1.0
    losses = without_outliers(losses)
    curve, levels = falling_curve(losses)
    rest = losses - curve
    apart = np.abs(rest[np.abs(rest) > ROUNDING * float(np.abs(losses).max())])
    sigma = SIGMA_PER_MAD * float(np.median(apart)) if len(apart) else 0.0
    if fall > BEYOND_NOISE * sigma:
        return 0.0
    fitted = min(levels, round(math.log(n) + 0.58))
    time = correlation_time(rest, fitted)
    error = SHIFT_ERROR * sigma * math.sqrt(2 * time / third)
    return student_p(fall / error, n / time - fitted)


def without_outliers(values: Values) -> Values:
    """The values, those far from the median of their neighbours moved as near as the others are (Hampel 1974)."""
    middle = running_median(values, AROUND)
    apart = values - middle
    most = OUTLIER * SIGMA_PER_MAD * float(np.median(np.abs(apart)))
    kept: Values = middle + np.clip(apart, -most, most)
    return kept


def running_median(values: Values, width: int) -> Values:
    """The median of the values around each; before the first and after the last, these are repeated."""
    padded = np.pad(values, width // 2, mode="edge")
    medians: Values = np.median(sliding_window_view(padded, width), axis=1)
    return medians


def falling_curve(values: Values) -> tuple[Values, int]:
    """The non-increasing series that is closest to `values` in squares, and how many levels it has.

    By pooling neighbours that violate the order (Ayer et al. 1955).
    """
    means: list[float] = []
    counts: list[int] = []
    for value in values.tolist():
        mean, count = value, 1
        while means and means[-1] <= mean:
            before, number = means.pop(), counts.pop()
            mean, count = (mean * count + before * number) / (count + number), count + number
        means.append(mean)
        counts.append(count)
    return np.repeat(np.array(means), counts), len(means)
