"""Measures how far a run came, how it ended, and what broke first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seatrial.estimate import flops
from seatrial.events import Eval, Fault, RunEnded, RunStarted
from seatrial.metrics.causes import Diagnosis, FaultRecord, diagnose
from seatrial.metrics.goal import goal_of
from seatrial.metrics.numbering import begins_late, missing_steps
from seatrial.metrics.record import LAUNCHER, Ranges, Record, Records
from seatrial.metrics.survival import Timeline
from seatrial.recording import Recording
from seatrial.spec import RunSpec

# Of several processes' ends, the worst counts, which is the last of these.
_ENDS = (
    "completed", "stopped_early", "time_spent", "aborted", "interrupted", "could_not_run", "no_progress", "died",
    "non_finite_loss",
)  # fmt: skip
_RANK = {reason: rank for rank, reason in enumerate(_ENDS)}

_DONE_TO_A_RUN = {"cancelled", "preempted", "evicted"}  # kinds of faults that interrupt one

PARAMETERS_WITHIN = 0.05  # of the number in another trainer's log, which is rounded and counts padding


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One uninterrupted stretch of steps; `planned_steps` is what it said itself."""

    first_step: int
    last_step: int
    num_steps: int
    planned_steps: int | None = None


@dataclass(frozen=True, kw_only=True)
class ProcessRecord:
    """The record of one process; `reason` and `exit_code` only where it said itself how it ended.

    `silent` says what is wrong with a log that should have steps and has none: "rank3.log is empty".
    """

    process: int
    host: str
    described: bool
    num_steps: int
    last_step: int | None
    missing_steps: Ranges
    reason: str | None
    exit_code: int | None
    silent: str = ""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """The progress of the run and its end, by the process whose record counts.

    `planned_steps` is None where neither a configuration nor the record says. `counted_from` is the number of the first
    step, by the run's own counting; the record has every `stride`-th step. `from_other_trainer`: it was read from a log
    of another program, where often one rank speaks for all. `reason`, `exit_code` and `evidence` are the launcher's
    word, or else the worst that a process said. `diagnosis` is what ended the run; where it was interrupted, only what
    the scheduler did to it.
    `compared` is what the processes say of themselves that could be compared with the configuration, and `differences`
    where it is not that; None where none says anything. `idle`: it was started again and did no step;
    `perhaps_idle`: behind its last step the log has what a training prints at its start, which may be another program's
    or another host's. `stopped_early`: an evaluation ended the run, as it was asked to, before `early_of` steps, if it
    is known how many were planned; `time_spent`: it was not an evaluation but the trainer's own limit of time.
    `last_eval_loss` is what the last evaluation found, `target_eval_loss` what it has to come down to; `evaluations`
    are the step and the loss of each that reports one. Where a score decides, `last_score` says what it came to last,
    and `last_shortfall` how far it is from its target (`events.Eval`). `time_to_train_seconds` is how long it took
    until an evaluation ended the run that came to its target, if there is one; None where the record does not say when
    the run began.
    `by_block`: the record has the last step of each block of steps, and blocks may be of any length. `unrecognised`: it
    was read from a log in which nothing was recognised as a step, so that nothing tells how far the run came.
    `lines_counted`: its steps are numbered by their lines, and nothing tells how many steps each stands for.
    `nothing_left`: it went on from a checkpoint behind its last planned step. `guessed` is how the spelling of the log
    was guessed, "" where it is known; `confirmed` if whoever asked for the verdict said that it is right.
    """

    planned_steps: int | None
    counted_from: int
    num_steps: int
    last_step: int | None
    num_processes: int
    processes: tuple[ProcessRecord, ...]
    attempts: tuple[Attempt, ...]
    reason: str | None
    exit_code: int | None
    faults: tuple[FaultRecord, ...]
    diagnosis: Diagnosis | None
    differences: tuple[str, ...] | None
    wall_seconds: float
    stride: int = 1
    from_other_trainer: bool = False
    evidence: str = ""
    stopped_early: bool = False
    time_spent: bool = False
    early_of: int | None = None
    last_eval_loss: float | None = None
    target_eval_loss: float | None = None
    evaluations: tuple[tuple[int, float], ...] = ()
    last_score: str = ""
    last_shortfall: float | None = None
    time_to_train_seconds: float | None = None
    by_block: bool = False
    compared: tuple[str, ...] = ()
    idle: bool = False
    perhaps_idle: bool = False
    unrecognised: bool = False
    lines_counted: bool = False
    nothing_left: bool = False
    guessed: str = ""
    confirmed: bool = False

    @property
    def last_planned_step(self) -> int | None:
        return None if self.planned_steps is None else self.counted_from + self.planned_steps - 1

    @property
    def first_step(self) -> int | None:
        """Of the first attempt that the record has; a run that was resumed began before."""
        return self.attempts[0].first_step if self.attempts else None

    @property
    def begins_late(self) -> bool:
        """True if the record begins after the first step of the run."""
        if self.first_step is None or self.by_block:
            return False
        return begins_late(self.first_step, self.counted_from, self.stride)

    @property
    def culprit(self) -> FaultRecord | None:
        """The fault that is blamed, as it was recorded."""
        return self.diagnosis.cause if self.diagnosis else None

    @property
    def all_steps_done(self) -> bool:
        """True if every process that reports steps reported the last one.

        Of a log of every n-th step, the last line may stand for it if the log says that the run was completed.
        """
        last = [process.last_step for process in self.processes if process.last_step is not None]
        planned = self.last_planned_step
        if not last or planned is None or self.idle or self.perhaps_idle:
            return False
        if self.stopped_early and self.from_other_trainer:  # which may not tell of every step
            return True
        return min(last) >= planned or (self.reason == "completed" and min(last) > planned - self.stride)


