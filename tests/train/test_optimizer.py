"""Every optimizer against torch, Hugging Face, numbers of the original class or the paper's formula; clipping."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import AxisType, PartitionSpec
from transformers.optimization import Adafactor

from seatrial.estimate import memory
from seatrial.spec import Algorithm, Optimizer, Precision
from seatrial.train.data.examples import FIELDS
from seatrial.train.mesh import make_mesh
from seatrial.train.optimizer import OPTIMIZERS, Now, Tensor, apart_on, clip_scale, make_optimizer
from seatrial.train.trainer import make_trainer
from tests.helpers.trainer import TINY, make_spec, run_steps

RATE = 3e-3


class Novograd(torch.optim.Optimizer):
    """arXiv 1905.11286, algorithm 1, without averaging of gradients; one second moment per tensor."""

    def __init__(self, params, lr, betas, eps, weight_decay):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state, square = self.state[p], float(p.grad.double().norm()) ** 2
                b1, b2 = group["betas"]
                state["v"] = b2 * state["v"] + (1 - b2) * square if state else square
                step = p.grad / (state["v"] ** 0.5 + group["eps"]) + group["weight_decay"] * p
                state["m"] = b1 * state.get("m", 0) + step
                p -= group["lr"] * state["m"]


def unstacked(names: tuple[str, ...]) -> tuple[int, ...]:
    """The dimensions of one tensor, of a parameter whose dimensions have these names."""
    return tuple(dim for dim, name in enumerate(names) if name != "layers")


BETAS = {"lr": RATE, "betas": (0.9, 0.95), "eps": 1e-8}
DECAY = 0.1
# Name of a case → settings, and what they are to equal.
CASES = {
    "adamw": (Optimizer(), lambda p: torch.optim.AdamW(p, weight_decay=DECAY, **BETAS)),
    "adam": (Optimizer(algorithm="adam"), lambda p: torch.optim.Adam(p, weight_decay=DECAY, **BETAS)),
    "adamax": (Optimizer(algorithm="adamax"), lambda p: torch.optim.Adamax(p, weight_decay=DECAY, **BETAS)),
    "sgd": (Optimizer(algorithm="sgd"), lambda p: torch.optim.SGD(p, lr=RATE, weight_decay=DECAY)),
    "sgd, momentum": (
        Optimizer(algorithm="sgd", momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=RATE, momentum=0.9, weight_decay=DECAY),
    ),
    "rmsprop": (
        Optimizer(algorithm="rmsprop", beta2=0.99),
        lambda p: torch.optim.RMSprop(p, lr=RATE, weight_decay=DECAY),
    ),
    "rmsprop, momentum": (
        Optimizer(algorithm="rmsprop", beta2=0.99, momentum=0.9),
        lambda p: torch.optim.RMSprop(p, lr=RATE, momentum=0.9, weight_decay=DECAY),
    ),
    "adagrad": (
        Optimizer(algorithm="adagrad", epsilon=1e-10),
        lambda p: torch.optim.Adagrad(p, lr=RATE, weight_decay=DECAY),
    ),
    "adadelta": (
        Optimizer(algorithm="adadelta", beta2=0.9, epsilon=1e-6),
        lambda p: torch.optim.Adadelta(p, lr=RATE, weight_decay=DECAY),
    ),
    "rprop": (Optimizer(algorithm="rprop"), lambda p: torch.optim.Rprop(p, lr=RATE)),
    "novograd": (Optimizer(algorithm="novograd"), lambda p: Novograd(p, weight_decay=DECAY, **BETAS)),
    "adafactor": (
        Optimizer(algorithm="adafactor"),
        lambda p: Adafactor(p, lr=RATE, weight_decay=DECAY, relative_step=False, scale_parameter=True),
    ),
}
SHAPES = {("embed", "ffn"): (7, 5), ("layers", "embed", "ffn"): (3, 4, 6), ("norm",): (9,), ("layers", "norm"): (3, 5)}


def ours(settings, names, start, gradients, rates, decay) -> np.ndarray:
    """The parameter after each step."""
    row, dims = make_optimizer(settings), unstacked(names)
    tensor = Tensor(shape=start.shape, split=((),) * start.ndim, dims=dims)
    slots = {
        name: jnp.zeros([1 if dim in ones(dims) else size for dim, size in enumerate(start.shape)])
        for name, ones in row.slots.items()
    }

    def step(state, inputs):
        gradient, number, rate = inputs
        now = Now(step=number, rate=rate, decay=decay, tensor=tensor)
        p, slots = row.update(state[0], gradient, state[1], now, settings)
        return (p, slots), p

    inputs = (jnp.asarray(gradients), jnp.arange(len(rates)), jnp.asarray(rates, jnp.float32))
    return np.asarray(jax.lax.scan(step, (jnp.asarray(start), slots), inputs)[1])


@pytest.mark.parametrize("case", CASES)
def test_twenty_steps_equal_the_reference(case, rng):
    settings, make = CASES[case]
    rates = RATE * np.linspace(1.0, 0.5, 20)
    for names, shape in SHAPES.items():
        start = rng.normal(size=shape).astype(np.float32)
        sizes = np.logspace(-3, 1, 20).reshape(20, *[1] * len(shape))
        gradients = (rng.normal(size=(20, *shape)) * sizes).astype(np.float32)
        # the reference sees each of the stacked layers as a tensor of its own
        parts = shape[:1] if names[0] == "layers" else (1,)
        whole = torch.tensor(start).reshape(*parts, *(shape[dim] for dim in unstacked(names)))
        theirs = [torch.nn.Parameter(part.clone()) for part in whole]
        reference = make(theirs)
        for p, gradient, rate in zip(
            ours(settings, names, start, gradients, rates, DECAY), torch.tensor(gradients), rates, strict=True
        ):
            for parameter, part in zip(theirs, gradient.reshape(len(theirs), *theirs[0].shape), strict=True):
                parameter.grad = part.clone()
            reference.param_groups[0]["lr"] = rate
            reference.step()
            expected = torch.stack([parameter.detach() for parameter in theirs]).reshape(shape)
            np.testing.assert_allclose(p, expected, rtol=3e-6, atol=1e-6, err_msg=str(names))


def test_adamw_fp32_is_nxds():
    case = json.loads((Path(__file__).parent / "reference" / "adamw_nxd.json").read_text())
    settings = Optimizer(algorithm="adamw_fp32", beta1=case["betas"][0], beta2=case["betas"][1], epsilon=1e-6)
    start, gradients = np.array(case["p0"], np.float32), np.array(case["grads"], np.float32)
    steps = ours(settings, ("norm",), start, gradients, [case["lr"]] * len(gradients), case["weight_decay"])
    np.testing.assert_allclose(steps, case["nxd_adamw_fp32OptState_eps1e-6"], rtol=2e-6)


def test_every_algorithm_of_the_spec_has_a_row():
    assert set(OPTIMIZERS) == set(get_args(Algorithm))
    assert {*(settings.algorithm for settings, _ in CASES.values()), "adamw_fp32"} == set(OPTIMIZERS)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("algorithm", sorted({*OPTIMIZERS} - {"novograd", "adafactor"}))
def test_as_many_moments_as_there_are_slots_are_counted_as_memory(algorithm, momentum):
    """Of the two others, slots are smaller than the parameter."""
    settings = Optimizer(algorithm=algorithm, momentum=momentum)
    assert memory.moments(settings) == len(make_optimizer(settings).slots)


@pytest.mark.parametrize("algorithm", ["novograd", "adafactor"])
@pytest.mark.parametrize(
    ("names", "split"),
    [
        (("layers", "embed", "ffn"), (("pipeline",), ("fsdp",), ("tensor",))),
        (("embed", "ffn"), (("fsdp", "tensor"), ())),
        (("norm",), (("fsdp",),)),
    ],
    ids=["stacked", "matrix", "vector"],
)
def test_statistics_of_a_tensor_are_those_of_all_its_shards(algorithm, names, split, rng):
    settings = Optimizer(algorithm=algorithm)
    row, dims, shape = make_optimizer(settings), unstacked(names), (4, 8, 6)[-len(names) :]
    start = rng.normal(size=shape).astype(np.float32)
    gradients = rng.normal(size=(2, *shape)).astype(np.float32)
    mesh = jax.make_mesh((2, 2, 2), ("pipeline", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)

    def steps(p, gradients):
        tensor = Tensor(shape=shape, split=split, dims=dims)
        slots = {
            name: jnp.zeros([1 if dim in ones(dims) else size for dim, size in enumerate(p.shape)])
            for name, ones in row.slots.items()
        }
        for number, gradient in enumerate(gradients):
            now = Now(step=jnp.int32(number), rate=jnp.float32(RATE), decay=DECAY, tensor=tensor)
            p, slots = row.update(p, gradient, slots, now, settings)
        return p

    where = PartitionSpec(*(axes or None for axes in split))
    over_mesh = jax.shard_map(
        steps, mesh=mesh, in_specs=(where, PartitionSpec(None, *where)), out_specs=where, check_vma=False
    )
    expected = ours(settings, names, start, gradients, np.full(2, RATE), DECAY)[-1]
    np.testing.assert_allclose(jax.jit(over_mesh)(start, gradients), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_a_mesh_changes_nothing_for_slots_of_another_shape():
    changes = {
        "optimizer": Optimizer(algorithm="adafactor", learning_rate=1e-3), "model": replace(TINY, num_layers=1)
    }  # fmt: skip
    expected = run_steps(make_spec(**changes), 2)
    over_mesh = run_steps(make_spec({"data": 2, "fsdp": 2, "tensor": 2}, zero1=True, **changes), 2)
    np.testing.assert_allclose(over_mesh[0], expected[0], rtol=0, atol=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-4), over_mesh[2], expected[2])


def test_parameters_and_moments_keep_their_own_formats():
    precision = Precision(compute_dtype="float32", params_dtype="float32", optimizer_dtype="bfloat16")
    spec = make_spec({"data": 2}, precision=precision, zero1=True)
    trainer = make_trainer(spec, make_mesh(spec, jax.devices()[:2]))
    batch = {name: jax.ShapeDtypeStruct(trainer.batch_shape, FIELDS[name]) for name in trainer.batch_shardings}
    state, _ = jax.eval_shape(trainer.step, jax.eval_shape(trainer.init), batch)
    assert {x.dtype.name for x in jax.tree.leaves(state["params"])} == {"float32"}
    assert {x.dtype.name for x in jax.tree.leaves(state["slots"])} == {"bfloat16"}


def test_clipping_equals_torch(rng):
    gradients = [rng.normal(size=shape).astype(np.float32) for shape in ((3, 4), (5,))]
    parameters = [torch.nn.Parameter(torch.zeros(g.shape)) for g in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = torch.tensor(gradient)
    norm = torch.nn.utils.clip_grad_norm_(parameters, 0.7).item()
    scale = clip_scale(jnp.float32(norm), 0.7)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        np.testing.assert_allclose(np.asarray(scale * gradient), parameter.grad.numpy(), rtol=1e-5)
    assert float(clip_scale(jnp.float32(0.1), 0.7)) == 1.0
    assert float(clip_scale(jnp.float32(1e9), None)) == 1.0


def test_a_step_that_overflows_is_seen_not_hidden():
    after = ours(
        Optimizer(), ("norm",), np.ones(2, np.float32), np.array([[np.nan, 1.0]], np.float32), np.array([0.1]), 0.0
    )[0]
    assert np.isnan(after[0])
    assert np.isfinite(after[1])


@pytest.mark.slow
def test_norms_decay_only_where_the_optimizer_asks_for_it():
    runs = {}
    for decay_norms in (False, True):
        optimizer = Optimizer(learning_rate=1e-2, warmup_steps=0, weight_decay=0.5, decay_norms=decay_norms)
        runs[decay_norms] = run_steps(make_spec(optimizer=optimizer, model=replace(TINY, num_layers=1)), steps=1)[2]
    changed = jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), runs[False], runs[True])
    seen = set()
    for path, difference in jax.tree_util.tree_leaves_with_path(changed):
        name = jax.tree_util.keystr(path)
        expected = 1e-2 * 0.5 if "norm" in name else 0.0  # a norm's scale begins at 1
        np.testing.assert_allclose(difference, expected, rtol=0, atol=1e-6, err_msg=name)
        seen.add(expected)
    assert seen == {0.0, 0.005}


@pytest.mark.slow
def test_the_embedding_and_the_head_may_have_a_rate_of_their_own():
    """As if there were two runs: one of their rate, one of the others'."""
    rates = {"embedding_learning_rate": 5e-2, "embedding_final_learning_rate": 2e-2}
    settings = Optimizer(learning_rate=1e-3, clip_norm=None, final_learning_rate_fraction=0.5)
    theirs = replace(settings, learning_rate=5e-2, final_learning_rate_fraction=0.4)
    both, slow, fast = (
        run_steps(make_spec(optimizer=optimizer), steps=1)[2]
        for optimizer in (replace(settings, **rates), settings, theirs)
    )
    for name, part in both.items():
        same = fast if name in ("embedding", "head") else slow
        jax.tree.map(np.testing.assert_array_equal, part, same[name])


@pytest.mark.parametrize("name", sorted(OPTIMIZERS.keys() - {"adafactor"}))  # which has no slot of the parameter's size
def test_only_on_a_cpu_a_barrier_stands_between_slots_and_parameter(name):
    """XLA:CPU copies donated buffers without one; on a GPU it would be another kernel that reads the slots again."""
    row, shape = OPTIMIZERS[name], (4, 8)
    tensor = Tensor(shape=shape, split=((), ()), dims=(0, 1))

    def barriers(backend: str) -> int:
        def update(p, g, slots):
            now = Now(step=jnp.int32(1), rate=jnp.float32(0.1), decay=0.1, tensor=tensor, apart=apart_on(backend))
            return row.update(p, g, slots, now, Optimizer(algorithm=name))

        x = jnp.ones(shape)
        slots = {
            slot: jnp.ones([1 if dim in ones((0, 1)) else shape[dim] for dim in (0, 1)])
            for slot, ones in row.slots.items()
        }
        return str(jax.make_jaxpr(update)(x, x, slots)).count("optimization_barrier")

    assert barriers("cpu") >= 1
    assert barriers("cuda") == 0
