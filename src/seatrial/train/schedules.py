"""The learning rate of every step: rows of one table."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from seatrial.spec import Optimizer

Schedule = Callable[[jax.Array, Optimizer, int], jax.Array]  # (step from 0, settings, the run's steps) → rate


def cosine(step: jax.Array, optimizer: Optimizer, total_steps: int) -> jax.Array:
    """Linear from 0 over the warm-up, then a cosine to the final fraction, then flat (MaxText, Megatron-LM)."""
    peak, final = optimizer.learning_rate, optimizer.learning_rate * optimizer.final_learning_rate_fraction
    warmup = optimizer.warmup_steps
    decay = max(1, (optimizer.decay_steps or total_steps) - warmup)
    progress = jnp.clip((step - warmup) / decay, 0.0, 1.0)
    curve = final + (peak - final) * 0.5 * (1.0 + jnp.cos(jnp.pi * progress))
    return jnp.where(step < warmup, peak * step / max(1, warmup), curve)


SCHEDULES: dict[str, Schedule] = {"cosine": cosine}


def learning_rate(step: jax.Array, optimizer: Optimizer, total_steps: int) -> jax.Array:
    """The rate of step 0, 1, … of a run."""
    return SCHEDULES[optimizer.schedule](step, optimizer, total_steps)
