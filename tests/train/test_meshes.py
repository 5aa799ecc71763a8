"""The same data and model over different meshes: the same losses, norms and parameters."""

from __future__ import annotations

import re
from dataclasses import replace

import jax
import numpy as np
import pytest

from seatrial.spec import Batch, Execution, MeshShape, Parallelism, Precision, Topology
from seatrial.train.data import make_batch
from seatrial.train.mesh import make_mesh
from seatrial.train.step import make_trainer

from .conftest import TINY, RandomSource, make_spec, run_steps

MESHES = {
    "dp": make_spec({"data": 8}),
    "zero1": make_spec({"data": 8}, zero1=True),
    "fsdp": make_spec({"fsdp": 8}),
    "tp": make_spec({"tensor": 4}),
    "tp+sp": make_spec({"tensor": 4}, sequence_parallel=True),
    "fsdp×tp": make_spec({"fsdp": 4, "tensor": 2}),
    "fsdp×tp+sp": make_spec({"fsdp": 4, "tensor": 2}, sequence_parallel=True),
    "dp×fsdp": make_spec({"data": 2, "fsdp": 4}),
    "zero1×tp": make_spec({"data": 4, "tensor": 2}, zero1=True),
    "dp×fsdp×tp+sp, zero1": make_spec({"data": 2, "fsdp": 2, "tensor": 2}, zero1=True, sequence_parallel=True),
}


@pytest.fixture(scope="module")
def alone():
    return run_steps(make_spec())


@pytest.mark.parametrize("name", MESHES)
def test_a_mesh_changes_nothing_but_speed(name, alone):
    losses, norms, params = run_steps(MESHES[name])
    expected_losses, expected_norms, expected_params = alone
    np.testing.assert_allclose(losses, expected_losses, rtol=0, atol=1e-4)
    np.testing.assert_allclose(norms, expected_norms, rtol=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-4), params, expected_params)


def test_the_loss_moves_enough_for_the_comparison_to_mean_something(alone):
    losses, _, _ = alone
    assert max(losses) - min(losses) > 0.05


@pytest.mark.parametrize("accumulation", [2, 4])
def test_accumulation_changes_nothing(accumulation, alone):
    spec = make_spec(
        {"data": 2}, batch=Batch(sequence_length=32, global_batch_size=16, micro_batch_size=8 // accumulation)
    )
    assert spec.accumulation_steps == accumulation
    losses, _, params = run_steps(spec)
    np.testing.assert_allclose(losses, alone[0], rtol=0, atol=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-4), params, alone[2])


@pytest.mark.parametrize(
    "execution",
    [
        Execution(remat="none", scan_layers=True),
        Execution(remat="none", scan_layers=False),
        Execution(remat="full", scan_layers=False),
        Execution(remat="minimal", scan_layers=True),
        Execution(remat="minimal_with_context", scan_layers=False),
        Execution(remat="save_qkv_proj", attention="reference"),
    ],
    ids=lambda e: f"{e.remat}-{'scan' if e.scan_layers else 'unrolled'}-{e.attention}",
)
def test_remat_layers_and_attention_change_nothing(execution, alone):
    losses, _, _ = run_steps(make_spec({"fsdp": 2, "tensor": 2}, execution=execution))
    np.testing.assert_allclose(losses, alone[0], rtol=0, atol=1e-4)


def test_tied_embeddings_over_a_mesh():
    tied = replace(TINY, tied_embeddings=True)
    expected = run_steps(make_spec(model=tied))
    losses, _, params = run_steps(make_spec({"fsdp": 2, "tensor": 4}, model=tied))
    np.testing.assert_allclose(losses, expected[0], rtol=0, atol=1e-4)
    assert "head" not in params


def test_bfloat16_follows_float32():
    losses, _, _ = run_steps(make_spec({"fsdp": 4, "tensor": 2}, precision=Precision(compute_dtype="bfloat16")))
    expected, _, _ = run_steps(make_spec())
    np.testing.assert_allclose(losses, expected, rtol=0, atol=2e-2)


