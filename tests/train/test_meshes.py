"""The same data and model over different meshes: the same losses, norms and parameters."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from seatrial.shrink.collapse import collapse
from seatrial.spec import Batch, Execution, MeshShape, Parallelism, Precision, RunSpec, Topology
from seatrial.train import trainer
from seatrial.train.data import make_batch
from seatrial.train.mesh import make_mesh
from seatrial.train.trainer import make_trainer
from tests.helpers.trainer import TINY, RandomSource, begun, canonical, make_spec

STEPS = 10
QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}  # half the time
MODEL = replace(TINY, num_layers=4)


def on(mesh: dict[str, int], accumulation: int = 1, **strategy: Any) -> RunSpec:
    spec = make_spec(mesh, model=MODEL, steps=STEPS, **strategy)
    return replace(spec, batch=replace(spec.batch, micro_batch_size=spec.batch.micro_batch_size // accumulation))


# What each strategy adds to the step, and what only products of several can get wrong.
MESHES = {
    "zero1": on({"data": 8}, zero1=True),
    "fsdp": on({"fsdp": 8}),
    "tp+sp": on({"tensor": 4}, sequence_parallel=True),
    "cp, ring": on({"context": 4}, context_strategy="ring"),
    "pp×fsdp×cp, virtual": on({"pipeline": 2, "fsdp": 2, "context": 2}, accumulation=4, virtual_pipeline=2),
}
MORE_MESHES = {
    "dp": on({"data": 8}, accumulation=2),
    "tp, shared heads": on({"tensor": 8}),
    "cp": on({"context": 4}),
    "pp": on({"pipeline": 4}, accumulation=4),
    "pp, few micro-batches": on({"pipeline": 4}, accumulation=2),
    "pp, virtual": on({"pipeline": 2}, accumulation=4, virtual_pipeline=2),
    "dp, accumulation": on({"data": 2}, accumulation=4),
    "dp×fsdp": on({"data": 2, "fsdp": 4}),
    "pp×dp×tp+sp, zero1": on(
        {"pipeline": 2, "data": 2, "tensor": 2}, accumulation=2, zero1=True, sequence_parallel=True
    ),
    "fsdp×tp": on({"fsdp": 4, "tensor": 2}),
    "zero1×tp": on({"data": 4, "tensor": 2}, zero1=True),
    "fsdp×tp+sp": on({"fsdp": 4, "tensor": 2}, sequence_parallel=True, accumulation=2),
    "pp×tp+sp, shared heads": on({"pipeline": 2, "tensor": 4}, sequence_parallel=True, accumulation=2),
    "cp×tp+sp": on({"context": 2, "tensor": 4}, sequence_parallel=True),
    "dp×fsdp×tp+sp, zero1": on({"data": 2, "fsdp": 2, "tensor": 2}, zero1=True, sequence_parallel=True),
    "dp×fsdp×cp, zero1": on({"data": 2, "fsdp": 2, "context": 2}, zero1=True),
    "dp×cp×tp, ring": on({"data": 2, "context": 2, "tensor": 2}, context_strategy="ring"),
    "fsdp×cp×tp+sp": on({"fsdp": 2, "context": 2, "tensor": 2}, sequence_parallel=True, accumulation=2),
    "pp×dp×fsdp, zero1": on({"pipeline": 2, "data": 2, "fsdp": 2}, zero1=True, accumulation=4),
    "pp×dp×cp": on({"pipeline": 2, "data": 2, "context": 2}),
    "pp×fsdp×tp+sp, virtual": on(
        {"pipeline": 2, "fsdp": 2, "tensor": 2}, accumulation=2, sequence_parallel=True, virtual_pipeline=2
    ),
    "pp×cp×tp, ring": on({"pipeline": 2, "context": 2, "tensor": 2}, accumulation=2, context_strategy="ring"),
}


@dataclass(frozen=True)
class Observed:
    """The results of the same ten steps on one mesh; `collectives` counts the compiled step's instructions by kind."""

    losses: list[float]
    norms: list[float]
    params: Any
    collectives: dict[str, int]


