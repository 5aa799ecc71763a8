"""The figures of a run in words: the same labels, values and conditions in every format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from seatrial.console import plural
from seatrial.estimate.hardware import TERA
from seatrial.metrics import Metrics, Performance, StepTimes, time_to_train
from seatrial.metrics.setup import Peak
from seatrial.report.gather import RunReport
from seatrial.verdict import EXIT_CODES, AxisVerdict, Check, Outcome, Status, show, show_beside

SYMBOLS: dict[Status, str] = {"pass": "✓", "fail": "✗", "inconclusive": "?", "not_applicable": "–"}
TITLES: dict[Outcome, str] = {outcome: outcome.upper().replace("_", " ") for outcome in EXIT_CODES} | {
    "teardown_failed": "TRAINED, TEARDOWN FAILED"
}
WORDS: dict[Status, str] = {status: status.replace("_", " ") for status in SYMBOLS}
_TONES: dict[str, Status] = {"pass": "pass", "inconclusive": "inconclusive", "interrupted": "inconclusive"}

AS_REPORTED = "as reported"
SECONDS_PER_MINUTE, SECONDS_PER_HOUR = 60, 3600
MILLION, TRILLION = 1e6, 1e12
LEAST_PAUSE = 600.0  # seconds between two attempts; a restart takes less
_LAYERS = {"True": "scanned", "False": "unrolled"}


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A number with its name, and what it means nothing without."""

    label: str
    value: str
    unit: str = ""
    detail: str = ""
    known: bool = True


def figures(report: RunReport) -> list[Figure]:
    """The figures of the run's progress, loss, speed and cost; none where nothing was measured."""
    metrics = report.metrics
    if metrics is None:
        return []
    speed, at_this_speed = _speed(metrics.performance), _time_to_train(report, metrics.performance)
    return [*_progress(metrics), *_time_to_target(metrics), *speed, *at_this_speed, *_cost(report, metrics)]


def _progress(metrics: Metrics) -> list[Figure]:
    completion, numerics = metrics.completion, metrics.numerics
    planned = f"of {completion.planned_steps:,}" if completion.planned_steps else "recorded"
    seconds = f", {show(completion.wall_seconds)} s" if completion.wall_seconds else ""
    first, last, lowest = show_beside(numerics.first_loss, numerics.last_loss, numerics.min_loss)
    return [
        Figure(
            label="Steps",
            value=f"{completion.num_steps:,} {planned}",
            detail=f"{plural(completion.num_processes, 'process')}{seconds}",
        ),
        Figure(
            label="Loss",
            value=f"{first} → {last}" if numerics.num_losses else "not reported",
            detail=f"lowest {lowest}" if numerics.min_loss is not None else "",
        ),
    ]


def _time_to_target(metrics: Metrics) -> list[Figure]:
    """The duration of a run that an evaluation ended, in minutes, as MLPerf publishes it."""
    seconds, target = metrics.completion.time_to_train_seconds, metrics.completion.target_eval_loss
    if seconds is None:
        return []
    reached = "" if target is None else f", which reached the target of {show(target)}"
    detail = f"{show(seconds, 's')}, from the start of the training to the evaluation that ended it{reached}"
    return [Figure(label="Time to train", value=f"{seconds / SECONDS_PER_MINUTE:,.3f}", unit="minutes", detail=detail)]


def _speed(performance: Performance) -> list[Figure]:
    """Speed in the steady window; a figure that is not available says why."""
    times, total, peak = performance.step_times, performance.tokens_per_second_total, performance.peak
    convention = f"FLOPs counted {spelled(performance.convention)}" if performance.convention else ""
    of_peak = f"of {_peak(peak)} ({peak.source}); {convention}" if peak else ""
    on_all = ""
    if total and performance.num_devices != 1:
        on_all = f"{show(total)} on {plural(performance.num_devices, 'device') if performance.num_devices else ''}"
    rows = [
        ("Step time", "step_seconds", "s", _spread(times) if times else ""),
        ("Tokens/s per device", "tokens_per_second_per_device", "", on_all),
        ("TFLOP/s per device", "tflops_per_second_per_device", "", convention),
        ("MFU", "mfu", "%", of_peak),
    ]
    if "memory_fraction" in performance.estimates:
        rows.append(("Device memory used", "memory_fraction", "%", ""))
    return [_estimate(performance, *row) for row in rows]


