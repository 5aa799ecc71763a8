"""The decoder: tokens → hidden states, as it runs on each device inside the step's `shard_map`.

Shapes are those of this device: H, G, F and V are its share of the tensor axis, B of the batch axes, T of the context.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from seatrial.spec import INPUT, Dropout, ModelSpec
from seatrial.train import sharding
from seatrial.train.attention import Attention
from seatrial.train.fp8 import Linear
from seatrial.train.layers import ACTIVATIONS, dropout, norm, rope_tables, rotate
from seatrial.train.params import of_layer
from seatrial.train.random import Key, fold
from seatrial.train.remat import Remat

Weights = dict[str, jax.Array]  # of one layer, or of several, stacked
Micro = dict[str, jax.Array]  # the fields of a batch (see `data`), each [B, T]

# What is folded into a sequence's key for each place that needs random numbers. Layers fold in their own number first.
IN_ATTENTION, BEHIND_ATTENTION, IN_FFN, BEHIND_FFN, BEHIND_EMBEDDING = (2**30 + n for n in range(5))


@dataclass(frozen=True)
class Decoder:
    """Everything that the forward pass is made of, chosen once from the tables."""

    model: ModelSpec
    dropout: Dropout
    placements: dict[str, Any]
    rules: sharding.Rules
    dtype: jnp.dtype  # of activations and matrix products
    linear: Linear
    attention: Attention
    boundary: sharding.Boundary
    remat: Remat
    scan_layers: bool
    chunks: int = 1  # pieces of a pipeline stage's layers, which do not follow one another in the model


class Surroundings(NamedTuple):
    """The inputs of every layer from a micro-batch, beside its hidden states."""

    positions_BT: jax.Array
    cos_BT1k: jax.Array
    sin_BT1k: jax.Array
    segments_BT: jax.Array | None  # of packed documents: tokens see those of their own segment only
    tokens_T: jax.Array  # which of the sequence's tokens this device has inside a block
    key_B2: Key  # of everything random, one for each sequence

    def of_layer(self, number: jax.Array | int) -> Surroundings:
        """The same for one layer: with random numbers of its own."""
        return self._replace(key_B2=fold(self.key_B2, number))


def surroundings(micro: Micro, decoder: Decoder, key: Key, number: jax.Array | int) -> Surroundings:
    """Positions count the sequence's tokens, unless the batch says otherwise; whichever device holds them.

    `key` is the step's, `number` the micro-batch's: the same sequence gets the same key on every mesh and however the
    batch is divided.
    """
    B, T = micro["tokens"].shape
    tokens_T = jnp.arange(T) + sharding.token_offset(decoder.rules, T)
    cos, sin = rope_tables(decoder.model, micro.get("positions", tokens_T[None]))
    return Surroundings(
        positions_BT=micro.get("positions", jnp.broadcast_to(tokens_T, (B, T))),
        cos_BT1k=cos,
        sin_BT1k=sin,
        segments_BT=micro.get("segments"),
        tokens_T=tokens_T,
        key_B2=fold(key, sharding.sequence_numbers(decoder.rules, B, number)),
    )


# --- layers -----------------------------------------------------------------------------------------------------------


def _lookup(w_VD: jax.Array, ids_BT: jax.Array, name: str, decoder: Decoder) -> jax.Array:
    """Rows of the table of this name; ids outside this device's part of it give 0."""
    placement = decoder.placements[name]

    @jax.custom_vjp
    def take(w_VD: jax.Array, rows_BT: jax.Array) -> jax.Array:
        full_VD = sharding.gather(w_VD.astype(decoder.dtype), placement.rest, placement.compute)
        return jnp.take(full_VD, rows_BT, axis=0, mode="fill", fill_value=0)

    def add(operands: tuple[jax.Array, jax.Array], g_BTD: jax.Array) -> tuple[jax.Array, None]:
        w_VD, rows_BT = operands
        dw_VD = jnp.zeros((w_VD.shape[0], g_BTD.shape[-1]), jnp.float32)
        dw_VD = dw_VD.at[rows_BT].add(g_BTD.astype(jnp.float32), mode="drop")
        return sharding.to_rest(dw_VD, placement).astype(w_VD.dtype), None

    take.defvjp(lambda *operands: (take(*operands), operands), add)
    V = w_VD.shape[0]
    local_BT = ids_BT - sharding.tensor_offset(decoder.rules, V)
    return take(w_VD, jnp.where((local_BT >= 0) & (local_BT < V), local_BT, V))  # V is out of bounds, of both


def _project(x: jax.Array, layer: Weights, name: str, decoder: Decoder) -> jax.Array:
    """x · layer[name]; every matrix product of a layer goes through here."""
    place = of_layer(decoder.placements["layers"])[name]
    return decoder.linear(x, sharding.own_part(layer[name], place), layer.get(f"{name}_amax"), place)


def _biased(y: jax.Array, layer: Weights, name: str, decoder: Decoder) -> jax.Array:
    """y + the bias of the map of this name, where it has one."""
    bias = layer.get(f"{name}_bias")
    if bias is None:
        return y
    return y + sharding.own_part(bias, of_layer(decoder.placements["layers"])[f"{name}_bias"]).astype(y.dtype)


def _between(x_BTD: jax.Array, around: Surroundings, place: int, decoder: Decoder) -> jax.Array:
    """Dropout of what becomes, or is added to, the hidden states."""
    tokens_T = decoder.boundary.tokens(around.tokens_T)
    return dropout(x_BTD, decoder.dropout.hidden, fold(around.key_B2, place), tokens_T, 0)


def _normed(x_BTD: jax.Array, layer: Weights, name: str, decoder: Decoder) -> jax.Array:
    return decoder.remat.part("layernorm", partial(norm, name=name, model=decoder.model))(x_BTD, layer)


