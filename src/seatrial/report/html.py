"""A run's report as one HTML file: it opens offline, asks no network for anything, and runs no script but its own.

Everything from outside reaches the page as escaped text (jinja2 autoescape) or as JSON in which no markup can stand.
Should something slip through all the same, the page's content security policy runs only the one script and applies only
the one style sheet whose hashes it names.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from itertools import groupby
from typing import TYPE_CHECKING, Any

from seatrial.errors import Problem
from seatrial.events import Step
from seatrial.metrics import Ranges
from seatrial.report.figures import SYMBOLS, TITLES, WORDS, hardware, progress, speed, summary, where
from seatrial.report.gather import RunReport, Value
from seatrial.report.problems import ORDER, PLURALS, SINGULARS
from seatrial.verdict import Outcome, show

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_POINTS = 4000  # a chart is never wider in pixels; a longer run is thinned, extremes kept
MAX_PROCESSES = 64
NARROW, WIDE = 0.1, 1.0  # of the median: charts of speed show at least so much, and of the warm-up no more than that

_STYLES = ("uplot-1.6.32.min.css", "report.css")
_SCRIPTS = ("uplot-1.6.32.iife.min.js", "report.js")
_TONES: dict[Outcome, str] = {"pass": "pass", "inconclusive": "inconclusive", "interrupted": "inconclusive"}


def render(report: RunReport) -> str:
    """The whole page. Raises jinja2.UndefinedError rather than leave a hole in it."""
    style, script = (_assets(names) for names in (_STYLES, _SCRIPTS))
    verdict, metrics = report.verdict, report.metrics
    return (
        _environment()
        .get_template("report.html")
        .render(
            report=report,
            policy=_policy(style, script),
            style=style,
            script=script,
            title=TITLES[verdict.outcome] if verdict else "NOT JUDGED",
            tone=_TONES.get(verdict.outcome, "fail") if verdict else "inconclusive",
            when=_when(report.started_at),
            where=where(report),
            axes=[(name, axis, summary(axis)) for name, axis in verdict.axes.items()] if verdict else [],
            figures=[*progress(metrics), *speed(metrics, rehearsal=report.rehearsal)] if metrics else [],
            rule=metrics.performance.step_times.rule if metrics and metrics.performance.step_times else "",
            faults=metrics.completion.faults if metrics else (),
            processes=_processes(report),
            hidden_processes=max(0, len(report.processes) - MAX_PROCESSES),
            given=_by_origin(value for value in report.values if value.kind != "default"),
            defaults=_by_origin(value for value in report.values if value.kind == "default"),
            num_defaults=sum(value.kind == "default" for value in report.values),
            findings=_findings(report.problems),
            hardware=hardware(report),
            data=_chart_data(report),
        )
    )


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # late: only a page pays for it

    environment = Environment(
        loader=PackageLoader("seatrial.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"SYMBOLS": SYMBOLS, "WORDS": WORDS}
    environment.filters |= {"show": show, "basename": lambda place: place.rpartition("/")[2]}
    return environment


@cache
def _assets(names: tuple[str, ...]) -> str:
    """Our own files, one after the other; they are part of the program, so they go in unescaped."""
    from markupsafe import Markup

    folder = resources.files("seatrial.report") / "assets"
    return Markup("\n".join((folder / name).read_text(encoding="utf-8").strip() for name in names))


def _policy(style: str, script: str) -> str:
    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    return (
        f"default-src 'none'; script-src 'sha256-{digest(script)}'; style-src 'sha256-{digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _when(seconds: float | None) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%-d %B %Y, %H:%M} UTC" if seconds else ""


def _by_origin(values: Iterable[Value]) -> list[list[Value]]:
    """Neighbours that come from the same place, such as the dimensions of a preset, together."""
    return [list(group) for _, group in groupby(values, key=lambda v: (v.kind, v.place, v.key, v.written, v.note))]


def _findings(problems: Sequence[Problem]) -> list[tuple[str, list[Problem]]]:
    """The findings by severity, each with how many there are of it."""
    found = []
    for severity in ORDER:
        these = [problem for problem in problems if problem.severity == severity]
        if these:
            found.append((f"{len(these)} {(SINGULARS if len(these) == 1 else PLURALS)[severity]}", these))
    return found


def _processes(report: RunReport) -> list[dict[str, Any]]:
    """A row per process of the plan, with what its own record says."""
    recorded = {p.process: p for p in report.metrics.completion.processes} if report.metrics else {}
    started = {start.process: start for start in report.started}
    rows = []
    for process in report.processes[:MAX_PROCESSES]:
        record, start = recorded.get(process.rank), started.get(process.rank)
        facts = start.facts if start else {}
        rows.append(
            {
                "process": process,
                "host": f"{process.host} ({start.host})" if start and start.host != process.host else process.host,
                "last_step": record.last_step if record else None,
                "ended": (record.reason if record else None) or "",
                "exit_code": record.exit_code if record else None,
                "compile_seconds": facts.get("compile_seconds"),
            }
        )
    return rows


def _chart_data(report: RunReport) -> dict[str, Any]:
    """What the charts draw, as plain data; a value that is missing or not finite is a gap."""
    metrics = report.metrics
    times = metrics.performance.step_times if metrics else None
    per_device = metrics.performance.tokens_per_step / metrics.performance.num_devices if metrics else 0.0
    steps = _thinned(report.steps)
    warmup: Ranges = times.warmup if times else ()
    seconds = [_number(step.seconds) for step in steps]
    rates = [per_device / s if s else None for s in seconds]
    steady = [not _within(step.step, warmup) for step in steps]
    rate = "tokens_per_second_per_device"
    estimate = metrics.performance.estimates.get(rate) if metrics else None
    bounds = [c for c in report.verdict.axes["performance"].checks if c.name == rate] if report.verdict else []
    return {
        "steps": [step.step for step in steps],
        "thinned": len(steps) < len(report.steps),
        "loss": [_number(step.loss) for step in steps],
        "seconds": seconds,
        "rate": rates,
        "warmup": warmup,
        "disturbed": times.disturbed if times else (),
        "median": times.median if times else None,
        "rate_median": estimate.value if estimate else None,
        "rate_bound": bounds[0].bound if bounds and bounds[0].status != "not_applicable" else None,
        "first_bad_step": metrics.numerics.first_bad_step if metrics else None,
        "seconds_frame": _frame(seconds, steady, times.median if times else None),
        "rate_frame": _frame(rates, steady, estimate.value if estimate else None),
    }


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _within(step: int, ranges: Ranges) -> bool:
    return any(first <= step <= last for first, last in ranges)


def _frame(values: Sequence[float | None], steady: Sequence[bool], median: float | None) -> tuple[float, float] | None:
    """The part of its axis that a chart of speed shows: all of the steady steps, and a warm-up that is not far off."""
    if median is None:
        return None
    shown = [
        value
        for value, counts in zip(values, steady, strict=True)
        if value is not None and (counts or abs(value - median) <= WIDE * median)
    ]
    return min([*shown, median * (1 - NARROW)]), max([*shown, median * (1 + NARROW)])


def _thinned(steps: Sequence[Step]) -> Sequence[Step]:
    """At most about MAX_POINTS steps: of each bucket, the first, the slowest, and the one with the highest loss."""
    size = math.ceil(3 * len(steps) / MAX_POINTS)
    if len(steps) <= MAX_POINTS:
        return steps
    kept: set[int] = set()
    for start in range(0, len(steps), size):
        bucket = range(start, min(start + size, len(steps)))
        kept |= {start}
        kept |= {max(bucket, key=lambda i: steps[i].seconds or 0.0)}
        kept |= {max(bucket, key=lambda i: _number(steps[i].loss) or -math.inf)}
    return [steps[index] for index in sorted(kept | {len(steps) - 1})]
