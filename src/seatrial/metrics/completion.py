"""Measures how far a run came, how it ended, and what broke first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low
from typing import NamedTuple

from seatrial.estimate import flops
from seatrial.events import Checkpoint, Eval, Fault, RunEnded, RunStarted
from seatrial.metrics.causes import Diagnosis, FaultRecord, diagnose
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

REGULAR_GAPS = 3  # between the steps of a log, for it to be one that leaves steps out by intention
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
    """What one process left behind; `reason` and `exit_code` only where it said itself how it ended.

    `silent` says of a log that should have steps and has none what it is: "rank3.log is empty".
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
    """How far the run came and how it ended, by the process whose record counts.

    `planned_steps` is None where neither a configuration nor the record says. `counted_from` is the number of the first
    step, by the run's own counting; the record has every `stride`-th step. `from_other_trainer`: it was read from a log
    of another program, where often one rank speaks for all. `reason`, `exit_code` and `evidence` are the launcher's
    word, or else the worst that a process said. `diagnosis` is what ended the run; where it was interrupted, only what
    the scheduler did to it.
    `compared` is what the processes say of themselves that could be compared with the configuration, and `differences`
    where it is not that; None where none says anything. `idle`: it was started again and did no step. `stopped_early`:
    an evaluation ended the run, as it was asked to, before `early_of` steps, if it is known how many were planned;
    `time_spent`: it was not an evaluation but the trainer's own limit of time.
    `last_eval_loss` is what the last evaluation found, `target_eval_loss` what it has to come down to; `evaluations`
    are the step and the loss of each that reports one. Where a score decides, `last_score` says what it came to last,
    and `last_shortfall` how far it is from its target (`events.Eval`). `time_to_train_seconds` is how long it took
    until an evaluation ended the run that came to its target, if there is one; None where the record does not say when
    the run began.
    `by_block`: the record has the last step of each block of steps, and blocks may be of any length. `unrecognised`: it
    was read from a log in which nothing was recognised as a step, so that nothing tells how far the run came.
    `lines_counted`: its steps are numbered by their lines, and nothing tells how many steps each stands for. `guessed`
    is how the spelling of the log was guessed, "" where it is known; `confirmed` if whoever asked for the verdict said
    that it is right.
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
    unrecognised: bool = False
    lines_counted: bool = False
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
        return _begins_late(self.first_step, self.counted_from, self.stride)

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
        if not last or planned is None or self.idle:
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
    goal = _goal(spec, main, evals, planned_steps, takes_its_word=not stopped)
    restored = [e.step for e in events.others if isinstance(e, Checkpoint) and e.action == "restore"]
    by_block = main.started is not None and main.started.facts.get("by_block") is True
    seconds, faults = Timeline(events, main, done=goal.reached, ended=end).faults()
    if spec:
        compared, differences = _compared(spec, started, main.from_other_trainer)
    else:
        compared, differences = _steps_compared(planned_steps, goal.counted_from, started)
    no_step = records.launcher is None and not any(record.steps for record in records.all)
    interrupted = end is not None and end.reason == "interrupted"
    return Completion(
        planned_steps=goal.planned,
        counted_from=goal.counted_from,
        num_steps=len(main.steps),
        last_step=main.steps[-1].step if main.steps else None,
        num_processes=_num_processes(trainers, started, main),
        processes=tuple(
            _process(record, () if by_block else _missing(record, goal.counted_from, restored)) for record in trainers
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
        idle=main.idle,
        stopped_early=goal.stopped_early,
        time_spent=goal.stopped_early and main.ended is not None and main.ended.reason == "time_spent",
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
        guessed=next((str(s.facts["guessed"]) for s in started if s.facts.get("guessed")), ""),
        confirmed=all(s.facts.get("confirmed") is True for s in started if s.facts.get("guessed")),
    )


def _time_to_train(main: Record, evaluations: Sequence[tuple[int, float]], scored: Eval | None) -> float | None:
    """How long a run took that an evaluation ended, unless this one missed its target."""
    target, totals = main.target_eval_loss, (main.ended.totals if main.ended else None) or {}
    missed = target is not None and bool(evaluations) and not evaluations[-1][1] <= target
    missed |= scored is not None and not (scored.shortfall or 0.0) <= 0
    return None if missed else totals.get("run_seconds")


def _by_others(faults: Sequence[FaultRecord]) -> list[FaultRecord]:
    """Faults that the scheduler reports of an interrupted run; all others follow from the interruption."""
    return [fault for fault in faults if fault.process == LAUNCHER and fault.fault in _DONE_TO_A_RUN]


def _end(records: Records) -> RunEnded | None:
    """The word on the end of the run: the launcher's, else the worst of the processes'."""
    said = [record.ended for record in records.all if record.ended]
    return records.launcher or max(said, key=lambda end: _RANK.get(end.reason, len(_RANK)), default=None)


class _Goal(NamedTuple):
    """How far the run was to come, as `Completion` has it, and whether it did."""

    counted_from: int
    planned: int | None
    stride: int
    stopped_early: bool
    early_of: int | None
    reached: bool
    lines_counted: bool


def _goal(
    spec: RunSpec | None, main: Record, evals: Sequence[Eval], given: int | None, *, takes_its_word: bool
) -> _Goal:
    steps = main.steps.numbers
    counted_from = _counted_from(main.started, steps)
    asked = _asked(spec, main, given, counted_from)
    lines_counted = main.started is not None and main.started.facts.get("lines_counted") is True
    lines_counted = lines_counted and asked != len(steps)  # as many lines as steps: one for each
    asked = None if lines_counted else asked  # a line may be of several steps
    # A limit of time says how long a run is only where nobody asked for steps or epochs.
    early = ("stopped_early",) if spec else ("stopped_early", "time_spent")
    planned = asked
    if planned is None and bool(steps) and not lines_counted:
        planned = _planned_by_its_end(main) or (
            steps[-1] - counted_from + 1 if takes_its_word and _is_done(main) else None
        )
    if planned is not None and steps:
        planned = (None if spec else _planned_by_tokens(main, counted_from)) or planned
        planned += _steps_more(main, steps[-1] - (counted_from + planned - 1))
    stride = _stride(main) if steps and (main.from_other_trainer or not main.started) else 1
    stopped_early = bool(steps) and main.ended is not None and main.ended.reason in early
    if stopped_early:  # as it was asked to: the step that it came to is the last of the run
        last_step = max(steps[-1], evals[-1].step) if main.from_other_trainer and evals else steps[-1]
        told = _last_step_told(main) or last_step
        stopped_early = told < last_step + stride  # else the log lacks the lines before its end
        planned = (last_step if stopped_early else told) - counted_from + 1
    last = counted_from + planned - 1 if planned else None
    came_to_it = bool(steps) and last is not None and (stopped_early or steps[-1] >= last)
    return _Goal(
        counted_from=counted_from,
        planned=planned,
        stride=stride,
        stopped_early=stopped_early,
        early_of=asked if stopped_early else None,
        reached=came_to_it and not main.idle,
        lines_counted=lines_counted,
    )


def _asked(spec: RunSpec | None, main: Record, given: int | None, counted_from: int) -> int | None:
    """How many steps the run was to do: by the configuration, by its own word, or by who judges it."""
    said = (start.planned_steps for start in reversed(main.starts) if start and start.planned_steps)
    asked_for = spec.steps if spec and spec.epochs is None else None  # epochs may end it sooner, which it says itself
    known = asked_for or next(said, spec.steps if spec else None)
    return known or _as_counted(given, main.steps.numbers, counted_from)


def _planned_by_tokens(main: Record, counted_from: int) -> int | None:
    """The steps in which a run came to the tokens that it was asked for, by its own count, and ended by itself there.

    Megatron over DeepSpeed stops at the first step with so many, whatever the number of iterations that it prints.
    """
    asked = str(main.started.facts.get("train_tokens", "")) if main.started else ""
    if not asked.isdecimal() or main.ended is None or main.ended.reason != "completed":
        return None
    counted = [(step.step, step.reported.get("consumed_tokens")) for step in main.steps[-2:]]
    reached = [step for step, tokens in counted if tokens is not None and tokens >= int(asked) > 0]
    return reached[0] - counted_from + 1 if reached == [main.steps[-1].step] else None


def _steps_more(main: Record, over: int) -> int:
    """The steps beyond the planned ones of a run that ended by itself, if its program says that it does so many."""
    said = str(main.started.facts.get("extra_steps", "")) if main.started else ""
    ended = main.ended is not None and main.ended.reason == "completed"
    return over if ended and said.isdecimal() and 0 < over <= int(said) else 0


def _as_counted(given: int | None, steps: Sequence[int], counted_from: int) -> int | None:
    """The planned steps that somebody gives; a program that counts from 0 may go on to the step of that number."""
    return given and given + int(counted_from == 0 and given in steps[-1:])


def _last_step_told(main: Record) -> int | None:
    """The step at which a run ended by its own word, where a limit of time ended it."""
    told = (main.ended.totals or {}).get("steps") if main.ended and main.ended.reason == "time_spent" else None
    return None if told is None else int(told)


def _planned_by_its_end(main: Record) -> int | None:
    """How many steps the end of the log says were planned."""
    told = (main.ended.totals or {}).get("planned_steps") if main.ended and main.ended.reason == "completed" else None
    return int(told) if told else None


def _is_done(main: Record) -> bool:
    """True if the program says at its end that it did all that it was to do: its last step is the planned one.

    Those of known families say so of their epochs. Of an unknown program, whoever confirms the guess takes its word.
    """
    if main.ended is None or main.ended.reason != "completed":
        return False
    guessed = main.started is not None and bool(main.started.facts.get("guessed"))
    return guessed or (main.ended.totals or {}).get("planned_epochs") is not None


def _num_processes(trainers: Sequence[Record], started: Sequence[RunStarted], main: Record) -> int:
    """Of another trainer's logs, those that report steps or should; else what the processes say themselves."""
    reporting = sum(1 for record in trainers if record.steps or _silent(record))
    return max([reporting, 1, *(s.num_processes or 1 for s in started if not main.from_other_trainer)])


