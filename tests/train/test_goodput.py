"""Every second of a run is accounted for once: productive, or lost to something with a name."""

from __future__ import annotations

import pytest

from seatrial.events import Checkpoint, Eval, RunEnded, RunStarted, Step
from seatrial.train.goodput import measure_goodput

CLOCKS = 77.0  # seconds between wall time and monotonic time
PHASES = {"imports": 2.0, "init": 1.0, "compile": 5.0}


def started(at: float, attempt: int = 1) -> RunStarted:
    return RunStarted(attempt=attempt, wall_time=at, facts={"phases": PHASES})


def steps(first: int, last: int, at: float) -> list[Step]:
    """A step a second, of which it waits a tenth for its data; the first ends at `at` + 1."""
    ends = {n: at + 1 + place for place, n in enumerate(range(first, last + 1))}
    return [
        Step(step=n, seconds=1.0, data_seconds=0.1, wall_time=end, monotonic_time=end - CLOCKS)
        for n, end in ends.items()
    ]


def test_one_attempt():
    record = [
        started(108.0),
        *steps(0, 7, at=108.0),
        Eval(step=8, loss=1.0, seconds=3.0, wall_time=119.0),
        *steps(8, 8, at=123.0),  # the state was saved from 119 to 123, and written beside the step
        Checkpoint(action="save", step=8, seconds=4.5, wall_time=123.5),
        *steps(9, 9, at=124.0),
        Checkpoint(action="save", step=10, seconds=2.0, wall_time=127.0),
        RunEnded(reason="completed", wall_time=127.0, monotonic_time=127.0 - CLOCKS),
    ]
    goodput = measure_goodput(record)
    assert goodput.wall_seconds == 27.0
    assert goodput.productive_seconds == pytest.approx(9.0)
    assert goodput.lost_seconds == pytest.approx(
        {"start": 3.0, "compile": 5.0, "data": 1.0, "evaluation": 3.0, "checkpoint": 6.0, "restarts": 0.0, "other": 0.0}
    )
    assert goodput.line() == (
        "goodput: 33.3% of 27.0 s; lost: start 3.0 s, compile 5.0 s, data 1.0 s, evaluation 3.0 s, checkpoint 6.0 s"
    )


def test_what_has_no_name_is_told_too():
    record = [started(8.0), *steps(0, 1, at=8.0), RunEnded(reason="completed", wall_time=12.5)]
    assert measure_goodput(record).lost_seconds["other"] == pytest.approx(2.5)


def test_what_is_done_again_is_lost_to_the_restart():
    # Killed after step 7, 20 s until the next process starts, which goes on from step 5.
    record = [started(8.0), *steps(0, 7, at=8.0), started(44.0, attempt=2), *steps(5, 9, at=44.0)]
    goodput = measure_goodput(record)
    assert goodput.wall_seconds == 49.0
    assert goodput.productive_seconds == pytest.approx(10 * 0.9)
    assert goodput.lost_seconds["restarts"] == pytest.approx(3 * 1.0 + 20.0)
    assert goodput.lost_seconds["compile"] == 10.0
    assert goodput.productive_seconds + sum(goodput.lost_seconds.values()) == pytest.approx(49.0)


def test_a_step_done_twice_again_counts_once():
    record = [
        started(8.0),
        *steps(0, 3, at=8.0),
        started(20.0),
        *steps(2, 3, at=20.0),
        started(30.0),
        *steps(1, 4, at=30.0),
    ]
    assert measure_goodput(record).productive_seconds == pytest.approx(5 * 0.9)


def test_nothing_is_said_of_a_process_that_never_began():
    assert measure_goodput([]) is None
    assert measure_goodput([RunEnded(reason="could_not_run")]) is None
