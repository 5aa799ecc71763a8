"""A run that goes on, from look to look, and files that are none of a run."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path

import pytest

from seatrial import events, metrics
from seatrial.serve.following import Following
from tests.helpers import many_runs, streams
from tests.helpers.many_runs import LiveRun


def test_figures_follow_the_run(tmp_path: Path) -> None:
    run = LiveRun(tmp_path / "run", 0, planned=200, nodes=("a", "b"))
    looking = Following(run.directory)
    first = looking.look(time.time())
    assert first is not None
    assert (first.state, first.step, first.planned, first.loss, first.seconds) == ("starting", 0, 200, None, None)
    for number in range(12):
        run.step(seconds=90.0 if number == 0 else 28.0 + 0.1 * number)
    run.write(events.Checkpoint(action="save", step=9))
    found = looking.look(time.time())
    assert found is not None
    median = 28.0 + 0.1 * 6  # of steps 1 to 11: the first one is slower, and does not count
    assert (found.state, found.step, found.planned, found.nodes_up, found.nodes) == ("running", 12, 200, 2, 2)
    assert found.loss == pytest.approx(streams.falling(11))
    assert found.seconds == pytest.approx(median)
    assert found.eta_seconds == pytest.approx(median * 188)
    assert found.tokens_per_second == pytest.approx(run.spec.tokens_per_step / median)
    assert found.tokens_per_second_per_device == pytest.approx(run.spec.tokens_per_step / median / 16)
    started = streams.started(run.spec, device_kind=many_runs.CONFIGURATIONS[0][3])
    performance = metrics.measure([started], run.spec).performance
    assert performance.flops_per_token
    assert performance.peak
    flops = run.spec.tokens_per_step / median / 16 * performance.flops_per_token
    assert found.mfu == pytest.approx(flops / performance.peak.flops_per_second)
    assert found.event == "checkpoint saved at step 9"
    assert not found.is_trouble


def test_trouble_is_seen(tmp_path: Path) -> None:
    run = LiveRun(tmp_path / "run", 0, nodes=("a", "b"))
    run.step()
    states = [{"host": "a", "state": "running"}, {"host": "b", "state": "exited"}]
    run.beat(processes=states)
    run.write(streams.fault("process_died", "rank 1", "rank 1 on b was killed"))
    found = Following(run.directory).look(time.time())
    assert found is not None
    assert (found.nodes_up, found.nodes, found.is_trouble) == (1, 2, True)
    assert found.event == "process died: rank 1 on b was killed"


def test_the_phase_before_the_first_step_is_named(tmp_path: Path) -> None:
    run = LiveRun(tmp_path / "run")
    said = {"host": "a", "state": "running", "last_line": "start-up: now compiling the step"}
    run.beat(processes=[said], last_step=None)
    found = Following(run.directory).look(time.time())
    assert found is not None
    assert found.phase == "compiling the step"


def test_a_retry_begins_from_scratch(tmp_path: Path) -> None:
    run = LiveRun(tmp_path / "run")
    looking = Following(run.directory)
    for _ in range(5):
        run.step(seconds=28.0)
    before = looking.look(time.time())
    assert before is not None
    assert before.seconds == 28.0
    (run.directory / "events-0.jsonl").rename(tmp_path / "old")  # as an attempt is set aside
    writer = events.Writer(run.directory / "events-0.jsonl")
    writer.write(events.RunStarted(attempt=2, planned_steps=1000))
    writer.close()
    found = looking.look(time.time())
    assert found is not None
    assert (found.attempt, found.seconds, found.loss) == (2, None, None)


def test_a_loss_that_is_not_finite_stays_one(tmp_path: Path) -> None:
    run = LiveRun(tmp_path / "run")
    run.step(loss=lambda step: math.nan)
    found = Following(run.directory).look(time.time())
    assert found is not None
    assert found.as_dict()["loss"] == "nan"


def test_a_run_that_is_over_or_unreadable_has_no_figures(tmp_path: Path) -> None:
    run = LiveRun(tmp_path / "run")
    looking = Following(run.directory)
    assert looking.look(time.time()) is not None
    for status in ('{"state": "ended"}', "[]", "{", "[" * 100_000, json.dumps({"heartbeat": 1e400})):
        (run.directory / "status.json").write_text(status)
        assert looking.look(time.time()) is None
    (run.directory / "status.json").unlink()
    os.mkfifo(run.directory / "status.json")
    assert looking.look(time.time()) is None
