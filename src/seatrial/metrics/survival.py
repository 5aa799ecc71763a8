"""Places faults among steps and attempts, and so tells which ones a run survived."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np

from seatrial.events import IN_ORDER, Checkpoint, Event, Fault, RunEnded, RunStarted
from seatrial.logs.faults import KINDS
from seatrial.metrics.causes import FaultRecord
from seatrial.metrics.dependence import Values
from seatrial.metrics.record import LAUNCHER, Record
from seatrial.recording import NO_STEPS, Places, Recording

STEPS_AFTER = 2  # so many must follow for a fault not to be what cut a run short: clocks of nodes differ a little
ANOTHER_DAY = 86_400.0  # seconds; a fault so long before everything else has no time of its own
DATED = 10 * 365 * ANOTHER_DAY  # seconds; a time beyond is one since the epoch, one before it counts from the beginning
# What the other processes print when one of them leaves in order.
_PARTING = {
    "peer_lost", "heartbeat_lost", "coordination_lost", "connect_failed", "rdma_error", "terminated", "hung_up",
}  # fmt: skip
# A look for a checkpoint that is not there, where no exception says so.
_NOT_THERE = re.compile(r"(?!.*(?:Error|Exception)\b).*\b(?:does not exist|not found)\b", re.DOTALL)
_JOB = re.compile(r"\d+")  # without the number of its step
# The facts of a fault that its record has too.
_NUMBERS = ("rank", "exit_code", "sequence", "count", "reporter", "waits_for", "after")
_TEXTS = ("source", "host", "operation", "reporter_host", "order", "program")


class Timeline:
    """The events of a run, by which its faults are placed in time and before or after its steps.

    A fault stands in the order of the steps of its own file; between files only the clock of the log orders them.
    `main` is the record that counts; `done`: the run came to its last step; `ended` is the word on its end.
    """

    def __init__(self, events: Recording, main: Record, *, done: bool, ended: RunEnded | None) -> None:
        self._events, self._main, self._done, self._ended = events, main, done, ended
        self._timed = main.facts.get("clock", "log") == "log"
        times = _times(events, without_faults=True)
        times = times if len(times) else _times(events)
        if self._timed:  # what stands before the first time of a log has none
            times = times[times > 0] if (times > 0).any() else times
        self._origin, self._latest = (float(times.min()), float(times.max())) if len(times) else (0.0, 0.0)
        courses = ((process, _course(own)) for process, own in events.by_process().items())
        begun = [(process, course) for process, course in courses if course]
        self._courses = dict(sorted(begun, key=lambda each: each[1].first))
        self._whole = self._courses.get(main.process, _Course())
        self._earlier = _ends_of_earlier_jobs(events)
        for source, end in _ends_of_earlier_launches(events, done=done).items():
            self._earlier[source] = max(end, self._earlier.get(source, 0))
        self._went_on = _went_on(events)

    def faults(self) -> tuple[float, tuple[FaultRecord, ...]]:
        """The seconds from the first event to the last, and the faults with what came after them."""
        found = tuple(self._record(index, e) for index, e in self._events.placed if isinstance(e, Fault))
        return self._latest - self._origin, found

    def _record(self, index: int, fault: Fault) -> FaultRecord:
        course = self._course_of(fault)
        has_clock = self._timed or _of_a_kernel(fault)
        placed = course is not None or (has_clock and fault.wall_time > self._origin - ANOTHER_DAY)
        # A scheduler writes the date into the log of a program that writes none.
        timed = placed and (fault.wall_time < DATED) == (self._origin < DATED)
        if timed and "order" not in fault.facts:  # by a clock that was compared with that of the steps
            self._latest = max(self._latest, fault.wall_time)
        seconds = max(0.0, fault.wall_time - self._origin) if timed else 0.0
        return _fault_record(fault, seconds, self._survived(index, fault, course or self._whole, placed=placed))

    def _course_of(self, fault: Fault) -> _Course | None:
        """The steps of the process or file that a fault was found in; None where it has none."""
        source = fault.facts.get("source")
        course = self._courses.get(fault.process, None if self._main.from_other_trainer else self._whole)
        if source is None or (course is not None and source in course.sources):
            return course
        return next((course for course in (self._whole, *self._courses.values()) if source in course.sources), None)

    def _survived(self, index: int, fault: Fault, course: _Course, *, placed: bool) -> bool | None:
        """True if the run went on after a fault; None: nothing tells whether it came before the last step or after."""
        if fault.process == LAUNCHER and self._main.from_own_trainer:
            return index < self._whole.restart  # it has watched each attempt to its end
        if fault.line is not None and fault.line <= self._earlier.get(fault.facts.get("source"), 0):
            return True
        if (logged := _logged(fault)) and (fault.line or 0) <= self._went_on.get(logged, -1):
            return True
        if not placed and len(self._whole.at):
            return None
        at_parting = self._done and (fault.fault in _PARTING or _of_a_kernel(fault) or self._of_what_follows(fault))
        if at_parting and self._parted_in_order(index, fault):
            return True
        return course.goes_on_after(index, 1 if self._done else STEPS_AFTER)

    def _of_what_follows(self, fault: Fault) -> bool:
        """True if behind the end of a run that has saved its last step only a later command can have said this."""
        if fault.fault != "checkpoint_error" or not _NOT_THERE.match(fault.text):
            return False
        saved = (e.step for e in self._events.others if isinstance(e, Checkpoint) and e.action == "save")
        return max(saved, default=-1) >= max(self._main.steps.numbers, default=0)

    def _parted_in_order(self, index: int, fault: Fault) -> bool:
        """True if the run had ended in order: by its exit code, or by what its log said before this."""
        ended = self._ended
        if not ended or ended.reason not in IN_ORDER:
            return False
        said_before = fault.process == ended.process and any(
            event is ended for place, event in self._events.placed if place < index
        )
        return ended.exit_code == 0 or (ended.exit_code is None and said_before)


def _is_of(event: Event, kind: str) -> TypeGuard[Fault]:
    return isinstance(event, Fault) and event.fault == kind


def _went_on(events: Recording) -> Mapping[tuple[object, str], int]:
    """By what a process went on behind, the last line that says so: what comes again later is not taken back."""
    found = ((_logged(event), event.line or 0) for event in events.others if _is_of(event, "went_on"))
    return {logged: line for logged, line in found if logged}


def _logged(fault: Fault) -> tuple[object, str] | None:
    """The log and the exception that a logger printed there; None of any other fault."""
    exception = fault.facts.get("logged")
    return (fault.facts.get("source"), str(exception)) if exception else None


def _ends_of_earlier_launches(events: Recording, *, done: bool) -> Mapping[object, int]:
    """By source, the last line before its last launch.

    Where all steps were done, only a failure of the last launch says that it was one of the training.
    """
    faults = [event for event in events.others if isinstance(event, Fault) and event.line is not None]
    last = {
        event.facts.get("source"): event.line
        for event in faults
        if KINDS[event.fault].severity == "fatal" and KINDS[event.fault].role != "victim"
    }
    ends = {event.facts.get("source"): event.facts.get("until") for event in faults if _is_of(event, "launched_again")}
    return {
        source: end
        for source, end in ends.items()
        if isinstance(end, int) and (not done or (last.get(source) or 0) > end)
    }


def _ends_of_earlier_jobs(events: Recording) -> dict[object, int]:
    """By source, the line at which the last job ended that another one follows in the same log: it is all over."""
    found: dict[object, int] = {}
    ended: dict[object, tuple[str, int]] = {}
    for fault in (event for event in events.others if isinstance(event, Fault)):
        job = _JOB.match(str(fault.facts.get("job", "")))
        if job is None or fault.line is None:
            continue
        source = fault.facts.get("source")
        before, line = ended.get(source, (job[0], fault.line))
        if before != job[0]:
            found[source] = line
        ended[source] = job[0], fault.line
    return found


def _times(events: Recording, *, without_faults: bool = False) -> Values:
    others = [e.wall_time for e in events.others if not (without_faults and isinstance(e, Fault))]
    return np.concatenate([others, *(steps.values("wall_time") for steps in events.steps.values())])


@dataclass(frozen=True, kw_only=True)
class _Course:
    """The places of a process's steps among the events, that of the first one of its last attempt, and its files.

    `first` is the place where the process began, or did its first step.
    """

    first: int = 0
    at: Places = field(default_factory=lambda: np.arange(0))
    restart: int = -1
    sources: frozenset[str] = frozenset()

    def goes_on_after(self, index: int, steps: int) -> bool:
        """True if so many steps follow, or another attempt."""
        return index < self.restart or len(self.at) - int(np.searchsorted(self.at, index, side="right")) >= steps


def _course(own: Recording) -> _Course | None:
    """The course of a process by its events; None where it neither began nor did a step."""
    started = [(place, event) for place, event in own.placed if isinstance(event, RunStarted)]
    steps = next(iter(own.steps.values()), NO_STEPS)
    if not started and not steps:
        return None
    begun = np.searchsorted(steps.places, [place for place, _ in started])  # the first step after each beginning
    back = np.flatnonzero(np.diff(steps.values("step")) < 0) + 1
    again = [place for place in (*begun, *back) if 0 < place < len(steps)]
    return _Course(
        first=min([*steps.places[:1].tolist(), *(place for place, _ in started)]),
        at=steps.places,
        restart=int(steps.places[max(again)]) if again else -1,
        sources=frozenset(str(event.facts.get("source", "")) for _, event in started),
    )


def _of_a_kernel(fault: Fault) -> bool:
    """True if it is from a node's kernel, and so by the clock of that node."""
    return fault.facts.get("kernel") is True


def _fault_record(event: Fault, seconds: float, survived: bool | None) -> FaultRecord:
    facts: Mapping[str, Any] = event.facts
    known: dict[str, Any] = {name: facts[name] for name in _NUMBERS if type(facts.get(name)) is int}
    known |= {name: str(facts[name]) for name in _TEXTS if name in facts}
    return FaultRecord(
        seconds=seconds,
        process=event.process,
        fault=event.fault,
        where=event.where,
        text=event.text,
        line=event.line,
        root=facts.get("root") is True,
        survived=survived,
        **{**known, "count": known.get("count") or 1},
    )