def _is_of_a_log(own: Record, faults: Sequence[FaultRecord]) -> bool:
    """True of a record that was read from the log of another program, as far as that is known."""
    of_its_end = own.ended is not None and bool(own.ended.totals)  # which our own trainer does not give
    return own.from_other_trainer or (not own.started and (of_its_end or any(fault.source for fault in faults)))


def _counted_from(started: RunStarted | None, steps: Sequence[int]) -> int:
    """0 as MaxText and Seatrial count, or 1 as Megatron does: by the reader of the log, or else by the first step."""
    if started and "family" not in started.facts:
        return 0
    known = started.facts.get("counted_from") if started else None
    return min([known, *steps[:1]]) if known in (0, 1) else int(list(steps[:1]) == [1])


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
    """How many ranks a collective has: one per device in other trainers."""
    said = [count for s in started for count in (s.num_devices, s.num_processes) if count]
    return max(said, default=spec.topology.num_devices if spec else None)


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
        silent=_silent(record),
    )


def _silent(record: Record) -> str:
    """What is wrong with a log in which there should be steps."""
    facts = record.started.facts if record.started and not record.steps else {}
    wrong = {"empty": "is empty", "no steps": "has no step"}.get(str(facts.get("log")))
    *_, folder, name = ("", *str(facts.get("source", "")).split("/"))
    place = name if any(map(str.isdigit, name)) or not folder else f"{folder}/{name}"  # 3/stdout.log
    return f"{place} {wrong}" if wrong else ""


