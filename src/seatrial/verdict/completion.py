"""Did all of it run, as it was configured, and end by itself?"""

from __future__ import annotations

from seatrial.metrics import Completion, FaultRecord, show_ranges
from seatrial.metrics.survival import IN_ORDER
from seatrial.verdict.check import Axis, Check, Status

AXIS: Axis = "completion"
_WORDS = {"aborted": "aborted, by the log's own word"}
MAX_FAULTS_SHOWN, MAX_ALIKE_SHOWN = 10, 3


def judge_completion(completion: Completion) -> list[Check]:
    """The checks of completion."""
    return [
        _steps(completion),
        _record(completion),
        _processes(completion),
        _ending(completion),
        *_target(completion),
        _configuration(completion),
    ]


def steps_told(completion: Completion) -> str:
    """What a record that has the last planned step shows, without the full stop."""
    first, planned = completion.first_step, completion.planned_steps
    if completion.begins_late:
        return f"The run came to the last of {planned:,} steps; the log has them from step {first:,}"
    if completion.stopped_early:
        of = "" if completion.early_of is None else f" of {completion.early_of:,}"
        return f"An evaluation ended the run after {planned:,}{of} steps, as it was asked to"
    attempts = f", in {len(completion.attempts)} attempts" if len(completion.attempts) > 1 else ""
    return f"All {planned:,} steps were done{attempts}"