def measure_completion(
    events: Recording, spec: RunSpec | None, records: Records, *, planned_steps: int | None = None
) -> Completion:
    """The facts of completion; `planned_steps` is what is known of them where there is no `spec`."""
    main = records.main
    trainers = [record for record in records.by_process if record.steps or record.started] or [main]
    started = [record.started for record in records.all if record.started]
    end = _end(records)
    evals = [event for event in events.others if isinstance(event, Eval) and event.process == main.process]
    evaluations = tuple((e.step, e.loss) for e in evals if e.loss is not None)
    scored = next((e for e in reversed(evals) if e.shortfall is not None), None)
    stopped = any(isinstance(e, Fault) and e.fault == "interrupted" for e in events.others)
    goal = goal_of(spec, main, evals, planned_steps, takes_its_word=not stopped)
    by_block = main.facts.get("by_block") is True
    seconds, faults = Timeline(events, main, done=goal.reached, ended=end).faults()
    if spec:
        compared, differences = _compared(spec, started, main.from_other_trainer)
    else:
        compared, differences = _steps_compared(planned_steps, goal.counted_from, started)
    no_step = records.launcher is None and not any(record.steps for record in records.all)
    interrupted = end is not None and end.reason == "interrupted"
    inferred = main.facts.get("start_inferred") is True
    return Completion(
        planned_steps=goal.planned,
        counted_from=goal.counted_from,
        num_steps=len(main.steps),
        last_step=main.steps[-1].step if main.steps else None,
        num_processes=_num_processes(trainers, started, main),
        processes=tuple(
            _process(record, () if by_block else missing_steps(record, goal.counted_from, records.restored))
            for record in trainers
        ),
        attempts=_attempts(main),
        reason=end.reason if end else None,
        exit_code=end.exit_code if end else None,
        faults=faults,
        diagnosis=diagnose(_by_others(faults) if interrupted else faults, _num_ranks(spec, started)),
        differences=differences,
        wall_seconds=seconds,
        stride=goal.stride,
        from_other_trainer=main.from_other_trainer,
        evidence=end.evidence if end else "",
        compared=compared,
        idle=main.idle and not inferred,
        perhaps_idle=main.idle and inferred,
        stopped_early=goal.stopped_early,
        time_spent=goal.stopped_early and main.reason == "time_spent",
        early_of=goal.early_of,
        unrecognised=no_step and _is_of_a_log(main, faults),
        last_eval_loss=evaluations[-1][1] if evaluations else None,
        target_eval_loss=main.target_eval_loss,
        evaluations=evaluations,
        last_score=(scored.score or "") if scored else "",
        last_shortfall=scored.shortfall if scored else None,
        time_to_train_seconds=_time_to_train(main, evaluations, scored) if goal.stopped_early else None,
        by_block=by_block,
        lines_counted=goal.lines_counted,
        nothing_left=goal.planned is not None and max(records.restored, default=-1) >= goal.planned,
        guessed=next((str(s.facts["guessed"]) for s in started if s.facts.get("guessed")), ""),
        confirmed=all(s.facts.get("confirmed") is True for s in started if s.facts.get("guessed")),
    )


def _time_to_train(main: Record, evaluations: Sequence[tuple[int, float]], scored: Eval | None) -> float | None:
    """The seconds of a run that an evaluation ended; None if this one missed its target, or if not known."""
    target = main.target_eval_loss
    missed = target is not None and bool(evaluations) and not evaluations[-1][1] <= target
    missed |= scored is not None and not (scored.shortfall or 0.0) <= 0
    return None if missed else main.totals.get("run_seconds")


