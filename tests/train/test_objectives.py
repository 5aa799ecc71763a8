"""The output head and the objectives against PyTorch in double precision, alone and over meshes."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

from seatrial.spec import Batch, Objective, Optimizer, RunSpec
from seatrial.train.data import make_batch, make_sources
from seatrial.train.dpo_reference import Referenced, with_reference
from seatrial.train.mesh import make_mesh
from seatrial.train.objectives import OBJECTIVES, Head, cross_entropy, token_log_probabilities
from seatrial.train.precision import PRODUCTS
from seatrial.train.sharding import Placement, Rules
from seatrial.train.trainer import make_trainer
from tests.helpers.trainer import TINY, begun, make_spec

ALONE = Placement(rest=((), ()), compute=((), ()), optimizer=((), ()))
NO_MESH = Rules(axes={}, optimizer={}, boundary="alone", partial=())
HEAD = Head(placement=ALONE, rules=NO_MESH, products=PRODUCTS["cpu"], tied=False)
R, T, D, V = 6, 20, 16, 50


@pytest.fixture
def batch(rng):
    """Hidden states, head and batch fields of R sequences, each an answer of another length behind a prompt."""
    begins, ends = rng.integers(1, 8, R), rng.integers(12, T + 1, R)
    places = np.arange(T)
    return {
        "h": rng.normal(size=(R * T, D)),
        "w": 0.3 * rng.normal(size=(D, V)),
        "targets": rng.integers(0, V, R * T),
        "weights": ((places >= begins[:, None]) & (places < ends[:, None])).astype(float).reshape(-1),
        "reference": np.where(places == 0, -20 - 5 * rng.random((R, 1)), 0.0).reshape(-1),
        "rows": np.repeat(np.arange(R), T),
    }


def torch_log_probabilities(batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """h and w as leaves, and the log-probability of every target [R, T]."""
    h, w = (torch.tensor(batch[name], requires_grad=True) for name in ("h", "w"))
    logp = torch.log_softmax(h @ w, -1).gather(1, torch.tensor(batch["targets"])[:, None])
    return h, w, logp.reshape(R, T)


def torch_dpo(logp, batch, beta) -> tuple[torch.Tensor, torch.Tensor]:
    weights, reference = (torch.tensor(batch[name]).reshape(R, T) for name in ("weights", "reference"))
    rewards = beta * ((weights * logp).sum(1) - reference.sum(1))
    return -functional.logsigmoid(rewards[::2] - rewards[1::2]).sum(), rewards


def torch_orpo(logp, batch, beta) -> tuple[torch.Tensor, torch.Tensor]:
    weights = torch.tensor(batch["weights"]).reshape(R, T)
    mean = (weights * logp).sum(1) / weights.sum(1)
    chosen, rejected = mean[::2], mean[1::2]
    log_odds = (chosen - rejected) - (torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected)))
    return (-chosen - beta * functional.logsigmoid(log_odds)).sum(), beta * mean


@pytest.mark.parametrize("tied", [False, True])
def test_a_head_in_bfloat16_learns_what_it_would_in_float32(tied, rng):
    """XLA's products of bfloat16 for CPUs are not all there are: a head that is tied must not ask for another."""
    h, w = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((256, 128), (512, 128)))
    targets, head = jnp.asarray(rng.integers(0, 512, 256)), replace(HEAD, tied=tied)

    @jax.jit
    def learnt(h, w):
        return jax.grad(cross_entropy, argnums=1)(h, w if tied else w.T, targets, jnp.ones(256), head)

    exact = learnt(h, w)
    np.testing.assert_allclose(learnt(h.astype(jnp.bfloat16), w), exact, atol=0.02 * float(jnp.abs(exact).max()))