def _missing(record: Record, counted_from: int, restored: Sequence[int]) -> Ranges:
    """The steps without a record, up to the last one that has one; what came before a restored checkpoint is no gap.

    Programs name a checkpoint by the last step in it, or by the next one; a step of 0 may stand for an unknown one.
    One of a later step was restored later, and says nothing of the beginning.
    """
    steps = record.steps.numbers
    if not steps:
        return ()
    restored = [step for step in restored if step <= steps[0]]
    stride = 1 if record.started and not record.from_other_trainer else _stride(record)
    known = max((step for step in restored if 0 < step < steps[0]), default=None)
    begin = counted_from if not restored else steps[0] if known is None else known + 1
    is_late = steps[0] > begin + stride if restored else _begins_late(steps[0], begin, stride)
    head = ((begin, steps[0] - 1),) if is_late else ()
    if steps[-1] - steps[0] == len(steps) - 1:  # all are there, as they almost always are
        return head
    return head + tuple(
        (before + stride, max(before + stride, after - stride))
        for before, after in pairwise(steps)
        if after - before > stride
    )


def _begins_late(first: int, counted_from: int, stride: int) -> bool:
    """True if steps came before the first one of a record, which are not in it."""
    return first > (stride if stride > 1 else counted_from)


def _stride(record: Record) -> int:
    """Every how many steps there is one: another trainer's log may report every n-th, if it does so regularly."""
    steps = record.steps.numbers
    if record.started and isinstance(told := record.started.facts.get("stride"), int):
        return told
    if len(steps) < 2 or steps[-1] - steps[0] == len(steps) - 1:
        return 1
    gaps = [after - before for before, after in pairwise(steps)]
    stride = median_low(gaps) if gaps else 1
    # The last line, of the end of the run, may come sooner.
    but_for_last = len(gaps) >= REGULAR_GAPS and {*gaps[:-1]} == {stride} and gaps[-1] < stride
    regular = gaps.count(stride) >= REGULAR_GAPS or but_for_last
    return stride if regular else 1


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
    """Which of the figures of the run are known, and where they are not those that were asked for."""
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
