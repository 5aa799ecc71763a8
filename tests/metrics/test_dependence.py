"""Statistics of steps that resemble each other: against theory, and scipy as a witness."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import signal, stats

from seatrial.metrics.dependence import correlation_time, effective_size, midranks, student_p, student_quantile


def ar(rng: np.random.Generator, n: int, likeness: float) -> np.ndarray:
    """An AR(1) of unit variance."""
    noise = rng.standard_normal(n + 200) * math.sqrt(1 - likeness**2)
    return signal.lfilter([1.0], [1.0, -likeness], noise)[200:]


@pytest.mark.parametrize("likeness", [0.0, 0.5, 0.9])
def test_the_correlation_time_of_a_long_series_is_that_of_theory(likeness: float) -> None:
    rng = np.random.default_rng(1)
    found = [correlation_time(ar(rng, 4000, likeness)) for _ in range(40)]
    assert np.median(found) == pytest.approx((1 + likeness) / (1 - likeness), rel=0.15)


def test_few_steps_do_not_look_more_independent_than_they_are() -> None:
    rng = np.random.default_rng(2)
    found = [correlation_time(ar(rng, 30, 0.9)) for _ in range(400)]
    assert np.median(found) >= 7  # of 19; at most 10 can be told of 30
    assert np.mean(np.array(found) < 3) < 0.1


def test_a_slow_wave_below_noise_is_seen_though_neighbours_hardly_resemble_each_other() -> None:
    rng = np.random.default_rng(3)
    mixed = [math.sqrt(0.5) * (ar(rng, 2000, 0.9) + rng.standard_normal(2000)) for _ in range(40)]
    assert np.median([correlation_time(values) for values in mixed]) == pytest.approx(10, rel=0.25)


def test_neither_spikes_nor_skew_nor_scale_change_it() -> None:
    rng = np.random.default_rng(4)
    values = ar(rng, 500, 0.5)
    assert correlation_time(np.exp(3 * values)) == pytest.approx(correlation_time(values))
    spiked = values.copy()
    spiked[::50] += 1000
    assert correlation_time(spiked) == pytest.approx(correlation_time(values), rel=0.25)


def test_what_says_nothing_is_independent() -> None:
    for values in ([1.0], [1.0, 2.0], [3.0] * 40, [0.5, 0.6] * 20):
        assert correlation_time(np.array(values)) == 1.0
        assert effective_size(np.array(values)) == len(values)


def test_ranks_and_students_distribution_against_scipy() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        values = np.round(rng.normal(0, 1, int(rng.integers(1, 60))), int(rng.integers(0, 4)))
        assert np.array_equal(midranks(values), stats.rankdata(values))
    for df in (*range(1, 34), 60, 200, 5000):
        for level in (0.5, 0.9, 0.95, 0.98, 0.999):
            assert student_quantile(level, df) == pytest.approx(stats.t.ppf((1 + level) / 2, df), rel=1e-3)
        for t in (0.1, 1.0, 2.5, 4.0):
            assert student_p(t, df) == pytest.approx(2 * stats.t.sf(t, df), rel=0.11)
    assert student_quantile(0.95, 4.9) == student_quantile(0.95, 4)
