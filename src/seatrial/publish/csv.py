"""CSV: runs.csv, parameters.csv, checks.csv and steps.csv in one folder, replaced as a whole by the next publishing.

Non-finite numbers are nan, inf and -inf; a text that a spreadsheet would evaluate is preceded by an apostrophe.
"""

from __future__ import annotations

from collections.abc import Sequence

from seatrial.publish.contract import Destination, Publication
from seatrial.publish.tables import tables
from seatrial.report import csv
from seatrial.runs.files import write_text


def publish(publications: Sequence[Publication], to: Destination) -> str:
    assert to.out is not None  # the table says so
    for name, table in tables(publications).items():
        rows = zip(*(table[column] for column in table), strict=True)
        text = csv.write(list(table), ([_yes_or_no(value) for value in row] for row in rows))
        write_text(to.out / f"{name}.csv", text + "\n")
    return f"tables: {to.out}/runs.csv, parameters.csv, checks.csv, steps.csv"


def _yes_or_no(value: csv.Cell) -> csv.Cell:
    """As the report writes truth values."""
    return ("no", "yes")[value] if isinstance(value, bool) else value
