"""Changes of a configuration's speed from run to run: found when they are there, and seldom when they are not."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from seatrial.history.trend import LEAST_CHANGE, change, levels_of


def noisy(rng: random.Random, count: int, sigma: float = 0.005, typical: float = 28.0) -> list[float]:
    return [typical * math.exp(rng.gauss(0, sigma)) for _ in range(count)]


@pytest.mark.slow
def test_noise_is_no_change() -> None:
    rng = random.Random(1)
    found = [len(levels_of(noisy(rng, rng.randint(0, 90), rng.uniform(0.001, 0.03)))) > 1 for _ in range(150)]
    assert sum(found) <= 2


@pytest.mark.parametrize(("before", "after"), [(6, 4), (20, 3), (60, 40), (3, 20)])
def test_a_clear_change_is_found_in_its_place(before: int, after: int) -> None:
    rng = random.Random(before)
    for _ in range(10):
        by = rng.choice((0.95, 1.05))
        series = [*noisy(rng, before, 0.003), *(by * each for each in noisy(rng, after, 0.003))]
        one, other = levels_of(series)
        assert abs(other.first - _best_by_squares(series)) <= 1
        assert (one.first, one.end, other.end) == (0, other.first, len(series))
        assert change(one, other) == pytest.approx(by - 1, abs=0.008)


def _best_by_squares(series: list[float]) -> int:
    """The place of the split that leaves the least squares: another criterion than the one that is tested."""
    logs = np.log(series)
    return min(range(3, len(series) - 2), key=lambda place: sum(p.var() * len(p) for p in np.split(logs, [place])))


def test_several_changes() -> None:
    rng = random.Random(4)
    series = [level * each for level in (1.0, 1.06, 0.97, 1.02) for each in noisy(rng, 25, 0.004)]
    assert [level.first for level in levels_of(series)] == pytest.approx([0, 25, 50, 75], abs=1)


@pytest.mark.slow
def test_odd_runs_are_no_change() -> None:
    rng = random.Random(5)
    found = [
        len(levels_of([each * (2 if rng.random() < 0.08 else 1) for each in noisy(rng, 120)])) > 1 for _ in range(40)
    ]
    assert sum(found) <= 1


def test_a_small_change_among_odd_runs_is_found() -> None:
    rng = random.Random(6)
    series = [each * (2 if rng.random() < 0.08 else 1) for each in noisy(rng, 100)]
    series = [each * (1.04 if place >= 70 else 1) for place, each in enumerate(series)]
    assert [level.first for level in levels_of(series)] == pytest.approx([0, 70], abs=2)


def test_what_is_too_small_or_too_short_is_none() -> None:
    assert levels_of([]) == []
    assert len(levels_of([28.0])) == 1
    assert len(levels_of([28.0] * 20 + [28.0 * (1 + LEAST_CHANGE / 2)] * 20)) == 1
    assert len(levels_of([28.0, 28.1, 27.9, 28.0, 56.0, 56.1])) == 1  # two slow runs
