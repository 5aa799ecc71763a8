"""The model: its shape, how it begins, how it is regularised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """Llama 3.1's frequency-dependent stretching of rotary positions (`rope_type: llama3`)."""

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A decoder with grouped-query attention; by default Llama's: RMSNorm, rotary positions, SwiGLU, no biases."""

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
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    activation: Literal["swiglu", "gelu"] = "swiglu"
    positions: Literal["rope", "learned"] = "rope"
    max_positions: int | None = None  # rows of the table of learned positions; None: the sequence's length
    rotary_fraction: float = 1.0  # of head_dim that is turned
    biases: bool = False  # on every linear map but the output head
    sliding_window: int | None = None  # a query reads so many keys, its own the last; None: all before it
    vocab_multiple: int = 1  # the embedding tables are padded to a multiple of this × tensor


@dataclass(frozen=True, kw_only=True)
class Initialization:
    """Normal distribution of width `std`; `scaled`: projections back into the residual get std / √(2 layers)."""

    std: float = 0.02
    scaled: bool = True


@dataclass(frozen=True, kw_only=True)
class Dropout:
    """Probabilities: on the residual branches and the embedding, on attention weights, inside the MLP."""

    hidden: float = 0.0
    attention: float = 0.0
    ffn: float = 0.0
