"""The processes that a server starts: each with a pipe, whose closing ends it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any


def start(target: Callable[..., None], *arguments: Any) -> tuple[Any, Connection]:
    """A process that runs `target` with the arguments and the other end of the pipe that comes back.

    It gets no interrupt from the terminal, not even while it starts: the server ends it.
    """
    context = get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=target, args=(*arguments, other))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        other.close()
    return process, pipe


def end(process: Any, pipe: Connection) -> None:
    """Closes the pipe and kills the process, whatever it is doing."""
    pipe.close()
    process.kill()
    process.join()
