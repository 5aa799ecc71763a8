"""Puts in order what each process recorded: its attempts, and each step once."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from seatrial.events import Checkpoint, Event, RunEnded, RunStarted, Step
from seatrial.metrics.contradictions import Contradiction, find_contradictions
from seatrial.recording import NO_STEPS, Recording, Steps

LAUNCHER = -1

Ranges = tuple[tuple[int, int], ...]  # first and last of each run of neighbouring steps


@dataclass(frozen=True, kw_only=True)
class Record:
    """The steps of one process: by attempt, and in `steps` each one as the last attempt that ran it left it.

    `starts` is what each attempt said of itself when it began; one that only went back in its steps said what the one
    before did. `idle`: it was started once more after its last step, and did none. `contradictions` are the steps that
    two ranks or runs seem to have written into its log.
    """

    process: int
    started: RunStarted | None = None  # of the last attempt
    ended: RunEnded | None = None  # unless it went on afterwards
    attempts: tuple[Steps, ...] = ()
    steps: Steps = NO_STEPS
    starts: tuple[RunStarted | None, ...] = ()
    idle: bool = False
    contradictions: tuple[Contradiction, ...] = ()

    @property
    def facts(self) -> Mapping[str, Any]:
        """The facts that the last attempt stated of itself; empty where it stated none."""
        return self.started.facts if self.started else {}

    @property
    def host(self) -> str:
        return self.started.host if self.started else ""

    @property
    def reason(self) -> str | None:
        """The reason why the process ended, by its own word; None if it gave none."""
        return self.ended.reason if self.ended else None

    @property
    def totals(self) -> Mapping[str, float]:
        """The totals of the whole run, from the end of its log."""
        return (self.ended.totals if self.ended else None) or {}

    @property
    def from_other_trainer(self) -> bool:
        """True if this was read from the log of another trainer."""
        return "family" in self.facts

    @property
    def from_own_trainer(self) -> bool:
        """True if our own trainer wrote this; of a record without a start, neither is known."""
        return self.started is not None and not self.from_other_trainer

    @property
    def target_eval_loss(self) -> float | None:
        """The target of the evaluation loss, by the run's own word; None if it has none."""
        target = self.facts.get("target_eval_loss")
        return float(target) if isinstance(target, (int, float)) and not isinstance(target, bool) else None


@dataclass(frozen=True, kw_only=True)
class Records:
    """The records of a run: `main` is the one that counts, the `others` are compared with it.

    The lowest process that reports steps counts; without any, the lowest one, or an empty record. `launcher` is the
    launcher's word on the end of the run. `restored` are the steps of the checkpoints from which the run went on.
    """

    main: Record
    others: tuple[Record, ...] = ()
    launcher: RunEnded | None = None
    restored: tuple[int, ...] = ()

    @property
    def all(self) -> tuple[Record, ...]:
        """Every process of the trainer, the one that counts first."""
        return (self.main, *self.others)

    @property
    def by_process(self) -> list[Record]:
        """Every process of the trainer in the order of their numbers."""
        return sorted(self.all, key=lambda record: record.process)


def records(events: Sequence[Event]) -> Records:
    """The records of all processes that have recorded anything."""
    events = Recording.of(events)
    found = {process: _record(process, own) for process, own in sorted(events.by_process().items())}
    launcher = found.pop(LAUNCHER, None)
    reporting = (record for record in found.values() if record.steps)
    main = next(reporting, next(iter(found.values()), Record(process=0)))
    return Records(
        main=main,
        others=tuple(record for record in found.values() if record is not main),
        launcher=launcher.ended if launcher else None,
        restored=tuple(e.step for e in events.others if isinstance(e, Checkpoint) and e.action == "restore"),
    )


def ranges(steps: Iterable[int]) -> Ranges:
    """Step numbers in ascending order as ranges: 3, 4, 5, 9 is (3, 5), (9, 9)."""
    found: list[tuple[int, int]] = []
    for step in steps:
        if found and step == found[-1][1] + 1:
            found[-1] = (found[-1][0], step)
        else:
            found.append((step, step))
    return tuple(found)


