"""Checks that a log's own figures agree with each other and with the configuration.

Each rule is an equation that has to hold whatever ran. One that does not hold means that the log is of another model,
batch or device than the configuration's, or that a figure in it cannot be believed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from seatrial.estimate import flops
from seatrial.estimate.hardware import TERA
from seatrial.events import REPORTED
from seatrial.metrics.dependence import Values
from seatrial.metrics.interval import LARGEST, median_of_finite, only_finite, relative_rounding, rounding
from seatrial.metrics.record import ranges, show_ranges
from seatrial.metrics.setup import Setup
from seatrial.recording import Steps

TOLERANCE = 0.02
OFTEN = 0.1  # of the steps that an equation may miss, if their median meets it
MOST_ROUNDING = 0.1  # of a figure: one printed more coarsely proves nothing
OTHER_MODEL = 2.0  # times the FLOPs of the model: no way of counting explains that
FEWEST_CLOCKED = 5
DIGITS_LOST = 0.01  # of a number of three digits, at the most: half of the last one, twice
LATEST = 3  # lines: MaxText prints a step's line while it waits for the one before the last
JUMP = 2.0  # times the time of a step by its word: a longer one between two lines is no pace
WHOLE_SECONDS, MILLISECONDS = 1.0, 0.001

Agreement = Literal["agree", "doubt", "contradiction"]


@dataclass(frozen=True, kw_only=True)
class Identity:
    """An equation between figures, by name, and how it stands: `found` against `expected`.

    A `contradiction` means that something else ran than the configuration says, or that a figure is wrong; a `doubt`
    that one of them may be.
    """

    name: str
    agreement: Agreement
    sentence: str
    found: float | None = None
    expected: float | None = None


class Facts(NamedTuple):
    """The figures that the equations relate; None where one is not known."""

    steps: Steps  # of the window
    all_steps: Steps
    seconds: Values | None  # of the window's steps, as reported
    setup: Setup
    memory_fraction: float | None
    flops_per_token: float | None  # by the log's own figures


def check_identities(facts: Facts) -> tuple[Identity, ...]:
    """Every equation that the record allows to check, in a fixed order."""
    rules: tuple[Callable[[Facts], Identity | None], ...] = (
        _numbers, _batch, _consumed, _tokens, _tokens_that_count, _flops_per_token, _peak, _mfu, _memory, _clock,
    )  # fmt: skip
    return tuple(found for rule in rules if (found := rule(facts)) is not None)


def reported(steps: Steps, name: str) -> Values:
    """A log's own figure at these steps: NaN where it gives none."""
    found = steps.reported(name)
    size = np.abs(found)
    return np.where((size < LARGEST) & ((size > 1 / LARGEST) | (size == 0)), found, math.nan)


def above_zero(values: Values) -> Values:
    """The values to divide by: NaN where they are not positive."""
    return np.where(values > 0, values, math.nan)


def _identity(name: str, agrees: bool, otherwise: Agreement, sentence: str, found: float, expected: float) -> Identity:
    agreement: Agreement = "agree" if agrees else otherwise
    return Identity(name=name, agreement=agreement, sentence=sentence, found=found, expected=float(expected))


def _numbers(facts: Facts) -> Identity | None:
    """No figure is NaN or infinite."""
    steps = facts.all_steps
    own = ((name, steps.values(name), steps.has(name)) for name in ("seconds", "data_seconds", "learning_rate"))
    logged = ((name, steps.reported(name), steps.reports(name)) for name in steps.names if name in REPORTED)
    bad: dict[str, list[int]] = {}
    for name, values, known in (*own, *logged):  # the other figures are of numerics
        if at := steps.some(known & ~(np.abs(values) < LARGEST)).numbers:
            bad[name] = at
    if not bad:
        return None
    in_order = sorted(bad.items(), key=lambda each: each[1][0])
    each = "; ".join(f"{name.replace('_', ' ')} at {show_ranges(ranges(at))}" for name, at in in_order)
    return Identity(name="numbers", agreement="contradiction", sentence=f"Not a finite number: {each}.")


