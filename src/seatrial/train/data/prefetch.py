"""The next batches, made while the devices compute."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Batch = TypeVar("Batch")


class Prefetched(Generic[Batch]):
    """`make(step)` for the steps from `first` up to, not including, `last`, in order, up to `ahead` of them early.

    `waited_seconds`: how long the last `get` took, which is how long the devices had to wait for data.
    """

    def __init__(self, make: Callable[[int], Batch], first: int, last: int, ahead: int = 2) -> None:
        self._make, self._next, self._last = make, first, last
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="data")
        self._coming: deque[tuple[int, Future[Batch]]] = deque()
        self.waited_seconds = 0.0
        for _ in range(ahead):
            self._ask()

    def _ask(self) -> None:
        if self._next < self._last:
            self._coming.append((self._next, self._thread.submit(self._make, self._next)))
            self._next += 1

    def get(self, step: int) -> Batch:
        """The batch of the next step, which must be `step`. Raises what `make` raised for it."""
        start = time.monotonic()
        number, batch = self._coming.popleft()
        assert number == step, f"the batch of step {number} comes before that of {step}"
        made = batch.result()
        self._ask()
        self.waited_seconds = time.monotonic() - start
        return made

    def close(self) -> None:
        """Ends the thread, after the batch that it is making."""
        self._thread.shutdown(cancel_futures=True)
