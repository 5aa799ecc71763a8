"""A run's report as one HTML file: it opens offline, asks no network for anything, and runs no script but its own.

Everything from outside reaches the page as escaped text (jinja2 autoescape) or as JSON in which no markup can stand.
Should something slip through all the same, the page's content security policy runs only the one script and applies only
the one style sheet whose hashes it names.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from itertools import groupby
from typing import TYPE_CHECKING, Any

from seatrial.events import Step
from seatrial.metrics import Ranges
from seatrial.report import nodes
from seatrial.report.figures import (
    SYMBOLS,
    TITLES,
    WORDS,
    figures,
    hardware,
    left_out,
    step_rate,
    summary,
    where,
    within,
)
from seatrial.report.gather import RunReport, Value
from seatrial.report.problems import by_severity
from seatrial.report.sections import sections
from seatrial.verdict import Outcome, Verdict, show

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_POINTS = 8000  # far more than the pixels of a chart; a longer run is thinned, extremes kept
MAX_PROCESSES = 64
MAX_EVIDENCE = 4  # lines below a check before they are folded
MAX_ROWS = 50  # of a table that a run can make long
NARROW, WIDE = 0.1, 1.0  # of the median: charts of speed show at least so much, and of the warm-up no more than that

_STYLES = ("uplot-1.6.32.min.css", "report.css")
_LIBRARY = "uplot-1.6.32.iife.min.js"
_RATE = "tokens_per_second_per_device"
_DRAWN: tuple[Callable[[Step], float | None], ...] = (lambda s: s.seconds, lambda s: s.loss, lambda s: s.grad_norm)
_TONES: dict[Outcome, str] = {"pass": "pass", "inconclusive": "inconclusive", "interrupted": "inconclusive"}


def render(report: RunReport) -> str:
    """The whole page. Raises jinja2.UndefinedError rather than leave a hole in it."""
    verdict, metrics = report.verdict, report.metrics
    return page(
        "report.html",
        ("report.js", "nodes.js"),
        report=report,
        title=TITLES[verdict.outcome] if verdict else "NOT JUDGED",
        tone=_TONES.get(verdict.outcome, "fail") if verdict else "inconclusive",
        when=_when(report.started_at),
        where=where(report),
        axes=[(name, axis, summary(axis)) for name, axis in verdict.axes.items()] if verdict else [],
        figures=figures(report),
        rule=metrics.performance.step_times.rule if metrics and metrics.performance.step_times else "",
        sections=sections(report),
        processes=_processes(report),
        hidden_processes=max(0, len(report.processes) - MAX_PROCESSES),
        given=_by_origin(value for value in report.values if value.kind != "default"),
        defaults=_by_origin(value for value in report.values if value.kind == "default"),
        num_defaults=sum(value.kind == "default" for value in report.values),
        findings=by_severity(report.problems).items(),
        hardware=hardware(report),
        lanes=nodes.lanes(report),
        hidden_nodes=nodes.hidden(report),
        data={**_chart_data(report), "nodes": nodes.chart_data(report)},
    )


def page(template: str, scripts: tuple[str, ...], **values: Any) -> str:
    """A page from one of our templates with the style sheet and the scripts, as one, that its policy lets run."""
    style, code = _assets(_STYLES), _assets((_LIBRARY, *scripts))
    return _environment().get_template(template).render(policy=_policy(style, code), style=style, script=code, **values)


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
    environment.globals |= {"SYMBOLS": SYMBOLS, "WORDS": WORDS, "MAX_ROWS": MAX_ROWS, "MAX_EVIDENCE": MAX_EVIDENCE}
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


def _processes(report: RunReport) -> list[dict[str, Any]]:
    """A row per process of the plan, with what its own record says."""
    recorded = {p.process: p for p in report.metrics.completion.processes} if report.metrics else {}
    started = {start.process: start for start in report.started}
    rows = []
    for process in report.processes[:MAX_PROCESSES]:
        record, start = recorded.get(process.rank), started.get(process.rank)
        rows.append({
            "process": process,
            "host": f"{process.host} ({start.host})" if start and start.host != process.host else process.host,
            "last_step": record.last_step if record else None,
            "ended": (record.reason if record else None) or "",
            "exit_code": record.exit_code if record else None,
            "compile_seconds": start.facts.get("compile_seconds") if start else None,
        })  # fmt: skip
    return rows


def _chart_data(report: RunReport) -> dict[str, Any]:
    """What the charts draw, as plain data; a value that is missing or not finite is a gap."""
    performance = report.metrics.performance if report.metrics else None
    estimates = performance.estimates if performance else {}
    median, rate = (estimates[name].value if name in estimates else None for name in ("step_seconds", _RATE))
    times = performance.step_times if performance else None
    unused: Ranges = left_out(times) if times else ()
    steps = [report.steps[index] for index in _thinned(report.steps)]
    seconds = [_number(step.seconds) for step in steps]
    rates = [_number(step_rate(step, performance)) for step in steps]
    steady = [not within(step.step, unused) for step in steps]
    return {
        "steps": [step.step for step in steps],
        "thinned": len(steps) < len(report.steps),
        "loss": [_number(step.loss) for step in steps],
        "grad_norm": [_number(step.grad_norm) for step in steps],
        "seconds": seconds,
        "rate": rates,
        "left_out": unused,
        "median": median,
        "rate_median": rate,
        "rate_bound": _rate_target(report.verdict),
        "first_bad_step": report.metrics.numerics.first_bad_step if report.metrics else None,
        "seconds_frame": _frame(seconds, steady, median),
        "rate_frame": _frame(rates, steady, rate),
    }


def _rate_target(verdict: Verdict | None) -> float | None:
    checks = verdict.axes["performance"].checks if verdict else ()
    bound = next((c.bound for c in checks if c.name == _RATE and c.status != "not_applicable"), None)
    return bound if isinstance(bound, (int, float)) else None


def _number(value: float | None) -> float | None:
    """A number to draw: six digits of it, which no screen can tell from all of them."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


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


def _thinned(steps: Sequence[Step]) -> Sequence[int]:
    """The places of about MAX_POINTS steps at most: of each bucket the first, and the ends of every series drawn.

    Lowest, highest, and the first that is not finite: so that neither a spike nor a gap is lost.
    """
    if len(steps) <= MAX_POINTS:
        return range(len(steps))
    size = math.ceil((1 + 3 * len(_DRAWN)) * len(steps) / MAX_POINTS)
    kept = {len(steps) - 1}
    for start in range(0, len(steps), size):
        bucket = range(start, min(start + size, len(steps)))
        kept.add(start)
        for drawn in _DRAWN:
            kept |= _ends([(value, index) for index in bucket if (value := drawn(steps[index])) is not None])
    return sorted(kept)


def _ends(values: Sequence[tuple[float, int]]) -> set[int]:
    """The places of the lowest and the highest value, and of the first that is not finite."""
    finite = [pair for pair in values if math.isfinite(pair[0])]
    others = [pair for pair in values if not math.isfinite(pair[0])]
    return {index for _, index in (*([min(finite), max(finite)] if finite else ()), *others[:1])}