def _batch(facts: Facts) -> Identity | None:
    """The global batch that the log reports is the configuration's."""
    sizes, spec = only_finite(reported(facts.steps, "global_batch_size")), facts.setup.spec
    if spec is None or not len(sizes):
        return None
    found, expected = float(np.median(sizes)), spec.batch.global_batch_size
    sentence = f"The log's global batch is {found:,.0f} sequences; the configuration's is {expected:,.0f}."
    return _identity("global batch", bool(np.all(sizes == expected)), "contradiction", sentence, found, expected)


def _consumed(facts: Facts) -> Identity | None:
    """The log's count of consumed tokens or sequences grows by a batch in each step."""
    tokens, sequences = _growth(facts.steps, "consumed_tokens"), _growth(facts.steps, "consumed_samples")
    spec = facts.setup.spec
    if spec is None or (tokens is None and sequences is None):
        return None
    found, expected, what = tokens or 0.0, spec.tokens_per_step, "tokens"
    if sequences is not None:
        found, expected, what = sequences, spec.batch.global_batch_size, "sequences"
    sentence = f"By the log, a step consumes {found:,.0f} {what}; by the configuration, {expected:,}."
    agrees = abs(found / expected - 1) <= TOLERANCE
    return _identity("consumed", agrees, "contradiction", sentence, found, expected)


def _growth(steps: Steps, name: str) -> float | None:
    """By how much a count grows in a step, between the first and the last that report it."""
    values = steps.reported(name)
    good = np.abs(values) < LARGEST
    steps_at, counts = steps.some(good).numbers, list[float](values[good].tolist())
    if len(counts) < 2:
        return None
    first, last, before, after = steps_at[0], steps_at[-1], counts[0], counts[-1]
    shortened = all(float(f"{value:.3g}") == value for value in counts)  # 1.05M
    if shortened and DIGITS_LOST * after > TOLERANCE * (after - before):
        return None
    return (after - before) / (last - first)


def _tokens(facts: Facts) -> Identity | None:
    """Tokens/s × seconds × devices = tokens of a step."""
    rates = reported(facts.steps, "tokens_per_second_per_device")
    expected, num_devices = facts.setup.tokens_per_step, facts.setup.num_devices
    if facts.seconds is None or not expected or not num_devices:
        return None
    if "batch_rampup" in facts.steps.phases:  # a run that ends before its batches are full
        return None
    products = rates * facts.seconds * num_devices
    found = only_finite(products)
    slack = relative_rounding(rates) + relative_rounding(facts.seconds)
    if not len(found) or slack > MOST_ROUNDING:
        return None  # too coarse to tell
    with np.errstate(divide="ignore", invalid="ignore"):  # of a step that was only dispatched, 0.001 s says little
        each = rounding(rates) / np.abs(rates) + rounding(facts.seconds) / np.abs(facts.seconds)
    value = float(np.median(found))
    off = float(np.mean(np.abs(found / expected - 1) > TOLERANCE + each[np.isfinite(products)]))
    meets = abs(value / expected - 1)
    agrees = meets <= TOLERANCE + slack and off <= OFTEN
    at_times = " Not so at many of the steps." if not agrees and meets <= TOLERANCE else ""
    sentence = (
        f"Tokens/s × seconds × {num_devices:,} devices is {value:,.0f} tokens in a step; "
        f"batch × sequence is {expected:,}.{at_times}"
    )
    return _identity("tokens per step", agrees, "contradiction", sentence, value, expected)


