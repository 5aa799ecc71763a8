"""One line of a log → the steps in it, by a family's grammar, and its notes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from seatrial.logs.grammar import PHASES, Family, Note, Reading, Span, read_values
from seatrial.logs.lines import Prefix
from seatrial.logs.numbers import find_time, seconds_since_epoch

LONGEST_STEP = 1 << 13  # characters behind the head of a step; what comes then is glued to it
# A progress bar whose description a step is: with a total, or of what nobody has counted.
_PROGRESS = re.compile(r"\d%\|[^|]{0,1000}\| *\d+/(?P<total>\d+) \[|\b\d+it \[[\d:]+, ")
LONGEST_NUMBER = 18  # digits of a step; more are none, and `int` refuses thousands of them


class Line(NamedTuple):
    """A line as it was printed, without the carriage return before it, and what launchers put before that."""

    raw: str
    text: str
    prefix: Prefix


class Remark(NamedTuple):
    """A note in a line: where, what it says, and when."""

    start: int
    note: Note
    groups: Mapping[str, Any]
    time: float | None


def readings_of(family: Family, text: str) -> Iterator[Reading]:
    """The step lines in a line: more than one where prints are glued.

    A user's own pattern may match lines in which no step is named: these are none.
    """
    numbered = "step" in family.head.groupindex
    heads = [head for head in family.head.finditer(text) if not numbered or head["step"]]
    ends = [*(head.start() for head in heads[1:]), len(text)]
    for head, next_head in zip(heads, ends, strict=False):
        end = min(next_head, head.end() + LONGEST_STEP)
        if any(len(head[name] or "") > LONGEST_NUMBER for name in ("step", "total") if name in head.re.groupindex):
            continue
        if not family.whole or family.whole.search(text, head.end(), end):
            drawn = _PROGRESS.search(text, head.end(), end)
            total = head["total"] if "total" in head.re.groupindex else None
            is_of_parts = drawn is not None and (drawn["total"] is None or drawn["total"] != total)
            reading = _reading(family, head, [*family.pair.finditer(text, head.end(), end)])
            yield replace(reading, redrawn=True) if is_of_parts else reading


def _reading(family: Family, head: re.Match[str], pairs: Sequence[re.Match[str]]) -> Reading:
    groups = head.groupdict()
    numbers = [name for name in ("step", "total") if groups.get(name)]
    spans: dict[str, Span] = {name: (*head.span(name), name, None) for name in numbers}
    own = [(name, text, head.start(name)) for name, text in groups.items() if text and name in family.fields]
    told = own + [(pair[1].strip(), pair[2], pair.start(2)) for pair in pairs]
    found = read_values([(key, text) for key, text, _ in told], family.fields)
    for name, place in found.places.items():
        key, text, start = told[place]
        spans[name] = (start + len(text) - len(text.lstrip()), start + len(text.rstrip()), name, family.fields[key])
    return Reading(
        values={**{name: int(groups[name].replace(",", "")) for name in numbers}, **found.values},
        phase=next((phase for phase in PHASES if groups.get(phase)), ""),
        spans=tuple(spans.values()),
        alike=found.alike,
    )


def is_cut(family: Family, reading: Reading, line: str) -> bool:
    """True if the line ends in a number that the tables did not accept, though they know its key."""
    end = line[max(span[1] for span in reading.spans) :].rstrip()
    return end[-1:] in tuple("0123456789.") and any(
        key in end for key, field in family.fields.items() if field.name not in reading.values
    )


def remarks_of(text: str, notes: Sequence[Note]) -> list[Remark]:
    """The notes in a line, in their order."""
    found: list[Remark] = []
    for note in notes:
        if note.literal in text:
            for match in note.pattern.finditer(text):
                span = find_time(text, match.end())
                time = seconds_since_epoch(text[slice(*span)]) if span else None
                found.append(Remark(match.start(), note, match.groupdict(), time))
    return sorted(found, key=lambda remark: remark.start)
