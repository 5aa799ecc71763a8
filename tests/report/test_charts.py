"""The contents of a page's charts: which points are kept, which part of an axis shows, where targets lie."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seatrial import events, recording
from seatrial.report.charts import chart_data, frame, thinned
from seatrial.report.gather import RunReport, gather
from seatrial.spec import Expectation, RunSpec
from tests.helpers import run_directory, streams

ANY = st.floats(allow_nan=True, allow_infinity=True, width=32)


@settings(max_examples=100)
@given(values=st.lists(st.tuples(ANY, ANY), min_size=1, max_size=400), most=st.integers(8, 60))
def test_a_thinned_curve_keeps_every_end_and_gap(values: list[tuple[float, float]], most: int) -> None:
    curves = [np.array(column, dtype=np.float64) for column in zip(*values, strict=True)]
    kept, starts = thinned(len(values), curves, most)
    assert kept == sorted(set(kept))
    assert (kept[0], kept[-1]) == (0, len(values) - 1)
    assert len(kept) <= max(most + 8, len(values) if len(values) <= most else 0)
    for curve in curves:
        shown, finite = curve[kept], curve[np.isfinite(curve)]
        if len(finite):
            assert {finite.min(), finite.max()} <= set(shown.tolist())
        assert np.isfinite(curve).all() == np.isfinite(shown).all()
    assert all(0 <= start < len(kept) for start in starts)


def test_a_spike_leaves_the_frame_and_a_fall_does_not() -> None:
    rng = random.Random(0)
    loss = np.array([2 + 9 * math.exp(-n / 30) + rng.gauss(0, 0.02) for n in range(400)])
    whole = (loss.min(), loss.max())
    loss[200] = 90.0
    low, high = frame(loss, np.ones(400, dtype=bool), None) or (0, 0)
    assert (low, high) == pytest.approx(whole, abs=0.05)
    seconds = np.array([95.0, *(7 + rng.gauss(0, 0.05) for _ in range(50))])
    steady = np.array([False, *[True] * 50])
    low, high = frame(seconds, steady, 7.0) or (0, 0)
    assert (low, high) == pytest.approx((6.3, 7.7))
    assert frame(np.array([math.nan, math.inf]), np.array([True, True]), None) is None


def test_a_fall_up_to_the_last_step_is_shown_whole(tmp_path: Path) -> None:
    report = gather(run_directory.write(tmp_path / "run", run_directory.diverged, rehearsing=False))
    curve = chart_data(report)["curves"]["loss"]
    known = [value for value in curve["values"] if value is not None]
    assert curve["frame"] == pytest.approx((min(known), max(known)))


def reported(folder: Path, *targets: Expectation, **of_story: object) -> RunReport:
    asked = replace(run_directory.asked_for(), expectations=targets)
    return gather(run_directory.write(folder / "run", run_directory.sound, asked=asked, rehearsing=False, **of_story))


def test_a_target_lies_on_each_curve_of_speed(tmp_path: Path) -> None:
    """A speed on another curve is where the run's own figures would be if it met the target exactly."""
    report = reported(
        tmp_path,
        Expectation(metric="tflops_per_second_per_device", value=400.0, tolerance=0.1),
        Expectation(metric="step_seconds", value=30.0, tolerance=0.0),
    )
    assert report.metrics is not None
    found = report.metrics.performance.estimates
    tokens = 48 * 8192 / 16
    curves = chart_data(report)["curves"]
    flops = found["tflops_per_second_per_device"].value * found["step_seconds"].value  # of a step and device
    seconds = [target["value"] for target in curves["seconds"]["targets"]]
    assert seconds == pytest.approx([flops / 360, 30.0], rel=1e-5)
    rates = [target["value"] for target in curves["rate"]["targets"]]
    assert rates == pytest.approx([tokens / (flops / 360), tokens / 30.0], rel=1e-5)
    assert [target["text"] for target in curves["rate"]["targets"]] == ["target ≥ 360 TFLOP/s", "target ≤ 30 s"]
    assert "targets" in curves["loss"]
    assert curves["loss"]["targets"] == []


def test_a_rehearsal_has_no_targets(tmp_path: Path) -> None:
    report = gather(run_directory.write(tmp_path / "run"))
    assert all(curve["targets"] == [] for curve in chart_data(report)["curves"].values())


def test_the_histogram_counts_the_steps_of_the_median(tmp_path: Path) -> None:
    rng = random.Random(4)
    times = [rng.gauss(28, 0.2) if n != 60 else 90.0 for n in range(200)]

    def story(spec: RunSpec) -> list[list[events.Event]]:
        made = streams.steps(spec, seconds=lambda n: times[n])
        return [[streams.started(spec), *made, streams.ended()]]

    asked = run_directory.asked_for(steps=200, topology=streams.make_spec().topology, expectations=())
    report = gather(run_directory.write(tmp_path / "run", story, asked=asked, rehearsing=False))
    assert report.metrics is not None
    assert report.metrics.performance.step_times is not None
    found = chart_data(report)["histogram"]
    assert sum(found["counts"]) + found["beyond"] == report.metrics.performance.step_times.n
    assert found["beyond"] == 1
    assert found["edges"][0] < found["median"] < found["edges"][-1] < 40


def test_memory_learning_rate_and_evaluations_have_their_charts(tmp_path: Path) -> None:
    def story(spec: RunSpec) -> list[list[events.Event]]:
        made = [replace(step, reported={"memory_fraction": 0.5}) for step in streams.steps(spec)]
        evals = [events.Eval(step=n, loss=5 - n / 10, wall_time=made[n].wall_time) for n in (9, 19, 29)]
        return [recording.merge([[streams.started(spec)], made, evals, [streams.ended()]])]

    asked = run_directory.asked_for(
        topology=streams.make_spec().topology, expectations=(Expectation(metric="memory_fraction", value=0.8),)
    )
    data = chart_data(gather(run_directory.write(tmp_path / "run", story, asked=asked, rehearsing=False)))
    assert set(data["curves"]["memory"]["values"]) == {50.0}
    assert [target["value"] for target in data["curves"]["memory"]["targets"]] == [pytest.approx(84.0)]
    assert set(data["curves"]["learning_rate"]["values"]) == {3e-4}
    assert data["evals"] == {"steps": [9, 19, 29], "values": [4.1, 3.1, 2.1], "targets": []}


def test_attempts_and_shifts_are_marked(tmp_path: Path) -> None:
    def story(spec: RunSpec) -> list[list[events.Event]]:
        again = [streams.started(spec, at=200), *streams.steps(spec, first=5, at=210), streams.ended()]
        return [[streams.started(spec), *streams.steps(spec, last=9), *again]]

    report = gather(run_directory.write(tmp_path / "run", story, rehearsing=False))
    assert [(mark["step"], mark["text"]) for mark in chart_data(report)["marks"]] == [(5, "attempt 2")]
