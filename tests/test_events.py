"""Events survive the file: every kind, non-finite numbers, torn lines, newer fields."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial import events, recording
from tests.helpers import streams

EVENTS = [
    events.RunStarted(run="r", host="h", planned_steps=3, facts={"mesh": {"fsdp": 8}, "seconds": 1.5}),
    events.Step(step=0, seconds=1.5, tokens=64, loss=2.5, grad_norm=0.1, learning_rate=0.0, data_seconds=0.0),
    events.Step(step=1, reported={"tflops_per_second_per_device": 400.0}),
    events.Eval(step=1, loss=2.0),
    events.Checkpoint(action="save", step=1, seconds=0.5, bytes=10),
    events.Fault(fault="process_died", where="rank 1", text="SIGKILL \u2028 <script>"),
    events.RunEnded(reason="completed", exit_code=0),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_every_kind_comes_back_as_it_was(event):
    line = events.dumps(event)
    assert "\n" not in line
    assert json.loads(line)["v"] == events.VERSION
    assert events.loads(line) == event


@given(st.floats(allow_nan=False))
def test_numbers_come_back_exactly(number):
    assert events.loads(events.dumps(events.Step(step=0, loss=number))).loss == number


def test_non_finite_numbers_are_strings_in_strict_json():
    line = events.dumps(events.Step(step=0, loss=math.nan, grad_norm=math.inf, reported={"x": -math.inf}))
    data = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert (data["loss"], data["grad_norm"], data["reported"]["x"]) == ("nan", "inf", "-inf")
    step = events.loads(line)
    assert math.isnan(step.loss)
    assert step.grad_norm == math.inf
    assert step.reported["x"] == -math.inf


def test_not_reported_is_not_zero():
    step = events.loads(events.dumps(events.Step(step=4)))
    assert step.loss is None
    assert step.seconds is None


def test_a_torn_last_line_is_left_out_and_a_torn_middle_is_not_hidden(tmp_path):
    path = tmp_path / "events-0.jsonl"
    whole = "".join(events.dumps(event) + "\n" for event in EVENTS)
    path.write_text(whole + events.dumps(EVENTS[1])[:25])
    assert list(events.read(path)) == EVENTS
    path.write_text("{broken\n" + whole)
    with pytest.raises(ValueError, match="Expecting property name"):
        list(events.read(path))


def test_who_goes_on_after_a_torn_line_leaves_no_broken_one(tmp_path):
    path = tmp_path / "events-0.jsonl"
    path.write_text(events.dumps(EVENTS[0]) + "\n" + events.dumps(EVENTS[1])[:25])
    for event in EVENTS[2:]:
        writer = events.Writer(path)
        writer.write(event)
        writer.close()
    assert list(events.read(path)) == [EVENTS[0], *EVENTS[2:]]


def test_an_older_reader_reads_a_newer_file():
    line = events.dumps(EVENTS[1])[:-1] + ', "new_field": 1}'
    assert events.loads(line) == EVENTS[1]
    with pytest.raises(ValueError, match="not an event"):
        events.loads('{"kind": "unheard_of"}')
    with pytest.raises(ValueError, match="broken or incomplete step"):
        events.loads('{"kind": "step"}')


@pytest.mark.parametrize(
    "line",
    [
        '{"kind": "step", "step": 0, "loss": "abc"}',
        '{"kind": "step", "step": 0, "loss": [1]}',
        '{"kind": "step", "step": 0, "seconds": true}',
        '{"kind": "step", "step": "3"}',
        '{"kind": "step", "step": null}',
        '{"kind": "step", "step": -1}',
        '{"kind": "step", "step": 1.5}',
        '{"kind": "step", "step": 0, "wall_time": "x"}',
        '{"kind": "step", "step": 0, "wall_time": "nan"}',
        '{"kind": "step", "step": 0, "process": "0"}',
        '{"kind": "step", "step": 0, "reported": [1]}',
        '{"kind": "step", "step": 0, "reported": {"x": "y"}}',
        '{"kind": ["step"], "step": 0}',
        '{"kind": "run_started", "num_devices": 0}',
        '{"kind": "run_started", "num_devices": "8"}',
        '{"kind": "run_started", "facts": "x"}',
        '{"kind": "run_started", "device_kind": 5}',
        '{"kind": "run_ended"}',
        "[" * 200_000,
        "3",
    ],
    ids=lambda line: line[:60],
)
def test_a_line_that_is_no_sound_event_is_one_error(line):
    with pytest.raises(ValueError, match=r"event|Expecting|impossible"):
        events.loads(line)


def test_merge_orders_by_wall_time(tmp_path):
    for process in range(3):
        writer = events.Writer(tmp_path / f"events-{process}.jsonl")
        for step in range(4):
            writer.write(events.Step(process=process, step=step, wall_time=step * 10.0 + process))
        writer.close()
    merged = recording.read_run(tmp_path)
    assert [event.wall_time for event in merged] == sorted(step * 10.0 + p for step in range(4) for p in range(3))


def test_a_tail_reads_each_whole_line_once(tmp_path: Path) -> None:
    path = tmp_path / "events-0.jsonl"
    looked = events.Tail(path)
    assert list(looked.read()) == []
    lines = [events.dumps(events.Step(step=n, loss=math.inf)) + "\n" for n in range(3)]
    with path.open("w") as file:
        file.write(lines[0] + lines[1][:20])
        file.flush()
        assert [getattr(event, "step", None) for event in looked.read()] == [0]
        assert list(looked.read()) == []
        file.write(lines[1][20:] + lines[2])
        file.flush()
    assert [getattr(event, "step", None) for event in looked.read()] == [1, 2]


@pytest.mark.timeout(20)
def test_a_tail_neither_blocks_nor_reads_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_BYTES", 20_000)
    monkeypatch.setattr(events, "HEAD_BYTES", 2_000)
    path = tmp_path / "events.jsonl"
    looked = events.Tail(path)
    assert list(looked.read()) == []
    os.mkfifo(path)
    assert list(looked.read()) == []
    path.unlink()
    lines = [events.dumps(events.Step(step=step)) for step in range(5000)]
    path.write_text("\n".join(["garbage", events.dumps(streams.started(streams.make_spec())), *lines]) + "\n")
    found = list(looked.read())
    assert isinstance(found[0], events.RunStarted)  # of a long file, the head
    last = found[-1]
    assert isinstance(last, events.Step)
    assert last.step == 4999
    assert len(found) < 1000
    with path.open("a") as file:
        file.write(lines[0])
    assert list(looked.read()) == []  # the line is not complete
    with path.open("a") as file:
        file.write("\n")
    assert [event.step for event in looked.read() if isinstance(event, events.Step)] == [0]
    path.write_bytes(b"\xff" * 100_000)
    assert list(looked.read()) == []
