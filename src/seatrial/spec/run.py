"""The whole run, and the targets that it must reach."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from seatrial.spec.machines import AXES, Container, Distributed, Parallelism, Topology
from seatrial.spec.model import Dropout, Initialization, ModelSpec
from seatrial.spec.training import (
    Batch,
    Checkpoint,
    Data,
    Evaluation,
    Execution,
    Logging,
    Objective,
    Optimizer,
    Precision,
)


@dataclass(frozen=True, kw_only=True)
class MetricKind:
    """A metric that a run can be held to: its unit, and which way is better."""

    title: str
    unit: str
    better: Literal["higher", "lower"]


# The registry of metrics: direction comes from here, never from a name or a sign.
METRICS: dict[str, MetricKind] = {
    "tflops_per_second_per_device": MetricKind(title="Model TFLOP/s per device", unit="TFLOP/s", better="higher"),
    "tokens_per_second_per_device": MetricKind(title="Tokens/s per device", unit="tokens/s", better="higher"),
    "step_seconds": MetricKind(title="Step time", unit="s", better="lower"),
    "mfu": MetricKind(title="Model FLOPs utilisation", unit="fraction", better="higher"),
    "memory_fraction": MetricKind(title="Device memory used", unit="fraction", better="lower"),
}


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """A target of the configuration: `metric` (of METRICS) must reach `value`, within `tolerance` (fraction of it)."""

    metric: str
    value: float
    tolerance: float | None = None  # None: the verdict's default


ENDLESS = 2**31 - 1  # steps of a run whose data decide


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One training run."""

    name: str
    dialect: str  # which spelling it was read from: "native", "cvs-jax", …
    model: ModelSpec
    batch: Batch
    steps: int | None  # None: as many as the epochs have, which only the data can tell
    epochs: int | None = None  # a run ends after so many, if that is sooner
    topology: Topology = field(default_factory=Topology)
    parallelism: Parallelism = field(default_factory=Parallelism)
    precision: Precision = field(default_factory=Precision)
    initialization: Initialization = field(default_factory=Initialization)
    dropout: Dropout = field(default_factory=Dropout)
    optimizer: Optimizer = field(default_factory=Optimizer)
    objective: Objective = field(default_factory=Objective)
    data: Data = field(default_factory=Data)
    evaluation: Evaluation = field(default_factory=Evaluation)
    logging: Logging = field(default_factory=Logging)
    execution: Execution = field(default_factory=Execution)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    distributed: Distributed = field(default_factory=Distributed)
    container: Container | None = None
    nic_type: str | None = None
    hf_token_file: str | None = None  # the path; the token itself is never read into a spec
    log_dir: str | None = None
    expectations: tuple[Expectation, ...] = ()
    seed: int = 0

    @cached_property
    def mesh(self) -> Mapping[str, int]:
        """Axis → size over all devices, -1 resolved: across_nodes × within_node per axis."""
        fast = self.parallelism.within_node.resolve(self.topology.devices_per_node).sizes
        slow = self.parallelism.across_nodes.resolve(self.topology.num_nodes).sizes
        return {axis: fast[axis] * slow[axis] for axis in AXES}

    @property
    def step_limit(self) -> int:
        """The steps that the run has at most; more than any has, where only the data can tell."""
        return ENDLESS if self.steps is None else self.steps

    @property
    def data_parallel_size(self) -> int:
        """Replicas that read different sequences: the data and fsdp axes."""
        return self.mesh["data"] * self.mesh["fsdp"]

    @property
    def accumulation_steps(self) -> int:
        """Forward and backward passes per optimizer step."""
        return max(1, self.batch.global_batch_size // (self.batch.micro_batch_size * self.data_parallel_size))

    @property
    def sequences_per_example(self) -> int:
        """Batch sizes count examples; a preference is one, with two answers to the same prompt."""
        return 2 if self.objective.kind in ("dpo", "orpo") else 1

    @property
    def sequences_per_step(self) -> int:
        return self.batch.global_batch_size * self.sequences_per_example

    @property
    def tokens_per_step(self) -> int:
        return self.sequences_per_step * self.batch.sequence_length

    @property
    def masks_tokens(self) -> bool:
        """True if the loss may leave out tokens of a batch: prompts, padding, ends of documents, labels of -100."""
        fills_sequences = self.data.kind in ("synthetic", "text", "megatron")  # no others cut them out of a stream
        return self.objective.kind != "pretraining" or self.data.mask_document_ends or not fills_sequences


def to_dict(spec: RunSpec) -> dict[str, Any]:
    """The spec as plain data, for `spec.json`."""
    return dataclasses.asdict(spec)


def from_dict(data: Mapping[str, Any]) -> RunSpec:
    """The inverse of `to_dict`, types checked. Raises pydantic.ValidationError for anything that is not a spec."""
    from pydantic import TypeAdapter  # late: only the border pays for it

    return TypeAdapter(RunSpec).validate_python(data)


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """A spec, or a part of one, as dotted path → leaf value; tuples and mappings count as leaves."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        leaves: dict[str, Any] = {}
        for f in dataclasses.fields(value):
            leaves |= flatten(getattr(value, f.name), f"{path}.{f.name}" if path else f.name)
        return leaves
    return {path: value}


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


Part = TypeVar("Part", bound=_Dataclass)


def gather_part(kind: type[Part], path: str, values: Mapping[str, Any], /, **defaults: Any) -> Part:
    """A part of a spec from the leaves that stand under its path: what `flatten` takes apart."""
    given = {name: values[leaf] for name in kind.__dataclass_fields__ if (leaf := f"{path}.{name}") in values}
    return kind(**(defaults | given))
