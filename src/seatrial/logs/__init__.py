"""Foreign logs → events: `parse` one stream of lines, `read` the files of a run.

A family of logs (`grammar.Family`) is a table of spellings in a file of its own. What a log does not give is not
reported: never 0, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from seatrial.events import Event
from seatrial.logs import maxtext, megatron
from seatrial.logs.grammar import Family
from seatrial.logs.reader import read_events

__all__ = ["AUTO", "FAMILIES", "parse"]

AUTO = "auto"
FAMILIES: dict[str, Family] = {family.FAMILY.name: family.FAMILY for family in (maxtext, megatron)}


def parse(lines: Iterable[str], family: str = AUTO, *, process: int = 0, source: str = "") -> Iterator[Event]:
    """The events of one log, as its lines come; nothing of it is kept.

    `family` names the spelling; "auto" takes every line for what it is, so that a log may mix them. `process` is who
    printed the lines that name no rank, `source` the log's name for people. Raises KeyError for an unknown family.
    """
    return read_events(lines, _families(family), process=process, source=source)


def _families(name: str) -> Sequence[Family]:
    return tuple(FAMILIES.values()) if name == AUTO else (FAMILIES[name],)
