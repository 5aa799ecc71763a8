"""Findings about a configuration, for people (a compiler's way: place, line, caret, why, fix) and for scripts."""

from __future__ import annotations

import json
import os
import re
import sys
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from seatrial.command import masked
from seatrial.errors import Mark, Problem, Severity

ORDER: tuple[Severity, ...] = ("error", "warning", "info")
PLURALS = {"error": "errors", "warning": "warnings", "info": "notes"}
SINGULARS = {"error": "error", "warning": "warning", "info": "note"}
_COLORS = {"error": "31", "warning": "33", "info": "36", "caret": "32", "label": "2"}

MAX_SHOWN = 100  # findings; who has more than that has one cause for many of them
REPEATED = 3  # findings that say the same are shown as one
MAX_NAMED = 10  # of the keys in such a group
MAX_EXCERPT = 100
# What could move the cursor, colour the screen, reverse the reading order, break a line or hide in it.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def inert(text: str) -> str:
    """Text that a terminal can only show: control characters stand as their escapes."""
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode("ascii"), text)


def render_json(problems: Iterable[Problem]) -> str:
    """The findings as one JSON object: {"problems": [{severity, code, path, file, line, column, why, fix}, …]}."""
    return json.dumps({"problems": [problem.as_dict() for problem in problems]}, indent=2)


def render_text(problems: Iterable[Problem], *, color: bool | None = None) -> str:
    """The findings, errors first, and a line that counts them; coloured on a terminal unless `color` decides."""
    paint = _Paint(is_colorful(sys.stdout) if color is None else color)
    ordered = sorted(problems, key=_position)
    groups, lines = _grouped(ordered), _Lines()
    shown, more = groups[:MAX_SHOWN], sum(map(len, groups[MAX_SHOWN:]))
    blocks = [_block(group, paint, lines) for group in shown if group[0].severity != "info"]
    notes = "\n".join(_line(group[0], paint) + _others(group) for group in shown if group[0].severity == "info")
    rest = f"… and {more} more; --format json lists all" if more else ""
    return "\n\n".join([*blocks, *(part for part in (notes, rest) if part), _summary(ordered)])


def _grouped(problems: Iterable[Problem]) -> list[list[Problem]]:
    """Findings that say the same of REPEATED keys or more, together where the first of them stands."""
    alike: dict[tuple[str, str, str, str], list[Problem]] = {}
    for problem in problems:
        alike.setdefault((problem.severity, problem.code, problem.why, problem.fix), []).append(problem)
    groups: list[list[Problem]] = []
    for group in alike.values():
        groups += [group] if len(group) >= REPEATED else [[problem] for problem in group]
    return sorted(groups, key=lambda group: _position(group[0]))


def _others(group: list[Problem]) -> str:
    """Where else the same was found: " (also …)"."""
    if len(group) == 1:
        return ""
    named = [
        f"{inert(p.path.rpartition('.')[2])} (line {p.mark.line})" if p.mark else inert(p.path)
        for p in group[1 : MAX_NAMED + 1]
    ]
    more = len(group) - 1 - len(named)
    return f" (also {', '.join(named)}{f' and {more} more' if more else ''})"


def warn(problems: Iterable[Problem]) -> None:
    """Prints the warnings among the findings to stderr, one line each."""
    paint = _Paint(is_colorful(sys.stderr))
    for problem in problems:
        if problem.severity == "warning":
            print(_line(problem, paint), file=sys.stderr)


def _position(problem: Problem) -> tuple[int, int, int]:
    """Errors first, then in the order of the file; what came from the command line before what stands in it."""
    mark = problem.mark
    return ORDER.index(problem.severity), mark.line if mark else 0, mark.column if mark else 0


class _Paint:
    """Wraps text in colours, or leaves it as it is."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled

    def __call__(self, name: str, text: str) -> str:
        return f"\x1b[{_COLORS[name]}m{text}\x1b[0m" if self._enabled else text


def is_colorful(stream: TextIO | None) -> bool:
    """Whether colours would be seen there (None: the stream is closed), and are wanted (https://no-color.org)."""
    unwanted = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return stream is not None and stream.isatty() and not unwanted


def _head(problem: Problem, paint: _Paint) -> str:
    place = f"{inert(str(problem.mark))}: " if problem.mark else ""
    return f"{place}{paint(problem.severity, f'{problem.severity}[{problem.code}]')} {inert(problem.path)}"


def _line(problem: Problem, paint: _Paint) -> str:
    return f"{_head(problem, paint)}: {inert(problem.why)}"


def _block(group: list[Problem], paint: _Paint, lines: _Lines) -> str:
    problem = group[0]
    return "\n".join([
        _head(problem, paint),
        *(_excerpt(problem.mark, paint, lines) if problem.mark else ()),
        f"  {paint('label', 'why:')} {inert(problem.why)}{_others(group)}",
        f"  {paint('label', 'fix:')} {inert(problem.fix)}",
    ])  # fmt: skip


def _summary(problems: list[Problem]) -> str:
    counts = {severity: sum(problem.severity == severity for problem in problems) for severity in ORDER}
    said = [f"{n} {(SINGULARS if n == 1 else PLURALS)[severity]}" for severity, n in counts.items() if n]
    return ", ".join(said) if counts["error"] else ", ".join(["OK: no errors", *said])


# --- the line that a finding is about ---------------------------------------------------------------------------------


class _Lines:
    """The lines of files, each read once, with secrets masked; of a file that is gone, none."""

    def __init__(self) -> None:
        self._of: dict[str, list[str]] = {}

    def get(self, mark: Mark) -> str | None:
        if mark.file not in self._of:
            try:
                text = Path(mark.file).read_bytes().decode("utf-8", "replace")
                self._of[mark.file] = masked(text, same_length=True).split("\n")  # a secret may take several lines
            except (OSError, ValueError):
                self._of[mark.file] = []
        lines = self._of[mark.file]
        return lines[mark.line - 1] if mark.line <= len(lines) else None


def _excerpt(mark: Mark, paint: _Paint, lines: _Lines) -> list[str]:
    """The line with a caret under its column; of a long line, the part around it."""
    line = lines.get(mark)
    if line is None:
        return []
    start = max(0, mark.column - 1 - MAX_EXCERPT // 2) if len(line) > MAX_EXCERPT else 0
    shown = line[start : start + MAX_EXCERPT].rstrip().replace("\t", " ")
    before = inert(shown[: mark.column - 1 - start])
    return [f"  | {inert(shown)}", f"  | {' ' * _width(before)}{paint('caret', '^')}"]


def _width(text: str) -> int:
    """Columns that a terminal gives to a text."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) > 0 for character in text)
