"""The memory that a run needs of each device: arithmetic, before anything runs.

Memory, per device, of the pipeline stage that holds most (bytes):

    parameters   what the optimizer updates, split over tensor and fsdp; of Megatron-LM in bfloat16 or float16 beside
                 that, which ZeRO-1 splits, the weights that are computed with (its theoretical_memory_usage.py)
    optimizer    its moments (Adam: two), split likewise, and over data with ZeRO-1
    gradients    accumulated over the micro-batches, split as the parameters
    activations  what the forward pass keeps of every layer for the backward pass, by the row of recomputation; a
                 pipeline keeps them for as many micro-batches as it has stages (Korthikanti et al., Reducing Activation
                 Recomputation in Large Transformer Models, arXiv 2205.05198, section 4); attention keeps no scores
                 unless its row says so
    working      of two things whichever is larger: one layer in the backward pass, with its weights and their gradient
                 brought together; or the output head, with the logits of one chunk of tokens and their gradient

Of Seatrial's own trainer more is known: see `own_memory`.

What a runtime takes beside that (CUDA context, communication buffers, fragmentation) is not in it: some gigabytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from seatrial.estimate import hardware, own_memory
from seatrial.estimate.layer_memory import (
    BYTES,
    layer_activations,
    layer_kept,
    layer_parameters,
    layer_scores,
    layers_in_flight,
    most_layers,
)
from seatrial.estimate.own_memory import OwnMemory
from seatrial.spec import Optimizer, RunSpec
from seatrial.xla_flags import OWN_SHARE, SHARE_VARIABLES

# Values that an optimizer keeps for each parameter; of `HAVE_MOMENTUM` one more, where there is any.
MOMENTS = {
    "adamw": 2, "adamw_fp32": 2, "adam": 2, "sgd": 0, "adadelta": 2, "adamax": 2, "adagrad": 1, "rmsprop": 1,
    "rprop": 2, "novograd": 1, "adafactor": 0,
}  # fmt: skip
HAVE_MOMENTUM = ("sgd", "rmsprop")

# From the row that recomputes least to the one that recomputes most: what "auto" chooses from.
BY_RECOMPUTATION = (
    "none", "minimal_with_context", "minimal", "save_dot_with_context_except_mlp", "save_dot_except_mlp",
    "save_qkv_proj", "save_out_proj", "full",
)  # fmt: skip
DOUBT = 0.1  # by how much the estimate may be too high
ROOM = 0.9  # of the memory is what "auto" fills by the estimate
WORKING = 1.5  # times what one layer keeps, while its backward pass runs

OWN = "native"  # the engine that is Seatrial's own trainer
MAXTEXT, MEGATRON = "maxtext", "megatron"
FSDP, DATA = "fsdp", "data"
PARAMETERS, OPTIMIZER = "parameters", "optimizer"
# Keys of engines that keep state in the host's memory: MaxText's, with what they keep there; Megatron-LM's.
OFFLOADED = {"parameter_memory_host_offload": PARAMETERS, "optimizer_memory_host_offload": OPTIMIZER}
OFFLOADS, OFFLOADED_SHARE = "--optimizer-cpu-offload", "--optimizer-offload-fraction"
# Engines whose processes get the memory of a GPU from JAX, and the share of it that JAX takes if no variable says
# otherwise. It is a limit, even where it is not taken at the start (XLA_PYTHON_CLIENT_PREALLOCATE=false).
SHARES = {OWN: OWN_SHARE, MAXTEXT: 0.75}
GPUS = ("nvidia", "amd")  # vendors; a TPU's memory is all for its process
ALLOCATOR = "XLA_PYTHON_CLIENT_ALLOCATOR"  # of which the row "platform" knows no share
# The engine of those who have a configuration in this spelling, where nobody has said what is to train.
USUAL_ENGINES = {"native": OWN, "cvs-jax": MAXTEXT, "cvs-2026": MAXTEXT, "maxtext": MAXTEXT}


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes per device, by what they hold; `state_bytes` is what no way of computing can do without."""

    parameters_bytes: float
    optimizer_bytes: float
    gradients_bytes: float
    activations_bytes: float
    working_bytes: float
    state_bytes: float

    @property
    def parts(self) -> dict[str, float]:
        """Bytes by what they hold."""
        return {name.removesuffix("_bytes"): value for name, value in vars(self).items() if name != "state_bytes"}

    @property
    def total_bytes(self) -> float:
        return sum(self.parts.values())


