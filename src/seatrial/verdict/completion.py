"""Judges whether all of the run was completed, as configured, and ended by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from seatrial.events import IN_ORDER
from seatrial.metrics import Completion, FaultRecord, show_ranges
from seatrial.verdict.check import Answer, Check, Status

_WORDS = {"aborted": "aborted, according to the log"}
MAX_FAULTS_SHOWN, MAX_ALIKE_SHOWN = 10, 3


def judge_completion(completion: Completion) -> list[Check]:
    """The checks of completion."""
    several = len(completion.attempts) > 1
    checks = [
        *([_spelling(completion)] if completion.guessed else []),
        _check(
            "all steps done", _steps(completion), measured=completion.last_step, bound=completion.last_planned_step,
            unit="last step", evidence=tuple(_attempts(completion)) if several else (),
        ),
        _check("record complete", _record(completion), measured=completion.num_steps, unit="steps recorded"),
        _check("processes together", _processes(completion)),
        _check(
            "orderly end", _ending(completion), measured=completion.reason, bound="completed",
            evidence=(*_what_broke(completion), *_how_processes_ended(completion)),
        ),
    ]  # fmt: skip
    return [*checks, *_targets_reached(completion), _check("ran as configured", _configuration(completion))]


def _check(name: str, answer: Answer, **details: Any) -> Check:
    return Check(name=name, axis="completion", status=answer[0], sentence=answer[1], **details)


def steps_told(completion: Completion) -> str:
    """The sentence on a record that has the last planned step, without the full stop."""
    first, planned = completion.first_step, completion.planned_steps
    if completion.begins_late:
        return f"Completed the last of {planned:,} steps; the log begins at step {first:,}"
    if completion.stopped_early:
        of = "" if completion.early_of is None else f" of {completion.early_of:,}"
        what = "Its own limit of time" if completion.time_spent else "An evaluation"
        return f"{what} ended the run after {planned:,}{of} steps, as configured"
    attempts = f", in {len(completion.attempts)} attempts" if len(completion.attempts) > 1 else ""
    return f"Completed all {planned:,} steps{attempts}"


def _steps(completion: Completion) -> Answer:
    last, planned, stride = completion.last_step, completion.last_planned_step, completion.stride
    if completion.unrecognised:
        return "inconclusive", "No step was recognised in the log, so how far the run came is unknown."
    if completion.lines_counted:
        lines = f"{completion.num_steps:,} lines of steps" if completion.num_steps > 1 else "one line of a step"
        return "inconclusive", f"The log has {lines}, and does not say how many steps each stands for."
    if planned is None:
        reached = "No step was completed" if last is None else f"The last step was {last}"
        if last is None:
            return "fail", f"{reached}; the planned number of steps is unknown."
        fix = ": give it with --steps" if completion.from_other_trainer else ""
        return "inconclusive", f"{reached}; the planned number of steps is unknown{fix}."
    if last is None and completion.nothing_left:
        return (
            "inconclusive",
            f"All {completion.planned_steps:,} steps had been done before, and none was left to do.",
        )
    if last is None:
        return "fail", f"None of the {completion.planned_steps:,} steps was completed."
    if completion.idle:
        return "fail", f"The run was restarted after step {last} and completed no further step."
    if (last == planned or completion.stopped_early) and completion.perhaps_idle:
        again = "behind the last one a training begins once more, and has no step"
        return "inconclusive", f"All {completion.planned_steps:,} steps were done, but {again}."
    if last == planned or completion.stopped_early:
        return "pass", f"{steps_told(completion)}."
    if last > planned:
        return "fail", f"The run continued to step {last}; it was planned to end at step {planned}."
    if last <= planned - stride:
        return "fail", f"The last step was {last}; step {planned} was planned."
    every = f"the log has every {stride}th step"
    if completion.reason == "completed":
        return "pass", f"The run completed; {every}, and step {last} of {planned} is the last one."
    return "inconclusive", f"{every.capitalize()}, so it does not show whether the run got from {last} to {planned}."


def _spelling(completion: Completion) -> Check:
    """Only in the verdict on a log whose spelling was guessed."""
    answer: Answer = ("pass", "The spelling of the log was guessed, and confirmed with --family generic.")
    if not completion.confirmed:
        why = "No known trainer spells its log like this one, so its spelling was guessed"
        answer = ("inconclusive", f"{why}; if the guess is right, confirm it with --family generic.")
    return _check("spelling known", answer, evidence=(completion.guessed,))


def _attempts(completion: Completion) -> Iterator[str]:
    for number, attempt in enumerate(completion.attempts, 1):
        is_other = attempt.planned_steps not in (None, completion.planned_steps)
        of = f" of {attempt.planned_steps} planned" if is_other else ""
        yield f"attempt {number}: steps {attempt.first_step}–{attempt.last_step}{of}"


def _record(completion: Completion) -> Answer:
    several = len(completion.processes) > 1
    missing = [
        (f"rank {process.process}: " if several else "") + show_ranges(process.missing_steps)
        for process in completion.processes
        if process.missing_steps
    ]
    gaps = {gap for process in completion.processes for gap in process.missing_steps}
    if missing and completion.begins_late and gaps == {(completion.counted_from, (completion.first_step or 0) - 1)}:
        return "inconclusive", (
            f"The log begins at step {completion.first_step}; it does not say whether the run was resumed there or "
            "lines are missing."
        )
    if missing:
        return "inconclusive", f"Missing from the record: {'; '.join(missing)}."
    if not completion.num_steps:
        return "inconclusive", "No step is in the record."
    every = f"Every {completion.stride}th step" if completion.stride > 1 else "Every step"
    return "pass", f"{'The end of every block of steps' if completion.by_block else every} is in the record."


def _processes(completion: Completion) -> Answer:
    """All processes that report steps reached the same one; one of which nothing is known leaves the question open."""
    last = {p.process: p.last_step for p in completion.processes if p.last_step is not None}
    if completion.num_processes < 2:
        one = "One process reports for all." if completion.from_other_trainer else "There is one process."
        return "not_applicable", one
    if behind := {process: step for process, step in last.items() if step < max(last.values())}:
        each = "; ".join(f"rank {process} stopped after step {step}" for process, step in behind.items())
        return "fail", f"Not all processes reached step {max(last.values())}: {each}."
    if silent := completion.num_processes - len(last):
        logs = [process.silent for process in completion.processes if process.silent]
        why = f": {', '.join(logs[:MAX_FAULTS_SHOWN])}{', …' if len(logs) > MAX_FAULTS_SHOWN else ''}" if logs else ""
        return "inconclusive", f"{silent} of {completion.num_processes} processes report no step{why}."
    return "pass", "All processes reached the same step."


def _ending(completion: Completion) -> Answer:
    """Every process has to say that it completed; one word, of the launcher too, or one fault against it is enough."""
    if failed := _failed_end(completion):
        return "fail", failed
    diagnosis = completion.diagnosis
    if diagnosis and diagnosis.cause.survived is None and completion.all_steps_done:
        fault = diagnosis.cause.title
        return "inconclusive", f"A fault without a time came before or after the last step: {fault}."
    if diagnosis:
        return "fail", f"The run did not end in order: {diagnosis.what}."
    if completion.from_other_trainer and completion.all_steps_done:
        return "pass", "The run reached its last step, and nothing failed after it."
    unsaid = [str(process.process) for process in completion.processes if process.reason is None]
    if completion.reason is None:
        return "inconclusive", "The record does not say how the run ended."
    if unsaid and not completion.from_other_trainer:
        return "inconclusive", f"The record does not say how rank {', '.join(unsaid)} ended."
    return "pass", "The run ended by itself."


def _failed_end(completion: Completion) -> str:
    """The word that says that the run did not complete: the last one on the run, or a process's; "" if none does."""
    reason, code = completion.reason, completion.exit_code
    if reason not in (None, *IN_ORDER) or code:
        words = _WORDS.get(reason or "", (reason or "").replace("_", " "))
        return f"The run ended: {words}" + (f", exit code {code}." if code else ".")
    for process in completion.processes:
        if process.reason not in (None, *IN_ORDER) or process.exit_code:
            word = f"{process.reason}, exit code {process.exit_code}".replace("_", " ")
            return f"The run is reported as completed, but rank {process.process} ended: {word}."
    return ""


