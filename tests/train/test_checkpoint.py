"""Checkpoints: what is saved comes back, on any mesh; what is damaged does not; what is kept is what was asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

from seatrial import events
from seatrial.spec import Checkpoint, RunSpec
from seatrial.train.checkpoint import Checkpoints, Restored
from seatrial.train.mesh import make_mesh
from seatrial.train.step import State, make_trainer

from .conftest import TINY, make_spec

SMALL = replace(TINY, num_layers=2)


def spec_of(mesh: dict[str, int] | None = None, checkpoint: Checkpoint | None = None, **changes) -> RunSpec:
    asked = checkpoint or Checkpoint(enabled=True, resume=True, keep=None)
    return make_spec(mesh, **{"model": SMALL, "checkpoint": asked, **changes})


class Run:
    """A run's checkpoints, with what they said and told."""

    def __init__(self, spec: RunSpec, run_dir: Path) -> None:
        self.trainer = make_trainer(spec, make_mesh(spec, jax.devices()[: spec.topology.num_devices]))
        self.said: list[str] = []
        self.events: list[events.Event] = []
        self.checkpoints = Checkpoints(spec, run_dir, self.trainer, emit=self.events.append, say=self.said.append)

    def state(self) -> State:
        """The state at the start with numbers in its slots, so that nothing is alike by chance."""
        state = self.trainer.init()
        numbers = np.random.default_rng(0)
        slots = jax.tree.map(lambda x: jax.device_put(numbers.random(x.shape, x.dtype), x.sharding), state["slots"])
        return state | {"slots": slots}

    def save(self, *steps: int, **metrics: float) -> State:
        state = self.state()
        for step in steps:
            state["step"] = jax.device_put(np.int32(step), state["step"].sharding)
            self.checkpoints.save(step, state, metrics)
        self.checkpoints.close()
        return state

    def restore(self) -> Restored:
        restored = self.checkpoints.restore()
        assert restored is not None
        return restored


def values(state: State) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def assert_same(a: State, b: State) -> None:
    left, right = values(a), values(b)
    assert left.keys() == right.keys()
    for name, value in left.items():
        np.testing.assert_array_equal(value, right[name], err_msg=name)


def test_what_is_saved_comes_back(tmp_path):
    run = Run(spec_of(), tmp_path)
    assert run.checkpoints.restore() is None
    saved = run.save(3)
    again = Run(spec_of(), tmp_path)
    restored = again.restore()
    assert (restored.step, restored.examples) == (3, 3 * 16)
    assert_same(saved, restored.state)
    print(run.said, again.said, run.events, again.events)
