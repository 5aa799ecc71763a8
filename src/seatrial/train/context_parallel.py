"""Attention over a sequence whose tokens are split over the mesh axis `context`, in contiguous parts: two strategies.

    all_gather   every device gets all keys and values; the transpose reduce-scatters their gradients
    ring         they travel from device to device, and their gradients with them: nothing is ever held whole

Without that axis in the mesh both are the row itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from seatrial.train.blockwise_attention import blocks
from seatrial.train.masks import Mask, Pattern
from seatrial.train.sharding import Rules, token_offset

# (q_BTHK, k_BSGK, v_BSGK, where they stand, what holds for the run) → context_BTHK
Row = Callable[[jax.Array, jax.Array, jax.Array, Mask, Pattern], jax.Array]


def _all_gather(row: Row, rules: Rules) -> Row:
    gather = partial(lax.all_gather, axis_name="context", axis=1, tiled=True)

    def read(q_BTHK: jax.Array, k_BTGK: jax.Array, v_BTGK: jax.Array, mask: Mask, pattern: Pattern) -> jax.Array:
        whole = mask._replace(
            first=jnp.asarray(token_offset(rules, q_BTHK.shape[1])),
            segments_BS=None if mask.segments_BS is None else gather(mask.segments_BS),
        )
        return row(q_BTHK, gather(k_BTGK), gather(v_BTGK), whole, pattern)

    return read if "context" in rules.axes else row


def _ring(row: Row, rules: Rules) -> Row:
    """Always by blocks: no other row tells the log-sum-exp by which parts are put together."""

    def read(q_BTHK: jax.Array, k_BTGK: jax.Array, v_BTGK: jax.Array, mask: Mask, pattern: Pattern) -> jax.Array:
        return blocks(q_BTHK, k_BTGK, v_BTGK, mask, pattern, True)

    return read if "context" in rules.axes else row


STRATEGIES: dict[str, Callable[[Row, Rules], Row]] = {"all_gather": _all_gather, "ring": _ring}
