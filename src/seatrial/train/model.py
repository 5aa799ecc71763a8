"""The decoder: tokens → hidden states, as it runs on each device inside the step's `shard_map`.

Shapes are those of this device: H, G, F and V are its share of the tensor axis, B of the batch axes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from seatrial.spec import ModelSpec, RopeScaling
from seatrial.train.attention import Attention
from seatrial.train.params import of_layer
from seatrial.train.precision import Products, linear
from seatrial.train.sharding import Boundary, Placement, Rules, gather, reduce_scatter, tensor_offset


@dataclass(frozen=True)
class Decoder:
    """Everything that the forward pass is made of, chosen once from the tables."""

    model: ModelSpec
    placements: dict[str, Any]
    rules: Rules
    dtype: jnp.dtype  # of activations and matrix products
    products: Products
    attention: Attention
    boundary: Boundary
    remat: str  # row of REMAT
    scan_layers: bool


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


def rope_tables(model: ModelSpec, T: int) -> tuple[jax.Array, jax.Array]:
    """cos_T1k and sin_T1k (k = K / 2) in float32, for positions 0 … T-1."""
    angles = np.arange(T)[:, None, None] * rope_frequencies(model)
    return jnp.asarray(np.cos(angles), jnp.float32), jnp.asarray(np.sin(angles), jnp.float32)


def rotate(x_BTHK: jax.Array, cos_T1k: jax.Array, sin_T1k: jax.Array) -> jax.Array:
    """Turns pair (i, i + K/2) by its angle: the half-split layout of Hugging Face's Llama weights."""
    a, b = jnp.split(x_BTHK.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos_T1k - b * sin_T1k, b * cos_T1k + a * sin_T1k], axis=-1).astype(x_BTHK.dtype)


# --- layers -----------------------------------------------------------------------------------------------------------


