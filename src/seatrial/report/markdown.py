"""A run's report for a comment on a pull request: GitHub's Markdown, which GitLab reads too.

Text that comes from outside is written in character references, so that no Markdown, HTML or table can stand in it; a
word joiner (invisible, no width) breaks what these sites would make a link or a notification of: @name, #1, !1, URLs,
commit hashes. No such text begins a line, where it could be a command (`/close`).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from seatrial.report.figures import SYMBOLS, TITLES, WORDS, Figure, compared, figures, tone, where
from seatrial.report.gather import RunReport, Tail
from seatrial.report.section import Section
from seatrial.report.sections import sections
from seatrial.verdict import Check

MAX_CHARACTERS = 60_000  # GitHub takes 65,536
CELL_CHARACTERS = 600
TAIL_LINES, TAIL_LINE_CHARACTERS = 15, 240
SECTION_ROWS = 30
JOINER = "\u2060"
HASH_CHARACTERS = 7  # the least that is taken for a commit

# What Markdown or HTML would read; an underscore within a word is none, nor are quotes outside of a tag.
_MARKUP = re.compile(r"""[\\`*{}\[\]<>|~$&#!^@]|(?<![^\W_])_|_(?![^\W_])|^[-+=/]""")
_NUMBERED = re.compile(r"^(\d+)([.)])(?!\S)")
_REFERENCES = re.compile(
    r"""(?P<sign>[@#!$%~&^](?=[\w"{]))"""
    r"""|(?P<scheme>:(?=//))"""
    r"""|(?P<host>\bwww(?=\.))"""
    r"""|(?P<issue>\bGH-(?=\d))"""
    r"""|(?P<hash>\b[0-9a-f]{7,}\b)""",
    re.IGNORECASE,
)


def render(report: RunReport) -> str:
    """Outcome, headline, checks and figures; evidence and the rest folded. What would be too long is left out."""
    blocks = [*_head(report), *([_checks(report.checks)] if report.verdict else [])]
    if report.metrics:
        blocks.append(_figures(figures(report)))
    folded = [_evidence(report.checks)]
    folded += [_section(section) for section in sections(report) if not section.in_evidence]
    folded += [_tail(tail) for tail in report.tails]
    if report.missing:
        folded.append(_folded("Not in this report", "\n".join(f"- Missing: {inert(line)}" for line in report.missing)))
    return _fitting(blocks, [block for block in folded if block])


def _head(report: RunReport) -> list[str]:
    """Outcome, headline, and what ran where."""
    verdict, described = report.verdict, where(report)
    mark = SYMBOLS[tone(verdict.outcome) if verdict else "inconclusive"]
    blocks = [f"## {mark} {TITLES[verdict.outcome] if verdict else 'NOT JUDGED'}: {inert(report.name)}"]
    if verdict:
        blocks.append(f"**Exit code {verdict.exit_code}.** {inert(verdict.headline)}")
    return [*blocks, f"<sub>Ran: {inert(described)}</sub>"] if described else blocks


def inert(text: str, most: int = CELL_CHARACTERS) -> str:
    """Text that shows as it is and does nothing, in Markdown, in a table's cell and in HTML."""
    text = " ".join(text.split())
    text = text if len(text) <= most else text[: most - 1] + "…"
    joined = _REFERENCES.sub(_broken, text)
    escaped = _MARKUP.sub(lambda match: f"&#{ord(match[0])};", joined)
    return _NUMBERED.sub(lambda match: f"{match[1]}&#{ord(match[2])};", escaped)


def _broken(match: re.Match[str]) -> str:
    if match["hash"]:
        return JOINER.join(textwrap.wrap(match[0], HASH_CHARACTERS - 1))
    return match[0] + JOINER


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()) -> str:
    """A table of texts that are inert already; the columns in `numbers` are aligned to the right."""
    rule = ["---:" if index in numbers else "---" for index in range(len(columns))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, rule, *rows))


def _checks(checks: Iterable[Check]) -> str:
    rows = [
        (SYMBOLS[each.status], f"{each.axis}: {inert(each.title)}", inert(each.sentence), *map(inert, compared(each)))
        for each in checks
    ]
    return table(("", "Check", "Finding", "Measured", "Bound"), rows, numbers=(3, 4))


def _figures(found: Sequence[Figure]) -> str:
    return table(
        ("Figure", "Value", ""),
        [(inert(f.label), inert(f"{f.value} {f.unit}".strip()), inert(f.detail)) for f in found],
        numbers=(1,),
    )


def _evidence(checks: Iterable[Check]) -> str:
    lines = [
        f"- {SYMBOLS[check.status]} **{inert(check.title)}** ({WORDS[check.status]}): {inert(line)}"
        for check in checks
        for line in check.evidence
    ]
    return _folded("Evidence", "\n".join(lines)) if lines else ""


def _section(section: Section) -> str:
    rows = [[inert(cell) for cell in row] for row in section.rows[:SECTION_ROWS]]
    notes = [f"Note: {inert(note)}" for note in section.notes]
    if len(section.rows) > SECTION_ROWS:
        notes.append(f"Not shown: {len(section.rows) - SECTION_ROWS} more rows.")
    numbers = [index for index, column in enumerate(section.columns) if column in section.numbers]
    body = [table([inert(column) for column in section.columns], rows, numbers=numbers)] if rows else []
    return _folded(section.title, "\n\n".join([*body, *notes]))


def _tail(tail: Tail) -> str:
    """The lines as code; the fence is longer than any in them."""
    lines = [line[:TAIL_LINE_CHARACTERS] for line in tail.lines[-TAIL_LINES:]]
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return _folded(f"The end of {tail.log}", "\n".join([f"{fence}text", *lines, fence]))


def _folded(summary: str, body: str) -> str:
    return f"<details><summary>{inert(summary)}</summary>\n\n{body}\n\n</details>"


def _fitting(blocks: Sequence[str], folded: Sequence[str]) -> str:
    """As many blocks as a comment holds; the folded ones go first, the last of them before the others."""
    shown = [*blocks, *folded]
    note = "Left out: the rest, which is too long for a comment."
    if sum(len(block) + 2 for block in shown) <= MAX_CHARACTERS:
        return "\n\n".join(shown)
    while len(shown) > 2 and sum(len(block) + 2 for block in shown) + len(note) > MAX_CHARACTERS:
        shown.pop()
    return "\n\n".join([*shown, note])
