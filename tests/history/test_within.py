"""The noise within runs: against scipy, and by how often runs of the same speed are called different."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from seatrial.history.compare import FALSE_ALARMS, LEVEL
from seatrial.history.within import degrees_of_freedom, ratio_within
from tests.metrics.test_ratio import series


def test_the_degrees_of_freedom_are_those_of_welchs_test() -> None:
    rng = np.random.default_rng(1)
    for _ in range(30):
        a, b = (rng.normal(0, rng.uniform(0.1, 3), int(rng.integers(2, 40))) for _ in range(2))
        variances = [float(np.var(side, ddof=1)) / len(side) for side in (a, b)]
        exact = stats.ttest_ind(a, b, equal_var=False).df
        assert degrees_of_freedom(variances, [len(a) - 1, len(b) - 1]) == pytest.approx(exact)
    assert degrees_of_freedom([0.0, 0.0], [4, 5]) == 9


@pytest.mark.parametrize(("n", "neighbours"), [(30, 0.0), (30, 0.5), (30, 0.9), (100, 0.9)])
def test_runs_of_the_same_speed_are_rarely_called_different(n: int, neighbours: float) -> None:
    rng = np.random.default_rng(7)
    wrong, pairs = 0, 400
    for _ in range(pairs):
        ratio = ratio_within(*([series(rng, n, neighbours=neighbours)] for _ in range(2)), LEVEL)
        wrong += not ratio.low <= 1 <= ratio.high
    # What more than one time in a hundred has by chance at the rate that is allowed.
    assert wrong <= stats.binom.ppf(0.99, pairs, FALSE_ALARMS)


def test_of_the_same_width_as_a_t_test_of_independent_steps() -> None:
    """Of normal steps, the median's interval is wider than the mean's by the square root of π ÷ 2.

    Some more, because the longer of two correlation times that were estimated is above 1.
    """
    rng = np.random.default_rng(3)
    widths = []
    for _ in range(40):
        a, b = (np.exp(rng.normal(0, 0.01, 400)) for _ in range(2))
        ratio = ratio_within([a], [b], LEVEL)
        exact = stats.ttest_ind(np.log(b), np.log(a), equal_var=False).confidence_interval(LEVEL)
        widths.append(math.log(ratio.high / ratio.low) / (exact.high - exact.low))
    assert 1 <= np.median(widths) / math.sqrt(math.pi / 2) < 1.2


def test_the_mean_of_several_runs_is_known_better_than_one() -> None:
    rng = np.random.default_rng(4)
    runs = [series(rng, 100) for _ in range(5)]
    one, four = ratio_within(runs[:1], runs[4:], LEVEL), ratio_within(runs[:4], runs[4:], LEVEL)
    assert math.log(four.high / four.low) < math.log(one.high / one.low)
    assert four.value == pytest.approx(
        float(np.median(runs[4])) / stats.gmean([float(np.median(run)) for run in runs[:4]])
    )
