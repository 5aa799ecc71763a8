"""What holds of every kind of data: the fields that were promised, and examples that depend on their numbers alone."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from seatrial.spec import Data, Evaluation, Objective
from seatrial.train.data import fields_of, make_batch, make_sources
from seatrial.train.data.examples import FIELDS
from seatrial.train.data.indexed import write_indexed
from seatrial.train.mesh import make_mesh
from seatrial.train.step import make_trainer

from ..conftest import TINY, make_spec

CASES = {
    "synthetic": {"kind": "synthetic", "reset_attention": True},
    "text": {"kind": "text", "paths": ("{tmp}/*.txt",), "tokenizer": "{bpe}", "mask_document_ends": True},
    "megatron": {"kind": "megatron", "paths": ("{tmp}/a", "{tmp}/b"), "weights": (1.0, 2.0), "reset_positions": True},
    "arrow": {"kind": "arrow", "paths": ("{tmp}/tokens.arrow",), "reset_attention": True},
    "sft": {"kind": "records", "paths": ("{tmp}/sft.parquet",), "packing": True},
    "dpo": {"kind": "records", "paths": ("{tmp}/pairs.arrow",), "tokenizer": "{bpe}"},
    "orpo": {"kind": "records", "paths": ("{tmp}/pairs.arrow",), "max_examples": 20},
    "huggingface": {"kind": "huggingface", "dataset": "{tmp}/folder", "packing": True, "tokenizer": "{bpe}"},
    "grain": {"kind": "grain", "paths": ("{tmp}/folder/*.parquet", "{tmp}/sft.parquet"), "weights": (0.3, 0.7)},
}


@pytest.fixture
def filled(tmp_path, bpe, rng):
    """Files for every case; a function from a case's name to its spec."""

    def words(n):
        return " ".join(rng.choice(["fox", "dog", "jumps", "lazy", "naïve", "12 345"], n))

    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(words(500))
        write_indexed(tmp_path / name, np.uint8, [rng.integers(0, 256, n) for n in rng.integers(0, 60, 50)])
    (tmp_path / "folder").mkdir()
    tables = {
        "tokens.arrow": {"input_ids": rng.integers(0, 256, (60, 64)).tolist()},
        "sft.parquet": {name: [words(n % 5 + 1) for n in range(60)] for name in ("input", "output", "text")},
        "pairs.arrow": {name: [words(3) + " " for _ in range(60)] for name in ("prompt", "chosen", "rejected")},
        "folder/a.parquet": {"text": [words(n % 40) for n in range(60)]},
    }
    for name, columns in tables.items():
        table = pa.table(columns)
        if name.endswith(".parquet"):
            pa.parquet.write_table(table, tmp_path / name)
        else:
            with pa.OSFile(str(tmp_path / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)

    def fill(value):
        if isinstance(value, tuple):
            return tuple(fill(item) for item in value)
        return value.format(tmp=tmp_path, bpe=bpe) if isinstance(value, str) else value

    def spec(name):
        data = Data(**{key: fill(value) for key, value in CASES[name].items()})
        objective = Objective(kind=name if name in ("sft", "dpo", "orpo") else "pretraining")
        return make_spec(model=replace(TINY, vocab_size=512), data=data, objective=objective)

    return spec


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
