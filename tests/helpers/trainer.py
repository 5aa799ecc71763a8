"""A tiny spec to vary, and what runs it for a few steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np

from seatrial.spec import (
    Batch,
    Execution,
    MeshShape,
    ModelSpec,
    Optimizer,
    Parallelism,
    Precision,
    RopeScaling,
    RunSpec,
    Topology,
)
from seatrial.train.data import make_batch
from seatrial.train.data.examples import Example, shifted
from seatrial.train.mesh import make_mesh
from seatrial.train.params import layer_order, placed
from seatrial.train.step import State
from seatrial.train.trainer import Trainer, make_trainer

TINY = ModelSpec(
    name="tiny", vocab_size=128, hidden_dim=64, num_layers=3, num_heads=8, num_kv_heads=4, head_dim=16, ffn_dim=96,
    rope_theta=10_000.0, rope_scaling=RopeScaling(factor=8.0, original_max_positions=16),
)  # fmt: skip


def make_spec(mesh: dict[str, int] | None = None, **changes: Any) -> RunSpec:
    """A float32 spec over `mesh`; `changes` replace fields, of the spec or of its parallelism."""
    shape = MeshShape(**(mesh or {}))
    names = ("zero1", "sequence_parallel", "virtual_pipeline", "context_strategy")
    strategy = {name: changes.pop(name) for name in names if name in changes}
    spec = RunSpec(
        name="test",
        dialect="native",
        model=TINY,
        batch=Batch(sequence_length=32, global_batch_size=16, micro_batch_size=16 // (shape.data * shape.fsdp)),
        steps=5,
        topology=Topology(devices_per_node=shape.product),
        parallelism=Parallelism(within_node=shape, **strategy),
        precision=Precision(compute_dtype="float32"),
        optimizer=Optimizer(learning_rate=3e-3, warmup_steps=2),
    )
    return replace(spec, **changes)


class RandomSource:
    """A new random sequence for every number; small tokens are far more frequent, so there is something to learn."""

    num_examples = None

    def __init__(self, vocab_size: int, length: int) -> None:
        self._vocab_size, self._length = vocab_size, length

    def examples(self, numbers: np.ndarray) -> Example:
        uniform = np.stack([np.random.default_rng(n).random(self._length + 1) for n in numbers.tolist()])
        return shifted((self._vocab_size * uniform**4).astype(np.int32))


_BEGUN: dict[str, Any] = {}


def begun(spec: RunSpec, trainer: Trainer) -> State:
    """The state that training begins with, made on one device: to compile `init` takes as long as to compile `step`."""
    alone = replace(
        spec,
        topology=Topology(),
        parallelism=Parallelism(),
        batch=replace(spec.batch, micro_batch_size=spec.batch.global_batch_size),
        execution=Execution(),
    )

    if repr(alone) not in _BEGUN:
        made = make_trainer(alone, make_mesh(alone, jax.devices()[:1])).init()
        _BEGUN[repr(alone)] = jax.tree.map(np.asarray, made)

    def padded(x: np.ndarray, like: jax.ShapeDtypeStruct) -> np.ndarray:
        return np.pad(x, [(0, n - m) for m, n in zip(x.shape, like.shape, strict=True)]) if x.ndim else x

    state = jax.tree.map(padded, _BEGUN[repr(alone)], jax.eval_shape(trainer.init))
    return jax.device_put(state | {"params": placed(state["params"], spec)}, trainer.state_shardings)


def canonical(tree: dict[str, Any], spec: RunSpec) -> dict[str, Any]:
    """The inverse of `placed`, for NumPy's arrays: layers in the order of the model."""
    places = np.argsort(layer_order(spec))
    return tree | {"layers": jax.tree.map(lambda w: w[places], tree["layers"])}


def run_steps(spec: RunSpec, steps: int = 5) -> tuple[list[float], list[float], Any]:
    """Losses, gradient norms and final parameters (as numpy) of a few steps over this process's devices."""
    mesh = make_mesh(spec, jax.devices()[: spec.topology.num_devices])
    trainer = make_trainer(spec, mesh)
    source = RandomSource(spec.model.vocab_size, spec.batch.sequence_length)
    state = begun(spec, trainer)
    losses, norms = [], []
    for number in range(steps):
        batch = make_batch(source, number * spec.batch.global_batch_size, trainer.batch_shape, trainer.batch_shardings)
        state, numbers = trainer.step(state, batch)
        losses.append(float(numbers["loss"]))
        norms.append(float(numbers["grad_norm"]))
    return losses, norms, canonical(jax.tree.map(np.asarray, state["params"]), spec)