_OBSERVED: dict[str, Observed] = {}


def observe(spec: RunSpec) -> Observed:
    """Ten steps, once for each spec."""
    if repr(spec) not in _OBSERVED:
        _OBSERVED[repr(spec)] = _train(spec)
    return _OBSERVED[repr(spec)]


def _train(spec: RunSpec) -> Observed:
    trainer = make_trainer(spec, make_mesh(spec, jax.devices()[: spec.topology.num_devices]))
    source = RandomSource(spec.model.vocab_size, spec.batch.sequence_length)
    state, metrics = begun(spec, trainer), []
    step: Any = None
    for number in range(STEPS):
        first = number * spec.batch.global_batch_size
        batch = make_batch(source, first, trainer.batch_shape, trainer.batch_shardings)
        step = step or trainer.step.lower(state, batch).compile(compiler_options=QUICKLY)
        state, values = step(state, batch)
        metrics.append(values)
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")
    counts = {kind: len(re.findall(rf" {kind}(?:-start)?\(", step.as_text())) for kind in kinds}
    return Observed(
        losses=[float(values["loss"]) for values in metrics],
        norms=[float(values["grad_norm"]) for values in metrics],
        params=canonical(jax.tree.map(np.asarray, state["params"]), spec),
        collectives={kind: count for kind, count in counts.items() if count},
    )


def same_training(one: Observed, other: Observed) -> None:
    np.testing.assert_allclose(one.losses, other.losses, rtol=0, atol=1e-4)
    np.testing.assert_allclose(one.norms, other.norms, rtol=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-4), one.params, other.params)


@pytest.mark.parametrize("name", [*MESHES, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE_MESHES)])
def test_a_mesh_changes_nothing_but_speed(name: str) -> None:
    same_training(observe((MESHES | MORE_MESHES)[name]), observe(on({})))


def test_a_mesh_begins_with_the_same_parameters() -> None:
    spec = MESHES["pp×fsdp×cp, virtual"]
    trainer = make_trainer(spec, make_mesh(spec))
    jax.tree.map(np.testing.assert_array_equal, trainer.init(), begun(spec, trainer))


def test_the_first_state_is_the_same_when_compiled_in_half_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, alone = make_spec(), jax.devices()[:1]
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # the tests' own ones compile everything quickly
    made = make_trainer(spec, make_mesh(spec, alone)).init()
    monkeypatch.setattr(trainer, "LEVEL_OF_INIT", trainer.MOST)
    jax.tree.map(np.testing.assert_array_equal, made, make_trainer(spec, make_mesh(spec, alone)).init())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps_are_the_same_at_a_lower_level(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    spec, ends = make_spec(precision=Precision(compute_dtype=dtype)), []
    for level in (trainer.LEVEL_OF_STEPS, trainer.MOST):
        monkeypatch.setattr(trainer, "level_of_steps", lambda _, level=level: level)
        made = make_trainer(spec, make_mesh(spec, jax.devices()[:1]))
        state = begun(spec, made)
        for number in range(2):
            source = RandomSource(spec.model.vocab_size, spec.batch.sequence_length)
            first = number * spec.batch.global_batch_size
            state, _ = made.step(state, make_batch(source, first, made.batch_shape, made.batch_shardings))
        ends.append(jax.tree.map(np.asarray, state))
    if jax.__version_info__ < (0, 11):
        jax.tree.map(np.testing.assert_array_equal, *ends)
    else:  # LLVM adds up in another order
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-7), *ends)


@pytest.mark.parametrize(
    ("dtype", "execution", "level"),
    [
        ("bfloat16", Execution(remat="none"), 3), ("bfloat16", Execution(remat="minimal_with_context"), 3),
        ("bfloat16", Execution(remat="full"), 2), ("bfloat16", Execution(remat="none", scan_layers=False), 2),
        ("float32", Execution(remat="none"), 2),
    ],
)  # fmt: skip
def test_a_loop_that_keeps_what_is_in_its_layers_is_optimized_most(dtype: Any, execution: Any, level: int) -> None:
    spec = make_spec(execution=execution, precision=Precision(compute_dtype=dtype))
    assert trainer.level_of_steps(spec) == level


