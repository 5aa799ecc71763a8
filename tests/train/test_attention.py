"""Attention in float64 numpy, from the formula, against every row and every way to split a sequence."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from seatrial.spec import Dropout, Execution, MeshShape, Parallelism, Precision
from seatrial.train import blockwise_attention
from seatrial.train.attention import choose, make_attention
from seatrial.train.masks import kept
from seatrial.train.model import hidden_states
from seatrial.train.params import declare, initialize
from seatrial.train.random import fold, make_key
from seatrial.train.sharding import make_rules
from seatrial.train.trainer import make_setup
from tests.helpers.trainer import TINY, make_spec

TOLERANCE = {"float32": 2e-5, "bfloat16": 3e-2}
KEY = make_key(7)
COLLECTIVES = ("all-gather", "reduce-scatter", "collective-permute", "all-reduce")
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
    return make_spec(
        mesh,
        model=replace(TINY, sliding_window=window, num_heads=H),
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
    monkeypatch.setattr(blockwise_attention, "MAX_CHUNK", 32)
    monkeypatch.setattr(blockwise_attention, "MAX_BLOCKS", 2)
    monkeypatch.setattr(blockwise_attention, "MIN_BLOCK", 8)


@pytest.mark.parametrize(
    ("row", "T", "H", "G", "pattern", "dtype"),
    [
        ("reference", 37, 4, 2, PLAIN, "float32"),
        ("reference", 40, 4, 1, DROPPED, "float32"),
        ("blocks", 37, 4, 1, PLAIN, "bfloat16"),
        ("blocks", 29, 4, 4, BOTH, "float32"),
        ("blocks", 31, 4, 2, DROPPED, "bfloat16"),
        ("blocks", 128, 4, 2, PLAIN, "float32"),  # from here on in chunks
        ("blocks", 128, 4, 2, (70, 1, 0.0), "float32"),
        ("blocks", 96, 4, 1, DROPPED, "float32"),
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


@pytest.mark.parametrize(
    ("strategy", "row", "mesh", "pattern"),
    [
        ("all_gather", "blocks", {"context": 2}, PLAIN),
        ("all_gather", "blocks", {"context": 8}, BOTH),
        ("all_gather", "reference", {"data": 2, "context": 2, "tensor": 2}, DROPPED),
        ("ring", "blocks", {"context": 8}, WINDOW),
        ("ring", "blocks", {"context": 4}, PACKED),
        ("ring", "blocks", {"data": 2, "context": 2, "tensor": 2}, DROPPED),
    ],
)
def test_a_split_sequence_is_the_whole_one(strategy, row, mesh, pattern, rng):
    window, documents, rate = pattern
    (q, k, v, g), segments = operands(rng, 64, 4, 2, documents)
    spec = spec_of(row, window, rate, 4, mesh, strategy)
    shape = MeshShape(**mesh).sizes
    devices = np.array(jax.devices()[: spec.parallelism.within_node.product]).reshape(tuple(shape.values()))
    arguments = (q, k, v, g, jnp.asarray(segments), fold(KEY, jnp.arange(2)))
    compiled = value_and_gradients(spec, Mesh(devices, tuple(shape))).lower(*arguments).compile()
    assert_near(compiled(*arguments), from_formula(q, k, v, g, segments, window, rate))
    sent = {name: len(re.findall(rf" {name}(?:-start)?\(", compiled.as_text())) for name in COLLECTIVES}
    if strategy == "all_gather":
        # keys, values and segments; the gradients of the first two
        assert sent == {"all-gather": 3, "reduce-scatter": 2, "collective-permute": 0, "all-reduce": 0}
    else:
        # keys, values, segments and the gradients of two of them, by as many devices as see anything; those go home
        stations = min(mesh["context"], 3 if window else 8)
        assert sent == {"all-gather": 0, "reduce-scatter": 0, "collective-permute": 5 * stations - 3, "all-reduce": 0}


@pytest.mark.parametrize(
    ("mesh", "strategy"),
    [({}, "all_gather"), pytest.param({"context": 2}, "ring", marks=pytest.mark.slow)],
)
def test_memory_grows_with_the_sequence_and_not_with_its_square(mesh, strategy, small_blocks):
    spec = spec_of("blocks", None, 0.0, 1, mesh, strategy)
    shape = MeshShape(**mesh).sizes
    devices = np.array(jax.devices()[: spec.parallelism.within_node.product]).reshape(tuple(shape.values()))

    def temporary_bytes(T: int) -> int:
        x = jax.ShapeDtypeStruct((1, T, 1, 16), jnp.float32)
        segments, keys = jax.ShapeDtypeStruct((1, T), jnp.int32), jax.ShapeDtypeStruct((1, 2), jnp.uint32)
        step = value_and_gradients(spec, Mesh(devices, tuple(shape)))
        return step.lower(x, x, x, x, segments, keys).compile().memory_analysis().temp_size_in_bytes

    assert temporary_bytes(2048) < 4.2 * temporary_bytes(512)


def test_packed_documents_are_as_if_alone(rng):
    """The whole model, positions restarting: a document's hidden states do not know what stands before it."""
    spec = make_spec()
    decoder = make_setup(spec, "cpu").decoder
    params = initialize(declare(spec), 0, jnp.float32)
    first, T = 9, 24
    tokens = rng.integers(0, spec.model.vocab_size, (2, T))
    packed = np.concatenate([tokens[0, :first], tokens[1, : T - first]])
    segments, places = np.repeat([1, 2], [first, T - first]), np.concatenate([np.arange(first), np.arange(T - first)])

    @jax.jit
    def hidden(tokens, positions, segments):
        micro = {"tokens": tokens, "positions": positions, "segments": segments}
        return hidden_states(params, micro, decoder, KEY)

    alone = hidden(tokens, np.tile(np.arange(T), (2, 1)), np.zeros((2, T), np.int32))
    together = hidden(*(np.tile(x, (2, 1)) for x in (packed, places, segments)))[0]
    np.testing.assert_allclose(together[:first], alone[0, :first], atol=1e-5)
    np.testing.assert_allclose(together[first:], alone[1, : T - first], atol=1e-5)


