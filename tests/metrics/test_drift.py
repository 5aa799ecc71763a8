"""Drift, spikes and levels: against brute force, and each by itself."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from seatrial.metrics.drift import find_drift, find_levels, find_spikes, mann_kendall


def brute_force(values: list[float]) -> float:
    """Mann–Kendall pair by pair, its variance with ties group by group (Kendall 1975)."""
    s = sum((later > earlier) - (later < earlier) for earlier, later in itertools.combinations(values, 2))
    n = len(values)
    groups = [values.count(value) for value in set(values)]
    variance = (n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in groups)) / 18
    if s == 0 or variance == 0:
        return 1.0
    z = (abs(s) - 1) / math.sqrt(variance)
    return 2 * (1 - (1 + math.erf(z / math.sqrt(2))) / 2)


def test_mann_kendall_against_brute_force() -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        n = int(rng.integers(3, 40))
        values = rng.normal(0, 1, n) + rng.choice([0, 0.05, -0.1]) * np.arange(n)
        if rng.random() < 0.5:
            values = np.round(values)  # ties
        assert mann_kendall(values) == pytest.approx(brute_force(values.tolist()), abs=1e-9)


def test_a_trend_by_chance_is_as_rare_as_its_p() -> None:
    rng = np.random.default_rng(6)
    found = [mann_kendall(rng.normal(0, 1, 60)) for _ in range(300)]
    assert 0.02 <= np.mean(np.array(found) < 0.05) <= 0.08


def test_a_long_run_is_compared_in_stretches() -> None:
    rng = np.random.default_rng(7)
    assert mann_kendall(rng.lognormal(0, 0.05, 50_000)) > 0.01
    assert mann_kendall(rng.lognormal(0, 0.05, 50_000) * np.linspace(1, 1.01, 50_000)) < 1e-6


@pytest.mark.parametrize("change", [-0.2, -0.05, 0.05, 0.5])
def test_a_run_that_drifts_is_found(change: float) -> None:
    rng = np.random.default_rng(8)
    found = find_drift(rng.lognormal(0, 0.01, 60) * np.linspace(1, 1 + change * 1.5, 60))
    assert found is not None
    assert found.drifts
    assert found.change == pytest.approx(change, rel=0.3)


def test_neither_noise_nor_a_small_or_short_change_is_a_drift() -> None:
    rng = np.random.default_rng(9)
    for values in (rng.lognormal(0, 0.2, 60), np.linspace(1, 1.02, 60), rng.lognormal(0, 0.01, 60)):
        found = find_drift(values)
        assert found is not None
        assert not found.drifts
    assert find_drift(np.linspace(1, 2, 5)) is None


def test_spikes_are_named_with_what_they_cost() -> None:
    seconds = np.full(40, 0.5)
    seconds[[7, 8, 30]] = 5.5
    found = find_spikes(range(100, 140), seconds)
    assert found is not None
    assert (found.steps, found.count, found.longest_seconds) == (((107, 108), (130, 130)), 3, 5.5)
    assert found.share_lost == pytest.approx(15 / seconds.sum())
    assert find_spikes(range(40), np.random.default_rng(0).lognormal(0, 0.2, 40)) is None
    assert find_spikes(range(40), np.where(np.arange(40) == 9, 0.55, 0.5)) is None  # by less than a fifth


def test_two_levels_are_told_from_noise() -> None:
    rng = np.random.default_rng(10)
    found = find_levels(np.where(np.arange(60) % 3 == 0, 0.8, 0.5) * rng.lognormal(0, 0.01, 60))
    assert found is not None
    assert (found.fast_seconds, found.slow_seconds) == pytest.approx((0.5, 0.8), rel=0.02)
    assert found.share_slow == pytest.approx(1 / 3)
    for values in (
        *(rng.lognormal(0, 0.2, 60) for _ in range(50)),
        *(rng.uniform(0.3, 0.7, 40) for _ in range(50)),
        np.full(60, 0.5),
        np.round(rng.uniform(0.501, 0.503, 60), 3),
        np.where(np.arange(60) == 9, 5.0, 0.5),
    ):
        assert find_levels(values) is None
