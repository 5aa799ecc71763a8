"""Where tokens come from: sources that give any example by its number, and the global batches made of them.

A source is a pure function of an example's number. So every process makes just its own part, on any mesh, and the
number of consumed examples is all that a resumed run must know to read on exactly where it stopped.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np

from seatrial.spec import RunSpec
from seatrial.train.data.examples import FIELDS, Example, Source
from seatrial.train.data.synthetic import Synthetic
from seatrial.train.data.text import Text


def fields_of(spec: RunSpec) -> tuple[str, ...]:
    """The fields that the batches of a run have."""
    return (
        "tokens",
        "targets",
        "weights",
        *(("positions",) if spec.data.reset_positions else ()),
        *(("segments",) if spec.data.reset_attention else ()),
    )


def make_source(spec: RunSpec) -> Source:
    """The source of training examples that a spec asks for. Raises ValueError where its files cannot serve."""
    length = spec.batch.sequence_length
    if spec.data.kind == "synthetic":
        return Synthetic(spec.model.vocab_size, length, spec.batch.global_batch_size, spec.seed)
    return Text(spec.data.paths, length, spec.model.vocab_size, spec.seed)


def make_batch(
    source: Source, first: int, shape: tuple[int, int, int], shardings: Mapping[str, jax.sharding.Sharding]
) -> dict[str, jax.Array]:
    """The global batch of the examples from number `first` on; this process makes only what its devices hold."""
    A, B, T = shape
    numbers = first + np.arange(A * B).reshape(A, B)
    made: dict[str, Example] = {}

    def part(name: str, index: tuple[slice, ...]) -> np.ndarray:
        wanted = numbers[index[:2]]
        rows = repr(index[:2])  # devices that differ in other axes share their examples
        if rows not in made:
            made[rows] = source.examples(wanted.reshape(-1))
        return made[rows][name].reshape(*wanted.shape, T)[..., index[2]].astype(FIELDS[name])

    return {
        name: jax.make_array_from_callback(shape, sharding, lambda index, name=name: part(name, index))
        for name, sharding in shardings.items()
    }
