"""What a run will need of each device, and how long a step may take: arithmetic, before anything runs.

Memory, per device, of the pipeline stage that holds most (bytes):

    parameters   what the optimizer updates, split over tensor and fsdp
    optimizer    its moments (Adam: two), split likewise, and over data with ZeRO-1
    gradients    accumulated over the micro-batches, split as the parameters
    activations  what the forward pass keeps of every layer for the backward pass, by the row of recomputation; a
                 pipeline keeps them for as many micro-batches as it has stages (Korthikanti et al., Reducing Activation
                 Recomputation in Large Transformer Models, arXiv 2205.05198, section 4; here counted for Llama's layer,
                 without dropout, and with attention that keeps no scores unless its row says so)
    working      of two things whichever is larger: one layer in the backward pass, with its weights and their gradient
                 brought together; or the output head, with the logits of one chunk of tokens and their gradient

What a runtime takes beside that (CUDA context, communication buffers, fragmentation) is not in it: some gigabytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from seatrial import flops
from seatrial.hardware import Device
from seatrial.spec import RunSpec

BYTES = {"float32": 4, "bfloat16": 2}

# Values that an optimizer keeps for each parameter.
MOMENTS = {
    "adamw": 2, "adamw_fp32": 2, "adam": 2, "sgd": 1, "adadelta": 2, "adamax": 2, "adagrad": 1, "rmsprop": 1,
    "rprop": 2, "novograd": 1, "adafactor": 0,
}  # fmt: skip

# What each row of recomputation keeps beside the layer's input; "none" keeps everything.
KEPT: dict[str, tuple[str, ...]] = {
    "full": (),
    "minimal": ("query", "key", "value", "out", "gate", "up", "down"),
    "minimal_with_context": ("query", "key", "value", "context", "out", "gate", "up", "down"),
    "minimal_flash": ("query", "key", "value", "context", "out", "gate", "up", "down"),
    "save_dot_except_mlp": ("query", "key", "value", "out"),
    "save_dot_with_context_except_mlp": ("query", "key", "value", "context", "out"),
    "save_dot_except_mlpwi": ("query", "key", "value", "out", "down"),
    "save_qkv_proj": ("query", "key", "value"),
    "save_out_proj": ("out",),
}
EVERYTHING = (
    "norm", "query", "key", "value", "context", "out", "middle", "norm", "gate", "up", "product",
)  # fmt: skip
SCANNED = 2  # times that, where layers are scanned: the loop keeps float32 (compiled for an H200: 104 against 43 GiB)
WORKING = 1.5  # times what one layer keeps, while its backward pass runs
KEEPS_SCORES = ("dot_product",)  # rows of attention that hold a number for each pair of tokens

CHUNK_TOKENS = 1024  # whose logits are held at once by Seatrial's own trainer

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


def memory(spec: RunSpec, *, chunk_tokens: int | None = CHUNK_TOKENS) -> Memory:
    """The memory that a spec needs of each device; its mesh must fit its devices.

    `chunk_tokens` are those whose logits are held at once; None: all of a micro-batch.
    """
    model, mesh, precision = spec.model, spec.mesh, spec.precision
    tensor, fsdp, zero = mesh["tensor"], mesh["fsdp"], mesh["data"] if spec.parallelism.zero1 else 1
    compute, stored = BYTES[precision.compute_dtype], BYTES[precision.params_dtype]
    layer, head = _layer_parameters(spec), model.hidden_dim * _padded_vocabulary(spec) / tensor
    ends = head if model.tied_embeddings or mesh["pipeline"] > 1 else 2 * head
    held = layer * model.num_layers / mesh["pipeline"] + ends
    moments = MOMENTS[spec.optimizer.algorithm] * BYTES[precision.optimizer_dtype]
    optimizer = held / fsdp / zero * moments
    least = min(stored, compute) if zero > 1 else stored
    gradient = min(compute, BYTES[precision.gradient_dtype])
    tokens = _answers(spec) * spec.batch.micro_batch_size * spec.batch.sequence_length / mesh["context"]
    one_layer = tokens * (_kept(spec, "none", whole_width=True) * compute + _scores(spec))
    logits = min(tokens, chunk_tokens or tokens) * _padded_vocabulary(spec) / tensor
    return Memory(
        parameters_bytes=held / fsdp * stored,
        optimizer_bytes=optimizer,
        gradients_bytes=held / fsdp * BYTES[precision.gradient_dtype],
        activations_bytes=_layers_in_flight(spec) * tokens * _activations(spec),
        working_bytes=max(
            WORKING * one_layer + layer * 2 * compute,
            logits * (2 * BYTES["float32"] + compute) + head * (compute + BYTES["float32"]),
        ),
        state_bytes=held / fsdp * (least + (gradient + stored - least) / zero) + optimizer,
    )


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
    least = (
        _answers(spec) * per_device * flops.flops_per_token(spec.model, spec.batch.sequence_length) / peak[0] * waiting
    )
    return Speed(
        step_seconds=(least / high, least / low),
        tokens_per_second_per_device=(per_device * low / least, per_device * high / least),
        utilization=(low / waiting, high / waiting),
        peak_flops_per_second=peak[0],
        peak_format=peak[1],
    )


def _answers(spec: RunSpec) -> int:
    """Sequences that an example stands for: preferences are two answers to one prompt."""
    return 2 if spec.objective.kind in ("dpo", "orpo") else 1


def _padded_vocabulary(spec: RunSpec) -> int:
    multiple = spec.model.vocab_multiple * spec.mesh["tensor"] if spec.model.vocab_multiple > 1 else 1
    return -(-spec.model.vocab_size // multiple) * multiple


def _layer_parameters(spec: RunSpec) -> float:
    """Parameters of a layer that a device of the tensor axis holds: matrices in parts, norms whole."""
    model = spec.model
    heads = 2 * model.num_heads * model.head_dim + 2 * model.num_kv_heads * model.head_dim
    ffn = (3 if model.activation == "swiglu" else 2) * model.ffn_dim
    return model.hidden_dim * (heads + ffn) / spec.mesh["tensor"] + 2 * model.hidden_dim


def _activations(spec: RunSpec) -> float:
    """Bytes per token of this device that are kept of a layer."""
    kept = _kept(spec, spec.execution.remat) * BYTES[spec.precision.compute_dtype]
    if spec.execution.remat != "none":
        return kept
    return kept * (SCANNED if spec.execution.scan_layers else 1) + _scores(spec)


def _kept(spec: RunSpec, remat: str, *, whole_width: bool = False) -> float:
    """Numbers per token that a row of recomputation keeps of a layer; `whole_width`: as gathered inside the layer."""
    model, tensor = spec.model, spec.mesh["tensor"]
    width = model.hidden_dim / (tensor if spec.parallelism.sequence_parallel and not whole_width else 1)
    query, key = model.num_heads * model.head_dim / tensor, model.num_kv_heads * model.head_dim / tensor
    ffn = model.ffn_dim / tensor
    sizes = {
        "input": width, "norm": width, "out": width, "middle": width, "down": width, "query": query, "context": query,
        "key": key, "value": key, "gate": ffn, "up": ffn, "product": ffn,
    }  # fmt: skip
    return sum(sizes[name] for name in ("input", *KEPT.get(remat, EVERYTHING)))


def _scores(spec: RunSpec) -> float:
    """Bytes per token of a layer's attention scores and probabilities, where attention holds them."""
    if spec.execution.attention not in KEEPS_SCORES:
        return 0.0
    each = BYTES["float32"] + BYTES[spec.precision.compute_dtype]
    return spec.model.num_heads / spec.mesh["tensor"] * spec.batch.sequence_length * each


def _layers_in_flight(spec: RunSpec) -> float:
    """Layers of the first stage × micro-batches whose activations are held at once (arXiv 2205.05198, 4.2.3)."""
    stages, virtual, passes = spec.mesh["pipeline"], spec.parallelism.virtual_pipeline, spec.accumulation_steps
    interleaved = 1 + (stages - 1) / (stages * virtual) if virtual > 1 else 1
    return spec.model.num_layers / stages * min(stages * interleaved, passes)
