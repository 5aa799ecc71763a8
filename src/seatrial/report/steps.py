"""A run's steps as rows and as a table: one per step of every attempt, repeated steps too; and which of them count."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

from seatrial.estimate.hardware import TERA
from seatrial.events import Step
from seatrial.metrics import Performance, Ranges, StepTimes
from seatrial.report.columns import Column, Table

STEPS = (
    Column(name="step", type="int64", unit="", meaning="as the run counts its steps"),
    Column(name="attempt", type="int64", unit="", meaning="of the run, from 1"),
    Column(name="seconds", type="float64", unit="s", meaning="from the end of the step before to the end of this one"),
    Column(name="tokens_per_second_total", type="float64", unit="tokens/s", meaning="of all devices"),
    Column(name="tokens_per_second_per_device", type="float64", unit="tokens/s", meaning="of each device"),
    Column(name="tflops_per_second_per_device", type="float64", unit="TFLOP/s", meaning="model TFLOP/s of each device"),
    Column(name="mfu", type="float64", unit="fraction", meaning="model FLOP/s ÷ peak FLOP/s"),
    Column(name="loss", type="float64", unit="", meaning="of the step"),
    Column(name="grad_norm", type="float64", unit="", meaning="norm of the gradient"),
    Column(name="learning_rate", type="float64", unit="", meaning="of the step"),
    Column(name="phase", type="string", unit="", meaning="why its time does not count: profiler, batch_rampup"),
    Column(name="in_window", type="bool", unit="", meaning="whether the run's speed is taken from this step, too"),
)
_OWN = ("tflops_per_second_per_device", "mfu")

Attempts = Iterable[Iterable[Step]]


def step_table(attempts: Attempts, performance: Performance | None) -> Table:
    """The steps of every attempt, with the columns of STEPS."""
    return Table.of_rows(STEPS, step_rows(attempts, performance))


def step_rows(attempts: Attempts, performance: Performance | None) -> Iterator[tuple[Any, ...]]:
    """The values of STEPS, of each step."""
    counts = counted(performance)
    for attempt, steps in enumerate(attempts, 1):
        for step in steps:
            yield (
                step.step, attempt, step.seconds, *_speed(step, performance), step.loss, step.grad_norm,
                step.learning_rate, step.phase, counts(attempt, step),
            )  # fmt: skip


def _speed(step: Step, performance: Performance | None) -> tuple[float | None, ...]:
    """Tokens/s of all devices, then per device tokens/s, TFLOP/s and MFU: from the time, else as the log reports it."""
    reported = [step.reported.get(name) for name in ("tokens_per_second_per_device", *_OWN)]
    devices = performance.num_devices if performance else None
    each = step_rate(step, performance)
    if performance is None or each is None or not devices:
        each, *rest = reported
        return each * devices if each is not None and devices else None, each, *rest
    flops = each * performance.flops_per_token if performance.flops_per_token else None
    peak = performance.peak.flops_per_second if performance.peak else None
    computed = (flops / TERA if flops else None, flops / peak if flops and peak else None)
    rest = [own if value is None else value for value, own in zip(computed, reported[1:], strict=True)]
    return each * devices, each, *rest


# --- which steps count, and how fast each is --------------------------------------------------------------------------


def counted(performance: Performance | None) -> Callable[[int, Step], bool]:
    """Tells of an attempt (the first is 1) and a step of it whether the run's speed is taken from it."""
    times = performance.step_times if performance else None
    if performance is None or times is None:
        return lambda attempt, step: False
    found, unused = performance.estimates.get("step_seconds"), left_out(times)
    by_seconds = not (found and found.origin)

    def counts(attempt: int, step: Step) -> bool:
        has_time = step.seconds is not None and 0 < step.seconds < math.inf if by_seconds else bool(step.reported)
        inside = attempt == times.attempt and times.first_step <= step.step <= times.last_step
        return has_time and inside and not within(step.step, unused)

    return counts


def counted_seconds(attempts: Sequence[Sequence[Step]], performance: Performance | None) -> list[float]:
    """The step times that the run's speed is taken from, as far as the record has them."""
    times = performance.step_times if performance else None
    if times is None or not 1 <= times.attempt <= len(attempts):
        return []
    counts, own = counted(performance), attempts[times.attempt - 1]
    return [step.seconds for step in own if step.seconds is not None and counts(times.attempt, step)]


def step_rate(step: Step, performance: Performance | None) -> float | None:
    """Tokens/s per device of one step, by its time; None where the record does not give it."""
    if performance is None or not performance.num_devices or not step.seconds or not 0 < step.seconds < math.inf:
        return None
    tokens = step.tokens or performance.tokens_per_step
    return tokens / step.seconds / performance.num_devices if tokens else None


def left_out(times: StepTimes) -> Ranges:
    """All steps that the run's speed is not taken from, whyever, in order."""
    return tuple(sorted((*times.warmup, *times.disturbed, *times.not_counted, *times.impossible)))


def within(step: int, ranges: Ranges) -> bool:
    """True if a step lies in one of the ranges, which are apart and in order."""
    place = bisect_right(ranges, step, key=itemgetter(0))
    return place > 0 and step <= ranges[place - 1][1]