def _by_others(faults: Sequence[FaultRecord]) -> list[FaultRecord]:
    """Faults that the scheduler reports of an interrupted run; all others follow from the interruption."""
    return [fault for fault in faults if fault.process == LAUNCHER and fault.fault in _DONE_TO_A_RUN]


def _end(records: Records) -> RunEnded | None:
    """The word on the end of the run: the launcher's, else the worst of the processes'."""
    said = [record.ended for record in records.all if record.ended]
    return records.launcher or max(said, key=lambda end: _RANK.get(end.reason, len(_RANK)), default=None)


def _num_processes(trainers: Sequence[Record], started: Sequence[RunStarted], main: Record) -> int:
    """Of another trainer's logs, those that report steps or should; else what the processes say themselves."""
    reporting = sum(1 for record in trainers if record.steps or _silent(record))
    return max([reporting, 1, *(s.num_processes or 1 for s in started if not main.from_other_trainer)])


def _is_of_a_log(own: Record, faults: Sequence[FaultRecord]) -> bool:
    """True of a record that was read from the log of another program, as far as that is known."""
    of_another = bool(own.totals) or any(fault.source for fault in faults)  # our own trainer gives no totals
    return own.from_other_trainer or (not own.started and of_another)


def _attempts(own: Record) -> tuple[Attempt, ...]:
    return tuple(
        Attempt(
            first_step=steps[0].step,
            last_step=steps[-1].step,
            num_steps=len(steps),
            planned_steps=start.planned_steps if start else None,
        )
        for steps, start in zip(own.attempts, own.starts, strict=True)
    )


def _num_ranks(spec: RunSpec | None, started: Sequence[RunStarted]) -> int | None:
    """The number of ranks in a collective: one per device in other trainers; None if not known."""
    said = [count for s in started for count in (s.num_devices, s.num_processes) if count]
    return max(said, default=spec.topology.num_devices if spec else None)


def _process(record: Record, missing: Ranges) -> ProcessRecord:
    return ProcessRecord(
        process=record.process,
        host=record.host,
        described=record.started is not None,
        num_steps=len(record.steps),
        last_step=record.steps[-1].step if record.steps else None,
        missing_steps=missing,
        reason=record.reason,
        exit_code=record.ended.exit_code if record.ended else None,
        silent=_silent(record),
    )


def _silent(record: Record) -> str:
    """The sentence on a log that should have steps and has none: "rank3.log is empty"; "" for any other log."""
    facts = {} if record.steps else record.facts
    wrong = {"empty": "is empty", "no steps": "has no step"}.get(str(facts.get("log")))
    *_, folder, name = ("", *str(facts.get("source", "")).split("/"))
    place = name if any(map(str.isdigit, name)) or not folder else f"{folder}/{name}"  # 3/stdout.log
    return f"{place} {wrong}" if wrong else ""


def _steps_compared(
    given: int | None, counted_from: int, started: Sequence[RunStarted]
) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """As `_compared`, where the number of steps is all that was given."""
    said = {own.planned_steps for own in started if own.planned_steps}
    if given is None or not said:
        return (), None
    others = sorted(said - {given, given + int(counted_from == 0)})
    return ("steps",), tuple(f"steps: {other:,} by its log, {given:,} by --steps" for other in others)


def _compared(
    spec: RunSpec, started: Sequence[RunStarted], from_other_trainer: bool
) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """The figures of the run compared with the configuration, and the differences; None if no process reports any."""
    if not started:
        return (), None
    asked = (
        ("steps", spec.steps if spec.epochs is None else None),
        ("devices", spec.topology.num_devices),
        ("tokens per step", spec.tokens_per_step),
        ("parameters", flops.num_parameters(spec.model)),
    )
    compared: dict[str, None] = {}
    differences: dict[str, None] = {}
    for own in started:
        ran = (own.planned_steps, own.num_devices, own.tokens_per_step, own.num_parameters)
        for (what, expected), found in zip(asked, ran, strict=True):
            if found is None or expected is None:
                continue
            compared[what] = None
            allowed = PARAMETERS_WITHIN * expected if from_other_trainer and what == "parameters" else 0
            if abs(found - expected) > allowed:
                differences[f"{what}: {found:,} ran, {expected:,} configured"] = None
        if own.facts.get("computes_fp8") is False and spec.precision.quantization:
            differences[f"fp8: none in the compiled step, {spec.precision.quantization} configured"] = None
    return tuple(compared), tuple(differences)
