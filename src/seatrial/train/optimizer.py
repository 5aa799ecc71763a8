"""AdamW, its learning-rate schedule and clipping, on whatever shards the optimizer's table gives this device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from seatrial.spec import Optimizer


def learning_rate(step: jax.Array, optimizer: Optimizer, total_steps: int) -> jax.Array:
    """The rate of step 0, 1, …: linear from 0 over the warm-up, then a cosine to the final fraction, then flat."""
    peak, final = optimizer.learning_rate, optimizer.learning_rate * optimizer.final_learning_rate_fraction
    warmup = optimizer.warmup_steps
    decay = max(1, (optimizer.decay_steps or total_steps) - warmup)
    progress = jnp.clip((step - warmup) / decay, 0.0, 1.0)
    cosine = final + (peak - final) * 0.5 * (1.0 + jnp.cos(jnp.pi * progress))
    return jnp.where(step < warmup, peak * step / max(1, warmup), cosine)


def clip_scale(norm: jax.Array, clip_norm: float | None) -> jax.Array:
    """The factor that brings gradients of this global norm to at most `clip_norm`; 1 where there is no limit."""
    return jnp.float32(1.0) if clip_norm is None else jnp.minimum(1.0, clip_norm / (norm + 1e-6))


def adamw(
    param: jax.Array,
    gradient: jax.Array,
    m: jax.Array,
    v: jax.Array,
    *,
    step: jax.Array,
    rate: jax.Array,
    decay: bool,
    optimizer: Optimizer,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One decoupled-decay Adam update (arXiv 1711.05101) in float32; param, m and v come back in their own dtypes.

    `step` counts from 0. `decay` says whether weight decay applies to this parameter.
    """
    b1, b2 = optimizer.beta1, optimizer.beta2
    t = (step + 1).astype(jnp.float32)
    g = gradient.astype(jnp.float32)
    new_m = b1 * m.astype(jnp.float32) + (1 - b1) * g
    new_v = b2 * v.astype(jnp.float32) + (1 - b2) * jnp.square(g)
    # Without the barrier XLA:CPU fuses each output apart and copies the donated buffers it could have reused.
    new_m, new_v = lax.optimization_barrier((new_m, new_v))
    direction = (new_m / (1 - b1**t)) / (jnp.sqrt(new_v / (1 - b2**t)) + optimizer.epsilon)
    p = param.astype(jnp.float32)
    if decay:
        direction += optimizer.weight_decay * p
    return (p - rate * direction).astype(param.dtype), new_m.astype(m.dtype), new_v.astype(v.dtype)
