"""Intervals against simulation: how often they hold what they are of."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from seatrial.metrics.interval import estimate, mean_interval, median_interval, relative_rounding


def step_times(rng: np.random.Generator, n: int, likeness: float) -> np.ndarray:
    """Step times around 1 s, each like the one before it (AR(1)), printed with three decimals."""
    noise, value, values = rng.standard_normal(n + 50), 0.0, []
    for shock in noise:
        value = likeness * value + shock
        values.append(math.exp(0.01 * value))
    return np.round(np.array(values[50:]), 3)


@pytest.mark.parametrize(("likeness", "n", "least"), [
    (0.0, 15, 0.92), (0.3, 40, 0.92), (0.5, 60, 0.92), (0.9, 30, 0.75), (0.9, 100, 0.9),
])  # fmt: skip
def test_the_interval_holds_the_true_median_of_times_that_depend_on_each_other(
    likeness: float, n: int, least: float
) -> None:
    rng = np.random.default_rng(1)
    found = [estimate(step_times(rng, n, likeness)) for _ in range(120)]
    assert sum(e.low <= 1 <= e.high for e in found) >= least * len(found)
    assert np.median([e.high - e.low for e in found]) < (0.03 if likeness < 0.9 else 0.1)


def test_the_interval_of_many_independent_values_is_as_narrow_as_theory_has_it() -> None:
    rng = np.random.default_rng(2)
    found = [median_interval(rng.lognormal(0, 0.05, 20_000)) for _ in range(20)]
    exact = 2 * 1.96 * 1.2533 * 0.05 / math.sqrt(20_000)  # of the median of a normal distribution
    assert np.median([high - low for low, high in found]) == pytest.approx(exact, rel=0.25)
    assert np.mean([low < 1 < high for low, high in found]) >= 0.8


def test_the_order_statistics_of_independent_values_are_scipys() -> None:
    """The exact binomial interval of the median; ours may be wider by a rank or two, because it is Student's."""
    rng = np.random.default_rng(6)
    for n in (40, 101, 400):
        values = rng.lognormal(0, 0.05, n)
        values = values[np.argsort(rng.random(n))]
        exact = stats.quantile_test(values, q=1, p=0.5).confidence_interval(0.95)
        low, high = (np.searchsorted(np.sort(values), end) for end in median_interval(values))
        least, most = (np.searchsorted(np.sort(values), end) for end in exact)
        assert low <= least + 1
        assert high >= most - 1
        assert high - low <= 2.5 * (most - least)


def test_few_steps_that_depend_on_each_other_are_no_surer_than_what_was_seen() -> None:
    """A wave: no interval within the values can be right; what a run is said to have been ends where they do."""
    wave = 1 + 0.01 * np.sin(np.arange(30) / 6)
    low, high = median_interval(wave)
    assert low < wave.min() < wave.max() < high
    found = estimate(wave)
    assert (found.low, found.high) == (wave.min(), wave.max())


def test_a_mean_has_the_interval_of_a_mean() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(5, 1, 400)
    found = estimate(values, "mean")
    assert found.value == pytest.approx(values.mean())
    assert found.high - found.low == pytest.approx(2 * 1.96 / 20, rel=0.25)
    mixed = 100 + values[:12]
    exact = stats.ttest_1samp(mixed, 0).confidence_interval(0.95)
    low, high = mean_interval(mixed)
    assert low <= exact.low * 1.001
    assert high >= exact.high * 0.999
    few = estimate(values[:4], "mean")
    assert (few.low, few.high) == (values[:4].min(), values[:4].max())


def test_two_levels_of_tied_values_are_both_in_the_interval() -> None:
    found = estimate(np.array([0.5, 0.6] * 20))
    assert (found.low, found.high) == (0.5, 0.6)


def test_it_is_deterministic_and_follows_the_scale() -> None:
    values = np.random.default_rng(4).lognormal(0, 0.1, 50)
    once = estimate(values)
    assert estimate(values) == once
    doubled = estimate(2 * values)
    assert (doubled.value, doubled.low, doubled.high) == pytest.approx((2 * once.value, 2 * once.low, 2 * once.high))


@pytest.mark.parametrize(
    ("values", "rounding"),
    [
        ([7.9, 8.1, 8.2, 8.4], 0.05 / 8.15),
        ([7.9, 8.1, math.nan, 8.2, 8.4], 0.05 / 8.15),
        ([0.51, 0.52, 0.53, 0.54], 0.005 / 0.525),
        ([0.5, 0.5, 0.5], 0.0005 / 0.5),  # too few values to tell how they are printed
        ([math.pi, math.e], 0.0),
        ([0.0, 0.0], math.inf),
        ([], 0.0),
    ],
)
def test_rounding(values: list[float], rounding: float) -> None:
    assert relative_rounding(np.array(values)) == pytest.approx(rounding)
