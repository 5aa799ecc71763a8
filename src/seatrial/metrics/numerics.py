"""What became of the loss and of the gradient norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from seatrial.metrics.record import Ranges, Record, ranges

MIN_STEPS_FOR_TREND = 15
TREND_Z = 2.5  # about 1 in 160 by chance
CLEAR_RISE = 0.005  # of the loss; less is the noise of rounding
DIVERGED = 1.5  # times the early loss, at the end: no test is needed, however few the steps
LAST_LOSSES = 3  # whose median is the end of a run, next to the last third's
LOSS_SPIKE = 3.0  # times the early loss: more than the noise of a batch
SPIKE = 10.0  # times the median gradient norm

Trend = Literal["falling", "flat", "rising", "too_short"]


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """The losses and gradient norms of the whole record, and how far the processes agree on the loss.

    `early_loss` and `late_loss` are the medians of the first and the last third; `share_lower` is the share of pairs
    (a step of the first third, one of the last) in which the loss fell: 1 if it fell throughout, 0.5 without a trend.
    `repeated_at_end` counts the last losses that are one and the same number.
    `disagreement` is the largest relative difference between two processes' losses at a step; `num_comparable` counts
    the losses that there should be to compare with the record that counts, `num_compared` those that there are. What is
    not finite counts wherever a process saw it.
    """

    num_steps: int
    num_losses: int
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
    loss_spikes: Ranges
    repeated_at_end: int
    num_grad_norms: int
    non_finite_grad_steps: Ranges
    grad_norm_spikes: Ranges
    num_comparable: int
    num_compared: int
    disagreement: float | None
    disagreement_step: int | None


def measure_numerics(own: Record, others: Sequence[Record]) -> Numerics:
    """The facts of numerics, by the record that counts; numbers that are not finite are looked for in all of them."""
    losses = [step.loss for step in own.steps if step.loss is not None]
    finite = np.array([loss for loss in losses if math.isfinite(loss)])
    high = LOSS_SPIKE * _early(finite)
    bad = {
        step.step: step.loss
        for record in (own, *others)
        for step in record.steps
        if step.loss is not None and not math.isfinite(step.loss)
    }
    first_bad = min(bad, default=None)
    norms = [
        (step.step, step.grad_norm) for record in (own, *others) for step in record.steps if step.grad_norm is not None
    ]
    finite_norms = [norm for _, norm in norms if math.isfinite(norm)]
    spike = SPIKE * float(np.median(finite_norms)) if finite_norms else math.inf
    third = len(finite) // 3
    trend, share = _trend(finite)
    comparable, compared, disagreement, where = _disagreement(own, others)
    return Numerics(
        num_steps=len(own.steps),
        num_losses=len(losses),
        non_finite_steps=ranges(sorted(bad)),
        num_non_finite=len(bad),
        first_bad_step=first_bad,
        first_bad_value=None if first_bad is None else bad[first_bad],
        first_loss=losses[0] if losses else None,
        last_loss=losses[-1] if losses else None,
        min_loss=float(finite.min()) if len(finite) else None,
        max_loss=float(finite.max()) if len(finite) else None,
        early_loss=float(np.median(finite[:third])) if third else None,
        late_loss=float(np.median(finite[-third:])) if third else None,
        trend=trend,
        share_lower=share,
        loss_spikes=ranges(s.step for s in own.steps if s.loss is not None and math.inf > s.loss > high > 0),
        repeated_at_end=next((n for n, loss in enumerate(reversed(losses)) if loss != losses[-1]), len(losses)),
        num_grad_norms=len(norms),
        non_finite_grad_steps=ranges(sorted({step for step, norm in norms if not math.isfinite(norm)})),
        grad_norm_spikes=ranges(sorted({step for step, norm in norms if math.isfinite(norm) and norm > spike})),
        num_comparable=comparable,
        num_compared=compared,
        disagreement=disagreement,
        disagreement_step=where,
    )


def _early(losses: NDArray[np.float64]) -> float:
    """What the losses of a run are held against: the median of the first third; 0 without any."""
    return float(np.median(losses[: max(1, len(losses) // 3)])) if len(losses) else 0.0


def _diverged(losses: NDArray[np.float64]) -> bool:
    """Whether the end lies far above the beginning: by the last third, by the last few losses, or by the very last."""
    early = _early(losses)
    if early <= 0:
        return False
    ends = (np.median(losses[-n:]) for n in (LAST_LOSSES, max(LAST_LOSSES, len(losses) // 3)))
    return any(end > DIVERGED * early for end in ends) or bool(losses[-1] > LOSS_SPIKE * early)


def _trend(losses: NDArray[np.float64]) -> tuple[Trend, float | None]:
    """First third against last third by the rank-sum test (Mann–Whitney), which no single outlier can sway."""
    third = len(losses) // 3
    early, late = np.sort(losses[:third]), losses[len(losses) - third :]
    before, after = (float(np.median(part)) if third else 0.0 for part in (early, late))
    diverged = _diverged(losses)
    if len(losses) < MIN_STEPS_FOR_TREND:
        return ("rising" if diverged else "too_short"), None
    above = third - np.searchsorted(early, late, side="right")  # early losses above each late one
    equal = third - above - np.searchsorted(early, late, side="left")
    share = float(np.mean(above + equal / 2) / third)
    z = (share - 0.5) / math.sqrt((2 * third + 1) / (12 * third * third))
    if z > TREND_Z and not diverged:
        return "falling", share
    rises = z < -TREND_Z and after - before > CLEAR_RISE * abs(before)
    return ("rising" if rises or diverged else "flat"), share


def _disagreement(own: Record, others: Sequence[Record]) -> tuple[int, int, float | None, int | None]:
    """(losses that could be compared to the record that counts, that were, largest relative difference, its step)."""
    losses = {step.step: step.loss for step in own.steps}
    comparable = compared = 0
    worst, where = None, None
    for record in others:
        for step in record.steps:
            if step.step not in losses:
                continue
            comparable += 1
            ours = losses[step.step]
            if ours is None or step.loss is None:
                continue
            compared += 1
            difference = _relative_difference(ours, step.loss)
            if worst is None or difference > worst:
                worst, where = difference, step.step
    return comparable, compared, worst, where


def _relative_difference(a: float, b: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    return abs(a - b) / max(abs(a), abs(b)) if math.isfinite(a) and math.isfinite(b) else math.inf
