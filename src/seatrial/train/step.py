"""One optimizer step: gradients over micro-batches, reduction, clipping, AdamW, all inside one `shard_map`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding

from seatrial.spec import RunSpec
from seatrial.train import sharding
from seatrial.train.attention import ATTENTION, choose
from seatrial.train.mesh import backend_of
from seatrial.train.model import Decoder, hidden_states
from seatrial.train.objectives import Head, cross_entropy
from seatrial.train.optimizer import adamw, clip_scale, learning_rate
from seatrial.train.params import declare, initialize, placements
from seatrial.train.precision import DTYPES, products_for

State = dict[str, Any]  # {"step": int32, "params", "m", "v": one tree each}
Batch = dict[str, jax.Array]  # {"tokens", "targets": int32, "weights": float32}, each [A, B, T]


@dataclass(frozen=True)
class Trainer:
    """The compiled-from pieces of a spec on a mesh: pure functions and the placements of what they take."""

    mesh: Mesh
    decoder: Decoder
    init: Callable[[], State]
    step: Callable[[State, Batch], tuple[State, dict[str, jax.Array]]]
    loss: Callable[[Any, Batch], jax.Array]  # mean over the batch, without gradients
    state_shardings: Any
    batch_sharding: NamedSharding
    batch_shape: tuple[int, int, int]


def require_divisible(spec: RunSpec) -> None:
    """Raises ValueError, with both numbers, for a mesh axis that cannot split what it must."""
    mesh, model = spec.mesh, spec.model
    for axis in ("pipeline", "context"):
        if mesh[axis] > 1:
            raise ValueError(f"the trainer has no {axis} parallelism, but the mesh asks for {mesh[axis]}")
    passes = spec.accumulation_steps * spec.data_parallel_size
    tokens_over = mesh["tensor"] if spec.parallelism.sequence_parallel else 1
    for what, size, over, parts in (
        ("num_heads", model.num_heads, "tensor", mesh["tensor"]),
        ("num_kv_heads", model.num_kv_heads, "tensor", mesh["tensor"]),
        ("sequence_length", spec.batch.sequence_length, "tensor", tokens_over),
        ("global_batch_size", spec.batch.global_batch_size, "micro_batch_size × data × fsdp × accumulation",
         spec.batch.micro_batch_size * passes),
    ):  # fmt: skip
        if size % parts:
            raise ValueError(f"{what} = {size} cannot be split over {over} = {parts}")


def make_trainer(spec: RunSpec, mesh: Mesh) -> Trainer:
    """Everything that a run of `spec` computes. Raises ValueError where a tensor does not divide over the mesh."""
    require_divisible(spec)
    backend = backend_of(mesh.devices.flat[0])
    rules = sharding.make_rules(spec)
    declarations = declare(spec.model)
    places = placements(declarations, rules)
    products = products_for(backend)
    decoder = Decoder(
        model=spec.model,
        placements=places,
        rules=rules,
        dtype=DTYPES[spec.precision.compute_dtype],
        products=products,
        attention=ATTENTION[choose(spec.execution.attention, backend)],
        boundary=sharding.BOUNDARIES[rules.boundary],
        remat=spec.execution.remat,
        scan_layers=spec.execution.scan_layers,
    )
    tied = spec.model.tied_embeddings
    head_name = "embedding" if tied else "head"
    head = Head(placement=places[head_name], rules=rules, products=products, tied=tied)

    def loss_sum(params: Any, micro: Batch) -> jax.Array:
        h_BTD = hidden_states(params, micro["tokens"], decoder)
        flat = {name: x.reshape(-1) for name, x in micro.items()}
        return cross_entropy(
            h_BTD.reshape(-1, h_BTD.shape[-1]), params[head_name], flat["targets"], flat["weights"], head
        )

    def over_batch(x: jax.Array) -> jax.Array:
        axes = tuple(axis for axis in (*sharding.BATCH, *sharding.SEQUENCE) if axis in rules.axes)
        return lax.psum(x, axes) if axes else x

    def accumulate(params: Any, batch: Batch, total_weight: jax.Array) -> tuple[jax.Array, Any]:
        """This device's share of loss and gradients, summed in float32 over the micro-batches."""

        def micro_step(carry: tuple[jax.Array, Any], micro: Batch) -> tuple[tuple[jax.Array, Any], None]:
            loss, gradients = jax.value_and_grad(lambda p: loss_sum(p, micro) / total_weight)(params)
            return jax.tree.map(lambda total, x: total + x.astype(jnp.float32), carry, (loss, gradients)), None

        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
        return lax.scan(micro_step, (jnp.float32(0), zeros), batch)[0]

    def update(place: sharding.Placement, param: jax.Array, *rest: jax.Array, **how: Any) -> tuple[jax.Array, ...]:
        """AdamW on the optimizer's shard of a parameter, which is then brought back to rest."""
        shard = sharding.take_shard(param, place.rest, place.optimizer)
        shard, m, v = adamw(shard, *rest, optimizer=spec.optimizer, **how)
        return sharding.gather(shard, place.optimizer, place.rest), m, v

    def local_step(state: State, batch: Batch) -> tuple[State, dict[str, jax.Array]]:
        total_weight = over_batch(jnp.sum(batch["weights"]))
        loss, gradients = accumulate(state["params"], batch, total_weight)
        gradients = jax.tree.map(lambda g, p: sharding.reduce_gradient(g, p, rules), gradients, places)
        norm = sharding.global_norm(gradients, places, rules)
        scale = clip_scale(norm, spec.optimizer.clip_norm)
        rate = learning_rate(state["step"], spec.optimizer, spec.steps)
        updated = jax.tree.map(
            lambda d, place, p, g, m, v: update(
                place, p, g * scale, m, v, step=state["step"], rate=rate,
                decay=d.decay or spec.optimizer.decay_norms,
            ),
            declarations, places, state["params"], gradients, state["m"], state["v"],
        )  # fmt: skip
        params, m, v = jax.tree.transpose(jax.tree.structure(declarations), jax.tree.structure((0, 0, 0)), updated)
        metrics = {
            "loss": over_batch(loss),
            "grad_norm": norm,
            "learning_rate": rate,
            "weight": total_weight,
        }
        return {"step": state["step"] + 1, "params": params, "m": m, "v": v}, metrics

    def local_loss(params: Any, batch: Batch) -> jax.Array:
        total = lax.scan(lambda s, micro: (s + loss_sum(params, micro), None), jnp.float32(0), batch)[0]
        return over_batch(total) / over_batch(jnp.sum(batch["weights"]))

    at_rest = jax.tree.map(lambda p: sharding.partition_spec(p.rest), places)
    for_optimizer = jax.tree.map(lambda p: sharding.partition_spec(p.optimizer), places)
    everywhere = sharding.partition_spec(())
    state_specs = {"step": everywhere, "params": at_rest, "m": for_optimizer, "v": for_optimizer}
    batch_spec = sharding.partition_spec(sharding.batch_dims(rules))
    state_shardings = jax.tree.map(lambda s: NamedSharding(mesh, s), state_specs)

    def over_mesh(function: Callable[..., Any], inputs: Any, outputs: Any) -> Callable[..., Any]:
        return jax.shard_map(function, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=False)

    def init() -> State:
        params = initialize(declarations, spec.seed, DTYPES[spec.precision.params_dtype])
        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, DTYPES[spec.precision.optimizer_dtype]), params)
        return {"step": jnp.int32(0), "params": params, "m": zeros, "v": zeros}

    A, B, T = spec.accumulation_steps, spec.batch.global_batch_size, spec.batch.sequence_length
    return Trainer(
        mesh=mesh,
        decoder=decoder,
        init=jax.jit(init, out_shardings=state_shardings),
        step=jax.jit(over_mesh(local_step, (state_specs, batch_spec), (state_specs, everywhere)), donate_argnums=0),
        loss=jax.jit(over_mesh(local_loss, (at_rest, batch_spec), everywhere)),
        state_shardings=state_shardings,
        batch_sharding=NamedSharding(mesh, batch_spec),
        batch_shape=(A, B // A, T),
    )