def show_ranges(found: Ranges, most: int = 5) -> str:
    """Ranges for a reader, the first few of them: "steps 3–5, 9, …"."""
    shown = [str(first) if first == last else f"{first}–{last}" for first, last in found[:most]]
    several = len(found) > 1 or any(first != last for first, last in found)
    return ("steps " if several else "step ") + ", ".join([*shown, *(["…"] if len(found) > most else [])])


def _record(process: int, events: Recording) -> Record:
    course = _Course()
    steps, begin = events.steps.get(process, NO_STEPS), 0
    for place, event in events.placed:
        if isinstance(event, (RunStarted, RunEnded)):
            end = int(np.searchsorted(steps.places, place))
            course.go_on(steps[begin:end])
            begin = end
        if isinstance(event, RunStarted):
            course.start(event)
        elif isinstance(event, RunEnded):
            course.end(event)
    course.go_on(steps[begin:])
    attempts = list(map(Steps.joined, course.attempts))
    return Record(
        process=process,
        started=course.started,
        ended=course.ended,
        attempts=tuple(attempt for attempt in attempts if attempt),
        steps=_as_left(attempts),
        starts=tuple(start for start, attempt in zip(course.starts, attempts, strict=True) if attempt),
        idle=len(steps) > 0 and not attempts[-1],
        contradictions=find_contradictions(events) if course.goes_back or len(attempts) > 2 else (),
    )


def _as_left(attempts: Sequence[Steps]) -> Steps:
    """Each step as the last of the attempts that ran it left it."""
    kept: list[Steps] = []
    for attempt in filter(None, attempts):
        first = int(attempt.number_column[0])
        while kept and kept[-1].number_column[-1] >= first:
            earlier = kept.pop()
            if before := bisect_left(earlier.numbers, first):
                kept.append(earlier[:before])
        kept.append(attempt)
    return Steps.following(kept) if kept else NO_STEPS


class _Course:
    """The attempts of a process as its events come, each with what was said at its start.

    An attempt is stretches of steps, or single ones where the lines went back.
    """

    def __init__(self) -> None:
        self.attempts: list[list[Step | Steps]] = [[]]
        self.starts: list[RunStarted | None] = [None]
        self.ended: RunEnded | None = None
        self.goes_back = False

    @property
    def started(self) -> RunStarted | None:
        return self.starts[-1]

    @property
    def _last(self) -> int:
        latest = self.attempts[-1][-1] if self.attempts[-1] else None
        return -1 if latest is None else latest.step if isinstance(latest, Step) else int(latest.number_column[-1])

    def start(self, event: RunStarted) -> None:
        self.ended = None
        self.attempts.append([])
        self.starts.append(event)

    def end(self, event: RunEnded) -> None:
        # Of a log of two families, one may know more: that it completed adds nothing to why.
        if self.ended is None or event.reason != "completed" or event.exit_code is not None:
            self.ended = event

    def go_on(self, steps: Steps) -> None:
        """Takes a stretch of steps, as a whole if they rise."""
        if not steps:
            return
        self.ended = None
        if steps.rise_after(self._last):
            self.attempts[-1].append(steps)
            return
        for step in steps.events():
            self._step(step)

    def _step(self, event: Step) -> None:
        attempt, last = self.attempts[-1], self._last
        self.goes_back |= event.step <= last
        if event.step > last:
            attempt.append(event)
        elif event.step < last:
            self.attempts.append([event])
            self.starts.append(self.started)
        else:  # the same line once more, or a correction
            latest = attempt.pop()
            *before, latest = latest.events() if isinstance(latest, Steps) else [latest]
            attempt += [*before, _corrected(latest, event)]


def _corrected(earlier: Step, later: Step) -> Step:
    """The later word on a step; the earlier stays where it says nothing, and if it is not finite."""
    kept = {
        name: before
        for name in ("seconds", "loss", "grad_norm")
        if (before := getattr(earlier, name)) is not None
        and (getattr(later, name) is None or not math.isfinite(before))
    }
    return replace(later, **kept)
