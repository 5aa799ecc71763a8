"""Tells how the loss went: whether it falls, rises or diverges, how low it came, and where it stands at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np

from seatrial.metrics.dependence import Values
from seatrial.metrics.interval import last_digit
from seatrial.metrics.loss_trend import p_of_fall

MIN_STEPS_FOR_TREND = 15
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
LOSS_SPIKE = 3.0  # times the early loss: more than the noise of a batch
MOST_ROUNDED_TO_0, DIGITS_ABOVE_0 = 0.02, 100.0  # of the losses; times the last digit that is printed
LEAST_LOSS = 1e-5  # that a cross-entropy in float32 can tell from 0

Trend = Literal["falling", "flat", "rising", "too_short"]


class LossTrend(NamedTuple):
    """The trend of the loss, in the fields of `Numerics`."""

    trend: Trend
    share_lower: float | None = None
    trend_p: float | None = None
    least_fall: float | None = None


def find_trend(losses: Values) -> LossTrend:
    """The first third against the last one.

    By the rank-sum test (Mann–Whitney), which no single outlier can sway; it takes the losses to be independent, so
    that `p_of_fall` has to agree, unless all of the last third lie below the first by more than any noise.
    """
    diverged = _diverged(losses)
    if len(losses) < MIN_STEPS_FOR_TREND:
        return LossTrend("rising" if diverged else "too_short")
    third = len(losses) // 3
    early, late = np.sort(losses[:third]), losses[-third:]
    before, after = float(np.median(early)), float(np.median(late))
    above = third - np.searchsorted(early, late, side="right")  # early losses above each late one
    equal = third - above - np.searchsorted(early, late, side="left")
    share = float(np.mean(above + equal / 2) / third)
    z = (share - 0.5) / _share_error(third)
    p = math.erfc(abs(z) / math.sqrt(2))
    if not (share == 1 and before > PLAIN_FALL * after > 0):  # such as a burst of the first steps that is overcome
        p = max(p, p_of_fall(losses if z > 0 else -losses))
    is_clear = abs(z) > TREND_Z and p < math.erfc(TREND_Z / math.sqrt(2))
    if z > 0 and is_clear and not diverged:
        return LossTrend("falling", share, p)
    # Of very many losses, the least rise is no chance.
    rises = z < 0 and is_clear and share < RISES and after - before > CLEAR_RISE * abs(before)
    if rises or diverged:
        return LossTrend("rising", share, p)
    least_fall = _least_fall(losses) if len(losses) < SHORT else 0.0
    if least_fall > WORTH_SHOWING:
        return LossTrend("too_short", share, p, least_fall)
    return LossTrend("flat", share, p)


def _share_error(third: int) -> float:
    """The standard error of the share of pairs with a lower loss later, where there is no trend."""
    return math.sqrt((2 * third + 1) / (12 * third * third))


def _least_fall(losses: Values) -> float:
    """The smallest fall from the first to the last third that is found nine times out of ten, of the early loss.

    By how much the losses differ from one to the next, which a fall over the whole run hardly changes.
    """
    third, steps = len(losses) // 3, np.diff(losses)
    noise = sigma_of(steps - np.median(steps))
    early = early_loss(losses)
    # The share of a sample may lie below that of the losses themselves.
    needed = 0.5 + TREND_Z * _share_error(third)
    shares = np.linspace(min(needed, SURELY_LOWER), SURELY_LOWER, 200)
    enough = shares - POWER_Z * np.sqrt(shares * (1 - shares) / third) >= needed
    share = float(shares[enough.argmax()]) if enough.any() else SURELY_LOWER
    least = math.sqrt(2) * NormalDist().inv_cdf(share) * noise
    return least / early if early > 0 else 0.0


def sigma_of(differences: Values) -> float:
    """The standard deviation of the losses, by what they differ from one to the next."""
    return float(np.median(np.abs(differences))) / MAD_PER_SIGMA / math.sqrt(2)


def thirds(values: Values) -> tuple[float | None, float | None]:
    """The medians of the first and the last third."""
    third = len(values) // 3
    return (float(np.median(values[:third])), float(np.median(values[-third:]))) if third else (None, None)


def early_loss(losses: Values) -> float:
    """The losses of the first third, which later ones are compared with: their median; 0 without any.

    At least `LEAST_LOSS`: of a memorised batch, losses are rounding, and one of 1e-7 is not far above one of 3e-8.
    """
    early = float(np.median(losses[: max(1, len(losses) // 3)])) if len(losses) else 0.0
    return max(early, LEAST_LOSS) if early > 0 else 0.0


def _diverged(losses: Values) -> bool:
    """True if the end lies far above the beginning: by the last third, by the last few losses, or by the very last."""
    early = early_loss(losses)
    if early <= 0:
        return False
    ends = (np.median(losses[-n:]) for n in (LAST_LOSSES, max(LAST_LOSSES, len(losses) // 3)))
    return any(end > DIVERGED * early for end in ends) or bool(losses[-1] > LOSS_SPIKE * early)


def settled_below_the_end(losses: Values) -> float | None:
    """The level of the last third if the last few losses lie above it by a quarter, or the very last is twice that.

    Both have to be far more than the losses differ from one to the next. Otherwise None.
    """
    if len(losses) < MIN_STEPS_FOR_TREND:
        return None
    third = len(losses) // 3
    settled = float(np.median(losses[-third:-LAST_LOSSES]))
    noise = float(np.median(np.abs(np.diff(losses[third:-LAST_LOSSES]))))
    rise, jump = float(np.median(losses[-LAST_LOSSES:])) - settled, float(losses[-1]) - settled
    is_above = rise > max(END_RISE * settled, END_NOISE * noise) or jump > max(settled, 2 * END_NOISE * noise)
    return settled if settled > 0 and is_above else None


def lowest_loss(losses: Values) -> float | None:
    """The lowest loss; not a 0 here and there among losses of a few of the last digits that are printed."""
    zeros = losses == 0
    others = losses[~zeros]
    if not zeros.any() or not len(others) or zeros.mean() > MOST_ROUNDED_TO_0 or zeros[-LAST_LOSSES:].any():
        return float(losses.min()) if len(losses) else None
    behind = losses[int(np.argmax(zeros)) :]
    digit = max(map(last_digit, others[-LAST_LOSSES:].tolist()))
    is_rounded = float(np.median(behind[behind != 0])) <= DIGITS_ABOVE_0 * digit
    return float((others if is_rounded else losses).min())


def least_before_zero(losses: Sequence[float]) -> float | None:
    """The smallest positive loss before the first that is exactly 0; None without such a one."""
    zero = next((place for place, loss in enumerate(losses) if loss == 0), None)
    return None if zero is None else min((loss for loss in losses[:zero] if loss > 0), default=None)
