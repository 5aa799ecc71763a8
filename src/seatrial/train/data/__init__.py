"""The data of training: sources that give any example by its number, and the global batches made of them.

A source is a pure function of an example's number. So every process makes just its own part, on any mesh, and the
number of consumed examples is all that a resumed run needs to continue exactly where it stopped.

    files      texts of files → tokens, kept   indexed    Megatron's .bin and .idx     rows      rows → sources
    tokenizer  text → tokens                   megatron   Megatron's samples           arrow     rows of tokens
    examples   the fields of a batch           records    prompts and answers          prefetch  batches made early
    blend      several sources in shares

What files hold is read by `seatrial.records`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import jax
import numpy as np

from seatrial.train.data.examples import FIELDS, Example, Source
from seatrial.train.data.sources import Sources as Sources
from seatrial.train.data.sources import fields_of as fields_of
from seatrial.train.data.sources import make_sources as make_sources


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

    return {n: jax.make_array_from_callback(shape, s, partial(part, n)) for n, s in shardings.items()}