def per_device(spec: RunSpec, engine: str, *, chunk_tokens: int | None = own_memory.CHUNK_TOKENS) -> Memory:
    """The memory that a spec needs of each device when an engine trains it; its mesh must fit its devices.

    `chunk_tokens` are those whose logits another engine than ours holds at once; None: all of a micro-batch.
    """
    spec, own = decided(_looped(spec, engine), engine), engine == OWN
    model, mesh, precision = spec.model, spec.mesh, spec.precision
    tensor, compute = mesh["tensor"], BYTES[precision.compute_dtype]
    layer, head = layer_parameters(spec), model.hidden_dim * _padded_vocabulary(spec) / tensor
    ends = head if model.tied_embeddings or (mesh["pipeline"] > 1 and not own) else 2 * head
    ends += _positions(spec)
    layers = layer * most_layers(spec)
    held, each = layers + ends, _of_parameter(spec, engine)
    split = held / shards(spec, engine)[FSDP]
    tokens = spec.sequences_per_example * spec.batch.micro_batch_size * spec.batch.sequence_length / mesh["context"]
    one_layer = tokens * (layer_kept(spec, "none", whole_width=True) * compute + layer_scores(spec))
    chunk = own_memory.chunk_tokens(spec) if own else chunk_tokens or tokens
    logits = min(tokens, chunk) * _padded_vocabulary(spec) / tensor
    floats = 1 if own else 2  # XLA fuses the exponentials with what reads them
    of_head = logits * (floats * BYTES["float32"] + compute) + head * compute
    gradients = split * BYTES[precision.gradient_dtype]
    if own:
        state = split * (each.weights + each.optimizer)
        parts = OwnMemory(
            spec=spec, tokens=tokens, layer=layer, layers=layers, head=head, held=held, state=state, of_head=of_head
        )  # fmt: skip
        gradients, activations, working = max(parts.moments(), key=sum)
    else:
        activations = layers_in_flight(spec, own) * tokens * layer_activations(spec, own)
        working = max(WORKING * one_layer + layer * 2 * compute, of_head + head * BYTES["float32"])
    return Memory(
        parameters_bytes=split * each.weights,
        optimizer_bytes=split * each.optimizer,
        gradients_bytes=gradients,
        activations_bytes=activations,
        working_bytes=working,
        state_bytes=split * (each.least + each.optimizer),
    )


def _looped(spec: RunSpec, engine: str) -> RunSpec:
    """The spec with its layers in a loop only where the engine has one: a loop that recomputes nothing keeps more."""
    if engine != MEGATRON or not spec.execution.scan_layers:
        return spec
    return replace(spec, execution=replace(spec.execution, scan_layers=False))


@dataclass(frozen=True, kw_only=True)
class _OfParameter:
    """Bytes for each parameter that fsdp leaves to a device: weights, moments, and the least of weights and gradient.

    The least is what no other number formats could save.
    """

    weights: float
    optimizer: float
    least: float


def _of_parameter(spec: RunSpec, engine: str) -> _OfParameter:
    """The bytes of the state for each parameter: what is computed with, what is updated, moments."""
    precision, zero = spec.precision, shards(spec, engine)[DATA] if spec.parallelism.zero1 else 1
    compute, stored = BYTES[precision.compute_dtype], BYTES[precision.params_dtype]
    gradient = min(compute, BYTES[precision.gradient_dtype]) / zero
    moved = on_host(spec, engine)
    optimizer = moments(spec.optimizer) * BYTES[precision.optimizer_dtype] / zero * (1 - moved[OPTIMIZER])
    if _has_two_weights(spec, engine):
        weights = compute + stored / zero * (1 - moved[OPTIMIZER])
        if not spec.parallelism.zero1:  # its update wants gradients in their format
            return _OfParameter(weights=weights, optimizer=optimizer, least=weights + stored)
        least = compute + (stored - compute) / zero * (1 - moved[OPTIMIZER])  # the rest of each number would do
    else:
        weights, part = stored * (1 - moved[PARAMETERS]), min(stored, compute) if zero > 1 else stored
        least = (part + (stored - part) / zero) * (1 - moved[PARAMETERS])
    return _OfParameter(weights=weights, optimizer=optimizer, least=least + gradient)


def _has_two_weights(spec: RunSpec, engine: str) -> bool:
    """True if the optimizer has weights of its own beside those that are computed with; NxDT's only with ZeRO-1."""
    precision = spec.precision
    is_mixed = engine == MEGATRON and BYTES[precision.compute_dtype] < BYTES[precision.params_dtype]
    return is_mixed and (spec.parallelism.zero1 or spec.dialect != "nxdt")


def moments(optimizer: Optimizer) -> int:
    """The values that an optimizer keeps for each parameter."""
    return MOMENTS[optimizer.algorithm] + bool(optimizer.momentum and optimizer.algorithm in HAVE_MOMENTUM)


