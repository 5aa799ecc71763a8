"""Steps without an update: the optimizer skips them where a gradient overflowed in 16 bits, by a loss scale."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seatrial.metrics.record import Record
from seatrial.metrics.window import lines_apart
from seatrial.recording import Steps

LEAST_LOSS_SCALE = 1.0
FEWEST_SCALES = 5  # in a third of the run, to tell whether they fall
MOST_RATES_STAY = 0.1  # of the steps with an update: a schedule's ends, and digits that are not printed


class Skips(NamedTuple):
    """Steps that the loss scale made the optimizer skip; None where the log does not say."""

    initial: int | None
    later: int | None
    steps_covered: int
    lines_without_loss: int


def skips_of(record: Record) -> Skips:
    """A loss scale that is searched for from above skips the first steps: that is how it works."""
    covered = len(record.steps) * lines_apart([step.step for step in record.steps])
    skipped = skipped_steps(record.steps)
    if skipped is None:
        return Skips(None, None, covered, 0)
    start = next((place for place, count in enumerate(skipped) if not count), len(skipped))
    silent = sum(1 for step in record.steps[:start] if step.loss is None)
    return Skips(sum(skipped[:start]), sum(skipped[start:]), covered, silent)


def skipped_steps(steps: Steps) -> list[int] | None:
    """How many steps of each line the optimizer skipped: as reported, or by the learning rate; None: not known."""
    if "skipped_steps" in steps.names:
        return [_count(count) for count in steps.reported("skipped_steps").tolist()]
    without_update = _rates_that_stayed(steps)
    return without_update.astype(int).tolist() if without_update.any() else None


def _rates_that_stayed(steps: Steps) -> NDArray[np.bool_]:
    """The steps whose gradient norm is not finite and whose learning rate is still that of the step before, or 0.

    Hugging Face's Trainer moves its schedule on behind an update alone, which a loss scale makes the optimizer skip. It
    says something only where each step has a line and the rate moves in the others.
    """
    norms, rates = steps.values("grad_norm"), steps.values("learning_rate")
    bad = steps.has("grad_norm") & ~np.isfinite(norms)
    nothing = np.zeros(len(norms), dtype=bool)
    if not bad.any() or not np.isfinite(rates).all() or np.any(np.diff(steps.numbers) != 1):
        return nothing
    stays = np.concatenate(([rates[0] == 0], np.diff(rates) == 0))
    stays[0] |= stays[1:2].any() and bool(bad[1])  # of the first alone nothing shows whether it moved
    others = stays[1:][~bad[1:]]
    moves = len(others) > 0 and others.mean() <= MOST_RATES_STAY
    return bad & stays if moves else nothing


def _count(value: float | None) -> int:
    return int(value) if value is not None and math.isfinite(value) and value > 0 else 0


def total_of(record: Record, name: str) -> int | None:
    """The sum of a count that lines may report; None where none does."""
    found = [step.reported[name] for step in record.steps if name in step.reported]
    return sum(map(_count, found)) if found else None


def has_collapsed(record: Record, skips: Skips) -> bool:
    """True if the loss scale fell to 1 or less, and steps were skipped."""
    scales = [step.reported["loss_scale"] for step in record.steps if "loss_scale" in step.reported]
    return bool(scales) and min(scales) <= LEAST_LOSS_SCALE < max(scales) and bool(skips.initial or skips.later)


def holds(record: Record) -> bool:
    """True if the loss scales at which steps were skipped do not fall from the middle of the run to its end."""
    scales = [
        step.reported["loss_scale"]
        for step in record.steps
        if "loss_scale" in step.reported and _count(step.reported.get("skipped_steps"))
    ]
    third = len(scales) // 3
    if third < FEWEST_SCALES or not all(scale > LEAST_LOSS_SCALE for scale in scales):
        return False
    return float(np.median(scales[-third:])) >= float(np.median(scales[third : 2 * third]))
