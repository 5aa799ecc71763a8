"""The programs of a run, compiled for a mesh: its first state, its step and its losses, each inside one `shard_map`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from seatrial.estimate.own_memory import chunk_tokens
from seatrial.spec import Dropout, RunSpec, uneven_splits
from seatrial.train import fp8, sharding
from seatrial.train.attention import make_attention
from seatrial.train.data import fields_of
from seatrial.train.mesh import backend_of, has_fp8_units
from seatrial.train.model import Decoder
from seatrial.train.objectives import OBJECTIVES, Head
from seatrial.train.optimizer import Tensor, make_optimizer, tensor_of
from seatrial.train.params import Params, chunks_per_stage, declare, initialize, layer_order, placed, placements
from seatrial.train.precision import DTYPES, products_for
from seatrial.train.remat import make_remat
from seatrial.train.step import Batch, Metrics, Rest, Setup, State, answers_of, loss_of, train_step
from seatrial.xla_flags import flags_of, known

# How much XLA optimizes for a CPU: at level 3 by itself. The numbers are the same, to the bit with jax 0.10 and
# but for rounding with jax 0.12. At level 2 most steps are as fast, and compile in two thirds of the time; the first
# state is made once, and level 1 will do.
LEVEL, MOST, LEVEL_OF_STEPS, LEVEL_OF_INIT = "xla_backend_optimization_level", 3, 2, 1


@dataclass(frozen=True)
class Trainer:
    """The pure functions of a run, compiled for a mesh, and the placements of what they take.

    They are compiled with `options` of XLA, which JAX takes for no program that is a part of another one: `bare_step`
    is the step for those of which it is a part.
    """

    mesh: Mesh
    init: Callable[[], State]
    rest: Callable[[], Rest]  # of the first state: without its parameters
    step: Callable[[State, Batch], tuple[State, Metrics]]
    bare_step: Callable[[State, Batch], tuple[State, Metrics]]
    loss: Callable[[Params, Batch], tuple[jax.Array, jax.Array]]  # → (sum, amount), without dropout
    answers: Callable[[Params, Batch], jax.Array]  # → Σ weight · log p of each sequence [A, B], likewise
    state_shardings: Any
    batch_shardings: Mapping[str, NamedSharding]
    batch_shape: tuple[int, int, int]
    options: Mapping[str, Any]


def make_trainer(spec: RunSpec, mesh: Mesh) -> Trainer:
    """Everything that a run of `spec` computes. Raises ValueError where a tensor does not divide over the mesh."""
    for split in uneven_splits(spec, balances_context=False, pads_vocabulary=True):
        raise ValueError(f"{split.name} = {split.size} cannot be split over {split.axes} = {split.parts}")
    device = mesh.devices.flat[0]
    backend, fp8_units = backend_of(device), has_fp8_units(device)
    setup = make_setup(spec, backend, fp8_units=fp8_units)
    without_dropout = make_setup(replace(spec, dropout=Dropout()), backend, fp8_units=fp8_units)
    state = jax.tree.map(lambda tensor: sharding.partition_spec(tensor.split), state_layout(setup))
    batch = dict.fromkeys(fields_of(spec), sharding.partition_spec(sharding.batch_dims(setup.decoder.rules)))
    everywhere = sharding.partition_spec(())

    options, of_init = compiler_options(spec, backend), init_options(backend)

    def local(function: Callable[..., Any], inputs: Any, outputs: Any) -> Callable[..., Any]:
        return jax.shard_map(function, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=False)

    def program(function: Callable[..., Any], inputs: Any, outputs: Any) -> Callable[..., Any]:
        return jax.jit(local(function, inputs, outputs), compiler_options=options)

    def on_mesh(specs: Any) -> Any:
        return jax.tree.map(lambda s: NamedSharding(mesh, s), specs)

    A, B, T = spec.accumulation_steps, spec.sequences_per_step, spec.batch.sequence_length
    whole, rest = on_mesh(state), on_mesh({name: specs for name, specs in state.items() if name != "params"})
    step = local(partial(train_step, setup=setup), (state, batch), (state, everywhere))
    return Trainer(
        mesh=mesh,
        init=jax.jit(partial(first_state, setup), out_shardings=whole, compiler_options=of_init),
        rest=jax.jit(partial(first_rest, setup), out_shardings=rest, compiler_options=of_init),
        step=jax.jit(step, donate_argnums=0, compiler_options=options),
        bare_step=step,
        loss=program(partial(loss_of, setup=without_dropout), (state["params"], batch), everywhere),
        answers=program(partial(answers_of, setup=without_dropout), (state["params"], batch), everywhere),
        state_shardings=whole,
        batch_shardings=on_mesh(batch),
        batch_shape=(A, B // A, T),
        options=options,
    )


def compiler_options(spec: RunSpec, backend: str) -> dict[str, Any]:
    """Options of XLA for a run's programs, where this jaxlib knows them and the configuration does not set them."""
    if backend == "cpu":
        return _level(level_of_steps(spec))
    if backend != "cuda" or not spec.precision.quantization:
        return {}
    accepted = known({name: str(value) for name, value in fp8.OPTIONS.items()}) - spec.execution.xla_flags.keys()
    return {name: value for name, value in fp8.OPTIONS.items() if name in accepted}


