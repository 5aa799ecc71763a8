"""AdamW, schedule and clipping against PyTorch and optax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from seatrial.spec import Optimizer, Precision
from seatrial.train.data import make_batch
from seatrial.train.mesh import make_mesh
from seatrial.train.optimizer import Now, adamw, clip_scale
from seatrial.train.schedules import learning_rate
from seatrial.train.step import make_trainer

from .conftest import RandomSource, make_spec, run_steps


@pytest.mark.parametrize("decay", [True, False])
def test_twenty_steps_equal_torch(decay, rng):
    optimizer = Optimizer(learning_rate=3e-3, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1)
    start = rng.normal(size=(7, 5)).astype(np.float32)
    gradients = rng.normal(size=(20, 7, 5)).astype(np.float32) * np.logspace(-6, 1, 20)[:, None, None].astype(
        np.float32
    )

    theirs = torch.nn.Parameter(torch.tensor(start))
    reference = torch.optim.AdamW([theirs], lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1 if decay else 0.0)
    p, slots = jnp.asarray(start), {"m": jnp.zeros((7, 5)), "v": jnp.zeros((7, 5))}
    for step, gradient in enumerate(gradients):
        theirs.grad = torch.tensor(gradient)
        reference.step()
        now = Now(step=jnp.int32(step), rate=jnp.float32(3e-3))
        p, slots = adamw(p, jnp.asarray(gradient), slots, now, 0.1 if decay else 0.0, optimizer)
        np.testing.assert_allclose(np.asarray(p), theirs.detach().numpy(), rtol=2e-6, atol=2e-7)


def test_parameters_and_moments_keep_their_own_formats():
    precision = Precision(compute_dtype="float32", params_dtype="float32", optimizer_dtype="bfloat16")
    spec = make_spec({"data": 2}, precision=precision, zero1=True)
    trainer = make_trainer(spec, make_mesh(spec, jax.devices()[:2]))
    state = trainer.init()
    batch = make_batch(RandomSource(128, 32), 0, trainer.batch_shape, trainer.batch_shardings)
    state, _ = trainer.step(state, batch)
    assert {x.dtype.name for x in jax.tree.leaves(state["params"])} == {"float32"}
    assert {x.dtype.name for x in jax.tree.leaves(state["slots"])} == {"bfloat16"}


@pytest.mark.parametrize(
    ("warmup", "decay_steps", "total"), [(0, None, 50), (5, None, 50), (10, 30, 50), (50, None, 50)]
)
def test_the_schedule_equals_optax(warmup, decay_steps, total):
    optimizer = Optimizer(
        learning_rate=2e-4, warmup_steps=warmup, decay_steps=decay_steps, final_learning_rate_fraction=0.1
    )
    length = max(decay_steps or total, warmup + 1)
    reference = optax.warmup_cosine_decay_schedule(
        init_value=0.0, peak_value=2e-4, warmup_steps=warmup, decay_steps=length, end_value=2e-5
    )
    ours = [float(learning_rate(jnp.int32(step), optimizer, total)) for step in range(total + 5)]
    np.testing.assert_allclose(ours, [float(reference(step)) for step in range(total + 5)], rtol=1e-5, atol=1e-12)


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
    slots = {"m": jnp.zeros(2), "v": jnp.zeros(2)}
    now = Now(step=jnp.int32(0), rate=jnp.float32(0.1))
    p, _ = adamw(jnp.ones(2), jnp.array([jnp.nan, 1.0]), slots, now, 0.0, Optimizer())
    assert jnp.isnan(p[0])
    assert jnp.isfinite(p[1])


def test_norms_decay_only_where_the_optimizer_asks_for_it():
    runs = {}
    for decay_norms in (False, True):
        optimizer = Optimizer(learning_rate=1e-2, warmup_steps=0, weight_decay=0.5, decay_norms=decay_norms)
        runs[decay_norms] = run_steps(make_spec(optimizer=optimizer), steps=1)[2]
    changed = jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), runs[False], runs[True])
    seen = set()
    for path, difference in jax.tree_util.tree_leaves_with_path(changed):
        name = jax.tree_util.keystr(path)
        expected = 1e-2 * 0.5 if "norm" in name else 0.0  # a norm's scale begins at 1
        np.testing.assert_allclose(difference, expected, rtol=0, atol=1e-6, err_msg=name)
        seen.add(expected)
    assert seen == {0.0, 0.005}
