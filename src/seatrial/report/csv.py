"""A run's steps as a table for spreadsheets and data frames: RFC 4180, one row per step of every attempt.

Numbers are written in full, non-finite ones as nan, inf and -inf; what a record does not give is an empty cell. Text
that a spreadsheet would take for a formula is preceded by an apostrophe.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from seatrial.events import Step
from seatrial.metrics import Performance
from seatrial.report.figures import counted, step_rate
from seatrial.report.gather import RunReport

Cell = str | float | int | None

COLUMNS = (
    "step", "attempt", "seconds", "tokens_per_second_total", "tokens_per_second_per_device",
    "tflops_per_second_per_device", "mfu", "loss", "grad_norm", "learning_rate", "phase", "in_window",
)  # fmt: skip
_OWN = ("tflops_per_second_per_device", "mfu")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")  # what Excel, LibreOffice or DDE evaluate


def render(report: RunReport) -> str:
    """One row per step of the record that counts, repeated steps too; `in_window` marks those that make the median."""
    performance = report.metrics.performance if report.metrics else None
    counts = counted(performance)
    rows = (
        (
            step.step, attempt, step.seconds, *_speed(step, performance), step.loss, step.grad_norm,
            step.learning_rate, step.phase, "yes" if counts(attempt, step) else "no",
        )
        for attempt, steps in enumerate(report.attempts, 1)
        for step in steps
    )  # fmt: skip
    return write(COLUMNS, rows)


def write(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """The rows under their header, without a line end after the last one."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue().removesuffix("\n")


def _cell(value: Cell) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return f"'{value}" if value.lstrip().startswith(_FORMULA) or value.startswith(_FORMULA) else value
    return repr(value)


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
