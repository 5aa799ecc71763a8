"""A run's steps as a table for spreadsheets and data frames: RFC 4180, one row per step of every attempt.

Numbers are written in full, non-finite ones as nan, inf and -inf; what a record does not give is an empty cell. Text
that a spreadsheet would take for a formula is preceded by an apostrophe.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

from seatrial.report.gather import RunReport
from seatrial.report.steps import STEPS, step_rows

Cell = str | float | int | None

COLUMNS = tuple(column.name for column in STEPS)
_NUMBER = re.compile(r"-\d+(\.\d+)?([eE][-+]?\d+)?", re.ASCII)  # evaluates to itself
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")  # what Excel, LibreOffice or DDE evaluate


def render(report: RunReport) -> str:
    """One row per step of the record that counts, repeated steps too; `in_window` marks those that make the median."""
    rows = step_rows(report.attempts, report.performance)
    return write(COLUMNS, ((*row, "yes" if counts else "no") for *row, counts in rows))


def write(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """The rows under their header, without a line end after the last one."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue().removesuffix("\n")


def _cell(value: Cell) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        if _NUMBER.fullmatch(value):
            return value
        return f"'{value}" if value.lstrip().startswith(_FORMULA) or value.startswith(_FORMULA) else value
    return repr(value)
