"""One batch of random tokens, again in every step, as MaxText's `dataset_type=synthetic`: speed without a disk."""

from __future__ import annotations

import numpy as np

from seatrial.train.data.examples import NO_ENDS, Ends, Example, shifted


class Synthetic:
    """Sequence n is the (n mod batch)-th of a fixed random batch, so the loss of a sound trainer falls.

    With `prompts`, only the second half of each is learnt; with `pairs`, sequences 2i and 2i + 1 have the same prompt.
    """

    num_examples = None

    def __init__(
        self, vocab_size: int, sequence_length: int, batch: int, seed: int,
        *, ends: Ends = NO_ENDS, prompts: bool = False, pairs: bool = False,
    ) -> None:  # fmt: skip
        self._vocab_size, self._length, self._batch, self._seed = vocab_size, sequence_length, batch, seed
        self._ends, self._pairs = ends, pairs
        self._prompt = sequence_length // 2 if prompts or pairs else 0

    def _sequence(self, number: int) -> np.ndarray:
        random = np.random.default_rng((self._seed, number))
        return random.integers(0, self._vocab_size, self._length + 1, dtype=np.int32)

    def examples(self, numbers: np.ndarray) -> Example:
        numbers = numbers % self._batch
        sequences = np.stack([self._sequence(n) for n in numbers.tolist()])
        if self._pairs:
            sequences[:, : self._prompt] = np.stack(
                [self._sequence(n - n % 2)[: self._prompt] for n in numbers.tolist()]
            )
        example = shifted(sequences)
        example["weights"][:, : max(0, self._prompt - 1)] = 0
        return self._ends.mark(example)
