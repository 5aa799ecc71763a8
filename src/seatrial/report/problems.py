"""Findings about a configuration, for people (a compiler's way: place, line, caret, why, fix) and for scripts."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from seatrial.command import masked
from seatrial.console import Paint, finding_line, finding_title, inert
from seatrial.errors import Mark, Problem, Severity

ORDER: tuple[Severity, ...] = ("error", "warning", "info")
_WORDS = {"error": "error", "warning": "warning", "info": "note"}

MAX_SHOWN = 100  # findings; who has more than that has one cause for many of them
REPEATED = 3  # findings that say the same are shown as one
MAX_NAMED = 10  # of the keys in such a group
MAX_EXCERPT = 100


def render_json(problems: Iterable[Problem]) -> str:
    """The findings as one JSON object: {"problems": [{severity, code, path, file, line, column, why, fix}, …]}."""
    return json.dumps({"problems": [problem.as_dict() for problem in problems]}, indent=2)


def render_text(problems: Iterable[Problem], *, color: bool | None = None) -> str:
    """The findings, errors first, and a line that counts them; coloured on a terminal unless `color` decides."""
    paint = Paint(color)
    in_order = ordered(problems)
    groups, lines = _grouped(in_order), _Lines()
    shown, more = groups[:MAX_SHOWN], sum(map(len, groups[MAX_SHOWN:]))
    blocks = [_block(group, paint, lines) for group in shown if group[0].severity != "info"]
    notes = "\n".join(finding_line(group[0], paint) + _others(group) for group in shown if group[0].severity == "info")
    rest = f"… and {more} more; --format json lists all" if more else ""
    return "\n\n".join([*blocks, *(part for part in (notes, rest) if part), summary(in_order)])


def ordered(problems: Iterable[Problem]) -> list[Problem]:
    """Errors first, then in the order of the file."""
    return sorted(problems, key=_position)


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
    """The other places of the same finding: " (also …)"."""
    if len(group) == 1:
        return ""
    named = [
        f"{inert(p.path.rpartition('.')[2])} (line {p.mark.line})" if p.mark else inert(p.path)
        for p in group[1 : MAX_NAMED + 1]
    ]
    more = len(group) - 1 - len(named)
    return f" (also {', '.join(named)}{f' and {more} more' if more else ''})"


def _position(problem: Problem) -> tuple[int, int, int]:
    """Errors first, then in the order of the file; what came from the command line before what stands in it."""
    mark = problem.mark
    return ORDER.index(problem.severity), mark.line if mark else 0, mark.column if mark else 0


def _block(group: list[Problem], paint: Paint, lines: _Lines) -> str:
    problem = group[0]
    return "\n".join([
        finding_title(problem, paint),
        *(_excerpt(problem.mark, paint, lines) if problem.mark else ()),
        f"  {paint('dim', 'why:')} {inert(problem.why)}{_others(group)}",
        f"  {paint('dim', 'fix:')} {inert(problem.fix)}",
    ])  # fmt: skip


def summary(problems: list[Problem]) -> str:
    """The line that counts them, and says OK without errors."""
    found = counted(problems)
    return found if has_errors(problems) else ", ".join(["OK: no errors", *([found] if found else [])])


def counted(problems: Iterable[Problem]) -> str:
    """The number of findings of each severity: "8 warnings, 10 notes"."""
    return ", ".join(by_severity(problems))


def has_errors(problems: Iterable[Problem]) -> bool:
    """True if any finding is an error."""
    return any(problem.severity == "error" for problem in problems)


def by_severity(problems: Iterable[Problem]) -> dict[str, list[Problem]]:
    """The findings under a title that counts them, such as "2 errors"; errors first."""
    problems, found = list(problems), dict[str, list[Problem]]()
    for severity in ORDER:
        if these := [problem for problem in problems if problem.severity == severity]:
            found[f"{len(these)} {_WORDS[severity]}{'s' * (len(these) != 1)}"] = these
    return found


# --- the line that a finding is about ---------------------------------------------------------------------------------


class _Lines(dict[str, list[str]]):
    """The lines of files, each read once, with secrets masked; of a file that is gone, none."""

    def __missing__(self, file: str) -> list[str]:
        try:
            text = Path(file).read_bytes().decode("utf-8", "replace")
            self[file] = masked(text, same_length=True).split("\n")  # a secret may take several lines
        except (OSError, ValueError):
            self[file] = []
        return self[file]


def _excerpt(mark: Mark, paint: Paint, lines: _Lines) -> list[str]:
    """The line with a caret under its column; of a long line, the part around it."""
    if mark.line > len(lines[mark.file]):
        return []
    line = lines[mark.file][mark.line - 1]
    start = max(0, mark.column - 1 - MAX_EXCERPT // 2) if len(line) > MAX_EXCERPT else 0
    shown = line[start : start + MAX_EXCERPT].rstrip().replace("\t", " ")
    before = inert(shown[: mark.column - 1 - start])
    return [f"  | {inert(shown)}", f"  | {' ' * _width(before)}{paint('green', '^')}"]


def _width(text: str) -> int:
    """Columns that a terminal gives to a text."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) > 0 for character in text)
