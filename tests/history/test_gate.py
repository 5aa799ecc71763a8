"""The gate: who passes, who fails, and who is left open."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seatrial.history import compare_runs
from seatrial.history.compare import compare
from seatrial.history.gate import judge_slowdown
from seatrial.history.loaded import LoadedRun, load
from tests.helpers.history_runs import loaded, make


@pytest.mark.parametrize(
    ("times", "status"),
    [(0.8, "pass"), (1.0, "pass"), (1.02, "pass"), (1.031, "inconclusive"), (1.05, "fail"), (2.0, "fail")],
)
def test_the_whole_interval_decides(tmp_path: Path, times: float, status: str) -> None:
    gate = judge_slowdown(compare(loaded(tmp_path / "a", seed=1), loaded(tmp_path / "b", seed=2, times=times)), 0.03)
    assert gate.status == status
    assert gate.low <= 1 - 1 / times <= gate.high


def test_a_slower_run_never_passes_whatever_the_noise(tmp_path: Path) -> None:
    """Slower by more than the limit, in a hundred draws of the noise: at most what 95 % intervals let through."""
    a, b = loaded(tmp_path / "a"), loaded(tmp_path / "b", times=1.05)
    passed = 0
    rng = np.random.default_rng(5)
    for _ in range(100):
        noisy = [
            replace(run, steady_seconds=run.metrics.performance.step_times.median * rng.lognormal(0, 0.02, size=20))
            for run in (a, b)
        ]
        passed += judge_slowdown(compare(*noisy), 0.03).status == "pass"
    assert passed <= 3


def test_times_that_are_rounded_are_no_surer_than_their_digits(tmp_path: Path) -> None:
    """Around 28 s in whole tenths: half of a tenth either way, in both runs, is 0.36 % more of doubt."""
    runs = [loaded(tmp_path / name, seed=n) for n, name in enumerate("ab")]
    tenths = np.round(28 + np.random.default_rng(7).normal(0, 0.3, size=26), 1)
    widths = []
    for times in (tenths + 1e-7 * np.arange(26), tenths):
        a, b = (replace(run, steady_seconds=times) for run in runs)
        gate = judge_slowdown(compare(a, b), 0.03)
        widths.append(gate.high - gate.low)
    assert math.isclose(widths[1] - widths[0], 4 * 0.05 / 28, rel_tol=0.1)


def other_outcome(run: LoadedRun, outcome: str) -> LoadedRun:
    return replace(run, verdict=replace(run.verdict, outcome=outcome))


@pytest.mark.parametrize("outcome", ["fail", "died", "no_progress", "could_not_run", "interrupted"])
def test_a_run_that_did_not_pass_itself_never_passes(tmp_path: Path, outcome: str) -> None:
    a, b = loaded(tmp_path / "a", seed=1), loaded(tmp_path / "b", seed=2)
    assert judge_slowdown(compare(a, b), 0.03).status == "pass"
    assert judge_slowdown(compare(a, other_outcome(b, outcome)), 0.03).status == "fail"
    assert judge_slowdown(compare(other_outcome(a, outcome), b), 0.03).status == "inconclusive"


def test_a_run_whose_verdict_is_open_leaves_the_gate_open(tmp_path: Path) -> None:
    a, b = loaded(tmp_path / "a", seed=1), loaded(tmp_path / "b", seed=2)
    assert judge_slowdown(compare(a, other_outcome(b, "inconclusive")), 0.03).status == "inconclusive"


def test_a_run_that_really_died_fails_the_gate(tmp_path: Path) -> None:
    make(tmp_path / "a")
    make(tmp_path / "b", seed=1, last=20)
    text, code = compare_runs(str(tmp_path / "a"), str(tmp_path / "b"), limit=0.03)
    assert code == 1
    assert "B did not pass its own verdict: died" in text


def test_a_loss_of_nan_fails_the_gate(tmp_path: Path) -> None:
    make(tmp_path / "a")
    make(tmp_path / "b", loss=lambda step: math.nan if step > 20 else 5.0 - step / 10)
    assert compare_runs(str(tmp_path / "a"), str(tmp_path / "b"), limit=0.03)[1] == 1


def test_few_steps_leave_it_open(tmp_path: Path) -> None:
    a, b = loaded(tmp_path / "a", seed=1), loaded(tmp_path / "b", seed=2)
    times = replace(b.metrics.performance.step_times, n=9)
    performance = replace(b.metrics.performance, step_times=times)
    few = replace(b, metrics=replace(b.metrics, performance=performance))
    gate = judge_slowdown(compare(a, few), 0.03)
    assert gate.status == "inconclusive"
    assert any("9 steady steps" in reason for reason in gate.reasons)


def test_without_a_configuration_it_is_open_until_somebody_vouches(tmp_path: Path) -> None:
    a, b = (replace(loaded(tmp_path / name, seed=n), spec=None) for n, name in enumerate("ab"))
    assert judge_slowdown(compare(a, b), 0.03).status == "inconclusive"
    assert judge_slowdown(compare(a, b, anyway=True), 0.03, anyway=True).status == "pass"


@pytest.mark.parametrize(("times", "code"), [(1.0, 0), (1.2, 1), (1.031, 6)])
def test_the_gate_gives_the_exit_code(tmp_path: Path, times: float, code: int) -> None:
    make(tmp_path / "a", seed=1)
    make(tmp_path / "b", seed=2, times=times)
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert compare_runs(a, b)[1] == 0
    assert compare_runs(a, b, limit=0.03)[1] == code
    assert load(tmp_path / "b").verdict.outcome == "pass"
