"""Did all of it run, as it was configured, and end by itself?"""

from __future__ import annotations

from seatrial.metrics import Completion, show_ranges
from seatrial.verdict.check import Axis, Check, Status

AXIS: Axis = "completion"
MAX_FAULTS_SHOWN = 10


def judge_completion(completion: Completion) -> list[Check]:
    """The checks of completion."""
    return [
        _steps(completion),
        _record(completion),
        _processes(completion),
        _ending(completion),
        _configuration(completion),
    ]


def _steps(completion: Completion) -> Check:
    last, planned = completion.last_step, completion.last_planned_step
    if last is None:
        sentence = f"None of the {completion.planned_steps} steps was done."
    elif last < planned:
        sentence = f"The last step was {last}; it should have been {planned}."
    elif last > planned:
        sentence = f"The run went on to step {last}; it should have ended with {planned}."
    else:
        sentence = f"All {completion.planned_steps:,} steps were done."
    attempts = [f"attempt {n}: steps {a.first_step}–{a.last_step}" for n, a in enumerate(completion.attempts, 1)]
    return Check(
        name="all steps done",
        axis=AXIS,
        status="pass" if last == planned else "fail",
        sentence=sentence,
        measured=last,
        bound=planned,
        unit="last step",
        evidence=tuple(attempts) if len(attempts) > 1 else (),
    )


def _record(completion: Completion) -> Check:
    missing = completion.missing_steps
    return Check(
        name="record complete",
        axis=AXIS,
        status="pass" if completion.num_steps and not missing else "inconclusive",
        sentence=(
            f"Not in the record: {show_ranges(missing)}."
            if missing
            else "Every step is in the record."
            if completion.num_steps
            else "No step is in the record."
        ),
        measured=completion.num_steps,
        unit="steps recorded",
    )


def _processes(completion: Completion) -> Check:
    """All processes that report steps got equally far; one of which nothing is known leaves the question open."""
    last = {p.process: p.last_step for p in completion.processes if p.last_step is not None}
    silent = completion.num_processes - len(last)
    behind = {process: step for process, step in last.items() if step < max(last.values())}
    if completion.num_processes < 2:
        return Check(name="processes together", axis=AXIS, status="not_applicable", sentence="There is one process.")
    status: Status
    if behind:
        each = "; ".join(f"rank {process} stopped after step {step}" for process, step in behind.items())
        status, sentence = "fail", f"Not all processes got to step {max(last.values())}: {each}."
    elif silent:
        status, sentence = "inconclusive", f"{silent} of {completion.num_processes} processes report no step."
    else:
        status, sentence = "pass", f"The {completion.num_processes} processes got equally far."
    return Check(name="processes together", axis=AXIS, status=status, sentence=sentence)


def _ending(completion: Completion) -> Check:
    faults = [f"{f.seconds:.1f} s · {f.fault} · {f.text or f.where}" for f in completion.faults]
    codes = [f"rank {p.process}: {p.reason}, exit code {p.exit_code}" for p in completion.processes if p.reason]
    reason, code = completion.reason, completion.exit_code
    status: Status
    if reason is None and not completion.faults:
        status, sentence = "not_applicable", "The record does not say how the run ended."
    elif reason == "completed" and not code:
        status, sentence = "pass", "The run ended by itself."
    else:
        words = reason.replace("_", " ") if reason else "without a word on it"
        status, sentence = "fail", f"The run ended: {words}" + (f", exit code {code}." if code else ".")
    return Check(
        name="orderly end",
        axis=AXIS,
        status=status,
        sentence=sentence,
        measured=reason,
        bound="completed",
        evidence=tuple((faults + codes)[:MAX_FAULTS_SHOWN]),
    )


def _configuration(completion: Completion) -> Check:
    """What the run says of itself against what was asked for; a foreign log may say nothing."""
    different = completion.differences
    status: Status
    if different is None:
        status, sentence = "not_applicable", "The record does not describe the run."
    elif different:
        status, sentence = "fail", f"It was not the run that was asked for: {'; '.join(different)}."
    else:
        status, sentence = "pass", "Steps, devices, batch and model size are those that were asked for."
    return Check(name="ran as configured", axis=AXIS, status=status, sentence=sentence)
