"""Random bits as a pure function of a key and a place in the global tensor, so that every mesh draws the same.

Threefry-2x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) with the place as its counter.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.extend.random import threefry2x32_p

Key = jax.Array  # uint32 [..., 2]: one key, or one each for several things


def make_key(seed: int) -> Key:
    """The key of a run."""
    return jnp.array([seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF], jnp.uint32)


def fold(key: Key, number: jax.Array | int) -> Key:
    """Another key for each number: of a step, a sequence, a layer; `number` may be an array that suits the keys."""
    shape = jnp.broadcast_shapes(key.shape[:-1], jnp.shape(number))
    words = (key[..., 0], key[..., 1], number, 0x5EA)
    return jnp.stack(threefry2x32_p.bind(*(jnp.broadcast_to(x, shape).astype(jnp.uint32) for x in words)), axis=-1)


def bits(key: Key, rows: jax.Array, columns: jax.Array) -> jax.Array:
    """32 random bits (uint32) for every pair of counters; keys, `rows` and `columns` (integers) are broadcast."""
    words = (key[..., 0], key[..., 1], rows, columns)
    drawn: jax.Array = threefry2x32_p.bind(*jnp.broadcast_arrays(*(x.astype(jnp.uint32) for x in words)))[0]
    return drawn


def _mixed(x: jax.Array) -> jax.Array:
    """A bijection of 32 bits in which every bit depends on every other (C. Wellons, "Hash function prospector")."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def noise(key: Key, rows: jax.Array, columns: jax.Array) -> jax.Array:
    """As `bits`, for what needs no more than even odds: a tenth of the work, as little as fits into an optimizer."""
    row, column = (_mixed(x.astype(jnp.uint32) + word) for x, word in ((rows, key[0]), (columns, key[1])))
    return _mixed(row ^ column)
