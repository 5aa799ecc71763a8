"""Can the loss be believed?"""

from __future__ import annotations

import math
from itertools import islice

from seatrial.metrics import Numerics, ranges, show_ranges
from seatrial.spec import RunSpec
from seatrial.verdict.check import Axis, Check, Status, show

AXIS: Axis = "numerics"
ONE_LOSS = "one loss per step"  # the name of a check
MIN_REPORTED = 0.99
MIN_REPEATED = 10  # losses in a row that are the same to the last digit
AGREEMENT = 1e-4  # relative; a log prints about four digits of a loss
SLIGHT_FALL = 1e-3  # of the loss, between the medians of the first and the last third: clear, but nothing is learnt
MEMORISED = 0.05  # of the early loss: the last one before 0, if it came down step by step
SKIPPED_DOUBTS, SKIPPED_FAILS = 0.01, 0.05  # of the steps, after the loss scale was found
LONG_SEARCH = 40  # steps: a loss scale is halved in each, from 2**32 at the most
PERPLEXITY_WITHIN = 0.02
MIN_CONTRADICTED = 3  # steps with two losses
MAX_EVIDENCE = 10  # lines
EXPLODING, EXPLODED = 10.0, 100.0  # times the early gradient norm, in the last third


def judge_numerics(numerics: Numerics, spec: RunSpec | None) -> list[Check]:
    """The checks of numerics; without a single step, each of them is inconclusive.

    `spec` says what was learnt: a synthetic batch may be learnt by heart, text may not. Without one, neither is so.
    """
    checks = [
        _loss_finite(numerics),
        _loss_reported(numerics),
        _loss_trend(numerics, spec.data.kind if spec else "unknown"),
        *_steps_skipped(numerics),
        *_perplexity(numerics),
        *_one_loss_per_step(numerics),
        _gradient_finite(numerics),
        _processes_agree(numerics),
    ]
    if numerics.num_steps:
        return checks
    nothing = "There is no step to look at."
    return [Check(name=check.name, axis=AXIS, status="inconclusive", sentence=nothing) for check in checks]


def _loss_finite(numerics: Numerics) -> Check:
    step, value, count = numerics.first_bad_step, numerics.first_bad_value, numerics.num_non_finite
    evidence = [show_ranges(numerics.non_finite_steps)] if count > 1 else []
    status: Status
    if step is not None:
        status = "fail"
        sentence = f"The loss is {value} at step {step}" + (f" and in {count} steps in all." if count > 1 else ".")
    elif numerics.non_finite_others:
        status = "fail"
        (name, first, steps), *more = numerics.non_finite_others
        sentence = f"{name} is {first} at {show_ranges(steps)}."
        evidence = [f"{name}: {value} at {show_ranges(steps)}" for name, value, steps in more]
    elif numerics.non_finite_evals:
        status = "fail"
        sentence = f"The loss of the evaluation after {show_ranges(numerics.non_finite_evals)} is not finite."
    elif numerics.num_losses:
        status, sentence = "pass", "The loss is finite at every step."
    elif numerics.num_evals:
        status, sentence = "pass", f"The loss is finite in every one of {numerics.num_evals} evaluations."
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
        evidence=tuple(evidence[:MAX_EVIDENCE]),
    )


def _loss_reported(numerics: Numerics) -> Check:
    """Megatron leaves the loss out of its line when it is NaN, so silence is no comfort."""
    losses, expected = numerics.num_losses, numerics.num_expected
    share = losses / max(1, expected)
    skipped = numerics.num_steps - expected
    sentence = f"{losses} of {expected} steps report a loss."
    if skipped > 0:
        sentence += f" Before them, {skipped} were skipped in search of a loss scale."
    status: Status = "pass" if losses and share >= MIN_REPORTED else "fail"
    if not losses and numerics.num_evals:  # as many MLPerf logs
        status = "pass" if numerics.evals_reached_target else "inconclusive"
        times = f"{numerics.num_evals} evaluations do" if numerics.num_evals > 1 else "one evaluation does"
        sentence = f"No step reports a loss; {times}."
    elif not losses:
        sentence = "No process reports a loss."
    elif numerics.falls_silent:
        process, last = max(numerics.falls_silent, key=lambda found: found[1])
        status = "fail" if last > 1 or status == "fail" else "inconclusive"
        times = f"last {last} steps" if last > 1 else "last step"
        sentence += f" Rank {process} reports none for its {times}; some programs print none when it is NaN."
    return Check(
        name="loss reported",
        axis=AXIS,
        status=status,
        sentence=sentence,
        measured=share,
        bound=MIN_REPORTED,
        unit="fraction",
    )


