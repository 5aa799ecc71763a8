"""Attention by blocks of queries; only the context and the log-sum-exp of its scores are kept for the backward pass.

FlashAttention-2 (arXiv 2307.08691) in plain JAX. Queries and keys are cut into chunks of equal length. A chunk of
queries reads the keys at its own positions, block by block and no further than each block sees, then the chunks before
it, one after the other; chunks that no query of it may see are never touched. On a CPU one wide product per block is
faster than many small ones, so up to MAX_CHUNK tokens there is one chunk, and no loop.

In a ring (arXiv 2310.01889) the keys of the other devices come by: those that another device has read go on to the
next, and in the backward pass the sums of their gradients travel with them.

Within: c numbers chunks, b the blocks of a chunk, M = R · (queries of a block): the heads of one group share their
keys, so they make one taller matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.layout import Layout, with_layout_constraint

from seatrial.train.masks import MASKED, Mask, Pattern, kept, visible

MAX_CHUNK = 2048
MAX_BLOCKS = 8  # of a chunk
MIN_BLOCK = 128


class Read(NamedTuple):
    """The result of attention over the keys that have been read so far."""

    context: jax.Array  # [c, b, B, G, M, K]
    logsumexp: jax.Array  # [c, b, B, G, M, 1]


class Queries(NamedTuple):
    q: jax.Array  # [c, b, B, G, M, K]
    segments: jax.Array | None  # [c, b, B, 1, M, 1]
    rows: jax.Array | None  # [c, b, 1, G, M, 1]
    key: jax.Array | None  # [c, b, B, 1, 1, 1, 2]
    read: Read | None = None  # for the backward pass: the whole result,
    g: jax.Array | None = None  # and its gradient [c, b, B, G, M, K]


class Keys(NamedTuple):
    k: jax.Array  # [c, B, G, C, K]
    v: jax.Array
    segments: jax.Array | None  # [c, B, 1, 1, C]


class Cut(NamedTuple):
    """The division of T queries into chunks of `chunk`, and of those into blocks of `block`."""

    chunk: int
    block: int
    pattern: Pattern

    def rows(self, x_BTHK: jax.Array, G: int) -> jax.Array:
        """[B, T, H, K] → [c, b, B, G, M, K]."""
        B, T, H, K = x_BTHK.shape
        shape = (B, T // self.chunk, self.chunk // self.block, self.block, G, H // G, K)
        return x_BTHK.reshape(shape).transpose(1, 2, 0, 4, 5, 3, 6).reshape(*shape[1:3], B, G, -1, K)

    def joined(self, x: jax.Array, H: int) -> jax.Array:
        """The inverse of `rows`."""
        c, b, B, G, _, K = x.shape
        blocks = x.reshape(c, b, B, G, H // G, self.block, K).transpose(2, 0, 1, 5, 3, 4, 6)
        return blocks.reshape(B, c * self.chunk, H, K)

    def columns(self, x_BSGK: jax.Array) -> jax.Array:
        """[B, S, G, K] → [c, B, G, C, K]."""
        B, S, G, K = x_BSGK.shape
        return x_BSGK.reshape(B, S // self.chunk, self.chunk, G, K).transpose(1, 0, 3, 2, 4)

    def keys(self, k_BSGK: jax.Array, v_BSGK: jax.Array, mask: Mask) -> Keys:
        segments = None if mask.segments_BS is None else self.columns(mask.segments_BS[..., None, None]).swapaxes(3, 4)
        return Keys(self.columns(k_BSGK), self.columns(v_BSGK), segments)

    def queries(self, q_BTHK: jax.Array, G: int, mask: Mask) -> Queries:
        B, T, H, _ = q_BTHK.shape
        q, segments, rows, key = self.rows(q_BTHK, G), mask.segments_BT, mask.rows_TH, mask.key_B2
        if segments is not None:
            segments = self.rows(jnp.broadcast_to(segments[..., None, None], (B, T, H // G, 1)), 1)
        if rows is not None and key is not None:
            rows = self.rows(rows[None, :, :, None], G)
            key = jnp.broadcast_to(key[:, None, None, None], (*q.shape[:3], 1, 1, 1, 2))
        return Queries(q, segments, rows, key)


def _chunk_size(T: int, window: int | None) -> int:
    """All of T up to MAX_CHUNK; else its largest divisor up to that, or to a smaller window; T where it has none."""
    most = MAX_CHUNK if window is None else min(MAX_CHUNK, max(window, 2 * MIN_BLOCK))
    return T if T <= MAX_CHUNK else next((size for size in range(most, MIN_BLOCK, -1) if T % size == 0), T)


def _block_size(T: int) -> int:
    """The smallest divisor of T that is at least MIN_BLOCK and leaves at most MAX_BLOCKS blocks."""
    least = max(min(T, MIN_BLOCK), -(-T // MAX_BLOCKS))
    return next(size for size in range(least, T + 1) if T % size == 0)


def _pick(tree: Any, number: jax.Array | int) -> Any:
    """One chunk or block of a tree of them."""
    return jax.tree.map(lambda x: x[number], tree)


def _cut(T: int, pattern: Pattern) -> Cut:
    chunk = _chunk_size(T, pattern.window)
    return Cut(chunk, _block_size(chunk), pattern)


def _product(a: jax.Array, b: jax.Array, contract: tuple[int, int]) -> jax.Array:
    """A float32 product over one of the last two dimensions of each; the first two are batch: [B, G, ·, ·]."""
    dims = (((contract[0],), (contract[1],)), ((0, 1), (0, 1)))
    return lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)


def _transposed(x: jax.Array) -> jax.Array:
    """[B, G, m, n] → [B, G, n, m]; on a CPU copied to rows, which XLA's fast product there needs."""
    by_rows: jax.Array = lax.platform_dependent(
        x.swapaxes(2, 3), cpu=lambda x: with_layout_constraint(x, Layout((0, 1, 2, 3))), default=lambda x: x
    )
    return by_rows


