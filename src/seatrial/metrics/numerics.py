"""Measures the course of the loss and of the gradient norm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seatrial.events import REPORTED, Eval
from seatrial.metrics.contradictions import Contradiction
from seatrial.metrics.dependence import Values
from seatrial.metrics.interval import only_finite
from seatrial.metrics.loss_course import (
    DIVERGED,
    TREND_Z,
    Trend,
    find_trend,
    least_before_zero,
    lowest_loss,
    settled_below_the_end,
    thirds,
)
from seatrial.metrics.loss_spikes import find_loss_spikes
from seatrial.metrics.numbering import resumed_after
from seatrial.metrics.record import Ranges, Record, Records, ranges
from seatrial.metrics.skipped_steps import measure_skips, skipped_steps
from seatrial.recording import Steps, shared

FEWEST_EVALS, MOST_EVALS = 6, 100  # five in order may be so by chance, once in 120 times; more tell nothing new
LEAST_EVAL_FALL = 0.001  # of the first evaluation's loss
SPIKE = 10.0  # times the median gradient norm
MOST_EXPONENT = 80.0  # of a loss: exp of more is infinite in float32
ROUNDED_BY = 0.0005  # a log prints three decimals


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


def measure_numerics(records: Records, evals: Sequence[Eval] = ()) -> Numerics:
    """The facts of numerics; numbers that are not finite are looked for in every record."""
    main, everyone = records.main, records.all
    telling = _record_with_losses(records)
    said = [(step.step, step.loss) for step in telling.steps if step.loss is not None]
    losses = [loss for _, loss in said]
    finite = np.array([loss for loss in losses if math.isfinite(loss)])
    evaluated = [e.loss for e in evals if e.loss is not None]
    scored = [e for e in evals if e.shortfall is not None]
    bad = _non_finite_losses(everyone)
    first_bad = min(bad, default=None)
    lowest, (early, late) = lowest_loss(finite), thirds(finite)
    target = main.target_eval_loss
    off, off_at = _perplexity_off(telling)
    trend = find_trend(finite)
    spikes = find_loss_spikes([step for step, loss in said if math.isfinite(loss)], finite)
    return Numerics(
        num_steps=len(main.steps),
        num_losses=len(losses),
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
        **trend._asdict(),
        loss_spikes=ranges(spikes),
        highest_spike=max(spikes.values(), default=None),
        repeated_at_end=next((n for n, loss in enumerate(reversed(losses)) if loss != losses[-1]), len(losses)),
        least_before_zero=least_before_zero(losses) if lowest == 0 else None,
        **measure_skips(telling.steps),
        perplexity_off=off,
        perplexity_off_step=off_at,
        **_gradient_norms(records, unreported=telling.from_other_trainer and trend.trend == "falling"),
        **_agreement(telling, [record for record in everyone if record is not telling]),
        falls_silent=tuple((r.process, n) for r in everyone if (n := _silent_at_end(r))),
        num_evals=len(evaluated),
        non_finite_evals=ranges(sorted({e.step for e in evals if e.loss is not None and not math.isfinite(e.loss)})),
        settled_loss=settled_below_the_end(finite),
        non_finite_others=_non_finite_others(everyone),
        contradictions=tuple(found for record in everyone for found in record.contradictions),
        first_eval_loss=_first(evaluated),
        last_eval_loss=_first(reversed(evaluated)),
        evals_reached_target=target is not None and _came_down_to(target, evaluated),
        evals_fall=_fall_throughout(evaluated),
        num_scores=len(scored),
        last_score=(scored[-1].score or "") if scored else "",
        score_reached=_came_down_to(0.0, [e.shortfall or 0.0 for e in scored]),
        resumed_after=resumed_after(telling, records.restored),
        objective=str(telling.facts.get("objective", "")),
        loss_optional=telling.facts.get("loss_optional") is True,
        untrained=len(losses) == 1 and _is_first_alone(telling),
    )


def _is_first_alone(record: Record) -> bool:
    """True if the only step of a record is the first of its run."""
    return record.steps.numbers == [record.facts.get("counted_from", 0)]


def _first(values: Iterable[float]) -> float | None:
    return next(iter(values), None)


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
    finite = only_finite(norms)
    if unreported and not finite.any():
        known, finite = known & ~np.isfinite(norms), finite[:0]
    spike = SPIKE * float(np.median(finite)) if len(finite) else math.inf
    own = records.main.steps.values("grad_norm")
    early, late = thirds(only_finite(own))
    numbers = np.concatenate([steps.number_column for steps in everyone])
    bad = set(numbers[known & ~np.isfinite(norms)].tolist())
    above = set(numbers[np.isfinite(norms) & (norms > spike)].tolist())
    return {
        "num_grad_norms": int(known.sum()),
        "max_grad_norm": float(finite.max()) if len(finite) else None,
        "early_grad_norm": early,
        "late_grad_norm": late,
        "non_finite_grad_steps": ranges(sorted(bad - skipped)),
        "grad_norm_spikes": ranges(sorted(above)),
    }


def _came_down_to(target: float, values: Sequence[float]) -> bool:
    """True if the last evaluation came down to its target, by its loss or by how much its score falls short."""
    return bool(values) and all(map(math.isfinite, values)) and values[-1] <= target


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
    """(name, first value, steps) of each non-finite figure of this objective alone, in order of first steps."""
    found: dict[str, dict[int, float]] = {}
    for steps in (record.steps for record in everyone):
        names = [name for name in steps.names if name not in REPORTED]
        own = {name: _not_finite(steps, steps.reported(name), steps.reports(name)) for name in names}
        for name, bad in sorted(own.items(), key=lambda each: min(each[1], default=0)):
            if bad:
                found[name] = {**bad, **found.get(name, {})}
    first = sorted(found.items(), key=lambda each: min(each[1]))
    return tuple((name, values[min(values)], ranges(sorted(values))) for name, values in first)


def _record_with_losses(records: Records) -> Record:
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


def _silent_at_end(record: Record) -> int:
    """The number of steps at the end that report no loss, though some did before."""
    told = np.flatnonzero(record.steps.has("loss"))
    return len(record.steps) - 1 - int(told[-1]) if len(told) else 0


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
        our_losses, their_losses = main.steps.values("loss")[ours], record.steps.values("loss")[theirs]
        apart = _relative_differences(our_losses[known], their_losses[known])
        place = int(apart.argmax())
        if worst is None or apart[place] > worst:
            worst, where = float(apart[place]), _at(record.steps, theirs[known][place : place + 1])[0]
    return {
        "num_comparable": num_comparable,
        "num_compared": num_compared,
        "disagreement": worst,
        "disagreement_step": where,
    }


def _has_no_loss_to_report(record: Record) -> bool:
    """In another trainer's pipeline, only the last stage knows the loss; every process of our trainer does."""
    return not record.from_own_trainer and not record.steps.has("loss").any()


def _relative_differences(a: Values, b: Values) -> Values:
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = np.abs(a - b) / np.maximum(np.abs(a), np.abs(b))
    apart = np.where(np.isfinite(a) & np.isfinite(b), apart, np.inf)
    return np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, apart)
