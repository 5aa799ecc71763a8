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

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.layout import Layout, with_layout_constraint

from seatrial.train.sight import MASKED, Pattern, Sight, kept, visible

MAX_CHUNK = 2048
MAX_BLOCKS = 8  # of a chunk
MIN_BLOCK = 128


class Queries(NamedTuple):
    q: jax.Array  # [c, b, B, G, M, K]
    segments: jax.Array | None  # [c, b, B, 1, M, 1]
    rows: jax.Array | None  # [c, b, 1, G, M, 1]
    key: jax.Array | None  # [c, b, B, 1, 1, 1, 2]


class Keys(NamedTuple):
    k: jax.Array  # [c, B, G, C, K]
    v: jax.Array
    segments: jax.Array | None  # [c, B, 1, 1, C]


class Read(NamedTuple):
    """What queries have read so far."""

    context: jax.Array  # [c, b, B, G, M, K], float32
    logsumexp: jax.Array  # [c, b, B, G, M, 1]


class Cut(NamedTuple):
    """How T queries are cut: into chunks of `chunk`, those into blocks of `block`."""

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

    def keys(self, k_BSGK: jax.Array, v_BSGK: jax.Array, sight: Sight) -> Keys:
        segments = (
            None if sight.segments_BS is None else self.columns(sight.segments_BS[..., None, None]).swapaxes(3, 4)
        )
        return Keys(self.columns(k_BSGK), self.columns(v_BSGK), segments)

    def queries(self, q_BTHK: jax.Array, G: int, sight: Sight) -> Queries:
        B, T, H, _ = q_BTHK.shape
        q, segments, rows, key = self.rows(q_BTHK, G), sight.segments_BT, sight.rows_TH, sight.key_B2
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


def _product(a: jax.Array, b: jax.Array, contract: tuple[int, int]) -> jax.Array:
    """A float32 product over one of the last two dimensions of each; the first two are batch: [B, G, ·, ·]."""
    dims = (((contract[0],), (contract[1],)), ((0, 1), (0, 1)))
    return lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)


def _transposed(x: jax.Array) -> jax.Array:
    """[B, G, m, n] → [B, G, n, m]; on a CPU copied to rows, which XLA's fast product there needs."""
    return lax.platform_dependent(
        x.swapaxes(2, 3), cpu=lambda x: with_layout_constraint(x, Layout((0, 1, 2, 3))), default=lambda x: x
    )


# --- one block of queries against the keys of one chunk ---------------------------------------------------------------


def _span(b: int, diagonal: bool, cut: Cut) -> slice:
    """The keys of a chunk that block b can see; of its own chunk, those up to its end and inside the window."""
    if not diagonal:
        return slice(0, cut.chunk)
    start = 0 if cut.pattern.window is None else max(0, b * cut.block - cut.pattern.window + 1)
    return slice(start, (b + 1) * cut.block)


def _near(keys: Keys, span: slice) -> Keys:
    segments = None if keys.segments is None else keys.segments[..., span]
    return Keys(keys.k[:, :, span], keys.v[:, :, span], segments)