def test_dropout_leaves_the_expectation(rng):
    left = kept(fold(KEY, jnp.arange(4))[:, None, None], jnp.arange(300)[:, None], jnp.arange(300), 0.3)
    assert set(np.unique(left)) == {0.0, np.float32(1 / 0.7)}
    assert float(left.mean()) == pytest.approx(1, abs=4 * np.sqrt(0.3 / 0.7 / left.size))
    assert abs(np.corrcoef(np.asarray(left).reshape(4, -1))[0, 1:]).max() < 4 / 300  # no sequence like another


@pytest.mark.parametrize("T", [1, 2, 37, 64, 128, 200, 1024, 2048])
def test_blocks_divide_a_chunk_and_stay_few(T):
    size = blockwise_attention._block_size(T)
    assert T % size == 0
    assert T // size <= 8


@pytest.mark.parametrize(
    ("T", "window", "size"),
    [(2048, 100, 2048), (8192, None, 2048), (6000, None, 2000), (8192, 1000, 512), (8191, None, 8191)],
)
def test_long_sequences_are_cut_into_equal_chunks(T, window, size):
    assert blockwise_attention._chunk_size(T, window) == size


@pytest.mark.parametrize(
    ("name", "backend", "changes", "row"),
    [
        ("auto", "cpu", {}, "blocks"),
        ("cudnn", "cpu", {}, "blocks"),
        ("cudnn_flash_te", "cuda", {}, "cudnn"),
        ("flash", "rocm", {}, "blocks"),
        ("dot_product", "tpu", {}, "reference"),
        ("dot_product", "cpu", {}, "blocks"),
        ("reference", "cuda", {}, "reference"),
        ("cudnn", "cuda", {"dtype": "float32"}, "blocks"),
        ("cudnn", "cuda", {"rate": 0.1}, "blocks"),
        ("cudnn", "cuda", {"mesh": {"context": 2}}, "cudnn"),
        ("cudnn", "cuda", {"mesh": {"context": 2}, "strategy": "ring"}, "blocks"),
    ],
)
def test_the_backend_chooses_what_the_name_cannot(name, backend, changes, row):
    given = {"window": None, "rate": 0.0, "H": 8, "dtype": "bfloat16"} | changes
    assert choose(spec_of(name, **given), backend) == row
