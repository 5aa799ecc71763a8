"""A run's report for a terminal: the verdict first, then its reasons, then the figures."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence

from seatrial.report.figures import SYMBOLS, TITLES, WORDS, Figure, progress, speed, where
from seatrial.report.gather import RunReport
from seatrial.report.problems import is_colorful
from seatrial.verdict import Axis, AxisVerdict, Check

WIDTH = 100
NAME_WIDTH = 20
TAIL_LINES = 12

_GREEN, _RED, _YELLOW, _DIM, _BOLD = "32", "31", "33", "2", "1"
_STATUS_COLORS = {"pass": _GREEN, "fail": _RED, "inconclusive": _YELLOW, "not_applicable": _DIM}
_OUTCOME_COLORS = {"pass": _GREEN, "inconclusive": _YELLOW, "interrupted": _YELLOW}


def render(report: RunReport, *, color: bool | None = None) -> str:
    """The report as lines of about a hundred columns; coloured on a terminal unless `color` decides."""
    paint = _Paint(is_colorful(sys.stdout) if color is None else color)
    blocks = [_title(report, paint)]
    if report.verdict:
        blocks += [_axis(name, axis, paint) for name, axis in report.verdict.axes.items()]
    if report.metrics:
        blocks.append(_figures([*progress(report.metrics), *speed(report.metrics, rehearsal=report.rehearsal)], paint))
        times = report.metrics.performance.step_times
        if times:
            blocks.append(_wrapped(times.rule, "  ", paint, _DIM))
    if report.changes:
        blocks.append(_changes(report, paint))
    blocks += [_tail(tail.log, tail.lines, paint) for tail in report.tails]
    if report.missing:
        blocks.append("\n".join(f"not shown: {line}" for line in report.missing))
    return "\n\n".join(blocks)


class _Paint:
    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled

    def __call__(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._enabled and text else text


def _title(report: RunReport, paint: _Paint) -> str:
    head = f"{report.name}  {paint(_DIM, where(report))}"
    verdict = report.verdict
    if verdict is None:
        return f"{paint(_BOLD, 'NOT JUDGED')}  {head}"
    title = paint(f"{_BOLD};{_OUTCOME_COLORS.get(verdict.outcome, _RED)}", TITLES[verdict.outcome])
    return f"{title}  {head}\n{_wrapped(verdict.headline, '', paint, '')}"


def _axis(name: Axis, axis: AxisVerdict, paint: _Paint) -> str:
    """The axis and its checks; those that passed in one line, unless the figures in them are of interest."""
    head = f"{name:{NAME_WIDTH + 5}}{paint(_STATUS_COLORS[axis.status], WORDS[axis.status])}"
    shown = [check for check in axis.checks if check.status != "pass" or check.axis == "performance"]
    passed = ", ".join(check.name for check in axis.checks if check not in shown)
    lines = [line for check in shown for line in _check(check, paint)]
    return "\n".join([head, *([_wrapped(f"{SYMBOLS['pass']} {passed}", "  ", paint, _DIM)] if passed else []), *lines])


def _check(check: Check, paint: _Paint) -> list[str]:
    name = f"{check.title:{NAME_WIDTH}} " if len(check.title) <= NAME_WIDTH else f"{check.title}: "
    indent = " " * (NAME_WIDTH + 5)
    first, *rest = textwrap.wrap(name + check.sentence, WIDTH, initial_indent="    ", subsequent_indent=indent)
    symbol = paint(_STATUS_COLORS[check.status], SYMBOLS[check.status])
    return [f"  {symbol} {first[4:]}", *rest, *(_wrapped(line, indent + "· ", paint, _DIM) for line in check.evidence)]


def _figures(figures: Sequence[Figure], paint: _Paint) -> str:
    values = [f"{figure.value} {figure.unit}".strip() for figure in figures]
    width = max(len(value) for value in values)
    return "\n".join(
        f"  {figure.label:{NAME_WIDTH}}  {value:{width}}  {paint(_DIM, figure.detail)}".rstrip()
        for figure, value in zip(figures, values, strict=True)
    )


def _changes(report: RunReport, paint: _Paint) -> str:
    rows = [(c.path, f"{_short(c.original)} → {_short(c.rehearsed)}", c.why) for c in report.changes]
    path_width, value_width = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = [f"  {path:{path_width}}  {value:{value_width}}  {paint(_DIM, why)}" for path, value, why in rows]
    return "\n".join(["the rehearsal changed", *lines])


def _tail(log: str, lines: Sequence[str], paint: _Paint) -> str:
    shown = [paint(_DIM, "  │ ") + line[:WIDTH] for line in lines[-TAIL_LINES:]]
    return "\n".join([f"the end of {log}", *shown])


def _short(value: str) -> str:
    return value if len(value) <= 24 else value[:23] + "…"


def _wrapped(text: str, indent: str, paint: _Paint, code: str) -> str:
    lines = textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=" " * len(indent))
    return "\n".join(paint(code, line) if code else line for line in lines)
