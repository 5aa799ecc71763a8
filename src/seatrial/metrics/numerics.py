"""Measures the course of the loss and of the gradient norm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from seatrial.events import REPORTED, Eval, Step
from seatrial.metrics.dependence import Values
from seatrial.metrics.loss_trend import p_of_fall
from seatrial.metrics.record import Contradiction, Ranges, Record, Records, last_digit, ranges
from seatrial.metrics.skipped_steps import has_collapsed, holds, skipped_steps, skips_of, total_of
from seatrial.metrics.window import lines_apart
from seatrial.recording import Steps, shared

MIN_STEPS_FOR_TREND = 15
FEWEST_EVALS, MOST_EVALS = 6, 100  # five in order may be so by chance, once in 120 times; more tell nothing new
LEAST_EVAL_FALL = 0.001  # of the first evaluation's loss
TREND_Z = 2.5  # about 1 in 160 by chance
# A short run whose losses vary shows no small fall: of several sizes, what the test finds with a probability of 90%.
SHORT, WORTH_SHOWING = 50, 0.05  # losses; of the early loss
POWER_Z = 1.2816
SURELY_LOWER = 0.999  # share of pairs; in the shortest runs, the test needs nearly all
MAD_PER_SIGMA = 0.6745  # of a normal distribution
RISES = 0.4  # of pairs with a lower loss later
CLEAR_RISE = 0.005  # of the loss; less is the noise of rounding
DIVERGED = 1.5  # times the early loss, at the end: no test is needed, however few the steps
LAST_LOSSES = 3  # whose median is the end of a run, next to the last third's
END_RISE, END_NOISE = 0.25, 5.0  # of the loss of the last third; times what losses differ from one to the next
PLAIN_FALL = 1.5  # the median of the first third over that of the last
BURST = 2.0  # nats above the lowest loss before, and `DIVERGED` times that: in runs too short for anything else
FIRST_UPDATES = 3
LOSS_SPIKE = 3.0  # times the early loss: more than the noise of a batch
SPIKE_NOISE = 5.0  # standard deviations of the loss from one step to the next, above where it had come to
MOST_NOISE = 9.0  # times where the loss had come to: no noise explains more
BEFORE_SPIKE = 9  # losses, whose median is where the loss had come to
MEDIAN_ERROR = math.sqrt(math.pi / 2 / BEFORE_SPIKE)  # of their median, next to that of one of them
LEAST_SPIKE = 0.25  # nats above the early loss: next to nothing, three times is little
MOST_ROUNDED_TO_0, DIGITS_ABOVE_0 = 0.02, 100.0  # of the losses; times the last digit that is printed
LEAST_LOSS = 1e-5  # that a cross-entropy in float32 can tell from 0
SPIKE = 10.0  # times the median gradient norm
MOST_EXPONENT = 80.0  # of a loss: exp of more is infinite in float32
ROUNDED_BY = 0.0005  # a log prints three decimals

Trend = Literal["falling", "flat", "rising", "too_short"]


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """The losses and gradient norms of the whole record, and how far the processes agree on the loss.

    The losses are those of process `loss_process`, the lowest that reports any; `num_expected` steps of it should have
    one: all but those that the search for a loss scale skipped at the start. `early_loss` and `late_loss` are the
    medians of the first and the last third; `share_lower` is the share of pairs (a step of the first third, one of the
    last) in which the loss fell: 1 if it fell throughout, 0.5 without a trend; `trend_p` is the probability of such a
    trend by chance, two-sided, of losses that resemble their neighbours as these do. `repeated_at_end` counts the last
    losses that are one and the same number; `least_before_zero` is the smallest positive loss before one that is
    exactly 0, None without one.

    `initial_skips` and `later_skips` count the steps that the loss scale made the optimizer skip, at the start and
    after the first that was not skipped, of `steps_covered`; `nan_steps` those that the framework itself counted as
    NaN; None where the log does not report them. `loss_scale_holds`: it comes down again and again, and up to where it
    was. `loss_scale_collapsed`: it fell to 1 or less, and steps were skipped.
    `perplexity_off` is the largest relative difference between a reported perplexity and exp(loss) beyond rounding.

    `disagreement` is the largest relative difference between two processes' losses at a step; `num_comparable` counts
    the losses that there should be to compare, `num_compared` those that there are; a process of another framework that
    reports no loss at all is not compared. What is not finite counts wherever a process saw it.

    `falls_silent` are the processes that reported losses and at last none, each with the number of those last steps.
    `num_evals` evaluations report a loss, from `first_eval_loss` to `last_eval_loss`; `non_finite_evals` are the steps
    of those whose loss is not finite. `evals_reached_target`: the last one came down to what the run was for.
    `num_scores` evaluations report a score instead, the last one `last_score`; `score_reached`: it came to its target.
    `evals_fall`: they fall from first to last, by more than chance (Mann–Kendall).
    `least_fall` is, of a short run without a trend, the smallest fall that would have shown, as a fraction of the early
    loss, if that is too large to tell anything; then `trend` is "too_short".
    `settled_loss` is where the last third stood, if the very end lies far above it.
    `non_finite_others` are the losses beside the loss, and whatever else an objective reports of its own, that are not
    finite in some process: its name, the value at the first of the steps, and these. `contradictions` are the steps for
    which the log of one process gives two losses. `objective` is what the loss is of, where it is no cross-entropy.
    `loss_optional`: a program may print none at all. `untrained`: the only loss is that of the very first step, which
    is computed before any update. `resumed_after`: the steps before this one are those of an earlier run, whose
    checkpoint this one began with.
    """

    num_steps: int
    num_losses: int
    num_expected: int
    loss_process: int
    non_finite_steps: Ranges
    num_non_finite: int
    first_bad_step: int | None
    first_bad_value: float | None
    first_loss: float | None
    last_loss: float | None
    min_loss: float | None
    max_loss: float | None
    early_loss: float | None
    late_loss: float | None
    trend: Trend
    share_lower: float | None
    trend_p: float | None
    loss_spikes: Ranges
    highest_spike: float | None
    repeated_at_end: int
    least_before_zero: float | None
    initial_skips: int | None
    later_skips: int | None
    steps_covered: int
    nan_steps: int | None
    loss_scale_collapsed: bool
    loss_scale_holds: bool
    perplexity_off: float | None
    perplexity_off_step: int | None
    num_grad_norms: int
    max_grad_norm: float | None
    early_grad_norm: float | None
    late_grad_norm: float | None
    non_finite_grad_steps: Ranges
    grad_norm_spikes: Ranges
    num_comparable: int
    num_compared: int
    disagreement: float | None
    disagreement_step: int | None
    falls_silent: tuple[tuple[int, int], ...] = ()
    num_evals: int = 0
    non_finite_evals: Ranges = ()
    settled_loss: float | None = None
    non_finite_others: tuple[tuple[str, float, Ranges], ...] = ()
    contradictions: tuple[Contradiction, ...] = ()
    resumed_after: int | None = None
    first_eval_loss: float | None = None
    last_eval_loss: float | None = None
    evals_reached_target: bool = False
    evals_fall: bool = False
    num_scores: int = 0
    last_score: str = ""
    score_reached: bool = False
    objective: str = ""
    loss_optional: bool = False
    untrained: bool = False
    least_fall: float | None = None


def measure_numerics(records: Records, evals: Sequence[Eval] = (), *, restored: Sequence[int] = ()) -> Numerics:
    """The facts of numerics; numbers that are not finite are looked for in every record.

    `restored` are the steps of the checkpoints from which the run went on.
    """
    main, everyone = records.main, records.all
    telling = record_with_losses(records)
    losses = [step.loss for step in telling.steps if step.loss is not None]
    finite = np.array([loss for loss in losses if math.isfinite(loss)])
    evaluated = [e.loss for e in evals if e.loss is not None]
    scored = [e for e in evals if e.shortfall is not None]
    bad = _non_finite_losses(everyone)
    first_bad = min(bad, default=None)
    lowest, (early, late) = _lowest(finite), _thirds(finite)
    skips = skips_of(telling)
    off, off_at = _perplexity_off(telling)
    trend, share_lower, trend_p = _trend(finite)
    height = max(LOSS_SPIKE * _early(finite), _early(finite) + LEAST_SPIKE)
    spikes = _spikes(telling, height) or _burst(telling, len(finite))
    least_fall = _least_fall(finite) if trend == "flat" and len(finite) < SHORT else 0.0
    if least_fall > WORTH_SHOWING:
        trend = "too_short"
    return Numerics(
        num_steps=len(main.steps),
        num_losses=len(losses),
        num_expected=len(telling.steps) - skips.lines_without_loss,
        loss_process=telling.process,
        non_finite_steps=ranges(sorted(bad)),
        num_non_finite=len(bad),
        first_bad_step=first_bad,
        first_bad_value=None if first_bad is None else bad[first_bad],
        first_loss=_first(losses),
        last_loss=_first(reversed(losses)),
        min_loss=lowest,
        max_loss=float(finite.max()) if len(finite) else None,
        early_loss=early,
        late_loss=late,
        trend=trend,
        share_lower=share_lower,
        trend_p=trend_p,
        loss_spikes=ranges(spikes),
        highest_spike=max(spikes.values(), default=None),
        repeated_at_end=next((n for n, loss in enumerate(reversed(losses)) if loss != losses[-1]), len(losses)),
        least_before_zero=_least_before_zero(losses) if lowest == 0 else None,
        initial_skips=skips.initial,
        later_skips=skips.later,
        steps_covered=skips.steps_covered,
        nan_steps=total_of(telling, "nan_steps"),
        loss_scale_collapsed=has_collapsed(telling, skips),
        loss_scale_holds=holds(telling),
        perplexity_off=off,
        perplexity_off_step=off_at,
        **_gradient_norms(records, unreported=telling.from_other_trainer and trend == "falling"),
        **_agreement(telling, [record for record in everyone if record is not telling]),
        falls_silent=tuple((r.process, n) for r in everyone if (n := _silent_at_end(r))),
        num_evals=len(evaluated),
        non_finite_evals=ranges(sorted({e.step for e in evals if _is_not_finite(e.loss)})),
        settled_loss=_settled_below_the_end(finite),
        non_finite_others=_non_finite_others(everyone),
        contradictions=tuple(found for record in everyone for found in record.contradictions),
        first_eval_loss=_first(evaluated),
        last_eval_loss=_first(reversed(evaluated)),
        evals_reached_target=_reached_target(main, evaluated),
        evals_fall=_fall_throughout(evaluated),
        num_scores=len(scored),
        last_score=(scored[-1].score or "") if scored else "",
        score_reached=_came_to_its_target([e.shortfall or 0.0 for e in scored]),
        resumed_after=_resumed_after(telling, restored),
        objective=str(telling.started.facts.get("objective", "")) if telling.started else "",
        loss_optional=telling.started is not None and telling.started.facts.get("loss_optional") is True,
        untrained=len(losses) == 1 and _is_first_alone(telling),
        least_fall=least_fall if least_fall > WORTH_SHOWING else None,
    )


def _is_first_alone(record: Record) -> bool:
    """True if the only step of a record is the first of its run."""
    first = record.started.facts.get("counted_from", 0) if record.started else 0
    return len(record.steps) == 1 and record.steps[0].step == first


def _first(values: Iterable[float]) -> float | None:
    return next(iter(values), None)


def _is_not_finite(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)


def _non_finite_losses(everyone: Sequence[Record]) -> dict[int, float]:
    """Step → a loss that is not finite; what counts is the last process that has one there."""
    found: dict[int, float] = {}
    for record in everyone:
        found |= _not_finite(record.steps, record.steps.values("loss"), record.steps.has("loss"))
    return found


def _not_finite(steps: Steps, values: Values, known: NDArray[np.bool_]) -> dict[int, float]:
    """Step → a known value that is not finite."""
    bad = np.flatnonzero(~np.isfinite(values) & known)
    return dict(zip(_at(steps, bad), values[bad].tolist(), strict=True))


def _at(steps: Steps, places: NDArray[Any]) -> list[int]:
    """The numbers of some steps."""
    return steps.some(places).numbers if len(places) else []


def _gradient_norms(records: Records, *, unreported: bool) -> dict[str, Any]:
    """Fields of `Numerics`, of all processes; the early and late norms are of the one that counts.

    `unreported`: norms of 0 alone are not reported, as DeepSpeed's under Megatron, whose loss falls all the same.
    """
    everyone = [record.steps for record in records.all]
    norms = np.concatenate([steps.values("grad_norm") for steps in everyone])
    known = np.concatenate([steps.has("grad_norm") for steps in everyone])
    # A gradient that overflowed is why the optimizer skipped the step: how often it may is a check of its own.
    skipped = {
        step
        for steps in everyone
        for step, count in zip(steps.numbers, skipped_steps(steps) or (), strict=False)
        if count
    }
    finite = norms[np.isfinite(norms)]
    if unreported and not finite.any():
        known, finite = known & ~np.isfinite(norms), finite[:0]
    spike = SPIKE * float(np.median(finite)) if len(finite) else math.inf
    own = records.main.steps.values("grad_norm")
    early, late = _thirds(own[np.isfinite(own)])
    bad, above = set[int](), set[int]()
    for steps in everyone:
        values = steps.values("grad_norm")
        bad |= _not_finite(steps, values, steps.has("grad_norm")).keys()
        above |= set(_at(steps, np.flatnonzero(np.isfinite(values) & (values > spike))))
    return {
        "num_grad_norms": int(known.sum()),
        "max_grad_norm": float(finite.max()) if len(finite) else None,
        "early_grad_norm": early,
        "late_grad_norm": late,
        "non_finite_grad_steps": ranges(sorted(bad - skipped)),
        "grad_norm_spikes": ranges(sorted(above)),
    }


def _reached_target(own: Record, losses: Sequence[float]) -> bool:
    """True if the last evaluation came down to the target; False where that is not known."""
    target = own.target_eval_loss
    return bool(losses) and target is not None and all(map(math.isfinite, losses)) and losses[-1] <= target


def _came_to_its_target(shortfalls: Sequence[float]) -> bool:
    """The same of scores."""
    return bool(shortfalls) and all(map(math.isfinite, shortfalls)) and shortfalls[-1] <= 0


def _fall_throughout(losses: Sequence[float]) -> bool:
    """True if at least six evaluations fall over the run, by the trend test of Mann and Kendall, and stay down.

    A fall of less than `LEAST_EVAL_FALL` shows no learning, and a loss of exactly 0 is none.
    """
    some = losses[:: max(1, len(losses) // MOST_EVALS)]
    count = len(some)
    if count < FEWEST_EVALS or not all(map(math.isfinite, losses)):
        return False
    score = sum((before > after) - (before < after) for before, after in combinations(some, 2))
    deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    stays = losses[-1] < (1 - LEAST_EVAL_FALL) * losses[0] and losses[-1] < DIVERGED * min(losses)
    return (score - 1) / deviation > TREND_Z and stays and min(losses) > 0


def _non_finite_others(everyone: Sequence[Record]) -> tuple[tuple[str, float, Ranges], ...]:
    """What is not finite of the figures that only this objective has, the first to become so first."""
    found: dict[str, dict[int, float]] = {}
    for steps in (record.steps for record in everyone):
        names = [name for name in steps.names if name not in REPORTED]
        own = {name: _not_finite(steps, steps.reported(name), steps.reports(name)) for name in names}
        for name, bad in sorted(own.items(), key=lambda each: min(each[1], default=0)):
            if bad:
                found[name] = {**bad, **found.get(name, {})}
    first = sorted(found.items(), key=lambda each: min(each[1]))
    return tuple((name, values[min(values)], ranges(sorted(values))) for name, values in first)


def record_with_losses(records: Records) -> Record:
    """The record of the lowest process that reports a loss: in a pipeline, the first stage has none."""
    return next((r for r in records.by_process if r.steps.has("loss").any()), records.main)


def _perplexity_off(record: Record) -> tuple[float | None, int | None]:
    """(the largest relative difference between a perplexity and exp(loss), its step), less what rounding explains."""
    worst, where = None, None
    for step in record.steps:
        printed = step.reported.get("perplexity")
        if printed is None or step.loss is None or not (math.isfinite(printed) and 0 <= step.loss < MOST_EXPONENT):
            continue
        meant = math.exp(step.loss)
        off = max(0.0, abs(printed / meant - 1) - ROUNDED_BY - ROUNDED_BY / meant)
        if worst is None or off > worst:
            worst, where = off, step.step
    return worst, where


def _spikes(record: Record, high: float) -> dict[int, float]:
    """Steps with a finite loss above that, and this loss; not those from which a run falls at the start.

    A noisy loss crosses any height more than once on its way down: it is a spike only where the loss had come to far
    less before, by more than its noise.
    """
    found = [step for step in record.steps if step.loss is not None and math.isfinite(step.loss)]
    above = [step.loss is not None and step.loss > high > 0 for step in found]
    if True not in above:
        return {}
    start = above.index(False) if False in above else len(above)
    start = max(start, _thrown_off(found, above))
    losses = np.array([step.loss for step in found])
    before = _lowest_before(losses)
    # A single one has to stand out of the noise; of several in a row, it is enough that their median does.
    lasts = _middles(losses) > np.maximum(high, _noise(losses, MEDIAN_ERROR) * before)
    risen = (losses > _noise(losses) * before) | (lasts & (losses > DIVERGED * before))
    places = [place for place in range(start, len(found)) if above[place] and risen[place]]
    return {found[place].step: float(losses[place]) for place in places}


def _middles(losses: Values) -> Values:
    """The median of the losses around each."""
    padded = np.pad(losses, BEFORE_SPIKE // 2, mode="edge")
    middles: Values = np.median(sliding_window_view(padded, BEFORE_SPIKE), axis=1)
    return middles


def _noise(losses: Values, error: float = 1.0) -> float:
    """How many times as high as before a loss may be without being a spike: at least `DIVERGED`.

    By what losses differ from one to the next, as a factor, which neither a fall nor a few spikes change. `error` is
    the standard error of what is compared, next to that of one loss.
    """
    known = losses[losses > 0]
    if len(known) < MIN_STEPS_FOR_TREND:
        return DIVERGED
    sigma = float(np.median(np.abs(np.diff(np.log(known))))) / MAD_PER_SIGMA / math.sqrt(2)
    return max(DIVERGED, math.exp(min(SPIKE_NOISE * error * sigma, math.log(MOST_NOISE))))


def _lowest_before(losses: Values) -> Values:
    """The lowest that the loss had come to before each, by the medians of a few in a row once there are so many."""
    lowest = np.minimum.accumulate(losses)
    if len(losses) > BEFORE_SPIKE:
        settled = np.median(sliding_window_view(losses, BEFORE_SPIKE), axis=1)
        lowest[BEFORE_SPIKE - 1 :] = np.minimum.accumulate(settled)
    before: Values = np.concatenate([lowest[:1], lowest[:-1]])
    return before


def _thrown_off(found: Sequence[Step], above: Sequence[bool]) -> int:
    """How many losses are of a model that knows nothing yet and that its first updates throw off; 0 if they do not.

    They do if its loss shoots up there, and comes back at once to less than it began with.
    """
    up = above.index(True) if True in above else len(above)
    if False not in above[up:] or found[up].step - found[0].step >= FIRST_UPDATES:
        return 0
    back = above.index(False, up)
    return back if (found[back].loss or 0.0) < (found[0].loss or 0.0) else 0


def _burst(record: Record, count: int) -> dict[int, float]:
    """The steps of a short record whose loss is far above a lower one before: `BURST` is seven times as perplexed."""
    bursts: dict[int, float] = {}
    lowest = math.inf
    for step in record.steps if count < 2 * MIN_STEPS_FOR_TREND else ():
        if step.loss is not None and math.isfinite(step.loss):
            if step.loss > max(DIVERGED * lowest, lowest + BURST):
                bursts[step.step] = step.loss
            lowest = min(lowest, step.loss)
    return bursts


def _lowest(losses: Values) -> float | None:
    """The lowest loss; not a 0 here and there among losses of a few of the last digits that are printed."""
    zeros = losses == 0
    others = losses[~zeros]
    if not zeros.any() or not len(others) or zeros.mean() > MOST_ROUNDED_TO_0 or zeros[-LAST_LOSSES:].any():
        return float(losses.min()) if len(losses) else None
    behind = losses[int(np.argmax(zeros)) :]
    digit = max(map(last_digit, others[-LAST_LOSSES:].tolist()))
    is_rounded = float(np.median(behind[behind != 0])) <= DIGITS_ABOVE_0 * digit
    return float((others if is_rounded else losses).min())


def _least_before_zero(losses: Sequence[float]) -> float | None:
    zero = next((place for place, loss in enumerate(losses) if loss == 0), None)
    return None if zero is None else min((loss for loss in losses[:zero] if loss > 0), default=None)


def _first_step(record: Record) -> int:
    """The first step of a record; 0 without one."""
    return record.steps[0].step if len(record.steps) else 0


def _resumed_after(record: Record, restored: Sequence[int]) -> int | None:
    """The last step before a record that begins with a checkpoint; None where it does not, or begins at its start.

    Programs name a checkpoint by the last step in it, or by the next one; a step of 0 may stand for an unknown one.
    """
    first = _first_step(record)
    known = max((step for step in restored if 0 < step < first), default=None)
    if known is not None or not {0, first} & {*restored} or not first:
        return known
    return first - 1 if first > lines_apart(record.steps.numbers) else None


def _thirds(values: NDArray[np.float64]) -> tuple[float | None, float | None]:
    """The medians of the first and the last third."""
    third = len(values) // 3
    return (float(np.median(values[:third])), float(np.median(values[-third:]))) if third else (None, None)


def _early(losses: NDArray[np.float64]) -> float:
    """The losses of the first third, which later ones are compared with: their median; 0 without any.

    At least `LEAST_LOSS`: of a memorised batch, losses are rounding, and one of 1e-7 is not far above one of 3e-8.
    """
    early = float(np.median(losses[: max(1, len(losses) // 3)])) if len(losses) else 0.0
    return max(early, LEAST_LOSS) if early > 0 else 0.0


def _diverged(losses: NDArray[np.float64]) -> bool:
    """True if the end lies far above the beginning: by the last third, by the last few losses, or by the very last."""
    early = _early(losses)
    if early <= 0:
        return False
    ends = (np.median(losses[-n:]) for n in (LAST_LOSSES, max(LAST_LOSSES, len(losses) // 3)))
    return any(end > DIVERGED * early for end in ends) or bool(losses[-1] > LOSS_SPIKE * early)


def _settled_below_the_end(losses: NDArray[np.float64]) -> float | None:
    """Where the last third stood, if the last few losses lie above it by a quarter, or the very last is twice that.

    Both have to be far more than the losses differ from one to the next.
    """
    if len(losses) < MIN_STEPS_FOR_TREND:
        return None
    before = losses[-(len(losses) // 3) : -LAST_LOSSES] if len(losses) >= 4 * LAST_LOSSES else losses[:0]
    if not len(before):
        return None
    settled, noise = (
        float(np.median(before)),
        float(np.median(np.abs(np.diff(losses[len(losses) // 3 : -LAST_LOSSES])))),
    )
    rise, jump = float(np.median(losses[-LAST_LOSSES:])) - settled, float(losses[-1]) - settled
    is_above = rise > max(END_RISE * settled, END_NOISE * noise) or jump > max(settled, 2 * END_NOISE * noise)
    return settled if settled > 0 and is_above else None


def _silent_at_end(record: Record) -> int:
    """How many of the last steps report no loss, though some did before."""
    told = np.flatnonzero(record.steps.has("loss"))
    return len(record.steps) - 1 - int(told[-1]) if len(told) else 0


def _trend(losses: NDArray[np.float64]) -> tuple[Trend, float | None, float | None]:
    """(trend, `share_lower`, `trend_p`): the first third against the last one.

    By the rank-sum test (Mann–Whitney), which no single outlier can sway; it takes the losses to be independent, so
    that `p_of_fall` has to agree, unless all of the last third lie below the first by more than any noise.
    """
    third = len(losses) // 3
    early, late = np.sort(losses[:third]), losses[len(losses) - third :]
    before, after = (float(np.median(part)) if third else 0.0 for part in (early, late))
    diverged = _diverged(losses)
    if len(losses) < MIN_STEPS_FOR_TREND:
        return "rising" if diverged else "too_short", None, None
    above = third - np.searchsorted(early, late, side="right")  # early losses above each late one
    equal = third - above - np.searchsorted(early, late, side="left")
    share = float(np.mean(above + equal / 2) / third)
    z = (share - 0.5) / math.sqrt((2 * third + 1) / (12 * third * third))
    p = math.erfc(abs(z) / math.sqrt(2))
    if not (share == 1 and before > PLAIN_FALL * after > 0):  # such as a burst of the first steps that is overcome
        p = max(p, p_of_fall(losses if z > 0 else -losses))
    is_clear = abs(z) > TREND_Z and p < math.erfc(TREND_Z / math.sqrt(2))
    if z > 0 and is_clear and not diverged:
        return "falling", share, p
    # Of very many losses, the least rise is no chance.
    rises = z < 0 and is_clear and share < RISES and after - before > CLEAR_RISE * abs(before)
    return "rising" if rises or diverged else "flat", share, p


def _least_fall(losses: NDArray[np.float64]) -> float:
    """The smallest fall from the first to the last third that `_trend` finds nine times out of ten, of the early loss.

    By how much the losses differ from one to the next, which a fall over the whole run hardly changes.
    """
    third, steps = len(losses) // 3, np.diff(losses)
    if not third:
        return math.inf
    noise = float(np.median(np.abs(steps - np.median(steps)))) / MAD_PER_SIGMA / math.sqrt(2)
    early = _early(losses)
    # The share of a sample may lie below that of the losses themselves.
    needed = 0.5 + TREND_Z * math.sqrt((2 * third + 1) / (12 * third * third))
    shares = np.linspace(min(needed, SURELY_LOWER), SURELY_LOWER, 200)
    enough = shares - POWER_Z * np.sqrt(shares * (1 - shares) / third) >= needed
    share = float(shares[enough.argmax()]) if enough.any() else SURELY_LOWER
    least = math.sqrt(2) * NormalDist().inv_cdf(share) * noise
    return least / early if early > 0 else 0.0


def _agreement(main: Record, others: Sequence[Record]) -> dict[str, Any]:
    """Fields of `Numerics`: how far the losses of the other processes are those of this one."""
    num_comparable = num_compared = 0
    worst, where = None, None
    for record in others:
        if _has_no_loss_to_report(record):
            continue
        ours, theirs = shared(main.steps.values("step"), record.steps.values("step"))
        known = main.steps.has("loss")[ours] & record.steps.has("loss")[theirs]
        num_comparable, num_compared = num_comparable + len(ours), num_compared + int(known.sum())
        if not known.any():
            continue
        apart = _relative_differences(
            main.steps.values("loss")[ours[known]], record.steps.values("loss")[theirs[known]]
        )
        place = int(apart.argmax())
        if worst is None or apart[place] > worst:
            worst, where = float(apart[place]), _at(record.steps, theirs[known][place : place + 1])[0]
    disagreement = {"disagreement": worst, "disagreement_step": where}
    return {"num_comparable": num_comparable, "num_compared": num_compared, **disagreement}


def _has_no_loss_to_report(record: Record) -> bool:
    """In another trainer's pipeline, only the last stage knows the loss; every process of our trainer does."""
    of_another = record.started is None or record.from_other_trainer
    return of_another and not record.steps.has("loss").any()


def _relative_differences(a: Values, b: Values) -> Values:
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = np.abs(a - b) / np.maximum(np.abs(a), np.abs(b))
    apart = np.where(np.isfinite(a) & np.isfinite(b), apart, np.inf)
    return np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, apart)
