"""Rows of examples, and the order in which a run reads them: a new one in every epoch, by the seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import numpy as np

from seatrial.train.data.examples import Ends, Example, Piece, packed, shifted
from seatrial.train.data.indexed import Indexed


class Rows(Protocol):
    """`take(rows)` → the fields of these of `count` examples; `group` neighbours stay together.

    `notes`: what a person should know of how the rows were made. `where(row, place)` names the file and row of a token.
    """

    count: int
    group: int
    notes: Sequence[str]

    def take(self, rows: np.ndarray) -> Example: ...

    def where(self, row: int, place: int) -> str: ...


class Windows:
    """Documents end to end, cut into windows of T + 1 tokens, each beginning with the last token of the one before."""

    group = 1
    notes: Sequence[str] = ()

    def __init__(self, indexed: Indexed, max_documents: int | None, length: int, ends: Ends) -> None:
        self._tokens = indexed.tokens[: int(indexed.sizes[:max_documents].sum(dtype=np.int64))]
        self._length, self._ends = length, ends
        self.count = max(0, (len(self._tokens) - 1) // length)

    def take(self, rows: np.ndarray) -> Example:
        windows = self._tokens[rows[:, None] * self._length + np.arange(self._length + 1)]
        return self._ends.mark(shifted(windows.astype(np.int32)))

    def where(self, row: int, place: int) -> str:
        return f"sequence {row} in the order of the files"


@dataclass
class Pieces:
    """Rows of one or several pieces each, padded to T."""

    pieces: Callable[[int], Sequence[Piece]]
    count: int
    length: int
    group: int = 1
    notes: Sequence[str] = ()

    def take(self, rows: np.ndarray) -> Example:
        return packed([self.pieces(row) for row in rows.tolist()], self.length)

    def where(self, row: int, place: int) -> str:
        return f"sequence {row} in the order of the files"


def split_at(split: str | None, count: int, *, as_nemo: bool = False) -> list[int]:
    """The indices where training, validation and test begin in `count` things, and the end.

    Megatron core rounds the sums of the shares; NeMo, as Megatron did, the shares, and moves what they come to.
    """
    given = [float(share) for share in (split or "1").replace("/", ",").split(",")]
    shares = [share / sum(given) for share in [*given, 0.0, 0.0][:3]]
    if not as_nemo:
        return [0, *(round(end * count) for end in accumulate(shares))]
    ends = list(accumulate(round(share * count) for share in shares))
    return [0, *(end - (ends[-1] - count) for end in ends)]


class Epochs:
    """A part of the rows, counted in groups, in another order in every epoch; without a seed, always in their own."""

    def __init__(self, rows: Rows, part: range, seed: int | None) -> None:
        self._rows, self._seed = rows, seed
        self._first, self._units = part.start, len(part)
        self.num_examples = self._units * rows.group
        self._orders: dict[int, np.ndarray] = {}  # of this epoch and the one before

    def _order(self, epoch: int) -> np.ndarray:
        if epoch not in self._orders:
            order = np.random.default_rng((self._seed or 0, epoch)).permutation(self._units)
            self._orders = {e: kept for e, kept in self._orders.items() if e == epoch - 1} | {epoch: order}
        return self._orders[epoch]

    def examples(self, numbers: np.ndarray) -> Example:
        return self._rows.take(self._places(numbers))

    def where(self, number: int, place: int) -> str:
        return self._rows.where(int(self._places(np.array([number]))[0]), place)

    def _places(self, numbers: np.ndarray) -> np.ndarray:
        """The rows of these examples."""
        units, members = np.divmod(numbers, self._rows.group)
        epochs, places = np.divmod(units, self._units)
        for epoch in np.unique(epochs).tolist() if self._seed is not None else ():
            here = epochs == epoch
            places[here] = self._order(epoch)[places[here]]
        rows: np.ndarray = (self._first + places) * self._rows.group + members
        return rows
