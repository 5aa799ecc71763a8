"""What a field of the spec may hold beyond its type: one table for the reader and for the JSON Schema."""

from __future__ import annotations

from typing import Any

from seatrial.check import REMAT
from seatrial.dialects.table import coerce
from seatrial.dialects.table.coerce import Range
from seatrial.estimate import hardware
from seatrial.spec import (
    METRICS,
    Data,
    Distributed,
    Dropout,
    Evaluation,
    Execution,
    Expectation,
    MeshShape,
    ModelSpec,
    Optimizer,
    RunSpec,
)

FRACTION = Range(low=0, high=1)
LESS_THAN_ALL = Range(low=0, high=1, below=True)
FROM_ZERO = Range(low=0)
COUNT = Range(low=1)
POSITIVE = Range(low=0, above=True)
AXIS = Range(low=1, also=-1)

_RANGES: dict[tuple[type, str], Range] = {
    (RunSpec, "seed"): Range(low=0, high=2**31 - 1),
    (ModelSpec, "rotary_fraction"): Range(low=0, high=1, above=True),
    (Dropout, "hidden"): LESS_THAN_ALL,
    (Dropout, "attention"): LESS_THAN_ALL,
    (Dropout, "ffn"): LESS_THAN_ALL,
    (Optimizer, "warmup_steps"): FROM_ZERO,
    (Optimizer, "hold_steps"): FROM_ZERO,
    (Optimizer, "constant_steps"): FROM_ZERO,
    (Optimizer, "final_learning_rate_fraction"): FRACTION,
    (Optimizer, "beta1"): LESS_THAN_ALL,
    (Optimizer, "beta2"): LESS_THAN_ALL,
    (Optimizer, "momentum"): FRACTION,
    (Optimizer, "weight_decay"): FROM_ZERO,
    (Data, "weights"): FROM_ZERO,
    (Evaluation, "interval_fraction"): Range(low=0, high=1, above=True),
    (Evaluation, "fraction"): FRACTION,
    (Evaluation, "initial_batches"): Range(low=0, also=-1),
    (Evaluation, "target_loss"): Range(low=0, above=True),
    (Execution, "profile_from_step"): FROM_ZERO,
    (Distributed, "coordinator_port"): Range(low=1, high=65535),
    (Expectation, "tolerance"): LESS_THAN_ALL,
}

CHOICES: dict[tuple[type, str], tuple[str, ...]] = {
    (Execution, "remat"): (*REMAT, "selective", "auto"),
    (Expectation, "metric"): tuple(METRICS),
}


def range_of(owner: type, name: str, kind: Any) -> Range:
    """Which numbers a field of a type takes: those of its row, else every size of an axis, count or positive number."""
    if owner is MeshShape:
        return AXIS
    return _RANGES.get((owner, name), COUNT if kind is int else POSITIVE)


def in_range(owner: type, name: str, value: Any) -> Any:
    """The number, if its field takes it. Raises ValueError with what is wrong with it."""
    limits = range_of(owner, name, type(value))
    if not limits.holds(value):
        raise ValueError(f"{coerce.shown(value)} is {limits.missed_by(value)}")
    return value


def device(value: str) -> str:
    """A device by any of its names. Raises ValueError for one that is not known."""
    found = hardware.find(value)
    if found is None:
        raise ValueError(f"{coerce.shown(value)} is no known device; known are {', '.join(hardware.DEVICES)}")
    return found.name
