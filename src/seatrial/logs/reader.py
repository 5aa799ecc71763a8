"""Lines → events: which family a line belongs to, which process printed it, and what it says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice, takewhile
from operator import call, methodcaller
from pathlib import Path
from typing import Any, NamedTuple

from seatrial.events import Event
from seatrial.logs.faults import FaultScanner, shape_of
from seatrial.logs.grammar import PHASES, Family, Note, Reading, ReadLine, Span
from seatrial.logs.lines import Prefix, read_blocks, read_prefix, split_line, without_codes
from seatrial.logs.numbers import find_time, floats, integers, seconds_of_all, seconds_since_epoch
from seatrial.logs.pairs import read_pairs
from seatrial.logs.shape import SELDOM, Shape, learn
from seatrial.logs.stream import Stream
from seatrial.logs.years import dated, last_written

MAX_SAID = 1 << 13  # characters behind the head of a step; what comes then is glued to it
MAX_SHAPES = 4  # a program has one or two
MAX_KINDS, LONGEST_KIND = 20_000, 4000  # shapes of lines, characters of one
RUN, WORTH_IT = 256, 4  # step lines read at once: at most, at least
MAX_IN_VAIN = 32  # shapes learnt from one line after the other
MAX_PAUSE = 255  # lines until it is tried again whether lines can be read at once

_GROUPS = methodcaller("groups")

_COLUMNS: Mapping[Callable[[str], Any], Callable[[Sequence[str]], Sequence[Any]]] = {
    float: floats,
    int: integers,
    seconds_since_epoch: seconds_of_all,
}

ReadOther = tuple[Family, ReadLine]


class _Kind(NamedTuple):
    """Which of the tables may have something to say of a line; most lines of any log are `INNOCENT`."""

    families: tuple[Family, ...] = ()
    notes: tuple[Note, ...] = ()
    others: tuple[ReadOther, ...] = ()
    faults: bool = False


INNOCENT, OF_FAULTS = _Kind(), _Kind(faults=True)

_Known = tuple[Shape, Family, Stream]

Remark = tuple[Note, Mapping[str, Any], float | None]  # what it says, and when


class Reader:
    """Reads one log, line after line; `feed` and `finish` return the events that follow.

    `process` is who prints the lines without a rank, `source` the file's name for people.
    """

    def __init__(self, families: Sequence[Family], *, process: int, source: str) -> None:
        self._families = tuple(families)
        self._process = process
        self._source = source
        self._streams: dict[int, Stream] = {}  # by process
        self._known: Family | None = None  # the family of the last step line
        self._family_of = {note: family.name for family in families for note in family.notes}
        self._notes = tuple(self._family_of)
        self._others = tuple((family, family.other()) for family in families if family.other)
        self._shapes: list[_Known] = []
        self._seldom: dict[str, float] = {}
        self._vary: set[str] = set()
        self._learnt_at = self._in_vain = 0
        self._faults = FaultScanner()
        self._kinds: dict[bytes, _Kind] = {}
        self._told = False  # whether there was a fault since the last step
        self._number = 0
        self._row: _Known | None = None  # which of them the last line looked like
        self._only_steps = False  # whether the last lines that were read at once were steps all
        self._line, self._line_at = "", 0  # the beginning of the line of the terminal

    def feed(self, line: str) -> Sequence[Event]:
        """What one line says, with or without its end."""
        self._number += 1
        if "\x1b" in line:
            line = without_codes(line)
        events = self._like_others(line, self._shapes[:1])
        if events is not None:
            return events
        kind = self._kind_of(line)
        if kind.families:
            events = self._like_others(line, self._shapes[1:])
            if events is not None:
                return events
        self._row = None
        carried = self._line if line[:1] == "\r" and self._line_at == self._number - 1 else ""
        self._line, self._line_at = carried or line, self._number
        if self._is_quiet(line, kind):
            return ()
        return [event for text in split_line(line) for event in self._read(text, kind)]

    def feed_block(self, lines: Sequence[str]) -> Iterator[Sequence[Event]]:
        """What many lines say, some at a time; step lines of one shape are read column by column, which is faster."""
        place = again = pause = 0
        while place < len(lines):
            if self._row and place >= again:
                rows, end = self._gathered(lines, place, self._row[0])
                self._only_steps = len(rows) == end - place > 0
                if run := self._run(self._row, rows):
                    yield run
                    self._number += end - place
                    place, pause = end, 0
                    continue
                pause = min(2 * pause + 1, MAX_PAUSE)  # what was looked at in vain is read line by line
                again = max(end, place + pause)
            if events := self.feed(lines[place]):
                yield events
            place += 1

    def _gathered(self, lines: Sequence[str], place: int, shape: Shape) -> tuple[list[Sequence[str]], int]:
        """The groups of the next step lines of a shape, with quiet lines in between, and where the last one ends."""
        if self._only_steps:
            end = min(place + RUN, len(lines))
            rows = shape.match_all("\n".join(lines[place:end]))
            if len(rows) == end - place:
                return rows, end
        rows, end = [], place
        while len(rows) < RUN:
            match = map(shape.match, islice(lines, place, place + RUN - len(rows)))
            if found := list(map(_GROUPS, takewhile(bool, match))):
                rows += found
                place = end = place + len(found)
            at = place
            while place < len(lines) and self._is_quiet(line := lines[place], self._kinds.get(shape_of(line))):
                place += 1
            if place == at:
                break
        return rows, end

    def _is_quiet(self, line: str, kind: _Kind | None) -> bool:
        """Whether this line, of this kind, says nothing at all."""
        if self._faults.is_waiting:
            return False
        return kind is INNOCENT or (kind is OF_FAULTS and "\r" not in line and not self._faults.may_show(line))

    def _kind_of(self, line: str) -> _Kind:
        shape = shape_of(line)
        kind = self._kinds.get(shape)
        if kind is None:
            kind = self._kind(shape)
            if len(shape) < LONGEST_KIND:
                if len(self._kinds) > MAX_KINDS:
                    self._kinds.clear()
                self._kinds[shape] = kind
        return kind

    def _like_others(self, line: str, shapes: Iterable[_Known]) -> Sequence[Event] | None:
        """What a step line says that looks like one before."""
        for known in shapes:
            shape, family, stream = known
            if found := shape.match(line):
                try:
                    step = shape.make(*map(call, shape.readers, found.groups()))
                except ValueError:
                    return None
                if shape.rank is not None:
                    if (other := self._streams.get(step.process)) is None:
                        return None
                    stream = other
                before = self._progressed() if self._told else ()
                if known is self._row is not self._shapes[0]:
                    self._shapes.remove(known)
                    self._shapes.insert(0, known)
                self._row = known
                events = stream.step(family, vars(step), shape.total, None if shape.time is None else step.wall_time)
                return [*before, *events] if before else events
        return None

    def _run(self, known: _Known, rows: Sequence[Sequence[str]]) -> Sequence[Event]:
        """The events of a run of step lines, one each; none where anything about them is unusual."""
        shape, _, stream = known
        if len(rows) < WORTH_IT:
            return ()
        try:
            values = list(map(_read_all, shape.readers, zip(*rows, strict=True)))
        except (KeyError, ValueError):
            return ()
        if shape.rank is not None:
            if len(set(values[shape.rank])) > 1 or (other := self._streams.get(values[shape.rank][0])) is None:
                return ()
            stream = other
        if not stream.are_usual(values[shape.step], shape.total):
            return ()
        run = shape.make_all(*values)
        stream.go_on(run, timed=shape.time is not None)
        return run

    def _kind(self, shape: bytes) -> _Kind:
        """What lines of this shape can be: which tables have a word in it."""
        kind = _Kind(
            families=tuple(f for f in self._families if all(shape_of(word) in shape for word in f.anchors)),
            notes=tuple(note for note in self._notes if shape_of(note.literal) in shape),
            others=tuple(
                (family, other)
                for family, other in self._others
                if any(shape_of(word) in shape for word in family.other_words)
            ),
            faults=not self._faults.is_innocent(shape),
        )
        return next((known for known in (INNOCENT, OF_FAULTS) if kind == known), kind)

    def finish(self) -> list[Event]:
        """What follows from the log being over."""
        return [*self._faults.finish(), *(event for stream in self._streams.values() for event in stream.finish())]

    def _progressed(self) -> Sequence[Event]:
        """A step was done after a fault: if that comes again, it is another one. What was held back before the step."""
        self._told = False
        return self._faults.progressed()

    def _read(self, line: str, kind: _Kind) -> list[Event]:
        text, goes_on = line.lstrip("\r"), line[:1] == "\r"
        prefix = read_prefix(text)
        if goes_on and prefix.rank is None:  # what stood before the line stands before the rest of it
            prefix = replace(read_prefix(self._line), length=prefix.length, rank_span=None)
        events: list[Event] = []
        said = self._said(text, kind.notes)
        readings = [
            (family, reading)
            for family in sorted(kind.families, key=lambda family: family is not self._known)  # the likeliest first
            if all(anchor in text for anchor in family.anchors)
            for reading in _readings(family, text)
        ]
        # A line with more in it is no model for others, nor is one that takes long to make a pattern of.
        teaches = len(readings) == 1 and not said and not goes_on and len(line) < LONGEST_KIND
        for family, reading in readings:
            while said and said[0][0] < reading.spans[0][0]:  # glued together, the order counts
                events += self._note(*said.pop(0)[1], text, prefix)
            events += self._step(family, reading, line, text, prefix, teaches=teaches and reading.alike)
        for family, other in kind.others:
            if not any(word in text for word in family.other_words):
                continue
            for found in other(text):
                if isinstance(found, Reading):
                    events += self._step(family, found, line, text, prefix, teaches=False)
                else:
                    note, says = found
                    groups = {name: value for name, value in says.items() if name != "time"}
                    events += self._note(note, groups, says.get("time"), text, prefix)
        for _, remark in said:
            events += self._note(*remark, text, prefix)
        if not kind.faults and not self._faults.is_waiting:
            return events
        stream = self._streams.get(self._process if prefix.rank is None else prefix.rank)
        faults = self._faults.scan(
            text,
            self._number,
            process=stream.process if stream else self._process,
            source=self._source,
            wall_time=stream.wall_time if stream else self._latest(),
            rank=prefix.rank,
            host=prefix.host,
        )
        if faults or self._faults.is_waiting:
            self._told = True
            events += faults
        return events

    def _said(self, text: str, notes: Sequence[Note]) -> list[tuple[int, Remark]]:
        """The notes in a line, in their order: where, and which, what it says and when."""
        found: list[tuple[int, Remark]] = []
        for note in notes:
            if note.literal in text:
                for match in note.pattern.finditer(text):
                    span = find_time(text, match.end())
                    time = seconds_since_epoch(text[slice(*span)]) if span else None
                    found.append((match.start(), (note, match.groupdict(), time)))
        return sorted(found, key=lambda remark: remark[0])

    def _note(
        self, note: Note, groups: Mapping[str, Any], time: float | None, text: str, prefix: Prefix
    ) -> Sequence[Event]:
        """A note is about the process that printed it, or, if another reports the steps, about that one."""
        stream = self._stream(prefix)
        if not stream.reports:
            reporting = (other for other in self._streams.values() if other.reports)
            stream = min(reporting, key=lambda other: other.process, default=stream)
        if note.means == "summary":
            groups = {**groups, "family": self._family_of[note]}
        return stream.note(note, groups, text, time)

    def _latest(self) -> float:
        return max((stream.wall_time for stream in self._streams.values()), default=0.0)

    def _step(
        self, family: Family, reading: Reading, line: str, text: str, prefix: Prefix, *, teaches: bool
    ) -> Sequence[Event]:
        stream = self._stream(prefix)
        where = find_time(text, reading.spans[0][0]) if reading.spans else None
        before = self._progressed() if self._told else ()
        self._known = family
        fields = stream.blank(reading.phase)
        fields["reported"] = {name: value for name, value in reading.values.items() if name not in fields}
        fields |= {name: value for name, value in reading.values.items() if name in fields}
        total, time = fields["reported"].pop("total", None), fields["reported"].pop("time", None)
        if fields["tokens"] is not None:
            fields["tokens"] = int(fields["tokens"]) if math.isfinite(fields["tokens"]) else None
        if teaches:
            self._learn(family, reading, line, stream, fields, time=where, rank=prefix.rank_span)
        if where:
            time = seconds_since_epoch(text[slice(*where)])
        return [*before, *stream.step(family, fields, total, time, inferred=reading.inferred)]

    def _learn(
        self,
        family: Family,
        reading: Reading,
        line: str,
        stream: Stream,
        fields: Mapping[str, Any],
        **where: tuple[int, int] | None,
    ) -> None:
        """The next line is likely to look like this one; but for a log in which it never does, this is too dear."""
        if _is_cut(family, reading, line):
            return  # whole lines would look like it, and lose their last value
        since, self._learnt_at = self._number - self._learnt_at, self._number
        self._in_vain = self._in_vain + 1 if since <= len(self._shapes) else 0
        if self._in_vain > MAX_IN_VAIN and self._number % MAX_IN_VAIN:
            return
        for name in SELDOM & reading.values.keys():
            if self._seldom.setdefault(name, reading.values[name]) != reading.values[name] and name != "total":
                self._vary.add(name)
        if shape := learn(line, reading, fields, self._vary, **where):
            self._shapes = [(shape, family, stream), *self._shapes[: MAX_SHAPES - 1]]

    def _stream(self, prefix: Prefix) -> Stream:
        process = self._process if prefix.rank is None else prefix.rank
        if process not in self._streams:
            self._streams[process] = Stream(process, self._source, prefix.host or "", prefix.num_ranks, self._streams)
        return self._streams[process]


def _is_cut(family: Family, reading: Reading, line: str) -> bool:
    """Whether the line ends in a number that the tables did not accept, though they know its key."""
    end = line[max(span[1] for span in reading.spans) :].rstrip()
    return end[-1:] in tuple("0123456789.") and any(
        key in end for key, field in family.fields.items() if field.name not in reading.values
    )


def _read_all(read: Callable[[str], Any], texts: Sequence[str]) -> Sequence[Any]:
    return _COLUMNS[read](texts) if read in _COLUMNS else list(map(read, texts))


def _readings(family: Family, text: str) -> Iterator[Reading]:
    """The step lines in a line: more than one where prints are glued."""
    heads = list(family.head.finditer(text))
    for n, head in enumerate(heads):
        end = min(heads[n + 1].start() if n + 1 < len(heads) else len(text), head.end() + MAX_SAID)
        if family.whole and not family.whole.search(text, head.end(), end):
            continue
        groups = head.groupdict()
        numbers = [name for name in ("step", "total") if groups.get(name)]
        values: dict[str, float] = {name: int(groups[name].replace(",", "")) for name in numbers}
        spans: dict[str, Span] = {name: (*head.span(name), name, None) for name in numbers}
        found = list(family.pair.finditer(text, head.end(), end))
        pairs = read_pairs([(pair[1].strip(), pair[2]) for pair in found], family.fields)
        for name, place in pairs.places.items():
            pair = found[place]
            start = pair.start(2) + len(pair[2]) - len(pair[2].lstrip())
            spans[name] = (start, pair.start(2) + len(pair[2].rstrip()), name, family.fields[pair[1].strip()])
        yield Reading(
            values={**values, **pairs.values},
            phase=next((phase for phase in PHASES if groups.get(phase)), ""),
            spans=tuple(spans.values()),
            alike=pairs.alike,
        )


def read_events(lines: Iterable[str], families: Sequence[Family], *, process: int, source: str) -> Iterator[Event]:
    """The events of one log, as its lines come."""
    reader = Reader(families, process=process, source=source)
    for line in lines:
        yield from reader.feed(line)
    yield from reader.finish()


def read_file(path: Path, families: Sequence[Family], *, process: int, written: float | None = None) -> Iterator[Event]:
    """The events of one log file, last written to at `written` (None: at the file's own time). Raises OSError."""
    return dated(_of_file(path, families, process), last_written([path]) if written is None else written)


def _of_file(path: Path, families: Sequence[Family], process: int) -> Iterator[Event]:
    reader = Reader(families, process=process, source=str(path))
    events = chain.from_iterable(map(reader.feed_block, read_blocks(path)))
    yield from chain.from_iterable(events)
    yield from reader.finish()