def _tokens_that_count(facts: Facts) -> Identity | None:
    """The tokens that the log counts of a step are at most batch × sequence, and no fewer where all have to count."""
    counted = facts.steps.values("tokens")[facts.steps.has("tokens")]
    expected = facts.setup.tokens_per_step
    if not expected or not len(counted):
        return None
    fewest, value, most = np.quantile(counted, (0, 0.5, 1)).tolist()
    if fewest == most == expected:
        return None
    too_many, too_few = most > expected * (1 + TOLERANCE), fewest < expected * (1 - TOLERANCE)
    missing = _missing_tokens(facts, constant=len(counted) > 2 and fewest == most) if too_few else ""
    value = most if too_many else fewest if missing else value
    sentence = f"The log counts {value:,.0f} tokens in a step; batch × sequence is {expected:,}.{missing}"
    agrees = not (too_many or missing)
    return _identity("tokens that count", agrees, "contradiction", sentence, value, expected)


def _missing_tokens(facts: Facts, *, constant: bool) -> str:
    """The reason why there cannot be fewer tokens than batch × sequence, by what the log counts; "" if there may be.

    The writer of the log says which tokens it counts; else it is those in the loss if the configuration masks tokens.
    Equally long answers leave the same number of tokens in every step, so that a constant count proves nothing where
    prompts or padding are left out.
    """
    said, spec = facts.setup.facts.get("tokens_counted"), facts.setup.spec
    if said == "all":
        return " This run's loss is over every token."
    masks = said == "loss" or (spec is not None and spec.masks_tokens)
    return " Padding would not be the same at every step." if constant and not masks else ""


def _flops_per_token(facts: Facts) -> Identity | None:
    """TFLOP/s ÷ tokens/s is the FLOPs per token of a published convention."""
    spec, per_token = facts.setup.spec, facts.flops_per_token
    if spec is None or per_token is None:
        return None
    found = flops.nearest(per_token, spec.model, spec.batch.sequence_length)
    name, ours = found.convention.replace("_", "-"), f"{found.flops_per_token / 1e9:,.2f}"
    gflops = f"The log counts {per_token / 1e9:,.2f} GFLOP per token"
    off_by = _off_the_pace(facts)
    is_known = abs(found.deviation) <= flops.RECOGNISED_WITHIN
    is_other = not 1 / OTHER_MODEL < 1 + found.deviation < OTHER_MODEL
    if off_by:
        sentence = f"TFLOP/s and the pace of the steps do not go together: off by up to {off_by:.0%} of each other."
    elif is_known:
        padded = found.vocab_size != spec.model.vocab_size
        sentence = f"{gflops}: {name}{f', vocabulary padded to {found.vocab_size:,}' if padded else ''} ({ours})."
    else:
        sentence = f"{gflops}, which is no known convention for this model and batch; the nearest, {name}, is {ours}."
    otherwise: Agreement = "contradiction" if off_by or is_other else "doubt"
    agrees = is_known and not off_by
    return _identity("FLOPs per token", agrees, otherwise, sentence, per_token, found.flops_per_token)


def _off_the_pace(facts: Facts) -> float:
    """By how much the TFLOP/s are off what the pace of the steps makes of them, at most; 0 where few are."""
    rates = reported(facts.steps, "tflops_per_second_per_device")
    pace = above_zero(reported(facts.steps, "tokens_per_second_per_device"))
    slack = relative_rounding(rates) + relative_rounding(pace)
    if not len(only_finite(pace)) and facts.seconds is not None:
        pace, slack = 1 / facts.seconds, relative_rounding(rates) + relative_rounding(facts.seconds)
    ratios = only_finite(rates / pace)
    typical = median_of_finite(ratios) or 0.0
    off = np.abs(ratios / typical - 1) if typical > 0 else np.array([])
    return float(off.max()) if len(off) and np.mean(off > TOLERANCE + slack) > OFTEN else 0.0


def _peak(facts: Facts) -> Identity | None:
    """No utilization is above 1, unless it is of a peak that the program assumed for a device that it does not know."""
    if "peak_assumed" in facts.setup.facts:
        return None
    value = median_of_finite(reported(facts.steps, "mfu")) or 0.0
    sentence = f"The log's own MFU is {value:.1%}, which no device reaches."
    return _identity("peak", False, "contradiction", sentence, value, 1.0) if value > 1 else None


