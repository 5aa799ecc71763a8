"""The files of docker's log driver: `{"log":"text\\n","stream":"stderr","time":"…"}` → the lines that were printed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import wraps
from itertools import chain
from pathlib import Path

_BEGINS = ('{"log":"', '{"log": "')
MOST_HELD = 1 << 16  # characters of a line that docker cuts into pieces of 16 KiB

_ReadBlocks = Callable[[Path], Iterator[list[str]]]


def unwrapping(read: _ReadBlocks) -> _ReadBlocks:
    """A reader of files like `read`, which takes docker's objects off the lines of a file whose first line is one.

    The time goes before a line as `kubectl logs --timestamps` puts it there, but not before an object of JSON.
    """

    @wraps(read)
    def unwrapped(path: Path) -> Iterator[list[str]]:
        blocks = read(path)
        first = next(blocks, None)
        if first is None:
            return
        if not first[0].startswith(_BEGINS):
            yield first
            yield from blocks
            return
        held: dict[str, str] = {}
        for block in chain((first,), blocks):
            if lines := [printed for line in block for printed in _printed(line, held)]:
                yield lines
        if rest := [text for text in held.values() if text]:
            yield rest

    return unwrapped


def _printed(line: str, held: dict[str, str]) -> Iterator[str]:
    """The lines that one of docker's holds; `held` is what came of a line by its stream that is not whole yet."""
    try:
        entry = json.loads(line)
        text, stream, time = (str(entry.get(name, "")) for name in ("log", "stream", "time"))
    except (ValueError, AttributeError):  # cut, or printed by something else
        yield line
        return
    text = held.pop(stream, "") + text
    if not text.endswith("\n") and len(text) < MOST_HELD:
        held[stream] = text
        return
    prefix = f"{time} " if time and not text.startswith("{") else ""
    for piece in text.replace("\r\n", "\n").removesuffix("\n").replace("\r", "\n\r").split("\n"):
        yield piece if piece.startswith("\r") else prefix + piece