def _attention_block(x_BTD: jax.Array, layer: Weights, around: Surroundings, decoder: Decoder) -> jax.Array:
    h = decoder.boundary.enter(_normed(x_BTD, layer, "attention_norm", decoder))
    project = {
        name: _biased(_project(h, layer, name, decoder), layer, name, decoder) for name in ("query", "key", "value")
    }
    heads = {name: y.reshape(*y.shape[:2], -1, decoder.model.head_dim) for name, y in project.items()}
    turn = decoder.remat.part("rope", rotate)
    q_BTHK = checkpoint_name(turn(heads["query"], around.cos_BT1k, around.sin_BT1k), "query")
    k_BTGK = checkpoint_name(turn(heads["key"], around.cos_BT1k, around.sin_BT1k), "key")
    v_BTGK = checkpoint_name(heads["value"], "value")
    attend = decoder.remat.part("core_attn", decoder.attention)
    context_BTHK = attend(q_BTHK, k_BTGK, v_BTGK, around.segments_BT, fold(around.key_B2, IN_ATTENTION))
    context = context_BTHK.reshape(*context_BTHK.shape[:2], -1)
    out_BTD = checkpoint_name(decoder.boundary.leave(_project(context, layer, "output", decoder)), "out")
    return _between(_biased(out_BTD, layer, "output", decoder), around, BEHIND_ATTENTION, decoder)


def _feed_forward(h_BTD: jax.Array, layer: Weights, around: Surroundings, decoder: Decoder) -> jax.Array:
    """From the norm's output to this device's part of the block's."""
    activation = ACTIVATIONS[decoder.model.activation]
    h = decoder.boundary.enter(h_BTD)
    inner = {name: _biased(_project(h, layer, name, decoder), layer, name, decoder) for name in activation.inputs}
    activate = decoder.remat.part("mlp_act", activation.apply)
    product_BTF = activate(*(checkpoint_name(y, name) for name, y in inner.items()))
    column, key_B2 = sharding.tensor_offset(decoder.rules, product_BTF.shape[-1]), fold(around.key_B2, IN_FFN)
    product_BTF = dropout(product_BTF, decoder.dropout.ffn, key_B2, around.tokens_T, column)
    return _project(product_BTF, layer, "down", decoder)


def _ffn_block(x_BTD: jax.Array, layer: Weights, around: Surroundings, decoder: Decoder) -> jax.Array:
    h_BTD = _normed(x_BTD, layer, "ffn_norm", decoder)
    partial_BTD = decoder.remat.part("mlp", partial(_feed_forward, decoder=decoder))(h_BTD, layer, around)
    down_BTD = checkpoint_name(decoder.boundary.leave(partial_BTD), "down")
    return _between(_biased(down_BTD, layer, "down", decoder), around, BEHIND_FFN, decoder)


def _layer(x_BTD: jax.Array, layer: Weights, around: Surroundings, decoder: Decoder) -> jax.Array:
    x_BTD = checkpoint_name(x_BTD, INPUT)
    with jax.named_scope("attention"):
        x_BTD = x_BTD + _attention_block(x_BTD, layer, around, decoder)
    with jax.named_scope("ffn"):
        return x_BTD + _ffn_block(x_BTD, layer, around, decoder)


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


def embed(params: dict[str, Any], micro: Micro, decoder: Decoder, around: Surroundings) -> jax.Array:
    """Tokens → what enters the first layer, in the form in which hidden states travel between blocks."""
    tables = {"embedding": micro["tokens"], "positions": around.positions_BT}
    rows = [_lookup(params[name], ids_BT, name, decoder) for name, ids_BT in tables.items() if name in params]
    return _between(decoder.boundary.leave(sum(rows[1:], rows[0])), around, BEHIND_EMBEDDING, decoder)


def run_layers(
    x_BTD: jax.Array,
    stacked: Weights,
    around: Surroundings,
    decoder: Decoder,
    first: jax.Array | int = 0,
    pick: Callable[[Weights], Weights] = lambda weights: weights,
) -> jax.Array:
    """The layers whose parameters are stacked in `stacked`, one after the other; `first` is the number of the first.

    `pick` makes a layer's weights of what is stacked; it is computed again with the layer, so it costs no memory.
    """

    layer = decoder.remat.layer(lambda x_BTD, weights, around: _layer(x_BTD, pick(weights), around, decoder))
    if not decoder.scan_layers:
        for number, weights in enumerate(_unstack(stacked)):
            x_BTD = layer(x_BTD, weights, around.of_layer(first + number))
        return x_BTD

    def body(x_BTD: jax.Array, one: tuple[Weights, jax.Array]) -> tuple[jax.Array, None]:
        weights, number = one
        return layer(x_BTD, weights, around.of_layer(number)), None

    numbers = first + jnp.arange(jax.tree.leaves(stacked)[0].shape[0])
    return lax.scan(body, x_BTD, (stacked, numbers))[0]


def finish(params: dict[str, Any], x_BTD: jax.Array, decoder: Decoder) -> jax.Array:
    """The final norm; all tokens of the sequence are there again, ready for the output head."""
    return decoder.boundary.enter(norm(x_BTD, params, "final_norm", decoder.model))


def hidden_states(
    params: dict[str, Any], micro: Micro, decoder: Decoder, key: Key, number: jax.Array | int = 0
) -> jax.Array:
    """Micro-batch `number` of a step → h_BTD, ready for the output head."""
    around = surroundings(micro, decoder, key, number)
    x_BTD = run_layers(embed(params, micro, decoder, around), params["layers"], around, decoder)
    return finish(params, x_BTD, decoder)