@pytest.mark.parametrize(("kind", "reference"), [("dpo", torch_dpo), ("orpo", torch_orpo)])
def test_preferences_equal_torch(kind, reference, batch):
    settings = Objective(kind=kind, beta=0.3)
    flat = {name: jnp.asarray(batch[name]) for name in ("targets", "weights", "reference", "rows")}
    flat = {name: x.astype(jnp.int32 if x.dtype.kind == "i" else jnp.float32) for name, x in flat.items()}

    @jax.jit
    @jax.value_and_grad
    def ours(operands):
        return OBJECTIVES[kind].loss(*operands, flat, R, HEAD, settings)[0]

    operands = tuple(jnp.asarray(batch[name], jnp.float32) for name in ("h", "w"))
    loss, gradients = ours(operands)
    h, w, logp = torch_log_probabilities(batch)
    expected, rewards = reference(logp, batch, 0.3)
    expected.backward()
    np.testing.assert_allclose(loss, expected.item(), rtol=2e-6)
    for gradient, leaf in zip(gradients, (h, w), strict=True):
        theirs = leaf.grad.numpy()
        np.testing.assert_allclose(gradient, theirs, rtol=0, atol=3e-6 * np.abs(theirs).max())

    told = OBJECTIVES[kind].loss(*operands, flat, R, HEAD, settings)[1]
    chosen, rejected = rewards[::2].detach(), rewards[1::2].detach()
    expected_told = {
        "chosen_rewards": chosen,
        "rejected_rewards": rejected,
        "reward_margins": chosen - rejected,
        "reward_accuracies": chosen > rejected,
    }
    assert set(told) == set(expected_told)
    for name, value in told.items():
        np.testing.assert_allclose(value, float(expected_told[name].sum()), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_an_answer_that_is_certain_has_finite_odds():
    w = jnp.eye(D, V) * 100
    flat = {
        "targets": jnp.array([3, 3, 5, 5]), "weights": jnp.ones(4), "rows": jnp.array([0, 0, 1, 1]),
    }  # fmt: skip
    h = jnp.eye(D)[jnp.array([3, 3, 3, 5])]
    loss, gradients = jax.value_and_grad(
        lambda h, w: OBJECTIVES["orpo"].loss(h, w, flat, 2, HEAD, Objective(kind="orpo"))[0], (0, 1)
    )(h, w)
    assert np.isfinite(loss)
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_log_probabilities_and_cross_entropy_are_the_same_operation(batch):
    h, w = (jnp.asarray(batch[name], jnp.float32) for name in ("h", "w"))
    targets, weights = jnp.asarray(batch["targets"]), jnp.asarray(batch["weights"], jnp.float32)

    def summed(h, w):
        return -jnp.sum(weights * token_log_probabilities(h, w, targets, HEAD))

    ours = jax.value_and_grad(lambda h, w: cross_entropy(h, w, targets, weights, HEAD), (0, 1))(h, w)
    theirs = jax.value_and_grad(summed, (0, 1))(h, w)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), ours, theirs)


@pytest.mark.parametrize("kind", ["sft", "dpo", "orpo"])
def test_padding_of_the_vocabulary_is_no_word(kind, batch):
    """With columns that would be likely words, values and gradients are those without; theirs are 0."""
    fields = {name: jnp.asarray(batch[name]) for name in ("targets", "weights", "reference", "rows")}
    h, w = (jnp.asarray(batch[name], jnp.float32) for name in ("h", "w"))
    padded = jnp.concatenate([w, jnp.full((D, 6), 3.0)], axis=1)

    def loss(head):
        return jax.value_and_grad(
            lambda h, w: OBJECTIVES[kind].loss(h, w, fields, R, head, Objective(kind=kind))[0], (0, 1)
        )

    expected, (dh, dw) = loss(HEAD)(h, w)
    value, (dh_padded, dw_padded) = loss(replace(HEAD, vocab_size=V))(h, padded)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(dh_padded, dh, rtol=0, atol=1e-5)
    np.testing.assert_allclose(dw_padded[:, :V], dw, rtol=0, atol=1e-5)
    assert not np.any(dw_padded[:, V:])


# --- whole runs -------------------------------------------------------------------------------------------------------


