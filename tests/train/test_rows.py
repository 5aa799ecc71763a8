"""Every row of a table equals its reference row in value: matrix products, and the fused head."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seatrial.train.objectives import Head, cross_entropy
from seatrial.train.precision import PRODUCTS, linear
from seatrial.train.sharding import Placement, Rules

TOLERANCE = {jnp.float32: 2e-5, jnp.bfloat16: 3e-2}
ALONE = Placement(rest=((), ()), compute=((), ()), optimizer=((), ()))
NO_MESH = Rules(axes={}, optimizer={}, boundary="alone", partial=())


def assert_close(ours, theirs, dtype) -> None:
    scale = float(jnp.abs(theirs.astype(jnp.float32)).max())
    error = float(jnp.abs(ours.astype(jnp.float32) - theirs.astype(jnp.float32)).max())
    assert error <= TOLERANCE[dtype] * scale


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["f32", "bf16"])
@pytest.mark.parametrize("row", sorted(PRODUCTS))
def test_linear_equals_plain_autodiff(row, dtype, rng):
    x = jnp.asarray(rng.normal(size=(2, 24, 48)), dtype)
    w = jnp.asarray(rng.normal(size=(48, 40)), jnp.float32)
    g = jnp.asarray(rng.normal(size=(2, 24, 40)), dtype)
    y, vjp = jax.vjp(lambda x, w: linear(x, w, ALONE, PRODUCTS[row]), x, w)
    expected, expected_vjp = jax.vjp(lambda x, w: x.astype(jnp.float32) @ w, x.astype(jnp.float32), w)
    assert y.dtype == dtype
    assert_close(y, expected, dtype)
    for ours, theirs in zip(vjp(g), expected_vjp(g.astype(jnp.float32)), strict=True):
        assert_close(ours, theirs, dtype)
    assert vjp(g)[1].dtype == jnp.float32


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("N", [64, 2048, 1021])
def test_cross_entropy_equals_plain_autodiff(N, tied, rng):
    h = jnp.asarray(rng.normal(size=(N, 32)), jnp.float32)
    w = jnp.asarray(rng.normal(size=(80, 32) if tied else (32, 80)), jnp.float32)
    targets = jnp.asarray(rng.integers(0, 80, N))
    weights = jnp.asarray(rng.random(N), jnp.float32)
    head = Head(placement=ALONE, rules=NO_MESH, products=PRODUCTS["reference"], tied=tied)

    def plain(h, w):
        logits = h @ (w.T if tied else w)
        return jnp.sum(weights * -jax.nn.log_softmax(logits)[jnp.arange(N), targets])

    loss, gradients = jax.value_and_grad(lambda h, w: 0.5 * cross_entropy(h, w, targets, weights, head), (0, 1))(h, w)
    expected, expected_gradients = jax.value_and_grad(lambda h, w: 0.5 * plain(h, w), (0, 1))(h, w)
    np.testing.assert_allclose(float(loss), float(expected), rtol=1e-5)
    np.testing.assert_allclose(float(cross_entropy(h, w, targets, weights, head)), 2 * float(expected), rtol=1e-5)
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        assert_close(ours, theirs, jnp.float32)


def test_logits_of_all_tokens_are_never_held():
    head = Head(placement=ALONE, rules=NO_MESH, products=PRODUCTS["reference"], tied=False)
    N, D, V = 16_384, 16, 8192

    def step(h, w, targets, weights):
        return jax.grad(lambda h, w: cross_entropy(h, w, targets, weights, head), (0, 1))(h, w)

    shapes = [(N, D), (D, V), (N,), (N,)]
    dtypes = [jnp.float32, jnp.float32, jnp.int32, jnp.float32]
    arguments = [jax.ShapeDtypeStruct(s, d) for s, d in zip(shapes, dtypes, strict=True)]
    memory = jax.jit(step).lower(*arguments).compile().memory_analysis()
    assert memory.temp_size_in_bytes < N * V * 4 / 3
