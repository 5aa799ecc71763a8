"""Steps without an update: the optimizer skips them where a gradient overflowed in 16 bits, by a loss scale."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seatrial.metrics.numbering import lines_apart
from seatrial.recording import Steps

LEAST_LOSS_SCALE = 1.0
FEWEST_SCALES = 5  # in a third of the run, to tell whether they fall
MOST_RATES_STAY = 0.1  # of the steps with an update: a schedule's ends, and digits that are not printed


def measure_skips(steps: Steps) -> dict[str, Any]:
    """Fields of `Numerics`.

    A loss scale that is searched for from above skips the first steps: that is how it works. These may have no loss.
    """
    skipped = skipped_steps(steps)
    counts = skipped or []
    start = next((place for place, count in enumerate(counts) if not count), len(counts))
    nan_steps, scales = (steps.reported(name)[steps.reports(name)].tolist() for name in ("nan_steps", "loss_scale"))
    return {
        "num_expected": len(steps) - int((~steps.has("loss")[:start]).sum()),
        "initial_skips": None if skipped is None else sum(counts[:start]),
        "later_skips": None if skipped is None else sum(counts[start:]),
        "steps_covered": len(steps) * lines_apart(steps.numbers),
        "nan_steps": sum(map(_count, nan_steps)) if nan_steps else None,
        "loss_scale_collapsed": any(counts) and bool(scales) and min(scales) <= LEAST_LOSS_SCALE < max(scales),
        "loss_scale_holds": _holds(steps),
    }


def skipped_steps(steps: Steps) -> list[int] | None:
    """The number of steps skipped by the optimizer, by line: as reported, or by the learning rate; None: not known."""
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


def _count(value: float) -> int:
    return int(value) if math.isfinite(value) and value > 0 else 0


def _holds(steps: Steps) -> bool:
    """True if the loss scales at which steps were skipped do not fall from the middle of the run to its end."""
    skipped = steps.reported("skipped_steps")
    scales = steps.reported("loss_scale")[steps.reports("loss_scale") & np.isfinite(skipped) & (skipped >= 1)]
    third = len(scales) // 3
    if third < FEWEST_SCALES or not (scales > LEAST_LOSS_SCALE).all():
        return False
    return float(np.median(scales[-third:])) >= float(np.median(scales[third : 2 * third]))