def preferences(kind: str, mesh: dict[str, int] | None = None, **changes) -> RunSpec:
    """Eight pairs of random answers a step, in two micro-batches."""
    replicas = (mesh or {}).get("data", 1)
    return make_spec(
        mesh,
        objective=Objective(kind=kind, beta=0.5),
        model=replace(TINY, num_layers=2),
        batch=Batch(sequence_length=32, global_batch_size=8, micro_batch_size=4 // replicas),
        optimizer=Optimizer(learning_rate=1e-2, warmup_steps=0),
        **changes,
    )


def run(spec: RunSpec, folder) -> tuple[list[dict[str, float]], dict]:
    """The numbers of three steps, and the final parameters."""
    trainer = make_trainer(spec, make_mesh(spec, jax.devices()[: spec.topology.num_devices]))
    state = begun(spec, trainer)
    sources = make_sources(spec)
    if spec.objective.kind == "dpo":
        sources = with_reference(
            trainer, sources, (16, 0), folder / "reference.npz", lambda: state["params"], resumed=False
        )
    told = []
    for number in range(3):
        batch = make_batch(sources.train, 16 * number, trainer.batch_shape, trainer.batch_shardings)
        state, numbers = trainer.step(state, batch)
        told.append({name: float(value) for name, value in numbers.items()})
    return told, jax.tree.map(np.asarray, state["params"])


@pytest.mark.parametrize(
    ("kind", "mesh", "changes"),
    [
        pytest.param("dpo", {"pipeline": 2, "context": 2, "tensor": 2}, {}, marks=pytest.mark.slow),
        pytest.param(
            "orpo", {"data": 2, "context": 2, "tensor": 2}, {"sequence_parallel": True}, marks=pytest.mark.slow
        ),
    ],
)
def test_a_mesh_changes_nothing_for_preferences(kind, mesh, changes, tmp_path):
    expected, params = run(preferences(kind), tmp_path)
    told, over_mesh = run(preferences(kind, mesh, **changes), tmp_path / "mesh")
    for ours, theirs in zip(told, expected, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            np.testing.assert_allclose(value, theirs[name], rtol=2e-4, atol=2e-4, err_msg=name)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-3), over_mesh, params)
    assert expected[2]["loss"] < expected[0]["loss"] - 0.05
    if kind == "dpo":  # training begins with the reference model itself
        np.testing.assert_allclose(expected[0]["loss"], np.log(2), rtol=1e-5)
        np.testing.assert_allclose(expected[0]["reward_margins"], 0.0, atol=1e-4)
    assert expected[2]["reward_accuracies"] > 0.5


def test_reference_values_are_kept_with_the_weights_that_they_are_of(tmp_path):
    spec = preferences("dpo")
    trainer = make_trainer(spec, make_mesh(spec, jax.devices()[:1]))
    params, path, sources = begun(spec, trainer)["params"], tmp_path / "reference.npz", make_sources(spec)

    def values(weights, resumed=False) -> np.ndarray:
        made = with_reference(trainer, sources, (16, 0), path, weights, resumed=resumed)
        return made.train.examples(np.arange(16))["reference"]

    def no_weights():
        raise AssertionError("the file has them all")

    first = values(lambda: params)
    batch = make_batch(Referenced(sources.train, None), 0, trainer.batch_shape, trainer.batch_shardings)
    np.testing.assert_allclose(first[:, 0], np.asarray(trainer.answers(params, batch)).reshape(-1), rtol=1e-6)
    assert not first[:, 1:].any()
    assert (first[:, 0] < -10).all()

    np.testing.assert_array_equal(values(no_weights, resumed=True), first)
    before = path.stat().st_mtime_ns
    np.testing.assert_array_equal(values(lambda: params), first)
    assert path.stat().st_mtime_ns == before
    changed = values(lambda: jax.tree.map(lambda x: 1.5 * x, params))
    assert (np.abs(changed[:, 0] - first[:, 0]) > 1e-3).all()