# What became of the loss → the answer on real data, on synthetic (the same batch in every step), and on unknown data.
_TREND: dict[str, tuple[Status, Status, Status]] = {
    "negative": ("fail", "fail", "fail"),
    "lost": ("fail", "fail", "fail"),
    "nothing": ("inconclusive", "not_applicable", "inconclusive"),
    "memorised": ("fail", "not_applicable", "inconclusive"),
    "stuck": ("fail", "inconclusive", "inconclusive"),
    "rising": ("fail", "fail", "fail"),
    "zero": ("fail", "inconclusive", "inconclusive"),
    "ends high": ("inconclusive", "inconclusive", "inconclusive"),
    "spiked": ("inconclusive", "inconclusive", "inconclusive"),
    "falling": ("pass", "pass", "pass"),
    "slight": ("inconclusive", "not_applicable", "inconclusive"),
    "evaluated": ("pass", "pass", "pass"),
    "flat": ("inconclusive", "not_applicable", "inconclusive"),
    "too_short": ("not_applicable", "not_applicable", "not_applicable"),
}
_UNDECIDED = ("spiked", "flat", "too_short")  # by training losses; where an evaluation reached its target, it decides
_KINDS = ("real", "synthetic", "unknown")


def _loss_trend(numerics: Numerics, kind: str) -> Check:
    share, p = numerics.share_lower, numerics.trend_p
    repeated, losses = numerics.repeated_at_end, numerics.num_losses
    last, spikes = show(numerics.last_loss), show_ranges(numerics.loss_spikes)
    course = trained = _course(numerics, synthetic=kind == "synthetic")
    if course in _UNDECIDED and numerics.evals_reached_target:
        course = "evaluated"
    sentences = {
        "negative": f"The loss falls to {show(numerics.min_loss)}; a cross-entropy is never negative.",
        "lost": f"All {losses} losses are exactly 0; no cross-entropy starts there.",
        "nothing": "The loss is 0: learnt by heart, as it may be on synthetic data, or not reported.",
        "memorised": "The loss falls to 0, too small for the digits printed: the batch is learnt by heart.",
        "stuck": f"The last {repeated} losses are all {last}: nothing is learnt, or it is not the loss.",
        "rising": f"The loss rises; it ends at {last}.",
        "zero": "The loss becomes exactly 0, which no cross-entropy is: lost, or too small for the digits printed.",
        "ends high": f"The loss ends at {last}, far above the {show(numerics.settled_loss)} that it had come down to.",
        "spiked": f"The loss jumps to {show(numerics.max_loss)}, out of proportion at {spikes}.",
        "falling": "The loss falls.",
        "slight": f"The loss falls by less than {SLIGHT_FALL:.1%}: nothing to speak of is learnt.",
        "flat": "The loss stays flat, as it may on synthetic data."
        if kind == "synthetic"
        else "The loss neither falls nor rises clearly.",
        "evaluated": f"The evaluations came down from {show(numerics.first_eval_loss)} to "
        f"{show(numerics.last_eval_loss)}, to their target."
        if numerics.num_evals > 1
        else f"The evaluation came down to {show(numerics.last_eval_loss)}, to its target.",
        "too_short": f"{losses} losses are too few for a trend.",
    }
    told = f"the later of two losses is the lower one in {share:.0%} of the pairs" if share is not None else ""
    return Check(
        name="loss trend",
        axis=AXIS,
        status=_TREND[course][_KINDS.index(kind if kind in _KINDS else "real")],
        sentence=sentences[course],
        measured=numerics.late_loss,
        bound=numerics.early_loss,
        unit="median of last, of first third",
        window="first against last third, rank-sum test",
        evidence=((told + (f"; p = {p:.1g} by chance" if p is not None else ""),) if told else ())
        + ((sentences[trained],) if trained != course and losses else ()),
    )


