"""Collects all that is known of a run besides its steps, from its configuration and from its own processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from seatrial.estimate import flops, hardware
from seatrial.events import RunStarted
from seatrial.metrics.interval import LARGEST, Estimate
from seatrial.metrics.record import Record
from seatrial.spec import RunSpec


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The device's dense peak that utilization is relative to."""

    device: str
    format: str
    flops_per_second: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Setup:
    """`facts` are what the process that counts says of itself, `device_name` is what the run calls its device.

    None, or "", is what is not known.
    """

    spec: RunSpec | None
    facts: Mapping[str, Any]
    tokens_per_step: int | None
    num_devices: int | None
    device_name: str
    device: hardware.Device | None
    peak: Peak | None

    @property
    def tokens_per_device(self) -> float | None:
        """Of a step."""
        return self.tokens_per_step / self.num_devices if self.tokens_per_step and self.num_devices else None

    @property
    def least_step_seconds(self) -> float:
        """The seconds of a step at the device's peak, by the convention with the fewest FLOPs; 0 if not known."""
        if self.spec is None or self.peak is None:
            return 0.0
        fewest = min(self.flops_per_token(name) or 0.0 for name in flops.CONVENTIONS)
        return fewest * (self.tokens_per_device or 0.0) / self.peak.flops_per_second

    def flops_per_token(self, convention: str) -> float | None:
        """By a published convention; None without a configuration. Raises KeyError for an unknown one."""
        return (
            flops.flops_per_token(self.spec.model, self.spec.batch.sequence_length, convention) if self.spec else None
        )


def setup_of(started: RunStarted | None, spec: RunSpec | None) -> Setup:
    """The configuration decides on batch and sequence, the run itself on its devices."""
    name = (started.device_kind if started else "") or (spec.topology.device if spec else None) or ""
    device = hardware.find(name)
    figure = device.peak(spec.precision.compute_dtype, spec.precision.quantization) if device and spec else None
    peak = None
    if device and figure:
        peak = Peak(device=device.name, format=figure[1], flops_per_second=figure[0], source=device.source)
    return Setup(
        spec=spec,
        facts=started.facts if started else {},
        tokens_per_step=spec.tokens_per_step if spec else started.tokens_per_step if started else None,
        num_devices=(started.num_devices if started else None) or (spec.topology.num_devices if spec else None),
        device_name=name,
        device=device,
        peak=peak,
    )


def memory_fraction(
    records: Sequence[Record], facts: Mapping[str, Any], device: hardware.Device | None
) -> Estimate | str:
    """The largest share of a device's memory that any process reports over the run, or why there is none.

    A process reports a fraction, or bytes that are compared with the device's memory. Without a report it is what the
    compiled step needs.
    """
    fraction, used = _most(records, "memory_fraction"), _most(records, "memory_bytes")
    if fraction is not None:
        return Estimate.exactly(fraction, "as reported, the most of the run")
    if device is None:
        return "the device's memory is not known"
    if used is not None:
        origin = "reported bytes of the device's memory, the most of the run"
        return Estimate.exactly(used / device.memory_bytes, origin)
    account: Mapping[str, int] = facts.get("memory") or {}
    if not {"argument_bytes", "output_bytes", "temp_bytes", "code_bytes"} <= set(account):
        return "the record does not give it"
    needed = sum(account[f"{part}_bytes"] for part in ("argument", "output", "temp", "code"))
    needed -= account.get("alias_bytes", 0)
    return Estimate.exactly(needed / device.memory_bytes, "by the compiler's account")


def _most(records: Sequence[Record], name: str) -> float | None:
    found = (record.steps.reported(name) for record in records if name in record.steps.names)
    known = (values[np.abs(values) < LARGEST] for values in found)
    return max((float(values.max()) for values in known if len(values)), default=None)
