"""One optimizer step, as every device computes it inside `shard_map`: gradients over micro-batches, reduction,
clipping, update. `trainer` makes programs of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

import jax
import jax.numpy as jnp
from jax import lax

from seatrial.estimate.own_layer import adds_in_place
from seatrial.spec import RunSpec
from seatrial.train import fp8, sharding
from seatrial.train.model import Decoder
from seatrial.train.objectives import Head, Objective, Sums, answer_log_probabilities
from seatrial.train.optimizer import Algorithm, Now, apart_on, clip_scale, tensor_of
from seatrial.train.params import Declaration, Declarations, Params
from seatrial.train.pipeline import forward
from seatrial.train.precision import DTYPES, ROUNDING
from seatrial.train.random import Key, fold, make_key
from seatrial.train.schedules import embedding_rate, learning_rate

Batch = dict[str, jax.Array]  # the fields of `data.fields_of`, each [A, B, T]
Pass = tuple[Batch, jax.Array]  # micro-batches that go through the layers together, [M, B, T], and their numbers
Metrics = dict[str, jax.Array]

ROUNDED = 2**30 + 16  # folded into a step's key for stochastic rounding
DATA = (*sharding.BATCH, *sharding.SEQUENCE)  # the mesh axes that split a batch,
TOKENS = ("pipeline", *DATA)  # and those that split the tokens of which a loss is computed


TABLES = ("embedding", "head")


class Rest(TypedDict):
    """A state without its parameters. `slots`: for each of the optimizer's, a tree like them."""

    step: jax.Array  # int32
    slots: dict[str, Params]
    amax: NotRequired[fp8.Amax]  # histories, where fp8 scales are delayed


class State(Rest):
    """The training state, which each step replaces."""

    params: Params


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The parts of a step, chosen once from the spec's tables."""

    spec: RunSpec
    declarations: Declarations
    layers: jax.Array  # see `layer_order`
    decoder: Decoder
    head: Head
    objective: Objective
    optimizer: Algorithm
    backend: str


def train_step(state: State, batch: Batch, setup: Setup) -> tuple[State, Metrics]:
    """The state after a step, and the step's numbers, the same on all devices."""
    spec, rules, places = setup.spec, setup.decoder.rules, setup.decoder.placements
    key = fold(make_key(spec.seed), state["step"])
    amount = sharding.over(DATA, rules)(setup.objective.amount(batch, rules))
    keys = _rounding_keys(key, setup)
    params, history = state["params"], state.get("amax", {})
    if spec.precision.stochastic_rounding:  # then this is how float32 parameters become what is computed with
        params = jax.tree.map(
            lambda p, leaf, at, key: _stored(p, setup.decoder.dtype, leaf, at.rest, key[0], setup).astype(p.dtype),
            params, setup.declarations, places, keys,
        )  # fmt: skip
    sums, gradients, seen = accumulate(params, fp8.remembered(history), batch, key, setup)
    gradients = jax.tree.map(lambda g, p: sharding.reduce_gradient(g, p, rules), gradients, places)
    norm = sharding.global_norm(gradients, places, rules) / amount
    scale = clip_scale(norm, spec.optimizer.clip_norm) / amount
    rate = learning_rate(state["step"], spec)
    params, slots = update(state, gradients, scale, _rates(state["step"], rate, setup), keys, setup)
    metrics = {name: sharding.over(TOKENS, rules)(x) / amount for name, x in sums.items()} | {
        "grad_norm": norm,
        "learning_rate": rate,
        "weight": sharding.over(DATA, rules)(jnp.sum(batch["weights"])),
    }
    if spec.logging.parameter_norm:
        metrics["params_norm"] = sharding.global_norm(params, places, rules, lambda place: place.rest)
    new = State(step=state["step"] + 1, params=params, slots=slots)
    if history:
        new["amax"] = fp8.remember(history, seen, fp8.seen_over(rules))
    if spec.optimizer.on_non_finite == "skip":
        is_sound = jnp.isfinite(metrics["loss"]) & jnp.isfinite(norm)
        new = jax.tree.map(lambda x, before: jnp.where(is_sound, x, before), new, state) | {"step": new["step"]}
        metrics["skipped_steps"] = 1 - is_sound.astype(jnp.int32)
    return new, metrics


# --- gradients --------------------------------------------------------------------------------------------------------


