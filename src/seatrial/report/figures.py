"""The figures of a run in words: the same labels, values and conditions in every format."""

from __future__ import annotations

import math
from dataclasses import dataclass

from seatrial.events import Step
from seatrial.metrics import Metrics, Ranges, StepTimes
from seatrial.report.gather import RunReport
from seatrial.verdict import AxisVerdict, Check, Outcome, Status, show

SYMBOLS: dict[Status, str] = {"pass": "✓", "fail": "✗", "inconclusive": "?", "not_applicable": "–"}
TITLES: dict[Outcome, str] = {
    "pass": "PASS",
    "fail": "FAIL",
    "inconclusive": "INCONCLUSIVE",
    "died": "DIED",
    "no_progress": "NO PROGRESS",
    "could_not_run": "COULD NOT RUN",
    "interrupted": "INTERRUPTED",
}
WORDS: dict[Status, str] = {
    "pass": "pass",
    "fail": "fail",
    "inconclusive": "inconclusive",
    "not_applicable": "not applicable",
}


_LAYERS = {"True": "scanned", "False": "unrolled"}


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A number with its name, and what it means nothing without."""

    label: str
    value: str
    unit: str = ""
    detail: str = ""
    known: bool = True


def speed(metrics: Metrics, *, rehearsal: bool) -> list[Figure]:
    """Speed in the steady window; a figure that is not available says why. A rehearsal's is not extrapolated."""
    performance = metrics.performance
    times, estimates, unavailable = performance.step_times, performance.estimates, performance.unavailable

    def estimate(label: str, metric: str, unit: str, detail: str = "") -> Figure:
        if metric not in estimates:
            return Figure(label=label, value="not available", detail=unavailable.get(metric, ""), known=False)
        value = estimates[metric].value
        return Figure(
            label=label, value=show(value, "fraction" if unit == "%" else ""), unit=unit.strip("%"), detail=detail
        )

    total = performance.tokens_per_second_total
    days = performance.days_to_1t_tokens
    peak = performance.peak
    convention = f"FLOPs counted {performance.convention}".replace("_", "-")
    against = (
        f"of {peak.flops_per_second / 1e12:,.0f} TFLOP/s {peak.format} ({peak.source}); {convention}" if peak else ""
    )
    figures = [
        estimate("Step time", "step_seconds", "s", _spread(times) if times else ""),
        estimate(
            "Tokens/s per device",
            "tokens_per_second_per_device",
            "",
            f"{show(total)} on {_count(performance.num_devices, 'device')}" if total else "",
        ),
        estimate("TFLOP/s per device", "tflops_per_second_per_device", "", convention),
        estimate("MFU", "mfu", "%", against),
    ]
    if days and not rehearsal:
        detail = "at this throughput, without an interruption"
        figures.append(Figure(label="1T tokens would take", value=show(days), unit="days", detail=detail))
    return figures


def progress(metrics: Metrics) -> list[Figure]:
    """How far the run came, and what became of the loss."""
    completion, numerics = metrics.completion, metrics.numerics
    return [
        Figure(
            label="Steps",
            value=f"{completion.num_steps:,} of {completion.planned_steps:,}",
            detail=f"{_count(completion.num_processes, 'process', 'processes')}, {show(completion.wall_seconds)} s",
        ),
        Figure(
            label="Loss",
            value=f"{show(numerics.first_loss)} → {show(numerics.last_loss)}"
            if numerics.num_losses
            else "not reported",
            detail=f"lowest {show(numerics.min_loss)}" if numerics.min_loss is not None else "",
        ),
    ]


def counts(times: StepTimes | None, attempt: int, step: Step) -> bool:
    """Whether a step of an attempt (the first is 1) is one of those that the median is taken of."""
    return (
        times is not None
        and attempt == times.attempt
        and times.first_step <= step.step <= times.last_step
        and not step.phase
        and step.seconds is not None
        and 0 < step.seconds < math.inf
        and not within(step.step, times.warmup)
        and not within(step.step, times.disturbed)
    )


def within(step: int, ranges: Ranges) -> bool:
    """Whether a step lies in one of the ranges."""
    return any(first <= step <= last for first, last in ranges)


def _spread(times: StepTimes) -> str:
    cv = "" if times.cv is None else f", CV {times.cv:.1%}"
    return f"± {show(times.mad)} MAD, 5–95%: {show(times.p5)}–{show(times.p95)}{cv}, n = {times.n}"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def where(report: RunReport) -> str:
    """What ran where, in a line."""
    parts = [report.spec.model.name if report.spec else "", "rehearsal" if report.rehearsal else ""]
    if report.metrics:
        performance, completion = report.metrics.performance, report.metrics.completion
        processes = _count(completion.num_processes, "process", "processes")
        parts.append(f"{processes}, {_count(performance.num_devices, 'device')} ({performance.device or 'unnamed'})")
    return " · ".join(part for part in parts if part)


def hardware(report: RunReport) -> list[tuple[str, str]]:
    """What the run ran on and with, as the first process that started tells it."""
    if not report.started:
        return []
    start = report.started[0]
    facts = start.facts
    rows = [
        ("Device", f"{start.device_kind or 'not named'} × {start.num_devices}"),
        ("Backend", facts.get("backend")),
        ("Mesh", " × ".join(f"{axis} {size}" for axis, size in (facts.get("mesh") or {}).items())),
        ("Parameters", f"{start.num_parameters:,}" if start.num_parameters else ""),
        ("Tokens per step", f"{start.tokens_per_step:,}" if start.tokens_per_step else ""),
        ("Accumulation steps", facts.get("accumulation_steps")),
        ("Attention", facts.get("attention")),
        ("Recomputation", facts.get("remat")),
        ("Layers", _LAYERS.get(str(facts.get("scan_layers")))),
        *((f"Time to {name}", show(seconds, "s")) for name, seconds in (facts.get("phases") or {}).items()),
        *((f"Version of {name}", version) for name, version in (facts.get("versions") or {}).items()),
    ]
    if report.metrics and report.metrics.performance.peak:
        peak = report.metrics.performance.peak
        rows.append(("Peak", f"{peak.flops_per_second / 1e12:,.0f} TFLOP/s {peak.format}: {peak.source}"))
    return [(name, str(value)) for name, value in rows if value not in (None, "")]


def summary(axis: AxisVerdict) -> Check:
    """The check that decides an axis: its first one of the axis's own status."""
    return next(check for check in axis.checks if check.status == axis.status)
