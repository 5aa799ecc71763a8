"""The step from which a run is slower: found where it is, and nowhere else."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import signal

from seatrial.metrics.shifts import find_shifts


def course(rng: np.random.Generator, n: int, *, likeness: float = 0.0, noise: float = 0.01) -> np.ndarray:
    """Step times around half a second with spikes, in milliseconds; each may resemble the one before it (AR(1))."""
    shocks = rng.standard_normal(n + 100) * math.sqrt(1 - likeness**2)
    values = 0.5 * np.exp(noise * signal.lfilter([1.0], [1.0, -likeness], shocks)[100:])
    return np.where(rng.random(n) < 0.02, values * rng.uniform(1.2, 3, n), values)


@pytest.mark.parametrize("change", [-0.08, 0.05, 0.096, 0.5])
@pytest.mark.parametrize(("n", "at"), [(60, 25), (100, 41), (100, 85), (1000, 410), (5000, 4000)])
def test_a_shift_is_found_at_its_step(change: float, n: int, at: int) -> None:
    rng = np.random.default_rng(n + at)
    values = course(rng, n, noise=0.005)
    values[at:] *= 1 + change
    (found,) = find_shifts(range(100, 100 + n), np.round(values, 3))
    assert abs(found.step - (100 + at)) <= 1
    assert found.place == found.step - 100
    assert found.change == pytest.approx(change, abs=0.01)
    assert found.after_seconds / found.before_seconds == pytest.approx(1 + change, rel=0.02)


def test_several_shifts_come_in_order() -> None:
    rng = np.random.default_rng(1)
    values = course(rng, 300, noise=0.005)
    values[80:160] *= 1.1
    values[230:] *= 1.2
    found = find_shifts(range(300), values)
    assert [shift.step for shift in found] == pytest.approx([80, 160, 230], abs=1)
    assert [shift.change > 0 for shift in found] == [True, False, True]


@pytest.mark.slow
@pytest.mark.parametrize(("likeness", "n"), [(0.0, 30), (0.0, 300), (0.5, 100), (0.9, 30), (0.9, 100), (0.9, 400)])
def test_noise_has_none(likeness: float, n: int) -> None:
    rng = np.random.default_rng(n)
    found = [find_shifts(range(n), np.round(course(rng, n, likeness=likeness, noise=0.02), 3)) for _ in range(120)]
    assert sum(map(bool, found)) <= 0.02 * len(found) + 3


def test_neither_a_drift_nor_a_spike_nor_two_speeds_in_turn_is_one() -> None:
    rng = np.random.default_rng(2)
    values = course(rng, 100, noise=0.003)
    spiked = values.copy()
    spiked[[20, 21, 22, 60]] *= 8  # a checkpoint, and an evaluation
    for each in (
        values * np.linspace(1, 1.2, 100),
        spiked,
        np.where(np.arange(100) % 3 == 0, 0.8, 0.5) * values,
        np.full(100, 0.5),
        np.round(values, 2),
        values[:19] * np.where(np.arange(19) < 9, 1, 2),  # too few on either level
        np.array([]),
    ):
        assert find_shifts(range(len(each)), each) == ()