def _course(numerics: Numerics, *, synthetic: bool) -> str:
    """What became of the loss, the worst first."""
    repeated, losses = numerics.repeated_at_end, numerics.num_losses
    lowest, highest = numerics.min_loss or 0.0, numerics.max_loss or 0.0
    if lowest < 0:
        return "negative"
    if numerics.max_loss == 0:
        return "lost" if losses >= MIN_REPEATED else "nothing"
    if _is_memorised(numerics):
        return "memorised"
    if repeated >= MIN_REPEATED and repeated >= (losses if synthetic else losses // 2):
        return "stuck"
    if numerics.trend == "rising":
        return "rising"
    if numerics.min_loss == 0 < highest:
        return "zero"
    if numerics.settled_loss is not None:
        return "ends high"
    if numerics.loss_spikes:
        return "spiked"
    return "slight" if falls_slightly(numerics) else numerics.trend


def falls_slightly(numerics: Numerics) -> bool:
    """Whether the loss falls, but by so little that the run shows no learning: DPO at ln 2 with too low a rate."""
    early, late = numerics.early_loss, numerics.late_loss
    return numerics.trend == "falling" and early is not None and late is not None and early - late < SLIGHT_FALL * early


def _is_memorised(numerics: Numerics) -> bool:
    """Whether the loss came down to 0 step by step, rather than at once."""
    least, early = numerics.least_before_zero, numerics.early_loss or numerics.first_loss
    if least is None or early is None or numerics.trend == "rising" or numerics.loss_spikes:
        return False
    return least <= MEMORISED * max(early, numerics.first_loss or 0.0)


def _steps_skipped(numerics: Numerics) -> list[Check]:
    """Steps without an update: normal while a loss scale is searched for, not afterwards. Nothing if none is told."""
    initial, later, nan = numerics.initial_skips, numerics.later_skips, numerics.nan_steps
    if initial is None and later is None and nan is None and not numerics.loss_scale_collapsed:
        return []
    initial, later = initial or 0, later or 0
    share = later / max(1, numerics.steps_covered)
    status: Status
    if nan:
        status, sentence = "fail", f"The framework counts {nan} steps as NaN."
    elif numerics.loss_scale_collapsed:
        status, sentence = "fail", "The loss scale fell to 1 or less, and steps were still skipped."
    elif 2 * initial > numerics.steps_covered:
        status = "fail" if initial > LONG_SEARCH else "inconclusive"
        sentence = f"{initial} of {numerics.steps_covered} steps were skipped before the first update."
    elif share > SKIPPED_FAILS:
        status, sentence = "fail", f"{share:.1%} of the steps were skipped after the loss scale was found."
    elif share > SKIPPED_DOUBTS:
        status, sentence = "inconclusive", f"{share:.1%} of the steps were skipped after the loss scale was found."
    else:
        status = "pass"
        sentence = f"{later} steps were skipped" + (f", and {initial} in search of a loss scale." if initial else ".")
    return [
        Check(
            name="steps skipped", axis=AXIS, status=status, sentence=sentence, measured=share, bound=SKIPPED_FAILS,
            unit="fraction",
        )
    ]  # fmt: skip


def _perplexity(numerics: Numerics) -> list[Check]:
    """A reported perplexity is exp(loss); nothing if none is reported."""
    off, step = numerics.perplexity_off, numerics.perplexity_off_step
    if off is None:
        return []
    agrees = off <= PERPLEXITY_WITHIN
    return [
        Check(
            name="perplexity",
            axis=AXIS,
            status="pass" if agrees else "inconclusive",
            sentence="The perplexity is exp(loss) at every step."
            if agrees
            else f"The perplexity is not exp(loss), but off by {off:.1%} at step {step}: one of them is another.",
            measured=off,
            bound=PERPLEXITY_WITHIN,
            unit="fraction",
        )
    ]


def _one_loss_per_step(numerics: Numerics) -> list[Check]:
    """Two losses for a step in one log are of two ranks or runs; nothing where there is none.

    One or two such steps may be of a program that began again without a word, and did its last steps once more.
    """
    found = numerics.contradictions
    if not found:
        return []
    steps = sorted({each.step for each in found})
    log = found[0].source.rpartition("/")[2] or "The log"
    several = any(len(each.losses) > 1 for each in found)
    what = "gives two losses for" if several else "has lines of another run at"
    clear = len(steps) >= MIN_CONTRADICTED
    why = "several ranks or runs have written into it"
    sentence = f"{log} {what} {show_ranges(ranges(steps))}: {why}{'' if clear else ', or it was started again there'}."
    told = (f"step {each.step}: {' and '.join(map(str, each.losses))}" for each in found if len(each.losses) > several)
    return [
        Check(
            name=ONE_LOSS,
            axis=AXIS,
            status="fail" if clear else "inconclusive",
            sentence=sentence,
            measured=len(steps),
            bound=0,
            unit="steps with two losses",
            evidence=(*islice(told, MAX_EVIDENCE), "what to do: judge the log of each rank or run by itself"),
        )
    ]


def _gradient_finite(numerics: Numerics) -> Check:
    bad = numerics.non_finite_grad_steps
    spikes = numerics.grad_norm_spikes
    early, late = numerics.early_grad_norm, numerics.late_grad_norm
    grown = late / early if early and late else 1.0
    status: Status
    if bad:
        status, sentence = "fail", f"The gradient norm is not finite at {show_ranges(bad)}."
    elif numerics.max_grad_norm == 0 and numerics.num_grad_norms >= MIN_REPEATED:
        status, sentence = "fail", "The gradient norm is 0 at every step: nothing is learnt."
    elif grown > EXPLODED:
        status, sentence = "fail", f"The gradient norm explodes: from {show(early)} to {show(late)}."
    elif grown > EXPLODING:
        status, sentence = "inconclusive", f"The gradient norm grows from {show(early)} to {show(late)}."
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
        status, sentence = "not_applicable", "Only one process reports a loss."
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
