"""One layer of Seatrial's own trainer in the backward pass: what it holds beside what is kept of all layers.

Counted in the buffers that XLA assigns to layers in a loop (`--xla_dump_to`), at the moments at which they are most:

    feed-forward   its tensors and their gradients, hidden states, and with fsdp the weights that were brought together
    end            all gradients of the layer's weights, which with fsdp are not yet split

Gradients that fsdp splits cross the network at the end. Those that are not added to a sum do so while the layer before
is at work (XLA takes the first turn out of the loop for that), so that those of two layers are held.
"""

from __future__ import annotations

from seatrial.estimate.layer_memory import (
    BYTES,
    KEEPS_SCORES,
    keeps_attention,
    layer_sizes,
    layers_in_flight,
    uses_cudnn,
)
from seatrial.spec import QUANTIZATIONS, RunSpec

HIDDEN_AT_END = 5  # hidden states beside all gradients of a layer
SPLIT_HIDDEN = 3  # the layer's input, the sum between its blocks and the gradient that came in
CAST_WEIGHTS = 1.75  # bytes for each weight of a layer, where fsdp brings none together: of most a copy in bfloat16
# Delayed fp8: XLA keeps gate and up until it has measured them, and gradients in fp8 in two orders beside bfloat16.
FP8_FFN, FP8_HIDDEN = 0.5, 4
BLOCKS_AT_WORK, CHUNK_OF_QUERIES = 2, 2048  # attention by blocks: scores of a chunk of the sequence, and their gradient


def at_work(spec: RunSpec, tokens: float, weights: float) -> float:
    """Bytes of a layer with so many weights on this device, for so many tokens of it."""
    activations = _feed_forward(spec) * tokens * BYTES[spec.precision.compute_dtype] + _scores(spec, tokens)
    if spec.mesh["fsdp"] == 1:
        return activations + CAST_WEIGHTS * weights
    gradients = weights * BYTES["float32"]
    hidden = layer_sizes(spec, whole_width=True)["norm"] * tokens * BYTES[spec.precision.compute_dtype]
    most = max(activations + _gathered_weights(spec), gradients + HIDDEN_AT_END * hidden)
    return most + (gradients if _cross_late(spec) else 0.0) + turned_weights(spec)


def _feed_forward(spec: RunSpec) -> float:
    """Numbers per token of the activations while the feed-forward block's gradients are made.

    Either all of the block's tensors and their gradients are there; or half of them, and both gradients of what its
    norm gave, whose sum comes next: with many devices of the tensor axis, hidden states are larger than the block.
    """
    whole, split = layer_sizes(spec, whole_width=True), layer_sizes(spec)
    block = 2 * (whole["gate"] + whole["up"] + whole["product"])
    again = 0 if keeps_attention(spec) else 1  # else attention was computed again, and is kept for its own gradients
    if _is_sequence_parallel(spec):  # what is split is brought together: the norms' results, and gradients
        earlier, later = 2 + again, 5
    else:
        earlier, later = 1 + again, 3 + again
    number = max(block + earlier * whole["norm"], block / 2 + later * whole["norm"]) + SPLIT_HIDDEN * split["norm"]
    number += again * (2 * split["query"] + split["key"] + split["value"])
    if _is_delayed(spec):
        number += FP8_FFN * whole["up"] + FP8_HIDDEN * whole["norm"]
    return number


def _scores(spec: RunSpec, tokens: float) -> float:
    if not is_by_blocks(spec):
        return 0.0
    length = spec.batch.sequence_length / spec.mesh["context"]
    of_all = tokens * spec.model.num_heads / spec.mesh["tensor"] * BYTES["float32"]
    return BLOCKS_AT_WORK * of_all * min(length, CHUNK_OF_QUERIES) ** 2 / length


def _gathered_weights(spec: RunSpec) -> float:
    """Weights that fsdp has brought together for the feed-forward block: gate, up, and the last of attention."""
    sizes = layer_sizes(spec)
    each = 1 if spec.precision.quantization else BYTES[spec.precision.compute_dtype]
    return spec.model.hidden_dim * (sizes["gate"] + sizes["up"] + sizes["query"]) * each


def turned_weights(spec: RunSpec) -> float:
    """Bytes of the last matrices of both blocks, of all layers: with fsdp XLA has them in two orders.

    They are split in their last dimension, and are brought together faster where it is the first.
    """
    mesh, sizes = spec.mesh, layer_sizes(spec)
    if mesh["fsdp"] == 1:
        return 0.0
    one = spec.model.hidden_dim * (sizes["product"] + sizes["query"]) / mesh["fsdp"]
    return spec.model.num_layers / mesh["pipeline"] * one * BYTES[spec.precision.params_dtype]


def turned_activations(spec: RunSpec, tokens: float) -> float:
    """Bytes of what norms give to products, of all layers, in a second order; where nothing is recomputed.

    Sequence parallelism brings it together by positions, so that of several sequences XLA turns it around before the
    backward pass: of one norm after the other, or of both at once where gradients cross the network late.
    """
    several = spec.sequences_per_example * spec.batch.micro_batch_size > 1
    if not (several and _is_sequence_parallel(spec) and spec.execution.scan_layers and spec.execution.remat == "none"):
        return 0.0
    one = layer_sizes(spec, whole_width=True)["norm"] * tokens * BYTES[spec.precision.compute_dtype]
    return (2 if _cross_late(spec) else 1) * layers_in_flight(spec, own=True) * one


def adds_in_place(spec: RunSpec) -> bool:
    """True if the backward pass adds a micro-batch's gradients to their sum by itself; the trainer goes by this, too.

    JAX can do so where both have the same format, and where the largest values of fp8 do not come back beside them.
    """
    precision = spec.precision
    several = spec.accumulation_steps > 1 and spec.mesh["pipeline"] == 1
    return several and precision.gradient_dtype == precision.params_dtype and not _is_delayed(spec)


def is_by_blocks(spec: RunSpec) -> bool:
    """True if attention holds the scores of one block of queries at a time."""
    return not uses_cudnn(spec) and spec.execution.attention not in KEEPS_SCORES


def _cross_late(spec: RunSpec) -> bool:
    """True if gradients cross the network while the layer before is at work."""
    return spec.mesh["fsdp"] > 1 and not adds_in_place(spec)


def _is_sequence_parallel(spec: RunSpec) -> bool:
    return spec.parallelism.sequence_parallel and spec.mesh["tensor"] > 1


def _is_delayed(spec: RunSpec) -> bool:
    return QUANTIZATIONS.get(spec.precision.quantization or "", "").startswith("delayed")
