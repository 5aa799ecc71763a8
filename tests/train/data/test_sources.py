"""Properties of every kind of data: the fields that were promised, and examples that depend on their numbers alone."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args, get_type_hints

import jax
import numpy as np
import pytest

from seatrial.records import TABLES
from seatrial.spec import Data, Evaluation, Objective
from seatrial.train.data import fields_of, make_batch, make_sources
from seatrial.train.data.examples import FIELDS
from seatrial.train.mesh import make_mesh
from seatrial.train.trainer import make_trainer
from tests.helpers.trainer import make_spec
from tests.helpers.training_data import CASES, objective_of


def test_every_kind_of_data_objective_and_table_has_a_case():
    settings = [*CASES.values()]
    assert {case["kind"] for case in settings} == {*get_args(get_type_hints(Data)["kind"])}
    assert {objective_of(name) for name in CASES} == {*get_args(get_type_hints(Objective)["kind"])}
    names = [path for case in settings for path in case.get("paths", ())]
    assert [ending for ending in TABLES if not any(name.endswith(ending) for name in names)] == []
    assert {case.get("tokenizer", "byte") for case in settings} == {"byte", "{bpe}"}


@pytest.mark.parametrize("name", CASES)
def test_examples_follow_from_their_numbers(filled, rng, name):
    spec = filled(name)
    source = make_sources(spec).train
    count = 2 * (source.num_examples or 40) + 1
    whole = source.examples(np.arange(count))
    assert tuple(whole) == tuple(field for field in fields_of(spec) if field != "reference")
    for field, values in whole.items():
        assert values.shape == (count, 32)
        assert np.array_equal(values, values.astype(FIELDS[field]))
    assert whole["weights"].any()
    numbers = rng.permutation(count)
    again = make_sources(spec).train
    for part in np.array_split(numbers, 5):  # as a run does that was stopped and goes on elsewhere
        for field, values in again.examples(part).items():
            np.testing.assert_array_equal(values, whole[field][part], field)


@pytest.mark.parametrize("name", sorted(set(CASES) - {"synthetic", "megatron", "grain"}))
def test_an_epoch_has_every_example_once_and_none_of_validation(filled, name):
    spec = filled(name)
    spec = replace(spec, data=replace(spec.data, split="70,30"), evaluation=Evaluation(interval_steps=1))
    sources = make_sources(spec)
    n, m = sources.train.num_examples, sources.validation.num_examples
    rows = [{row.tobytes() for row in source.examples(numbers)["tokens"]} for source, numbers in (
        (sources.train, np.arange(n)), (sources.train, n + np.arange(n)), (sources.validation, np.arange(m)),
    )]  # fmt: skip
    assert rows[0] == rows[1]
    assert len(rows[0]) == n
    assert not rows[0] & rows[2]
    everything = make_sources(replace(spec, data=replace(spec.data, split=None), evaluation=Evaluation())).train
    assert everything.num_examples == n + m


def test_a_batch_has_the_fields_that_the_step_takes(filled):
    spec = replace(filled("sft"), batch=replace(make_spec().batch, micro_batch_size=8))
    trainer = make_trainer(spec, make_mesh(spec, jax.devices()[:1]))
    batch = make_batch(make_sources(spec).train, 0, trainer.batch_shape, trainer.batch_shardings)
    assert set(batch) == {"tokens", "targets", "weights", "positions", "segments"}
    expected = make_sources(spec).train.examples(np.arange(16))
    for field, values in batch.items():
        assert values.dtype == FIELDS[field]
        np.testing.assert_array_equal(np.asarray(values).reshape(16, 32), expected[field])
