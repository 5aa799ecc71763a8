"""A kind of fault, and the line that shows it → the event, with what that line names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from seatrial.events import Fault
from seatrial.logs.fault_table import KINDS

MAX_TEXT = 500  # characters kept of a line

_NUMBERS = (
    "rank", "sequence", "exit_code", "code", "step", "came", "expected", "task", "local_rank", "device", "pid",
    "waits_for", "reporter", "until",
)  # fmt: skip

Printer = tuple[int, str, int | None, str | None]  # process, source, rank, host


class Place(NamedTuple):
    """A line of a log: who printed it, when, and where it stands."""

    process: int
    source: str
    rank: int | None
    host: str | None
    wall_time: float
    line: int
    text: str

    @property
    def printer(self) -> Printer:
        """Who printed the line."""
        return self.process, self.source, self.rank, self.host


def faults_of(kind: str, at: Place, groups: Mapping[str, str | None], text: str) -> Iterator[Fault]:
    """The fault, or one for each rank where the line names several in `ranks`."""
    if ranks := groups.get("ranks"):
        others = {name: value for name, value in groups.items() if name != "ranks"}
        yield from (fault_of(kind, at, {**others, "rank": rank}, text) for rank in re.findall(r"\d+", ranks))
    else:
        yield fault_of(kind, at, groups, text)


def fault_of(kind: str, at: Place, groups: Mapping[str, str | None], text: str) -> Fault:
    """The fault of `kind` on a line; what the line itself names, by its `groups`, goes before its prefix.

    Of a kind that happened to others, whoever prints it is the reporter: neither its rank nor its host is the fault's.
    """
    rank, host = ("reporter", "reporter_host") if KINDS[kind].of_others else ("rank", "host")
    printed = {"source": at.source, rank: at.rank, host: at.host}
    facts: dict[str, Any] = {name: value for name, value in printed.items() if value not in (None, "")}
    for name, value in groups.items():
        if value:
            facts[name] = int(value) if name in _NUMBERS and re.fullmatch(r"-?\d{1,18}", value) else value[:MAX_TEXT]
    if facts.pop("first", None):  # the launcher's word: it ended before all others
        facts["root"] = True
    places = (f"rank {facts['rank']}" if "rank" in facts else "", facts.get("host", ""))
    text = text.strip()
    return Fault(
        process=at.process,
        wall_time=at.wall_time,
        monotonic_time=at.wall_time,
        fault=kind,
        where=" on ".join(filter(None, places)),
        line=at.line,
        text=text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…",
        facts=facts,
    )
