"""The record of a script's run in the sandbox, as its stand-ins wrote it down: untrusted text, of bounded size."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STARTUP = "/seatrial/startup.sh"
MAX_CALLS = 5_000
_NO_TEXT = re.compile("[\ud800-\udfff]")  # as Python has bytes that are no UTF-8
MAX_CALL_BYTES = 4 * 2**20
MAX_TRACE_BYTES = 32 * 2**20


@dataclass(frozen=True, kw_only=True)
class Call:
    """A program that was started: its words, where, by which line, and inside which other (`parent`, a number).

    `kind` is "wrapper" (it starts another: `before` are its own words), "start" (it may be a training), "text" (Python
    or shell text on its input), "answer" (a question about this machine) or "other".
    """

    number: str
    argv: tuple[str, ...]
    kind: str
    before: tuple[str, ...] = ()
    text: str = ""
    folder: str = ""
    file: str = ""
    line: int = 0
    parent: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)  # that list its machines: path → text


@dataclass(frozen=True, kw_only=True)
class Step:
    """A command of the shell, as it is written: its place, the folder in which it was, and how it failed.

    `status` 0: it began; one that fails follows again with its exit status.
    """

    file: str
    line: int
    folder: str
    text: str
    status: int = 0


def calls(scratch: Path) -> list[Call]:
    """All calls in the order in which they were made. What a script has put there instead of one is left out."""
    try:
        with _opened(scratch, os.O_DIRECTORY) as top, _opened("records", os.O_DIRECTORY, top) as folder:
            names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))  # noqa: PTH208
            texts = [(name, _text(name, folder, MAX_CALL_BYTES)) for name in names[:MAX_CALLS]]
    except OSError:
        return []
    return [call for name, text in texts for call in _call(name.removesuffix(".json"), text)]


def steps(scratch: Path) -> list[Step]:
    """The commands of the shells, in the order in which they ran, without those of our own functions."""
    with _opened(scratch, os.O_DIRECTORY) as top:
        words = _text("trace", top, MAX_TRACE_BYTES).split("\0")
    found = zip(words[::4], words[1::4], words[2::4], words[3::4], strict=False)
    return [
        Step(file=file, line=line, folder=folder, text=text, status=_number(status))
        for at, folder, text, status in found
        for file, line in [_place(at)]
        if file != STARTUP
    ]


@contextmanager
def _opened(path: Path | str, flags: int = 0, folder: int | None = None) -> Iterator[int]:
    """The descriptor of a file or folder that is no link."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | flags, dir_fd=folder)
    try:
        yield number
    finally:
        os.close(number)


def _text(name: str, folder: int, limit: int) -> str:
    """The beginning of a regular file; nothing of anything else."""
    try:
        with _opened(name, 0, folder) as file:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return ""
            content = bytearray()
            while len(content) < limit and (more := os.read(file, limit - len(content))):
                content += more
    except OSError:
        return ""
    return content.decode("utf-8", "replace")


def _call(number: str, text: str) -> Iterator[Call]:
    try:
        found = json.loads(text)
        file, line = _place(_shown(found["at"]))
        environment, files = _texts(found["environment"]), _texts(found.get("files", {}))
        words, before = _words(found["argv"]), _words(found["before"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return
    if words:
        yield Call(
            number=number, argv=words, before=before, kind=str(found.get("kind")), text=_shown(found.get("text", "")),
            folder=_shown(found.get("folder", "")), file=file, line=line, parent=str(found.get("parent", "")),
            environment=environment, files=files,
        )  # fmt: skip


def _shown(value: Any) -> str:
    """A value as text that can be written: bytes that are no UTF-8 are the sign that replaces them."""
    return _NO_TEXT.sub("\ufffd", str(value))


def _texts(found: Any) -> dict[str, str]:
    return {_shown(key): _shown(value) for key, value in found.items()}


def _words(found: Any) -> tuple[str, ...]:
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise TypeError
    return tuple(map(_shown, found))


def _place(text: str) -> tuple[str, int]:
    file, _, line = text.rpartition(":")
    return file, _number(line)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0
