"""Batches: the same global batch on every mesh, with the fields that the data ask for."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from seatrial.spec import Batch, Data, Objective
from seatrial.train.data import fields_of, make_batch
from seatrial.train.data.examples import Source
from seatrial.train.data.synthetic import Synthetic
from seatrial.train.mesh import make_mesh
from seatrial.train.trainer import make_trainer
from tests.helpers.trainer import TINY, RandomSource, make_spec
from tests.helpers.training_data import make_source


def rows_of(source: Source, numbers: np.ndarray) -> np.ndarray:
    """[n, T + 1]: inputs, and the last target."""
    examples = source.examples(numbers)
    np.testing.assert_array_equal(examples["tokens"][:, 1:], examples["targets"][:, :-1])
    return np.concatenate([examples["tokens"], examples["targets"][:, -1:]], axis=1)


SPECS = [
    make_spec({"fsdp": 2}, batch=Batch(sequence_length=32, global_batch_size=16, micro_batch_size=4)),
    make_spec({"data": 2, "fsdp": 2}, batch=Batch(sequence_length=32, global_batch_size=16, micro_batch_size=2)),
    make_spec({"tensor": 4}, batch=Batch(sequence_length=32, global_batch_size=16, micro_batch_size=8)),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: str({a: n for a, n in spec.mesh.items() if n > 1}))
def test_the_global_batch_does_not_depend_on_the_mesh(spec):
    trainer = make_trainer(spec, make_mesh(spec, jax.devices()[: spec.topology.num_devices]))
    source = make_source(spec)
    batch = make_batch(source, 3 * 16, trainer.batch_shape, trainer.batch_shardings)
    expected = rows_of(source, 3 * 16 + np.arange(16)).reshape(2, 8, 33)
    np.testing.assert_array_equal(np.asarray(batch["tokens"]), expected[..., :-1])
    np.testing.assert_array_equal(np.asarray(batch["targets"]), expected[..., 1:])
    assert np.all(np.asarray(batch["weights"]) == 1)


def test_synthetic_repeats_one_batch_and_depends_on_the_seed():
    source = Synthetic(vocab_size=1000, sequence_length=8, batch=4, seed=1)
    first = rows_of(source, np.arange(4))
    assert first.shape == (4, 9)
    assert first.dtype == np.int32
    np.testing.assert_array_equal(first, rows_of(source, np.arange(4) + 40))
    assert len(np.unique(first, axis=0)) == 4
    assert not np.array_equal(first, rows_of(Synthetic(1000, 8, 4, seed=2), np.arange(4)))


def test_synthetic_has_prompts_for_objectives_that_learn_answers():
    numbers = np.arange(16)
    for kind in ("sft", "dpo", "orpo"):
        got = make_source(make_spec(objective=Objective(kind=kind))).examples(numbers)
        np.testing.assert_array_equal(got["weights"], np.tile(np.arange(32) >= 15, (16, 1)))
        same = got["tokens"][0::2] == got["tokens"][1::2]
        assert np.all(same[:, :16]) == (kind != "sft")
        assert not np.all(same[:, 16:], axis=1).any()


def test_synthetic_has_documents_where_they_are_to_be_told_apart():
    spec = make_spec(data=Data(reset_positions=True, reset_attention=True), model=replace(TINY, vocab_size=8))
    assert fields_of(spec) == ("tokens", "targets", "weights", "positions", "segments")
    got = make_source(spec).examples(np.arange(16))
    ends = got["tokens"][:, :-1] == 0
    np.testing.assert_array_equal(np.diff(got["segments"], axis=1), ends)
    np.testing.assert_array_equal(got["positions"][:, 1:], np.where(ends, 0, got["positions"][:, :-1] + 1))


def test_no_example_is_made_twice_by_a_process():
    asked = []

    class Recording(RandomSource):
        def examples(self, numbers):
            asked.extend(numbers.tolist())
            return super().examples(numbers)

    spec = make_spec(
        {"fsdp": 2, "tensor": 4}, batch=Batch(sequence_length=32, global_batch_size=16, micro_batch_size=4)
    )
    trainer = make_trainer(spec, make_mesh(spec, jax.devices()))
    make_batch(Recording(128, 32), 48, trainer.batch_shape, trainer.batch_shardings)
    assert sorted(asked) == list(range(48, 64))
