"""Causal self-attention with grouped queries; rows of one table, equal in value.

Every row takes q_BTHK, k_BTGK and v_BTGK (H a multiple of G: query head h reads key/value head h // R) and returns
context_BTHK in q's dtype. Scores and softmax are float32 whatever the operands are.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.layout import Layout, with_layout_constraint

from seatrial.spec import RunSpec
from seatrial.train.random import Key
from seatrial.train.sharding import Rules

# (q_BTHK, k_BTGK, v_BTGK, segments_BT or None, key_B2 of the dropout: one for each sequence) → context_BTHK
Attention = Callable[[jax.Array, jax.Array, jax.Array, jax.Array | None, Key], jax.Array]

MASKED = -1e30  # finite: a row of nothing but -inf would make softmax 0/0


def reference(
    q_BTHK: jax.Array, k_BTGK: jax.Array, v_BTGK: jax.Array, segments_BT: jax.Array | None, key: Key
) -> jax.Array:
    """The definition: softmax(q·kᵀ / √K) · v with the whole score matrix in memory."""
    B, T, H, K = q_BTHK.shape
    G = k_BTGK.shape[2]
    q_BTGRK = q_BTHK.reshape(B, T, G, H // G, K)
    scores_BGRTS = jnp.einsum("btgrk,bsgk->bgrts", q_BTGRK, k_BTGK, preferred_element_type=jnp.float32) * K**-0.5
    visible = _causal(T, T)
    if segments_BT is not None:
        visible = visible & (segments_BT[:, None, None, :, None] == segments_BT[:, None, None, None, :])
    weights_BGRTS = jax.nn.softmax(jnp.where(visible, scores_BGRTS, MASKED), axis=-1).astype(v_BTGK.dtype)
    context = jnp.einsum("bgrts,bsgk->btgrk", weights_BGRTS, v_BTGK, preferred_element_type=jnp.float32)
    return context.reshape(B, T, H, K).astype(q_BTHK.dtype)


def _causal(T: int, S: int) -> jax.Array:
    """[T, S]: whether query t, the t-th from the end of S keys, may read key s."""
    return lax.broadcasted_iota(jnp.int32, (T, S), 0) + (S - T) >= lax.broadcasted_iota(jnp.int32, (T, S), 1)


# --- blocks: query blocks against the keys before them ----------------------------------------------------------------
#
# The upper triangle is never computed, and only the context and the log-sum-exp are kept for the backward pass
# (FlashAttention-2, arXiv 2307.08691, without its inner loop over keys: on a CPU one wide product is faster).

MAX_BLOCKS = 8
MIN_BLOCK = 128


def _block_size(T: int) -> int:
    """The smallest divisor of T that is at least MIN_BLOCK and leaves at most MAX_BLOCKS blocks."""
    least = max(min(T, MIN_BLOCK), -(-T // MAX_BLOCKS))
    return next(size for size in range(least, T + 1) if T % size == 0)


def _product(a: jax.Array, b: jax.Array, contract: tuple[int, int]) -> jax.Array:
    """A float32 product over one of the last two dimensions of each; the first two are batch: [B, G, ·, ·]."""
    dims = (((contract[0],), (contract[1],)), ((0, 1), (0, 1)))
    return lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)


def _transposed(x: jax.Array) -> jax.Array:
    """[B, G, m, n] → [B, G, n, m], copied to rows, which XLA:CPU's fast product needs."""
    return with_layout_constraint(x.swapaxes(2, 3), Layout((0, 1, 2, 3)))


