"""A run's report for a terminal: the verdict first, then its reasons, then the figures."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from seatrial.console import PROSE_WIDTH, Cell, Paint, table, width, wrapped
from seatrial.report.figures import SYMBOLS, TITLES, WORDS, figures, tone, where
from seatrial.report.gather import RunReport, Tail
from seatrial.report.section import Section
from seatrial.report.sections import sections
from seatrial.verdict import AxisVerdict, Check, Outcome, Status

TAIL_LINES = 12
SECTION_ROWS = 20
VALUE_CHARACTERS = 24  # of a value that a rehearsal changed

_STATUS_STYLES: dict[Status, str] = {"pass": "green", "fail": "red", "inconclusive": "yellow", "not_applicable": "dim"}


def render(report: RunReport, *, color: bool | None = None, columns: int | None = None) -> str:
    """The report as lines of the terminal's width, or of `columns`; coloured on a terminal unless `color` decides."""
    page = _Page(Paint(color), columns or width())
    blocks = [_title(report, page), *_axes(report, page), *_figures(report, page)]
    blocks += [_section(section, page) for section in sections(report) if not section.in_evidence]
    blocks += _changes(report, page)
    blocks += [_tail(tail, page) for tail in report.tails]
    if report.missing:
        blocks.append("\n".join(page.wrapped(f"not shown: {line}") for line in report.missing))
    return "\n\n".join(blocks)


@dataclass(frozen=True)
class _Page:
    """The width and the colours of the text."""

    paint: Paint
    columns: int

    def table(self, rows: Sequence[Sequence[Cell]], **layout: Any) -> str:
        return table(rows, columns=self.columns, color=self.paint.enabled, **layout)

    def wrapped(self, text: str, *, indent: str = "", style: str = "") -> str:
        return wrapped(text, self.paint, indent=indent, style=style, columns=self.columns)


def outcome_style(outcome: Outcome) -> str:
    """The style of an outcome's word."""
    return f"bold {_STATUS_STYLES[tone(outcome)]}"


def _title(report: RunReport, page: _Page) -> str:
    verdict = report.verdict
    style = outcome_style(verdict.outcome) if verdict else "bold"
    title = TITLES[verdict.outcome] if verdict else "NOT JUDGED"
    first, *rest = textwrap.wrap(f"{title}  {report.name}", min(page.columns, PROSE_WIDTH))
    lines = [page.paint(style, title) + first[len(title) :], *rest, page.wrapped(where(report), style="dim")]
    lines.append(page.wrapped(verdict.headline) if verdict else "")
    return "\n".join(line for line in lines if line)


def _axes(report: RunReport, page: _Page) -> list[str]:
    """The axes and their checks, with an empty row between two axes."""
    rows: list[tuple[Cell, Cell]] = []
    for name, axis in report.verdict.axes.items() if report.verdict else ():
        rows += [*([("", "")] if rows else []), *_axis(name, axis)]
    return [page.table(rows, indent=0, whole=(0,))] if rows else []


def _axis(name: str, axis: AxisVerdict) -> list[tuple[Cell, Cell]]:
    """An axis and its checks; those that passed in one line, unless their figures are of interest."""
    shown = [check for check in axis.checks if check.status != "pass" or check.axis == "performance"]
    passed = ", ".join(check.name for check in axis.checks if check not in shown)
    rows: list[tuple[Cell, Cell]] = [(name, (WORDS[axis.status], _STATUS_STYLES[axis.status]))]
    rows += [((f"  {SYMBOLS['pass']} passed", "dim"), (passed, "dim"))] if passed else []
    return rows + [row for check in shown for row in _check(check)]


def _check(check: Check) -> list[tuple[Cell, Cell]]:
    title = (f"  {SYMBOLS[check.status]} {check.title}", _STATUS_STYLES[check.status])
    return [(title, check.sentence), *(("", (f"· {line}", "dim")) for line in check.evidence)]


def _figures(report: RunReport, page: _Page) -> list[str]:
    rows = [(f.label, f"{f.value} {f.unit}".strip(), (f.detail, "dim")) for f in figures(report)]
    times = report.performance.step_times if report.performance else None
    blocks = [page.table(rows, whole=(0, 1))] if rows else []
    return [*blocks, page.wrapped(times.rule, indent="  ", style="dim")] if times else blocks


def _section(section: Section, page: _Page) -> str:
    """The title, the columns under their heads, and the notes."""
    right = [index for index, column in enumerate(section.columns) if column in section.numbers]
    rows = section.rows[:SECTION_ROWS]
    lines = [page.table(rows, head=section.columns, right=right)] if rows else []
    if len(section.rows) > SECTION_ROWS:
        lines.append(page.paint("dim", f"  {len(section.rows) - SECTION_ROWS} more rows"))
    notes = [page.wrapped(note, indent="  ", style="dim") for note in section.notes]
    title = section.title if section.title[:2].isupper() else section.title[:1].lower() + section.title[1:]
    return "\n".join([title, *lines, *notes])


def _changes(report: RunReport, page: _Page) -> list[str]:
    rows = [(c.path, f"{_short(c.original)} → {_short(c.rehearsed)}", (c.why, "dim")) for c in report.changes]
    return [f"the {report.rehearsal} changed\n{page.table(rows, whole=(0,))}"] if rows else []


def _tail(tail: Tail, page: _Page) -> str:
    shown = [page.paint("dim", "  │ ") + line[: page.columns - 4] for line in tail.lines[-TAIL_LINES:]]
    return "\n".join([page.wrapped(f"the end of {tail.log}"), *shown])


def _short(value: str) -> str:
    return value if len(value) <= VALUE_CHARACTERS else value[: VALUE_CHARACTERS - 1] + "…"
