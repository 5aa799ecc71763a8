"""The verdict in a sentence or two, for whoever reads nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from seatrial.errors import some
from seatrial.metrics import Completion, Diagnosis, Metrics, Numerics, Performance, show_ranges
from seatrial.verdict.check import Check, show, show_beside
from seatrial.verdict.completion import steps_told
from seatrial.verdict.numerics import ONE_LOSS, falls_slightly
from seatrial.verdict.performance import shifts_told

MAX_CAUSE = 300  # characters
MAX_PEERS = 3
_OF_MANY = {"collective_timeout", "collective_desync", "process_missing", "start_barrier"}
MUCH_LOST = 0.05  # of the time


# Outcome of a run that was cut short → what happened, with {how_far}.
_CUT_SHORT = {
    "died": "Training died {how_far}",
    "no_progress": "No progress {how_far}; the processes are alive",
    "could_not_run": "The run could not be started",
    "interrupted": "Interrupted {how_far}",
}


def headline(outcome: str, metrics: Metrics, checks: Sequence[Check], *, rehearsal: str) -> str:
    """The verdict in a sentence or two, the first cause first; `checks` are those of all axes."""
    completion, diagnosis = metrics.completion, metrics.completion.diagnosis
    if outcome == "pass":
        return _success(metrics, checks, rehearsal=rehearsal)
    if outcome in ("fail", "inconclusive"):
        return _not_passed(outcome, metrics, checks)
    if outcome == "teardown_failed":
        ending = next((check.sentence for check in checks if check.name == "orderly end"), "")
        cause = f": {_told(diagnosis)}" if diagnosis else f". {ending}"
        return f"{steps_told(completion)}, but the run did not end in order{cause}"
    if diagnosis and diagnosis.cause.source:
        return _broke(completion, diagnosis)
    cause = f": {_told(diagnosis)}" if diagnosis else "."
    return _CUT_SHORT[outcome].format(how_far=_how_far(completion)) + cause


def _success(metrics: Metrics, checks: Sequence[Check], *, rehearsal: str) -> str:
    speeds = {check.status for check in checks if check.axis == "performance"}
    if "pass" in speeds:
        speed = "It met its speed targets."
    elif rehearsal:
        speed = f"Speed was not judged: this was a {rehearsal}."
    else:
        why = next((check.sentence for check in checks if check.name == "speed"), "not judged.")
        speed = f"Speed was {why[:1].lower()}{why[1:]}"
    return f"{steps_told(metrics.completion)}{_loss(metrics.numerics)}. {speed}{_but(metrics.performance)}"


def _but(performance: Performance) -> str:
    """Sentences on what the median hides: level shifts, slow steps that cost much, and ranks slower than the others."""
    spikes = performance.spikes
    said = f" But it became {shifts_told(performance)}." if performance.shifts else ""
    if spikes is not None and spikes.share_lost >= MUCH_LOST:
        longest = show(spikes.longest_seconds, "s")
        where = show_ranges(spikes.steps)
        said += f" But slow steps cost {spikes.share_lost:.0%} of the time, up to {longest} each: {where}."
    if performance.stragglers:
        slowest, *more = performance.stragglers
        others = f", and {len(more)} more ranks are slow" if more else ""
        said += f" But {slowest.who} is {slowest.slower_by:.0%} slower than the others{others}."
    return said


def _loss(numerics: Numerics) -> str:
    first, last = numerics.first_loss, numerics.last_loss
    if numerics.objective:
        return f", with a finite {numerics.objective} loss throughout (last {show(last)})"
    if falls_slightly(numerics):
        return f", but nothing to speak of was learnt: the loss stayed at {show(numerics.late_loss)}"
    fell = numerics.trend == "falling" and first is not None and last is not None and last < first
    if fell and show(first) != show(last):
        before, after = show_beside(first, last)
        return f", and the loss fell from {before} to {after}"
    if last is None and numerics.last_eval_loss is not None:
        return f", with a loss of {show(numerics.last_eval_loss)} in its last evaluation"
    if last is None and numerics.last_score:
        return f", with {numerics.last_score} in its last evaluation"
    return f", with a finite loss throughout (last {show(last)})"


def _not_passed(outcome: str, metrics: Metrics, checks: Sequence[Check]) -> str:
    completion = metrics.completion
    if bad := _not_finite(metrics):
        return bad
    mixed = next((check for check in checks if check.name == ONE_LOSS and check.status == outcome), None)
    if mixed:  # whatever else was found is of several ranks or runs
        return mixed.sentence
    if completion.diagnosis and outcome == "fail" and not completion.all_steps_done:
        return _broke(completion, completion.diagnosis)
    causes = [check for check in checks if check.status == outcome]
    if causes and _breaks_off(completion):
        still = " If it is still running, judge it again at its end." if completion.from_other_trainer else ""
        return f"The record breaks off {_how_far(completion)}: nothing says how the run ended.{still}"
    if not causes:
        return f"The run failed: {_told(completion.diagnosis)}" if completion.diagnosis else "The run failed."
    shifted = f" The run became {shifts_told(metrics.performance)}." if metrics.performance.shifts else ""
    return _first_of(causes) + (shifted if causes[0].axis == "performance" else "")


def _not_finite(metrics: Metrics) -> str:
    """The first figure that is not finite; "" if all are."""
    completion, numerics = metrics.completion, metrics.numerics
    if numerics.first_bad_step is not None:
        last = completion.last_step
        stopped = "; the run stopped there" if last == numerics.first_bad_step != completion.last_planned_step else ""
        return f"The loss became {numerics.first_bad_value} at step {numerics.first_bad_step}{stopped}."
    if numerics.non_finite_others:
        name, value, steps = numerics.non_finite_others[0]
        return f"{name} became {value} at step {steps[0][0]}."
    return ""


def _first_of(causes: Sequence[Check]) -> str:
    """The sentence of the first check, and the number of further checks with its status."""
    first, *others = causes
    sentence = f"{first.title}: {first.sentence}" if first.axis == "performance" else first.sentence
    undecided = first.status == "inconclusive"
    reason = f" ({first.evidence[0]})" if undecided and first.axis == "performance" and first.evidence else ""
    become = "could not be decided" if undecided else "failed"
    more = f" {len(others)} more check{'s' * (len(others) > 1)} {become}." if others else ""
    return f"{sentence.removesuffix('.')}{reason}.{more}"


def _breaks_off(completion: Completion) -> bool:
    """True if the record ends before its last step, without a word on the end of the run."""
    if completion.reason is not None or not completion.num_steps or completion.idle:
        return False
    planned = completion.last_planned_step
    return planned is not None and (completion.last_step or 0) < planned - completion.stride + 1


def _how_far(completion: Completion, of_process: int | None = None) -> str:
    """Up to where the run came, or the process that broke if it is another."""
    last, planned = of_process or completion.last_step, completion.planned_steps
    if completion.unrecognised:
        return "(no step was recognised in the log)"
    if last is None:
        return "before the first step"
    if completion.lines_counted:
        return f"after {completion.num_steps:,} line{'s' * (completion.num_steps > 1)} of steps"
    if planned is None:
        return f"after step {last:,}"
    done = last - completion.counted_from + 1
    return (
        f"after step {last:,} of {planned:,}" if done == last else f"after step {last:,} ({done:,} of {planned:,} done)"
    )


def _broke(completion: Completion, diagnosis: Diagnosis) -> str:
    """The cause in the field's words, where and when; what the log says of it; what to do."""
    cause = diagnosis.cause
    own = next((process for process in completion.processes if process.process == cause.process), None)
    behind = own.last_step if own and own.last_step != completion.last_step else None
    file = cause.source.rpartition("/")[2]
    where = f"in {file} " if len(completion.processes) > 1 and not cause.where and cause.fault not in _OF_MANY else ""
    what = f"{diagnosis.what[:1].upper()}{diagnosis.what[1:]} {where}{_how_far(completion, behind)}"
    return " ".join([f"{what}: {_short(diagnosis.quote)}" if diagnosis.quote else f"{what}.", *_followed(diagnosis)])


def _told(diagnosis: Diagnosis) -> str:
    return " ".join([_short(diagnosis.sentence), *_followed(diagnosis)])


def _short(text: str) -> str:
    text = text if len(text) <= MAX_CAUSE else text[: MAX_CAUSE - 1] + "…"
    return text if text.endswith(("…", "?", "!")) else text.removesuffix(".") + "."


def _followed(diagnosis: Diagnosis) -> Iterator[str]:
    if diagnosis.rivals:
        yield f"Which came first is not known from the logs: this, or {some(diagnosis.rivals, MAX_PEERS)}."
    named = (*diagnosis.exclude, *diagnosis.cause.where.split(" on "))
    if suspects := [place for place in diagnosis.suspects if place not in named]:
        yield f"Suspect: {some(suspects, MAX_PEERS)}."
    if diagnosis.symptoms:
        yield f"What followed: {'; '.join(diagnosis.symptoms[:MAX_PEERS])}."
    if diagnosis.victims:
        yield f"Because of it, {some(diagnosis.victims, MAX_PEERS)} went down too."
    if diagnosis.hint:
        yield diagnosis.hint
