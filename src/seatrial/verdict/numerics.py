"""Can the loss be believed?"""

from __future__ import annotations

import math

from seatrial.metrics import Numerics, show_ranges
from seatrial.spec import RunSpec
from seatrial.verdict.check import Axis, Check, Status, show

AXIS: Axis = "numerics"
MIN_REPORTED = 0.99
MIN_REPEATED = 10  # losses in a row that are the same to the last digit
AGREEMENT = 1e-4  # relative; a log prints about four digits of a loss


def judge_numerics(numerics: Numerics, spec: RunSpec) -> list[Check]:
    """The checks of numerics; without a single step, each of them is inconclusive."""
    checks = [
        _loss_finite(numerics),
        _loss_reported(numerics),
        _loss_trend(numerics, spec),
        _gradient_finite(numerics),
        _processes_agree(numerics),
    ]
    if numerics.num_steps:
        return checks
    nothing = "There is no step to look at."
    return [Check(name=check.name, axis=AXIS, status="inconclusive", sentence=nothing) for check in checks]


def _loss_finite(numerics: Numerics) -> Check:
    step, value, count = numerics.first_bad_step, numerics.first_bad_value, numerics.num_non_finite
    status: Status
    if step is not None:
        status = "fail"
        sentence = f"The loss is {value} at step {step}" + (f" and in {count} steps in all." if count > 1 else ".")
    elif numerics.num_losses:
        status, sentence = "pass", "The loss is finite at every step."
    else:
        status, sentence = "inconclusive", "No step reports a loss."
    return Check(
        name="loss finite",
        axis=AXIS,
        status=status,
        sentence=sentence,
        measured=count,
        bound=0,
        unit="non-finite steps",
        evidence=(show_ranges(numerics.non_finite_steps),) if count > 1 else (),
    )


def _loss_reported(numerics: Numerics) -> Check:
    """Megatron leaves the loss out of its line when it is NaN, so silence is no comfort."""
    share = numerics.num_losses / max(1, numerics.num_steps)
    return Check(
        name="loss reported",
        axis=AXIS,
        status="pass" if share >= MIN_REPORTED else "fail",
        sentence=f"{numerics.num_losses} of {numerics.num_steps} steps report a loss.",
        measured=share,
        bound=MIN_REPORTED,
        unit="fraction",
    )


def _loss_trend(numerics: Numerics, spec: RunSpec) -> Check:
    synthetic = spec.data.kind == "synthetic"
    share = numerics.share_lower
    repeated, losses = numerics.repeated_at_end, numerics.num_losses
    last, spikes = show(numerics.last_loss), show_ranges(numerics.loss_spikes)
    answers: dict[str, tuple[Status, str]] = {
        "negative": ("fail", f"The loss falls to {show(numerics.min_loss)}; a cross-entropy is never negative."),
        "stuck": (
            "inconclusive" if synthetic else "fail",
            f"The last {repeated} losses are all {last}: nothing is learnt, or it is not the loss.",
        ),
        "rising": ("fail", f"The loss rises; it ends at {last}."),
        "zero": (
            "inconclusive" if synthetic else "fail",
            "The loss becomes exactly 0, which no cross-entropy is: it is lost, or too small for the digits printed.",
        ),
        "spiked": ("inconclusive", f"The loss jumps to {show(numerics.max_loss)}, out of proportion at {spikes}."),
        "falling": ("pass", "The loss falls."),
        "flat": ("not_applicable", "The loss stays flat, as it may on synthetic data.")
        if synthetic
        else ("inconclusive", "The loss neither falls nor rises clearly."),
        "too_short": ("not_applicable", f"{losses} losses are too few for a trend."),
    }
    status, sentence = answers[_course(numerics, synthetic=synthetic)]
    return Check(
        name="loss trend",
        axis=AXIS,
        status=status,
        sentence=sentence,
        measured=numerics.late_loss,
        bound=numerics.early_loss,
        unit="median of last, of first third",
        window="first against last third, rank-sum test",
        evidence=() if share is None else (f"the later of two losses is the lower one in {share:.0%} of the pairs",),
    )


def _course(numerics: Numerics, *, synthetic: bool) -> str:
    """What became of the loss, the worst first."""
    repeated, losses = numerics.repeated_at_end, numerics.num_losses
    lowest, highest = numerics.min_loss or 0.0, numerics.max_loss or 0.0
    if lowest < 0:
        return "negative"
    if repeated >= MIN_REPEATED and repeated >= (losses if synthetic else losses // 2):
        return "stuck"
    if numerics.trend == "rising":
        return "rising"
    if numerics.min_loss == 0 < highest:
        return "zero"
    return "spiked" if numerics.loss_spikes else numerics.trend


def _gradient_finite(numerics: Numerics) -> Check:
    bad = numerics.non_finite_grad_steps
    spikes = numerics.grad_norm_spikes
    status: Status
    if bad:
        status, sentence = "fail", f"The gradient norm is not finite at {show_ranges(bad)}."
    elif numerics.num_grad_norms:
        status, sentence = "pass", "The gradient norm is finite at every step."
    else:
        status, sentence = "not_applicable", "The record has no gradient norm."
    return Check(
        name="gradient finite",
        axis=AXIS,
        status=status,
        sentence=sentence,
        evidence=(f"more than ten times the median: {show_ranges(spikes)}",) if spikes else (),
    )


def _processes_agree(numerics: Numerics) -> Check:
    worst, compared, comparable = numerics.disagreement, numerics.num_compared, numerics.num_comparable
    status: Status
    if worst is not None and worst > AGREEMENT:
        size = "by one being non-finite" if math.isinf(worst) else f"by {show(worst)} of it"
        status, sentence = "fail", f"The processes disagree on the loss: {size} at step {numerics.disagreement_step}."
    elif not comparable:
        status, sentence = "not_applicable", "Only one process reports steps."
    elif compared < MIN_REPORTED * comparable:
        status, sentence = "inconclusive", f"Only {compared} of {comparable} losses can be compared between processes."
    else:
        status, sentence = "pass", f"All processes report the same loss, in {compared} comparisons."
    return Check(
        name="processes agree",
        axis=AXIS,
        status=status,
        sentence=sentence,
        measured=worst,
        bound=AGREEMENT,
        unit="relative difference",
    )
