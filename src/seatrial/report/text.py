"""A run's report for a terminal: the verdict first, then its reasons, then the figures."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Collection, Sequence
from itertools import zip_longest

from seatrial.console import is_colorful
from seatrial.report.figures import SYMBOLS, TITLES, WORDS, Figure, progress, speed, where
from seatrial.report.gather import RunReport
from seatrial.report.section import Section
from seatrial.report.sections import sections
from seatrial.verdict import Axis, AxisVerdict, Check

WIDTH = 80
CELL_WIDTH = 28  # of any column of a table but the last, which wraps
NAME_WIDTH = 20
LAST_WIDTH = 20  # at the least, of the last one
TAIL_LINES = 12
SECTION_ROWS = 20

_GREEN, _RED, _YELLOW, _DIM, _BOLD, _PLAIN = "32", "31", "33", "2", "1", ""
_STATUS_COLORS = {"pass": _GREEN, "fail": _RED, "inconclusive": _YELLOW, "not_applicable": _DIM}
_OUTCOME_COLORS = {"pass": _GREEN, "inconclusive": _YELLOW, "interrupted": _YELLOW}


def render(report: RunReport, *, color: bool | None = None) -> str:
    """The report as lines of at most 80 columns; coloured on a terminal unless `color` decides."""
    paint = _Paint(is_colorful(sys.stdout) if color is None else color)
    blocks = [_title(report, paint)]
    if report.verdict:
        blocks += [_axis(name, axis, paint) for name, axis in report.verdict.axes.items()]
    if report.metrics:
        blocks.append(
            _figures(
                [*progress(report.metrics), *speed(report.metrics, rehearsal=report.rehearsal, tokens=report.tokens)],
                paint,
            )
        )
        times = report.metrics.performance.step_times
        if times:
            blocks.append(_wrapped(times.rule, "  ", paint, _DIM))
    blocks += [_section(section, paint) for section in sections(report) if not section.in_evidence]
    if report.changes:
        blocks.append(_changes(report, paint))
    blocks += [_tail(tail.log, tail.lines, paint) for tail in report.tails]
    if report.missing:
        blocks.append("\n".join(_wrapped(f"not shown: {line}", "", paint, "") for line in report.missing))
    return "\n\n".join(blocks)


class _Paint:
    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled

    def __call__(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._enabled and text and code else text


def _title(report: RunReport, paint: _Paint) -> str:
    verdict = report.verdict
    color = f"{_BOLD};{_OUTCOME_COLORS.get(verdict.outcome, _RED)}" if verdict else _BOLD
    title = TITLES[verdict.outcome] if verdict else "NOT JUDGED"
    first, *rest = textwrap.wrap(f"{title}  {report.name}", WIDTH)
    lines = [paint(color, title) + first[len(title) :], *rest, _wrapped(where(report), "", paint, _DIM)]
    lines.append(_wrapped(verdict.headline, "", paint, _PLAIN) if verdict else "")
    return "\n".join(line for line in lines if line)


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
    told = f"{name}{check.sentence}"
    first, *rest = textwrap.wrap(told, WIDTH, initial_indent="    ", subsequent_indent=indent) or ["    "]
    symbol = paint(_STATUS_COLORS[check.status], SYMBOLS[check.status])
    return [f"  {symbol} {first[4:]}", *rest, *(_wrapped(line, indent + "· ", paint, _DIM) for line in check.evidence)]


def _figures(figures: Sequence[Figure], paint: _Paint) -> str:
    rows = [(f.label, f"{f.value} {f.unit}".strip(), f.detail) for f in figures]
    return "\n".join(_columns(rows, paint, (_PLAIN, _PLAIN, _DIM)))


def _section(section: Section, paint: _Paint) -> str:
    """The title, the columns under their heads, and the notes."""
    colors = [_PLAIN] * len(section.columns)
    right = [index for index, column in enumerate(section.columns) if column in section.numbers]
    rows = section.rows[:SECTION_ROWS]
    lines = _columns(rows, paint, colors, head=section.columns, right=right) if rows else []
    if len(section.rows) > SECTION_ROWS:
        lines.append(paint(_DIM, f"  {len(section.rows) - SECTION_ROWS} more rows"))
    notes = [_wrapped(note, "  ", paint, _DIM) for note in section.notes]
    return "\n".join([section.title[:1].lower() + section.title[1:], *lines, *notes])


def _changes(report: RunReport, paint: _Paint) -> str:
    rows = [(c.path, f"{_short(c.original)} → {_short(c.rehearsed)}", c.why) for c in report.changes]
    return "\n".join([f"the {report.rehearsal} changed", *_columns(rows, paint, (_PLAIN, _PLAIN, _DIM))])


def _columns(
    rows: Sequence[Sequence[str]],
    paint: _Paint,
    colors: Sequence[str],
    *,
    head: Sequence[str] = (),
    right: Collection[int] = (),
) -> list[str]:
    """Rows side by side, the last column wrapped into what is left of the width; long cells of the others too."""
    shown = [head, *rows] if head else rows
    last = len(shown[0]) - 1
    most = min(CELL_WIDTH, (WIDTH - 2 - LAST_WIDTH) // max(1, last) - 2)
    widths = [min(most, max(len(row[n]) for row in shown)) for n in range(last)]
    rest = WIDTH - 2 - sum(widths) - 2 * last
    widths.append(min(rest, max(len(row[last]) for row in shown)))
    lines = []
    for row in shown:
        cells = [textwrap.wrap(cell, width or 1) for cell, width in zip(row, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue="") if any(cells) else ():
            padded = [
                part.rjust(width) if n in right else part.ljust(width) if n < last else part
                for n, (part, width) in enumerate(zip(parts, widths, strict=True))
            ]
            painted = [paint(_DIM if row is head else color, part) for part, color in zip(padded, colors, strict=True)]
            lines.append(("  " + "  ".join(painted)).rstrip())
    return lines


def _tail(log: str, lines: Sequence[str], paint: _Paint) -> str:
    shown = [paint(_DIM, "  │ ") + line[: WIDTH - 4] for line in lines[-TAIL_LINES:]]
    return "\n".join([_wrapped(f"the end of {log}", "", paint, _PLAIN), *shown])


def _short(value: str) -> str:
    return value if len(value) <= 24 else value[:23] + "…"


def _wrapped(text: str, indent: str, paint: _Paint, code: str) -> str:
    lines = textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=" " * len(indent))
    return "\n".join(paint(code, line) for line in lines)
