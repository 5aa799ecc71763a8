"""Parameters and FLOPs per token of a Llama-family decoder, one function a published convention.

The conventions agree on the weights (6 FLOPs per matrix parameter and token; the embedding lookup is free) and differ
in attention: full square or causal half. A TFLOP/s or an MFU means nothing without the convention's name, so every
figure that Seatrial prints names it. Recomputation is never counted (that would be hardware, not model, FLOPs).

    non_causal   12·L·A·D·S  NVIDIA's DGXC recipes, Megatron-LM before core 0.12, torchtitan, MaxText before 2025-07-27
    causal        6·L·A·D·S  Megatron-LM since core 0.12 (250b7941), MaxText since 2025-07-27 (PR 1988)
    palm         12·L·A·D·S  PaLM (arXiv 2204.02311, appendix B): 6·N with the embedding table in N

With a sliding window of W keys, shorter than the sequence, a head reads S·W − W²/2 of the S²/2 pairs of the causal
half, as MaxText counts them; the other two count twice as many, as they do without one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from seatrial.spec import ModelSpec


def num_parameters(model: ModelSpec) -> int:
    """All trainable parameters: embedding, learned positions, layers, norms, biases, and an output head of its own.

    A table of learned positions whose size is left to the sequence's length is not counted.
    """
    norms = (2 * model.num_layers + 1) * model.hidden_dim * (2 if model.norm == "layernorm" else 1)
    tables = (0 if model.tied_embeddings else model.vocab_size) * model.hidden_dim
    if model.positions == "learned":
        tables += (model.max_positions or 0) * model.hidden_dim
    heads = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    biases = heads + _maps_into_ffn(model) * model.ffn_dim + 2 * model.hidden_dim
    return matrix_parameters(model) + norms + tables + (model.num_layers * biases if model.biases else 0)


def _maps_into_ffn(model: ModelSpec) -> int:
    return 2 if model.activation == "swiglu" else 1


def matrix_parameters(model: ModelSpec) -> int:
    """Parameters that a token is multiplied with: attention and MLP projections and the output head, no lookup."""
    query = model.num_heads * model.head_dim
    key_value = model.num_kv_heads * model.head_dim
    attention = model.hidden_dim * (2 * query + 2 * key_value)
    mlp = (_maps_into_ffn(model) + 1) * model.hidden_dim * model.ffn_dim
    return model.num_layers * (attention + mlp) + model.vocab_size * model.hidden_dim


def _attention(model: ModelSpec, sequence_length: int) -> float:
    # scores and weighted sum: 2 products × 2 FLOPs × 3 (forward, two gradients) over the full square
    window = min(model.sliding_window or sequence_length, sequence_length)
    keys = 2 * window - window**2 / sequence_length
    return 12.0 * model.num_layers * model.num_heads * model.head_dim * keys


def _non_causal(model: ModelSpec, sequence_length: int) -> float:
    return 6.0 * matrix_parameters(model) + _attention(model, sequence_length)


def _causal(model: ModelSpec, sequence_length: int) -> float:
    return 6.0 * matrix_parameters(model) + _attention(model, sequence_length) / 2


def _palm(model: ModelSpec, sequence_length: int) -> float:
    return 6.0 * num_parameters(model) + _attention(model, sequence_length)


CONVENTIONS: dict[str, Callable[[ModelSpec, int], float]] = {
    "causal": _causal,
    "non_causal": _non_causal,
    "palm": _palm,
}
DEFAULT_CONVENTION = "causal"  # what MaxText and Megatron-LM print today


def flops_per_token(model: ModelSpec, sequence_length: int, convention: str = DEFAULT_CONVENTION) -> float:
    """Training FLOPs per token (forward and backward) by a named convention. Raises KeyError for an unknown one."""
    return CONVENTIONS[convention](model, sequence_length)


def flops_per_sequence(model: ModelSpec, sequence_length: int, convention: str = DEFAULT_CONVENTION) -> float:
    """Training FLOPs per sequence: the "model flops for GBS=1" of NVIDIA's recipes under `non_causal`."""
    return sequence_length * flops_per_token(model, sequence_length, convention)


def model_flops_utilization(
    *, flops_per_step: float, step_seconds: float, num_devices: int, peak_flops_per_second: float
) -> float:
    """MFU as a fraction: the model's FLOP/s per device over the device's peak."""
    return flops_per_step / step_seconds / num_devices / peak_flops_per_second


RECOGNISED_WITHIN = 0.01
ROUNDING = 0.0002
PADDED_TO = (128, 256, 512, 1024, 2048, 4096)  # Megatron-LM pads the vocabulary to a multiple of 128 × tensor parallel


@dataclass(frozen=True, kw_only=True)
class Recognised:
    """The convention that a log's own figures follow, and by what fraction they are off from it.

    `vocab_size` is the padded one where the log counts with that.
    """

    convention: str
    flops_per_token: float
    deviation: float
    vocab_size: int


def nearest(flops_per_token: float, model: ModelSpec, sequence_length: int) -> Recognised:
    """The convention, and the padding of the vocabulary, that comes nearest to these FLOPs per token."""

    def closest(vocab_sizes: set[int]) -> Recognised:
        found = [
            Recognised(
                convention=name, flops_per_token=counted, deviation=flops_per_token / counted - 1, vocab_size=size
            )
            for size in sorted(vocab_sizes)
            for name, count in CONVENTIONS.items()
            if (counted := count(replace(model, vocab_size=size), sequence_length))
        ]
        return min(found, key=lambda recognised: abs(recognised.deviation))

    plain = closest({model.vocab_size})
    padded = closest({-(-model.vocab_size // multiple) * multiple for multiple in PADDED_TO})
    # Padding is believed only where it explains what the rounding of a log does not.
    explains = abs(plain.deviation) > ROUNDING and abs(padded.deviation) < abs(plain.deviation) / 4
    return padded if explains else plain


def recognise(flops_per_token: float, model: ModelSpec, sequence_length: int) -> Recognised | None:
    """The convention that gives these FLOPs per token, within 1%; None where none of them does."""
    found = nearest(flops_per_token, model, sequence_length)
    return found if abs(found.deviation) <= RECOGNISED_WITHIN else None