def level_of_steps(spec: RunSpec) -> int:
    """The level at which XLA optimizes steps on a CPU.

    Where a loop over layers keeps what it computes within them, in a narrower format than it has there, LLVM makes fast
    code of that only at the highest level: steps of small models would take up to 1.3 times as long.
    """
    execution = spec.execution
    keeps_narrow = spec.precision.compute_dtype != "float32" and execution.remat != "full"
    return MOST if keeps_narrow and execution.scan_layers else LEVEL_OF_STEPS


def init_options(backend: str) -> dict[str, Any]:
    """Options of XLA for the program of the first state."""
    return _level(LEVEL_OF_INIT) if backend == "cpu" else {}


def _level(otherwise: int) -> dict[str, Any]:
    """The level of optimization that XLA_FLAGS name, else this one."""
    return {LEVEL: flags_of(os.environ.get("XLA_FLAGS", "")).get(LEVEL, otherwise)}


def make_setup(spec: RunSpec, backend: str, *, fp8_units: bool = False) -> Setup:
    """The rows of all tables that serve a spec on a backend."""
    products = products_for(backend, fp8_units=fp8_units)
    rules, declarations = sharding.make_rules(spec), declare(spec)
    places = placements(declarations, rules)
    decoder = Decoder(
        model=spec.model,
        dropout=spec.dropout,
        placements=places,
        rules=rules,
        dtype=DTYPES[spec.precision.compute_dtype],
        linear=fp8.make_linear(spec, rules, products),
        attention=make_attention(spec, rules, backend),
        boundary=sharding.boundary_of(rules),
        remat=make_remat(spec.execution),
        scan_layers=spec.execution.scan_layers,
        chunks=chunks_per_stage(spec),
    )
    tied, vocab_size = spec.model.tied_embeddings, spec.model.vocab_size
    of_head = products if backend == "cpu" else replace(products, logits_tokens=chunk_tokens(spec))
    table = places["embedding" if tied else "head"]
    return Setup(
        spec=spec,
        declarations=declarations,
        layers=jnp.asarray(layer_order(spec)),
        decoder=decoder,
        head=Head(placement=table, rules=rules, products=of_head, tied=tied, vocab_size=vocab_size),
        objective=OBJECTIVES[spec.objective.kind],
        optimizer=make_optimizer(spec.optimizer),
        backend=backend,
    )


# --- the state --------------------------------------------------------------------------------------------------------


def state_layout(setup: Setup) -> dict[str, Any]:
    """The shape of every array of the state, and the mesh axes that split it: a tree like the state, of `Tensor`s."""
    places, row = setup.decoder.placements, setup.optimizer
    tensors = jax.tree.map(tensor_of, setup.declarations, places)
    histories = fp8.histories(setup.spec, setup.declarations)
    layout: dict[str, Any] = {
        "step": Tensor(shape=(), split=(), dims=()),
        "params": jax.tree.map(lambda tensor, place: replace(tensor, split=place.rest), tensors, places),
        "slots": {name: jax.tree.map(partial(row.slot, name), tensors) for name in row.slots},
    }
    if histories:
        layout["amax"] = {name: Tensor(shape=shape, split=(), dims=()) for name, shape in histories.items()}
    return layout


def first_state(setup: Setup) -> State:
    """The state that training begins with."""
    spec = setup.spec
    params = initialize(setup.declarations, spec.seed, DTYPES[spec.precision.params_dtype])
    return State(params=placed(params, spec), **first_rest(setup))


def first_rest(setup: Setup) -> Rest:
    """That state without its parameters."""
    layout = state_layout(setup)

    def zeros(tree: Any, dtype: jnp.dtype) -> Any:
        return jax.tree.map(lambda tensor: jnp.zeros(tensor.shape, dtype), tree)

    rest = Rest(step=jnp.int32(0), slots=zeros(layout["slots"], DTYPES[setup.spec.precision.optimizer_dtype]))
    if "amax" in layout:
        rest["amax"] = zeros(layout["amax"], jnp.float32)
    return rest
