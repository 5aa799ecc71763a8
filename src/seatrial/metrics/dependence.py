"""The dependence between neighbouring values of a series, and the number of independent values that they amount to.

The step after a slow step is often slow too. A series of n such values tells no more than n ÷ τ independent ones, where
τ, the correlation time, is 1 plus twice the sum of all autocorrelations.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

SIGMA_PER_MAD = 1.4826  # of a normal distribution
FEWEST_EFFECTIVE = 3.0
WINDOW = 5.0  # correlation times, up to which autocorrelations are summed (Sokal 1997)
CLOSED_FORM = 30  # degrees of freedom; above, the series' error is below 1e-4
BISECTIONS = 60


def correlation_time(values: Values, fitted: int = 1) -> float:
    """τ ≥ 1 of a series in its order: 1 for independent values, 19 for an AR(1) of 0.9; at most a third of the series.

    `fitted` counts the parameters that were removed from it, the mean among them: each makes it look more independent.

    The larger of two estimates from the autocorrelations of the ranks, which no spike and no skew can sway: that of an
    AR(1), (1 + ρ) ÷ (1 − ρ) with the bias of ρ removed (Kendall 1954), which is right for few values; and the sum of
    the autocorrelations within a window that grows with it (Sokal 1997), which sees a slow wave below faster noise.
    """
    n = len(values)
    if n < 3:
        return 1.0
    ranks = midranks(values)
    spectrum = np.fft.rfft(ranks - ranks.mean(), 2 * n)
    covariance = np.fft.irfft(spectrum * np.conj(spectrum))[:n]
    if covariance[0] <= 0 or np.ptp(ranks) == 0:
        return 1.0
    correlation = covariance / covariance[0]
    rho = min(float(correlation[1] + fitted * (1 + 3 * correlation[1]) / n), 1 - 1 / n)
    sums = 2 * np.cumsum(correlation) - 1
    enough = np.flatnonzero(np.arange(n) >= WINDOW * sums)
    lag = int(enough[0]) if len(enough) else n - 1
    summed = float(sums[lag]) * (1 + fitted * (2 * lag + 1) / n)
    return min(max(1.0, (1 + rho) / (1 - rho), summed), max(1.0, n / FEWEST_EFFECTIVE))


def effective_size(values: Values) -> float:
    """The number of independent values that tell as much as these do."""
    return len(values) / correlation_time(values)


def midranks(values: Values) -> Values:
    """The ranks from 1 on; equal values share the middle of theirs."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle: Values = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return middle


def student_quantile(level: float, df: float) -> float:
    """The half-width of an interval of that level, in standard errors: Student's t with `df` ≥ 1.

    A fraction of a degree of freedom counts for nothing. By the closed form (Abramowitz & Stegun 26.7.3, 26.7.4), and
    for many degrees of freedom by the expansion about the normal distribution (26.7.5).
    """
    whole = max(1, math.floor(df))
    if whole > CLOSED_FORM:
        z = NormalDist().inv_cdf((1 + level) / 2)
        return z + (z**3 + z) / (4 * whole) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * whole**2)
    low, high = 0.0, math.pi / 2
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, whole) < level else (low, middle)
    return math.sqrt(whole) * math.tan(low)


def student_p(t: float, df: float) -> float:
    """The two-sided probability of a |t| as large as this by chance, with `df` ≥ 1 degrees of freedom, rounded down."""
    whole = max(1, math.floor(df))
    if whole > CLOSED_FORM:  # (Abramowitz & Stegun 26.7.8)
        z = abs(t) * (1 - 1 / (4 * whole)) / math.sqrt(1 + t * t / (2 * whole))
        return math.erfc(z / math.sqrt(2))
    return 1 - _within(math.atan(abs(t) / math.sqrt(whole)), whole)


def _within(angle: float, df: int) -> float:
    """P(|T| < √df · tan(angle))."""
    odd = df % 2
    cosine = math.cos(angle)
    term, total = (cosine if odd else 1.0), 0.0
    for k in range(2 + odd, df + 1, 2):
        total += term
        term *= cosine * cosine * (k - 1) / k
    series = math.sin(angle) * total
    return 2 / math.pi * (angle + series) if odd else series
