"""What sources give: examples, as named fields of equal length."""

from __future__ import annotations

from typing import Protocol

import numpy as np

Example = dict[str, np.ndarray]

# Field of a batch → its type. All are [.., T]. `weights`: how much a target's loss counts; 0 for padding and prompts.
FIELDS: dict[str, type[np.generic]] = {
    "tokens": np.int32,
    "targets": np.int32,
    "weights": np.float32,
    "positions": np.int32,  # within the document; only where documents are packed and positions begin anew
    "segments": np.int32,  # the document's number within its sequence; only where attention stays inside documents
}


class Source(Protocol):
    """`examples(numbers)` → every field of `fields_of` as an array [len(numbers), T], of the types in FIELDS.

    `num_examples`: how many there are until they repeat in another order; None: they do not end.
    """

    num_examples: int | None

    def examples(self, numbers: np.ndarray) -> Example: ...


def shifted(sequences: np.ndarray) -> Example:
    """[n, T + 1] tokens as inputs and, one to the left, their targets; every target counts."""
    return {
        "tokens": sequences[:, :-1],
        "targets": sequences[:, 1:],
        "weights": np.ones((len(sequences), sequences.shape[1] - 1), np.float32),
    }
