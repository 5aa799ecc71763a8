"""Finds the steps whose loss is far above where it had come to, by more than its noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from seatrial.metrics.dependence import Values
from seatrial.metrics.loss_course import DIVERGED, LOSS_SPIKE, MIN_STEPS_FOR_TREND, early_loss, sigma_of
from seatrial.metrics.loss_trend import running_median

BURST = 2.0  # nats above the lowest loss before, and `DIVERGED` times that: in runs too short for anything else
FIRST_UPDATES = 3
SPIKE_NOISE = 5.0  # standard deviations of the loss from one step to the next, above where it had come to
MOST_NOISE = 9.0  # times where the loss had come to: no noise explains more
BEFORE_SPIKE = 9  # losses, whose median is where the loss had come to
MEDIAN_ERROR = math.sqrt(math.pi / 2 / BEFORE_SPIKE)  # of their median, next to that of one of them
LEAST_SPIKE = 0.25  # nats above the early loss: next to nothing, three times is little


def find_loss_spikes(steps: Sequence[int], losses: Values) -> dict[int, float]:
    """Step → loss of the spikes among finite losses; of a short run without any, of its bursts."""
    places = _spikes(steps, losses) or _bursts(losses)
    return {steps[place]: float(losses[place]) for place in places}


def _spikes(steps: Sequence[int], losses: Values) -> list[int]:
    """Places of losses that are far above the early ones; not those from which a run falls at the start.

    A noisy loss crosses any height more than once on its way down: it is a spike only where the loss had come to far
    less before, by more than its noise.
    """
    early = early_loss(losses)
    high = max(LOSS_SPIKE * early, early + LEAST_SPIKE)
    above = losses > high
    if not above.any():
        return []
    start = max(_first(~above), _thrown_off(steps, losses, above))
    before = _lowest_before(losses)
    # A single one has to stand out of the noise; of several in a row, it is enough that their median does.
    lasts = running_median(losses, BEFORE_SPIKE) > np.maximum(high, _noise(losses, MEDIAN_ERROR) * before)
    risen = (losses > _noise(losses) * before) | (lasts & (losses > DIVERGED * before))
    places: list[int] = np.flatnonzero(above & risen).tolist()
    return [place for place in places if place >= start]


def _noise(losses: Values, error: float = 1.0) -> float:
    """The factor by which a loss may exceed those before without being a spike: at least `DIVERGED`.

    By what losses differ from one to the next, as a factor, which neither a fall nor a few spikes change. `error` is
    the standard error of what is compared, next to that of one loss.
    """
    known = losses[losses > 0]
    if len(known) < MIN_STEPS_FOR_TREND:
        return DIVERGED
    sigma = sigma_of(np.diff(np.log(known)))
    return max(DIVERGED, math.exp(min(SPIKE_NOISE * error * sigma, math.log(MOST_NOISE))))


def _lowest_before(losses: Values) -> Values:
    """The lowest that the loss had come to before each, by the medians of a few in a row once there are so many."""
    lowest = np.minimum.accumulate(losses)
    if len(losses) > BEFORE_SPIKE:
        settled = np.median(sliding_window_view(losses, BEFORE_SPIKE), axis=1)
        lowest[BEFORE_SPIKE - 1 :] = np.minimum.accumulate(settled)
    before: Values = np.concatenate([lowest[:1], lowest[:-1]])
    return before


def _thrown_off(steps: Sequence[int], losses: Values, above: NDArray[np.bool_]) -> int:
    """The number of losses at the start that the first updates of an untrained model throw off; 0 if they do not.

    They do if its loss shoots up there, and comes back at once to less than it began with.
    """
    up = _first(above)
    back = up + _first(~above[up:])
    if back == len(above) or steps[up] - steps[0] >= FIRST_UPDATES:
        return 0
    return back if losses[back] < losses[0] else 0


def _first(flags: NDArray[np.bool_]) -> int:
    """The place of the first that is true; their number if none is."""
    return int(np.argmax(flags)) if flags.any() else len(flags)


def _bursts(losses: Values) -> list[int]:
    """Places in a short record where the loss is far above a lower one before; `BURST` is 7 times the perplexity."""
    if len(losses) >= 2 * MIN_STEPS_FOR_TREND:
        return []
    lowest = np.minimum.accumulate(np.concatenate([[math.inf], losses[:-1]]))
    places: list[int] = np.flatnonzero(losses > np.maximum(DIVERGED * lowest, lowest + BURST)).tolist()
    return places
