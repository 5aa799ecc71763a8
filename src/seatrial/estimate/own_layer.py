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
# Attention by blocks, of a chunk of queries and one of keys: scores, their gradient, and exponentials of some blocks.
# Of a single chunk, the part of the square that is not masked.
CHUNK_OF_QUERIES, BLOCKS_AT_WORK, BEFORE_THE_DIAGONAL = 2048, 2.5, 9 / 16


def at_work(spec: RunSpec, tokens: float, weights: float) -> float:
    """Bytes of a layer with so many weights on this device, for so many tokens of it."""
    compute = BYTES[spec.precision.compute_dtype]
    numbers = _in_delayed_fp8(spec) if _is_delayed(spec) else _feed_forward(spec)
    activations = numbers * tokens * compute
    if is_by_blocks(spec):
        waiting, working = _scores(spec, tokens)
        activations = max(activations + waiting, _attention_by_blocks(spec) * tokens * compute + working)
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
    queries = 4 if _is_in_chunks(spec) else 2  # in a loop, the result in two orders, and zeros for their gradient
    return number + again * (queries * split["query"] + split["key"] + split["value"])


def _in_delayed_fp8(spec: RunSpec) -> float:
    """`_feed_forward` with delayed scales of fp8, or attention's numbers where they are more.

    Products and their gradients are there in bfloat16, and turned around in fp8 (half of a number) for the gradients of
    weights. Gate and up wait until they are measured: with fsdp, or where attention is kept, beyond its own gradients.
    """
    whole, split = layer_sizes(spec, whole_width=True), layer_sizes(spec)
    again = not keeps_attention(spec)
    is_short = again and spec.mesh["fsdp"] == 1
    inputs, norm = whole["gate"] + whole["up"], whole["norm"]
    query, keys = split["query"], split["key"] + split["value"]
    hidden = SPLIT_HIDDEN * split["norm"] + 1.5 * norm  # in fp8: the block's input for both products, its gradient
    if again:  # for queries, keys and values, and what attention gave
        hidden += 1.5 * norm + 0.5 * query
    kept = 2 * query + keys if again else 0.0
    gathered, summed = (1, 3) if _is_sequence_parallel(spec) else (0, 2)
    made = 2 * inputs + 1.5 * whole["product"] + gathered * norm + hidden + kept
    block = (1.5 if is_short else 2.5) * inputs + 0.5 * whole["product"]
    attention = 0.0 if is_short else block + 0.5 * norm + hidden + 4 * query + 2 * keys
    return max(made, block + summed * norm + hidden + kept, attention)


def _attention_by_blocks(spec: RunSpec) -> float:
    """Numbers per token beside the scores while attention's gradients are made: queries, the result, and gradients.

    Those of the feed-forward block wait, unless what is split is brought together before.
    """
    whole, split = layer_sizes(spec, whole_width=True), layer_sizes(spec)
    number = 5 * split["query"] + 2 * (split["key"] + split["value"]) + 2 * (split["norm"] + whole["norm"])
    return number + (0 if _is_sequence_parallel(spec) else whole["gate"] + whole["up"] + whole["product"])


def _scores(spec: RunSpec, tokens: float) -> tuple[float, float]:
    """Bytes of attention's scores by blocks, beside the feed-forward block's gradients and beside its own.

    Of one chunk of the sequence they wait from when attention was computed again until its gradients: of each block of
    queries those of the keys before it. Of several chunks, which are read in a loop, nothing waits.
    """
    length = spec.batch.sequence_length / spec.mesh["context"]
    of_all = tokens * spec.model.num_heads / spec.mesh["tensor"] * BYTES["float32"]
    square = of_all * min(length, CHUNK_OF_QUERIES) ** 2 / length
    if _is_in_chunks(spec):
        return 0.0, BLOCKS_AT_WORK * square
    return (0.0 if keeps_attention(spec) else BEFORE_THE_DIAGONAL * square), 2 * BEFORE_THE_DIAGONAL * square


def _gathered_weights(spec: RunSpec) -> float:
    """Weights that fsdp has brought together for the feed-forward block: gate, up, and the last of attention."""
    sizes = layer_sizes(spec)
    each = 1 if spec.precision.quantization else BYTES[spec.precision.compute_dtype]
    return spec.model.hidden_dim * (sizes["gate"] + sizes["up"] + sizes["query"]) * each


def turned_weights(spec: RunSpec) -> float:
    """Bytes of the last matrices of both blocks, of all layers: with fsdp XLA has them in two orders.

    They are split in their last dimension, and are brought together faster where it is the first. Of several chunks of
    a pipeline's stage there is a copy of all weights.
    """
    mesh, sizes = spec.mesh, layer_sizes(spec)
    if mesh["fsdp"] == 1 or spec.parallelism.virtual_pipeline > 1:
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


def _is_in_chunks(spec: RunSpec) -> bool:
    """True if attention by blocks reads several chunks of the sequence in a loop."""
    return is_by_blocks(spec) and spec.batch.sequence_length / spec.mesh["context"] > CHUNK_OF_QUERIES


def _cross_late(spec: RunSpec) -> bool:
    """True if gradients cross the network while the layer before is at work."""
    return spec.mesh["fsdp"] > 1 and not adds_in_place(spec)


def _is_sequence_parallel(spec: RunSpec) -> bool:
    return spec.parallelism.sequence_parallel and spec.mesh["tensor"] > 1


def _is_delayed(spec: RunSpec) -> bool:
    return QUANTIZATIONS.get(spec.precision.quantization or "", "").startswith("delayed")