def _steps(completion: Completion) -> Check:
    last, planned, stride = completion.last_step, completion.last_planned_step, completion.stride
    status: Status = "fail"
    if completion.unrecognised:
        status, sentence = "inconclusive", "No step was recognised in the log: it does not tell how far the run came."
    elif completion.planned_steps is None or planned is None:
        status = "inconclusive" if last is not None else "fail"
        told = "No step was done" if last is None else f"The last step was {last}"
        sentence = f"{told}; how many were planned is not known."
    elif last is None:
        sentence = f"None of the {completion.planned_steps} steps was done."
    elif completion.idle:
        sentence = f"The run was started again after step {last} and did no step."
    elif last == planned or completion.stopped_early:
        status, sentence = "pass", f"{steps_told(completion)}."
    elif last > planned:
        sentence = f"The run went on to step {last}; it should have ended with {planned}."
    elif last > planned - stride and completion.reason == "completed":
        status = "pass"
        sentence = f"The run was completed; the log has every {stride}th step, and of {planned} the last one is {last}."
    elif last > planned - stride:
        status = "inconclusive"
        sentence = f"The log has every {stride}th step; whether the run came from {last} to {planned} it does not say."
    else:
        sentence = f"The last step was {last}; it should have been {planned}."
    attempts = [
        f"attempt {n}: steps {a.first_step}–{a.last_step}"
        + (f" of {a.planned_steps} planned" if a.planned_steps not in (None, completion.planned_steps) else "")
        for n, a in enumerate(completion.attempts, 1)
    ]
    return Check(
        name="all steps done",
        axis=AXIS,
        status=status,
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
    gaps = {gap for process in completion.processes for gap in process.missing_steps}
    only_late = completion.begins_late and gaps == {(completion.counted_from, (completion.first_step or 0) - 1)}
    every = (
        "The end of every block of steps"
        if completion.by_block
        else f"Every {completion.stride}th step"
        if completion.stride > 1
        else "Every step"
    )
    return Check(
        name="record complete",
        axis=AXIS,
        status="pass" if completion.num_steps and not missing else "inconclusive",
        sentence=(
            f"The log begins with step {completion.first_step}: whether the run was resumed there, or lines are "
            "missing, it does not say."
            if missing and only_late
            else f"Not in the record: {'; '.join(missing)}."
            if missing
            else f"{every} is in the record."
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
        one = "One process reports for all." if completion.is_foreign else "There is one process."
        return Check(name="processes together", axis=AXIS, status="not_applicable", sentence=one)
    status: Status
    if behind:
        each = "; ".join(f"rank {process} stopped after step {step}" for process, step in behind.items())
        status, sentence = "fail", f"Not all processes got to step {max(last.values())}: {each}."
    elif silent:
        logs = [process.silent for process in completion.processes if process.silent]
        why = f": {', '.join(logs[:MAX_FAULTS_SHOWN])}{', …' if len(logs) > MAX_FAULTS_SHOWN else ''}" if logs else ""
        status, sentence = "inconclusive", f"{silent} of {completion.num_processes} processes report no step{why}."
    else:
        status, sentence = "pass", f"The {completion.num_processes} processes got equally far."
    return Check(name="processes together", axis=AXIS, status=status, sentence=sentence)


def _ending(completion: Completion) -> Check:
    """Every process has to say that it completed; one word, of the launcher too, or one fault against it is enough."""
    reason, code, processes = completion.reason, completion.exit_code, completion.processes
    against = [p for p in processes if p.reason not in (None, *IN_ORDER) or p.exit_code]
    unsaid = [str(p.process) for p in processes if p.reason is None]
    diagnosis = completion.diagnosis
    said = [completion.evidence] if completion.evidence else []
    status: Status
    if reason not in (None, *IN_ORDER) or code:
        words = _WORDS.get(reason or "", (reason or "").replace("_", " "))
        status, sentence = "fail", f"The run ended: {words}" + (f", exit code {code}." if code else ".")
    elif against:
        word = f"{against[0].reason}, exit code {against[0].exit_code}".replace("_", " ")
        status, sentence = "fail", f"The run is said to be completed, but rank {against[0].process} ended: {word}."
    elif diagnosis and diagnosis.cause.survived is None and completion.all_steps_done:
        status = "inconclusive"
        sentence = f"There is a fault without a time, before or after the last step: {diagnosis.cause.title}."
    elif diagnosis:
        status, sentence = "fail", f"The run did not end in order: {diagnosis.what}."
    elif completion.is_foreign and completion.all_steps_done:
        status, sentence = "pass", "The run came to its last step, and nothing broke after it."
        said = said or ["the log has no end marker"]
    elif reason is None:
        status, sentence = "inconclusive", "The record does not say how the run ended."
    elif unsaid and not completion.is_foreign:
        status, sentence = "inconclusive", f"Not in the record: how rank {', '.join(unsaid)} ended."
    else:
        status, sentence = "pass", "The run ended by itself."
    codes = [f"rank {p.process}: {p.reason}, exit code {p.exit_code}" for p in processes if p.reason]
    if completion.is_foreign:
        codes = said
    return Check(
        name="orderly end",
        axis=AXIS,
        status=status,
        sentence=sentence,
        measured=reason,
        bound="completed",
        evidence=(*_told(completion), *codes),
    )


def _target(completion: Completion) -> list[Check]:
    """Whether the evaluations came down to what the run was for; nothing if it is not known."""
    last, target = completion.last_eval_loss, completion.target_eval_loss
    if last is None or target is None:
        return []
    status: Status
    if last <= target:
        status, sentence = "pass", f"The last evaluation is {last:.5g}: the target, {target:.5g}, was reached."
    else:
        status = "inconclusive" if completion.reason is None else "fail"
        sentence = f"The last evaluation is {last:.5g}: the target, {target:.5g}, was not reached."
    return [Check(name="target reached", axis=AXIS, status=status, sentence=sentence, measured=last, bound=target)]


def _told(completion: Completion) -> tuple[str, ...]:
    """The lines that say what broke, and what follows from them; those that the run survived come last."""
    if completion.reason == "interrupted":
        return ()  # all of it follows from that
    diagnosis = completion.diagnosis
    kinds: dict[tuple[bool, str], list[FaultRecord]] = {}
    for fault in sorted(completion.faults, key=lambda fault: (fault.survived is True, not fault.is_fatal)):
        kinds.setdefault((fault.survived is True, fault.fault), []).append(fault)
    lines = []
    for alike in kinds.values():
        lines += [_line(fault) for fault in alike[:MAX_ALIKE_SHOWN]]
        if (more := len(alike) - MAX_ALIKE_SHOWN) > 0:
            lines.append(f"… and {more} more of {alike[0].fault}")
    if (more := len(lines) - MAX_FAULTS_SHOWN) > 0:
        lines[MAX_FAULTS_SHOWN:] = [f"… and {more} more lines"]
    if diagnosis:
        lines += [f"followed from it: {symptom}" for symptom in diagnosis.symptoms]
        lines += [f"suspect: {', '.join(diagnosis.suspects[:MAX_FAULTS_SHOWN])}"] if diagnosis.suspects else []
        lines += [f"leave out: {', '.join(diagnosis.exclude)}"] if diagnosis.exclude else []
        lines += [f"what to do: {diagnosis.hint}"] if diagnosis.hint else []
    return tuple(lines)


def _line(fault: FaultRecord) -> str:
    noted = ""
    if fault.survived:
        noted = "survived · "
    elif not fault.is_fatal:
        noted = "noted · "
    place = f"{fault.place}: " if fault.place else f"{fault.seconds:.1f} s · "
    times = f" ({fault.count} times)" if fault.count > 1 else ""
    return f"{noted}{place}{fault.fault}{times} · {' '.join(fault.text.split()) or fault.where}"


def _configuration(completion: Completion) -> Check:
    """What every process says of itself against what was asked for; a log without a word on its run says nothing."""
    different, compared = completion.differences, completion.compared
    silent = [str(p.process) for p in completion.processes if not p.described]
    status: Status
    if different:
        status, sentence = "fail", f"It was not the run that was asked for: {'; '.join(different)}."
    elif (different is None and completion.reason is None) or (completion.is_foreign and not compared):
        status, sentence = "not_applicable", "The record does not describe the run."
    elif silent:
        status, sentence = "inconclusive", f"Not described in the record: what rank {', '.join(silent)} ran."
    elif completion.is_foreign:
        status, sentence = "pass", f"What the log says of the run was asked for: {', '.join(compared)}."
    else:
        status, sentence = "pass", "Steps, devices, batch and model size are those that were asked for."
    return Check(name="ran as configured", axis=AXIS, status=status, sentence=sentence)
