"""A run's report as one HTML file: it opens offline, asks no network for anything, and runs no script but its own.

Everything from outside reaches the page as escaped text (jinja2 autoescape) or as JSON in which no markup can stand.
Should something slip through all the same, the page's content security policy runs only the one script and applies only
the one style sheet whose hashes it names.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from html import unescape
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seatrial.report import nodes, ranks
from seatrial.report.charts import chart_data
from seatrial.report.figures import SYMBOLS, TITLES, WORDS, compared, figures, hardware, summary, tone, where
from seatrial.report.gather import RunReport, Value
from seatrial.report.problems import by_severity
from seatrial.report.sections import sections
from seatrial.runs.files import write_text
from seatrial.verdict import show

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_PROCESSES = 64
MAX_EVIDENCE = 4  # lines below a check before they are folded
MAX_ROWS = 50  # of a table that a run can make long

_STYLES = ("uplot-1.6.32.min.css", "report.css")
_SCRIPTS = ("uplot-1.6.32.iife.min.js", "drawing.js")
_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">')


def render(report: RunReport) -> str:
    """The whole page. Raises jinja2.UndefinedError rather than leave a hole in it."""
    verdict, charts = report.verdict, chart_data(report)
    times = report.performance.step_times if report.performance else None
    return page(
        "report.html",
        ("report.js", "histogram.js", "ranks.js", "nodes.js"),
        report=report,
        title=TITLES[verdict.outcome] if verdict else "NOT JUDGED",
        tone=tone(verdict.outcome) if verdict else "inconclusive",
        when=_when(report.started_at),
        where=where(report),
        axes=[(name, axis, summary(axis)) for name, axis in verdict.axes.items()] if verdict else [],
        figures=figures(report),
        rule=times.rule if times else "",
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
        lines=_lines(charts),
        ranks=report.ranks,
        slowest=ranks.table(report.ranks) if report.ranks else None,
        rank_summary=ranks.summary(report.ranks) if report.ranks else "",
        data={
            **charts,
            "nodes": nodes.chart_data(report),
            "ranks": ranks.drawn(report.ranks) if report.ranks else None,
        },
    )


def _lines(charts: Mapping[str, Any]) -> str:
    """The legend of the lines across the charts; "" where there are none."""
    curves = [*charts["curves"].values(), *([charts["evals"]] if charts["evals"] else [])]
    found = ["dashed: the median"] if any(curve.get("median") for curve in curves) else []
    found += ["dotted: a target, less its tolerance"] if any(curve["targets"] for curve in curves) else []
    return f"{'; '.join(found).capitalize()}." if found else ""


def page(template: str, scripts: tuple[str, ...], **values: Any) -> str:
    """A page from one of our templates with the style sheet and the scripts, as one, that its policy lets run."""
    style, code = _assets(_STYLES), _assets((*_SCRIPTS, *scripts))
    return _environment().get_template(template).render(policy=_policy(style, code), style=style, script=code, **values)


def saved(name: str, text: str) -> str:
    """Writes a page into the current folder; a line that names it."""
    write_text(Path(name), text)
    return f"report: {name}"


def policy_of(page: str) -> str:
    """The content security policy of a page of ours, for a server that sends it as a header, too."""
    found = _POLICY.search(page)
    if found is None:
        raise ValueError("the page has no policy")
    return unescape(found[1])


def templates(package: str) -> Environment:
    """The templates in the `assets` of a package, which escape what they are given and leave no hole."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # late: only a page pays for it

    return Environment(
        loader=PackageLoader(package, "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _environment() -> Environment:
    environment = templates("seatrial.report")
    environment.globals |= {"SYMBOLS": SYMBOLS, "WORDS": WORDS, "MAX_ROWS": MAX_ROWS, "MAX_EVIDENCE": MAX_EVIDENCE}
    environment.filters |= {"show": show, "compared": compared, "basename": lambda place: place.rpartition("/")[2]}
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
