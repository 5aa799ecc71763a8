"""What a run will need of each device, and how long a step may take: arithmetic, before anything runs.

Memory, per device, of the pipeline stage that holds most (bytes):

    parameters   what the optimizer updates, split over tensor and fsdp
    optimizer    its moments (Adam: two), split likewise, and over data with ZeRO-1
    gradients    accumulated over the micro-batches, split as the parameters
    activations  what the forward pass keeps of every layer for the backward pass, by the row of recomputation; a
                 pipeline keeps them for as many micro-batches as it has stages (Korthikanti et al., Reducing Activation
                 Recomputation in Large Transformer Models, arXiv 2205.05198, section 4), Seatrial's own for all of a
                 step; attention keeps no scores unless its row says so
    working      of two things whichever is larger: one layer in the backward pass, with its weights and their gradient
                 brought together; or the output head, with the logits of one chunk of tokens and their gradient

What a runtime takes beside that (CUDA context, communication buffers, fragmentation) is not in it: some gigabytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from seatrial import flops, hardware
from seatrial.hardware import Device
from seatrial.spec import RunSpec

BYTES = {"float32": 4, "bfloat16": 2}

# Values that an optimizer keeps for each parameter.
MOMENTS = {
    "adamw": 2, "adamw_fp32": 2, "adam": 2, "sgd": 1, "adadelta": 2, "adamax": 2, "adagrad": 1, "rmsprop": 1,
    "rprop": 2, "novograd": 1, "adafactor": 0,
}  # fmt: skip

# What each row of recomputation keeps beside the layer's input; "none" keeps everything. What the last matrix product
# gives need not be kept: the sum with it is the next layer's input.
KEPT: dict[str, tuple[str, ...]] = {
    "full": (),
    "minimal": ("query", "key", "value", "out", "gate", "up"),
    "minimal_with_context": ("query", "key", "value", "context", "out", "gate", "up"),
    "minimal_flash": ("query", "key", "value", "context", "out", "gate", "up"),
    "save_dot_except_mlp": ("query", "key", "value", "out"),
    "save_dot_with_context_except_mlp": ("query", "key", "value", "context", "out"),
    "save_dot_except_mlpwi": ("query", "key", "value", "out"),
    "save_qkv_proj": ("query", "key", "value"),
    "save_out_proj": ("out",),
    "minimal_offloaded": (),  # the rest waits in the host's memory
    "qkv_proj_offloaded": (),
}
EVERYTHING = (
    "norm", "query", "key", "value", "context", "out", "middle", "norm", "gate", "up", "product",
)  # fmt: skip
# What the row "selective" does not keep of everything, by the parts of a layer that it recomputes: what a part gives
# to a matrix product is kept for that.
PARTS: dict[str, tuple[str, ...]] = {
    "core_attn": (), "mlp": ("gate", "up", "product"), "layernorm": (), "mlp_act": (), "rope": (), "layer": EVERYTHING,
}  # fmt: skip
# From the row that recomputes least to the one that recomputes most: what "auto" chooses from.
BY_RECOMPUTATION = (
    "none", "minimal_with_context", "minimal", "save_dot_with_context_except_mlp", "save_dot_except_mlp",
    "save_qkv_proj", "save_out_proj", "full",
)  # fmt: skip
ROOM = 0.9  # of the memory is what "auto" fills by the estimate
FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"  # the share of an accelerator's memory that JAX takes at its start
DEFAULT_FRACTION = 0.75
WORKING = 1.5  # times what one layer keeps, while its backward pass runs
KEEPS_SCORES = ("dot_product",)  # rows of attention that hold a number for each pair of tokens

CHUNK_TOKENS = 1024  # whose logits are held at once by Seatrial's own trainer; on a CPU it holds fewer

# Model FLOP/s over the peak (causal attention, no recomputation counted) that tuned runs reach: nine in ten of those
# in `published.csv`. A test holds the two against each other.
UTILIZATION = {"bfloat16": (0.40, 0.57), "fp8": (0.30, 0.50)}


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


@dataclass(frozen=True, kw_only=True)
class Speed:
    """A step's shortest and longest time to expect of a tuned run, and the share of the peak that they stand for."""

    step_seconds: tuple[float, float]
    tokens_per_second_per_device: tuple[float, float]  # lowest, highest
    utilization: tuple[float, float]  # lowest, highest; as a fraction
    peak_flops_per_second: float
    peak_format: str


