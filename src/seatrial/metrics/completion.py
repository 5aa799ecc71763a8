"""How far a run came, how it ended, and what broke first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low

from seatrial import flops
from seatrial.events import Checkpoint, Event, Fault, RunEnded, RunStarted
from seatrial.metrics.record import Ranges, Record
from seatrial.spec import RunSpec

_ENDS = ("completed", "interrupted", "could_not_run", "no_progress", "died", "non_finite_loss")
_RANK = {reason: rank for rank, reason in enumerate(_ENDS)}  # of several processes' ends, the worst counts
# Which faults can be the cause of the others: by row, then by time. A peer that was stopped never is.
_CAUSES = (("non_finite_loss", "process_died", "start_failed", "no_progress"), ("step_failed",))

REGULAR_GAPS = 3  # between the steps of a log, for it to be one that leaves steps out by intention


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One uninterrupted stretch of steps."""

    first_step: int
    last_step: int
    num_steps: int


@dataclass(frozen=True, kw_only=True)
class ProcessRecord:
    """What one process left behind; `reason` and `exit_code` only where it said itself how it ended."""

    process: int
    host: str
    described: bool
    num_steps: int
    last_step: int | None
    missing_steps: Ranges
    reason: str | None
    exit_code: int | None


@dataclass(frozen=True, kw_only=True)
class FaultRecord:
    """A fault, `seconds` after the first event of the run."""

    seconds: float
    process: int
    fault: str
    where: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Completion:
    """How far the run came and how it ended, by the process whose record counts.

    `counted_from` is the number of its first step, by its own counting; `reason` and `exit_code` are the launcher's
    word, or else the worst that a process said; `culprit` is the first fault that can be a cause, unless the run was
    interrupted; `differences` are between what was asked for and what the processes say they did, None where none says
    anything.
    """

    planned_steps: int
    counted_from: int
    num_steps: int
    last_step: int | None
    num_processes: int
    processes: tuple[ProcessRecord, ...]
    attempts: tuple[Attempt, ...]
    reason: str | None
    exit_code: int | None
    faults: tuple[FaultRecord, ...]
    culprit: FaultRecord | None
    differences: tuple[str, ...] | None
    wall_seconds: float

    @property
    def last_planned_step(self) -> int:
        return self.counted_from + self.planned_steps - 1

    @property
    def all_steps_done(self) -> bool:
        """Whether every process that reports steps reported the last one."""
        last = [process.last_step for process in self.processes if process.last_step is not None]
        return bool(last) and min(last) >= self.last_planned_step


def measure_completion(
    events: Sequence[Event], spec: RunSpec, own: Record, others: Sequence[Record], launcher: RunEnded | None
) -> Completion:
    """The facts of completion; `own` is the record that counts, `launcher` the launcher's word on the end."""
    wall_times = [event.wall_time for event in events] or [0.0]
    origin = min(wall_times)
    faults = tuple(
        FaultRecord(seconds=e.wall_time - origin, process=e.process, fault=e.fault, where=e.where, text=e.text)
        for e in events
        if isinstance(e, Fault)
    )
    trainers = (own, *others)
    said = [record.ended for record in trainers if record.ended]
    started = [record.started for record in trainers if record.started]
    end = launcher or max(said, key=lambda end: _RANK.get(end.reason, len(_RANK)), default=None)
    steps = [step.step for step in own.steps]
    counted_from = int(not own.started and steps[:1] == [1])  # Megatron counts from 1, MaxText and Seatrial from 0
    restored = any(isinstance(e, Checkpoint) and e.action == "restore" for e in events)
    return Completion(
        planned_steps=spec.steps,
        counted_from=counted_from,
        num_steps=len(steps),
        last_step=steps[-1] if steps else None,
        num_processes=max([sum(1 for record in trainers if record.steps), 1, *(s.num_processes or 1 for s in started)]),
        processes=tuple(
            _process(record, _missing(record, counted_from, restored=restored))
            for record in sorted(trainers, key=lambda record: record.process)
        ),
        attempts=tuple(Attempt(first_step=a[0].step, last_step=a[-1].step, num_steps=len(a)) for a in own.attempts),
        reason=end.reason if end else None,
        exit_code=end.exit_code if end else None,
        faults=faults,
        culprit=_culprit(faults) if end is None or end.reason != "interrupted" else None,
        differences=_differences(spec, started),
        wall_seconds=max(wall_times) - origin,
    )


def _culprit(faults: Sequence[FaultRecord]) -> FaultRecord | None:
    return next((fault for row in _CAUSES for fault in faults if fault.fault in row), None)


def _process(record: Record, missing: Ranges) -> ProcessRecord:
    return ProcessRecord(
        process=record.process,
        host=record.started.host if record.started else "",
        described=record.started is not None,
        num_steps=len(record.steps),
        last_step=record.steps[-1].step if record.steps else None,
        missing_steps=missing,
        reason=record.ended.reason if record.ended else None,
        exit_code=record.ended.exit_code if record.ended else None,
    )


def _missing(record: Record, counted_from: int, *, restored: bool) -> Ranges:
    """The steps without a record, up to the last one that has one; what came before a restored checkpoint is no gap."""
    steps = [step.step for step in record.steps]
    if not steps:
        return ()
    stride = 1 if record.started else _stride(steps, restored=restored)
    begin = counted_from if stride == 1 and not restored else steps[0]
    return tuple(
        (before + stride, max(before + stride, after - stride))
        for before, after in pairwise([begin - stride, *steps])
        if after - before > stride
    )


def _stride(steps: Sequence[int], *, restored: bool) -> int:
    """A foreign log may report every n-th step only; it does if it does so from the start, and again and again."""
    gaps = [after - before for before, after in pairwise(steps)]
    stride = median_low(gaps) if gaps else 1
    return stride if gaps.count(stride) >= REGULAR_GAPS and (restored or steps[0] <= stride) else 1


def _differences(spec: RunSpec, started: Sequence[RunStarted]) -> tuple[str, ...] | None:
    if not started:
        return None
    asked = (spec.steps, spec.topology.num_devices, spec.tokens_per_step, flops.num_parameters(spec.model))
    found = [
        f"{what}: {ran:,} ran, {expected:,} asked for"
        for own in started
        for what, ran, expected in zip(
            ("steps", "devices", "tokens per step", "parameters"),
            (own.planned_steps, own.num_devices, own.tokens_per_step, own.num_parameters),
            asked,
            strict=True,
        )
        if ran not in (None, expected)
    ]
    return tuple(dict.fromkeys(found))
