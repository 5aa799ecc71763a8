"""Causal self-attention with grouped queries; rows of one table, equal in value.

Every row takes q_BTHK, k_BSGK and v_BSGK (H a multiple of G: query head h reads key/value head h // R) and returns
context_BTHK in q's dtype. Scores and softmax are float32 whatever the operands are. S is T, unless the keys of other
devices have been gathered (see `context_parallel`).
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from seatrial.spec import RunSpec
from seatrial.train.blockwise_attention import blocks
from seatrial.train.context_parallel import STRATEGIES, Row
from seatrial.train.masks import MASKED, Mask, Pattern, kept, visible
from seatrial.train.random import Key
from seatrial.train.sharding import Rules, tensor_offset, token_offset

# (q_BTHK, k_BTGK, v_BTGK, segments_BT or None, key_B2 of the dropout: one for each sequence) → context_BTHK
Attention = Callable[[jax.Array, jax.Array, jax.Array, jax.Array | None, Key], jax.Array]


def _seen(T: int, S: int, mask: Mask, window: int | None) -> jax.Array:
    """[B or 1, T, S]: whether a query may read a key."""
    seen_BTS = visible((T, S), 0 if mask.first is None else mask.first, window)[None]
    if mask.segments_BT is None or mask.segments_BS is None:
        return seen_BTS
    return seen_BTS & (mask.segments_BT[:, :, None] == mask.segments_BS[:, None, :])


def reference(q_BTHK: jax.Array, k_BSGK: jax.Array, v_BSGK: jax.Array, mask: Mask, pattern: Pattern) -> jax.Array:
    """The definition: softmax(q·kᵀ / √K) · v with the whole score matrix in memory."""
    (B, T, H, K), (S, G) = q_BTHK.shape, k_BSGK.shape[1:3]
    q_BTGRK = q_BTHK.reshape(B, T, G, H // G, K)
    scores_BGRTS = jnp.einsum("btgrk,bsgk->bgrts", q_BTGRK, k_BSGK, preferred_element_type=jnp.float32) * K**-0.5
    seen_BTS = _seen(T, S, mask, pattern.window)
    weights_BGRTS = jax.nn.softmax(jnp.where(seen_BTS[:, None, None], scores_BGRTS, MASKED), axis=-1)
    if mask.rows_TH is not None and mask.key_B2 is not None:
        rows = mask.rows_TH.T.reshape(G, H // G, T, 1)
        weights_BGRTS *= kept(mask.key_B2[:, None, None, None, None], rows, jnp.arange(S), pattern.dropout)
    weights_BGRTS = weights_BGRTS.astype(v_BSGK.dtype)
    context = jnp.einsum("bgrts,bsgk->btgrk", weights_BGRTS, v_BSGK, preferred_element_type=jnp.float32)
    return context.reshape(B, T, H, K).astype(q_BTHK.dtype)


def cudnn(q_BTHK: jax.Array, k_BSGK: jax.Array, v_BSGK: jax.Array, mask: Mask, pattern: Pattern) -> jax.Array:
    """cuDNN's flash attention, by way of JAX; without dropout, and not in float32.

    The kernel itself knows the causal triangle at the diagonal, and a window where there is no other mask; everything
    else is a mask that it adds to the scores.
    """
    T, S = q_BTHK.shape[1], k_BSGK.shape[1]
    diagonal, packed = T == S, mask.segments_BT is not None
    in_kernel = None if pattern.window is None or packed or not diagonal else (pattern.window - 1, 0)
    mask_B1TS = _seen(T, S, mask, pattern.window)[:, None] if packed or not diagonal else None
    return jax.nn.dot_product_attention(
        q_BTHK, k_BSGK, v_BSGK, mask=mask_B1TS, is_causal=diagonal, local_window_size=in_kernel, implementation="cudnn"
    )


ATTENTION: dict[str, Row] = {"reference": reference, "blocks": blocks, "cudnn": cudnn}

# What configurations call their attention → the row by backend, where it is not `blocks`. `dot_product` is MaxText's
# and NxDT's name of the plain one. Any other name means the best row available.
_PLAIN = {"cuda": "reference", "rocm": "reference", "tpu": "reference"}
_BEST = {"cuda": "cudnn"}


def _cudnn_can(spec: RunSpec) -> bool:
    """True if cuDNN has a kernel for this run's attention, forward and backward."""
    masked = spec.data.reset_attention or spec.mesh["context"] > 1
    return (
        spec.precision.compute_dtype == "bfloat16"
        and not spec.dropout.attention
        and spec.model.head_dim % 8 == 0
        and spec.model.head_dim <= 128
        and not (masked and spec.batch.sequence_length // spec.mesh["context"] % 2)
    )


def choose(spec: RunSpec, backend: str) -> str:
    """The row that serves a run: the one that `execution.attention` names, else the backend's best that can."""
    name = spec.execution.attention
    if name not in ATTENTION or (name == "cudnn" and backend != "cuda"):
        name = (_PLAIN if name == "dot_product" else _BEST).get(backend, "blocks")
    ring = spec.mesh["context"] > 1 and spec.parallelism.context_strategy == "ring"
    return "blocks" if ring or (name == "cudnn" and not _cudnn_can(spec)) else name


def make_attention(spec: RunSpec, rules: Rules, backend: str) -> Attention:
    """The attention of a run, on the heads and tokens of one device."""
    read = STRATEGIES[spec.parallelism.context_strategy](ATTENTION[choose(spec, backend)], rules)
    pattern = Pattern(window=spec.model.sliding_window, dropout=spec.dropout.attention)

    def attention(
        q_BTHK: jax.Array, k_BTGK: jax.Array, v_BTGK: jax.Array, segments_BT: jax.Array | None, key_B2: Key
    ) -> jax.Array:
        mask = Mask(segments_BT=segments_BT, segments_BS=segments_BT)
        if pattern.dropout:
            T, H = q_BTHK.shape[1:3]
            heads_H = tensor_offset(rules, H) + jnp.arange(H)
            rows_TH = (token_offset(rules, T) + jnp.arange(T))[:, None] * spec.model.num_heads + heads_H
            mask = mask._replace(rows_TH=rows_TH, key_B2=key_B2)
        return read(q_BTHK, k_BTGK, v_BTGK, mask, pattern)

    return attention
