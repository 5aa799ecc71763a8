"""Events → Metrics: what the record of a run amounts to.

A run is read in this order. *Attempts*: a process that starts again, or whose step counter goes back, begins a new one.
*Record*: each step as the last attempt that ran it left it; the lowest process that reports steps is the one whose
record counts, the others are held against it. *Steady window*: those steps of the last attempt with enough of them
that neither the warm-up nor a checkpoint has stretched. Speed is the median of that window. What a record does not
give stays None ("not reported"), never 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from seatrial import flops
from seatrial.events import Event, encode
from seatrial.metrics.completion import Completion, FaultRecord, ProcessRecord, measure_completion
from seatrial.metrics.numerics import Numerics, measure_numerics
from seatrial.metrics.performance import (
    Estimate,
    Peak,
    Performance,
    StepTimes,
    days_to_train,
    measure_performance,
    sequences_per_second,
    tokens_per_second,
)
from seatrial.metrics.record import LAUNCHER, Ranges, Record, record_that_counts, records, show_ranges
from seatrial.spec import RunSpec

__all__ = [
    "Completion",
    "Estimate",
    "FaultRecord",
    "Metrics",
    "Numerics",
    "Peak",
    "Performance",
    "ProcessRecord",
    "Ranges",
    "Record",
    "StepTimes",
    "days_to_train",
    "from_dict",
    "measure",
    "record_that_counts",
    "records",
    "sequences_per_second",
    "show_ranges",
    "to_dict",
    "tokens_per_second",
]

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Everything that a run is judged by."""

    completion: Completion
    numerics: Numerics
    performance: Performance


def measure(events: Iterable[Event], spec: RunSpec, *, convention: str = flops.DEFAULT_CONVENTION) -> Metrics:
    """What the events of a run amount to; they come in the order of time, from any number of processes.

    `spec` is what was run: in a rehearsal, the rehearsed one. Raises KeyError for an unknown FLOPs convention.
    """
    events = list(events)
    found = records(events)
    launcher = found.pop(LAUNCHER, None)
    own = record_that_counts(found)
    others = [record for record in found.values() if record is not own]
    return Metrics(
        completion=measure_completion(events, spec, own, others, launcher.ended if launcher else None),
        numerics=measure_numerics(own, others),
        performance=measure_performance(events, spec, own, convention),
    )


def to_dict(metrics: Metrics) -> dict[str, Any]:
    """The metrics as plain data that JSON can carry, for `metrics.json`."""
    return {"v": VERSION, **encode(dataclasses.asdict(metrics))}


def from_dict(data: Mapping[str, Any]) -> Metrics:
    """The inverse of `to_dict`. Raises pydantic.ValidationError for anything else."""
    from pydantic import TypeAdapter  # late: only the border pays for it

    return TypeAdapter(Metrics).validate_python({key: value for key, value in data.items() if key != "v"})
