"""Masks: which keys a query may read (before it, in its own document, inside a window), and which weights are dropped.

Positions count the tokens of a sequence over all devices, so nothing here depends on the mesh.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from seatrial.train.random import Key, bits

MASKED = -1e30  # finite: a row of nothing but -inf would make softmax 0/0


@dataclass(frozen=True)
class Pattern:
    """The mask settings of a run. `window`: query t reads keys t - window + 1 … t only (Mistral, arXiv 2310.06825)."""

    window: int | None = None
    dropout: float = 0.0  # the probability with which a weight is dropped


class Mask(NamedTuple):
    """The inputs to the mask of one call with T queries and S keys.

    `first`: the first query's position, counted from the first key; None: 0. Segments are given for packed documents;
    for dropout, a number for each row of a sequence's weights, and a random key for each sequence.
    """

    first: jax.Array | None = None
    segments_BT: jax.Array | None = None
    segments_BS: jax.Array | None = None
    rows_TH: jax.Array | None = None
    key_B2: Key | None = None


def visible(shape: tuple[int, int], ahead: jax.Array | int, window: int | None) -> jax.Array:
    """[t, s]: whether query t may read key s, where the first query stands `ahead` positions behind the first key."""
    distance = lax.broadcasted_iota(jnp.int32, shape, 0) - lax.broadcasted_iota(jnp.int32, shape, 1) + ahead
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)


def kept(key: Key, rows: jax.Array, columns: jax.Array, rate: float) -> jax.Array:
    """The factors of the weights: 0 with probability `rate`, else 1 / (1 - rate); all shapes are broadcast."""
    return jnp.where(bits(key, rows, columns) >= jnp.uint32(round(rate * 2**32)), 1 / (1 - rate), 0.0)
