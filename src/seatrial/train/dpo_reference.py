"""The reference log-probabilities of DPO: the initial weights, applied once to the data.

Values are found by the content of a sequence, so that the order of the data, the mesh and the number of epochs do not
matter. They are kept in a file beside the checkpoints, for runs that are resumed when those weights are gone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from seatrial.train.checkpoint_files import checksum, named_leaves
from seatrial.train.data import Sources, make_batch
from seatrial.train.data.examples import Example, Source
from seatrial.train.trainer import Trainer

FILE = "reference.npz"

Weights = Callable[[], Any]  # → the parameters that training begins with


def _digests(example: Example) -> list[bytes]:
    """The digests that identify sequences: of their tokens, targets and weights."""
    columns = [np.ascontiguousarray(example[name]) for name in ("tokens", "targets", "weights")]
    rows = range(len(columns[0]))
    return [hashlib.blake2b(b"".join(x[row].tobytes() for x in columns), digest_size=16).digest() for row in rows]


@dataclass(frozen=True)
class Referenced:
    """A source with the field "reference": a sequence's value at its first token. `known` None: 0 for all."""

    source: Source
    known: Mapping[bytes, float] | None

    @property
    def num_examples(self) -> int | None:
        return self.source.num_examples

    def examples(self, numbers: np.ndarray) -> Example:
        made = self.source.examples(numbers)
        reference = np.zeros(made["tokens"].shape, np.float32)
        if self.known is not None:
            reference[:, 0] = [self.known[digest] for digest in _digests(made)]
        return made | {"reference": reference}


def with_reference(
    trainer: Trainer, sources: Sources, counts: tuple[int, int], path: Path, weights: Weights, *, resumed: bool
) -> Sources:
    """The sources with values of their first so many sequences (training, validation), as `weights()` give them.

    What the file at `path` has is not computed again, if it is of these weights; a resumed run uses it in any case.
    """
    mark, known = _read(path)
    before, params = len(known), cache(weights)
    if not (resumed and known):
        mark, read = json.dumps({name: checksum(x) for name, x in named_leaves(params()).items()}), mark
        before, known = (before, known) if mark == read else (0, {})
    for source, first, digests in _batches(trainer, sources, counts):
        if not known.keys() >= set(digests):
            batch = make_batch(Referenced(source, None), first, trainer.batch_shape, trainer.batch_shardings)
            values = np.asarray(trainer.answers(params(), batch).addressable_data(0))
            known.update(zip(digests, values.reshape(-1).tolist(), strict=True))
    if len(known) > before and jax.process_index() == 0:
        _write(path, mark, known)
    validation = Referenced(sources.validation, known) if sources.validation is not None else None
    return replace(sources, train=Referenced(sources.train, known), validation=validation)


def _batches(trainer: Trainer, sources: Sources, counts: tuple[int, int]) -> Iterator[tuple[Source, int, list[bytes]]]:
    """(source, number of the first sequence, digests) of every batch of the first so many sequences."""
    A, B, _ = trainer.batch_shape
    for source, count in zip((sources.train, sources.validation), counts, strict=True):
        if source is not None:
            for first in range(0, count, A * B):
                yield source, first, _digests(source.examples(first + np.arange(A * B)))


def _read(path: Path) -> tuple[str, dict[bytes, float]]:
    """The weights' mark and the values of a file; of several processes, only what all of them can read alike."""
    mark, known = "", {}
    if path.is_file():
        with np.load(path) as stored:
            mark = str(stored["mark"])
            known = dict(zip([row.tobytes() for row in stored["digests"]], stored["values"].tolist(), strict=True))
    if jax.process_count() > 1 and len(set(multihost_utils.process_allgather(np.array(len(known))).tolist())) > 1:
        return "", {}
    return mark, known


def _write(path: Path, mark: str, known: dict[bytes, float]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    digests = np.frombuffer(b"".join(known), np.uint8).reshape(-1, 16)
    unfinished = path.with_suffix(".tmp.npz")
    np.savez(unfinished, mark=mark, digests=digests, values=np.array(list(known.values()), np.float32))
    unfinished.replace(path)
