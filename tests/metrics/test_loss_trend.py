"""A trend of the loss among losses that resemble their neighbours: against scipy, and by its errors."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize

from seatrial.metrics.loss_course import find_trend
from seatrial.metrics.loss_trend import falling_curve, p_of_fall
from tests.metrics.test_dependence import ar


def test_the_falling_curve_is_scipys_isotonic_regression() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        values = np.round(rng.normal(0, 1, int(rng.integers(1, 80))), int(rng.integers(0, 4)))
        curve, levels = falling_curve(values)
        exact = optimize.isotonic_regression(values, increasing=False)
        assert curve == pytest.approx(exact.x)
        assert levels == pytest.approx(len(np.unique(np.round(exact.x, 9))), abs=1)


@pytest.mark.parametrize(
    ("likeness", "n", "most"), [(0.0, 30, 0.02), (0.5, 100, 0.03), (0.9, 100, 0.08), (0.9, 300, 0.04)]
)
def test_losses_that_only_resemble_their_neighbours_have_no_trend(likeness: float, n: int, most: float) -> None:
    """As those of a running mean do: a rank-sum test alone finds a fall in a quarter of those of 0.9."""
    rng = np.random.default_rng(2)
    found = [find_trend(5 + 0.1 * ar(rng, n, likeness))[0] for _ in range(300)]
    assert np.mean([each == "falling" for each in found]) <= most
    assert np.mean([each == "rising" for each in found]) <= most


@pytest.mark.parametrize("n", [15, 30, 100, 1000])
@pytest.mark.parametrize("likeness", [0.0, 0.5, 0.9])
def test_a_loss_that_falls_is_seen_to(n: int, likeness: float) -> None:
    rng = np.random.default_rng(3)
    x = np.arange(n) / n
    for curve in (3 + 7.8 * np.exp(-8 * x), 10.8 * (1 + np.arange(n)) ** -0.25, np.full(n, 2.5) - x):
        found = [find_trend(curve + 0.05 * ar(rng, n, likeness))[0] for _ in range(20)]
        assert found.count("falling") >= 19
        back = [find_trend(curve[::-1] + 0.05 * ar(rng, n, likeness))[0] for _ in range(20)]
        assert back.count("rising") >= 19


def test_no_single_outlier_sways_it_and_nothing_is_certain() -> None:
    rng = np.random.default_rng(4)
    falls = 3 - 0.5 * np.arange(60) / 60 + 0.02 * rng.standard_normal(60)
    spiked = falls.copy()
    spiked[40] = 100.0
    assert max(p_of_fall(falls), p_of_fall(spiked)) < 1e-3
    assert p_of_fall(np.full(60, 2.5)) == 1.0
    assert p_of_fall(-falls) == 1.0


@pytest.mark.parametrize("n", [15, 30, 49, 200])
def test_a_burst_at_the_start_that_is_overcome_is_a_fall(n: int) -> None:
    """Its noise is that of the burst alone, beside which no fall is clear."""
    rng = np.random.default_rng(n)
    curve = 8 + 35 * np.exp(-np.arange(n) / (0.15 * n)) + 0.05 * rng.standard_normal(n)
    curve[:2] = 12.4
    assert find_trend(curve)[0] == "falling"
    assert find_trend(np.maximum(curve, 30))[0] != "falling"
