"""Events in columns are the events themselves, and merging them is what `heapq.merge` makes of the lists."""

from __future__ import annotations

import heapq
import math
import random
from typing import Any

import numpy as np
import pytest

from seatrial.events import Checkpoint, Eval, Event, Fault, RunEnded, RunStarted, Step, dumps
from seatrial.metrics.record import records
from seatrial.recording import Recording, Steps, median, merge, shared

ODD: dict[str, list[Any]] = {
    "seconds": [None, 1.5, 2, math.inf], "tokens": [None, 4096, 1 << 70], "loss": [None, 2.25, math.nan, -math.inf],
    "grad_norm": [None, 0.5], "learning_rate": [None, 3e-4], "data_seconds": [None, 0.0], "phase": ["", "profiler"],
}  # fmt: skip


def step(rng: random.Random, process: int, number: int, at: float, plain: bool) -> Step:
    fields = {name: values[-1] if plain else rng.choice(values) for name, values in ODD.items()}
    names = ["mfu"] if plain else rng.sample(["mfu", "other loss", "memory_bytes"], rng.randrange(4))
    reported = {name: 0.5 if plain else rng.choice([0.5, math.nan, 7]) for name in names}
    apart = 0.0 if plain else rng.random()
    return Step(process=process, wall_time=at, monotonic_time=at + apart, step=number, reported=reported, **fields)


def log(rng: random.Random, process: int, length: int) -> list[Event]:
    """Events of one process or two, whose clock may be set back."""
    found: list[Event] = []
    at, number, plain = rng.choice([0.0, 1.7e9]), 0, rng.random() < 0.3
    for _ in range(length):
        at += rng.choice([0.0, 0.0, 1.0, 2.5, -3.0])
        of = process + (rng.random() < 0.1)
        when: dict[str, Any] = {"process": of, "wall_time": at, "monotonic_time": at}
        number = max(0, number + rng.choice([1, 1, 1, 1, 1, 1, 0, -3]))
        others = (
            RunStarted(**when), RunEnded(**when, reason="completed"), Eval(**when, step=number, loss=2.0),
            Checkpoint(**when, action="save", step=number), Fault(**when, fault="exception"),
        )  # fmt: skip
        found.append(rng.choice(others) if rng.random() < 0.2 else step(rng, of, number, at, plain))
    return found


def shown(events: Any) -> list[str]:
    """The events with the values of each, nan included, and their types."""
    return [f"{dumps(event)} {sorted(getattr(event, 'reported', {}))}" for event in events]


def sorted_names(events: list[Event]) -> list[Event]:
    """The same, with `reported` in the order of the columns, which says nothing."""
    names = list(dict.fromkeys(name for event in events if isinstance(event, Step) for name in event.reported))
    for event in events:
        if isinstance(event, Step):
            vars(event)["reported"] = {name: event.reported[name] for name in names if name in event.reported}
    return events


@pytest.mark.parametrize("seed", range(60))
def test_columns_give_back_every_event(seed: int) -> None:
    rng = random.Random(seed)
    events = [event for event in log(rng, 0, rng.randrange(200)) if event.process == 0]
    recording = Recording.of(sorted_names(events))
    assert shown(recording) == shown(events)
    assert len(recording) == len(events)
    assert recording.times.tolist() == [event.wall_time for event in events]
    steps = [event for event in events if isinstance(event, Step)]
    if steps:
        columns = recording.steps[0]
        assert columns.numbers == [event.step for event in steps]
        assert columns.has("loss").tolist() == [event.loss is not None for event in steps]
        unknown = [event.loss is None or math.isnan(event.loss) for event in steps]
        assert np.isnan(columns.values("loss")).tolist() == unknown
        assert columns.reports("mfu").tolist() == ["mfu" in event.reported for event in steps]
        begin, end = sorted(rng.randrange(len(steps) + 1) for _ in range(2))
        assert shown(columns[begin:end].events()) == shown(steps[begin:end])
        if 0 < begin < len(steps):  # of parts whose columns may be others
            both = Steps.following([columns[:begin], Steps.of(steps[begin:])])
            assert shown(sorted_names(list(both.events()))) == shown(sorted_names(steps))


@pytest.mark.parametrize("seed", range(60))
def test_merging_is_that_of_the_lists(seed: int) -> None:
    rng = random.Random(seed)
    streams = [log(rng, process, rng.randrange(80)) for process in range(rng.randrange(6))]
    merged = merge(streams)
    expected = list(heapq.merge(*streams, key=lambda event: event.wall_time))
    assert [(type(e), e.process, e.wall_time, e.monotonic_time) for e in merged] == [
        (type(e), e.process, e.wall_time, e.monotonic_time) for e in expected
    ]
    assert [e.step for e in merged if isinstance(e, Step)] == [e.step for e in expected if isinstance(e, Step)]
    assert merged.times.tolist() == [event.wall_time for event in expected]


def attempts_of(events: list[Event]) -> tuple[list[list[int]], list[int]]:
    """The steps of each attempt, and those that are left in the end, one event after the other."""
    attempts: list[list[int]] = [[]]
    for event in events:
        if isinstance(event, RunStarted):
            attempts.append([])
        elif isinstance(event, Step):
            last = attempts[-1][-1] if attempts[-1] else -1
            if event.step < last:
                attempts.append([event.step])
            elif event.step > last:
                attempts[-1].append(event.step)
    left: list[int] = []
    for attempt in attempts:
        left = [number for number in left if not attempt or number < attempt[0]] + attempt
    return [attempt for attempt in attempts if attempt], left


@pytest.mark.parametrize("seed", range(100))
def test_attempts_by_columns_are_those_by_events(seed: int) -> None:
    rng = random.Random(seed)
    events = [event for event in log(rng, 0, rng.randrange(120)) if event.process == 0]
    main = records(events).main
    attempts, left = attempts_of(events)
    assert [attempt.numbers for attempt in main.attempts] == attempts
    assert main.steps.numbers == left


def test_the_median_is_numpys() -> None:
    rng = np.random.default_rng(3)
    for values in (
        *(rng.normal(size=n) * 1e9 for n in range(1, 30)), *(rng.integers(0, 3, n) * 0.1 for n in range(1, 30)),
        np.array([1.0, math.nan]), np.array([math.nan]), np.array([1.0, math.inf]), np.array([math.inf, math.inf]),
    ):  # fmt: skip
        assert repr(median(values)) == repr(float(np.median(values)))


def test_steps_that_two_have_are_found_in_both() -> None:
    for some, others, here, there in (
        ([3, 4, 9], [3, 4, 9], [0, 1, 2], [0, 1, 2]), ([3, 4, 9], [1, 4, 5, 9], [1, 2], [1, 3]), ([3], [4], [], []),
    ):  # fmt: skip
        assert [each.tolist() for each in shared(np.array(some), np.array(others))] == [here, there]
