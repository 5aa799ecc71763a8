"""Folders of `datasets.save_to_disk`, read without `datasets`."""

from __future__ import annotations

import json
from dataclasses import replace

import datasets
import numpy as np
import pyarrow as pa
import pytest

from seatrial.spec import Data
from tests.helpers.trainer import TINY, make_spec
from tests.helpers.training_data import make_source

datasets.disable_progress_bars()


def arrow_spec(folder, length=16, **data):
    spec = make_spec(model=replace(TINY, vocab_size=1000))
    batch = replace(spec.batch, sequence_length=length)
    return replace(spec, batch=batch, data=Data(kind="arrow", paths=(str(folder),), **data))


def save(folder, columns, shards=3):
    datasets.Dataset.from_dict(columns).save_to_disk(folder, num_shards=shards)
    return folder


def in_order(source, count):
    """The examples sorted by their tokens, so that they can be compared with the rows."""
    got = source.examples(np.arange(count))
    order = np.lexsort(got["tokens"].T[::-1])
    return {name: values[order] for name, values in got.items()}


@pytest.mark.parametrize("parts", [1, 4])
def test_rows_are_read_as_they_were_saved(tmp_path, rng, parts):
    rows = rng.integers(0, 1000, (50, 16 * parts))
    rows = rows[np.lexsort(rows.T[::-1])]
    save(
        tmp_path / "d",
        {"input_ids": rows.tolist(), "attention_mask": np.ones_like(rows).tolist(), "labels": rows.tolist()},
    )
    source = make_source(arrow_spec(tmp_path / "d"))
    assert source.num_examples == 50 * parts
    got = in_order(source, 50 * parts)
    pieces = rows.reshape(-1, 16)
    order = np.lexsort(pieces.T[::-1])
    np.testing.assert_array_equal(got["tokens"], pieces[order])
    targets = np.concatenate([rows[:, 1:], np.zeros((50, 1), int)], axis=1).reshape(-1, 16)
    np.testing.assert_array_equal(got["targets"], targets[order])
    weights = np.ones((50, parts, 16))
    weights[:, -1, -1] = 0
    np.testing.assert_array_equal(got["weights"], weights.reshape(-1, 16)[order])


def test_a_token_more_than_the_sequence_is_its_last_target(tmp_path, rng):
    rows = rng.integers(0, 1000, (5, 17))
    got = in_order(make_source(arrow_spec(save(tmp_path / "d", {"input_ids": rows.tolist()}, 1))), 5)
    rows = rows[np.lexsort(rows.T[::-1])]
    np.testing.assert_array_equal(got["targets"], rows[:, 1:])
    assert np.all(got["weights"] == 1)


def test_masks_and_labels_say_what_counts(tmp_path):
    columns = {
        "input_ids": [[5, 6, 7, 8, 0, 0]],
        "labels": [[-100, -100, 7, 8, -100, -100]],
        "attention_mask": [[1, 1, 1, 1, 0, 0]],
    }
    source = make_source(arrow_spec(save(tmp_path / "both", columns, 1), 6))
    got = {name: values[0].tolist() for name, values in source.examples(np.arange(1)).items()}
    assert (got["targets"], got["weights"]) == ([0, 7, 8, 0, 0, 0], [0, 1, 1, 0, 0, 0])
    del columns["labels"]
    source = make_source(arrow_spec(save(tmp_path / "mask", columns, 1), 6))
    got = {name: values[0].tolist() for name, values in source.examples(np.arange(1)).items()}
    assert (got["targets"], got["weights"]) == ([6, 7, 8, 0, 0, 0], [1, 1, 1, 0, 0, 0])


def write(path, *batches, width=16):
    """Batches of rows, each a part of the stream of its own."""
    schema = pa.schema([("input_ids", pa.list_(pa.int64()))])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for rows in batches:
            flat, starts = pa.array(rows.reshape(-1)), pa.array(np.arange(len(rows) + 1) * width, pa.int32())
            writer.write_batch(pa.record_batch([pa.ListArray.from_arrays(starts, flat)], schema=schema))


