"""The parts of a pipeline: the order in which layers lie, and what virtual stages keep."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from seatrial.spec import Batch
from seatrial.train.data import make_batch
from seatrial.train.mesh import make_mesh
from seatrial.train.params import placed
from seatrial.train.trainer import make_trainer
from tests.helpers.trainer import TINY, RandomSource, canonical, make_spec


def test_a_stage_holds_its_chunks_of_layers() -> None:
    """Worked out by hand: chunk v of stage s begins with layer (v · 2 + s) · 2."""
    spec = make_spec({"pipeline": 2}, virtual_pipeline=3)
    order = placed({"layers": {"any": np.arange(12)}}, spec)["layers"]["any"]
    assert order.tolist() == [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]


def test_the_order_of_the_model_comes_back() -> None:
    spec = make_spec({"pipeline": 4}, virtual_pipeline=2, model=replace(TINY, num_layers=16))
    tree = {"layers": {"w": np.random.default_rng(0).random((16, 3))}, "embedding": np.ones((2, 2))}
    jax.tree.map(np.testing.assert_array_equal, canonical(placed(tree, spec), spec), tree)


def test_without_stages_nothing_moves() -> None:
    tree = {"layers": {"w": np.arange(6)}}
    assert placed(tree, make_spec({"fsdp": 2}, virtual_pipeline=2)) is tree


@pytest.mark.slow
def test_virtual_stages_keep_no_copies_of_weights() -> None:
    """16 micro-batches of 32 tokens: next to the weights, hidden states weigh nothing."""
    model = replace(TINY, num_layers=8, hidden_dim=256, ffn_dim=768)
    batch = Batch(sequence_length=32, global_batch_size=16, micro_batch_size=1)

    def temporary_bytes(virtual: int) -> int:
        spec = make_spec({"pipeline": 2}, model=model, batch=batch, virtual_pipeline=virtual)
        trainer = make_trainer(spec, make_mesh(spec, jax.devices()[:2]))
        source = RandomSource(model.vocab_size, batch.sequence_length)
        first = make_batch(source, 0, trainer.batch_shape, trainer.batch_shardings)
        lowered = trainer.step.lower(jax.eval_shape(trainer.init), first)
        compiled = lowered.compile(compiler_options={"xla_backend_optimization_level": 0})
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary_bytes(2) < 2 * temporary_bytes(1)
