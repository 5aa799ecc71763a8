"""A run's steps as rows and as a table: one per step of every attempt, repeated steps too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from seatrial.events import Step
from seatrial.metrics import Performance
from seatrial.report.columns import Column, Table
from seatrial.report.figures import counted, step_rate

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
    computed = (flops / 1e12 if flops else None, flops / peak if flops and peak else None)
    rest = [own if value is None else value for value, own in zip(computed, reported[1:], strict=True)]
    return each * devices, each, *rest
