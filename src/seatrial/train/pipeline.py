"""Layers split over the stages of the mesh axis `pipeline`: micro-batches travel round a ring of stages.

Every stage holds V chunks of l layers, and chunk v of stage s stands for the layers from (v·P + s)·l on, so that a
micro-batch passes the whole model by going round V times (the circular schedule; interleaved stages are what
arXiv 2104.04473 §2.2 calls them). Items follow each other a tick apart: at tick t stage s works on item t - s, which is
micro-batch `item % period` in its round `item // period`. The period is at least P, so that what comes back from the
last stage has arrived before its next round begins. A step takes V · period + P - 1 ticks, of which P - 1 are idle.

The tick is one program for all stages; its only exchange is one `ppermute`, whose transpose is the way back.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from seatrial.train.model import Decoder, Micro, Weights, embed, finish, hidden_states, run_layers, surroundings
from seatrial.train.random import Key


def forward(
    params: dict[str, Any], micros: Micro, numbers_M: jax.Array, decoder: Decoder, key: Key
) -> tuple[jax.Array, Micro]:
    """Micro-batches [M, B, T] of these numbers → h_ND and the fields [N] beside it, of those tokens that this device
    turns into a loss. "rows" is the number of each token's sequence among the M·B. Without a pipeline M must be 1.
    """
    M, B, T = micros["tokens"].shape
    fields = micros | {"rows": jnp.broadcast_to(jnp.arange(M * B).reshape(M, B, 1), (M, B, T))}
    if "pipeline" not in decoder.rules.axes:
        one = {name: x[0] for name, x in micros.items()}
        h_BTD = hidden_states(params, one, decoder, key, numbers_M[0])
        return h_BTD.reshape(-1, h_BTD.shape[-1]), {name: x.reshape(-1) for name, x in fields.items()}
    x_MBTD = _through_stages(params, micros, numbers_M, decoder, key)
    at_first = jnp.where(lax.axis_index("pipeline") == 0, x_MBTD, 0).reshape(1, -1, x_MBTD.shape[-1])
    x_1ND = lax.psum_scatter(at_first, "pipeline", scatter_dimension=1, tiled=True)
    h_1ND = finish(params, x_1ND, decoder)
    return h_1ND[0], {name: _own_tokens(x, decoder) for name, x in fields.items()}


def _own_tokens(x_MBT: jax.Array, decoder: Decoder) -> jax.Array:
    """The tokens that this stage turns into a loss, in the order in which `finish` gives them."""
    # Sequence parallelism: each tensor device brings its part of the tokens, and these follow one another.
    parts = decoder.rules.axes["tensor"] if decoder.rules.boundary == "sequence" else 1
    T = x_MBT.shape[-1]
    by_device = x_MBT.reshape(-1, parts, T // parts).swapaxes(0, 1)
    by_stage = by_device.reshape(parts, lax.axis_size("pipeline"), -1)
    own: jax.Array = lax.dynamic_index_in_dim(by_stage, lax.axis_index("pipeline"), 1, keepdims=False)
    return own.reshape(-1)


def _pick(tree: Any, number: jax.Array) -> Any:
    return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, number, keepdims=False), tree)


def _through_stages(
    params: dict[str, Any], micros: Micro, numbers_M: jax.Array, decoder: Decoder, key: Key
) -> jax.Array:
    """x_MBTD behind the last layer, on stage 0; what it is elsewhere means nothing."""
    M, V = micros["tokens"].shape[0], decoder.chunks
    P, stage = lax.axis_size("pipeline"), lax.axis_index("pipeline")
    period = max(M, P)
    # [l, V, …]; in float32, because gradients are summed over the ticks in the format of the weights.
    chunks: Weights = jax.tree.map(
        lambda w: w.astype(jnp.float32).reshape(V, -1, *w.shape[1:]).swapaxes(0, 1), params["layers"]
    )
    l = jax.tree.leaves(chunks)[0].shape[0]

    def embedded(one: tuple[Micro, jax.Array]) -> jax.Array:
        micro, number = one
        return embed(params, micro, decoder, surroundings(micro, decoder, key, number))

    def returned(inbox_MBTD: jax.Array, received_BTD: jax.Array, item: jax.Array | int) -> jax.Array:
        """On stage 0, what came back of an item takes the place of what went out; idle items leave no trace."""
        number = jnp.minimum(item % period, M - 1)
        counts = (stage == 0) & (item >= 0) & (item % period < M)
        new = jnp.where(counts, received_BTD, _pick(inbox_MBTD, number))
        inbox_MBTD = lax.dynamic_update_index_in_dim(inbox_MBTD, new, number, 0)
        return inbox_MBTD

    def work(x_BTD: jax.Array, item: jax.Array) -> jax.Array:
        number, chunk = jnp.minimum(item % period, M - 1), jnp.clip(item // period, 0, V - 1)
        around = surroundings(_pick(micros, number), decoder, key, numbers_M[number])
        first = (chunk * P + stage) * l
        if V == 1:
            return run_layers(x_BTD, jax.tree.map(lambda w: w[:, 0], chunks), around, decoder, first)
        # Picked any earlier, the weights would be kept for the backward pass by every tick.
        return run_layers(x_BTD, chunks, around, decoder, first, partial(_pick, number=chunk))

    def tick(carry: tuple[jax.Array, jax.Array], t: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
        received_BTD, inbox_MBTD = carry
        inbox_MBTD = returned(inbox_MBTD, received_BTD, t - P)
        item = t - stage
        x_BTD = jnp.where(stage == 0, _pick(inbox_MBTD, jnp.minimum(item % period, M - 1)), received_BTD)
        onward = [(s, (s + 1) % P) for s in range(P)]
        return (lax.ppermute(work(x_BTD, item), "pipeline", onward), inbox_MBTD), None

    ticks = V * period + P - 1
    inbox_MBTD = lax.map(embedded, (micros, numbers_M))
    start = (jnp.zeros_like(inbox_MBTD[0]), inbox_MBTD)
    (received_BTD, inbox_MBTD), _ = lax.scan(tick, start, jnp.arange(ticks))
    return returned(inbox_MBTD, received_BTD, ticks - P)