def _how_processes_ended(completion: Completion) -> list[str]:
    if not completion.from_other_trainer:
        return [f"rank {p.process}: {p.reason}, exit code {p.exit_code}" for p in completion.processes if p.reason]
    if completion.evidence:
        return [completion.evidence]
    passed = not (_failed_end(completion) or completion.diagnosis) and completion.all_steps_done
    return ["the log has no end marker"] if passed else []


def _targets_reached(completion: Completion) -> Iterator[Check]:
    """The evaluations against the goal of the run: down to a loss, or up to a score, which is no loss."""
    last, target, shortfall = completion.last_eval_loss, completion.target_eval_loss, completion.last_shortfall
    missed: Status = "inconclusive" if completion.reason is None else "fail"
    if last is not None and target is not None:
        reached = "reached" if last <= target else "did not reach"
        sentence = f"The last evaluation loss, {last:.5g}, {reached} the target of {target:.5g}."
        answer: Answer = ("pass" if last <= target else missed, sentence)
        yield _check("target reached", answer, measured=last, bound=target)
    if shortfall is not None:
        reached = "reached" if shortfall <= 0 else "did not reach"
        sentence = f"The last evaluation {reached} its target: {completion.last_score}."
        answer = ("pass" if shortfall <= 0 else missed, sentence)
        yield _check("target reached", answer, measured=shortfall, bound=0, unit="short of it")