def test_files_may_have_several_parts_or_none(tmp_path, rng):
    rows = rng.integers(0, 1000, (30, 16))
    write(tmp_path / "a.arrow")
    write(tmp_path / "b.arrow", rows[:10], rows[10:10], rows[10:13])
    write(tmp_path / "c.arrow")
    write(tmp_path / "d.arrow", rows[13:])
    source = make_source(arrow_spec(tmp_path / "*.arrow"))
    assert source.num_examples == 30
    np.testing.assert_array_equal(in_order(source, 30)["tokens"], rows[np.lexsort(rows.T[::-1])])
    for name in "bd":
        (tmp_path / f"{name}.arrow").unlink()
    with pytest.raises(ValueError, match="rows of 0 tokens cannot be cut"):
        make_source(arrow_spec(tmp_path / "*.arrow"))


def test_rows_stay_on_the_disk(tmp_path):
    rows = np.zeros((1000, 2000), np.int64)
    write(tmp_path / "a.arrow", *[rows] * 4, width=2000)
    before = pa.total_allocated_bytes()
    source = make_source(arrow_spec(tmp_path / "a.arrow", length=2000))
    source.examples(np.arange(8))
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_what_datasets_has_chosen_is_what_is_read(tmp_path, rng):
    whole = datasets.Dataset.from_dict({"input_ids": rng.integers(0, 1000, (20, 16)).tolist()})
    chosen = whole.select([3, 1, 4, 15, 9])
    chosen.save_to_disk(tmp_path / "d")
    got = in_order(make_source(arrow_spec(tmp_path / "d", max_examples=4)), 4)
    rows = np.array(chosen["input_ids"][:4])
    np.testing.assert_array_equal(got["tokens"], rows[np.lexsort(rows.T[::-1])])


def test_what_cannot_serve_is_named(tmp_path):
    save(tmp_path / "text", {"text": ["a"]}, 1)
    save(tmp_path / "short", {"input_ids": [[1] * 8]}, 1)
    save(tmp_path / "uneven", {"input_ids": [[1] * 16, [1] * 15]}, 1)
    save(tmp_path / "words", {"input_ids": [["a"] * 16]}, 1)
    datasets.DatasetDict({"train": datasets.Dataset.from_dict({"input_ids": [[1] * 16]})}).save_to_disk(
        tmp_path / "dict"
    )
    save(tmp_path / "lost", {"input_ids": [[1] * 16] * 2}, 2)
    (tmp_path / "lost" / "data-00001-of-00002.arrow").unlink()
    save(tmp_path / "cut", {"input_ids": [[1] * 16] * 200}, 1)
    file = tmp_path / "cut" / "data-00000-of-00001.arrow"
    file.write_bytes(file.read_bytes()[:9000])
    save(tmp_path / "state", {"input_ids": [[1] * 16]}, 1)
    (tmp_path / "state" / "state.json").write_text(json.dumps({"_data_files": 5}))
    for name, message in {
        "none": "no file matches",
        "text": "has no column 'input_ids'; there are text",
        "short": r"rows of 8 tokens cannot be cut into sequences of 16",
        "dict": r"holds several splits; name the folder of one, as .*dict/train",
        "lost": "data-00001-of-00002.arrow is missing",
        "cut": "not an Arrow file, or cut off",
        "state": "does not list data files",
        "uneven": r"row 1: 15 numbers in 'input_ids', and the first row has 16",
        "words": r"row 0: no list of whole numbers in 'input_ids'",
    }.items():
        with pytest.raises(ValueError, match=message):
            make_source(arrow_spec(tmp_path / name)).examples(np.arange(2))


def test_a_token_that_the_model_does_not_have_is_named_with_its_row(tmp_path, rng):
    rows = rng.integers(0, 1000, (30, 33))
    rows[21, 20] = 5000
    folder = save(tmp_path / "d", {"input_ids": rows.tolist()})
    with pytest.raises(ValueError, match=r"data-00002-of-00003.arrow, row 1 has token 5000, and model.vocab_size"):
        make_source(arrow_spec(folder)).examples(np.arange(60))
