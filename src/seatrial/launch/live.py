"""The last lines of a terminal, drawn over and over: what stands above them is never touched.

Nothing of the terminal's own is changed, neither its cursor nor its screen or echo: however the process ends, there is
nothing to restore.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from seatrial.console import Paint

if TYPE_CHECKING:
    from rich.console import Console

Line = tuple[str, str]  # a text without control characters, and its style
FULL, EMPTY = "━", "─"
MOST_COLUMNS = 60  # columns
LEAST_COLUMNS = 4


class Live:
    """The region of a terminal. Lines are cut where it ends, so that each takes one row."""

    def __init__(self, console: Console) -> None:
        self._file = console.file
        self._console = console
        self._paint = Paint(color=not console.no_color and console.color_system is not None)
        self._drawn: list[Line] = []

    def size(self) -> tuple[int, int]:
        """Columns and rows as they are now: a window can be resized at any time."""
        try:
            found = os.get_terminal_size(self._file.fileno())
        except (OSError, ValueError):  # a file that takes the place of a terminal
            return self._console.width, self._console.height
        return found.columns or 80, found.lines or 24

    def draw(self, lines: Sequence[Line]) -> None:
        """Puts the lines in the place of those before."""
        columns, rows = self.size()
        before, self._drawn = self._erased(columns), [(_cut(text, columns - 1), style) for text, style in lines]
        del self._drawn[max(1, rows - 1) :]
        self._write(before + "\n".join(self._paint(style, text) for text, style in self._drawn))

    def say(self, line: str) -> None:
        """Prints a line above the region, which wraps where it is too long."""
        lines, (columns, _) = self._drawn, self.size()
        before, self._drawn = self._erased(columns), []
        self._write(f"{before}{line}\n")
        if lines:
            self.draw(lines)

    def end(self, line: str) -> None:
        """Leaves a line, or nothing, in the place of the region."""
        columns, _ = self.size()
        before, self._drawn = self._erased(columns), []
        self._write(before + (f"{line}\n" if line else ""))

    def _erased(self, columns: int) -> str:
        """The control sequences that erase the region. A terminal that has become narrower has wrapped its lines."""
        from rich.cells import cell_len

        if not self._drawn:
            return ""
        up = sum(max(1, -(-cell_len(text) // columns)) for text, _ in self._drawn) - 1
        return "\r" + (f"\x1b[{up}A" if up else "") + "\x1b[J"

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()


def gauge(share: float, columns: int) -> str:
    """A progress bar of so many columns, of which a share is done; none in too few."""
    if columns < LEAST_COLUMNS:
        return ""
    columns = min(MOST_COLUMNS, columns)
    done = round(columns * min(1.0, max(0.0, share)))
    return FULL * done + EMPTY * (columns - done)


def _cut(text: str, columns: int) -> str:
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= columns else f"{set_cell_size(text, max(0, columns - 1))}…"


def clock(seconds: float) -> str:
    """A duration as h:mm:ss."""
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
