"""Bars: they can be reached, and do not contradict each other."""

from __future__ import annotations

import math
from collections.abc import Iterator

from seatrial import flops, hardware
from seatrial.check.finder import Finder
from seatrial.errors import Problem
from seatrial.spec import RunSpec

# Two bars of one file agree if they are no further apart than this: published pairs are rounded, and mix conventions.
AGREEMENT = 0.10


def impossible_bars(finder: Finder) -> Iterator[Problem]:
    """No bar lies above what the device can do at its peak."""
    spec = finder.spec
    device = hardware.find(spec.topology.device)
    peak = device.peak(spec.precision.compute_dtype, spec.precision.quantization) if device else None
    for bar in spec.expectations:
        if bar.metric in ("mfu", "memory_fraction") and bar.value > 1:
            why = f"{bar.value:g} is above 1, and this is a fraction"
            yield finder.at(f"expectations.{bar.metric}", "warning", "impossible-expectation", why, "use a fraction")
        if device is None or peak is None:
            continue
        asked = _tflops(spec, bar.metric, bar.value)
        if asked > peak[0] / hardware.TERA:
            means = "" if bar.metric.startswith("tflops") else f"{bar.value:g} tokens/s mean {asked:.0f} TFLOP/s, and "
            yield finder.at(
                f"expectations.{bar.metric}", "warning", "impossible-expectation",
                f"{means}{device.name} reaches {peak[0] / hardware.TERA:g} TFLOP/s in {peak[1]} at its peak "
                f"({device.source}): no run can pass",
                f"expect less than {peak[0] / hardware.TERA / asked * bar.value:.0f}",
            )  # fmt: skip


def _tflops(spec: RunSpec, metric: str, value: float) -> float:
    """The least TFLOP/s per device that a bar means, by any convention; 0 for a bar on something else."""
    if metric == "tflops_per_second_per_device":
        return value
    if metric == "tokens_per_second_per_device":
        return value * min(_flops_per_token(spec).values()) / hardware.TERA
    return 0.0


def _flops_per_token(spec: RunSpec) -> dict[str, float]:
    return {name: flops.flops_per_token(spec.model, spec.batch.sequence_length, name) for name in flops.CONVENTIONS}


def repeated_bars(finder: Finder) -> Iterator[Problem]:
    """A metric has one bar."""
    metrics = [bar.metric for bar in finder.spec.expectations]
    for index, metric in enumerate(metrics):
        if metric in metrics[:index]:
            why = f"there is a bar for {metric} already"
            path = f"expectations.{index}.metric"
            yield finder.at(path, "error", "repeated-expectation", why, "keep one of the two")


def contradicting_bars(finder: Finder) -> Iterator[Problem]:
    """TFLOP/s and tokens/s are one measurement: their ratio is the model's FLOPs per token."""
    bars = {bar.metric: bar.value for bar in finder.spec.expectations}
    tflops, tokens = bars.get("tflops_per_second_per_device"), bars.get("tokens_per_second_per_device")
    if tflops is None or tokens is None:
        return
    means = {name: tokens * each / hardware.TERA for name, each in _flops_per_token(finder.spec).items()}
    if any(abs(math.log(tflops / value)) <= math.log1p(AGREEMENT) for value in means.values()):
        return
    listed = ", ".join(f"{value:.0f} ({name})" for name, value in means.items())
    wanted = ", ".join(f"{tokens * tflops / value:.0f} ({name})" for name, value in means.items())
    model, length = finder.spec.model.name, finder.spec.batch.sequence_length
    yield finder.at(
        "expectations.tokens_per_second_per_device", "warning", "contradicting-expectations",
        f"{tokens:g} tokens/s of {model} at {length} tokens mean {listed} TFLOP/s by the published conventions, but "
        f"{tflops:g} TFLOP/s are expected, which would take {wanted} tokens/s",
        "correct one of the two",
    )  # fmt: skip
