"""Attention in float64 numpy, from the formula, against every row and every way to split a sequence."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from seatrial.spec import Dropout, Execution, MeshShape, Parallelism, Precision
from seatrial.train import blocks
from seatrial.train.attention import make_attention
from seatrial.train.random import fold, make_key
from seatrial.train.sharding import make_rules
from seatrial.train.sight import kept
from tests.train.conftest import make_spec

TOLERANCE = {"float32": 2e-5, "bfloat16": 3e-2}
KEY = make_key(7)
# window, documents, dropout
PLAIN, WINDOW, PACKED, BOTH, DROPPED = (None, 1, 0.0), (11, 1, 0.0), (None, 3, 0.0), (11, 3, 0.0), (11, 3, 0.25)


def from_formula(q, k, v, g, segments, window, rate) -> tuple[np.ndarray, ...]:
    """Context and the gradients of q, k and v, for g the gradient of the context; heads of a group share keys."""
    q, k, v, g = (np.asarray(x, np.float64).transpose(0, 2, 1, 3) for x in (q, k, v, g))
    B, H, T, K = q.shape
    shared = H // k.shape[1]
    k, v = np.repeat(k, shared, axis=1), np.repeat(v, shared, axis=1)
    t, s = np.mgrid[:T, :T]
    seen = (s <= t) & (t - s < (window or T)) & (segments[:, None, :, None] == segments[:, None, None, :])
    scores = np.where(seen, q @ k.swapaxes(2, 3) / np.sqrt(K), -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    left = np.ones_like(weights)
    if rate:
        rows = jnp.arange(T)[:, None] * H + jnp.arange(H)[:, None, None]
        left = np.asarray(kept(fold(KEY, jnp.arange(B))[:, None, None, None], rows, jnp.arange(T), rate))
    of_weights = g @ v.swapaxes(2, 3) * left
    of_scores = weights * (of_weights - (weights * of_weights).sum(axis=-1, keepdims=True)) / np.sqrt(K)
    of_k, of_v = of_scores.swapaxes(2, 3) @ q, (weights * left).swapaxes(2, 3) @ g
    of_k, of_v = (x.reshape(B, H // shared, shared, T, K).sum(axis=2) for x in (of_k, of_v))
    return tuple(x.transpose(0, 2, 1, 3) for x in ((weights * left) @ v, of_scores @ k, of_k, of_v))


def operands(rng, T, H, G, documents, dtype="float32", B=2, K=16) -> tuple[list[jax.Array], np.ndarray]:
    arrays = [jnp.asarray(rng.normal(size=(B, T, heads, K)), dtype) for heads in (H, G, G, H)]
    return arrays, np.sort(rng.integers(0, documents, (B, T)), axis=1).astype(np.int32)


def spec_of(row, window, rate, H, mesh=None, strategy="all_gather", dtype="float32") -> Any:
    spec = make_spec(mesh)
    return make_spec(
        mesh,
        model=spec.model.__class__(**vars(spec.model) | {"sliding_window": window, "num_heads": H}),
        dropout=Dropout(attention=rate),
        execution=Execution(attention=row),
        precision=Precision(compute_dtype=dtype),
        parallelism=Parallelism(within_node=MeshShape(**(mesh or {})), context_strategy=strategy),
    )


def value_and_gradients(spec: Any, mesh: Mesh | None = None) -> Any:
    """(q, k, v, g, segments or None) → context, dq, dk, dv; over `mesh` split as the trainer splits them."""
    attention = make_attention(spec, make_rules(spec), "cpu")

    def of_device(q, k, v, g, segments, keys):
        context, vjp = jax.vjp(lambda *x: attention(*x, segments, keys), q, k, v)
        return context, *vjp(g)

    if mesh is None:
        return jax.jit(of_device)
    heads, tokens = PartitionSpec("data", "context", "tensor"), PartitionSpec("data", "context")
    places = (heads, heads, heads, heads, tokens, PartitionSpec("data"))
    return jax.jit(jax.shard_map(of_device, mesh=mesh, in_specs=places, out_specs=(heads,) * 4, check_vma=False))


def assert_near(ours, expected, dtype="float32") -> None:
    for name, a, b in zip(("context", "dq", "dk", "dv"), ours, expected, strict=True):
        error = np.abs(np.asarray(a, np.float64) - b).max()
        assert error <= TOLERANCE[dtype] * np.abs(b).max(), name


@pytest.fixture
def small_blocks(monkeypatch) -> None:
    """Blocks and chunks so small that short sequences have many."""
    monkeypatch.setattr(blocks, "MAX_CHUNK", 32)
    monkeypatch.setattr(blocks, "MAX_BLOCKS", 2)
    monkeypatch.setattr(blocks, "MIN_BLOCK", 8)


@pytest.mark.parametrize(
    ("row", "T", "H", "G", "pattern", "dtype"),
    [
        ("reference", 37, 4, 2, PLAIN, "float32"),
        ("reference", 40, 4, 1, DROPPED, "float32"),
        ("blocks", 37, 4, 1, PLAIN, "bfloat16"),
        ("blocks", 29, 4, 2, BOTH, "float32"),
        ("blocks", 32, 4, 4, WINDOW, "float32"),
        ("blocks", 31, 4, 2, DROPPED, "bfloat16"),
        ("blocks", 128, 4, 2, PLAIN, "float32"),  # from here on in chunks
        ("blocks", 96, 4, 1, PACKED, "float32"),
        ("blocks", 128, 4, 2, (70, 1, 0.0), "float32"),
        ("blocks", 96, 4, 2, DROPPED, "float32"),
    ],
)
def test_every_row_is_the_formula(row, T, H, G, pattern, dtype, rng, small_blocks):
    window, documents, rate = pattern
    (q, k, v, g), segments = operands(rng, T, H, G, documents, dtype)
    ours = value_and_gradients(spec_of(row, window, rate, H, dtype=dtype))(
        q, k, v, g, jnp.asarray(segments) if documents > 1 else None, fold(KEY, jnp.arange(2))
    )
    assert all(x.dtype == dtype for x in ours)
    assert_near(ours, from_formula(q, k, v, g, segments, window, rate), dtype)
