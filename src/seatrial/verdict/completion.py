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
    several = len(completion.processes) > 1
    missing = [
        (f"rank {process.process}: " if several else "") + show_ranges(process.missing_steps)
        for process in completion.processes
        if process.missing_steps
    ]
    return Check(
        name="record complete",
        axis=AXIS,
        status="pass" if completion.num_steps and not missing else "inconclusive",
        sentence=(
            f"Not in the record: {'; '.join(missing)}."
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
    """Every process has to say that it completed; one word, of the launcher too, or one fault against it is enough."""
    reason, code, processes = completion.reason, completion.exit_code, completion.processes
    against = [p for p in processes if p.reason not in (None, "completed") or p.exit_code]
    unsaid = [str(p.process) for p in processes if p.reason is None]
    faults = [f"{f.seconds:.1f} s · {f.fault} · {f.text or f.where}" for f in completion.faults]
    if reason == "interrupted":
        faults = []  # they follow from it
    codes = [f"rank {p.process}: {p.reason}, exit code {p.exit_code}" for p in processes if p.reason]
    status: Status
    if reason not in (None, "completed") or code:
        words = (reason or "").replace("_", " ")
        status, sentence = "fail", f"The run ended: {words}" + (f", exit code {code}." if code else ".")
    elif against:
        word = f"{against[0].reason}, exit code {against[0].exit_code}".replace("_", " ")
        status, sentence = "fail", f"The run is said to be completed, but rank {against[0].process} ended: {word}."
    elif completion.culprit:
        status, sentence = "fail", f"The run did not end in order: {completion.culprit.fault.replace('_', ' ')}."
    elif reason is None:
        status, sentence = "inconclusive", "The record does not say how the run ended."
    elif unsaid:
        status, sentence = "inconclusive", f"Not in the record: how rank {', '.join(unsaid)} ended."
    else:
        status, sentence = "pass", "The run ended by itself."
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
    """What every process says of itself against what was asked for; a log without a word on its run says nothing."""
    different = completion.differences
    silent = [str(p.process) for p in completion.processes if not p.described]
    status: Status
    if different:
        status, sentence = "fail", f"It was not the run that was asked for: {'; '.join(different)}."
    elif different is None and completion.reason is None:
        status, sentence = "not_applicable", "The record does not describe the run."
    elif silent:
        status, sentence = "inconclusive", f"Not described in the record: what rank {', '.join(silent)} ran."
    else:
        status, sentence = "pass", "Steps, devices, batch and model size are those that were asked for."
    return Check(name="ran as configured", axis=AXIS, status=status, sentence=sentence)
