"""Number formats: how they are stored, and per backend the matrix products that reach its matrix units.

A `linear` takes the parameter as it lies at rest (float32 and sharded, say), gathers it in the compute format, and
returns the parameter's gradient reduce-scattered in float32. Both gathers (forward and backward) are ZeRO-3's: the full
weight is never kept. Each row of PRODUCTS computes the same three products; a test holds every row to the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

from seatrial.train.random import Key, noise
from seatrial.train.sharding import Placement, gather, to_rest

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


@dataclass(frozen=True)
class Products:
    """The three matrix products of a linear layer, on two-dimensional operands.

    forward(x_NI, w_IO) → y_NO and input_gradient(g_NO, w_IO) → dx_NI in the operands' dtype;
    weight_gradient(x_NI, g_NO) → dw_IO in float32. `logits_tokens`: of how many tokens the output head makes logits
    at once; more are fewer passes over its gradient, fewer are less memory, which is not free on a CPU either.
    `in_its_format`: a tensor that is to be rounded further, as it is. XLA:GPU leaves rounding to bfloat16 out before
    another conversion, so that the tensor would lie in memory in float32. `rounded`: an fp8 tensor that is taken back
    at once, which XLA:GPU leaves as it was before, unless the product runs on fp8 units.
    """

    forward: Callable[[jax.Array, jax.Array], jax.Array]
    input_gradient: Callable[[jax.Array, jax.Array], jax.Array]
    weight_gradient: Callable[[jax.Array, jax.Array], jax.Array]
    logits_tokens: int = 1024
    in_its_format: Callable[[jax.Array], jax.Array] = lambda x: x
    rounded: Callable[[jax.Array], jax.Array] = lambda x: x


def dot(a: jax.Array, b: jax.Array, contract: tuple[int, int], out: jnp.dtype) -> jax.Array:
    """A product over one dimension of each operand, accumulated in float32 and given in `out`."""
    dims = (((contract[0],), (contract[1],)), ((), ()))
    return lax.dot_general(a, b, dims, preferred_element_type=jnp.float32).astype(out)


def _row_major(x: jax.Array) -> jax.Array:
    """A transposed operand copied to rows: XLA:CPU's fast bf16 product takes no other (2–3 × on weight gradients)."""
    rows: jax.Array = with_layout_constraint(x.T, Layout((0, 1)))
    return rows


PRODUCTS: dict[str, Products] = {
    "reference": Products(
        forward=lambda x, w: dot(x, w, (1, 0), x.dtype),
        input_gradient=lambda g, w: dot(g, w, (1, 1), g.dtype),
        weight_gradient=lambda x, g: dot(x, g, (0, 0), jnp.float32),
    ),
    "cpu": Products(
        forward=lambda x, w: dot(x, w, (1, 0), x.dtype),
        input_gradient=lambda g, w: dot(g, w, (1, 1), g.dtype),
        weight_gradient=lambda x, g: dot(_row_major(x), g, (1, 0), jnp.float32),
        logits_tokens=512,
    ),
    # cuBLAS and hipBLAS accumulate in float32 and round once; asking for float32 out would double the traffic
    "gpu": Products(
        forward=lambda x, w: lax.dot_general(x, w, (((1,), (0,)), ((), ()))),
        input_gradient=lambda g, w: lax.dot_general(g, w, (((1,), (1,)), ((), ()))),
        weight_gradient=lambda x, g: dot(x, g, (0, 0), jnp.float32),
        in_its_format=lax.optimization_barrier,
    ),
}


def products_for(backend: str, *, fp8_units: bool = False) -> Products:
    """The row for a JAX backend name; the reference where none is written for it."""
    row = PRODUCTS.get({"cuda": "gpu", "rocm": "gpu"}.get(backend, backend), PRODUCTS["reference"])
    return row if backend == "cpu" or fp8_units else replace(row, rounded=lax.optimization_barrier)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def linear(x: jax.Array, w: jax.Array, placement: Placement, products: Products) -> jax.Array:
    """x[..., I] · w[I, O] → [..., O] in x's dtype; `w` is this device's shard at rest, in any float dtype."""
    return _forward(x, w, placement, products)[0]


def _forward(
    x: jax.Array, w: jax.Array, placement: Placement, products: Products
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    full = gather(w.astype(x.dtype), placement.rest, placement.compute)
    y_NO = products.forward(x.reshape(-1, x.shape[-1]), full)
    return y_NO.reshape(*x.shape[:-1], y_NO.shape[-1]), (x, w)


def _backward(
    placement: Placement, products: Products, residuals: tuple[jax.Array, jax.Array], g: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, w = residuals
    full = gather(w.astype(x.dtype), placement.rest, placement.compute)
    g_NO = g.reshape(-1, g.shape[-1])
    dx_NI = products.input_gradient(g_NO, full)
    dw_IO = products.weight_gradient(x.reshape(-1, x.shape[-1]), g_NO)
    return dx_NI.reshape(x.shape), to_rest(dw_IO, placement).astype(w.dtype)


linear.defvjp(_forward, _backward)


# --- storing ----------------------------------------------------------------------------------------------------------


def round_to_nearest(x: jax.Array, dtype: jnp.dtype, key: Key, rows: jax.Array, columns: jax.Array) -> jax.Array:
    """x as it is stored in a format."""
    return x.astype(dtype)


def round_at_random(x: jax.Array, dtype: jnp.dtype, key: Key, rows: jax.Array, columns: jax.Array) -> jax.Array:
    """float32 → bfloat16, up or down with the probabilities that make the mean x; other formats as ever.

    `rows` and `columns`: where an element stands in the whole tensor, broadcast to x. Numbers of bfloat16 stay what
    they are; what is finite stays finite, so that beyond the largest number it is always down.
    """
    if (x.dtype, dtype) != (jnp.float32, jnp.bfloat16):
        return x.astype(dtype)
    pattern = lax.bitcast_convert_type(x, jnp.uint32)
    low = jnp.uint32(0xFFFF)
    up = lax.bitcast_convert_type((pattern + (noise(key, rows, columns) & low)) & ~low, jnp.float32)
    down = lax.bitcast_convert_type(pattern & ~low, jnp.float32)
    return jnp.where(jnp.isfinite(x), jnp.where(jnp.isfinite(up), up, down), x).astype(dtype)


# Precision.stochastic_rounding → how numbers are stored
ROUNDING = {False: round_to_nearest, True: round_at_random}