def rms_norm(x: jax.Array, scale_D: jax.Array, epsilon: float) -> jax.Array:
    """x / RMS(x) · scale over the last dimension, in float32 (arXiv 1910.07467)."""
    x32 = x.astype(jnp.float32)
    normed = x32 * lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + epsilon)
    return (normed * scale_D.astype(jnp.float32)).astype(x.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _lookup(w_VD: jax.Array, ids_BT: jax.Array, placement: Placement, dtype: jnp.dtype, rules: Rules) -> jax.Array:
    """Rows of the embedding; ids outside this device's part of the vocabulary give 0."""
    return _lookup_forward(w_VD, ids_BT, placement, dtype, rules)[0]


def _lookup_forward(
    w_VD: jax.Array, ids_BT: jax.Array, placement: Placement, dtype: jnp.dtype, rules: Rules
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    full_VD = gather(w_VD.astype(dtype), placement.rest, placement.compute)
    local_BT = ids_BT - tensor_offset(rules, full_VD.shape[0])
    here_BT = (local_BT >= 0) & (local_BT < full_VD.shape[0])
    rows_BTD = jnp.take(full_VD, jnp.where(here_BT, local_BT, 0), axis=0)
    return jnp.where(here_BT[..., None], rows_BTD, 0), (w_VD, ids_BT)


def _lookup_backward(
    placement: Placement, dtype: jnp.dtype, rules: Rules, residuals: tuple[jax.Array, jax.Array], g_BTD: jax.Array
) -> tuple[jax.Array, None]:
    w_VD, ids_BT = residuals
    V = w_VD.shape[0]
    local_N = (ids_BT - tensor_offset(rules, V)).reshape(-1)
    rows_N = jnp.where((local_N >= 0) & (local_N < V), local_N, V)  # V is out of bounds: dropped
    dw_VD = jnp.zeros((V, g_BTD.shape[-1]), jnp.float32)
    dw_VD = dw_VD.at[rows_N].add(g_BTD.reshape(-1, g_BTD.shape[-1]).astype(jnp.float32), mode="drop")
    return reduce_scatter(dw_VD, placement.compute, placement.rest).astype(w_VD.dtype), None


_lookup.defvjp(_lookup_forward, _lookup_backward)


def _attention_block(x_BTD: jax.Array, layer: dict[str, jax.Array], decoder: Decoder) -> jax.Array:
    model, places = decoder.model, of_layer(decoder.placements["layers"])
    h = decoder.boundary.enter(rms_norm(x_BTD, layer["attention_norm"], model.norm_epsilon))
    project = {name: linear(h, layer[name], places[name], decoder.products) for name in ("query", "key", "value")}
    heads = {name: y.reshape(*y.shape[:2], -1, model.head_dim) for name, y in project.items()}
    cos_T1k, sin_T1k = rope_tables(model, h.shape[1])
    q_BTHK = checkpoint_name(rotate(heads["query"], cos_T1k, sin_T1k), "query")
    k_BTGK = checkpoint_name(rotate(heads["key"], cos_T1k, sin_T1k), "key")
    v_BTGK = checkpoint_name(heads["value"], "value")
    context_BTHK = decoder.attention(q_BTHK, k_BTGK, v_BTGK)
    context = context_BTHK.reshape(*context_BTHK.shape[:2], -1)
    out = linear(context, layer["output"], places["output"], decoder.products)
    return checkpoint_name(decoder.boundary.leave(out), "out")


def _ffn_block(x_BTD: jax.Array, layer: dict[str, jax.Array], decoder: Decoder) -> jax.Array:
    places = of_layer(decoder.placements["layers"])
    h = decoder.boundary.enter(rms_norm(x_BTD, layer["ffn_norm"], decoder.model.norm_epsilon))
    gate_BTF = checkpoint_name(linear(h, layer["gate"], places["gate"], decoder.products), "gate")
    up_BTF = checkpoint_name(linear(h, layer["up"], places["up"], decoder.products), "up")
    down = linear(jax.nn.silu(gate_BTF) * up_BTF, layer["down"], places["down"], decoder.products)
    return checkpoint_name(decoder.boundary.leave(down), "down")


def _layer(x_BTD: jax.Array, layer: dict[str, jax.Array], decoder: Decoder) -> jax.Array:
    with jax.named_scope("attention"):
        x_BTD = x_BTD + _attention_block(x_BTD, layer, decoder)
    with jax.named_scope("ffn"):
        return x_BTD + _ffn_block(x_BTD, layer, decoder)


# --- recomputation ----------------------------------------------------------------------------------------------------

Layer = Callable[[jax.Array, dict[str, jax.Array]], jax.Array]


def _keep(*names: str) -> Callable[[Layer], Layer]:
    """A layer that keeps its input and the named tensors, and computes the rest again in the backward pass."""
    return partial(jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names(*names), prevent_cse=True)


# MaxText's policy names with MaxText's meaning — but for `none`, which there means `full` and here means none.
REMAT: dict[str, Callable[[Layer], Layer]] = {
    "none": lambda layer: layer,
    "full": _keep(),
    "minimal": _keep("query", "key", "value", "out", "gate", "up", "down"),
    "minimal_with_context": _keep("query", "key", "value", "context", "out", "gate", "up", "down"),
    "minimal_flash": _keep("query", "key", "value", "context", "out", "gate", "up", "down"),
    "save_dot_except_mlp": _keep("query", "key", "value", "out"),
    "save_dot_with_context_except_mlp": _keep("query", "key", "value", "context", "out"),
    "save_dot_except_mlpwi": _keep("query", "key", "value", "out", "down"),
    "save_qkv_proj": _keep("query", "key", "value"),
    "save_out_proj": _keep("out"),
}


# --- the decoder ------------------------------------------------------------------------------------------------------


@jax.custom_vjp
def _unstack(tree: Any) -> list[Any]:
    """[L, …] parameters as a list of L layers; its transpose stacks, where JAX's own would add L padded copies."""
    L = jax.tree.leaves(tree)[0].shape[0]
    return [jax.tree.map(lambda w, i=i: w[i], tree) for i in range(L)]


_unstack.defvjp(
    lambda tree: (_unstack(tree), None),
    lambda _, layers: (jax.tree.map(lambda *g: jnp.stack(g), *layers),),
)


def _scanned(layer: Layer, x_BTD: jax.Array, stacked: dict[str, jax.Array]) -> jax.Array:
    return lax.scan(lambda x, w: (layer(x, w), None), x_BTD, stacked)[0]


def _unrolled(layer: Layer, x_BTD: jax.Array, stacked: dict[str, jax.Array]) -> jax.Array:
    for weights in _unstack(stacked):
        x_BTD = layer(x_BTD, weights)
    return x_BTD


def hidden_states(params: dict[str, Any], tokens_BT: jax.Array, decoder: Decoder) -> jax.Array:
    """tokens_BT → h_BTD after the final norm, all of the sequence, ready for the output head."""
    rows = _lookup(params["embedding"], tokens_BT, decoder.placements["embedding"], decoder.dtype, decoder.rules)
    x_BTD = decoder.boundary.leave(rows)
    layer = REMAT[decoder.remat](partial(_layer, decoder=decoder))
    x_BTD = (_scanned if decoder.scan_layers else _unrolled)(layer, x_BTD, params["layers"])
    return decoder.boundary.enter(rms_norm(x_BTD, params["final_norm"], decoder.model.norm_epsilon))