# --- a chunk of queries and a chunk of keys ---------------------------------------------------------------------------


class Place(NamedTuple):
    """The position of a chunk of keys: at `first` in its sequence, `ahead` positions before the queries."""

    first: jax.Array | int
    ahead: jax.Array | int
    diagonal: bool  # both are the same chunk


def _each_block(queries: Queries, keys: Keys, place: Place, cut: Cut) -> Iterator[tuple[Any, ...]]:
    """For each block of queries: the block, the part of the keys that it can see and which, masked scores
    [B, G, M, S], and what dropout multiplies their weights with."""
    window = cut.pattern.window
    for b in range(queries.q.shape[0]):
        span = slice(0, cut.chunk)
        if place.diagonal:
            span = slice(0 if window is None else max(0, b * cut.block - window + 1), (b + 1) * cut.block)
        block, k, v = _pick(queries, b), keys.k[:, :, span], keys.v[:, :, span]
        M, K = block.q.shape[2:]
        scores = _product(block.q, k, (3, 3)) * K**-0.5
        if place.diagonal or window is not None:
            seen = visible((cut.block, k.shape[2]), place.ahead + b * cut.block - span.start, window)
            scores = jnp.where(jnp.tile(seen, (M // cut.block, 1)), scores, MASKED)
        if keys.segments is not None:
            scores = jnp.where(block.segments == keys.segments[..., span], scores, MASKED)
        left: jax.Array | float = 1.0
        if block.key is not None:
            columns = place.first + span.start + jnp.arange(k.shape[2])
            left = kept(block.key, block.rows, columns, cut.pattern.dropout)
        yield block, k, v, span, scores, left


def _read(queries: Queries, keys: Keys, before: Read | None, place: Place, cut: Cut) -> tuple[Read, None]:
    """The result of attention over these keys, merged with `before`; None: no keys were read before."""
    contexts, logsumexps = [], []
    for _, _, v, _, scores, left in _each_block(queries, keys, place, cut):
        top = scores.max(axis=-1, keepdims=True)
        weights = jnp.exp(scores - top)
        total = weights.sum(axis=-1, keepdims=True)
        contexts.append(_product((weights * left).astype(v.dtype), v, (3, 2)) / total)
        logsumexps.append(top + jnp.log(total))
    read = Read(jnp.stack(contexts), jnp.stack(logsumexps))
    if before is None:
        return read, None
    logsumexp = jnp.logaddexp(before.logsumexp, read.logsumexp)
    parts = [x.context * jnp.exp(x.logsumexp - logsumexp) for x in (before, read)]
    return Read(parts[0] + parts[1], logsumexp), None


def _read_backward(
    queries: Queries, keys: Keys, before: jax.Array, place: Place, cut: Cut
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """The queries' gradient: that of `before` and of these keys; and the gradients of the keys and values."""
    dq, dk, dv = [], jnp.zeros(keys.k.shape, jnp.float32), jnp.zeros(keys.v.shape, jnp.float32)
    for block, k, v, span, scores, left in _each_block(queries, keys, place, cut):
        weights = jnp.exp(scores - block.read.logsumexp)
        # Σ weight · (gradient of the weight), over all keys of the sequence
        delta = jnp.sum(block.g.astype(jnp.float32) * block.read.context.astype(jnp.float32), axis=-1, keepdims=True)
        dweights = _product(block.g, v, (3, 3)) * left
        dscores = (weights * (dweights - delta)).astype(k.dtype)  # of the scores as they are behind their scale
        dq.append(_product(dscores, k, (3, 2)))
        dk = dk.at[:, :, span].add(_product(_transposed(dscores), block.q, (3, 2)))
        dv = dv.at[:, :, span].add(_product(_transposed((weights * left).astype(v.dtype)), block.g, (3, 2)))
    scale = keys.k.shape[-1] ** -0.5
    return before + scale * jnp.stack(dq), (scale * dk, dv)


# --- all chunks -------------------------------------------------------------------------------------------------------

Reader = Callable[[Queries, Keys, Any, Place, Cut], tuple[Any, Any]]  # `_read` or `_read_backward`
Sums = tuple[Any, Any]  # what a reader gives, so far: for the queries, and for the keys


class Station(NamedTuple):
    """The keys that come by at one point of a ring, the device's own at 0: all that there are without a ring."""

    number: int
    queries_at: jax.Array | int  # the chunk of the sequence with which this device's queries begin,
    keys_at: jax.Array | int  # and these keys


def _attend(read: Reader, queries: Queries, keys: Keys, sums: Sums, station: Station, cut: Cut) -> Sums:
    """Each chunk of queries reads what it sees of the keys."""

    def of_chunk(of_keys: Any, chunk: Any) -> tuple[Any, Any]:
        c, (queries, of_queries) = chunk
        at = station._replace(queries_at=c + station.queries_at)
        of_queries, of_keys = _attend_chunk(read, queries, keys, (of_queries, of_keys), at, cut)
        return of_keys, of_queries

    chunks = (queries, sums[0])
    if queries.q.shape[0] > 1:
        of_keys, of_queries = lax.scan(of_chunk, sums[1], (jnp.arange(queries.q.shape[0]), chunks))
    else:
        of_keys, one = of_chunk(sums[1], (0, _pick(chunks, 0)))
        of_queries = jax.tree.map(lambda x: x[None], one)
    return of_queries, of_keys


def _attend_chunk(read: Reader, queries: Queries, keys: Keys, sums: Sums, station: Station, cut: Cut) -> Sums:
    """One chunk of queries, with which this station's begin, reads the chunks of keys that it sees."""
    here = station.queries_at - station.keys_at
    number, window = keys.k.shape[0], cut.pattern.window

    def step(j: Any, sums: Sums, diagonal: bool = False) -> Sums:
        place = Place((station.keys_at + j) * cut.chunk, 0 if diagonal else (here - j) * cut.chunk, diagonal)
        of_queries, more = read(queries, _pick(keys, j), sums[0], place, cut)
        added = jax.tree.map(lambda total, x: lax.dynamic_update_index_in_dim(total, total[j] + x, j, 0), sums[1], more)
        return of_queries, added

    is_own = station.number == 0
    if is_own:
        sums = step(here, sums, diagonal=True)
    if number > 1 or not is_own:
        first = 0 if window is None else here - (window + cut.chunk - 2) // cut.chunk
        sums = lax.fori_loop(jnp.maximum(first, 0), jnp.minimum(here, number), step, sums)
    return sums


def _stations(mask: Mask, T: int, ring: bool, cut: Cut) -> Iterator[Station]:
    """Those whose keys any query can see."""
    if not ring:
        yield Station(0, 0 if mask.first is None else mask.first // cut.chunk, 0)
        return
    size, device = lax.axis_size("context"), lax.axis_index("context")
    number, window = T // cut.chunk, cut.pattern.window
    for station in range(size if window is None else min(size, 1 + (window + T - 2) // T)):
        yield Station(station, device * number, (device - station) % size * number)


def _rotate(x: Any, by: int) -> Any:
    """Sends `x` to the device `by` places further along the ring."""
    size = lax.axis_size("context")
    pairs = [(device, (device + by) % size) for device in range(size)]
    return jax.tree.map(lambda leaf: lax.ppermute(leaf, "context", pairs), x)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def blocks(
    q_BTHK: jax.Array, k_BSGK: jax.Array, v_BSGK: jax.Array, mask: Mask, pattern: Pattern, ring: bool = False
) -> jax.Array:
    """Attention by blocks, in memory that grows with T, not T². `ring`: over the parts of all devices of `context`."""
    return _forward(q_BTHK, k_BSGK, v_BSGK, mask, pattern, ring)[0]


def _forward(
    q_BTHK: jax.Array, k_BSGK: jax.Array, v_BSGK: jax.Array, mask: Mask, pattern: Pattern, ring: bool
) -> tuple[jax.Array, Any]:
    (_, T, H, _), G = q_BTHK.shape, k_BSGK.shape[2]
    cut = _cut(T, pattern)
    queries, keys = cut.queries(q_BTHK, G, mask), cut.keys(k_BSGK, v_BSGK, mask)
    read: Any = None
    for station in _stations(mask, T, ring, cut):
        keys = _rotate(keys, 1) if station.number else keys
        read, _ = _attend(_read, queries, keys, (read, None), station, cut)
    context_BTHK = checkpoint_name(cut.joined(read.context, H).astype(q_BTHK.dtype), "context")
    logsumexp = checkpoint_name(read.logsumexp, "context")
    return context_BTHK, (q_BTHK, k_BSGK, v_BSGK, mask, context_BTHK, logsumexp)


def _backward(
    pattern: Pattern, ring: bool, residuals: Any, g_BTHK: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, None]:
    q_BTHK, k_BSGK, v_BSGK, mask, context_BTHK, logsumexp = residuals
    (_, T, H, _), G = q_BTHK.shape, k_BSGK.shape[2]
    cut = _cut(T, pattern)
    queries, keys = cut.queries(q_BTHK, G, mask), cut.keys(k_BSGK, v_BSGK, mask)
    queries = queries._replace(read=Read(cut.rows(context_BTHK, G), logsumexp), g=cut.rows(g_BTHK, G))
    dq, dkv = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), (queries.q, (keys.k, keys.v)))
    moved = 0
    for station in _stations(mask, T, ring, cut):
        moved = station.number
        if moved:
            keys, dkv = _rotate(keys, 1), _rotate(dkv, 1)
        dq, dkv = _attend(_read_backward, queries, keys, (dq, dkv), station, cut)
    dkv = _rotate(dkv, -moved) if moved else dkv
    dk_BSGK, dv_BSGK = (x.transpose(1, 0, 3, 2, 4).reshape(k_BSGK.shape).astype(k_BSGK.dtype) for x in dkv)
    return cut.joined(dq, H).astype(q_BTHK.dtype), dk_BSGK, dv_BSGK, None


blocks.defvjp(_forward, _backward)
