"""A training run, in the field's standard terms.

A `RunSpec` is what every dialect is read into and what everything after works from. Its parts are frozen, keyword-only
and dumb: no I/O, nothing reads the machine, derived values are properties. Values are already coerced; a field that a
dialect cannot express keeps its default. Where a value came from is not part of the spec: it stands in
`Resolved.origins`, by dotted spec path.
"""

from seatrial.spec.action import NEEDS, Action, Needs
from seatrial.spec.divisibility import LOSS_TOKENS, Split, uneven_splits
from seatrial.spec.machines import AXES, Container, Distributed, MeshShape, Parallelism, Topology
from seatrial.spec.model import Dropout, Initialization, ModelSpec, RopeScaling
from seatrial.spec.origins import Origin, Resolved
from seatrial.spec.run import METRICS, Expectation, MetricKind, Part, RunSpec, flatten, from_dict, gather_part, to_dict
from seatrial.spec.training import (
    INPUT,
    NOT_QUANTIZATIONS,
    QUANTIZATIONS,
    TENSORS,
    Algorithm,
    Batch,
    Checkpoint,
    Data,
    Dtype,
    Evaluation,
    Execution,
    Logging,
    Objective,
    Optimizer,
    Precision,
    ScheduleKind,
)

__all__ = [
    "AXES",
    "INPUT",
    "LOSS_TOKENS",
    "METRICS",
    "NEEDS",
    "NOT_QUANTIZATIONS",
    "QUANTIZATIONS",
    "TENSORS",
    "Action",
    "Algorithm",
    "Batch",
    "Checkpoint",
    "Container",
    "Data",
    "Distributed",
    "Dropout",
    "Dtype",
    "Evaluation",
    "Execution",
    "Expectation",
    "Initialization",
    "Logging",
    "MeshShape",
    "MetricKind",
    "ModelSpec",
    "Needs",
    "Objective",
    "Optimizer",
    "Origin",
    "Parallelism",
    "Part",
    "Precision",
    "Resolved",
    "RopeScaling",
    "RunSpec",
    "ScheduleKind",
    "Split",
    "Topology",
    "flatten",
    "from_dict",
    "gather_part",
    "to_dict",
    "uneven_splits",
]