def memory(spec: RunSpec, *, chunk_tokens: int | None = CHUNK_TOKENS, own_pipeline: bool = False) -> Memory:
    """The memory that a spec needs of each device; its mesh must fit its devices.

    `chunk_tokens` are those whose logits are held at once; None: all of a micro-batch. `own_pipeline`: each stage holds
    both ends of the model, and the activations of all micro-batches, as Seatrial's own trainer does.
    """
    spec = decided(spec)
    model, mesh, precision = spec.model, spec.mesh, spec.precision
    tensor, fsdp, zero = mesh["tensor"], mesh["fsdp"], mesh["data"] if spec.parallelism.zero1 else 1
    compute, stored = BYTES[precision.compute_dtype], BYTES[precision.params_dtype]
    layer, head = _layer_parameters(spec), model.hidden_dim * _padded_vocabulary(spec) / tensor
    ends = head if model.tied_embeddings or (mesh["pipeline"] > 1 and not own_pipeline) else 2 * head
    ends += _positions(spec)
    held = layer * model.num_layers / mesh["pipeline"] + ends
    moments = MOMENTS[spec.optimizer.algorithm] * BYTES[precision.optimizer_dtype]
    optimizer = held / fsdp / zero * moments
    least = min(stored, compute) if zero > 1 else stored
    gradient = min(compute, BYTES[precision.gradient_dtype])
    tokens = spec.sequences_per_example * spec.batch.micro_batch_size * spec.batch.sequence_length / mesh["context"]
    one_layer = tokens * (_kept(spec, "none", whole_width=True) * compute + _scores(spec))
    logits = min(tokens, chunk_tokens or tokens) * _padded_vocabulary(spec) / tensor
    return Memory(
        parameters_bytes=held / fsdp * stored,
        optimizer_bytes=optimizer,
        gradients_bytes=held / fsdp * BYTES[precision.gradient_dtype],
        activations_bytes=_layers_in_flight(spec, own_pipeline) * tokens * _activations(spec),
        working_bytes=max(
            WORKING * one_layer + layer * 2 * compute,
            logits * (2 * BYTES["float32"] + compute) + head * (compute + BYTES["float32"]),
        ),
        state_bytes=held / fsdp * (least + (gradient + stored - least) / zero) + optimizer,
    )


def available_bytes(spec: RunSpec) -> float | None:
    """What JAX takes of each device's memory; None where the device is not known."""
    device = hardware.find(spec.topology.device)
    if device is None:
        return None
    return device.memory_bytes * fraction(spec.execution.environment.get(FRACTION), DEFAULT_FRACTION)


def fraction(text: str | None, otherwise: float = 1.0) -> float:
    """A share that is given as text, where it is one."""
    try:
        share = float(text) if text is not None else otherwise
    except ValueError:
        return otherwise
    return share if 0 < share <= 1 else otherwise


def decided(spec: RunSpec, memory_bytes: float | None = None) -> RunSpec:
    """The spec with the least recomputation by which it fits its devices, where it leaves that open ("auto").

    `memory_bytes`: of each device; None: what is known of it. What fits in no way, and what fits an unknown device, is
    recomputed in full.
    """
    if spec.execution.remat != "auto":
        return spec
    there = (memory_bytes or available_bytes(spec) or 0.0) * ROOM
    rows = [replace(spec, execution=replace(spec.execution, remat=row)) for row in BY_RECOMPUTATION]
    return next((row for row in rows if memory(row, own_pipeline=True).total_bytes <= there), rows[-1])


def speed(spec: RunSpec, device: Device | None) -> Speed | None:
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