def test_bfloat16_parameters_stay_bfloat16():
    precision = Precision(compute_dtype="bfloat16", params_dtype="bfloat16", optimizer_dtype="bfloat16")
    losses, _, params = run_steps(make_spec({"data": 2, "fsdp": 2}, precision=precision))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {"bfloat16"}
    assert np.all(np.isfinite(losses))


# --- which collectives a strategy costs -------------------------------------------------------------------------------


def collectives(spec) -> dict[str, int]:
    """Kind → number of collective instructions in the compiled step, zeros left out."""
    mesh = make_mesh(spec, jax.devices()[: spec.topology.num_devices])
    trainer = make_trainer(spec, mesh)
    source = RandomSource(spec.model.vocab_size, spec.batch.sequence_length)
    batch = make_batch(source, 0, trainer.batch_shape, trainer.batch_shardings)
    text = trainer.step.lower(jax.eval_shape(trainer.init), batch).compile().as_text()
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")
    counts = {kind: len(re.findall(rf" {kind}(?:-start)?\(", text)) for kind in kinds}
    return {kind: count for kind, count in counts.items() if count}


def test_one_device_does_not_communicate():
    assert collectives(make_spec()) == {}


def test_data_parallelism_only_reduces():
    assert set(collectives(MESHES["dp"])) == {"all-reduce"}


def test_zero1_scatters_gradients_and_gathers_parameters():
    counts = collectives(MESHES["zero1"])
    matrices = 9  # embedding, head and the seven stacked ones
    assert counts["reduce-scatter"] <= matrices
    assert counts["all-gather"] <= matrices
    assert counts["all-reduce"] <= 6  # norms' gradients, loss, weights, gradient norm


def test_fsdp_gathers_each_matrix_forward_and_backward_and_scatters_its_gradient():
    counts = collectives(MESHES["fsdp"])
    # per scanned layer 7 forward, 7 in the recomputation, 7 for the gradients of the inputs; then embedding and head
    assert 16 <= counts["all-gather"] <= 3 * 7 + 2
    assert counts["reduce-scatter"] == 9
    assert "collective-permute" not in counts


def test_tensor_parallelism_reduces_activations_and_gathers_no_weight():
    counts = collectives(MESHES["tp"])
    assert set(counts) == {"all-reduce"}


def test_sequence_parallelism_replaces_reductions_of_activations():
    counts = collectives(MESHES["tp+sp"])
    assert counts["all-gather"] >= 4
    assert counts["reduce-scatter"] >= 4


# --- the mesh itself --------------------------------------------------------------------------------------------------


def test_the_network_is_the_outer_part_of_every_axis():
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


def test_a_mesh_that_does_not_fit_names_both_numbers():
    with pytest.raises(ValueError, match="needs 4 devices, but there are 8"):
        make_mesh(make_spec({"fsdp": 4}), jax.devices())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (make_spec({"tensor": 8}), "num_kv_heads = 4 cannot be split over tensor = 8"),
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
        (make_spec({"context": 2}), "no context parallelism, but the mesh asks for 2"),
        (make_spec({"pipeline": 2}), "no pipeline parallelism, but the mesh asks for 2"),
    ],
)
def test_what_a_mesh_cannot_split_is_named_with_both_numbers(spec, message):
    with pytest.raises(ValueError, match=message):
        make_trainer(spec, make_mesh(spec, jax.devices()[: spec.topology.num_devices]))


def test_a_dimension_that_does_not_divide_is_named():
    spec = make_spec({"fsdp": 8}, model=replace(TINY, hidden_dim=60))
    with pytest.raises(ValueError, match=r"parameter embedding: embed = 60 cannot be split over fsdp = 8"):
        make_trainer(spec, make_mesh(spec))
