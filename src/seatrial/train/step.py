"""One optimizer step: gradients over micro-batches, reduction, clipping, update, all inside one `shard_map`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding

from seatrial.spec import Dropout, RunSpec
from seatrial.train import sharding
from seatrial.train.attention import make_attention
from seatrial.train.data import fields_of
from seatrial.train.mesh import backend_of
from seatrial.train.model import Decoder
from seatrial.train.objectives import OBJECTIVES, Head
from seatrial.train.optimizer import Now, Shape, Tensor, clip_scale, make_optimizer, unstacked
from seatrial.train.params import Declaration, chunks_per_stage, declare, initialize, placed, placements
from seatrial.train.pipeline import forward
from seatrial.train.precision import DTYPES, products_for
from seatrial.train.random import Key, fold, make_key
from seatrial.train.remat import REMAT
from seatrial.train.schedules import learning_rate

State = dict[str, Any]  # {"step": int32, "params": tree, "slots": {name: tree}}
Batch = dict[str, jax.Array]  # the fields of `data.fields_of`, each [A, B, T]
Pass = tuple[Batch, jax.Array]  # micro-batches that go through the layers together, [M, B, T], and their numbers
Metrics = dict[str, jax.Array]


@dataclass(frozen=True)
class Trainer:
    """The compiled-from pieces of a spec on a mesh: pure functions and the placements of what they take."""

    mesh: Mesh
    decoder: Decoder
    init: Callable[[], State]
    step: Callable[[State, Batch], tuple[State, Metrics]]
    loss: Callable[[Any, Batch], jax.Array]  # (params, batch) → mean over the batch, without dropout or gradients
    state_shardings: Any
    batch_shardings: Mapping[str, NamedSharding]
    batch_shape: tuple[int, int, int]


def require_divisible(spec: RunSpec) -> None:
    """Raises ValueError, with both numbers, for a mesh axis that cannot split what it must."""
    mesh, model, batch = spec.mesh, spec.model, spec.batch
    passes = spec.accumulation_steps * spec.data_parallel_size
    tensor, chunks = mesh["tensor"], chunks_per_stage(spec)
    tokens_over = mesh["context"] * (tensor if spec.parallelism.sequence_parallel else 1)
    tokens = spec.accumulation_steps * batch.micro_batch_size * batch.sequence_length // tokens_over
    copied = tensor % model.num_kv_heads == 0  # several devices share a head
    for what, size, over, parts in (
        ("num_layers", model.num_layers, "pipeline × virtual_pipeline", mesh["pipeline"] * chunks),
        ("num_heads", model.num_heads, "tensor", tensor),
        ("num_kv_heads", model.num_kv_heads, "tensor", 1 if copied else tensor),
        ("sequence_length", batch.sequence_length, "context × tensor" if tokens_over > tensor else "tensor",
         tokens_over),
        ("global_batch_size", batch.global_batch_size, "micro_batch_size × data × fsdp × accumulation",
         batch.micro_batch_size * passes),
        ("tokens of a step on a device", tokens, "pipeline", mesh["pipeline"]),
    ):  # fmt: skip
        if size % parts:
            raise ValueError(f"{what} = {size} cannot be split over {over} = {parts}")


def make_trainer(spec: RunSpec, mesh: Mesh) -> Trainer:
    """Everything that a run of `spec` computes. Raises ValueError where a tensor does not divide over the mesh."""
    require_divisible(spec)
    backend = backend_of(mesh.devices.flat[0])
    rules = sharding.make_rules(spec)
    declarations = declare(spec)
    places = placements(declarations, rules)
    products = products_for(backend)
    optimizer, objective = make_optimizer(spec.optimizer), OBJECTIVES[spec.objective.kind]
    decoder = Decoder(
        model=spec.model,
        dropout=spec.dropout,
        placements=places,
        rules=rules,
        dtype=DTYPES[spec.precision.compute_dtype],
        products=products,
        attention=make_attention(spec, rules, backend),
        boundary=sharding.BOUNDARIES[rules.boundary],
        remat=REMAT[spec.execution.remat],
        scan_layers=spec.execution.scan_layers,
        chunks=chunks_per_stage(spec),
    )
    tied = spec.model.tied_embeddings
    head_name = "embedding" if tied else "head"
    head = Head(placement=places[head_name], rules=rules, products=products, tied=tied)
    over_data = sharding.over((*sharding.BATCH, *sharding.SEQUENCE), rules)
    over_tokens = sharding.over(("pipeline", *sharding.BATCH, *sharding.SEQUENCE), rules)

    def loss_sum(params: Any, passed: Pass, key: Key, decoder: Decoder) -> tuple[jax.Array, Metrics]:
        """This device's part of the objective's sums over the micro-batches of one pass."""
        h_ND, flat = forward(params, *passed, decoder, key)
        return objective.loss(h_ND, params[head_name], flat, head)

    def passes(batch: Batch) -> Pass:
        """The micro-batches and their numbers, by passes: through a pipeline they go together, else one by one."""
        A = batch["tokens"].shape[0]
        together = A if "pipeline" in rules.axes else 1
        return jax.tree.map(lambda x: x.reshape(A // together, together, *x.shape[1:]), (batch, jnp.arange(A)))

    def accumulate(params: Any, batch: Batch, amount: jax.Array, key: Key) -> tuple[Metrics, Any]:
        """This device's part of loss and gradients, summed in float32 over the passes."""

        def of_pass(params: Any, passed: Pass) -> tuple[jax.Array, Metrics]:
            total, others = loss_sum(params, passed, key, decoder)
            return total / amount, {"loss": total / amount} | {name: x / amount for name, x in others.items()}

        def one_pass(carry: Any, passed: Pass) -> tuple[Any, None]:
            gradients, metrics = jax.grad(of_pass, has_aux=True)(params, passed)
            return jax.tree.map(lambda total, x: total + x.astype(jnp.float32), carry, (metrics, gradients)), None

        first = jax.tree.map(lambda x: x[0], passes(batch))
        shapes = jax.eval_shape(lambda one: jax.grad(of_pass, has_aux=True)(params, one)[::-1], first)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), shapes)
        return lax.scan(one_pass, zeros, passes(batch))[0]

    def update(
        leaf: Declaration,
        place: sharding.Placement,
        param: jax.Array,
        gradient: jax.Array,
        step: jax.Array,
        rate: jax.Array,
        *slots: jax.Array,
    ) -> tuple[jax.Array, ...]:
        """The optimizer's work on its shard of one parameter, which is then brought back to rest."""
        shard = sharding.take_shard(param, place.rest, place.optimizer)
        p, new = optimizer.update(
            shard.astype(jnp.float32),
            gradient.astype(jnp.float32),
            {name: slot.astype(jnp.float32) for name, slot in zip(optimizer.slots, slots, strict=True)},
            Now(
                step=step,
                rate=rate,
                decay=spec.optimizer.weight_decay if leaf.decay or spec.optimizer.decay_norms else 0.0,
                tensor=Tensor(shape=leaf.shape, split=place.optimizer, dims=unstacked(leaf.names)),
            ),
            spec.optimizer,
        )
        written = [new[name].astype(slot.dtype) for name, slot in zip(optimizer.slots, slots, strict=True)]
        return sharding.gather(p.astype(param.dtype), place.optimizer, place.rest), *written

    def local_step(state: State, batch: Batch) -> tuple[State, Metrics]:
        key = fold(make_key(spec.seed), state["step"])
        amount = over_data(objective.amount(batch))
        sums, gradients = accumulate(state["params"], batch, amount, key)
        gradients = jax.tree.map(lambda g, p: sharding.reduce_gradient(g, p, rules), gradients, places)
        norm = sharding.global_norm(gradients, places, rules)
        scale = clip_scale(norm, spec.optimizer.clip_norm)
        rate = learning_rate(state["step"], spec)
        updated = jax.tree.map(
            lambda leaf, place, p, g, *slots: update(leaf, place, p, g * scale, state["step"], rate, *slots),
            declarations, places, state["params"], gradients, *(state["slots"][name] for name in optimizer.slots),
        )  # fmt: skip
        parts = jax.tree.structure((0,) * (1 + len(optimizer.slots)))
        params, *slots = jax.tree.transpose(jax.tree.structure(declarations), parts, updated)
        metrics = {name: over_tokens(x) for name, x in sums.items()} | {
            "grad_norm": norm,
            "learning_rate": rate,
            "weight": over_data(jnp.sum(batch["weights"])),
        }
        slot_trees = dict(zip(optimizer.slots, slots, strict=True))
        return {"step": state["step"] + 1, "params": params, "slots": slot_trees}, metrics

    def local_loss(params: Any, batch: Batch) -> jax.Array:
        without_dropout = replace(decoder, dropout=Dropout())

        def one_pass(total: jax.Array, passed: Pass) -> tuple[jax.Array, None]:
            return total + loss_sum(params, passed, make_key(0), without_dropout)[0], None

        total = lax.scan(one_pass, jnp.float32(0), passes(batch))[0]
        return over_tokens(total) / over_data(objective.amount(batch))

    at_rest = jax.tree.map(lambda p: sharding.partition_spec(p.rest), places)

    def of_slots(make: Callable[[Declaration, sharding.Placement, Shape], Any]) -> dict[str, Any]:
        """A tree for each slot, made of every parameter and of the dimensions that have size 1 in this slot."""
        return {
            name: jax.tree.map(lambda d, p, ones=ones: make(d, p, ones(unstacked(d.names))), declarations, places)
            for name, ones in optimizer.slots.items()
        }

    def slot_spec(leaf: Declaration, place: sharding.Placement, ones: Shape) -> Any:
        return sharding.partition_spec(tuple(() if d in ones else axes for d, axes in enumerate(place.optimizer)))

    def empty_slot(leaf: Declaration, place: sharding.Placement, ones: Shape) -> jax.Array:
        shape = tuple(1 if d in ones else size for d, size in enumerate(leaf.shape))
        return jnp.zeros(shape, DTYPES[spec.precision.optimizer_dtype])

    everywhere = sharding.partition_spec(())
    state_specs = {"step": everywhere, "params": at_rest, "slots": of_slots(slot_spec)}
    batch_specs = dict.fromkeys(fields_of(spec), sharding.partition_spec(sharding.batch_dims(rules)))

    def over_mesh(function: Callable[..., Any], inputs: Any, outputs: Any) -> Callable[..., Any]:
        return jax.shard_map(function, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=False)

    def init() -> State:
        params = placed(initialize(declarations, spec.seed, DTYPES[spec.precision.params_dtype]), spec)
        return {"step": jnp.int32(0), "params": params, "slots": of_slots(empty_slot)}

    def on_mesh(specs: Any) -> Any:
        return jax.tree.map(lambda s: NamedSharding(mesh, s), specs)

    A, B, T = spec.accumulation_steps, spec.batch.global_batch_size, spec.batch.sequence_length
    return Trainer(
        mesh=mesh,
        decoder=decoder,
        init=jax.jit(init, out_shardings=on_mesh(state_specs)),
        step=jax.jit(over_mesh(local_step, (state_specs, batch_specs), (state_specs, everywhere)), donate_argnums=0),
        loss=jax.jit(over_mesh(local_loss, (at_rest, batch_specs), everywhere)),
        state_shardings=on_mesh(state_specs),
        batch_shardings=on_mesh(batch_specs),
        batch_shape=(A, B // A, T),
    )
