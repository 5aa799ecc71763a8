"""Lines → events: which family a line belongs to, which process printed it, and what it says."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import chain, takewhile
from operator import call, methodcaller
from typing import Any, NamedTuple

import numpy as np

from seatrial.events import Event, Fault
from seatrial.logs.clock import YEARLESS
from seatrial.logs.faults import FaultScanner, skeleton_of
from seatrial.logs.grammar import Family, Found, Reading
from seatrial.logs.held_step import HeldStep
from seatrial.logs.line_pattern import SELDOM, LinePattern, learn_pattern
from seatrial.logs.line_tables import LONGEST_SKELETON, NO_TABLE, OF_FAULTS, LineTables, tables_of
from seatrial.logs.lines import (
    ECHO,
    Prefix,
    all_without_codes,
    codes_in,
    hosts_of,
    read_prefix,
    split_line,
    without_codes,
    without_echo,
)
from seatrial.logs.numbers import find_time, seconds_since_epoch, stated_time
from seatrial.logs.opening import Opening
from seatrial.logs.process_log import ProcessLog
from seatrial.logs.step_lines import Line, Remark, is_cut, readings_of, remarks_of
from seatrial.logs.step_numbers import numbered
from seatrial.recording import Steps, singly

MAX_PATTERNS = 4  # a program has one or two
MOST_AT_ONCE, AT_ONCE, FEWEST_AT_ONCE = 1024, 64, 4  # step lines: that are converted, matched, worth it
MAX_IN_VAIN = 32  # patterns learnt from one line after the other
OTHER_CLOCK, OTHER_YEAR = 60.0, 180 * 86_400.0  # seconds that a line is before the last step: it is another clock's
MAX_PAUSE = 255  # lines until reading many at once is attempted again

_GROUPS = methodcaller("groups")


class _Learnt(NamedTuple):
    """A pattern of step lines, and the family and the process that it was learnt of."""

    pattern: LinePattern
    family: Family
    log: ProcessLog


class Reader:
    """Reads one log, line after line; `feed` and `finish` return the events that follow.

    `process` is who prints the lines without a rank, `source` the file's name for people. With `in_columns`, steps that
    are read at once stay in columns.
    """

    def __init__(self, families: Sequence[Family], *, process: int, source: str, in_columns: bool = False) -> None:
        self._in_columns = in_columns
        self._process = process
        self._source = source
        self._logs: dict[int, ProcessLog] = {}  # by process
        self._likeliest: Family | None = None  # the family of the last step line
        self._tables = tables_of(tuple(families))
        self._custom = {family: family.custom_reader() for family in families if family.custom_reader}
        self._patterns: list[_Learnt] = []
        self._seldom: dict[str, float] = {}
        self._vary: set[str] = set()
        self._learnt_at = self._in_vain = 0
        self._faults = FaultScanner()
        self._opening = Opening()
        self._had_fault = False  # since the last step
        self._step_time = self._stated = 0.0  # of the last step, and of the last fault after it
        self._number = 0
        self._matched: _Learnt | None = None  # the pattern that the last line had
        self._printed = ""  # the last line, with its codes
        self._hosts: frozenset[str] = frozenset()  # that stand before the lines of this log
        self._host: str | None = None  # before the last line
        self._only_steps = False  # whether the last lines that were matched at once were steps all
        self._line, self._line_at = "", 0  # the beginning of the line of the terminal
        self._held: dict[int, HeldStep] = {}  # by process
        self._late: list[Fault] = []  # that came while a step was held
        self._custom_line: Line | None = None  # the last one that the reader of a family was given

    def feed(self, line: str) -> Sequence[Event]:
        """The events of one line, with or without its end."""
        self._number += 1
        if self._hosts:
            host, colon, rest = line.partition(": ")
            self._host, line = (host, rest) if colon and host in self._hosts else (None, line)
        if ECHO in line:
            line = without_echo(line)
        self._printed = line
        if "\x1b" in line:
            line = without_codes(line)
        if self._held and self._goes_on(line):
            return ()
        events = self._by_pattern(line, self._patterns[:1])
        if events is not None:
            return events
        skeleton = skeleton_of(line)
        tables = self._tables.of(skeleton)
        if tables.families:
            events = self._by_pattern(line, self._patterns[1:])
            if events is not None:
                return events
        self._matched = None
        if "pdsh " in line:
            self._hosts |= hosts_of(line)
        carried = self._line if line[:1] == "\r" and self._line_at == self._number - 1 else ""
        self._line, self._line_at = carried or line, self._number
        if self._is_quiet(line, tables):
            self._opening.hear(skeleton)
            return ()
        num_told = self._opening.num_told
        found = [event for text in split_line(line) for event in self._by_tables(text, tables)]
        if self._opening.num_told == num_told:
            self._opening.hear(skeleton)
        return found

    def feed_block(self, lines: Sequence[str]) -> Iterator[Sequence[Event | Steps]]:
        """The events of many lines, some at a time; step lines of one pattern are read by columns, which is faster."""
        place = again = pause = 0
        while place < len(lines):
            if (learnt := self._matched) and place >= again:
                rows, end = self._gather(lines, place, learnt.pattern.printed)
                if not rows and learnt.pattern.match(without_codes(lines[place])):  # with other codes
                    rows, end = self._gather(all_without_codes(lines[place : place + AT_ONCE]), 0, learnt.pattern.shown)
                    end += place
                if steps := self._steps_at_once(learnt, rows):
                    yield steps
                    self._number += end - place
                    place, pause = end, 0
                    continue
                pause = min(2 * pause + 1, MAX_PAUSE)  # what was tried in vain is read line by line
                again = max(end, place + pause)
            if events := self.feed(lines[place]):
                yield events
            place += 1

    def finish(self) -> list[Event]:
        """The events that follow from the log being over."""
        held = [*self._read_held(), *_in_order(self._release(), self._faults.finish())]
        return [*held, *(event for log in self._logs.values() for event in log.finish())]

    # --- the fast path: by patterns ---

    def _gather(self, lines: Sequence[str], place: int, pattern: re.Pattern[str]) -> tuple[list[Sequence[str]], int]:
        """The groups of the next step lines of a pattern, across quiet lines, and where the last one ends."""
        rows: list[Sequence[str]] = []
        end = place
        while len(rows) < MOST_AT_ONCE and place < len(lines):
            part = lines[place : place + AT_ONCE]
            found = pattern.findall("\n".join(part)) if self._only_steps else []
            if len(found) != len(part):
                found = list(map(_GROUPS, takewhile(bool, map(pattern.fullmatch, part))))
            self._only_steps = len(found) == len(part)
            if found:
                rows += found
                place = end = place + len(found)
            if self._only_steps:
                continue
            at = place
            while place < len(lines) and self._says_nothing(lines[place]):
                place += 1
            if place == at:
                break
        return rows, end

    def _steps_at_once(self, learnt: _Learnt, rows: Sequence[Sequence[str]]) -> Sequence[Event | Steps]:
        """The steps of many lines, one each; none where anything about them is unusual."""
        pattern = learnt.pattern
        if len(rows) < FEWEST_AT_ONCE:
            return ()
        try:
            values = list(map(call, pattern.column_readers, zip(*rows, strict=True)))
        except (KeyError, ValueError):
            return ()
        log: ProcessLog | None = learnt.log
        if pattern.rank is not None:
            log = self._logs.get(values[pattern.rank][0]) if len(set(values[pattern.rank])) == 1 else None
        if log is None or not log.are_usual(np.asarray(values[pattern.step]), pattern.total):
            return ()
        timed = pattern.time is not None
        if self._opening.waits:
            self._opening.step()
        if self._in_columns:
            return (log.go_on_in_columns(pattern.in_columns(values), timed=timed),)
        steps = pattern.make_all(*values)
        log.go_on(steps, timed=timed)
        return steps

    def _by_pattern(self, line: str, patterns: Iterable[_Learnt]) -> Sequence[Event] | None:
        """The events of a step line that looks like one before; None where the tables have to read it."""
        for learnt in patterns:
            pattern, family, log = learnt
            if found := pattern.match(line):
                try:
                    step = pattern.make(*map(call, pattern.readers, found.groups()))
                except ValueError:
                    return None
                printed_by = log if pattern.rank is None else self._logs.get(step.process)
                if printed_by is None:
                    return None
                if self._opening.waits:
                    self._opening.step()
                before: Sequence[Event] = ()
                if self._held or self._had_fault:
                    before = [*self._release(family), *(self._progressed() if self._had_fault else ())]
                self._prefer(learnt)
                time = None if pattern.time is None else step.wall_time
                events = printed_by.step(family, vars(step), pattern.total, time)
                return [*before, *events] if before else events
        return None

    def _prefer(self, learnt: _Learnt) -> None:
        """A pattern that matches twice in a row is tried first."""
        if learnt is self._matched is not self._patterns[0]:
            self._patterns.remove(learnt)
            self._patterns.insert(0, learnt)
        self._matched = learnt

    def _learn(self, family: Family, reading: Reading, line: Line, log: ProcessLog, fields: Mapping[str, Any]) -> None:
        """The next line is likely to look like this one; but for a log in which it never does, this is too dear."""
        if is_cut(family, reading, line.raw):
            return  # whole lines would look like it, and lose their last value
        since, self._learnt_at = self._number - self._learnt_at, self._number
        self._in_vain = self._in_vain + 1 if since <= len(self._patterns) else 0
        if self._in_vain > MAX_IN_VAIN and self._number % MAX_IN_VAIN:
            return
        for name in SELDOM & reading.values.keys():
            if self._seldom.setdefault(name, reading.values[name]) != reading.values[name] and name != "total":
                self._vary.add(name)
        time = find_time(line.text, reading.spans[0][0])
        rank = line.prefix.rank_span
        codes = codes_in(self._printed) if "\x1b" in self._printed else ()
        if pattern := learn_pattern(line.raw, reading, fields, self._vary, time=time, rank=rank, codes=codes):
            self._patterns = [_Learnt(pattern, family, log), *self._patterns[: MAX_PATTERNS - 1]]

    # --- by tables ---

    def _says_nothing(self, printed: str) -> bool:
        """True if the tables are known to have nothing to say of a line, which may have codes."""
        line = without_codes(printed) if "\x1b" in printed else printed
        skeleton = skeleton_of(line)
        return not self._opening.has(skeleton) and self._is_quiet(line, self._tables.known.get(skeleton))

    def _is_quiet(self, line: str, tables: LineTables | None) -> bool:
        """True if this line, for which these are the tables, says nothing at all."""
        if self._faults.is_waiting:
            return False
        return tables is NO_TABLE or (tables is OF_FAULTS and "\r" not in line and not self._faults.may_show(line))

    def _by_tables(self, raw: str, tables: LineTables) -> list[Event]:
        text, goes_on = raw.lstrip("\r"), raw[:1] == "\r"
        prefix = read_prefix(text)
        if goes_on and prefix.rank is None:  # what stood before the line stands before the rest of it
            prefix = replace(read_prefix(self._line), length=prefix.length, rank_span=None)
        if self._host and prefix.host is None:
            prefix = replace(prefix, host=self._host)
        line = Line(raw, text, prefix)
        remarks = remarks_of(text, tables.notes)
        readings = [
            (family, reading)
            for family in sorted(tables.families, key=lambda family: family is not self._likeliest)
            if all(anchor in text for anchor in family.anchors)
            for reading in readings_of(family, text)
        ]
        # A line with more in it is no model for others, nor is one that takes long to make a pattern of.
        teaches = len(readings) == 1 and not remarks and not goes_on and len(raw) < LONGEST_SKELETON
        events: list[Event] = []
        for family, reading in readings:
            while remarks and remarks[0].start < reading.spans[0][0]:  # glued together, the order counts
                events += self._note(remarks.pop(0), line)
            events += self._take(family, reading, line, teaches=teaches and reading.alike)
        events += self._read_custom(line, tables.custom)
        for remark in remarks:
            events += self._note(remark, line)
        if tables.faults or self._faults.is_waiting:
            if self._faults.is_waiting or self._faults.may_show(line.text):
                events += self._read_held()
            events += self._scan_for_faults(line)
        return events

    def _read_held(self) -> Iterator[Event]:
        """The events that readers of families have held back until their log goes on."""
        for family, read_line in self._custom.items():
            finish = getattr(read_line, "finish", None)
            if finish and self._custom_line:
                yield from self._take_found(family, finish(), self._custom_line)

    def _read_custom(self, line: Line, custom: Sequence[Family]) -> Iterator[Event]:
        """The events that the families' own readers find in a line that has no pairs."""
        for family in custom:
            if any(word in line.text for word in family.custom_words):
                yield from self._take_found(family, self._custom[family](line.text), line)
                self._custom_line = line

    def _take_found(self, family: Family, everything: Iterable[Found], line: Line) -> Iterator[Event]:
        for found in everything:
            if isinstance(found, Reading):
                yield from self._take(family, found, line, teaches=False)
            else:
                note, says = found
                groups = {name: value for name, value in says.items() if name != "time"}
                yield from self._note(Remark(0, note, groups, says.get("time")), line)

    # --- steps of several lines ---

    def _goes_on(self, line: str) -> bool:
        """True if the line only says more of a step that is held."""
        prefix = read_prefix(line)
        held = self._held.get(self._process if prefix.rank is None else prefix.rank)
        if held is None or held.family.continued is None or not held.family.continued.match(line, prefix.length):
            return False
        held.add((pair[1].strip(), pair[2]) for pair in held.family.pair.finditer(line, prefix.length))
        return True

    def _take(self, family: Family, reading: Reading, line: Line, *, teaches: bool) -> Sequence[Event]:
        """The events of a step line; those of a family whose steps are held come out later."""
        if family.fallback and any(log.family not in (None, family) for log in self._logs.values()):
            return ()
        self._opening.step()
        if not (family.continued or family.fallback):
            return [*self._release(family), *self._step(family, reading, line, teaches=teaches)]
        process = self._log_of(line.prefix).process
        held = self._held.get(process)
        if held and held.take(family, reading):
            return ()
        events = [*self._release(family, process), *(self._progressed() if self._had_fault else ())]
        self._held[process] = HeldStep(family, reading, line)
        return events

    def _release(self, by: Family | None = None, process: int | None = None) -> Sequence[Event]:
        """The steps that were held, or those of one process, and the faults that came after them.

        `by` is the family of the step that comes next.
        """
        if not self._held:
            return ()
        keys = [key for key in self._held if process in (None, key) or self._late]
        held = [self._held.pop(key) for key in keys]
        counts = (each for each in held if not each.family.fallback or by in (None, each.family))
        steps = [event for each in counts for event in self._whole(each)]
        late, self._late = self._late, []
        return _in_order(steps, late)

    def _whole(self, held: HeldStep) -> Sequence[Event]:
        """The events of a held step with all of its lines; none where no line with a known pair followed."""
        reading = held.whole()
        return self._step(held.family, reading, held.line, teaches=False, was_held=True) if reading else ()

    def _step(
        self, family: Family, reading: Reading, line: Line, *, teaches: bool, was_held: bool = False
    ) -> Sequence[Event]:
        """A step; one that was held was done before the faults that came in the meantime."""
        log = self._log_of(line.prefix)
        before = self._progressed() if self._had_fault and not was_held else ()
        self._likeliest = family
        fields = log.fields_of(reading.values, reading.phase)
        total, time = fields["reported"].pop("total", None), fields["reported"].pop("time", None)
        if fields["tokens"] is not None:
            fields["tokens"] = int(fields["tokens"]) if math.isfinite(fields["tokens"]) else None
        if teaches:
            self._learn(family, reading, line, log, fields)
        if reading.spans and (where := find_time(line.text, reading.spans[0][0])):
            time = seconds_since_epoch(line.text[slice(*where)])
        return [*before, *log.step(family, fields, total, time, inferred=reading.inferred, redrawn=reading.redrawn)]

    def _note(self, remark: Remark, line: Line) -> Sequence[Event]:
        """A note is about the process that printed it, or, if another reports the steps, about that one."""
        held = self._release()
        log = self._log_of(line.prefix)
        if not log.reports:
            reporting = (other for other in self._logs.values() if other.reports)
            log = min(reporting, key=lambda other: other.process, default=log)
        groups = remark.groups
        if remark.note.means == "summary":
            groups = {**groups, "family": self._tables.family_of[remark.note]}
        return [*held, *log.note(remark.note, groups, line.text, remark.time)]

    def _scan_for_faults(self, line: Line) -> Sequence[Event]:
        rank = line.prefix.rank
        log = self._logs.get(self._process if rank is None else rank)
        latest = log.wall_time if log else max((log.wall_time for log in self._logs.values()), default=0.0)
        faults = self._faults.scan(
            line.text,
            self._number,
            process=log.process if log else self._process,
            source=self._source,
            wall_time=self._time_of(line, latest),
            rank=rank,
            host=line.prefix.host,
        )
        self._had_fault |= bool(faults) or self._faults.is_waiting
        if self._held and faults:  # the step may still go on
            self._late += faults
            return ()
        return faults

    def _time_of(self, line: Line, latest: float) -> float:
        """When a line was printed that shows a fault: as it says, or as the last line did that said so.

        `latest` is the time of the last step: where that only adds up seconds, so does the fault's; where a fault would
        lie before it, its line is by another clock.
        """
        if latest != self._step_time:
            self._step_time, self._stated = latest, latest
        if 0 < latest < YEARLESS[0] or (stated := stated_time(line.text)) is None:
            return self._stated
        comparable = (stated < YEARLESS[1]) == (latest < YEARLESS[1])
        if latest and comparable and OTHER_CLOCK < latest - stated < OTHER_YEAR:
            return self._stated
        self._stated = stated
        return stated

    def _progressed(self) -> Sequence[Event]:
        """A step was done after a fault: if that comes again, it is another one. What was held back before the step."""
        self._had_fault = False
        return self._faults.progressed()

    def _log_of(self, prefix: Prefix) -> ProcessLog:
        process = self._process if prefix.rank is None else prefix.rank
        if process not in self._logs:
            several = self._hosts and prefix.rank is None  # their lines without a rank are those of one process
            host = "" if several else prefix.host or ""
            self._logs[process] = ProcessLog(
                process, self._source, host, prefix.num_ranks, self._logs, opening=self._opening
            )
        return self._logs[process]


