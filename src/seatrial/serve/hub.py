"""Server-sent events: one message, encoded once, for every reader of the page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

WAITING = 64  # messages for a reader that is slow; behind by more, it has to load the page again
KEEP_ALIVE_SECONDS = 15.0  # proxies close what is silent for long
RETRY_MILLISECONDS = 1000


def encode(event: str, data: Any) -> bytes:
    """A message as it goes over the wire; JSON has no line break of its own."""
    return f"event: {event}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


class Hub:
    """Those who listen, in one event loop."""

    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[bytes | None]] = set()
        self._is_closed = False

    def send(self, event: str, data: Any) -> None:
        """A message to all."""
        if not self._queues:
            return
        message = encode(event, data)
        for waiting in self._queues:
            if waiting.full():
                _leave_only(waiting, encode("changed", {"ended": []}))
            else:
                waiting.put_nowait(message)

    async def listen(self, first: bytes) -> AsyncIterator[bytes]:
        """The messages from now on, after a first one, until the hub is closed."""
        own: asyncio.Queue[bytes | None] = asyncio.Queue(WAITING)
        if self._is_closed:
            return
        self._queues.add(own)
        try:
            yield f"retry: {RETRY_MILLISECONDS}\n\n".encode() + first
            while True:
                message: bytes | None = b": still here\n\n"
                with suppress(TimeoutError):
                    message = await asyncio.wait_for(own.get(), KEEP_ALIVE_SECONDS)
                if message is None:
                    return
                yield message
        finally:
            self._queues.discard(own)

    def close(self) -> None:
        """Lets everybody go."""
        self._is_closed = True
        for waiting in self._queues:
            _leave_only(waiting, None)


def _leave_only(waiting: asyncio.Queue[bytes | None], message: bytes | None) -> None:
    """Puts a message in the place of all that wait."""
    while not waiting.empty():
        waiting.get_nowait()
    waiting.put_nowait(message)
