"""One batch of random tokens, again in every step, as MaxText's `dataset_type=synthetic`: speed without a disk."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seatrial.train.data.examples import NO_ENDS, Ends, Example, shifted


@dataclass(frozen=True)
class Synthetic:
    """Sequence n is the (n mod batch)-th of a fixed random batch, so the loss of a sound trainer falls.

    With `prompts`, only the second half of each is learnt; with `pairs`, sequences 2i and 2i + 1 have the same prompt.
    """

    vocab_size: int
    sequence_length: int
    batch: int
    seed: int
    ends: Ends = NO_ENDS
    prompts: bool = False
    pairs: bool = False
    num_examples = None

    def _sequences(self, numbers: np.ndarray) -> np.ndarray:
        randoms = [np.random.default_rng((self.seed, number)) for number in numbers.tolist()]
        return np.stack([r.integers(0, self.vocab_size, self.sequence_length + 1, dtype=np.int32) for r in randoms])

    def where(self, number: int, place: int) -> str:
        return f"random sequence {number % self.batch}"

    def examples(self, numbers: np.ndarray) -> Example:
        numbers = numbers % self.batch
        sequences = self._sequences(numbers)
        prompt = self.sequence_length // 2 if self.prompts or self.pairs else 0
        if self.pairs:
            sequences[:, :prompt] = self._sequences(numbers - numbers % 2)[:, :prompt]
        example = shifted(sequences)
        example["weights"][:, : max(0, prompt - 1)] = 0
        return self.ends.mark(example)