def _in_order(before: Sequence[Event], faults: Sequence[Fault]) -> list[Event]:
    """Events, and faults that followed on them: none of these is earlier."""
    done = max((event.wall_time for event in before), default=0.0)
    late = (f if f.wall_time >= done else replace(f, wall_time=done, monotonic_time=done) for f in faults)
    return [*before, *late]


def read_events(lines: Iterable[str], families: Sequence[Family], *, process: int, source: str) -> Iterator[Event]:
    """The events of one log, as its lines come."""
    reader = Reader(families, process=process, source=source)
    yield from singly(numbered(chain(chain.from_iterable(map(reader.feed, lines)), _last(reader))))


def read_text(
    blocks: Iterable[list[str]],
    families: Sequence[Family],
    *,
    process: int,
    source: str,
    within: AbstractContextManager[None] | None = None,
    in_columns: bool = False,
) -> Iterator[Event | Steps]:
    """The events of one log, of which many lines come at a time; each time, the reader works `within` this."""
    reader = Reader(families, process=process, source=source, in_columns=in_columns)
    events = chain.from_iterable(map(reader.feed_block, blocks)) if within is None else _guarded(reader, blocks, within)
    return numbered(chain(chain.from_iterable(events), _last(reader)))


def _guarded(
    reader: Reader, blocks: Iterable[list[str]], within: AbstractContextManager[None]
) -> Iterator[Sequence[Event | Steps]]:
    for block in blocks:
        with within:
            found = list(reader.feed_block(block))
        yield from found


def _last(reader: Reader) -> Iterator[Event]:
    yield from reader.finish()
