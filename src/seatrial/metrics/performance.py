"""How fast a run was: the steady window, and what follows from its median.

Speed is never taken from a single step or from a mean: the first steps compile and fill caches, and a mean belongs to
whatever interrupted the run. Which steps count is a rule that the report prints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from seatrial import flops, hardware
from seatrial.events import Checkpoint, Eval, Event, Step
from seatrial.metrics.record import Ranges, Record, ranges, show_ranges
from seatrial.spec import RunSpec

WARMUP_STEPS = 3  # MaxText's first two are artefacts of asynchronous dispatch, the third still fills caches
ROLLING_STEPS = 5
STEADY_WITHIN = 0.03
ENOUGH_STEPS = 10  # for an attempt to stand for the run's speed
INTERVAL_Z = 1.96  # 95%
IQR_PER_SIGMA = 1.349  # of a normal distribution

TERA = 1e12
TRILLION = 1e12
SECONDS_PER_DAY = 86_400

Seconds = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """The times of the steady window in seconds; `rule` says in a sentence which steps these are.

    `mad` is the plain median absolute deviation, `cv` the standard deviation over the mean. `spread` is what `cv` would
    be without outliers, by the interquartile range: two speeds in turn have one, though their MAD may be 0. `low` and
    `high` are the 95% interval of the median (order statistics: no distribution assumed). `steady`: warm-up ended by
    itself.
    """

    rule: str
    attempt: int
    first_step: int
    last_step: int
    warmup: Ranges
    disturbed: Ranges
    steady: bool
    n: int
    median: float
    mad: float
    p5: float
    p95: float
    cv: float | None
    spread: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A measured value and the interval that it is known to."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The device's dense peak that utilisation is held against."""

    device: str
    format: str
    flops_per_second: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Performance:
    """Speed in the steady window.

    `estimates` has the metrics of `spec.METRICS` by name; `unavailable` says why any other of them is not there.
    `num_timed` of the `num_steps` of the record have a time.
    """

    num_steps: int
    num_timed: int
    step_times: StepTimes | None
    estimates: Mapping[str, Estimate]
    unavailable: Mapping[str, str]
    tokens_per_step: int
    num_devices: int
    device: str
    convention: str
    flops_per_token: float
    peak: Peak | None
    tokens_per_second_total: float | None
    sequences_per_second_total: float | None
    days_to_1t_tokens: float | None


def tokens_per_second(*, tokens_per_step: float, step_seconds: float) -> float:
    """Tokens that all devices together process in a second."""
    return tokens_per_step / step_seconds


def sequences_per_second(*, global_batch_size: float, step_seconds: float) -> float:
    """Sequences that all devices together process in a second."""
    return global_batch_size / step_seconds


def days_to_train(*, tokens: float, tokens_per_second: float) -> float:
    """Days that so many tokens take at this throughput, without interruptions."""
    return tokens / tokens_per_second / SECONDS_PER_DAY


def measure_performance(events: Sequence[Event], spec: RunSpec, own: Record, convention: str) -> Performance:
    """The speed of a run by the record that counts. Raises KeyError for an unknown FLOPs convention."""
    started = own.started
    num_devices = (started.num_devices if started else None) or spec.topology.num_devices
    device = (started.device_kind if started else "") or spec.topology.device or ""
    known = hardware.find(device)
    figure = known.peak(spec.precision.compute_dtype, spec.precision.quantization) if known else None
    peak = (
        Peak(device=known.name, format=figure[1], flops_per_second=figure[0], source=known.source)
        if known and figure
        else None
    )
    per_token = flops.flops_per_token(spec.model, spec.batch.sequence_length, convention)
    times = step_times(own.attempts, _disturbed(events))
    found = _speed(times, spec.tokens_per_step / num_devices, per_token, peak, device)
    found["memory_fraction"] = _memory_fraction(started.facts if started else {}, known)
    step = found["step_seconds"]
    total = (
        tokens_per_second(tokens_per_step=spec.tokens_per_step, step_seconds=step.value)
        if isinstance(step, Estimate)
        else None
    )
    return Performance(
        num_steps=len(own.steps),
        num_timed=len(_timed(own.steps)),
        step_times=times,
        estimates={name: value for name, value in found.items() if isinstance(value, Estimate)},
        unavailable={name: value for name, value in found.items() if isinstance(value, str)},
        tokens_per_step=spec.tokens_per_step,
        num_devices=num_devices,
        device=device,
        convention=convention,
        flops_per_token=per_token,
        peak=peak,
        tokens_per_second_total=total,
        sequences_per_second_total=total / spec.batch.sequence_length if total else None,
        days_to_1t_tokens=days_to_train(tokens=TRILLION, tokens_per_second=total) if total else None,
    )


