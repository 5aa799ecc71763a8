"""Measures the share of its memory that a device needed: as reported, else by the compiler's account."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seatrial.estimate import hardware
from seatrial.metrics.interval import Estimate, is_number
from seatrial.metrics.record import Record


def memory_fraction(
    records: Sequence[Record], facts: Mapping[str, Any], device: hardware.Device | None
) -> Estimate | str:
    """The largest share of a device's memory that any process reports over the run, or why there is none.

    A process reports a fraction, or bytes that are compared with the device's memory. Without a report it is what the
    compiled step needs.
    """
    fraction, used = _most(records, "memory_fraction"), _most(records, "memory_bytes")
    if fraction is not None:
        return _exactly(fraction, "as reported, the most of the run")
    if device is None:
        return "the device's memory is not known"
    if used is not None:
        return _exactly(used / device.memory_bytes, "reported bytes of the device's memory, the most of the run")
    account: Mapping[str, int] = facts.get("memory") or {}
    if not {"argument_bytes", "output_bytes", "temp_bytes", "code_bytes"} <= set(account):
        return "the record does not give it"
    needed = sum(account[f"{part}_bytes"] for part in ("argument", "output", "temp", "code"))
    return _exactly((needed - account.get("alias_bytes", 0)) / device.memory_bytes, "by the compiler's account")


def _exactly(fraction: float, origin: str) -> Estimate:
    return Estimate(value=fraction, low=fraction, high=fraction, origin=origin)


def _most(records: Sequence[Record], name: str) -> float | None:
    found = [step.reported[name] for record in records for step in record.steps if name in step.reported]
    return max((value for value in found if is_number(value)), default=None)
