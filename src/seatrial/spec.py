"""What a training run is, in the field's standard terms.

A `RunSpec` is what every dialect is read into and what everything after works from. Its parts are frozen, keyword-only
and dumb: no I/O, nothing reads the machine, derived values are properties. Values are already coerced; a field that a
dialect cannot express keeps its default. Where a value came from is not part of the spec: it stands in
`Resolved.origins`, by dotted spec path.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from seatrial.errors import Mark, Problem

Dtype = Literal["float32", "bfloat16"]

# Mesh axes, slowest first: neighbours along the last axis exchange the most data, so they must be closest.
AXES = ("pipeline", "data", "fsdp", "context", "tensor")


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """Llama 3.1's frequency-dependent stretching of rotary positions (`rope_type: llama3`)."""

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A Llama-family decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU."""

    name: str
    vocab_size: int
    hidden_dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_dim: int
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    norm_epsilon: float = 1e-5
    tied_embeddings: bool = False


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The machines that the run asks for."""

    num_nodes: int = 1
    devices_per_node: int = 1
    device: str | None = None  # a name of `hardware.DEVICES`; None: whatever is there

    @property
    def num_devices(self) -> int:
        return self.num_nodes * self.devices_per_node


@dataclass(frozen=True, kw_only=True)
class MeshShape:
    """A size per mesh axis; one of them may be -1, which means: all devices that the others leave."""

    pipeline: int = 1
    data: int = 1
    fsdp: int = 1
    context: int = 1
    tensor: int = 1

    @property
    def sizes(self) -> dict[str, int]:
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def product(self) -> int:
        """Devices that the mesh needs; with a -1 in it, the product of the other axes."""
        return math.prod(size for size in self.sizes.values() if size != -1)

    @property
    def is_resolved(self) -> bool:
        return -1 not in self.sizes.values()

    def resolve(self, num_devices: int) -> MeshShape:
        """The same shape with its -1 replaced by what `num_devices` leaves, or unchanged where that does not divide."""
        if self.is_resolved or num_devices % self.product:
            return self
        rest = num_devices // self.product
        return MeshShape(**{axis: rest if size == -1 else size for axis, size in self.sizes.items()})


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """How the work is split: `within_node` over fast links (MaxText's ici), `across_nodes` over the network (dcn)."""

    within_node: MeshShape = field(default_factory=MeshShape)
    across_nodes: MeshShape = field(default_factory=MeshShape)
    zero1: bool = False  # optimizer state sharded over `data`, parameters replicated
    sequence_parallel: bool = False  # Megatron: activations between blocks sharded along the sequence over `tensor`


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Sequences per optimizer step (`global_batch_size`) and per data-parallel replica and forward pass (micro)."""

    sequence_length: int
    global_batch_size: int
    micro_batch_size: int


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Number formats. `params_dtype` is what the optimizer updates (float32: "master weights")."""

    compute_dtype: Dtype = "bfloat16"
    params_dtype: Dtype = "float32"
    optimizer_dtype: Dtype = "float32"
    quantization: str | None = None  # e.g. "fp8"; None: the matrix products run in compute_dtype


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """AdamW with linear warm-up, cosine decay to `final_learning_rate_fraction`, and clipping by global norm."""

    learning_rate: float = 3e-5
    warmup_steps: int = 0
    decay_steps: int | None = None  # length of the whole schedule, warm-up included; None: the run's steps
    final_learning_rate_fraction: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float | None = 1.0


@dataclass(frozen=True, kw_only=True)
class Data:
    """What is learnt. `synthetic`: one random batch, again in every step, as MaxText's. `text`: files, tokenised."""

    kind: Literal["synthetic", "text"] = "synthetic"
    # Files or globs; `stdlib:*.py` names files of the running Python's standard library.
    paths: tuple[str, ...] = ()
    tokenizer: Literal["byte"] = "byte"


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Choices that change speed and memory, never the result."""

    remat: str = "full"  # a row of the trainer's remat table
    scan_layers: bool = True
    attention: str = "auto"  # a row of the trainer's attention table
    xla_flags: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)  # exported to every process


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    enabled: bool = False
    asynchronous: bool = True


@dataclass(frozen=True, kw_only=True)
class Distributed:
    """How the processes find each other; the defaults of the timeouts are JAX's own."""

    coordinator_host: str | None = None  # None: the first node
    coordinator_port: int | None = None  # None: a free port, chosen at launch
    initialization_timeout_seconds: int = 300
    heartbeat_timeout_seconds: int = 100


@dataclass(frozen=True, kw_only=True)
class Container:
    image: str
    name: str | None = None
    devices: tuple[str, ...] = ()
    volumes: tuple[tuple[str, str], ...] = ()  # (host path, container path)
    environment: Mapping[str, str] = field(default_factory=dict)
    shm_size: str | None = None


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
    """A bar from the configuration: `metric` (of METRICS) must reach `value`, within `tolerance` (fraction of it)."""

    metric: str
    value: float
    tolerance: float | None = None  # None: the verdict's default


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One training run."""

    name: str
    dialect: str  # which spelling it was read from: "native", "cvs-jax", …
    model: ModelSpec
    batch: Batch
    steps: int
    topology: Topology = field(default_factory=Topology)
    parallelism: Parallelism = field(default_factory=Parallelism)
    precision: Precision = field(default_factory=Precision)
    optimizer: Optimizer = field(default_factory=Optimizer)
    data: Data = field(default_factory=Data)
    execution: Execution = field(default_factory=Execution)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    distributed: Distributed = field(default_factory=Distributed)
    container: Container | None = None
    nic_type: str | None = None
    hf_token_file: str | None = None  # the path; the token itself is never read into a spec
    log_dir: str | None = None
    expectations: tuple[Expectation, ...] = ()
    seed: int = 0

    @property
    def mesh(self) -> dict[str, int]:
        """Axis → size over all devices, -1 resolved: across_nodes × within_node per axis."""
        fast = self.parallelism.within_node.resolve(self.topology.devices_per_node).sizes
        slow = self.parallelism.across_nodes.resolve(self.topology.num_nodes).sizes
        return {axis: fast[axis] * slow[axis] for axis in AXES}

    @property
    def data_parallel_size(self) -> int:
        """Replicas that read different sequences: the data and fsdp axes."""
        return self.mesh["data"] * self.mesh["fsdp"]

    @property
    def accumulation_steps(self) -> int:
        """Forward and backward passes per optimizer step."""
        return max(1, self.batch.global_batch_size // (self.batch.micro_batch_size * self.data_parallel_size))

    @property
    def tokens_per_step(self) -> int:
        return self.batch.global_batch_size * self.batch.sequence_length


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a value of the spec came from.

    `key` is the user's key (dotted path from the root of the file, or the override's), `text` the value as written,
    `note` says how the value was made from it where that is not plain.
    """

    kind: Literal["file", "override", "default", "derived"]
    key: str = ""
    text: str = ""
    note: str = ""
    mark: Mark | None = None


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """What reading a configuration gives: the spec (None where errors left none), origins by spec path, findings."""

    spec: RunSpec | None
    origins: Mapping[str, Origin]
    problems: tuple[Problem, ...]

    def origin(self, path: str) -> Origin:
        """The origin of a spec path; the nearest parent's where the path itself has none, else the default."""
        while path:
            if path in self.origins:
                return self.origins[path]
            path = path.rpartition(".")[0]
        return Origin(kind="default")


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
