"""The interval of a ratio of medians, against what is known of the series that it is computed from."""

from __future__ import annotations

import math

import numpy as np
import pytest

from seatrial.metrics.interval import Estimate, Ratio, at_level, median_interval, ratio_of_intervals


def series(rng: np.random.Generator, n: int, *, neighbours: float = 0.0, noise: float = 0.02) -> np.ndarray:
    """Step times around 1 s whose logarithms resemble their neighbours' by that correlation."""
    values = np.empty(n + 50)
    values[0] = rng.normal()
    for k in range(1, n + 50):
        values[k] = neighbours * values[k - 1] + math.sqrt(1 - neighbours**2) * rng.normal()
    return np.exp(noise * values[50:])


def compared(a: np.ndarray, b: np.ndarray, level: float = 0.95) -> Ratio:
    """The ratio of two medians as two runs are compared by."""
    one, other = ((float(np.median(values)), *median_interval(values, level)) for values in (a, b))
    return ratio_of_intervals(one, other)


@pytest.mark.parametrize(
    ("n", "neighbours"), [(10, 0.0), (10, 0.5), (20, 0.5), (40, 0.0), (100, 0.5), (30, 0.9), (100, 0.9)]
)
def test_the_interval_holds_the_true_ratio_about_as_often_as_it_says(n: int, neighbours: float) -> None:
    rng = np.random.default_rng(n + int(10 * neighbours))
    held, pairs = 0, 80
    for _ in range(pairs):
        ratio = compared(series(rng, n, neighbours=neighbours), 1.03 * series(rng, n, neighbours=neighbours))
        held += ratio.low <= 1.03 <= ratio.high
    assert held / pairs >= 0.91  # of 95 %


def test_more_steps_make_it_narrower() -> None:
    rng = np.random.default_rng(0)
    widths = []
    for n in (10, 40, 400):
        ratio = compared(series(rng, n), series(rng, n))
        widths.append(ratio.high - ratio.low)
    assert widths == sorted(widths, reverse=True)


def test_the_same_series_twice_is_a_ratio_of_one() -> None:
    values = series(np.random.default_rng(1), 30)
    ratio = compared(values, values)
    assert ratio.value == 1
    assert ratio.low < 1 < ratio.high
    assert compared(values, values) == ratio


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_few_steps_have_a_wide_interval(n: int) -> None:
    a, b = series(np.random.default_rng(2), n), 2 * series(np.random.default_rng(3), n)
    ratio = compared(a, b)
    assert ratio.low <= ratio.value <= ratio.high
    assert math.isclose(ratio.value, float(np.median(b) / np.median(a)))
    if n > 1:
        assert ratio.high / ratio.low > 1.02
        wider = compared(a, b, 0.99)
        assert wider.low < ratio.low < ratio.high < wider.high


def test_an_interval_at_another_level() -> None:
    value, low, high = at_level(Estimate(value=1.0, low=math.exp(-0.0196), high=math.exp(0.0392)), 0.98)
    assert (value, low, high) == pytest.approx((1.0, math.exp(-0.02326), math.exp(0.04653)), rel=1e-4)


def test_intervals_add_in_squares() -> None:
    """Of logarithms that are normal, the interval of the difference is known in closed form."""
    a = (1.0, math.exp(-0.03), math.exp(0.03))
    b = (2.0, 2 * math.exp(-0.04), 2 * math.exp(0.04))
    ratio = ratio_of_intervals(a, b)
    assert math.isclose(ratio.value, 2)
    assert math.isclose(ratio.low, 2 * math.exp(-0.05))
    assert math.isclose(ratio.high, 2 * math.exp(0.05))
    exact = ratio_of_intervals((4.0, 4.0, 4.0), (2.0, 2.0, 2.0))
    assert exact == Ratio(value=0.5, low=0.5, high=0.5)


def test_rounding_is_allowed_for() -> None:
    assert Ratio(value=1.0, low=1.0, high=1.0).rounded(0.01) == Ratio(value=1.0, low=1 / 1.01, high=1.01)


def test_rounding_is_the_least_that_is_not_known() -> None:
    sure = Ratio(value=1.0, low=1.0, high=1.05)
    assert sure.no_surer_than(0.01) == Ratio(value=1.0, low=1 / 1.01, high=1.05)


def test_the_inverse_turns_the_interval_around() -> None:
    ratio = Ratio(value=2.0, low=1.6, high=2.5).inverse
    assert (ratio.value, ratio.low, ratio.high) == (0.5, 0.4, 0.625)
