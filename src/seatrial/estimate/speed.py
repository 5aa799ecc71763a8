"""The step time that a tuned run should reach on a device: arithmetic, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass

from seatrial.estimate import flops
from seatrial.estimate.hardware import Device
from seatrial.spec import RunSpec

# Model FLOP/s over the peak (causal attention, no recomputation counted) that tuned runs reach: nine in ten of those
# in `published.csv`. A test compares the two.
UTILIZATION = {"bfloat16": (0.40, 0.57), "fp8": (0.30, 0.50)}


@dataclass(frozen=True, kw_only=True)
class Speed:
    """A step's shortest and longest time to expect of a tuned run, and the share of the peak that they stand for."""

    step_seconds: tuple[float, float]
    tokens_per_second_per_device: tuple[float, float]  # lowest, highest
    utilization: tuple[float, float]  # lowest, highest; as a fraction
    peak_flops_per_second: float
    peak_format: str


def expected(spec: RunSpec, device: Device | None) -> Speed | None:
    """The step time to expect of a tuned run on a device; None where its peak in the run's format is not known.

    A pipeline waits (stages − 1) / (micro-batches × virtual stages) of the time (arXiv 2104.04473, section 2.2).
    """
    peak = device.peak(spec.precision.compute_dtype, spec.precision.quantization) if device else None
    if peak is None or peak[1] not in UTILIZATION:
        return None
    low, high = UTILIZATION[peak[1]]
    stages, turns = spec.mesh["pipeline"], spec.accumulation_steps * spec.parallelism.virtual_pipeline
    waiting = 1 + (stages - 1) / turns
    per_device = spec.tokens_per_step / spec.topology.num_devices
    least = per_device * flops.flops_per_token(spec.model, spec.batch.sequence_length) / peak[0] * waiting
    return Speed(
        step_seconds=(least / high, least / low),
        tokens_per_second_per_device=(per_device * low / least, per_device * high / least),
        utilization=(low / waiting, high / waiting),
        peak_flops_per_second=peak[0],
        peak_format=peak[1],
    )