def _scores(own: Queries, near: Keys, ahead: jax.Array | int, diagonal: bool, cut: Cut) -> jax.Array:
    """Masked scores [B, G, M, S] of one block."""
    M, K = own.q.shape[2:]
    scores = _product(own.q, near.k, (3, 3)) * K**-0.5
    if diagonal or cut.pattern.window is not None:
        seen = visible((cut.block, near.k.shape[2]), ahead, cut.pattern.window)
        scores = jnp.where(jnp.tile(seen, (M // cut.block, 1)), scores, MASKED)
    return scores if near.segments is None else jnp.where(own.segments == near.segments, scores, MASKED)


def _dropped(weights: jax.Array, own: Queries, first: jax.Array | int, cut: Cut) -> jax.Array:
    """Weights [B, G, M, S] after dropout; `first`: the position of the first of the S keys in its sequence."""
    if own.key is None or own.rows is None:
        return weights
    return weights * kept(own.key, own.rows, first + jnp.arange(weights.shape[3]), cut.pattern.dropout)


def _read(own: Queries, keys: Keys, first: jax.Array | int, ahead: jax.Array | int, diagonal: bool, cut: Cut) -> Read:
    """One chunk of queries reads one of keys, which begins at position `first`, `ahead` positions before them."""
    contexts, logsumexps = [], []
    for b in range(own.q.shape[0]):
        block, span = _pick(own, b), _span(b, diagonal, cut)
        near = _near(keys, span)
        scores = _scores(block, near, ahead + b * cut.block - span.start, diagonal, cut)
        top = scores.max(axis=-1, keepdims=True)
        weights = jnp.exp(scores - top)
        total = weights.sum(axis=-1, keepdims=True)
        weights = _dropped(weights, block, first + span.start, cut).astype(near.v.dtype)
        contexts.append(_product(weights, near.v, (3, 2)) / total)
        logsumexps.append(top + jnp.log(total))
    return Read(jnp.stack(contexts), jnp.stack(logsumexps))


def _merged(a: Read, b: Read) -> Read:
    """What queries have read of two sets of keys."""
    logsumexp = jnp.logaddexp(a.logsumexp, b.logsumexp)
    of_a, of_b = jnp.exp(a.logsumexp - logsumexp), jnp.exp(b.logsumexp - logsumexp)
    return Read(a.context * of_a + b.context * of_b, logsumexp)


class Back(NamedTuple):
    """What the backward pass knows of each query beside `Queries`."""

    g: jax.Array  # the context's gradient [c, b, B, G, M, K]
    logsumexp: jax.Array  # [c, b, B, G, M, 1]
    delta: jax.Array  # Σ g · context, which is Σ weight · (the weight's gradient)


class Sums(NamedTuple):
    """Gradients in float32."""

    dq: jax.Array
    dkv: tuple[jax.Array, jax.Array]


def _read_backward(
    own: Queries, back: Back, keys: Keys, first: jax.Array | int, ahead: jax.Array | int, diagonal: bool, cut: Cut
) -> Sums:
    """The gradients of `_read`'s arguments, as far as this chunk of keys goes: dq [b, B, G, M, K], dk and dv."""
    dq, dk, dv = [], jnp.zeros(keys.k.shape, jnp.float32), jnp.zeros(keys.v.shape, jnp.float32)
    for b in range(own.q.shape[0]):
        (block, (g, logsumexp, delta)), span = _pick((own, tuple(back)), b), _span(b, diagonal, cut)
        near = _near(keys, span)
        scores = _scores(block, near, ahead + b * cut.block - span.start, diagonal, cut)
        weights = jnp.exp(scores - logsumexp)
        scale, dtype = block.q.shape[-1] ** -0.5, block.q.dtype
        dweights = _dropped(_product(g, near.v, (3, 3)), block, first + span.start, cut)
        dscores = (weights * (dweights - delta) * scale).astype(dtype)
        weights = _dropped(weights, block, first + span.start, cut).astype(dtype)
        dq.append(_product(dscores, near.k, (3, 2)))
        dk = dk.at[:, :, span].add(_product(_transposed(dscores), block.q, (3, 2)))
        dv = dv.at[:, :, span].add(_product(_transposed(weights), g, (3, 2)))
    return Sums(jnp.stack(dq), (dk, dv))


# --- all chunks -------------------------------------------------------------------------------------------------------


def _over_chunks(body: Any, carry: Any, chunks: Any) -> tuple[Any, Any]:
    """`lax.scan` over numbered chunks; no loop where there is one."""
    number = jax.tree.leaves(chunks)[0].shape[0]
    if number > 1:
        return lax.scan(body, carry, (jnp.arange(number), chunks))
    carry, out = body(carry, (0, _pick(chunks, 0)))
    return carry, jax.tree.map(lambda x: x[None], out)


def _earlier(here: jax.Array | int, number: int, cut: Cut) -> tuple[jax.Array, jax.Array]:
    """From which to before which of `number` chunks of keys the queries at chunk `here` read, beside their own."""
    window = cut.pattern.window
    first = 0 if window is None else here - (window + cut.chunk - 2) // cut.chunk
    return jnp.maximum(first, 0), jnp.minimum(here, number)


def _forward(
    queries: Queries, keys: Keys, read: Read | None, at: jax.Array | int, of: jax.Array | int, cut: Cut
) -> Read:
    """Queries that begin at chunk `at` of their sequence read keys that begin at chunk `of`.

    `read` is what they have read before; None: nothing, and then their own positions are among the keys'.
    """
    number = keys.k.shape[0]

    def of_chunk(_: None, chunk: Any) -> tuple[None, Read]:
        c, (own, read) = chunk
        here = c + at - of

        def step(j: Any, read: Read) -> Read:
            near = _pick(keys, j)
            return _merged(read, _read(own, near, (of + j) * cut.chunk, (here - j) * cut.chunk, False, cut))

        if read is None:
            read = _read(own, _pick(keys, here), (of + here) * cut.chunk, 0, True, cut)
            if number == 1:
                return None, read
        return None, lax.fori_loop(*_earlier(here, number, cut), step, read)

    return _over_chunks(of_chunk, None, (queries, read))[1]


def _backward(
    queries: Queries, back: Back, keys: Keys, sums: Sums, at: jax.Array | int, of: jax.Array | int, cut: Cut, own: bool
) -> Sums:
    """Adds the gradients of `_forward` to `sums`; `own`: the queries' own positions are among the keys'."""
    number = keys.k.shape[0]

    def of_chunk(dkv: Any, chunk: Any) -> tuple[Any, jax.Array]:
        c, (queries, back, dq) = chunk
        here = c + at - of

        def step(j: Any, sums: Any, diagonal: bool = False) -> Any:
            near, ahead = _pick(keys, j), 0 if diagonal else (here - j) * cut.chunk
            dq, dkv = _read_backward(queries, back, near, (of + j) * cut.chunk, ahead, diagonal, cut)
            return sums[0] + dq, jax.tree.map(lambda total, x: _add_at(total, j, x), sums[1], dkv)

        sums = step(here, (dq, dkv), diagonal=True) if own else (dq, dkv)
        if not own or number > 1:
            sums = lax.fori_loop(*_earlier(here, number, cut), step, sums)
        return sums[1], sums[0]

    dkv, dq = _over_chunks(of_chunk, sums.dkv, (queries, back, sums.dq))
    return Sums(dq, dkv)


def _add_at(total: jax.Array, number: jax.Array | int, x: jax.Array) -> jax.Array:
    return lax.dynamic_update_index_in_dim(total, total[number] + x, number, 0)


# --- the whole --------------------------------------------------------------------------------------------------------


def _rotate(x: Any, by: int) -> Any:
    """Sends `x` on to the device `by` places further along the ring."""
    size = lax.axis_size("context")
    pairs = [(device, (device + by) % size) for device in range(size)]
    return jax.tree.map(lambda leaf: lax.ppermute(leaf, "context", pairs), x)


def _cut(q_BTHK: jax.Array, pattern: Pattern) -> Cut:
    chunk = _chunk_size(q_BTHK.shape[1], pattern.window)
    return Cut(chunk, _block_size(chunk), pattern)


def _stations(T: int, ring: bool, window: int | None) -> int:
    """How many devices' keys come by; those that no query can see do not."""
    size = lax.axis_size("context") if ring else 1
    return size if window is None else min(size, 1 + (window + T - 2) // T)


def _places(first: jax.Array | None, number: int, station: int, ring: bool, cut: Cut) -> tuple[Any, Any]:
    """The chunks of their sequence at which the queries begin, and the keys that are here at `station`."""
    if not ring:
        return 0 if first is None else first // cut.chunk, 0
    size, device = lax.axis_size("context"), lax.axis_index("context")
    return device * number, (device - station) % size * number


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def blocks(
    q_BTHK: jax.Array, k_BSGK: jax.Array, v_BSGK: jax.Array, sight: Sight, pattern: Pattern, ring: bool = False
) -> jax.Array:
    """Attention by blocks; in memory that grows with T, not T². `ring`: over the parts of all devices of `context`."""
    return _blocks_forward(q_BTHK, k_BSGK, v_BSGK, sight, pattern, ring)[0]


def _blocks_forward(
    q_BTHK: jax.Array, k_BSGK: jax.Array, v_BSGK: jax.Array, sight: Sight, pattern: Pattern, ring: bool
) -> tuple[jax.Array, Any]:
    (_, T, H, _), G = q_BTHK.shape, k_BSGK.shape[2]
    cut = _cut(q_BTHK, pattern)
    queries, keys = cut.queries(q_BTHK, G, sight), cut.keys(k_BSGK, v_BSGK, sight)
    read = None
    for station in range(_stations(T, ring, pattern.window)):
        keys = _rotate(keys, 1) if station else keys
        read = _forward(queries, keys, read, *_places(sight.first, T // cut.chunk, station, ring, cut), cut)
    assert read is not None
    context_BTHK = checkpoint_name(cut.joined(read.context, H).astype(q_BTHK.dtype), "context")
    logsumexp = checkpoint_name(read.logsumexp, "context")
    return context_BTHK, (q_BTHK, k_BSGK, v_BSGK, sight, context_BTHK, logsumexp)


def _blocks_backward(
    pattern: Pattern, ring: bool, residuals: Any, g_BTHK: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, None]:
    q_BTHK, k_BSGK, v_BSGK, sight, context_BTHK, logsumexp = residuals
    (_, T, H, _), G = q_BTHK.shape, k_BSGK.shape[2]
    cut = _cut(q_BTHK, pattern)
    queries, keys = cut.queries(q_BTHK, G, sight), cut.keys(k_BSGK, v_BSGK, sight)
    g, context = cut.rows(g_BTHK, G), cut.rows(context_BTHK, G)
    delta = jnp.sum(g.astype(jnp.float32) * context.astype(jnp.float32), axis=-1, keepdims=True)
    back = Back(g, logsumexp, delta)
    sums = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), Sums(queries.q, (keys.k, keys.v)))
    stations = _stations(T, ring, pattern.window)
    for station in range(stations):
        if station:
            keys, sums = _rotate(keys, 1), sums._replace(dkv=_rotate(sums.dkv, 1))
        places = _places(sight.first, T // cut.chunk, station, ring, cut)
        sums = _backward(queries, back, keys, sums, *places, cut, own=station == 0)
    dk, dv = _rotate(sums.dkv, 1 - stations) if stations > 1 else sums.dkv
    dq_BTHK = cut.joined(sums.dq, H).astype(q_BTHK.dtype)
    dk_BSGK, dv_BSGK = (x.transpose(1, 0, 3, 2, 4).reshape(k_BSGK.shape) for x in (dk, dv))
    return dq_BTHK, dk_BSGK.astype(k_BSGK.dtype), dv_BSGK.astype(v_BSGK.dtype), None


blocks.defvjp(_blocks_forward, _blocks_backward)
