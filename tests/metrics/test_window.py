"""The steady window: the steps that count, by each rule."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from seatrial import events, metrics, recording
from seatrial.metrics import POLICIES, Performance, StepTimes, records
from seatrial.metrics.performance import measure_performance
from seatrial.spec import RunSpec
from tests.helpers.streams import START, make_spec, started, steps


def performance(run: list[events.Event], spec: RunSpec | None, **options: Any) -> Performance:
    return measure_performance(run, spec, records(run), **options)


def times_of(run: list[events.Event], spec: RunSpec, **options: Any) -> StepTimes:
    times = performance(run, spec, **options).step_times
    assert times is not None
    return times


def changed(run: list[events.Step], change: Callable[[events.Step], dict[str, Any]]) -> list[events.Event]:
    return [replace(step, **change(step)) for step in run]


@pytest.mark.parametrize(
    ("policy", "first", "last"),
    [("cvs-jax", 6, 59), ("cvs-megatron", 2, 58), ("dgxc", 35, 44), ("last-10", 50, 59), ("last", 59, 59)],
)
def test_the_policies_of_other_tools_take_what_their_rule_says(policy: str, first: int, last: int) -> None:
    rng = random.Random(1)
    seconds = {n: rng.uniform(0.5, 0.9) for n in range(60)}
    spec = make_spec(steps=60)
    times = times_of([*steps(spec, seconds=seconds.__getitem__)], spec, policy=policy)
    taken = [seconds[n] for n in range(first, last + 1)]
    assert (times.first_step, times.last_step, times.n, times.policy) == (first, last, len(taken), policy)
    figure = statistics.fmean if POLICIES[policy].statistic == "mean" else statistics.median
    assert times.value == pytest.approx(figure(taken))
    assert times.rule.lower().startswith(POLICIES[policy].rule.lower())
    assert times.low <= times.value <= times.high


def test_a_policy_may_take_nothing_and_an_unknown_one_is_refused() -> None:
    spec = make_spec(steps=20)
    assert performance([*steps(spec)], spec, policy="dgxc").step_times is None
    with pytest.raises(KeyError):
        performance([*steps(spec)], spec, policy="fastest")


def test_profiled_steps_and_those_of_a_growing_batch_do_not_count() -> None:
    spec = make_spec(steps=40)
    phases = {20: "profiler", 21: "profiler", 0: "batch_rampup"}
    run = steps(spec, seconds=lambda n: 9.0 if n in phases else 0.5)
    times = times_of(changed(run, lambda s: {"phase": phases.get(s.step, "")}), spec)
    assert times.not_counted == ((0, 0), (20, 21))
    assert times.p95 == 0.5
    assert "steps 0, 20–21, where a profiler ran or the batch still grew" in times.rule
    growing = changed(run, lambda s: {"reported": {"global_batch_size": 8.0 if s.step < 12 else 16.0}})
    assert times_of(growing, spec).not_counted == ((0, 11),)


def test_a_step_that_was_dispatched_but_not_done_is_named_and_left_out() -> None:
    odd = {0: 30.0, 1: 0.002, 4: 0.003}
    for device in ("h100", None):
        spec = make_spec(steps=40, device=device)
        times = times_of([*steps(spec, seconds=lambda n: odd.get(n, 0.5))], spec)
        assert times.impossible == ((1, 1), (4, 4))
        assert times.value == 0.5
        assert "steps 1, 4, dispatched, but not done in that time" in times.rule


def test_a_few_impossible_steps_are_left_out_and_many_leave_no_speed() -> None:
    spec = make_spec(steps=60)
    for impossible, measured in (({20, 30, 40}, True), (set(range(20, 60, 2)), False), (set(range(60)), False)):
        for odd in ({"seconds": 1e-9}, {"reported": {"tflops_per_second_per_device": 4000.0}}):
            run = changed(steps(spec), lambda s, i=impossible, o=odd: o if s.step in i else {})
            found = performance(run, spec)
            assert ("step_seconds" in found.estimates) == measured
            if measured:
                assert found.step_times is not None
                assert found.step_times.impossible == tuple((n, n) for n in sorted(impossible))
            else:
                assert f"{len(impossible)} of 60 steps" in found.unavailable["tokens_per_second_per_device"]


def test_the_last_complete_attempt_counts() -> None:
    spec = make_spec(steps=30)
    profile = replace(started(spec), planned_steps=15)
    run = [
        profile, *steps(spec, last=14, seconds=lambda _: 3.0),
        started(spec, at=100), *steps(spec, seconds=lambda _: 0.5, at=110),
        started(spec, at=200), *steps(spec, last=17, seconds=lambda _: 7.0, at=210),
    ]  # fmt: skip
    times = times_of(run, spec)
    assert (times.attempt, times.value) == (2, 0.5)
    assert "of attempt 2 of 3" in times.rule
    assert times_of(run[:16], spec).value == 3.0  # complete by its own word
    incomplete = [e for e in run if not (isinstance(e, events.Step) and e.step == 29)]
    assert times_of([e for e in incomplete if e != profile], spec).attempt == 3


def test_a_log_of_every_tenth_step() -> None:
    spec = make_spec(steps=400)
    run = [s for s in steps(spec, first=1, last=400, seconds=lambda n: 0.5) if s.step % 10 == 0 or s.step == 1]
    slow = [replace(s, seconds=2.0) if s.step == 210 else s for s in run]
    saved = events.Checkpoint(wall_time=START + 100, action="save", step=204)
    times = times_of([*slow, saved], spec)
    assert (times.steps_per_line, times.p95, times.disturbed) == (10, 0.5, ((210, 210),))
    assert times.n == len(run) - 1 - 3
    assert times.rule.endswith("Each line of the log is the mean of 10 steps.")


def test_without_seconds_the_speed_is_the_reported_one_and_says_so() -> None:
    spec = make_spec(steps=40)
    bare = steps(spec, seconds=lambda _: None)
    rate = {"tokens_per_second_per_device": 1024.0}
    found = performance(changed(bare, lambda s: {"reported": rate}), spec)
    assert found.estimates["step_seconds"].value == pytest.approx(0.5)
    assert found.estimates["step_seconds"].origin == "from the reported tokens/s"
    assert found.window.endswith("Speed is taken from the reported tokens/s.")
    assert found.tokens_per_second_total == pytest.approx(4096)
    sampled = performance(changed(bare, lambda s: {"reported": {"samples_per_second_total": 32.0}}), spec)
    assert sampled.estimates["step_seconds"].value == pytest.approx(0.5)
    only_flops = performance(changed(bare, lambda s: {"reported": {"tflops_per_second_per_device": 400.0}}), spec)
    assert only_flops.step_times is None
    assert (only_flops.num_counted, list(only_flops.estimates)) == (37, ["tflops_per_second_per_device"])


def test_without_a_configuration_speed_is_what_the_log_says() -> None:
    spec = make_spec(steps=40)
    figures = {"tokens_per_second_per_device": 1024.0, "tflops_per_second_per_device": 412.0, "mfu": 0.41}
    found = performance(changed(steps(spec), lambda s: {"reported": figures}), None)
    assert {name: e.value for name, e in found.estimates.items()} == {"step_seconds": 0.5, **figures}
    assert (found.convention, found.flops_per_token, found.tokens_per_step, found.num_devices) == ("", None, None, None)
    told = performance([started(spec), *steps(spec)], None)
    assert told.estimates["tokens_per_second_per_device"].value == pytest.approx(1024)
    assert told.tokens_per_second_total == pytest.approx(4096)
    assert "mfu" in told.unavailable
    assert performance([], None).estimates == {}


def test_what_the_log_reports_stands_beside_what_is_computed() -> None:
    spec = make_spec(steps=40)
    figures = {"tokens_per_second_per_device": 1030.0, "tflops_per_second_per_device": 0.00076}
    found = performance(changed(steps(spec), lambda s: {"reported": figures}), spec)
    assert found.reported["tokens_per_second_per_device"].value == 1030
    assert found.estimates["tokens_per_second_per_device"].value == pytest.approx(1024)
    assert found.reported["step_seconds"].value == 0.5


def test_time_to_train_has_the_interval_of_the_speed() -> None:
    rng = random.Random(2)
    spec = make_spec(steps=60)
    found = performance([*steps(spec, seconds=lambda _: rng.uniform(0.4, 0.6))], spec)
    days, twice = metrics.time_to_train(found, 1e12), metrics.time_to_train(found, 2e12)
    assert days is not None
    assert twice is not None
    assert found.days_to_1t_tokens == pytest.approx(days.value)
    assert days.low < days.value < days.high
    assert twice.value == pytest.approx(2 * days.value)


def test_tokens_that_do_not_count_are_a_share_of_the_batch() -> None:
    spec = make_spec(steps=40)
    found = performance(changed(steps(spec), lambda s: {"tokens": 1500 + s.step}), spec)
    assert found.padding == pytest.approx(1 - (1500 + 21) / 2048, abs=1e-3)
    assert performance([*steps(spec)], spec).padding == 0
    assert performance(changed(steps(spec), lambda s: {"tokens": None}), spec).padding is None


def test_a_slow_process_is_named() -> None:
    spec = make_spec(processes=4)
    run = recording.merge([steps(spec, p, seconds=lambda _, p=p: 0.6 if p == 2 else 0.5 + p / 100) for p in range(4)])
    found = metrics.measure(run, spec).performance.stragglers
    assert [(s.process, s.step_seconds) for s in found] == [(2, 0.6)]
    assert found[0].slower_by == pytest.approx(0.6 / 0.51 - 1)
    alike = recording.merge([steps(spec, p, seconds=lambda _, p=p: 0.5 + p / 200) for p in range(4)])
    assert metrics.measure(alike, spec).performance.stragglers == ()
    assert metrics.measure([*steps(spec)], spec).performance.stragglers == ()


def test_memory_is_the_most_that_is_reported() -> None:
    spec = make_spec(steps=30)
    fractions = changed(steps(spec), lambda s: {"reported": {"memory_fraction": 0.5 + 0.01 * (s.step == 7)}})
    assert performance(fractions, spec).estimates["memory_fraction"].value == pytest.approx(0.51)
    in_bytes = changed(steps(spec), lambda s: {"reported": {"memory_bytes": 40 * 2**30}})
    found = performance(in_bytes, spec).estimates["memory_fraction"]
    assert found.value == pytest.approx(0.5)
    assert "reported bytes" in found.origin
    unknown = make_spec(steps=30, device=None)
    assert "memory_fraction" in performance(in_bytes, unknown).unavailable


def test_a_level_that_held_and_changed_at_once_is_no_warm_up() -> None:
    rng = random.Random(4)
    spec = make_spec(steps=100)

    def kept(level: Callable[[int], float]) -> tuple[int, int]:
        seconds = {n: level(n) * rng.uniform(0.99, 1.01) for n in range(100)}
        times = times_of([*steps(spec, seconds=seconds.__getitem__)], spec)
        return times.first_step, times.last_step

    first, last = kept(lambda n: 1.3 if n < 40 else 1.0)
    assert first < 15
    assert last == 99
    assert kept(lambda n: 2.6 if n < 40 else 1.0)[0] < 15
    assert kept(lambda n: 2.6 if n < 20 else 1.0)[0] >= 15  # what compiles is as slow
    assert kept(lambda n: 1 + 2 * 0.7**n)[0] >= 8  # a start that gets faster step by step
    assert kept(lambda n: 3.0 if n < 9 else 1.0)[0] >= 5  # or is slow for a few
