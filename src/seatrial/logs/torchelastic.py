"""torchelastic's summary of what failed: an entry per worker, the first observed failure in a part of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from seatrial.events import Fault
from seatrial.logs.exceptions import CHAINED, exception_in, kind_of, unglued
from seatrial.logs.fault_events import Place, fault_of, faults_of
from seatrial.logs.fault_table import facts_of
from seatrial.logs.launches import Launches

MAX_LINES = 400  # without a traceback
_ENTRY = re.compile(r"^\s*(time|host|rank|exitcode|error_file|traceback)\s*:\s*(\S+)")
_INDENTED = "  "  # before each line of a worker's traceback
_SIGNALS = {9: "killed", 15: "terminated", 11: "segfault", 7: "bus_error", 6: "aborted"}


class Summary:
    """A summary as far as it has come.

    A worker comes out when its entry is over: the exception of its traceback, if there is one, came before its end.
    """

    def __init__(self, first: Place, launches: Launches) -> None:
        self._first = self._last = first
        self._launches = launches
        self._lines = 0
        self._entry: dict[str, str] = {}
        self._num_ended = 0  # workers, by their exit codes
        self._is_root = False  # the entries that come are the first observed failure
        self._is_traced = False  # the lines that come are the traceback of the entry
        self._held: list[Fault] = []
        self._later: list[Fault] = []  # exceptions that came after the first observed failure
        self.is_over = False

    @property
    def holds_worker(self) -> bool:
        """True if a worker waits for the end of its entry."""
        return bool(self._held)

    def take(self, text: str, at: Place) -> list[Fault] | None:
        """The faults that the next line shows; None if it is no part of the summary."""
        self._lines += 1
        if self._lines > MAX_LINES:
            return self._end()
        if self._is_traced and (raised := self._traced(text, at)) is not None:
            return raised
        if found := _ENTRY.match(text):
            return self._fill(found[1], found[2], text, at)
        self._is_root = self._is_root or text.startswith("Root Cause")
        if text.startswith("=====") and self._is_root and self._num_ended:
            self._launches.end_summary(at.source, at.line)
            return self._end()
        return None

    def cut_off(self) -> Iterator[Fault]:
        """The faults of a summary whose end the log does not have."""
        yield from (*self._held, *self._later)
        if self._entry.get("rank") and "exitcode" not in self._entry:
            yield self._worker(self._last)
        elif not self._num_ended:
            yield fault_of("worker_failed", self._first, {}, self._first.text)

    def _end(self) -> list[Fault] | None:
        self.is_over = True
        return [*self._held, *self._later] or None

    def _fill(self, name: str, value: str, text: str, at: Place) -> list[Fault]:
        """Takes a line of an entry; the worker before it comes out where another one begins."""
        if name == "traceback":
            self._is_traced, self._lines = value == "Traceback", 0
        done: list[Fault] = []
        if name in ("time", "exitcode") or (name == "traceback" and not self._is_traced):
            done, self._held = self._held, []
        if name == "time":
            self._entry = {}
        self._entry[name] = value
        self._last = at
        if name == "exitcode":
            self._launches.summarise(at.source, (self._entry.get("host", ""), self._entry.get("rank", "")), text)
            self._num_ended += 1
            self._held = [self._worker(at)]
        return done

    def _traced(self, text: str, at: Place) -> list[Fault] | None:
        """The faults of a traceback inside an entry, line by line; None behind its end."""
        line = text.removeprefix(_INDENTED)
        if line == text and text.strip():
            self._is_traced = False
            return None
        line = unglued(line)
        name = None if line[:1].isspace() else exception_in(line, after_code=True)
        if not name or line.startswith(CHAINED):
            return []
        kind = kind_of(name, line)
        if not kind or not self._held:  # what follows on the first exception is a part of it, or came of it
            return []
        (worker,), self._held = self._held, []
        named = {of: str(worker.facts[of]) for of in ("rank", "host") if of in worker.facts}
        raised = list(faults_of(kind, at, {**facts_of(kind, line), **named}, line))
        if self._is_root:
            return [*raised, worker]
        self._later += raised
        return [worker]

    def _worker(self, at: Place) -> Fault:
        """The fault of the entry."""
        entry = self._entry
        code = int(entry["exitcode"]) if re.fullmatch(r"-?\d{1,9}", entry.get("exitcode", "")) else None
        signal = -code if code is not None and code < 0 else (code or 0) - 128
        if self._is_root:
            kind = _SIGNALS.get(signal, "worker_failed")
        else:
            kind = "worker_stopped" if signal in (9, 15) else "worker_failed"
        sentence = f"rank {entry.get('rank', '?')} ended" + ("" if code is None else f" with exit code {code}")
        sentence += f" at {entry['time']}" if "time" in entry else ""
        groups = {name: entry.get(name) for name in ("rank", "host")}
        groups |= {"exit_code": None if code is None else str(code), "time": entry.get("time")}
        fault = fault_of(kind, at, groups, sentence)
        return replace(fault, facts={**fault.facts, "root": True}) if self._is_root else fault