def test_a_level_in_the_flags_of_xla_is_that_of_all_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    options = (partial(trainer.compiler_options, make_spec()), trainer.init_options)
    assert [options_on("cuda") for options_on in options] == [{}, {}]
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    assert [options_on("cpu") for options_on in options] == [{"xla_backend_optimization_level": "0"}] * 2
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/tmp/x")
    assert [options_on("cpu")["xla_backend_optimization_level"] for options_on in options] == [2, 1]


def test_the_loss_moves_enough_for_the_comparison_to_mean_something() -> None:
    losses = observe(on({})).losses
    assert max(losses) - min(losses) > 0.05


@pytest.mark.slow
def test_a_collapsed_mesh_trains_the_same() -> None:
    wide = MESHES["pp×fsdp×cp, virtual"]
    small = collapse(wide, num_devices=2).spec
    assert small.mesh == {"pipeline": 1, "data": 1, "fsdp": 2, "context": 1, "tensor": 1}
    same_training(observe(small), observe(wide))


@pytest.mark.slow
@pytest.mark.parametrize(
    "execution",
    [
        Execution(remat="none", scan_layers=False),
        Execution(remat="none", scan_layers=True),
        Execution(remat="full", scan_layers=False),
        Execution(remat="minimal_with_context", scan_layers=True),
        Execution(remat="minimal", scan_layers=True, attention="reference"),
    ],
    ids=lambda e: f"{e.remat}-{'scan' if e.scan_layers else 'unrolled'}-{e.attention}",
)
def test_remat_layers_and_attention_change_nothing(execution: Execution) -> None:
    spec = on({"pipeline": 2, "fsdp": 2, "tensor": 2}, accumulation=2, virtual_pipeline=2, execution=execution)
    same_training(observe(spec), observe(on({})))


@pytest.mark.slow
def test_tied_embeddings_over_a_mesh() -> None:
    tied = replace(MODEL, tied_embeddings=True)
    over_mesh = observe(replace(on({"pipeline": 2, "fsdp": 2, "tensor": 2}), model=tied))
    assert "head" not in over_mesh.params
    same_training(over_mesh, observe(replace(on({}), model=tied)))


@pytest.mark.slow
@pytest.mark.parametrize("params", ["float32", "bfloat16"])
def test_bfloat16_follows_float32(params: Any) -> None:
    precision = Precision(compute_dtype="bfloat16", params_dtype=params, optimizer_dtype=params)
    found = observe(on({"pipeline": 2, "fsdp": 2, "tensor": 2}, accumulation=4, precision=precision))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(found.params)} == {params}
    np.testing.assert_allclose(found.losses, observe(on({})).losses, rtol=0, atol=2e-2 if params == "float32" else 0.1)


# --- which collectives a strategy costs -------------------------------------------------------------------------------


def collectives(name: str) -> dict[str, int]:
    return observe((MESHES | MORE_MESHES)[name]).collectives


def test_one_device_does_not_communicate() -> None:
    assert observe(on({})).collectives == {}


@pytest.mark.slow
def test_data_parallelism_only_reduces() -> None:
    assert set(collectives("dp")) == {"all-reduce"}


def test_zero1_scatters_gradients_and_gathers_parameters() -> None:
    counts = collectives("zero1")
    matrices = 9  # embedding, head and the seven stacked ones
    assert counts["reduce-scatter"] <= matrices
    assert counts["all-gather"] <= matrices
    assert counts["all-reduce"] <= 6  # norms' gradients, loss, weights, gradient norm


def test_fsdp_gathers_each_matrix_forward_and_backward_and_scatters_its_gradient() -> None:
    counts = collectives("fsdp")
    # per scanned layer 7 forward, 7 in the recomputation, 7 for the gradients of the inputs; then embedding and head
    assert 16 <= counts["all-gather"] <= 3 * 7 + 2
    assert counts["reduce-scatter"] == 9
    assert "collective-permute" not in counts


