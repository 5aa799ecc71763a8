"""One batch of random tokens, again in every step, as MaxText's `dataset_type=synthetic`: speed without a disk."""

from __future__ import annotations

import numpy as np

from seatrial.train.data.examples import Example, shifted


class Synthetic:
    """Sequence n is the (n mod batch)-th of a fixed random batch, so the loss of a sound trainer falls."""

    num_examples = None

    def __init__(self, vocab_size: int, sequence_length: int, global_batch_size: int, seed: int) -> None:
        self._vocab_size = vocab_size
        self._length = sequence_length + 1
        self._batch = global_batch_size
        self._seed = seed

    def examples(self, numbers: np.ndarray) -> Example:
        rows = [np.random.default_rng((self._seed, n % self._batch)) for n in numbers.tolist()]
        return shifted(np.stack([row.integers(0, self._vocab_size, self._length, dtype=np.int32) for row in rows]))
