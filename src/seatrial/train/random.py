"""Random bits as a pure function of a key and a place in the global tensor, so that every mesh draws the same.

Threefry-2x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) with the place as its counter.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.extend.random import threefry2x32_p

Key = jax.Array  # uint32 [2]


def make_key(seed: int) -> Key:
    """The key of a run."""
    return jnp.array([seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF], jnp.uint32)


def fold(key: Key, number: jax.Array | int) -> Key:
    """Another key for each number: of a step, a layer, a tensor."""
    return jnp.stack(threefry2x32_p.bind(key[0], key[1], jnp.uint32(number), jnp.uint32(0x5EA)))


def bits(key: Key, rows: jax.Array, columns: jax.Array) -> jax.Array:
    """32 random bits (uint32) for every pair of counters; `rows` and `columns` are uint32 of equal shape."""
    k0, k1 = jnp.broadcast_to(key[0], rows.shape), jnp.broadcast_to(key[1], rows.shape)
    return threefry2x32_p.bind(k0, k1, rows, columns)[0]
