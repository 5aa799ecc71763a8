"""Batches made early: in order, from any step on, with their errors, and without a thread left over."""

from __future__ import annotations

import threading

import pytest

from seatrial.train.data.prefetch import Prefetched


def test_every_step_comes_once_and_in_order():
    made = []
    batches = Prefetched(lambda step: made.append(step) or step * step, 7, 40)
    assert [batches.get(step) for step in range(7, 40)] == [step * step for step in range(7, 40)]
    assert made == list(range(7, 40))
    batches.close()


def test_no_more_are_made_early_than_asked_for():
    made, second = [], threading.Event()

    def make(step: int) -> int:
        made.append(step)
        if step == 1:
            second.set()
        return step

    batches = Prefetched(make, 0, 1000, ahead=2)
    assert second.wait(30)
    batches.close()
    assert made == [0, 1]


def test_an_error_comes_with_its_step():
    def make(step: int) -> int:
        if step == 2:
            raise ValueError("broken file")
        return step

    batches = Prefetched(make, 0, 5)
    assert [batches.get(0), batches.get(1)] == [0, 1]
    with pytest.raises(ValueError, match="broken file"):
        batches.get(2)
    batches.close()


def test_waiting_is_measured():
    ready = threading.Event()
    batches = Prefetched(lambda step: ready.wait(30), 0, 2)
    timer = threading.Timer(0.2, ready.set)
    timer.start()
    assert batches.get(0)
    assert batches.waited_seconds > 0.05
    batches.close()


def test_closing_leaves_no_thread():
    before = threading.active_count()
    batches = Prefetched(lambda step: step, 0, 1000)
    batches.get(0)
    assert threading.active_count() == before + 1
    batches.close()
    assert threading.active_count() == before
