"""A table of a report, the same one in every format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Rows = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Section:
    """A table of texts: `numbers` names its columns of figures, `strong` its rows that matter most.

    `first`: it says what went wrong, so it stands before everything else. `in_evidence`: the checks' evidence says it
    too, so a format that shows all of that leaves it out.
    """

    key: str
    title: str
    columns: tuple[str, ...]
    rows: Rows
    numbers: tuple[str, ...] = ()
    strong: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()
    first: bool = False
    in_evidence: bool = False


def without_empty_columns(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], Rows]:
    """The columns in which any row has a text, and the rows with only these."""
    kept = [number for number in range(len(columns)) if any(row[number] for row in rows)]
    return tuple(columns[number] for number in kept), tuple(tuple(row[number] for number in kept) for row in rows)
