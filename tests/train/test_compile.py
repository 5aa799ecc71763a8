"""A compiled step, described: against programs whose collectives are known, and against the arrays of a run."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from seatrial.estimate.hlo import read_program
from seatrial.spec import Batch, Precision
from seatrial.train.compile import compiled_step, describe
from seatrial.train.mesh import make_mesh
from seatrial.train.trainer import make_trainer
from tests.helpers.trainer import TINY, begun, make_spec

SIZES = {"pipeline": 2, "data": 2, "tensor": 2}


@pytest.mark.parametrize("seed", range(6))
def test_random_collectives_in_random_loops_are_all_found(seed: int) -> None:
    random = np.random.default_rng(seed)
    expected: Counter[tuple[str, tuple[str, ...]]] = Counter()
    size: Counter[tuple[str, tuple[str, ...]]] = Counter()

    def layer(x: jax.Array, often: int, depth: int) -> jax.Array:
        for _ in range(random.integers(1, 3)):
            axes = tuple(
                sorted(random.choice(list(SIZES), random.integers(1, 4), replace=False), key=list(SIZES).index)
            )
            axes, n = tuple(map(str, axes)), math.prod(SIZES[axis] for axis in axes)
            kind = str(random.choice(["all-reduce", "all-gather", "reduce-scatter"]))
            x = jnp.sin(x * random.random())  # so that XLA merges nothing
            if kind == "all-reduce":
                x = lax.psum(x, axes)
            elif kind == "all-gather":
                x = lax.all_gather(x, axes, axis=0, tiled=True)[: x.shape[0]] * jnp.float32(random.random())
            else:
                x = jnp.tile(lax.psum_scatter(x, axes, scatter_dimension=0, tiled=True), (n, 1))
            expected[kind, axes] += often
            size[kind, axes] += often * x.size * 4 * (n if kind == "all-gather" else 1)
        if depth:
            turns = int(random.integers(2, 6))
            # scan traces its body once, so that what it draws is counted once
            x = lax.scan(lambda x, _: (layer(x, often * turns, depth - 1), None), x, None, length=turns)[0]
        return x

    mesh = Mesh(np.asarray(jax.devices()[:8]).reshape(2, 2, 2), tuple(SIZES))
    step = jax.shard_map(
        lambda x: layer(x, 1, 2), mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False
    )
    text = jax.jit(step).lower(jax.ShapeDtypeStruct((32, 24), jnp.float32)).compile().as_text()
    program = read_program(text, dict(mesh.shape))
    found = {(each.kind, each.axes): (each.times, each.bytes) for each in program.collectives}
    assert found == {key: (times, size[key]) for key, times in expected.items()}
    assert program.unknown_loops == 0


@pytest.mark.parametrize(
    ("mesh", "changes"),
    [
        ({}, {}),
        ({"fsdp": 2, "tensor": 2}, {"precision": Precision(optimizer_dtype="bfloat16", quantization="fp8")}),
        ({"pipeline": 2, "data": 2}, {"zero1": True, "model": replace(TINY, num_layers=4)}),
    ],
)
def test_what_is_held_is_what_the_arrays_of_a_run_take(mesh: dict[str, int], changes: dict[str, Any]) -> None:
    spec = make_spec(mesh, **changes)
    found = describe(spec, "cpu")
    trainer = make_trainer(spec, make_mesh(spec, jax.devices()[: spec.topology.num_devices]))
    state = begun(spec, trainer)

    def on_first(tree: Any) -> int:
        return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree))

    assert found["held"]["parameters_bytes"] == on_first(state["params"])
    assert found["held"]["optimizer_bytes"] == on_first(state["slots"])
    batch = math.prod(trainer.batch_shape) * 12 / (spec.mesh["data"] * spec.mesh["fsdp"])  # tokens, targets, weights
    others = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves((state["step"], state.get("amax"))))
    held = on_first(state["params"]) + on_first(state["slots"]) + others + batch
    assert found["memory"]["arguments_bytes"] == pytest.approx(held, rel=0.001, abs=4096)


@pytest.mark.slow
def test_what_does_not_divide_is_said() -> None:
    spec = make_spec({"tensor": 8, "pipeline": 1}, model=replace(TINY, vocab_size=129))
    notes = describe(spec, "cpu")["notes"]
    assert notes == [
        "the vocabulary of 129 is padded to 136 (5.4% more), to be split evenly",
        "4 key/value heads lie whole on tensor = 8 devices: 2 compute each",
    ]
    spec = make_spec({"pipeline": 2}, model=replace(TINY, num_layers=4),
                     batch=Batch(sequence_length=32, global_batch_size=8, micro_batch_size=2))  # fmt: skip
    assert describe(spec, "cpu")["notes"] == ["the pipeline is idle in 1 of 5 ticks of a step"]


def test_layers_that_a_mesh_does_not_split_are_refused() -> None:
    with pytest.raises(ValueError, match="num_layers = 3 cannot be split over pipeline"):
        compiled_step(make_spec({"pipeline": 2}), "cpu")
