"""Events → Metrics: what the record of a run amounts to.

A run is read in this order. *Attempts*: a process that starts again, or whose step counter goes back, begins a new one.
*Record*: each step as the last attempt that ran it left it; the record of the lowest process that reports steps counts,
the others are compared with it. *Window*: the steps of the last complete attempt that a policy takes;
ours takes those that neither the warm-up nor a checkpoint has stretched, and their median. *Identities*: what has to
hold between the figures of a log and the configuration. What a record does not give stays None ("not reported"),
never 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from seatrial.events import Eval, Event, decode, encode
from seatrial.metrics.causes import Diagnosis, FaultRecord
from seatrial.metrics.completion import Completion, measure_completion
from seatrial.metrics.identities import Identity
from seatrial.metrics.interval import Estimate
from seatrial.metrics.numerics import Numerics, measure_numerics
from seatrial.metrics.performance import (
    Performance,
    Straggler,
    days_to_train,
    measure_performance,
    time_to_train,
    work_of_a_step,
)
from seatrial.metrics.record import Ranges, ranges, records, show_ranges
from seatrial.metrics.shifts import Shift
from seatrial.metrics.window import DEFAULT_POLICY, POLICIES, StepTimes
from seatrial.recording import Recording
from seatrial.spec import RunSpec

__all__ = [
    "DEFAULT_POLICY", "POLICIES", "Completion", "Diagnosis", "Estimate", "FaultRecord", "Identity", "Metrics",
    "Numerics", "Performance", "Ranges", "Shift", "StepTimes", "Straggler", "days_to_train", "from_dict", "measure",
    "ranges", "records", "show_ranges", "time_to_train", "to_dict", "work_of_a_step",
]  # fmt: skip

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Everything that a run is judged by."""

    completion: Completion
    numerics: Numerics
    performance: Performance


def measure(
    events: Iterable[Event],
    spec: RunSpec | None,
    *,
    planned_steps: int | None = None,
    convention: str | None = None,
    policy: str = DEFAULT_POLICY,
) -> Metrics:
    """The metrics of a run by its events, which come in the order of time, from any number of processes.

    `spec` is what was run: in a rehearsal, the rehearsed one; None: no configuration is known, but perhaps the
    `planned_steps`. `convention` is how FLOPs are counted, None: as the log does, as far as that is recognised.
    `policy` is a name of POLICIES. Raises KeyError for an unknown convention or policy.
    """
    events = Recording.of(events)
    found = records(events)
    return Metrics(
        completion=measure_completion(events, spec, found, planned_steps=planned_steps),
        numerics=measure_numerics(found, [event for event in events.others if isinstance(event, Eval)]),
        performance=measure_performance(
            events.others, spec, found, planned_steps=planned_steps, convention=convention, policy=policy
        ),
    )


def to_dict(metrics: Metrics) -> dict[str, Any]:
    """The metrics as plain data that JSON can carry, for `metrics.json`."""
    return {"v": VERSION, **encode(dataclasses.asdict(metrics))}


def from_dict(data: Mapping[str, Any]) -> Metrics:
    """The inverse of `to_dict`. Raises pydantic.ValidationError for anything else."""
    return decode(Metrics, {key: value for key, value in data.items() if key != "v"})
