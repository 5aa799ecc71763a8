"""A table of a report, the same one in every format."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Section:
    """A table of texts: `numbers` names its columns of figures, `strong` its rows that matter most.

    `first`: it says what went wrong, so it stands before everything else. `in_evidence`: the checks' evidence says it
    too, so a format that shows all of that leaves it out.
    """

    key: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[str, ...] = ()
    strong: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()
    first: bool = False
    in_evidence: bool = False
