"""A layer's memory on each device: parameters, numbers of a token, and bytes that wait for the backward pass."""

from __future__ import annotations

from collections.abc import Mapping

from seatrial.spec import INPUT, RunSpec

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

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
KEEPS_SCORES = ("dot_product",)  # rows of attention that hold a number for each pair of tokens


def layer_parameters(spec: RunSpec) -> float:
    """Parameters of a layer that a device of the tensor axis holds: parts of matrices, norms and copied heads whole."""
    model, tensor = spec.model, spec.mesh["tensor"]
    ffn, norms = model.ffn_dim / tensor, 2 if model.norm == "layernorm" else 1
    query = model.num_heads * model.head_dim / tensor
    key_value = model.num_kv_heads * model.head_dim / (tensor if model.num_kv_heads % tensor == 0 else 1)
    inputs = 2 if model.activation == "swiglu" else 1
    matrices = model.hidden_dim * (2 * query + 2 * key_value + (inputs + 1) * ffn)
    biases = query + 2 * key_value + inputs * ffn + 2 * model.hidden_dim
    return matrices + (biases if model.biases else 0) + 2 * norms * model.hidden_dim


def layer_activations(spec: RunSpec, own: bool) -> float:
    """Bytes per token of this device that are kept of a layer."""
    remat, compute = spec.execution.remat, BYTES[spec.precision.compute_dtype]
    kept = layer_kept(spec, remat) * compute
    again = _recomputed(spec)
    if remat not in ("none", "selective") or "layer" in again:
        # Beside its result, the backward pass of our own attention wants a log-sum-exp of each head.
        sums = own and "context" in (*KEPT.get(remat, ()), *spec.execution.remat_kept)
        return kept + (spec.model.num_heads / spec.mesh["tensor"] * BYTES["float32"] if sums else 0.0)
    local, whole = layer_sizes(spec)["norm"], layer_sizes(spec, whole_width=True)["norm"]
    if own and spec.parallelism.context_strategy != "ring":  # keys and values, too
        sizes = layer_sizes(spec)
        kept += (spec.mesh["context"] - 1) * (sizes["key"] + sizes["value"]) * compute
    kept += 2 * (whole - local) * compute  # what norms give to products is kept as it was brought together
    if spec.execution.scan_layers and "layernorm" not in again:
        # The loop keeps what happens inside of norms, too: two results and the input of both, in float32; and
        # attention's result twice, as it leaves cuDNN and as it enters the product.
        kept += local * (6 * 4 - 5 * compute) + 2 * local * compute + layer_sizes(spec)["context"] * compute
    return kept + (0.0 if "core_attn" in again else layer_scores(spec)) + _masks(spec)


def keeps_attention(spec: RunSpec) -> bool:
    """True if a row of recomputation keeps what attention's block gives, so that it need not run again for the next."""
    execution = spec.execution
    if execution.remat == "custom":
        return "out" in execution.remat_kept
    return "out" in KEPT.get(execution.remat, EVERYTHING)


def uses_cudnn(spec: RunSpec) -> bool:
    """True if our own trainer's attention on NVIDIA's devices is cuDNN's; `train.attention` knows more conditions."""
    is_ring = spec.mesh["context"] > 1 and spec.parallelism.context_strategy == "ring"
    can = spec.precision.compute_dtype == "bfloat16" and not spec.dropout.attention and spec.model.head_dim <= 128
    return can and not is_ring and spec.execution.attention not in (*KEEPS_SCORES, "blocks", "reference")


def _recomputed(spec: RunSpec) -> set[str]:
    return set(spec.execution.remat_modules) if spec.execution.remat == "selective" else set()


def _masks(spec: RunSpec) -> float:
    """Bytes per token of a layer's dropout masks, of a byte each."""
    sizes, dropout = layer_sizes(spec), spec.dropout
    return (2 * sizes["input"] if dropout.hidden else 0) + (sizes["product"] if dropout.ffn else 0)


def layer_sizes(spec: RunSpec, *, whole_width: bool = False) -> dict[str, float]:
    """Numbers per token of a layer's tensors; `whole_width`: as gathered inside the layer."""
    model, tensor = spec.model, spec.mesh["tensor"]
    width = model.hidden_dim / (tensor if spec.parallelism.sequence_parallel and not whole_width else 1)
    query, key = model.num_heads * model.head_dim / tensor, max(1, model.num_kv_heads / tensor) * model.head_dim
    ffn = model.ffn_dim / tensor
    return {
        "input": width, "norm": width, "out": width, "middle": width, "query": query, "context": query,
        "key": key, "value": key, "gate": ffn if model.activation == "swiglu" else 0, "up": ffn, "product": ffn,
    }  # fmt: skip


def layer_kept(spec: RunSpec, remat: str, *, whole_width: bool = False) -> float:
    """Numbers per token that a row of recomputation keeps of a layer."""
    sizes = layer_sizes(spec, whole_width=whole_width)
    dropped = {name for part in _recomputed(spec) for name in PARTS.get(part, ())} if remat == "selective" else set()
    if remat == "custom":
        return _of_custom(spec, sizes)
    return sizes["input"] + sum(sizes[name] for name in KEPT.get(remat, EVERYTHING) if name not in dropped)


def _of_custom(spec: RunSpec, sizes: Mapping[str, float]) -> float:
    """Numbers per token that the row "custom" keeps on the device; what waits in the host's memory is not there."""
    execution = spec.execution
    kept = {INPUT, *execution.remat_kept} - {*execution.remat_offloaded}
    return sum(sizes.get(name, 0.0) for name in kept)  # the last product's is the next layer's input


def layer_scores(spec: RunSpec) -> float:
    """Bytes per token of a layer's attention scores and probabilities, where attention holds them."""
    if spec.execution.attention not in KEEPS_SCORES:
        return 0.0
    each = BYTES["float32"] + BYTES[spec.precision.compute_dtype]
    return spec.model.num_heads / spec.mesh["tensor"] * spec.batch.sequence_length * each


def most_layers(spec: RunSpec) -> float:
    """Layers of the stage that has most of them."""
    stages, own = spec.mesh["pipeline"], spec.parallelism.stage_layers
    if not own or stages == 1:
        return spec.model.num_layers / stages
    return max(sum(own[stage::stages]) for stage in range(stages))  # chunks go to the stages in turn


def layers_in_flight(spec: RunSpec, own: bool) -> float:
    """Layers of the first stage × micro-batches whose activations are held at once (arXiv 2205.05198, 4.2.3)."""
    stages, virtual, passes = spec.mesh["pipeline"], spec.parallelism.virtual_pipeline, spec.accumulation_steps
    if own and stages > 1:  # what each turn of the ring keeps, idle ones too
        return most_layers(spec) / virtual * (virtual * max(passes, stages) + stages - 1)
    interleaved = 1 + (stages - 1) / (stages * virtual) if virtual > 1 else 1
    return most_layers(spec) * min(stages * interleaved, passes)
