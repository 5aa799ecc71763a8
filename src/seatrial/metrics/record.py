"""What one process recorded, put in order: attempts, and each step once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from seatrial.events import Event, RunEnded, RunStarted, Step
from seatrial.metrics.contradictions import Contradiction, find_contradictions

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
    started: RunStarted | None  # of the last attempt
    ended: RunEnded | None  # unless it went on afterwards
    attempts: tuple[tuple[Step, ...], ...]
    steps: tuple[Step, ...]
    starts: tuple[RunStarted | None, ...] = ()
    idle: bool = False
    contradictions: tuple[Contradiction, ...] = ()

    @property
    def is_foreign(self) -> bool:
        """Whether this was read from the log of another program."""
        return self.started is not None and "family" in self.started.facts

    @property
    def target_eval_loss(self) -> float | None:
        """What the loss of the evaluations has to come down to, by the run's own word."""
        told = self.started.facts.get("target_eval_loss") if self.started else None
        return float(told) if isinstance(told, (int, float)) and not isinstance(told, bool) else None


def records(events: Sequence[Event]) -> dict[int, Record]:
    """The record of every process that has one, in the order of their numbers; the launcher's is -1."""
    by_process: dict[int, list[Event]] = {}
    for event in events:
        by_process.setdefault(event.process, []).append(event)
    return {process: _record(process, own) for process, own in sorted(by_process.items())}


def record_that_counts(found: Mapping[int, Record]) -> Record:
    """The record of the lowest process that reports steps; an empty one where none does and none is there."""
    nothing = Record(process=0, started=None, ended=None, attempts=(), steps=())
    trainers = [record for process, record in found.items() if process != LAUNCHER]
    return next((record for record in trainers if record.steps), trainers[0] if trainers else nothing)


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


def _corrected(earlier: Step, later: Step) -> Step:
    """The later word on a step; the earlier stays where it says nothing, and if it is not finite."""
    kept = {
        name: before
        for name in ("seconds", "loss", "grad_norm")
        if (before := getattr(earlier, name)) is not None
        and (getattr(later, name) is None or not math.isfinite(before))
    }
    return replace(later, **kept)


def _record(process: int, events: Sequence[Event]) -> Record:
    attempts: list[list[Step]] = [[]]
    starts: list[RunStarted | None] = [None]
    started: RunStarted | None = None
    ended: RunEnded | None = None
    goes_back = False
    for event in events:
        last = attempts[-1][-1].step if attempts[-1] else -1
        if isinstance(event, RunEnded):
            # Of a log of two families, one may know more: that it completed adds nothing to why.
            if ended is None or event.reason != "completed" or event.exit_code is not None:
                ended = event
        elif isinstance(event, RunStarted):
            started, ended = event, None
            attempts.append([])
            starts.append(event)
        elif isinstance(event, Step):
            ended = None
            goes_back |= event.step <= last
            if event.step < last:
                attempts.append([event])
                starts.append(started)
            elif event.step > last:
                attempts[-1].append(event)
            else:  # the same line once more, or a correction
                attempts[-1][-1] = _corrected(attempts[-1][-1], event)
    steps: list[Step] = []
    for attempt in attempts:
        while attempt and steps and steps[-1].step >= attempt[0].step:
            steps.pop()
        steps.extend(attempt)
    return Record(
        process=process,
        started=started,
        ended=ended,
        attempts=tuple(tuple(attempt) for attempt in attempts if attempt),
        steps=tuple(steps),
        starts=tuple(start for start, attempt in zip(starts, attempts, strict=True) if attempt),
        idle=bool(steps) and not attempts[-1],
        contradictions=find_contradictions(events) if goes_back or len(attempts) > 2 else (),
    )
