"""Matrix products of fp8 operands: recipes as a table, and the linear map that follows them.

An operand is scaled so that its largest value fits the format, rounded to fp8, and taken back. The scales are powers of
two, so nothing but fp8's own rounding is lost, and what comes back are numbers of bfloat16 too: on a CPU the product of
these is the emulation, and on Hopper XLA finds the conversions in front of the product and runs it on the fp8 units
(`__cublas$lt$matmul$f8`), under the conditions of `OPTIONS`. Weights cross the network in fp8.
Embedding and output head stay as they are.

Current scales follow from what a device itself holds: a product's result leaves it in the compute format, so that
others need not know them. Of the weights alone fsdp brings parts together, which have one scale: the largest values of
all layers are looked for at once, in a single all-reduce a step (`shared`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from seatrial.spec import NOT_QUANTIZATIONS, QUANTIZATIONS, RunSpec
from seatrial.train.precision import Products, linear
from seatrial.train.sharding import Axes, Placement, Rules, gather, to_rest

# Of the compiler for NVIDIA's devices. Products of one operand that are merged are not found to be fp8. Nor are those
# that it offers to Triton: it drops their rounding instead, and computes in bfloat16 (seen on an H200, jax 0.11.2).
OPTIONS = {"xla_gpu_dot_merger_threshold_mb": 0, "xla_gpu_enable_triton_gemm": False}
HISTORY = 1024  # steps that a delayed scale looks back on, as in Transformer Engine and flax

# (x[..., I], w[I, O] at rest, what was seen in earlier steps, placement) → [..., O]
Linear = Callable[[jax.Array, jax.Array, jax.Array | None, Placement], jax.Array]
Amax = dict[str, jax.Array]  # a layer's matrix → the largest magnitude of its input, itself, and its output's gradient


@dataclass(frozen=True)
class Recipe:
    """Formats of activations and weights, and of gradients; `delayed`: scales follow from earlier steps' values."""

    operands: Any
    gradients: Any
    delayed: bool = False


RECIPES: dict[str, Recipe] = {
    "current": Recipe(jnp.float8_e4m3fn, jnp.float8_e5m2),
    "current_e4m3": Recipe(jnp.float8_e4m3fn, jnp.float8_e4m3fn),
    "delayed": Recipe(jnp.float8_e4m3fn, jnp.float8_e5m2, delayed=True),
    "delayed_fnuz": Recipe(jnp.float8_e4m3fnuz, jnp.float8_e5m2fnuz, delayed=True),  # of MI300
}


def find_recipe(spec: RunSpec) -> Recipe | None:
    """The recipe that a spec names, if any. Raises ValueError where there is none of this name."""
    name = spec.precision.quantization
    if name is None:
        return None
    if name not in QUANTIZATIONS:
        why = NOT_QUANTIZATIONS.get(name, f"the names are {', '.join(QUANTIZATIONS)}")
        raise ValueError(f"precision.quantization = {name!r} is not supported: {why}")
    recipe = RECIPES[QUANTIZATIONS[name]]
    if recipe.delayed and spec.mesh["pipeline"] > 1:
        raise ValueError(
            f"precision.quantization = {name!r} scales by earlier steps' values, which a pipeline does not gather "
            f"(pipeline = {spec.mesh['pipeline']}); use te_fp8_currentscaling"
        )
    return recipe


# --- rounding ---------------------------------------------------------------------------------------------------------


def largest(x: jax.Array) -> jax.Array:
    """The largest magnitude, in float32."""
    return jnp.max(jnp.abs(x)).astype(jnp.float32)


def scale_for(amax: jax.Array, dtype: Any) -> jax.Array:
    """The largest power of two that keeps values up to `amax` within a format; at most 2^100."""
    ratio = jnp.minimum(jnp.float32(jnp.finfo(dtype).max) / amax, 2.0**100)
    exponent_only = lax.bitcast_convert_type(ratio, jnp.uint32) & jnp.uint32(0x7F800000)
    return lax.bitcast_convert_type(exponent_only, jnp.float32)


def quantize(x: jax.Array, scale: jax.Array, dtype: Any) -> jax.Array:
    """x · scale in an fp8 format; what lies beyond its range becomes its largest value."""
    limit = jnp.float32(jnp.finfo(dtype).max)
    return jnp.clip(x.astype(jnp.float32) * scale, -limit, limit).astype(dtype)


