"""The verdict in a sentence or two, for whoever reads nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from seatrial.metrics import Completion, Metrics, Numerics
from seatrial.verdict.check import Check, show

MAX_CAUSE = 300  # characters
MAX_PEERS = 3


def headline(outcome: str, metrics: Metrics, checks: Sequence[Check], *, rehearsal: bool) -> str:
    """What happened, first cause first; `checks` are those of all axes."""
    completion = metrics.completion
    match outcome:
        case "pass":
            return _success(metrics, checks, rehearsal=rehearsal)
        case "fail" | "inconclusive":
            return _not_passed(outcome, metrics, checks)
        case "teardown_failed":
            cause = _cause(completion) if completion.diagnosis else f". {_ending(checks)}"
            return f"All {completion.planned_steps:,} steps were done, but the run did not end in order{cause}"
        case "died":
            return f"Training died {_how_far(completion)}{_cause(completion)}"
        case "no_progress":
            return f"The processes lived on, but stood still {_how_far(completion)}{_cause(completion)}"
        case "could_not_run":
            return f"The run could not be started{_cause(completion)}"
        case _:
            return f"Interrupted {_how_far(completion)}{_cause(completion)}"


def _success(metrics: Metrics, checks: Sequence[Check], *, rehearsal: bool) -> str:
    speeds = {check.status for check in checks if check.axis == "performance"}
    if "pass" in speeds:
        speed = "It was as fast as expected."
    elif rehearsal:
        speed = "Speed was not judged: this was a rehearsal."
    else:
        speed = "Speed was recorded, not judged: the configuration expects none."
    return f"All {metrics.completion.planned_steps:,} steps were done{_loss(metrics.numerics)}. {speed}"


def _loss(numerics: Numerics) -> str:
    first, last = numerics.first_loss, numerics.last_loss
    if numerics.trend == "falling" and first is not None and last is not None and last < first:
        return f", and the loss fell from {show(first)} to {show(last)}"
    return f", with a finite loss throughout (last {show(last)})"


def _not_passed(outcome: str, metrics: Metrics, checks: Sequence[Check]) -> str:
    completion, numerics = metrics.completion, metrics.numerics
    if numerics.first_bad_step is not None:
        stopped = "; the run stopped there" if completion.last_step == numerics.first_bad_step else ""
        return f"The loss became {numerics.first_bad_value} at step {numerics.first_bad_step}{stopped}."
    if completion.diagnosis and outcome == "fail" and not completion.all_steps_done:
        return f"The run failed {_how_far(completion)}{_cause(completion)}"
    causes = [check for check in checks if check.status == outcome]
    breaks_off = completion.reason is None and completion.num_steps and completion.planned_steps is not None
    if breaks_off and not completion.idle and causes and (completion.last_step or 0) < _last_needed(completion):
        return f"The record breaks off {_how_far(completion)}: nothing says how the run ended."
    if not causes:
        return f"The run failed{_cause(completion)}"
    others = len(causes) - 1
    more = f" {others} more check{'s' * (others > 1)} {'failed' if outcome == 'fail' else 'could not be decided'}."
    first = causes[0]
    told = f"{first.title}: {first.sentence}" if first.axis == "performance" else first.sentence
    reason = f" ({first.evidence[0]})" if outcome == "inconclusive" and first.evidence else ""
    return told.removesuffix(".") + reason + "." + (more if others else "")


def _last_needed(completion: Completion) -> int:
    """The number of the last step that a record of a whole run has."""
    return (completion.last_planned_step or 0) - completion.stride + 1


def _ending(checks: Sequence[Check]) -> str:
    return next((check.sentence for check in checks if check.name == "orderly end"), "")


def _how_far(completion: Completion) -> str:
    if completion.last_step is None:
        return "before the first step"
    if completion.planned_steps is None:
        return f"after step {completion.last_step}"
    return f"after step {completion.last_step} ({completion.num_steps} of {completion.planned_steps} done)"


def _cause(completion: Completion) -> str:
    diagnosis = completion.diagnosis
    if diagnosis is None:
        return "."
    told = diagnosis.sentence.removesuffix(".")
    told = told if len(told) <= MAX_CAUSE else told[: MAX_CAUSE - 1] + "…"
    sentences = [f": {told}."]
    if suspects := [place for place in diagnosis.suspects if place not in diagnosis.cause.where]:
        sentences.append(f"Suspect: {_some(suspects)}.")
    if diagnosis.symptoms:
        sentences.append(f"What followed: {'; '.join(diagnosis.symptoms[:MAX_PEERS])}.")
    if diagnosis.victims:
        sentences.append(f"Because of it, {_some(diagnosis.victims)} went down too.")
    if diagnosis.hint:
        sentences.append(diagnosis.hint)
    return " ".join(sentences)


def _some(places: Sequence[str]) -> str:
    more = len(places) - MAX_PEERS
    return ", ".join(places[:MAX_PEERS]) + (f" and {more} more" if more > 0 else "")