def _estimate(performance: Performance, label: str, metric: str, unit: str, detail: str) -> Figure:
    if metric not in performance.estimates:
        why = performance.unavailable.get(metric, "")
        return Figure(label=label, value="not available", detail=why, known=False)
    found = performance.estimates[metric]
    parts = (found.origin,) if found.origin == AS_REPORTED else (detail, found.origin)
    times = performance.step_times
    others = (times.p5, times.p95) if times and metric == "step_seconds" else (found.low, found.high)
    value, *_ = show_beside(found.value, *others, unit="fraction" if unit == "%" else "")
    return Figure(label=label, value=value, unit=unit.strip("%"), detail="; ".join(filter(None, parts)))


def _time_to_train(report: RunReport, performance: Performance) -> Iterator[Figure]:
    """The time to train on a number of tokens at this speed; a rehearsal's is not extrapolated."""
    if not performance.days_to_1t_tokens or report.rehearsal:
        return
    if report.tokens != TRILLION:
        days = show(performance.days_to_1t_tokens)
        yield Figure(label="Time to train 1T tokens", value=days, unit="days", detail="uninterrupted")
    if report.tokens and (wanted := time_to_train(performance, report.tokens)):
        days, low, high = show_beside(wanted.value, wanted.low, wanted.high)
        label = f"Time to train {_short_count(report.tokens)} tokens"
        yield Figure(label=label, value=days, unit="days", detail=f"{low} to {high} days")


def _paused(report: RunReport) -> float:
    """Seconds between the attempts of a run, in which its devices need not have been its own."""
    attempts = [attempt for attempt in report.attempts if attempt]
    gaps = (
        after[0].wall_time - before[-1].wall_time - (after[0].seconds or 0.0) for before, after in pairwise(attempts)
    )
    return sum(gap for gap in gaps if gap > LEAST_PAUSE)


def _cost(report: RunReport, metrics: Metrics) -> Iterator[Figure]:
    """The cost of the devices at the price that the user gives, in the currency of the price; not of a rehearsal."""
    performance, price = metrics.performance, report.price_per_device_hour
    if price is None or not performance.num_devices or report.rehearsal:
        return
    per_second = price * performance.num_devices / SECONDS_PER_HOUR
    devices = f"{plural(performance.num_devices, 'device')} at {price:,g} an hour each"
    if metrics.completion.wall_seconds:
        paused = _paused(report)
        spent = per_second * max(metrics.completion.wall_seconds - paused, 0.0)
        without = f", without {show(paused)} s between its attempts" if paused else ""
        yield Figure(label="Cost of this run", value=amount(spent), detail=devices + without)
    rate = performance.tokens_per_second_total
    if not rate:
        return
    yield Figure(label="Cost per million tokens", value=amount(per_second / rate * MILLION), detail=devices)
    planned = (metrics.completion.planned_steps or 0) * (performance.tokens_per_step or 0)
    if tokens := report.tokens or float(planned):
        label, whole = f"Cost to train {_short_count(tokens)} tokens", per_second * tokens / rate
        of = "as asked for" if report.tokens else "all planned steps"
        yield Figure(label=label, value=amount(whole), detail=f"{of}, uninterrupted")


def amount(value: float) -> str:
    """A sum of money: with cents below a thousand, and with as many digits as a small one needs."""
    return f"{value:,.0f}" if round(value, 2) >= 1000 else f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def _peak(peak: Peak) -> str:
    return f"{peak.flops_per_second / TERA:,.0f} TFLOP/s {peak.format}"


def _spread(times: StepTimes) -> str:
    cv = "" if times.cv is None else f", CV {times.cv:.1%}"
    _, low, high = show_beside(times.median, times.p5, times.p95)
    return f"± {show(times.mad)} MAD, 5–95%: {low}–{high}{cv}, n = {times.n}"