def _split(q_BTHK: jax.Array, G: int, size: int) -> list[jax.Array]:
    """Query blocks as [B, G, R·size, K]: the heads of one group share their keys, so they make one taller matrix."""
    B, T, H, K = q_BTHK.shape
    blocks = q_BTHK.reshape(B, T // size, size, G, H // G, K).transpose(1, 0, 3, 4, 2, 5)
    return [blocks[i].reshape(B, G, (H // G) * size, K) for i in range(T // size)]


def _join(blocks: list[jax.Array], H: int, size: int) -> jax.Array:
    """The inverse of `_split`."""
    B, G, _, K = blocks[0].shape
    stacked = jnp.stack(blocks).reshape(len(blocks), B, G, H // G, size, K)
    return stacked.transpose(1, 0, 4, 2, 3, 5).reshape(B, len(blocks) * size, H, K)


def _scores(q: jax.Array, k: jax.Array, size: int, scale: float) -> jax.Array:
    """Masked scores [B, G, R·size, S] of one query block against the S keys up to its end."""
    R, S = q.shape[2] // size, k.shape[2]
    return jnp.where(jnp.tile(_causal(size, S), (R, 1)), _product(q, k, (3, 3)) * scale, MASKED)


@jax.custom_vjp
def blocks(q_BTHK: jax.Array, k_BTGK: jax.Array, v_BTGK: jax.Array) -> jax.Array:
    """Attention by query blocks; memory grows with T · block instead of T²."""
    return _blocks_forward(q_BTHK, k_BTGK, v_BTGK)[0]


def _blocks_forward(q_BTHK: jax.Array, k_BTGK: jax.Array, v_BTGK: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    T, H, K = q_BTHK.shape[1:]
    size = _block_size(T)
    k_BGTK, v_BGTK = k_BTGK.swapaxes(1, 2), v_BTGK.swapaxes(1, 2)
    contexts, logsumexps = [], []
    for i, q in enumerate(_split(q_BTHK, k_BTGK.shape[2], size)):
        end = (i + 1) * size
        scores = _scores(q, k_BGTK[:, :, :end], size, K**-0.5)
        top = scores.max(axis=-1, keepdims=True)
        weights = jnp.exp(scores - top)
        total = weights.sum(axis=-1, keepdims=True)
        context = _product(weights.astype(v_BTGK.dtype), v_BGTK[:, :, :end], (3, 2)) / total
        contexts.append(context.astype(q_BTHK.dtype))
        logsumexps.append(top + jnp.log(total))
    context_BTHK = checkpoint_name(_join(contexts, H, size), "context")
    logsumexp = checkpoint_name(jnp.stack(logsumexps), "context")
    return context_BTHK, (q_BTHK, k_BTGK, v_BTGK, context_BTHK, logsumexp)


def _blocks_backward(residuals: tuple[jax.Array, ...], g_BTHK: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    q_BTHK, k_BTGK, v_BTGK, context_BTHK, logsumexp = residuals
    T, H, K = q_BTHK.shape[1:]
    G, size, dtype = k_BTGK.shape[2], _block_size(T), q_BTHK.dtype
    k_BGTK, v_BGTK = k_BTGK.swapaxes(1, 2), v_BTGK.swapaxes(1, 2)
    dk, dv = jnp.zeros(k_BGTK.shape, jnp.float32), jnp.zeros(v_BGTK.shape, jnp.float32)
    dqs = []
    splits = zip(_split(q_BTHK, G, size), _split(context_BTHK, G, size), _split(g_BTHK, G, size), strict=True)
    for i, (q, context, g) in enumerate(splits):
        end = (i + 1) * size
        keys, values = k_BGTK[:, :, :end], v_BGTK[:, :, :end]
        weights = jnp.exp(_scores(q, keys, size, K**-0.5) - logsumexp[i])
        delta = jnp.sum(g.astype(jnp.float32) * context.astype(jnp.float32), axis=-1, keepdims=True)
        dscores = (weights * (_product(g, values, (3, 3)) - delta) * K**-0.5).astype(dtype)
        dqs.append(_product(dscores, keys, (3, 2)).astype(dtype))
        dk = dk.at[:, :, :end].add(_product(_transposed(dscores), q, (3, 2)))
        dv = dv.at[:, :, :end].add(_product(_transposed(weights.astype(dtype)), g, (3, 2)))
    return (
        _join(dqs, H, size),
        dk.swapaxes(1, 2).astype(k_BTGK.dtype),
        dv.swapaxes(1, 2).astype(v_BTGK.dtype),
    )


blocks.defvjp(_blocks_forward, _blocks_backward)


def _blocks(
    q_BTHK: jax.Array, k_BTGK: jax.Array, v_BTGK: jax.Array, segments_BT: jax.Array | None, key: Key
) -> jax.Array:
    if segments_BT is not None:
        return reference(q_BTHK, k_BTGK, v_BTGK, segments_BT, key)
    return blocks(q_BTHK, k_BTGK, v_BTGK)


def cudnn(
    q_BTHK: jax.Array, k_BTGK: jax.Array, v_BTGK: jax.Array, segments_BT: jax.Array | None, key: Key
) -> jax.Array:
    """cuDNN's flash attention, by way of JAX."""
    mask = None if segments_BT is None else (segments_BT[:, None, :, None] == segments_BT[:, None, None, :])
    return jax.nn.dot_product_attention(q_BTHK, k_BTGK, v_BTGK, mask=mask, is_causal=True, implementation="cudnn")


ATTENTION: dict[str, Attention] = {"reference": reference, "blocks": _blocks, "cudnn": cudnn}

# What configurations call their attention; anything else means: the best row for the backend.
_BY_BACKEND = {"cpu": "blocks", "cuda": "cudnn"}


def choose(name: str, backend: str) -> str:
    """The row that serves an `Execution.attention` on a backend: the named one, else the backend's best."""
    if name in ATTENTION and not (name == "cudnn" and backend != "cuda"):
        return name
    return _BY_BACKEND.get(backend, "reference")


def make_attention(spec: RunSpec, rules: Rules, backend: str) -> Attention:
    """The attention of a run, on the heads and tokens of one device."""
    return ATTENTION[choose(spec.execution.attention, backend)]
