"""Terminal output: untrusted text made inert, colours, widths, tables, and one-line notes and warnings."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, TextIO

from seatrial.errors import Problem

PIPE_WIDTH = 100  # columns where the output is no terminal
PROSE_WIDTH = 100  # the most that sentences are given: longer lines are hard to read
INDENT = 2
UNLIMITED = 10_000

Say = Callable[[str], None]  # takes the lines of what goes on, in the place of the terminal

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
SEVERITY_STYLES = {"error": "red", "warning": "yellow", "info": "cyan"}
ESCAPE_SEQUENCES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\?)|[@-Z\\-_])")
# What could move the cursor, colour the screen, reverse the reading order, break a line or hide in it.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


@contextmanager
def heard_or_not() -> Iterator[None]:
    """A place for output whose reader may go away (`seatrial run … | head`): from then on it goes nowhere."""
    try:
        yield
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        with suppress(OSError, ValueError):  # no file of its own, as in a notebook
            os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def inert(text: str) -> str:
    """Text that a terminal can only show: control characters stand as their escapes."""
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode("ascii"), text)


def show_value(value: Any) -> str:
    """A value of a spec, as a person would write it."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def short_number(number: int) -> str:
    """A large number as a person would say it: 405.9 B, 1.2 M, 3,152."""
    for size, letter in ((10**9, "B"), (10**6, "M")):
        if number >= size:
            return f"{number / size:,.1f} {letter}"
    return f"{number:,}"


def plural(number: int, noun: str) -> str:
    """A number and what is counted: "1 node", "3 processes"."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending}"


def is_colorful(stream: TextIO | None) -> bool:
    """True if colours would be seen there (None: the stream is closed), and are wanted (https://no-color.org)."""
    unwanted = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return stream is not None and stream.isatty() and not unwanted


def width() -> int:
    """The columns of the terminal, or of COLUMNS; where the output is neither, PIPE_WIDTH."""
    if os.environ.get("COLUMNS", "").isdigit() or (sys.stdout is not None and sys.stdout.isatty()):
        return max(40, shutil.get_terminal_size().columns)
    return PIPE_WIDTH


def row_width() -> int:
    """The columns for a list of which each row is to be one line: into a pipe, as many as a row takes."""
    return width() if sys.stdout.isatty() else UNLIMITED


class Paint:
    """Wraps text in the colours of a style such as "bold red"; leaves it as it is where there are none."""

    def __init__(self, color: bool | None = None, stream: TextIO | None = None) -> None:
        self.enabled = is_colorful(stream or sys.stdout) if color is None else color

    def __call__(self, style: str, text: str) -> str:
        codes = ";".join(_CODES[word] for word in style.split())
        return f"\x1b[{codes}m{text}\x1b[0m" if self.enabled and text and codes else text


def wrapped(text: str, paint: Paint, *, indent: str = "", style: str = "", columns: int | None = None) -> str:
    """A paragraph in lines of a readable length."""
    columns = min(columns or width(), PROSE_WIDTH)
    lines = textwrap.wrap(text, columns, initial_indent=indent, subsequent_indent=" " * len(indent))
    return "\n".join(paint(style, line) for line in lines)


Cell = str | tuple[str, str]  # a text, or a text and its style


def table(
    rows: Sequence[Sequence[Cell]],
    *,
    head: Sequence[str] = (),
    right: Collection[int] = (),
    whole: Collection[int] = (),
    indent: int = INDENT,
    columns: int | None = None,
    widest: int | None = None,
    color: bool = False,
) -> str:
    """Rows under their head; cells wrap where they are too wide for the terminal, and nothing of them is cut off.

    `right` names columns that are aligned to the right, `whole` those that do not wrap while another can. Only the last
    column is wider than `widest`.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    columns = columns or width()
    cells = [[cell if isinstance(cell, tuple) else (cell, "") for cell in row] for row in rows]
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=bool(head), header_style="dim")
    for number in range(len(head or rows[0])):
        title = Text(inert(head[number]) if head else "")
        justify: Literal["left", "right"] = "right" if number in right else "left"
        fits = max(cell_len(row[number][0]) for row in cells) <= columns // (len(whole) + 1)
        most = widest if number < len(cells[0]) - 1 else None
        made.add_column(title, justify=justify, overflow="fold", no_wrap=number in whole and fits, max_width=most)
    for row in cells:
        made.add_row(*(Text(inert(text), style) for text, style in row))
    out = io.StringIO()
    Console(
        file=out, width=columns, color_system="standard" if color else None, force_terminal=color,
        markup=False, highlight=False, emoji=False, legacy_windows=False, no_color=not color,
    ).print(Padding(made, (0, 0, 0, indent), expand=False))  # fmt: skip
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip("\n").split("\n"))


# --- notes and warnings -----------------------------------------------------------------------------------------------


def finding_title(problem: Problem, paint: Paint) -> str:
    """Place, severity, code and key of a finding."""
    place = f"{inert(str(problem.mark))}: " if problem.mark else ""
    kind = paint(SEVERITY_STYLES[problem.severity], f"{problem.severity}[{problem.code}]")
    return f"{place}{kind} {inert(problem.path)}"


def finding_line(problem: Problem, paint: Paint) -> str:
    """A finding in one line."""
    return f"{finding_title(problem, paint)}: {inert(problem.why)}"


def warn(problems: Iterable[Problem], say: Say | None = None) -> None:
    """Prints the warnings among the findings to stderr, one line each; or gives the lines to `say`."""
    paint = Paint(stream=sys.stderr, color=None if say is None else False)
    for problem in problems:
        if problem.severity == "warning":
            line = finding_line(problem, paint)
            print(line, file=sys.stderr) if say is None else say(line)


def note(texts: Iterable[str], *, to: TextIO | None = None) -> None:
    """Prints notes, one line each; to stdout unless `to` names another stream."""
    for text in texts:
        print(f"note: {inert(text)}", file=to, flush=True)
