"""Real text through the byte tokenizer: token = byte, so any file will do and nothing has to be downloaded."""

from __future__ import annotations

import glob
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from seatrial.train.data.examples import Example, shifted

STANDARD_LIBRARY = "stdlib:"


def find_files(patterns: Iterable[str]) -> list[Path]:
    """The files that paths and globs name, sorted. Raises ValueError for a pattern that names none."""
    files: set[Path] = set()
    for pattern in patterns:
        if pattern.startswith(STANDARD_LIBRARY):
            pattern = str(Path(sysconfig.get_paths()["stdlib"]) / pattern.removeprefix(STANDARD_LIBRARY))
        names = glob.glob(str(Path(pattern).expanduser()), recursive=True)  # noqa: PTH207 - absolute patterns too
        found = [Path(name) for name in names if Path(name).is_file()]
        if not found:
            raise ValueError(f"data.paths: no file matches {pattern!r}")
        files.update(found)
    return sorted(files)


class Text:
    """The files end to end, cut into windows of T + 1 bytes, shuffled anew in every epoch by the seed."""

    def __init__(self, patterns: Iterable[str], sequence_length: int, vocab_size: int, seed: int) -> None:
        if vocab_size < 256:
            raise ValueError(f"the byte tokenizer needs model.vocab_size ≥ 256, not {vocab_size}")
        content = b"\n".join(path.read_bytes() for path in find_files(patterns))
        self._bytes = np.frombuffer(content, np.uint8)
        self._length = sequence_length
        self._seed = seed
        self.num_examples = (len(self._bytes) - 1) // sequence_length
        if self.num_examples < 1:
            raise ValueError(
                f"data.paths: {len(content)} bytes of text are less than one sequence of {sequence_length}"
            )
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def _window(self, number: int) -> int:
        """Where sequence `number` begins, counted in windows."""
        epoch, position = divmod(number, self.num_examples)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, np.random.default_rng((self._seed, epoch)).permutation(self.num_examples)
        return int(self._order[position])

    def examples(self, numbers: np.ndarray) -> Example:
        starts = np.array([self._window(n) for n in numbers.tolist()]) * self._length
        return shifted(self._bytes[starts[:, None] + np.arange(self._length + 1)].astype(np.int32))