def _padded_vocabulary(spec: RunSpec) -> int:
    multiple = spec.model.vocab_multiple * spec.mesh["tensor"]
    return -(-spec.model.vocab_size // multiple) * multiple


def _positions(spec: RunSpec) -> float:
    """Parameters of a table of learned positions."""
    if spec.model.positions != "learned":
        return 0.0
    return (spec.model.max_positions or spec.batch.sequence_length) * spec.model.hidden_dim / spec.mesh["tensor"]


def _layer_parameters(spec: RunSpec) -> float:
    """Parameters of a layer that a device of the tensor axis holds: parts of matrices, norms and copied heads whole."""
    model, tensor = spec.model, spec.mesh["tensor"]
    ffn, norms = model.ffn_dim / tensor, 2 if model.norm == "layernorm" else 1
    query = model.num_heads * model.head_dim / tensor
    key_value = model.num_kv_heads * model.head_dim / (tensor if model.num_kv_heads % tensor == 0 else 1)
    inputs = 2 if model.activation == "swiglu" else 1
    matrices = model.hidden_dim * (2 * query + 2 * key_value + (inputs + 1) * ffn)
    biases = query + 2 * key_value + inputs * ffn + 2 * model.hidden_dim
    return matrices + (biases if model.biases else 0) + 2 * norms * model.hidden_dim


def _activations(spec: RunSpec) -> float:
    """Bytes per token of this device that are kept of a layer."""
    remat, compute = spec.execution.remat, BYTES[spec.precision.compute_dtype]
    kept = _kept(spec, remat) * compute
    again = _recomputed(spec)
    if remat not in ("none", "selective") or "layer" in again:
        return kept
    if spec.execution.scan_layers:
        # The loop keeps what happens inside of a part that is not recomputed, too (compiled for an H200: 66 against 42
        # GiB): of both norms two results and the input, in float32; of attention one more.
        inside = {"layernorm": ("norm", 4 * 4 + 2 * (4 - compute)), "core_attn": ("context", compute)}
        kept += sum(_sizes(spec)[what] * size for part, (what, size) in inside.items() if part not in again)
    return kept + (0.0 if "core_attn" in again else _scores(spec)) + _masks(spec)


def _recomputed(spec: RunSpec) -> set[str]:
    return set(spec.execution.remat_modules) if spec.execution.remat == "selective" else set()


def _masks(spec: RunSpec) -> float:
    """Bytes per token of a layer's dropout masks, of a byte each."""
    sizes, dropout = _sizes(spec), spec.dropout
    return (2 * sizes["input"] if dropout.hidden else 0) + (sizes["product"] if dropout.ffn else 0)


def _sizes(spec: RunSpec, *, whole_width: bool = False) -> dict[str, float]:
    """Numbers per token of a layer's tensors; `whole_width`: as gathered inside the layer."""
    model, tensor = spec.model, spec.mesh["tensor"]
    width = model.hidden_dim / (tensor if spec.parallelism.sequence_parallel and not whole_width else 1)
    query, key = model.num_heads * model.head_dim / tensor, max(1, model.num_kv_heads / tensor) * model.head_dim
    ffn = model.ffn_dim / tensor
    return {
        "input": width, "norm": width, "out": width, "middle": width, "query": query, "context": query,
        "key": key, "value": key, "gate": ffn if model.activation == "swiglu" else 0, "up": ffn, "product": ffn,
    }  # fmt: skip


def _kept(spec: RunSpec, remat: str, *, whole_width: bool = False) -> float:
    """Numbers per token that a row of recomputation keeps of a layer."""
    sizes = _sizes(spec, whole_width=whole_width)
    dropped = {name for part in _recomputed(spec) for name in PARTS.get(part, ())} if remat == "selective" else set()
    return sizes["input"] + sum(sizes[name] for name in KEPT.get(remat, EVERYTHING) if name not in dropped)


def _scores(spec: RunSpec) -> float:
    """Bytes per token of a layer's attention scores and probabilities, where attention holds them."""
    if spec.execution.attention not in KEEPS_SCORES:
        return 0.0
    each = BYTES["float32"] + BYTES[spec.precision.compute_dtype]
    return spec.model.num_heads / spec.mesh["tensor"] * spec.batch.sequence_length * each


def _layers_in_flight(spec: RunSpec, own_pipeline: bool) -> float:
    """Layers of the first stage × micro-batches whose activations are held at once (arXiv 2205.05198, 4.2.3)."""
    stages, virtual, passes = spec.mesh["pipeline"], spec.parallelism.virtual_pipeline, spec.accumulation_steps
    if own_pipeline and stages > 1:  # what each turn of the ring keeps, idle ones too
        return spec.model.num_layers / stages / virtual * (virtual * max(passes, stages) + stages - 1)
    interleaved = 1 + (stages - 1) / (stages * virtual) if virtual > 1 else 1
    return spec.model.num_layers / stages * min(stages * interleaved, passes)
