"""Where tokens come from: sources that give any sequence by its number, and the global batches made of them.

A source is a pure function of a sequence number, so every process can make just its own part, on any mesh, and a
resumed run reads on where it stopped by knowing how many sequences it has consumed.
"""

from __future__ import annotations

from typing import Protocol

import jax
import numpy as np

from seatrial.spec import RunSpec
from seatrial.train.data.synthetic import Synthetic
from seatrial.train.data.text import Text


class Source(Protocol):
    """`sequences(numbers)` → int32 [len(numbers), T + 1]: inputs and, shifted by one, their targets."""

    def sequences(self, numbers: np.ndarray) -> np.ndarray: ...


def make_source(spec: RunSpec) -> Source:
    """The source that a spec asks for. Raises ValueError where its files cannot serve."""
    length = spec.batch.sequence_length
    if spec.data.kind == "synthetic":
        return Synthetic(spec.model.vocab_size, length, spec.batch.global_batch_size, spec.seed)
    return Text(spec.data.paths, length, spec.model.vocab_size, spec.seed)


def make_batch(
    source: Source, step: int, shape: tuple[int, int, int], sharding: jax.sharding.Sharding
) -> dict[str, jax.Array]:
    """The global batch of a step, [A, B, T] each; this process makes only the parts that its devices hold."""
    A, B, T = shape
    numbers = step * A * B + np.arange(A * B).reshape(A, B)
    made: dict[str, np.ndarray] = {}

    def part(name: str, index: tuple[slice, ...]) -> np.ndarray:
        wanted = numbers[index[:2]]
        key = repr(index[:2])  # devices that differ in the tensor axis alone share their sequences
        if key not in made:
            made[key] = source.sequences(wanted.reshape(-1)).reshape(*wanted.shape, T + 1)
        if name == "weights":
            return np.ones((*wanted.shape, T), np.float32)[..., index[2]]
        return made[key][..., {"tokens": slice(0, T), "targets": slice(1, T + 1)}[name]][..., index[2]]

    return {
        name: jax.make_array_from_callback(shape, sharding, lambda index, name=name: part(name, index))
        for name in ("tokens", "targets", "weights")
    }
