"""One optimizer step: gradients over micro-batches, reduction, clipping, update, all inside one `shard_map`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding

from seatrial.spec import Dropout, RunSpec, uneven_splits
from seatrial.train import fp8, sharding
from seatrial.train.attention import make_attention
from seatrial.train.data import fields_of
from seatrial.train.mesh import backend_of
from seatrial.train.model import Decoder
from seatrial.train.objectives import OBJECTIVES, Head, answer_log_probabilities
from seatrial.train.optimizer import Now, Shape, Tensor, clip_scale, make_optimizer, unstacked
from seatrial.train.params import Declaration, chunks_per_stage, declare, initialize, placed, placements
from seatrial.train.pipeline import forward
from seatrial.train.precision import DTYPES, ROUNDING, products_for
from seatrial.train.random import Key, fold, make_key
from seatrial.train.remat import make_remat
from seatrial.train.schedules import learning_rate

State = dict[str, Any]  # {"step": int32, "params": tree, "slots": {name: tree}}; with delayed fp8 scales also "amax"
Batch = dict[str, jax.Array]  # the fields of `data.fields_of`, each [A, B, T]
Pass = tuple[Batch, jax.Array]  # micro-batches that go through the layers together, [M, B, T], and their numbers
Metrics = dict[str, jax.Array]

STORED = 2**30 + 16  # is folded into a step's key for what is rounded at random


@dataclass(frozen=True)
class Trainer:
    """The compiled-from pieces of a spec on a mesh: pure functions and the placements of what they take."""

    mesh: Mesh
    decoder: Decoder
    init: Callable[[], State]
    step: Callable[[State, Batch], tuple[State, Metrics]]
    loss: Callable[[Any, Batch], tuple[jax.Array, jax.Array]]  # (params, batch) → (sum, amount), without dropout
    answers: Callable[[Any, Batch], jax.Array]  # (params, batch) → Σ weight · log p of each sequence [A, B], likewise
    state_shardings: Any
    batch_shardings: Mapping[str, NamedSharding]
    batch_shape: tuple[int, int, int]


def require_divisible(spec: RunSpec) -> None:
    """Raises ValueError, with both numbers, for a mesh axis that cannot split what it must."""
    for split in uneven_splits(spec, balances_context=False, pads_vocabulary=True):
        raise ValueError(f"{split.name} = {split.size} cannot be split over {split.axes} = {split.parts}")


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
        linear=fp8.make_linear(spec, rules, products),
        attention=make_attention(spec, rules, backend),
        boundary=sharding.BOUNDARIES[rules.boundary],
        remat=make_remat(spec.execution),
        scan_layers=spec.execution.scan_layers,
        chunks=chunks_per_stage(spec),
    )
    layer_numbers = placed({"layers": jnp.arange(spec.model.num_layers)}, spec)["layers"]
    resting = jax.tree.map(lambda place: replace(place, optimizer=place.rest), places)
    tied = spec.model.tied_embeddings
    head_name = "embedding" if tied else "head"
    head = Head(
        placement=places[head_name], rules=rules, products=products, tied=tied, vocab_size=spec.model.vocab_size
    )
    over_data = sharding.over((*sharding.BATCH, *sharding.SEQUENCE), rules)
    over_tokens = sharding.over(("pipeline", *sharding.BATCH, *sharding.SEQUENCE), rules)

    def loss_sum(params: Any, passed: Pass, key: Key, decoder: Decoder) -> tuple[jax.Array, Metrics]:
        """This device's part of the objective's sums over the micro-batches of one pass."""
        h_ND, flat = forward(params, *passed, decoder, key)
        R = math.prod(passed[0]["tokens"].shape[:2])
        return objective.loss(h_ND, params[head_name], flat, R, head, spec.objective)

    def passes(batch: Batch) -> Pass:
        """The micro-batches and their numbers, by passes: through a pipeline they go together, else one by one."""
        A = batch["tokens"].shape[0]
        together = A if "pipeline" in rules.axes else 1
        return jax.tree.map(lambda x: x.reshape(A // together, together, *x.shape[1:]), (batch, jnp.arange(A)))

    def accumulate(params: Any, earlier: fp8.Amax, batch: Batch, key: Key) -> tuple[Metrics, Any, fp8.Amax]:
        """This device's part of the sums and their gradients over all passes, and the largest values seen by fp8."""

        def of_pass(given: tuple[Any, fp8.Amax], passed: Pass) -> tuple[jax.Array, Metrics]:
            total, others = loss_sum(fp8.beside(*given), passed, key, decoder)
            return total, {"loss": total} | others

        def one_pass(carry: Any, passed: Pass) -> tuple[Any, None]:
            (gradients, seen), metrics = jax.grad(of_pass, has_aux=True)((params, earlier), passed)
            sums = jax.tree.map(lambda total, x: (total + x.astype(jnp.float32)).astype(total.dtype), carry[:2],
                                (metrics, gradients))  # fmt: skip
            return (*sums, jax.tree.map(jnp.maximum, carry[2], seen)), None

        first = jax.tree.map(lambda x: x[0], passes(batch))
        metrics = jax.eval_shape(lambda one: of_pass((params, earlier), one)[1], first)
        formats = (jnp.float32, DTYPES[spec.precision.gradient_dtype], jnp.float32)
        zeros = tuple(
            jax.tree.map(lambda x, dtype=dtype: jnp.zeros(x.shape, dtype), tree)
            for tree, dtype in zip((metrics, params, earlier), formats, strict=True)
        )
        return lax.scan(one_pass, zeros, passes(batch))[0]

    def store(x: jax.Array, dtype: jnp.dtype, leaf: Declaration, dims: sharding.Dims, key: Key) -> jax.Array:
        """x in a format; where that rounds at random, it does so in the same way on every mesh."""
        *outer, columns = sharding.positions(x.shape, dims)
        if "layers" in leaf.names:
            outer[0] = layer_numbers[outer[0]]
        rows = sum((n * math.prod(leaf.shape[dim + 1 : -1]) for dim, n in enumerate(outer)), jnp.int32(0))
        return ROUNDING[spec.precision.stochastic_rounding](x, dtype, key, rows, columns)

    def update(
        leaf: Declaration,
        place: sharding.Placement,
        param: jax.Array,
        gradient: jax.Array,
        keys: Key,
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
        written = [
            store(new[name], slot.dtype, leaf, slot_dims(leaf, place, optimizer.slots[name]), keys[2 + number])
            for number, (name, slot) in enumerate(zip(optimizer.slots, slots, strict=True))
        ]
        p = store(p, param.dtype, leaf, place.optimizer, keys[1])
        return sharding.gather(p, place.optimizer, place.rest), *written

    def slot_dims(leaf: Declaration, place: sharding.Placement, ones: Callable[[Shape], Shape]) -> sharding.Dims:
        """How a slot is split: as its parameter, but for the dimensions that have size 1 in it."""
        return tuple(() if d in ones(unstacked(leaf.names)) else axes for d, axes in enumerate(place.optimizer))

    def local_step(state: State, batch: Batch) -> tuple[State, Metrics]:
        key = fold(make_key(spec.seed), state["step"])
        amount = over_data(objective.amount(batch, rules))
        each = fold(fold(key, STORED), jnp.arange(len(jax.tree.leaves(places)) * (2 + len(optimizer.slots))))
        keys = jax.tree.unflatten(jax.tree.structure(declarations), list(each.reshape(-1, 2 + len(optimizer.slots), 2)))
        params, history = state["params"], state.get("amax", {})
        if spec.precision.stochastic_rounding:  # then this is how float32 parameters become what is computed with
            params = jax.tree.map(
                lambda p, leaf, place, key: store(p, decoder.dtype, leaf, place.rest, key[0]).astype(p.dtype),
                params, declarations, places, keys,
            )  # fmt: skip
        sums, gradients, seen = accumulate(params, fp8.remembered(history), batch, key)
        gradients = jax.tree.map(lambda g, p: sharding.reduce_gradient(g, p, rules), gradients, places)
        norm = sharding.global_norm(gradients, places, rules) / amount
        scale = clip_scale(norm, spec.optimizer.clip_norm) / amount
        rate = learning_rate(state["step"], spec)
        updated = jax.tree.map(
            lambda leaf, place, p, g, key, *slots: update(leaf, place, p, g * scale, key, state["step"], rate, *slots),
            declarations, places, state["params"], gradients, keys,
            *(state["slots"][name] for name in optimizer.slots),
        )  # fmt: skip
        parts = jax.tree.structure((0,) * (1 + len(optimizer.slots)))
        params, *slots = jax.tree.transpose(jax.tree.structure(declarations), parts, updated)
        metrics = {name: over_tokens(x) / amount for name, x in sums.items()} | {
            "grad_norm": norm,
            "learning_rate": rate,
            "weight": over_data(jnp.sum(batch["weights"])),
        }
        if spec.logging.parameter_norm:
            metrics["params_norm"] = sharding.global_norm(params, resting, rules)
        new = {"step": state["step"] + 1, "params": params, "slots": dict(zip(optimizer.slots, slots, strict=True))}
        new |= with_amax(fp8.remember(history, seen, fp8.seen_over(rules)))
        if spec.optimizer.on_non_finite == "skip":
            is_sound = jnp.isfinite(metrics["loss"]) & jnp.isfinite(norm)
            new = jax.tree.map(lambda x, before: jnp.where(is_sound, x, before), new, state) | {"step": new["step"]}
            metrics["skipped_steps"] = 1 - is_sound.astype(jnp.int32)
        return new, metrics

    without = replace(spec, dropout=Dropout())
    without_dropout = replace(decoder, dropout=Dropout(), attention=make_attention(without, rules, backend))

    def local_loss(params: Any, batch: Batch) -> tuple[jax.Array, jax.Array]:
        def one_pass(total: jax.Array, passed: Pass) -> tuple[jax.Array, None]:
            return total + loss_sum(params, passed, make_key(0), without_dropout)[0], None

        total = lax.scan(one_pass, jnp.float32(0), passes(batch))[0]
        return over_tokens(total), over_data(objective.amount(batch, rules))

    def local_answers(params: Any, batch: Batch) -> jax.Array:
        def one_pass(_: None, passed: Pass) -> tuple[None, jax.Array]:
            h_ND, flat = forward(params, *passed, without_dropout, make_key(0))
            R = math.prod(passed[0]["tokens"].shape[:2])
            return None, answer_log_probabilities(h_ND, params[head_name], flat, R, head)

        of_own = lax.scan(one_pass, None, passes(batch))[1].reshape(batch["tokens"].shape[:2])
        return sharding.gather(of_own, sharding.batch_dims(rules)[:2], ((), ()))

    at_rest = jax.tree.map(lambda p: sharding.partition_spec(p.rest), places)

    def with_amax(history: Mapping[str, Any]) -> State:
        return {"amax": history} if history else {}

    def of_slots(make: Callable[[Declaration, sharding.Placement, Callable[[Shape], Shape]], Any]) -> dict[str, Any]:
        """A tree for each slot, made of every parameter and of what says which dimensions have size 1 in the slot."""
        return {
            name: jax.tree.map(lambda d, p, ones=ones: make(d, p, ones), declarations, places)
            for name, ones in optimizer.slots.items()
        }

    def slot_spec(leaf: Declaration, place: sharding.Placement, ones: Callable[[Shape], Shape]) -> Any:
        return sharding.partition_spec(slot_dims(leaf, place, ones))

    def empty_slot(leaf: Declaration, place: sharding.Placement, ones: Callable[[Shape], Shape]) -> jax.Array:
        shape = tuple(1 if d in ones(unstacked(leaf.names)) else size for d, size in enumerate(leaf.shape))
        return jnp.zeros(shape, DTYPES[spec.precision.optimizer_dtype])

    everywhere = sharding.partition_spec(())
    amax = fp8.histories(spec, declarations)
    state_specs = {"step": everywhere, "params": at_rest, "slots": of_slots(slot_spec)}
    state_specs |= with_amax(dict.fromkeys(amax, everywhere))
    batch_specs = dict.fromkeys(fields_of(spec), sharding.partition_spec(sharding.batch_dims(rules)))

    def over_mesh(function: Callable[..., Any], inputs: Any, outputs: Any) -> Callable[..., Any]:
        return jax.shard_map(function, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=False)

    def init() -> State:
        params = placed(initialize(declarations, spec.seed, DTYPES[spec.precision.params_dtype]), spec)
        history = {name: jnp.zeros(shape) for name, shape in amax.items()}
        return {"step": jnp.int32(0), "params": params, "slots": of_slots(empty_slot)} | with_amax(history)

    def on_mesh(specs: Any) -> Any:
        return jax.tree.map(lambda s: NamedSharding(mesh, s), specs)

    A, B, T = spec.accumulation_steps, spec.sequences_per_step, spec.batch.sequence_length
    return Trainer(
        mesh=mesh,
        decoder=decoder,
        init=jax.jit(init, out_shardings=on_mesh(state_specs)),
        step=jax.jit(over_mesh(local_step, (state_specs, batch_specs), (state_specs, everywhere)), donate_argnums=0),
        loss=jax.jit(over_mesh(local_loss, (at_rest, batch_specs), everywhere)),
        answers=jax.jit(over_mesh(local_answers, (at_rest, batch_specs), everywhere)),
        state_shardings=on_mesh(state_specs),
        batch_shardings=on_mesh(batch_specs),
        batch_shape=(A, B // A, T),
    )
