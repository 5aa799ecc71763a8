"""How parameters are updated: rows of one table; clipping.

Everything here is elementwise, so it works on whatever shards the optimizer's table gives this device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from seatrial.spec import Optimizer

Slots = dict[str, jax.Array]  # what the optimizer remembers of a parameter, each of its shape


class Now(NamedTuple):
    """What an update must know beside the tensors: `step` counts from 0, `rate` is its learning rate."""

    step: jax.Array
    rate: jax.Array


# (param, gradient, slots, now, weight decay of this parameter, settings) → (param, slots), all in float32
Update = Callable[[jax.Array, jax.Array, Slots, Now, float, Optimizer], tuple[jax.Array, Slots]]


@dataclass(frozen=True)
class Row:
    """An optimizer: its update, and the names of its slots, which all begin with zeros."""

    update: Update
    slots: tuple[str, ...]


def clip_scale(norm: jax.Array, clip_norm: float | None) -> jax.Array:
    """The factor that brings gradients of this global norm to at most `clip_norm`; 1 where there is no limit."""
    return jnp.float32(1.0) if clip_norm is None else jnp.minimum(1.0, clip_norm / (norm + 1e-6))


def adamw(
    p: jax.Array, g: jax.Array, slots: Slots, now: Now, decay: float, settings: Optimizer
) -> tuple[jax.Array, Slots]:
    """Adam with decoupled decay (arXiv 1711.05101)."""
    b1, b2 = settings.beta1, settings.beta2
    t = (now.step + 1).astype(jnp.float32)
    m = b1 * slots["m"] + (1 - b1) * g
    v = b2 * slots["v"] + (1 - b2) * jnp.square(g)
    # Without the barrier XLA:CPU fuses each output apart and copies the donated buffers it could have reused.
    m, v = lax.optimization_barrier((m, v))
    direction = (m / (1 - b1**t)) / (jnp.sqrt(v / (1 - b2**t)) + settings.epsilon)
    return p - now.rate * (direction + decay * p), {"m": m, "v": v}


OPTIMIZERS: dict[str, Row] = {"adamw": Row(adamw, ("m", "v"))}