def spelled(name: str) -> str:
    """The name of a convention or a fault, for a reader."""
    return name.replace("_", "-")


# What families are called that are no trainer's: one file of it, several, and whose.
_SOURCES = {
    "metrics": ("a metrics file", "metrics files", ""),
    "generic": ("a log", "logs", " of an unknown trainer"),
}


def where(report: RunReport) -> str:
    """The model, logs, processes and devices of a run, in a line."""
    parts = [report.spec.model.name if report.spec else "", report.rehearsal]
    if report.sources:
        one, several, of = _SOURCES.get(
            report.family, ("a log", "logs", f" of {report.family}" if report.family else "")
        )
        parts.append(f"read from {one if len(report.sources) == 1 else f'{len(report.sources)} {several}'}{of}")
    if report.metrics:
        performance, completion = report.metrics.performance, report.metrics.completion
        processes = plural(completion.num_processes, "process")
        devices = plural(performance.num_devices, "device") if performance.num_devices else ""
        named = devices and performance.device and f" ({performance.device})"
        parts.append(", ".join(part for part in (processes, f"{devices}{named}") if part))
    return " · ".join(part for part in parts if part)


def hardware(report: RunReport) -> list[tuple[str, str]]:
    """The hardware, set-up and versions of the run, as the first process that started reports them."""
    if not report.started:
        return []
    start = report.started[0]
    facts = start.facts
    mesh, phases, versions = (_mapping(facts.get(name)) for name in ("mesh", "phases", "versions"))
    rows = [
        ("Device", start.device_kind),
        ("Devices", f"{start.num_devices:,}" if start.num_devices else ""),
        ("Backend", facts.get("backend")),
        ("Mesh", " × ".join(f"{axis} {size}" for axis, size in mesh.items())),
        ("Parameters", f"{start.num_parameters:,}" if start.num_parameters else ""),
        ("Tokens per step", f"{start.tokens_per_step:,}" if start.tokens_per_step else ""),
        ("Accumulation steps", facts.get("accumulation_steps")),
        ("Attention", facts.get("attention")),
        ("Recomputation", facts.get("remat")),
        ("Layers", _LAYERS.get(str(facts.get("scan_layers")))),
        *((f"Time to {name}", show(seconds, "s")) for name, seconds in phases.items()),
        *((f"Version of {name}", version) for name, version in versions.items()),
    ]
    if report.performance and (peak := report.performance.peak):
        rows.append(("Peak", f"{_peak(peak)}: {peak.source}"))
    return [(name, str(value)) for name, value in rows if value not in (None, "")]


def _mapping(value: Any) -> Mapping[str, Any]:
    """The value of an event that should be a mapping; empty if it is none."""
    return value if isinstance(value, Mapping) else {}


def tone(outcome: str) -> Status:
    """The status in whose colour an outcome is shown."""
    return _TONES.get(outcome, "fail")


def compared(check: Check) -> tuple[str, ...]:
    """The measured value and its bound; "" where there is none."""
    given = (check.measured, check.bound)
    shown = show_beside(*given, unit="fraction" if check.unit == "fraction" else "")
    return tuple("" if value is None else text for value, text in zip(given, shown, strict=True))


def slower_by(change: float) -> str:
    """A change of a step time in words: "slower by 9.6%", "faster by 2.0%"."""
    return f"{'slower' if change > 0 else 'faster'} by {abs(change):.1%}"


def summary(axis: AxisVerdict) -> Check:
    """The check that decides an axis: its first one of the axis's own status."""
    unexplained = Check(name="", axis="completion", status=axis.status, sentence="")
    return next((check for check in axis.checks if check.status == axis.status), unexplained)


def _short_count(number: float) -> str:
    """15T, 1.4T, 300B, 11.8M; anything below a thousand as it is."""
    for suffix, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if number >= size:
            return f"{number / size:.4g}{suffix}"
    return f"{number:g}"
