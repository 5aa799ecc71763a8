"""Several sources in shares: which of them each sample of a run is from, in Megatron's order.

The rule is a loop: next comes the data set that is furthest behind its share. But soon it no longer matters where it
began, because who is behind is caught up with. So a segment is cut into lanes, which are made side by side: each begins
from a guess somewhat early, and where it has not come to what the one before ends with, it is made again from there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seatrial.train.data.examples import Example, Source

SEGMENT = 1 << 18  # samples that are made together
LANES, LANE = 256, 256  # the most lanes of a segment, and the fewest samples of a lane


def normalized(weights: Sequence[float]) -> np.ndarray:
    """The weights, divided by their sum as NumPy adds it up."""
    given = np.asarray(weights, np.float64)
    return given / np.sum(given)


def _one_by_one(shares: np.ndarray, taken: np.ndarray, first: int, count: int) -> np.ndarray:
    """The data sets of `count` samples from number `first` on, before which so many of each were `taken`.

    The rule as it is written: the data set that is furthest behind its share, the first of equals.
    """
    chosen, has, rates = np.empty(count, np.int16), taken.tolist(), shares.tolist()
    for i in range(count):
        n = max(first + i, 1)
        behind = [rate * n - had for rate, had in zip(rates, has, strict=True)]
        chosen[i] = best = behind.index(max(behind))
        has[best] += 1
    return chosen


def _side_by_side(shares: np.ndarray, taken: np.ndarray, firsts: np.ndarray, count: int) -> np.ndarray:
    """[count, lanes]: the same for several lanes, each from its own number on; `taken` [data sets, lanes] goes on."""
    chosen, lanes = np.empty((count, len(firsts)), np.int16), np.arange(len(firsts))
    has = taken.reshape(-1)  # the same numbers
    behind = np.empty_like(taken)
    for i in range(count):
        np.multiply(shares[:, None], np.maximum(firsts + i, 1), out=behind)
        behind -= taken
        chosen[i] = best = behind.argmax(axis=0)
        has[best * len(lanes) + lanes] += 1
    return chosen


def _likely_taken(shares: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """[data sets, lanes]: a guess of how much of each data set comes before these samples."""
    exact = shares[:, None] * numbers
    whole = np.floor(exact)
    ranks = np.argsort(np.argsort(whole - exact, axis=0, kind="stable"), axis=0)
    taken: np.ndarray = whole + (ranks < numbers - whole.sum(axis=0))
    return taken


def _segment(shares: np.ndarray, taken: np.ndarray, first: int, count: int) -> np.ndarray:
    """The same as `_one_by_one`, sooner."""
    lanes = min(LANES, count // LANE)
    if lanes < 2:
        return _one_by_one(shares, taken, first, count)
    length = -(-count // lanes)
    rarest = float(np.min(shares[shares > 0]))
    early = int(min(length, 4 / rarest))
    firsts = first + np.arange(lanes) * length
    begins = np.ascontiguousarray(_likely_taken(shares, firsts[1:] - early))
    _side_by_side(shares, begins, firsts[1:] - early, early)
    begins = np.concatenate([taken[:, None].astype(np.float64), begins], axis=1)
    chosen = _side_by_side(shares, begins.copy(), firsts, length)
    end = taken
    for lane in range(lanes):
        if not np.array_equal(begins[:, lane], end):
            chosen[:, lane] = _one_by_one(shares, end, int(firsts[lane]), length)
        end = end + np.bincount(chosen[:, lane], minlength=len(shares))
    return chosen.T.reshape(-1)[:count]


class BlendingOrder:
    """For each of `count` samples: which data set it is from, and which sample of that.

    Made in segments, when they are asked for; what precedes them has to be made before, once.
    """

    def __init__(self, shares: np.ndarray, count: int) -> None:
        self._shares, self._count = shares, count
        self._taken = [np.zeros(len(shares), np.int64)]  # before each segment
        self._made: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # of the newest two

    def __len__(self) -> int:
        return self._count

    def _make(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The two columns of a segment, whose predecessors were made."""
        first, taken = number * SEGMENT, self._taken[number]
        chosen = _segment(self._shares, taken, first, min(SEGMENT, self._count - first))
        counts = np.bincount(chosen, minlength=len(taken))
        numbers = np.empty(len(chosen), np.int64)
        ranks = np.arange(len(chosen)) - np.repeat(np.cumsum(counts) - counts, counts)
        numbers[np.argsort(chosen, kind="stable")] = ranks + np.repeat(taken, counts)
        if len(self._taken) == number + 1:
            self._taken.append(taken + counts)
        return chosen, numbers

    def _columns(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        for before in range(len(self._taken) - 1, number):
            self._make(before)
        if number not in self._made:
            newest = dict(list(self._made.items())[-1:])
            self._made = newest | {number: self._make(number)}
        return self._made[number]

    def at(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The data sets of these samples, and which samples of them."""
        segments, places = np.divmod(samples, SEGMENT)
        chosen, numbers = np.empty(len(samples), np.int16), np.empty(len(samples), np.int64)
        for segment in np.unique(segments).tolist():
            here = segments == segment
            chosen[here], numbers[here] = (column[places[here]] for column in self._columns(segment))
        return chosen, numbers


class Blend:
    """Several sources in shares, for a run that reads `count` examples.

    They are drawn in groups of so many neighbours, which stay together.
    """

    def __init__(self, sources: Sequence[Source], shares: np.ndarray, count: int, group: int = 1) -> None:
        self._sources, self._group = sources, group
        self._order = BlendingOrder(shares, -(-count // group))
        self.num_examples = sum(source.num_examples or 0 for source in sources)

    def examples(self, numbers: np.ndarray) -> Example:
        units, members = np.divmod(numbers, self._group)
        chosen, places = self._order.at(units % len(self._order))
        inner = places * self._group + members
        order = np.argsort(chosen, kind="stable")
        parts = [self._sources[d].examples(inner[order][chosen[order] == d]) for d in np.unique(chosen).tolist()]
        back = np.argsort(order)
        return {name: np.concatenate([part[name] for part in parts])[back] for name in parts[0]}
