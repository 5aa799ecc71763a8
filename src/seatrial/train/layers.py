"""What a decoder layer is made of beside its matrix products: norms, activations, positions, dropout."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from seatrial.spec import ModelSpec, RopeScaling

# --- norms ------------------------------------------------------------------------------------------------------------


def rms_norm(x: jax.Array, scale_D: jax.Array, epsilon: float) -> jax.Array:
    """x / RMS(x) · scale over the last dimension, in float32 (arXiv 1910.07467)."""
    x32 = x.astype(jnp.float32)
    normed = x32 * lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + epsilon)
    return (normed * scale_D.astype(jnp.float32)).astype(x.dtype)


# --- activations ------------------------------------------------------------------------------------------------------

# From the outputs of the maps into the feed-forward block to the input of the map out of it.
ACTIVATIONS: dict[str, Callable[..., jax.Array]] = {
    "swiglu": lambda gate, up: jax.nn.silu(gate) * up,
}

# --- rotary positions -------------------------------------------------------------------------------------------------


def rope_frequencies(model: ModelSpec) -> np.ndarray:
    """Radians per position for each of the K / 2 pairs (RoFormer, arXiv 2104.09864), stretched if scaling says so."""
    frequencies = model.rope_theta ** (-np.arange(0, model.head_dim, 2, dtype=np.float64) / model.head_dim)
    return frequencies if model.rope_scaling is None else _stretch(frequencies, model.rope_scaling)


def _stretch(frequencies: np.ndarray, scaling: RopeScaling) -> np.ndarray:
    """Llama 3.1: long waves slowed by `factor`, short ones kept, a linear blend between (Meta's `apply_scaling`)."""
    turns = scaling.original_max_positions * frequencies / (2 * np.pi)  # in the original context
    smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    smooth = np.clip(smooth, 0.0, 1.0)
    return (1 - smooth) * frequencies / scaling.factor + smooth * frequencies


def rope_tables(model: ModelSpec, positions_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
    """cos_BT1k and sin_BT1k (k = K / 2) in float32; B may be 1 where all sequences have the same positions."""
    angles = positions_BT[..., None, None] * jnp.asarray(rope_frequencies(model), jnp.float32)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x_BTHK: jax.Array, cos_BT1k: jax.Array, sin_BT1k: jax.Array) -> jax.Array:
    """Turns pair (i, i + K/2) by its angle: the half-split layout of Hugging Face's Llama weights."""
    a, b = jnp.split(x_BTHK.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos_BT1k - b * sin_BT1k, b * cos_BT1k + a * sin_BT1k], axis=-1).astype(x_BTHK.dtype)