def dequantize(x: jax.Array, scale: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """The inverse of `quantize`, but for its rounding."""
    return x.astype(dtype) * (1 / scale).astype(dtype)


# --- the linear map ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fp8:
    """A recipe with the products that run it."""

    recipe: Recipe
    products: Products

    def scale(self, amax: jax.Array, earlier: jax.Array | None, dtype: Any) -> jax.Array:
        """The scale of a tensor whose part on this device goes up to `amax`; nothing seen earlier: 1."""
        if earlier is None:
            return scale_for(amax, dtype)
        return jnp.where(earlier > 0, scale_for(earlier, dtype), 1.0)

    def largest_weight(self, w: jax.Array, known: jax.Array | None, placement: Placement) -> jax.Array:
        """The largest magnitude of a weight, over all devices whose parts are gathered; `known`: by `shared`."""
        if known is not None and not self.recipe.delayed:
            return known
        own, axes = largest(w), _gathered_over(placement)
        return lax.pmax(own, axes) if axes and not self.recipe.delayed else own


def _gathered_over(placement: Placement) -> Axes:
    """The mesh axes over which a weight lies in parts at rest, but whole where it is computed with."""
    pairs = zip(placement.rest, placement.compute, strict=True)
    return tuple(axis for rest, compute in pairs for axis in rest if axis not in compute)


def make_linear(spec: RunSpec, rules: Rules, products: Products) -> Linear:
    """The linear map of a run's layers."""
    recipe = find_recipe(spec)
    if recipe is None:
        return lambda x, w, earlier_3, placement: linear(x, w, placement, products)
    fp8 = Fp8(recipe, products)
    return lambda x, w, earlier_3, placement: linear_fp8(x, w, earlier_3, placement, fp8)


def seen_over(rules: Rules) -> Axes:
    """The mesh axes that split a layer's tensors; the stages of a pipeline hold other layers."""
    return tuple(axis for axis in rules.axes if axis != "pipeline")


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def linear_fp8(x: jax.Array, w: jax.Array, earlier_3: jax.Array | None, placement: Placement, fp8: Fp8) -> jax.Array:
    """`precision.linear` with fp8 operands.

    earlier_3: the largest values of x, w and the output's gradient in earlier steps; its own "gradient" is what they
    are this time on this device. Of a recipe without delay, w's largest value, where `shared` has looked for it. None:
    scales follow from the tensors themselves.
    """
    return _forward(x, w, earlier_3, placement, fp8)[0]


def _forward(
    x: jax.Array, w: jax.Array, earlier_3: jax.Array | None, placement: Placement, fp8: Fp8
) -> tuple[jax.Array, tuple[Any, ...]]:
    earlier = earlier_3 if earlier_3 is not None and fp8.recipe.delayed else (None,) * 3
    seen = (largest(x), fp8.largest_weight(w, earlier_3, placement))
    scales = tuple(fp8.scale(*each, fp8.recipe.operands) for each in zip(seen, earlier, strict=False))
    y_NO = fp8.products.forward(*_operands(x, w, scales, placement, fp8))
    return y_NO.reshape(*x.shape[:-1], y_NO.shape[-1]), (x, w, earlier_3, seen, scales)


def _operands(
    x: jax.Array, w: jax.Array, scales: tuple[jax.Array, ...], placement: Placement, fp8: Fp8
) -> tuple[jax.Array, jax.Array]:
    """x_NI and w_IO, rounded; the weight gathered."""
    x_NI = quantize(x.reshape(-1, x.shape[-1]), scales[0], fp8.recipe.operands)
    w_IO = gather(quantize(w, scales[1], fp8.recipe.operands), placement.rest, placement.compute)
    x_NI, w_IO = fp8.products.rounded(x_NI), fp8.products.rounded(w_IO)
    return dequantize(x_NI, scales[0], x.dtype), dequantize(w_IO, scales[1], x.dtype)


def _backward(
    placement: Placement, fp8: Fp8, residuals: tuple[Any, ...], g: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    x, w, earlier_3, seen, scales = residuals
    g = fp8.products.in_its_format(g)
    seen_3 = jnp.stack([*seen, largest(g)])
    delayed = fp8.recipe.delayed and earlier_3 is not None
    scale = fp8.scale(seen_3[2], earlier_3[2] if delayed else None, fp8.recipe.gradients)
    g_NO = fp8.products.rounded(quantize(g.reshape(-1, g.shape[-1]), scale, fp8.recipe.gradients))
    g_NO = dequantize(g_NO, scale, g.dtype)
    x_NI, w_IO = _operands(x, w, scales, placement, fp8)
    dx_NI = fp8.products.input_gradient(g_NO, w_IO)
    dw_IO = fp8.products.weight_gradient(x_NI, g_NO)
    sound_3 = jnp.where(jnp.isfinite(seen_3), seen_3, 0.0) if delayed else None
    return dx_NI.reshape(x.shape), to_rest(dw_IO, placement).astype(w.dtype), sound_3


linear_fp8.defvjp(_forward, _backward)


# --- what was seen in earlier steps -----------------------------------------------------------------------------------


def histories(spec: RunSpec, declarations: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of the histories that a run keeps: none, or one for each matrix of the layers."""
    recipe = find_recipe(spec)
    matrices = {name: leaf.shape for name, leaf in declarations["layers"].items() if len(leaf.shape) == 3}
    return {name: (shape[0], 3, HISTORY) for name, shape in matrices.items() if recipe and recipe.delayed}


def beside(params: dict[str, Any], earlier: Amax) -> dict[str, Any]:
    """The parameters with the largest values of earlier steps beside the layers' matrices."""
    return params | {"layers": params["layers"] | {f"{name}_amax": amax for name, amax in earlier.items()}}


def shared(params: dict[str, Any], spec: RunSpec, placements: dict[str, Any]) -> Amax:
    """The largest value of each of the layers' matrices [L], where scales are current and fsdp splits the matrices."""
    recipe = find_recipe(spec)
    stacked = {name: w for name, w in params["layers"].items() if w.ndim == 3}
    axes = dict.fromkeys(axis for name in stacked for axis in _gathered_over(placements["layers"][name]))
    if recipe is None or recipe.delayed or not axes:
        return {}
    own = jnp.stack([jnp.max(jnp.abs(w), axis=(1, 2)).astype(jnp.float32) for w in stacked.values()])
    return dict(zip(stacked, lax.pmax(own, tuple(axes)), strict=True))


def remembered(history: Mapping[str, jax.Array]) -> Amax:
    """Histories [L, 3, steps] → the largest values of each layer's matrices, [L, 3]."""
    return {name: steps.max(axis=-1) for name, steps in history.items()}


def remember(history: Mapping[str, jax.Array], seen: Amax, axes: Axes) -> dict[str, jax.Array]:
    """Histories with what this step has seen, over all devices of `axes`, in place of the oldest."""
    everywhere = {name: lax.pmax(amax, axes) if axes else amax for name, amax in seen.items()}
    return {
        name: jnp.concatenate([everywhere[name][..., None], steps[..., :-1]], -1) for name, steps in history.items()
    }
