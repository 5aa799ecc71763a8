"""Examples, as sources give them: named fields of equal length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

Example = dict[str, np.ndarray]

# Field of a batch → its type. All are [.., T]. `weights`: how much a target's loss counts; 0 for padding and prompts.
FIELDS: dict[str, type[np.generic]] = {
    "tokens": np.int32,
    "targets": np.int32,
    "weights": np.float32,
    "positions": np.int32,  # within the document; only where documents are packed and positions restart
    "segments": np.int32,  # the document's number within its sequence, from 1; 0 is padding
    "reference": np.float32,  # sums, over a sequence, to the log-probability that a reference model gives its answer
}


class Source(Protocol):
    """`examples(numbers)` → every field of `fields_of` as an array [len(numbers), T], of the types in FIELDS.

    `num_examples`: how many there are until they repeat in another order; None: they do not end.
    """

    @property
    def num_examples(self) -> int | None: ...

    def examples(self, numbers: np.ndarray) -> Example: ...


class Located(Source, Protocol):
    """A source that knows where its tokens are from: the file and row of token `place` of sequence `number`."""

    def where(self, number: int, place: int) -> str: ...


def shifted(sequences: np.ndarray) -> Example:
    """[n, T + 1] tokens as inputs and, one to the left, their targets; every target counts."""
    return {
        "tokens": sequences[:, :-1],
        "targets": sequences[:, 1:],
        "weights": np.ones((len(sequences), sequences.shape[1] - 1), np.float32),
    }


Piece = tuple[np.ndarray, int]  # a document's tokens, and how many at its beginning are given, not to be learnt


def packed(rows: Sequence[Sequence[Piece]], length: int) -> Example:
    """Pieces side by side, padded to `length`: inputs and targets are shifted within each, so none predicts the next.

    A piece of n tokens takes n - 1 places; what does not fit is cut off.
    """
    names = ("tokens", "targets", "weights", "positions", "segments")
    example: Example = {name: np.zeros((len(rows), length), FIELDS[name]) for name in names}
    for i, pieces in enumerate(rows):
        start = 0
        for segment, (tokens, given) in enumerate(pieces, 1):
            n = min(len(tokens) - 1, length - start)
            here = (i, slice(start, start + n))
            example["tokens"][here] = tokens[:n]
            example["targets"][here] = tokens[1 : n + 1]
            example["weights"][here] = np.arange(1, n + 1) >= given
            example["positions"][here] = np.arange(n)
            example["segments"][here] = segment
            start += n
    return example


@dataclass(frozen=True)
class Ends:
    """The effects of the end-of-document token on its sequences. It belongs to the document that it ends."""

    token: int | None  # None: it means nothing
    fields: tuple[str, ...] = ()  # which of positions and segments restart after it
    masked: bool = False  # the loss of predicting what follows it does not count

    def mark(self, example: Example) -> Example:
        """The example with the fields that follow from its tokens."""
        if self.token is None:
            return example
        is_end = example["tokens"] == self.token
        begins = np.zeros_like(is_end)
        begins[:, 1:] = is_end[:, :-1]
        places = np.arange(is_end.shape[1])
        made = {
            "positions": places - np.maximum.accumulate(np.where(begins, places, 0), axis=1),
            "segments": 1 + np.cumsum(begins, axis=1),
        }
        weights = np.where(is_end, np.float32(0), example["weights"]) if self.masked else example["weights"]
        return example | {name: made[name] for name in self.fields} | {"weights": weights}


NO_ENDS = Ends(None)
