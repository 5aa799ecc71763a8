"""A terminal as emulators of today are one: what was written to it, as a person sees it, also after a resize."""

from __future__ import annotations

import re

# `python -c` this, and a program: it gets the terminal for its own, and Ctrl-C as it is by default, which a shell's
# background job ignores.
WITH_TERMINAL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
_TOKENS = re.compile(r"\x1b\[(\??)([0-9;]*)([A-Za-z])|\x1b[@-Z\\-_78=>]|[\r\n\x07\x08]|[^\x1b\r\n\x07\x08]+")


class Terminal:
    """Rows of characters, wrapped at the width, and wrapped again when the width changes, as tmux and VTE do it.

    `modes` are the private modes that were set ("25": the cursor is visible, "1049": the other screen), `erased` is how
    often the rows below the cursor were taken away.
    """

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.rows: list[list[str]] = [[]]
        self.goes_on = [False]  # whether the row is continued by the next one
        self.row = self.column = 0
        self.modes = {"25": True}
        self.unknown: list[str] = []
        self.erased = 0

    def write(self, text: str) -> None:
        for token in _TOKENS.finditer(text):
            if token[3]:
                self._control(token)
            elif token[0] == "\n":  # the terminal driver has written \r before it
                self._down()
            elif token[0] == "\r":
                self.column = 0
            elif token[0] == "\x08":
                self.column = max(0, self.column - 1)
            elif token[0].startswith("\x1b"):
                self.unknown.append(token[0])
            elif token[0] != "\x07":
                self._print(token[0])

    def resize(self, columns: int) -> None:
        """Another width: rows that were one line are one again, and wrap where it ends now."""
        lines: list[list[str]] = [[]]
        at = (0, 0)
        for number, row in enumerate(self.rows):
            if number == self.row:
                at = len(lines) - 1, len(lines[-1]) + self.column
            lines[-1] += row
            if not self.goes_on[number]:
                lines.append([])
        lines = lines[:-1] or [[]]
        self.columns, self.rows, self.goes_on = columns, [], []
        for number, line in enumerate(lines):
            parts = [line[i : i + columns] for i in range(0, len(line), columns)] or [[]]
            if number == at[0]:
                self.row, self.column = len(self.rows) + min(at[1] // columns, len(parts) - 1), at[1] % columns
            self.rows += parts
            self.goes_on += [True] * (len(parts) - 1) + [False]

    def lines(self) -> list[str]:
        """The rows as text, without those that are empty at the end."""
        shown = ["".join(row).rstrip() for row in self.rows]
        while shown and not shown[-1]:
            shown.pop()
        return shown

    def whole_lines(self) -> list[str]:
        """The same with wrapped rows put together."""
        found, begun = [], ""
        for row, goes_on in zip(self.rows, self.goes_on, strict=True):
            begun += "".join(row)
            if not goes_on:
                found.append(begun.rstrip())
                begun = ""
        while found and not found[-1]:
            found.pop()
        return found

    def _control(self, token: re.Match[str]) -> None:
        private, number, letter = token[1], token[2], token[3]
        amount = int(number or 1) if ";" not in number else 1
        if private and letter in "hl":
            self.modes |= dict.fromkeys(number.split(";"), letter == "h")
        elif letter == "A":
            self.row = max(0, self.row - amount)
        elif letter == "J" and number in ("", "0"):
            del self.rows[self.row][self.column :], self.rows[self.row + 1 :], self.goes_on[self.row + 1 :]
            self.goes_on[self.row] = False
            self.erased += 1
        elif letter == "K" and number in ("", "0"):
            del self.rows[self.row][self.column :]
        elif letter != "m":
            self.unknown.append(token[0])

    def _print(self, text: str) -> None:
        for character in text:
            if self.column == self.columns:
                self.goes_on[self.row] = True
                self._down()
                self.column = 0
            row = self.rows[self.row]
            row += [" "] * (self.column - len(row))
            row[self.column : self.column + 1] = character
            self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append([])
            self.goes_on.append(False)