def _passes(batch: Batch, setup: Setup) -> Pass:
    """The micro-batches and their numbers, by passes: through a pipeline they go together, else one by one."""
    A = batch["tokens"].shape[0]
    together = A if "pipeline" in setup.decoder.rules.axes else 1
    by_passes: Pass = jax.tree.map(lambda x: x.reshape(A // together, together, *x.shape[1:]), (batch, jnp.arange(A)))
    return by_passes


def _loss_sums(params: Params, passed: Pass, key: Key, setup: Setup) -> Sums:
    """This device's part of the objective's sums over the micro-batches of one pass."""
    h_ND, flat = forward(params, *passed, setup.decoder, key)
    R = math.prod(passed[0]["tokens"].shape[:2])
    return setup.objective.loss(h_ND, params[setup.head.name], flat, R, setup.head, setup.spec.objective)


def accumulate(
    params: Params, earlier: fp8.Amax, batch: Batch, key: Key, setup: Setup
) -> tuple[Metrics, Params, fp8.Amax]:
    """This device's part of the sums and their gradients over all passes, and the largest values seen by fp8."""

    weights = fp8.shared(params, setup.spec, setup.decoder.placements)

    def of_pass(given: tuple[Params, fp8.Amax], passed: Pass) -> Sums:
        total, others = _loss_sums(fp8.beside(given[0], given[1] | weights), passed, key, setup)
        return total, {"loss": total} | others

    passes = _passes(batch, setup)
    metrics = jax.eval_shape(lambda one: of_pass((params, earlier), one)[1], jax.tree.map(lambda x: x[0], passes))
    formats = (jnp.float32, DTYPES[setup.spec.precision.gradient_dtype], jnp.float32)
    zeros = tuple(
        jax.tree.map(lambda x, dtype=dtype: jnp.zeros(x.shape, dtype), tree)
        for tree, dtype in zip((metrics, params, earlier), formats, strict=True)
    )
    if adds_in_place(setup.spec):
        return _accumulate_in_place(lambda p, passed: of_pass((p, earlier), passed), params, zeros, passes)

    def one_pass(carry: Any, passed: Pass) -> tuple[Any, None]:
        (gradients, seen), metrics = jax.grad(of_pass, has_aux=True)((params, earlier), passed)
        sums = jax.tree.map(lambda total, x: (total + x.astype(jnp.float32)).astype(total.dtype), carry[:2],
                            (metrics, gradients))  # fmt: skip
        return (*sums, jax.tree.map(jnp.maximum, carry[2], seen)), None

    total: tuple[Metrics, Params, fp8.Amax] = lax.scan(one_pass, zeros, passes)[0]
    return total


def _accumulate_in_place(
    of_pass: Callable[[Params, Pass], Sums], params: Params, zeros: tuple[Any, ...], passes: Pass
) -> tuple[Metrics, Params, fp8.Amax]:
    """`accumulate`, where each layer's backward pass adds to the sum, so that there is no other tree of gradients."""
    metrics, gradients, seen = zeros
    sums = jax.tree.map(jax.new_ref, gradients)

    def one_pass(before: Metrics, passed: Pass) -> tuple[Metrics, None]:
        back: Any  # its type in JAX's annotations, a callable, lacks the method
        total, back, metrics = jax.vjp(lambda p: of_pass(p, passed), params, has_aux=True)
        back.with_refs(sums)(jnp.ones_like(total))
        return jax.tree.map(lambda x, y: x + y.astype(jnp.float32), before, metrics), None

    metrics = lax.scan(one_pass, metrics, passes)[0]
    return metrics, jax.tree.map(jax.ref.freeze, sums), seen


# --- update -----------------------------------------------------------------------------------------------------------


def update(
    state: State, gradients: Params, scale: jax.Array, rates: Params, keys: Params, setup: Setup
) -> tuple[Params, dict[str, Params]]:
    """Parameters and optimizer slots after these gradients, times `scale`; they lie as the optimizer's table says."""
    spec, row = setup.spec, setup.optimizer

    def one(
        leaf: Declaration, place: sharding.Placement, param: jax.Array, gradient: jax.Array, rate: jax.Array, key: Key,
        *slots: jax.Array,
    ) -> tuple[jax.Array, ...]:  # fmt: skip
        """The work on this device's shard of one parameter, which is then brought back to rest."""
        decay = spec.optimizer.weight_decay if leaf.decay or spec.optimizer.decay_norms else 0.0
        tensor = tensor_of(leaf, place)
        p, new = row.update(
            sharding.take_shard(param, place.rest, place.optimizer).astype(jnp.float32),
            (gradient * scale).astype(jnp.float32),
            {name: slot.astype(jnp.float32) for name, slot in zip(row.slots, slots, strict=True)},
            Now(step=state["step"], rate=rate, decay=decay, tensor=tensor, apart=apart_on(setup.backend)),
            spec.optimizer,
        )
        written = [
            _stored(new[name], slot.dtype, leaf, row.slot(name, tensor).split, key[2 + number], setup)
            for number, (name, slot) in enumerate(zip(row.slots, slots, strict=True))
        ]
        p = _stored(p, param.dtype, leaf, place.optimizer, key[1], setup)
        return sharding.gather(p, place.optimizer, place.rest), *written

    if setup.backend != "cpu":  # put together of those of the layers once, and not for each of the update's outputs
        gradients = jax.tree.map(lax.optimization_barrier, gradients)
    trees = (state["params"], gradients, rates, keys, *(state["slots"][name] for name in row.slots))
    updated = jax.tree.map(one, setup.declarations, setup.decoder.placements, *trees)
    parts = jax.tree.structure((0,) * (1 + len(row.slots)))
    params, *slots = jax.tree.transpose(jax.tree.structure(setup.declarations), parts, updated)
    return params, dict(zip(row.slots, slots, strict=True))


def _rates(step: jax.Array, rate: jax.Array, setup: Setup) -> Params:
    """The learning rate of each parameter: the embedding and the output head may have one of their own."""
    optimizer = setup.spec.optimizer
    is_one = optimizer.embedding_learning_rate is None and optimizer.embedding_final_learning_rate is None
    own = rate if is_one else embedding_rate(step, setup.spec)
    return {
        name: jax.tree.map(lambda _, name=name: own if name in TABLES else rate, part)
        for name, part in setup.declarations.items()
    }


def _stored(
    x: jax.Array, dtype: jnp.dtype, leaf: Declaration, dims: sharding.Dims, key: Key, setup: Setup
) -> jax.Array:
    """x in a format; where that rounds at random, it does so in the same way on every mesh."""
    *outer, columns = sharding.positions(x.shape, dims)
    if "layers" in leaf.names:
        outer[0] = setup.layers[outer[0]]
    rows = sum((n * math.prod(leaf.shape[dim + 1 : -1]) for dim, n in enumerate(outer)), jnp.int32(0))
    return ROUNDING[setup.spec.precision.stochastic_rounding](x, dtype, key, rows, columns)


def _rounding_keys(key: Key, setup: Setup) -> Params:
    """For each parameter the keys of all that is rounded at random: what is computed with, itself, and its slots."""
    leaves, structure = jax.tree.flatten(setup.declarations)
    each = 2 + len(setup.optimizer.slots)
    keys = fold(fold(key, ROUNDED), jnp.arange(len(leaves) * each)).reshape(-1, each, 2)
    tree: Params = jax.tree.unflatten(structure, list(keys))
    return tree


# --- without gradients ------------------------------------------------------------------------------------------------


def loss_of(params: Params, batch: Batch, setup: Setup) -> tuple[jax.Array, jax.Array]:
    """The sum of the losses of a batch, and the amount that it is to be divided by."""

    def one_pass(total: jax.Array, passed: Pass) -> tuple[jax.Array, None]:
        return total + _loss_sums(params, passed, make_key(0), setup)[0], None

    rules = setup.decoder.rules
    total = lax.scan(one_pass, jnp.float32(0), _passes(batch, setup))[0]
    return sharding.over(TOKENS, rules)(total), sharding.over(DATA, rules)(setup.objective.amount(batch, rules))


def answers_of(params: Params, batch: Batch, setup: Setup) -> jax.Array:
    """Σ weight · log p of each sequence [A, B]."""

    def one_pass(_: None, passed: Pass) -> tuple[None, jax.Array]:
        h_ND, flat = forward(params, *passed, setup.decoder, make_key(0))
        R = math.prod(passed[0]["tokens"].shape[:2])
        return None, answer_log_probabilities(h_ND, params[setup.head.name], flat, R, setup.head)

    of_own = lax.scan(one_pass, None, _passes(batch, setup))[1].reshape(batch["tokens"].shape[:2])
    return sharding.gather(of_own, sharding.batch_dims(setup.decoder.rules)[:2], ((), ()))