def groups(spec: RunSpec, engine: str) -> dict[str, tuple[str, ...]]:
    """The axes over which fsdp splits parameters, and those over which data sums gradients and ZeRO-1 splits state.

    Devices of a context axis have the same parameters, too: MaxText splits those over both axes, and of Megatron-LM's
    replicas each such device is one of its own.
    """
    joined = {OWN: None, MAXTEXT: FSDP}.get(engine, FSDP if spec.mesh[FSDP] > 1 else DATA)
    return {axis: (axis, "context") if axis == joined else (axis,) for axis in (FSDP, DATA)}


def shards(spec: RunSpec, engine: str) -> dict[str, int]:
    """The devices of each of the `groups`."""
    mesh = spec.mesh
    return {axis: math.prod(mesh[each] for each in axes) for axis, axes in groups(spec, engine).items()}


def on_host(spec: RunSpec, engine: str) -> dict[str, float]:
    """The shares of parameters and of the optimizer's state that an engine's keys put into the host's memory."""
    keys, found = spec.execution.engine_keys, {PARAMETERS: 0.0, OPTIMIZER: 0.0}
    if engine == MAXTEXT:
        for name, part in OFFLOADED.items():
            found[part] = float(keys.get(name, "").lower() == "true")
    elif engine == MEGATRON and OFFLOADS in keys:
        found[OPTIMIZER] = fraction(keys.get(OFFLOADED_SHARE, "1"), 0.0)
    return found


def is_uncertain(spec: RunSpec) -> bool:
    """True if the estimate of our own trainer can be far off: how long XLA waits is its own choice."""
    return not spec.execution.scan_layers and math.prod(spec.mesh.values()) > spec.mesh["pipeline"]


def usual_engine(spec: RunSpec) -> str:
    """The engine of a run for which none is named, by the dialect of its configuration."""
    return USUAL_ENGINES.get(spec.dialect, MEGATRON)


def share(spec: RunSpec, engine: str) -> tuple[float, str]:
    """The share of a device's memory that a process of an engine gets, and the variable that says so ("": none)."""
    if not is_shared(spec, engine) or _exported(spec, ALLOCATOR) == "platform":
        return 1.0, ""
    name = next((name for name in SHARE_VARIABLES if _exported(spec, name)), "")
    return fraction(_exported(spec, name) or None, SHARES[engine]), name


def is_shared(spec: RunSpec, engine: str) -> bool:
    """True if a process of an engine gets a share of a device's memory: of GPUs, and what may be one."""
    device = hardware.find(spec.topology.device)
    return engine in SHARES and (device is None or device.vendor in GPUS)


def available_bytes(spec: RunSpec, engine: str) -> float | None:
    """The bytes of each device's memory that a process of an engine gets; None where the device is not known."""
    device = hardware.find(spec.topology.device)
    return device.memory_bytes * share(spec, engine)[0] if device else None


def fraction(text: str | None, otherwise: float = 1.0) -> float:
    """A share that is given as text, where it is one."""
    try:
        part = float(text) if text is not None else otherwise
    except ValueError:
        return otherwise
    return part if 0 < part <= 1 else otherwise


def decided(spec: RunSpec, engine: str, memory_bytes: float | None = None) -> RunSpec:
    """The spec with the least recomputation by which it fits its devices, where it leaves that open ("auto").

    `memory_bytes`: of each device; None: what is known of it. What fits in no way, and what fits an unknown device, is
    recomputed in full.
    """
    if spec.execution.remat != "auto":
        return spec
    there = (memory_bytes or available_bytes(spec, engine) or 0.0) * ROOM
    rows = [replace(spec, execution=replace(spec.execution, remat=row)) for row in BY_RECOMPUTATION]
    return next((row for row in rows if per_device(row, engine).total_bytes <= there), rows[-1])


def _padded_vocabulary(spec: RunSpec) -> int:
    multiple = spec.model.vocab_multiple * spec.mesh["tensor"]
    return -(-spec.model.vocab_size // multiple) * multiple


def _exported(spec: RunSpec, name: str) -> str:
    """A variable as the configuration exports it to every process; empty where it does not."""
    inside = spec.container.environment if spec.container else {}
    return inside.get(name, spec.execution.environment.get(name, ""))


def _positions(spec: RunSpec) -> float:
    """Parameters of a table of learned positions."""
    if spec.model.positions != "learned":
        return 0.0
    return (spec.model.max_positions or spec.batch.sequence_length) * spec.model.hidden_dim / spec.mesh["tensor"]
