"""The parts of a decoder layer other than matrix products: norms, activations, positions, dropout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from seatrial.spec import ModelSpec, RopeScaling
from seatrial.train.random import Key, bits

Weights = Mapping[str, jax.Array]  # by name

# --- norms ------------------------------------------------------------------------------------------------------------


def rms_norm(x: jax.Array, scale_D: jax.Array, epsilon: float) -> jax.Array:
    """x / RMS(x) · scale over the last dimension, in float32 (arXiv 1910.07467)."""
    x32 = x.astype(jnp.float32)
    normed = x32 * lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + epsilon)
    return (normed * scale_D.astype(jnp.float32)).astype(x.dtype)


def layer_norm(x: jax.Array, scale_D: jax.Array, bias_D: jax.Array, epsilon: float) -> jax.Array:
    """(x - mean) / deviation · scale + bias over the last dimension, in float32 (arXiv 1607.06450)."""
    x32 = x.astype(jnp.float32)
    centred = x32 - jnp.mean(x32, axis=-1, keepdims=True)
    normed = centred * lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + epsilon)
    return (normed * scale_D.astype(jnp.float32) + bias_D.astype(jnp.float32)).astype(x.dtype)


@dataclass(frozen=True)
class Norm:
    """apply(x, *parameters, epsilon); `begin`: what follows the norm's name in a parameter's name → its first value."""

    apply: Callable[..., jax.Array]
    begin: Mapping[str, float]


NORMS = {
    "rmsnorm": Norm(rms_norm, {"": 1.0}),
    "layernorm": Norm(layer_norm, {"": 1.0, "_bias": 0.0}),
}


def norm(x: jax.Array, weights: Weights, name: str, model: ModelSpec) -> jax.Array:
    """The model's norm with the parameters of this name."""
    row = NORMS[model.norm]
    return row.apply(x, *(weights[name + suffix] for suffix in row.begin), model.norm_epsilon)


# --- activations ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Activation:
    """From the outputs of the maps into the feed-forward block, `inputs`, to the input of the map out of it."""

    inputs: tuple[str, ...]
    of: Callable[..., jax.Array]

    def apply(self, *inputs: jax.Array) -> jax.Array:
        """In float32, and given in the inputs' dtype."""
        return self.of(*(x.astype(jnp.float32) for x in inputs)).astype(inputs[0].dtype)


ACTIVATIONS = {
    "swiglu": Activation(("gate", "up"), lambda gate, up: jax.nn.silu(gate) * up),
    "gelu": Activation(("up",), partial(jax.nn.gelu, approximate=False)),
}

# --- dropout ----------------------------------------------------------------------------------------------------------


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _drop(x: jax.Array, kept: jax.Array, rate: float) -> jax.Array:
    return jnp.where(kept, x / (1 - rate), 0).astype(x.dtype)


# JAX's own would keep the zeros beside the mask.
_drop.defvjp(lambda x, kept, rate: (_drop(x, kept, rate), kept), lambda rate, kept, g: (_drop(g, kept, rate), None))


def dropout(x_BTD: jax.Array, rate: float, key_B2: Key, tokens_T: jax.Array, column: jax.Array | int) -> jax.Array:
    """0 with probability `rate`, else x / (1 - rate), by the number's place in the sequence and not by its device.

    The key is its sequence's; `tokens_T` are the tokens that x has, `column` is where its last dimension begins.
    """
    if not rate:
        return x_BTD
    columns_D = column + jnp.arange(x_BTD.shape[-1])
    kept_BTD = bits(key_B2[:, None, None], tokens_T[None, :, None], columns_D) >= np.uint32(rate * 2**32)
    return _drop(x_BTD, kept_BTD, rate)


# --- rotary positions -------------------------------------------------------------------------------------------------


# How many leading dimensions of a head are turned.
ROTARY_DIMS: dict[str, Callable[[ModelSpec], int]] = {
    "rope": lambda model: int(model.head_dim * model.rotary_fraction),
    "learned": lambda model: 0,
}


def rope_frequencies(model: ModelSpec) -> np.ndarray:
    """Radians per position for each of k pairs (RoFormer, arXiv 2104.09864), stretched if scaling says so.

    Raises ValueError where the dimensions that are turned are not pairs.
    """
    dims = ROTARY_DIMS[model.positions](model)
    if dims % 2:
        raise ValueError(
            f"rotary positions turn pairs of dimensions, but head_dim {model.head_dim} × rotary_fraction "
            f"{model.rotary_fraction:g} gives {dims}: make that even"
        )
    frequencies = model.rope_theta ** (-np.arange(0, dims, 2, dtype=np.float64) / max(dims, 1))
    return frequencies if model.rope_scaling is None else _stretch(frequencies, model.rope_scaling)


def _stretch(frequencies: np.ndarray, scaling: RopeScaling) -> np.ndarray:
    """Llama 3.1: long waves slowed by `factor`, short ones kept, a linear blend between (Meta's `apply_scaling`)."""
    turns = scaling.original_max_positions * frequencies / (2 * np.pi)  # in the original context
    span = scaling.high_freq_factor - scaling.low_freq_factor
    smooth = np.clip((turns - scaling.low_freq_factor) / span, 0.0, 1.0)
    stretched: np.ndarray = (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
    return stretched


def rope_tables(model: ModelSpec, positions_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
    """cos_BT1k and sin_BT1k in float32 for k pairs; B may be 1 where all sequences have the same positions."""
    angles = positions_BT[..., None, None] * jnp.asarray(rope_frequencies(model), jnp.float32)
    # From a loop, because XLA:CPU would recompute them in every fusion that reads them.
    cos, sin = lax.map(lambda which: jnp.where(which, jnp.sin(angles), jnp.cos(angles)), jnp.array([False, True]))
    return cos, sin


def rotate(x_BTHK: jax.Array, cos_BT1k: jax.Array, sin_BT1k: jax.Array) -> jax.Array:
    """Turns pair (i, i + k) by its angle, and leaves dimensions from 2k on: the layout of Hugging Face's weights."""
    k = cos_BT1k.shape[-1]
    a, b, rest = jnp.split(x_BTHK, (k, 2 * k), axis=-1)
    a, b = a.astype(jnp.float32), b.astype(jnp.float32)
    turned = [a * cos_BT1k - b * sin_BT1k, b * cos_BT1k + a * sin_BT1k]
    return jnp.concatenate([*(x.astype(x_BTHK.dtype) for x in turned), rest], axis=-1)