@pytest.mark.slow
def test_tensor_parallelism_reduces_activations_and_gathers_no_weight() -> None:
    assert set(collectives("tp, shared heads")) == {"all-reduce"}


def test_sequence_parallelism_replaces_reductions_of_activations() -> None:
    counts = collectives("tp+sp")
    assert counts["all-gather"] >= 4
    assert counts["reduce-scatter"] >= 4


@pytest.mark.slow
def test_context_parallelism_gathers_keys_and_values_and_scatters_their_gradients() -> None:
    counts = collectives("cp")
    assert set(counts) == {"all-gather", "reduce-scatter", "all-reduce"}
    assert 2 <= counts["all-gather"] <= 4  # forward, and again in the recomputation
    assert counts["reduce-scatter"] == 2


def test_a_ring_passes_keys_and_values_on_and_gathers_nothing() -> None:
    assert set(collectives("cp, ring")) == {"collective-permute", "all-reduce"}


@pytest.mark.slow
def test_a_pipeline_hands_hidden_states_on_and_shares_the_output_head() -> None:
    counts = collectives("pp")
    assert counts["collective-permute"] == 2  # one a tick, there and back
    assert (counts["reduce-scatter"], counts["all-gather"]) == (1, 1)  # the last hidden states, and their gradients


# --- the mesh itself --------------------------------------------------------------------------------------------------


def test_the_network_is_the_outer_part_of_every_axis() -> None:
    spec = replace(
        make_spec(),
        topology=Topology(num_nodes=2, devices_per_node=4),
        parallelism=Parallelism(across_nodes=MeshShape(data=1, fsdp=-1), within_node=MeshShape(fsdp=2, tensor=2)),
    )
    devices = jax.devices()
    mesh = make_mesh(spec, devices)
    assert dict(mesh.shape) == {"pipeline": 1, "data": 1, "fsdp": 4, "context": 1, "tensor": 2}
    ids = np.vectorize(lambda device: device.id)(mesh.devices).reshape(4, 2)
    assert ids.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]  # a tensor pair never leaves its node


def test_a_mesh_that_does_not_fit_names_both_numbers() -> None:
    with pytest.raises(ValueError, match="needs 4 devices, but there are 8"):
        make_mesh(make_spec({"fsdp": 4}), jax.devices())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            make_spec({"tensor": 6}, model=replace(TINY, num_heads=12)),
            "num_kv_heads = 4 cannot be split over tensor = 6",
        ),
        (make_spec({"tensor": 8}, model=replace(TINY, num_heads=4)), "num_heads = 4 cannot be split over tensor = 8"),
        (
            make_spec(
                {"tensor": 4},
                sequence_parallel=True,
                batch=Batch(sequence_length=30, global_batch_size=4, micro_batch_size=4),
            ),
            "sequence_length = 30 cannot be split over tensor = 4",
        ),
        (
            make_spec({"data": 8}, batch=Batch(sequence_length=32, global_batch_size=20, micro_batch_size=1)),
            "global_batch_size = 20 cannot be split over micro_batch_size",
        ),
        (make_spec({"pipeline": 2}), "num_layers = 3 cannot be split over pipeline × virtual_pipeline = 2"),
        (on({"pipeline": 2}, virtual_pipeline=4), "num_layers = 4 cannot be split over pipeline × virtual_p.* = 8"),
        (
            on({"pipeline": 4}, batch=Batch(sequence_length=3, global_batch_size=2, micro_batch_size=2)),
            "tokens of a step on a device = 6 cannot be split over pipeline = 4",
        ),
    ],
)
def test_what_a_mesh_cannot_split_is_named_with_both_numbers(spec: RunSpec, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_trainer(spec, make_mesh(spec, jax.devices()[: spec.topology.num_devices]))


def test_a_dimension_that_does_not_divide_is_named() -> None:
    spec = make_spec({"fsdp": 8}, model=replace(TINY, hidden_dim=60))
    with pytest.raises(ValueError, match="hidden_dim = 60 cannot be split over fsdp = 8"):
        make_trainer(spec, make_mesh(spec))