def _what_broke(completion: Completion) -> list[str]:
    """The lines that say what broke, and what follows from them; those that the run survived come last."""
    diagnosis, faults = completion.diagnosis, completion.faults
    if completion.reason == "interrupted":  # all else follows from that
        faults = (diagnosis.cause,) if diagnosis else ()
    kinds: dict[tuple[bool, str], list[FaultRecord]] = {}
    for fault in sorted(faults, key=lambda fault: (fault.survived is True, not fault.is_fatal)):
        kinds.setdefault((fault.survived is True, fault.fault), []).append(fault)
    lines = []
    for alike in kinds.values():
        lines += [_line(fault) for fault in alike[:MAX_ALIKE_SHOWN]]
        if (more := len(alike) - MAX_ALIKE_SHOWN) > 0:
            lines.append(f"… and {more} more of {alike[0].fault}")
    if (more := len(lines) - MAX_FAULTS_SHOWN) > 0:
        lines[MAX_FAULTS_SHOWN:] = [f"… and {more} more lines"]
    if diagnosis is None:
        return lines
    advice = (
        ("in unknown order", ", ".join(diagnosis.rivals[:MAX_FAULTS_SHOWN])),
        ("suspect", ", ".join(diagnosis.suspects[:MAX_FAULTS_SHOWN])),
        ("exclude", ", ".join(diagnosis.exclude)),
        ("what to do", diagnosis.hint),
    )
    return [
        *lines,
        *(f"consequence: {symptom}" for symptom in diagnosis.symptoms),
        *(f"{what}: {text}" for what, text in advice if text),
    ]


def _line(fault: FaultRecord) -> str:
    noted = "survived · " if fault.survived else "" if fault.is_fatal else "noted · "
    place = f"{fault.place}: " if fault.place else f"{fault.seconds:.1f} s · "
    times = f" ({fault.count} times)" if fault.count > 1 else ""
    return f"{noted}{place}{fault.fault}{times} · {' '.join(fault.text.split()) or fault.where}"


def _configuration(completion: Completion) -> Answer:
    """Compares what each process reports of itself with the configuration; not applicable where none does."""
    different, compared = completion.differences, completion.compared
    silent = [str(p.process) for p in completion.processes if not p.described]
    if different:
        return "fail", f"This is not the configured run: {'; '.join(different)}."
    if (different is None and completion.reason is None) or (completion.from_other_trainer and not compared):
        return "not_applicable", "The record does not describe the run."
    if silent:
        return "inconclusive", f"The record does not say what rank {', '.join(silent)} ran."
    if completion.from_other_trainer:
        return "pass", f"What the log says of the run matches the configuration: {', '.join(compared)}."
    return "pass", "Steps, devices, batch and model size match the configuration."
