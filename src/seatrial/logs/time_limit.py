"""Limits the time that a pattern of the user's own may take: Python's regular expressions have no limit themselves."""

from __future__ import annotations

import signal
import threading
from contextlib import AbstractContextManager, nullcontext
from types import FrameType

from seatrial.errors import InputError

SECONDS = 3.0  # of the processor, for a block of lines, which takes milliseconds


class _Limit:
    """A context, to be entered many times, that ends with an InputError where it takes too long."""

    def __init__(self, error: InputError) -> None:
        self._error = error

    def _stop(self, _: int, __: FrameType | None) -> None:
        raise self._error

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGVTALRM, self._stop)
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, self._before)


def limited(error: InputError) -> AbstractContextManager[None]:
    """The limit; none in a thread of its own, which gets no signals."""
    return _Limit(error) if threading.current_thread() is threading.main_thread() else nullcontext()