def step_times(attempts: Sequence[Sequence[Step]], disturbed: Set[int]) -> StepTimes | None:
    """The steady window of the last attempt that has enough steps, else of the last one that has any; None without.

    `disturbed` steps, which an evaluation or a checkpoint falls into, are left out as long as half of the steps stay.
    """
    timed = [(number, _timed(attempt)) for number, attempt in enumerate(attempts, 1)]
    timed = [(number, steps) for number, steps in timed if steps]
    if not timed:
        return None
    number, steps = next(((n, steps) for n, steps in reversed(timed) if len(steps) >= ENOUGH_STEPS), timed[-1])
    clear = [(step, seconds) for step, seconds in steps if step not in disturbed]
    kept = clear if 2 * len(clear) >= len(steps) else steps
    seconds = np.array([seconds for _, seconds in kept])
    warmup, steady = _warmup(seconds)
    window = seconds[warmup:]
    numbers = [step for step, _ in kept]
    left_out = sorted({step for step, _ in steps} - set(numbers))
    median, low, high = _median_interval(window)
    return StepTimes(
        rule=_rule(numbers, warmup, ranges(left_out), number, len(attempts), steady),
        attempt=number,
        first_step=numbers[warmup],
        last_step=numbers[-1],
        warmup=ranges(numbers[:warmup]),
        disturbed=ranges(left_out),
        steady=steady,
        n=len(window),
        median=median,
        mad=float(np.median(np.abs(window - median))),
        p5=float(np.percentile(window, 5)),
        p95=float(np.percentile(window, 95)),
        cv=float(np.std(window, ddof=1) / np.mean(window)) if len(window) > 1 else None,
        spread=float(np.subtract(*np.percentile(window, [75, 25]))) / IQR_PER_SIGMA / median,
        low=low,
        high=high,
    )


def _timed(attempt: Sequence[Step]) -> list[tuple[int, float]]:
    return [(s.step, s.seconds) for s in attempt if s.seconds is not None and 0 < s.seconds < math.inf]


def _disturbed(events: Sequence[Event]) -> set[int]:
    """Steps whose time includes an evaluation or a checkpoint: a log may book it on the step itself or on the next."""
    steps = {event.step for event in events if isinstance(event, (Eval, Checkpoint))}
    return steps | {step + 1 for step in steps}


def _warmup(seconds: Seconds) -> tuple[int, bool]:
    """(steps to leave out at the start, whether the rest is steady)."""
    most = len(seconds) // 2
    least = min(WARMUP_STEPS, most)
    final = np.median(seconds[most:])
    noise = np.median(np.abs(seconds[most:] - final))
    rolling = np.median(sliding_window_view(seconds, min(ROLLING_STEPS, len(seconds) - most)), axis=1)
    steady = np.flatnonzero(np.abs(rolling[least : most + 1] - final) <= max(STEADY_WITHIN * final, noise))
    return (least + int(steady[0]), True) if len(steady) else (most, False)


def _rule(numbers: Sequence[int], warmup: int, left_out: Ranges, attempt: int, num_attempts: int, steady: bool) -> str:
    which = f" of attempt {attempt} of {num_attempts}" if num_attempts > 1 else ""
    sentence = (
        f"Steps {numbers[warmup]}–{numbers[-1]}{which}. Left out: the first {warmup} as warm-up (at least "
        f"{WARMUP_STEPS}, until the median of {ROLLING_STEPS} is within {STEADY_WITHIN:.0%}, or one MAD, of the final "
        "one; never more than half)"
    )
    if left_out:
        sentence += f"; {show_ranges(left_out)}, because of an evaluation or a checkpoint"
    return sentence + ("." if steady else ". The step time never became steady.")


def _median_interval(values: Seconds) -> tuple[float, float, float]:
    """The median and its 95% interval: the order statistics between which it lies, whatever the distribution."""
    ordered, n = np.sort(values), len(values)
    spread = INTERVAL_Z * math.sqrt(n) / 2
    low = max(1, math.floor(n / 2 - spread))
    high = min(n, math.ceil(n / 2 + 1 + spread))
    return float(np.median(ordered)), float(ordered[low - 1]), float(ordered[high - 1])


def _rate(amount: float, times: StepTimes) -> Estimate:
    """What is done per second if each step does `amount`; the slowest step time gives the lowest rate."""
    return Estimate(value=amount / times.median, low=amount / times.high, high=amount / times.low)


def _speed(
    times: StepTimes | None, tokens_per_device: float, flops_per_token: float, peak: Peak | None, device: str
) -> dict[str, Estimate | str]:
    """Each metric of speed, or the reason why there is none."""
    names = ("step_seconds", "tokens_per_second_per_device", "tflops_per_second_per_device", "mfu")
    if times is None:
        return dict.fromkeys(names, "no step has a time")
    flops_per_device = tokens_per_device * flops_per_token
    unknown = f"no peak is known for {device!r}" if device else "the record does not name the device"
    mfu = _rate(flops_per_device / peak.flops_per_second, times) if peak else unknown
    if isinstance(mfu, Estimate) and mfu.value > 1:
        impossible = f"by these times {mfu.value:.0%} of the device's peak, so times or configuration are wrong"
        return dict.fromkeys(names, impossible)
    step = Estimate(value=times.median, low=times.low, high=times.high)
    return dict(
        zip(names, (step, _rate(tokens_per_device, times), _rate(flops_per_device / TERA, times), mfu), strict=True)
    )


def _memory_fraction(facts: Mapping[str, Any], device: hardware.Device | None) -> Estimate | str:
    """What the compiled step needs of the device's memory, by the compiler's own account."""
    memory: Mapping[str, int] = facts.get("memory") or {}
    if device is None:
        return "the device's memory is not known"
    if not {"argument_bytes", "output_bytes", "temp_bytes", "code_bytes"} <= set(memory):
        return "the record does not give it"
    needed = sum(memory[f"{part}_bytes"] for part in ("argument", "output", "temp", "code"))
    fraction = (needed - memory.get("alias_bytes", 0)) / device.memory_bytes
    return Estimate(value=fraction, low=fraction, high=fraction)