def _mfu(facts: Facts) -> Identity | None:
    """MFU = TFLOP/s ÷ the peak, of whichever format."""
    rates = reported(facts.steps, "tflops_per_second_per_device")
    mfu, device = reported(facts.steps, "mfu"), facts.setup.device
    value = median_of_finite(rates * TERA / above_zero(mfu))
    slack = relative_rounding(rates) + relative_rounding(mfu)
    assumed = "peak_assumed" in facts.setup.facts
    if device is None or facts.setup.peak is None or assumed or value is None or slack > MOST_ROUNDING:
        return None
    peaks = device.peak_flops
    name = min(peaks, key=lambda kind: abs(value / peaks[kind] - 1))
    sentence = (
        f"The log's TFLOP/s ÷ MFU is a peak of {value / TERA:,.0f} TFLOP/s; "
        f"that of {device.name} is {peaks[name] / TERA:,.0f} ({name})."
    )
    return _identity("MFU", abs(value / peaks[name] - 1) <= TOLERANCE + slack, "doubt", sentence, value, peaks[name])


def _memory(facts: Facts) -> Identity | None:
    """No device uses more memory than it has."""
    fraction = facts.memory_fraction or 0.0
    sentence = f"The log reports {fraction:.0%} of the device's memory in use."
    return _identity("memory", False, "contradiction", sentence, fraction, 1.0) if fraction > 1 + TOLERANCE else None


def _clock(facts: Facts) -> Identity | None:
    """The time between two lines of the log is that of the steps between, if the log has a clock fine enough."""
    seconds, steps = facts.seconds, facts.steps
    if facts.setup.facts.get("clock") != "log" or seconds is None or len(steps) <= FEWEST_CLOCKED:
        return None
    at = steps.values("wall_time")
    resolution = WHOLE_SECONDS if np.array_equal(at, np.floor(at)) else MILLISECONDS
    between = np.diff(steps.values("step"))
    logged = seconds[1:] * between
    neighbours = between == np.median(between)  # across a gap, something else took time
    elapsed, logged = np.diff(at)[neighbours], logged[neighbours]
    if len(logged) < FEWEST_CLOCKED + LATEST or not np.all(np.isfinite(logged)):
        return None
    together = resolution > TOLERANCE * np.median(logged)  # too coarse for single steps
    if resolution / float(logged.sum() if together else np.median(logged)) > TOLERANCE:
        return None
    found: list[tuple[float, float]] = []
    for late in range(LATEST + 1):
        by_clock, by_word = elapsed[: len(elapsed) - late], logged[late:]
        if together:
            found += _paces(by_clock, by_word, resolution)
        else:
            found.append((float(np.median(by_clock / by_word)), resolution / float(np.median(logged))))
    ratio, slack = min(found, key=lambda pace: abs(pace[0] - 1) - pace[1])
    sentence = f"By the clock of the log, a step takes {ratio:.1%} of the time that the log says."
    return _identity("clock", abs(ratio - 1) <= TOLERANCE + slack, "doubt", sentence, ratio, 1.0)


def _paces(by_clock: Values, by_word: Values, resolution: float) -> Iterator[tuple[float, float]]:
    """The ratio of the times together and its rounding; where the clock jumps at a few of them, that without these too.

    It jumps where it is set to another time, and where something else took time between two steps.
    """
    usual = (by_clock >= 0) & (by_clock <= JUMP * by_word + resolution)
    jumps = len(usual) - int(usual.sum())
    yield float(by_clock.sum() / by_word.sum()), resolution / float(by_word.sum())
    if 0 < jumps <= OFTEN * len(usual):  # each stretch between two of them is rounded for itself
        word = float(by_word[usual].sum())
        yield float(by_clock[usual].sum()) / word, (jumps + 1) * resolution / word
