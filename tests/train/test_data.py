"""Batches: the same global batch on every mesh, every window of a text once per epoch, the file's own bytes."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from seatrial.spec import Batch, Data
from seatrial.train.data import make_batch, make_source
from seatrial.train.data.examples import Source
from seatrial.train.data.synthetic import Synthetic
from seatrial.train.data.text import Text, find_files
from seatrial.train.mesh import make_mesh
from seatrial.train.step import make_trainer

from .conftest import make_spec


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
    source = Synthetic(vocab_size=1000, sequence_length=8, global_batch_size=4, seed=1)
    first = rows_of(source, np.arange(4))
    assert first.shape == (4, 9)
    assert first.dtype == np.int32
    np.testing.assert_array_equal(first, rows_of(source, np.arange(4) + 40))
    assert len(np.unique(first, axis=0)) == 4
    assert not np.array_equal(first, rows_of(Synthetic(1000, 8, 4, seed=2), np.arange(4)))


def test_an_epoch_of_text_reads_every_window_once(tmp_path, rng):
    content = bytes(rng.integers(0, 256, 1001, dtype=np.uint8))
    (tmp_path / "a.txt").write_bytes(content)
    source = Text([str(tmp_path / "*.txt")], sequence_length=10, vocab_size=256, seed=0)
    windows = {content[i * 10 : i * 10 + 11] for i in range(100)}
    for epoch in range(3):
        rows = rows_of(source, np.arange(epoch * 100, (epoch + 1) * 100))
        assert {row.astype(np.uint8).tobytes() for row in rows} == windows
    assert not np.array_equal(rows_of(source, np.arange(100)), rows_of(source, np.arange(100, 200)))


def test_text_can_be_read_in_any_order(tmp_path, rng):
    (tmp_path / "a.txt").write_bytes(bytes(rng.integers(0, 256, 5000, dtype=np.uint8)))
    source = Text([str(tmp_path / "a.txt")], sequence_length=16, vocab_size=256, seed=7)
    numbers = rng.permutation(1500)
    again = Text([str(tmp_path / "a.txt")], sequence_length=16, vocab_size=256, seed=7)
    forward = rows_of(again, np.arange(1500))
    np.testing.assert_array_equal(rows_of(source, numbers), forward[numbers])


def test_the_standard_library_is_real_text():
    files = find_files(["stdlib:*.py"])
    assert len(files) > 100
    assert all(path.suffix == ".py" for path in files)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Data(kind="text", paths=("/nonexistent/*.txt",)), "no file matches '/nonexistent/"),
        (Data(kind="text", paths=("{tmp}/short.txt",)), "less than one sequence"),
    ],
)
def test_text_that_cannot_serve_is_named(tmp_path, data, message):
    (tmp_path / "short.txt").write_text("short")
    paths = tuple(path.replace("{tmp}", str(tmp_path)) for path in data.paths)
    with pytest.raises(ValueError, match=message):
        Text(paths, sequence_length=32, vocab_size=256, seed=0)


def test_a_vocabulary_below_256_cannot_hold_bytes():
    with pytest.raises(ValueError, match="vocab_size ≥ 256"):
        Text(["stdlib:os.py"], sequence_length=32, vocab_size=255, seed=0)
