"""Judges whether the loss can be believed."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any

from seatrial.metrics import Numerics, ranges, show_ranges
from seatrial.spec import RunSpec
from seatrial.verdict.check import Answer, Check, Status, show, show_beside

ONE_LOSS = "one loss per step"  # the name of a check
MIN_REPORTED = 0.99
MIN_REPEATED = 10  # losses in a row that are the same to the last digit
MIN_ZEROS = 3  # gradient norms of exactly 0, and no other
AGREEMENT = 1e-4  # relative; a log prints about four digits of a loss
FROM_CHANCE = (0.9, 1.25)  # times ln(vocabulary): an untrained model, whose logits have a spread of their own
RISE_P = 1e-3  # of a rise by chance that is less than clear
SLIGHT_FALL = 1e-3  # of the loss, between the medians of the first and the last third: clear, but nothing is learnt
OF_TWO = math.log(2)  # the loss of a choice between two, by a model that knows nothing: DPO's, a reward model's
BEGINS_AT, STAYS_AT = 0.05, 0.01  # of that: the first loss, and the medians of the first and the last third
MEMORISED = 0.05  # of the early loss: the last one before 0, if it came down step by step
SKIPPED_DOUBTS, SKIPPED_FAILS = 0.01, 0.05  # of the steps, after the loss scale was found
SKIPPED_IN_TURN = 0.0225  # a scale that is doubled every 100 steps, and halved at the second overflow
LONG_SEARCH = 40  # steps: a loss scale is halved in each, from 2**32 at the most
PERPLEXITY_WITHIN = 0.02
MIN_CONTRADICTED = 3  # steps with two losses
MAX_EVIDENCE = 10  # lines
ENDS_ABOVE = 1.5  # times the very first loss, in the last third
EXPLODING, EXPLODED = 10.0, 100.0  # times the early gradient norm, in the last third


def judge_numerics(numerics: Numerics, spec: RunSpec | None) -> list[Check]:
    """The checks of numerics; without a single step, each of them is inconclusive.

    `spec` says what was learnt: a model may memorise a synthetic batch, but no text. Without one, neither is so.
    """
    share = numerics.num_losses / max(1, numerics.num_expected)
    spikes = show_ranges(numerics.grad_norm_spikes)
    checks = [
        _check(
            "loss finite", _is_finite(numerics), measured=numerics.num_non_finite, bound=0, unit="non-finite steps",
            evidence=_not_finite(numerics),
        ),
        _check(
            "loss reported", _is_reported(numerics, share), measured=share, bound=MIN_REPORTED, unit="fraction"
        ),
        _loss_trend(numerics, spec),
        *_steps_skipped(numerics),
        *_perplexity(numerics),
        *_one_loss_per_step(numerics),
        _check(
            "gradient finite", _gradients_are_finite(numerics),
            evidence=(f"more than ten times the median: {spikes}",) if numerics.grad_norm_spikes else (),
        ),
        _check(
            "processes agree", _processes_agree(numerics), measured=numerics.disagreement, bound=AGREEMENT,
            unit="relative difference",
        ),
    ]  # fmt: skip
    if numerics.num_steps or numerics.non_finite_evals:
        return checks
    return [_check(check.name, ("inconclusive", "There are no steps to judge.")) for check in checks]


def _check(name: str, answer: Answer, **details: Any) -> Check:
    return Check(name=name, axis="numerics", status=answer[0], sentence=answer[1], **details)


def _not_finite(numerics: Numerics) -> tuple[str, ...]:
    """The steps whose loss is not finite, or the other figures that are not."""
    if numerics.num_non_finite:
        return (show_ranges(numerics.non_finite_steps),) if numerics.num_non_finite > 1 else ()
    others = numerics.non_finite_others[1 : MAX_EVIDENCE + 1]
    return tuple(f"{name}: {value} at {show_ranges(steps)}" for name, value, steps in others)


def _is_finite(numerics: Numerics) -> Answer:
    step, count = numerics.first_bad_step, numerics.num_non_finite
    if step is not None:
        in_all = f" and at {count} steps in all" if count > 1 else ""
        return "fail", f"The loss is {numerics.first_bad_value} at step {step}{in_all}."
    if numerics.non_finite_others:
        name, first, steps = numerics.non_finite_others[0]
        return "fail", f"{name} is {first} at {show_ranges(steps)}."
    if numerics.non_finite_evals:
        return "fail", f"The evaluation loss after {show_ranges(numerics.non_finite_evals)} is not finite."
    if numerics.num_losses:
        return "pass", "The loss is finite at every step."
    if numerics.num_evals:
        return "pass", f"The loss is finite in all {numerics.num_evals} evaluations."
    if numerics.score_reached:
        return "not_applicable", "No step reports a loss."
    return "inconclusive", "No step reports a loss."


def _is_reported(numerics: Numerics, share: float) -> Answer:
    """Megatron omits the loss from its line when it is NaN, so silence is no comfort."""
    if not numerics.num_losses and numerics.num_evals:  # as in many MLPerf logs
        times = f"{numerics.num_evals} evaluations do" if numerics.num_evals > 1 else "one evaluation does"
        # Only of a program that may print no loss of its steps, evaluations that fall are all there is to see.
        fall = numerics.evals_fall and numerics.loss_optional
        reached = numerics.evals_reached_target or numerics.score_reached
        status: Status = "pass" if reached or fall else "inconclusive"
        return status, f"No step reports a loss; {times}{', and fall' if fall else ''}."
    if not numerics.num_losses and numerics.num_scores:
        scored: Status = "pass" if numerics.score_reached else "inconclusive"
        return scored, f"No step reports a loss; the evaluations report a score, last {numerics.last_score}."
    if not numerics.num_expected and 0 < (numerics.initial_skips or 0) <= LONG_SEARCH:
        return "inconclusive", "No process reports a loss: all steps so far were skipped in search of a loss scale."
    if not numerics.num_losses and numerics.loss_optional:
        return "inconclusive", "No process reports a loss; the program that wrote the log may print none."
    if not numerics.num_losses:
        return "fail", "No process reports a loss."
    enough = share >= MIN_REPORTED
    sentence = f"{numerics.num_losses} of {numerics.num_expected} steps report a loss."
    if skipped := max(0, numerics.num_steps - numerics.num_expected):
        sentence += f" Before them, {skipped} were skipped in search of a loss scale."
    if not numerics.falls_silent:
        return "pass" if enough else "fail", sentence
    process, last = max(numerics.falls_silent, key=lambda found: found[1])
    times = f"last {last} steps" if last > 1 else "last step"
    sentence += f" Rank {process} reports none for its {times}; some programs print none when it is NaN."
    return "fail" if last > 1 or not enough else "inconclusive", sentence


# What became of the loss → the answer on real data, on synthetic (the same batch in every step), and on unknown data.
_TREND: dict[str, tuple[Status, Status, Status]] = {
    **dict.fromkeys(("negative", "lost", "rising"), ("fail", "fail", "fail")),
    **dict.fromkeys(("stuck", "zero"), ("fail", "inconclusive", "inconclusive")),
    "memorised": ("fail", "not_applicable", "inconclusive"),
    **dict.fromkeys(
        ("rises from chance", "ends high", "above its start", "spiked", "untrained"),
        ("inconclusive", "inconclusive", "inconclusive"),
    ),
    **dict.fromkeys(("nothing", "slight", "of two", "flat"), ("inconclusive", "not_applicable", "inconclusive")),
    **dict.fromkeys(("falling", "evaluated"), ("pass", "pass", "pass")),
    "level": ("pass", "not_applicable", "pass"),
    "too_short": ("not_applicable", "not_applicable", "not_applicable"),
}
# By training losses; where an evaluation reached its target, it decides.
_UNDECIDED = ("spiked", "flat", "of two", "too_short")
_KINDS = ("real", "synthetic", "unknown")


def _loss_trend(numerics: Numerics, spec: RunSpec | None) -> Check:
    if numerics.objective:
        why = f"The loss is the {numerics.objective}'s: it may be negative, and need not fall."
        return _check("loss trend", ("not_applicable", why))
    kind = spec.data.kind if spec else "unknown"
    course = trained = _course(numerics, synthetic=kind == "synthetic")
    chance = _loss_by_chance(spec)
    if course in ("flat", "slight") and chance and _rises_from(chance, numerics):
        course = trained = "rises from chance"
    if course == "flat" and numerics.resumed_after:
        course = trained = "level"  # most of what there was to learn may have been learnt before
    if course in _UNDECIDED and numerics.evals_reached_target:
        course = "evaluated"
    sentences = _courses_told(numerics, kind, chance)
    share, p = numerics.share_lower, numerics.trend_p
    evidence = [] if share is None else [f"later losses are lower in {share:.0%} of pairs"]
    if evidence and p is not None:
        evidence = [f"{evidence[0]}; p = {p:.1g} by chance"]
    if trained != course and numerics.num_losses:
        evidence.append(sentences[trained])
    return _check(
        "loss trend",
        (_TREND[course][_KINDS.index(kind if kind in _KINDS else "real")], sentences[course]),
        measured=numerics.late_loss,
        bound=numerics.early_loss,
        unit="median of last, of first third",
        window="first against last third, rank-sum test",
        evidence=tuple(evidence),
    )


def _courses_told(numerics: Numerics, kind: str, chance: float | None) -> dict[str, str]:
    """Course of the loss → the sentence on it."""
    losses, last = numerics.num_losses, show(numerics.last_loss)
    evaluated = show(numerics.last_eval_loss)
    flat = ", as it may on synthetic data" if kind == "synthetic" else ": it neither falls nor rises clearly"
    least = numerics.least_fall
    hidden = "" if least is None else f": they vary so much that a fall of less than {least:.0%} would not show"
    came_down = f"The evaluation loss reached its target at {evaluated}."
    if numerics.num_evals > 1:
        came_down = "The evaluation loss fell from {} to {}, its target.".format(
            *show_beside(numerics.first_eval_loss, numerics.last_eval_loss)
        )
    return {
        "negative": f"The loss falls to {show(numerics.min_loss)}; a cross-entropy is never negative.",
        "lost": f"All {losses} losses are exactly 0; no cross-entropy starts there.",
        "nothing": "The loss is 0: memorised, as it may be on synthetic data, or not reported.",
        "memorised": "The loss falls to 0, too small for the digits printed: the batch is memorised.",
        "stuck": f"The last {numerics.repeated_at_end} losses are {last}: nothing is learnt, or it is not the loss.",
        "rising": f"The loss rises; it ends at {last}.",
        "rises from chance": f"The loss rises from {show(numerics.early_loss)} to {show(numerics.late_loss)}, where it "
        f"should fall: ln(vocabulary) is {show(chance)}, the loss of a model that knows nothing.",
        "zero": "The loss becomes exactly 0, which no cross-entropy is: lost, or too small for the digits printed.",
        "ends high": f"The loss ends at {last}, far above the {show(numerics.settled_loss)} that it had reached.",
        "above its start": f"The loss falls to {show(numerics.late_loss)}, but began at {show(numerics.first_loss)}.",
        "spiked": f"The loss spikes to {show(numerics.highest_spike)} at {show_ranges(numerics.loss_spikes)}.",
        "falling": "The loss falls.",
        "untrained": f"The only loss, {last}, is that of the first step, before any update: it does not show training.",
        "slight": f"The loss falls by less than {SLIGHT_FALL:.1%}: hardly anything is learnt.",
        "of two": f"The loss stays at {show(numerics.late_loss)}; ln 2, {OF_TWO:.4f}, is that of guessing between two: "
        "if it is such a loss, nothing is learnt.",
        "flat": f"The loss stays flat{flat}.",
        "level": f"The run was resumed after step {numerics.resumed_after}, and the loss stays level.",
        "evaluated": came_down,
        "too_short": f"{losses} losses are too few for a trend{hidden}.",
    }


def _course(numerics: Numerics, *, synthetic: bool) -> str:
    """The course of the loss; of several that apply, the worst."""
    repeated, losses = numerics.repeated_at_end, numerics.num_losses
    lowest, highest = numerics.min_loss or 0.0, numerics.max_loss or 0.0
    if lowest < 0:
        return "negative"
    if numerics.max_loss == 0:
        return "lost" if losses >= MIN_REPEATED else "nothing"
    if _is_memorised(numerics):
        return "memorised"
    if numerics.untrained and not numerics.num_evals:
        return "untrained"
    if repeated >= MIN_REPEATED and repeated >= (losses if synthetic else losses // 2):
        return "stuck"
    if numerics.trend == "rising":
        return "rising"
    if numerics.min_loss == 0 < highest:
        return "zero"
    if numerics.settled_loss is not None:
        return "ends high"
    if _ends_above_its_start(numerics):
        return "above its start"
    if numerics.loss_spikes:
        return "spiked"
    if falls_slightly(numerics):
        return "slight"
    return "of two" if _guesses_between_two(numerics) else numerics.trend


def _guesses_between_two(numerics: Numerics) -> bool:
    """True if the loss begins and stays at ln 2, however clearly it falls a little.

    So does a preference or a binary loss of a model that learns nothing, and hardly ever another one.
    """
    first, early, late = numerics.first_loss, numerics.early_loss, numerics.late_loss
    if first is None or early is None or late is None or numerics.trend not in ("falling", "flat"):
        return False
    at_first, at_last = abs(first / OF_TWO - 1), max(abs(early / OF_TWO - 1), abs(late / OF_TWO - 1))
    return at_first <= BEGINS_AT and at_last <= STAYS_AT


def _ends_above_its_start(numerics: Numerics) -> bool:
    """True if the loss shot up at once and only fell back: below its first third, but above its start."""
    first, late = numerics.first_loss, numerics.late_loss
    return first is not None and late is not None and 0 < ENDS_ABOVE * first < late


def _loss_by_chance(spec: RunSpec | None) -> float | None:
    """ln(vocabulary), the cross-entropy of guessing; None where the loss is another, or the model is not known."""
    if spec is None or spec.objective.kind != "pretraining" or spec.model.vocab_size < 2:
        return None
    return math.log(spec.model.vocab_size)


def _rises_from(chance: float, numerics: Numerics) -> bool:
    """True if the loss began at that of an untrained model and rose: too little to be called a rise anywhere else."""
    early, late, p = numerics.early_loss, numerics.late_loss, numerics.trend_p
    if early is None or late is None or p is None:
        return False
    least, most = (times * chance for times in FROM_CHANCE)
    return least <= early <= most and late - early > SLIGHT_FALL * early and p < RISE_P


def falls_slightly(numerics: Numerics) -> bool:
    """True if the loss falls, but by so little that the run shows no learning: DPO at ln 2 with too low a rate."""
    early, late, first = numerics.early_loss, numerics.late_loss, numerics.first_loss
    if early is None or late is None or (first is not None and late < MEMORISED * first):  # it fell at the very start
        return False
    return numerics.trend == "falling" and early - late < SLIGHT_FALL * early


def _is_memorised(numerics: Numerics) -> bool:
    """True if the loss came down to 0 step by step, rather than at once."""
    least, early = numerics.least_before_zero, numerics.early_loss or numerics.first_loss
    if least is None or early is None or numerics.trend == "rising" or numerics.loss_spikes:
        return False
    return least <= MEMORISED * max(early, numerics.first_loss or 0.0)


def _steps_skipped(numerics: Numerics) -> list[Check]:
    """Steps without an update: normal while a loss scale is searched for, not afterwards. Nothing if none is known."""
    known = (numerics.initial_skips, numerics.later_skips, numerics.nan_steps)
    if all(count is None for count in known) and not numerics.loss_scale_collapsed:
        return []
    share = (numerics.later_skips or 0) / max(1, numerics.steps_covered)
    answer = _skips_told(numerics, share)
    return [_check("steps skipped", answer, measured=share, bound=SKIPPED_FAILS, unit="fraction")]


def _skips_told(numerics: Numerics, share: float) -> Answer:
    initial, later, covered = numerics.initial_skips or 0, numerics.later_skips or 0, numerics.steps_covered
    if numerics.nan_steps:
        return "fail", f"The framework counts {numerics.nan_steps} steps as NaN."
    if numerics.loss_scale_collapsed:
        return "fail", "The loss scale fell to 1 or less, and steps were still skipped."
    if 2 * initial > covered:
        status: Status = "fail" if initial > LONG_SEARCH else "inconclusive"
        return status, f"{initial} of {covered} steps were skipped before the first update."
    if later > 1 and share > (SKIPPED_IN_TURN if numerics.loss_scale_holds else SKIPPED_DOUBTS):
        many = f"{share:.1%} of the steps were skipped after the loss scale was found."
        return "fail" if share > SKIPPED_FAILS else "inconclusive", many
    search = f", and {initial} in search of a loss scale" if initial else ""
    return "pass", f"{later} {'step was' if later == 1 else 'steps were'} skipped{search}."


def _perplexity(numerics: Numerics) -> list[Check]:
    """A reported perplexity is exp(loss); nothing if none is reported."""
    off, step = numerics.perplexity_off, numerics.perplexity_off_step
    if off is None:
        return []
    answer: Answer = ("pass", "The perplexity is exp(loss) at every step.")
    if off > PERPLEXITY_WITHIN:
        answer = ("inconclusive", f"The perplexity differs from exp(loss) by {off:.1%} at step {step}: one is wrong.")
    return [_check("perplexity", answer, measured=off, bound=PERPLEXITY_WITHIN, unit="fraction")]


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
    what = f"{log} {'gives two losses for' if several else 'has lines of another run at'} {show_ranges(ranges(steps))}"
    clear = len(steps) >= MIN_CONTRADICTED
    why = f"several ranks or runs have written to it{'' if clear else ', or it was restarted there'}"
    shown_steps = (
        f"step {each.step}: {' and '.join(map(str, each.losses))}" for each in found if len(each.losses) > several
    )
    return [
        _check(
            ONE_LOSS, ("fail" if clear else "inconclusive", f"{what}: {why}."), measured=len(steps), bound=0,
            unit="steps with two losses",
            evidence=(*islice(shown_steps, MAX_EVIDENCE), "what to do: judge the log of each rank or run by itself"),
        )
    ]  # fmt: skip


def _gradients_are_finite(numerics: Numerics) -> Answer:
    early, late = numerics.early_grad_norm, numerics.late_grad_norm
    before, after = show_beside(early, late)
    grown = late / early if early and late else 1.0
    if numerics.non_finite_grad_steps:
        return "fail", f"The gradient norm is not finite at {show_ranges(numerics.non_finite_grad_steps)}."
    if numerics.max_grad_norm == 0 and numerics.num_grad_norms >= MIN_ZEROS:
        many: Status = "fail" if numerics.num_grad_norms >= MIN_REPEATED else "inconclusive"
        return many, "The gradient norm is 0 at every step: nothing is learnt."
    if grown > EXPLODED:
        return "fail", f"The gradient norm explodes: from {before} to {after}."
    if grown > EXPLODING:
        return "inconclusive", f"The gradient norm grows from {before} to {after}."
    if numerics.num_grad_norms:
        return "pass", "The gradient norm is finite at every step."
    return "not_applicable", "The record has no gradient norm."


def _processes_agree(numerics: Numerics) -> Answer:
    worst, compared, comparable = numerics.disagreement, numerics.num_compared, numerics.num_comparable
    if worst is not None and worst > AGREEMENT:
        size = "one is not finite" if math.isinf(worst) else f"they differ by {show(worst)} of it"
        return "fail", f"The processes disagree on the loss: {size} at step {numerics.disagreement_step}."
    if not comparable:
        return "not_applicable", "Only one process reports a loss."
    if compared < MIN_REPORTED * comparable:
        return "inconclusive", f"Only {compared} of {comparable} losses can be compared between processes."
    return "pass", f"All processes report the same loss, in {compared} comparisons."
