"""Megatron's `.bin` and `.idx`: sequences of tokens, memory-mapped. Tokenised text is cached in the same form.

`.idx`: magic, version 1, type code, numbers of sequences and documents, then the sequences' sizes (int32), where each
begins in `.bin` (int64, bytes), and which sequence begins each document (int64, one more than documents).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from seatrial.errors import reason_of

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
DTYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}
CODES = {np.dtype(kind): code for code, kind in DTYPES.items()}


@dataclass(frozen=True)
class Indexed:
    """Sequence i is `tokens[starts[i] : starts[i] + sizes[i]]`."""

    tokens: np.ndarray
    sizes: np.ndarray
    starts: np.ndarray

    def __getitem__(self, i: int) -> np.ndarray:
        return self.tokens[self.starts[i] : self.starts[i] + self.sizes[i]]

    def __len__(self) -> int:
        return len(self.sizes)


def in_memory(sequences: Iterable[np.ndarray]) -> Indexed:
    """Sequences as they would be read back."""
    parts = [np.empty(0, np.uint8), *sequences]
    sizes = np.array([len(part) for part in parts[1:]], np.int32)
    return Indexed(np.concatenate(parts), sizes, np.cumsum(sizes, dtype=np.int64) - sizes)


def files_of(prefix: str | Path) -> tuple[Path, Path]:
    """The .idx and the .bin file of a prefix; either of their names will do for it."""
    name = str(Path(prefix).expanduser())
    name = name.removesuffix(".bin").removesuffix(".idx")
    return Path(f"{name}.idx"), Path(f"{name}.bin")


def read_indexed(prefix: str | Path) -> Indexed:
    """The sequences of PREFIX.bin and PREFIX.idx. Raises ValueError for files that are not whole or cannot be read."""
    index, content = files_of(prefix)
    try:
        return _read(index, content)
    except OSError as error:
        why = f"{error.filename or index}: cannot be read ({reason_of(error)})"
        raise ValueError(f"{why}; correct its permissions, or give other data") from error


def _read(index: Path, content: Path) -> Indexed:
    for path in (index, content):
        if not path.is_file():
            raise ValueError(f"{path}: no such file; Megatron's data are named by the path of .bin and .idx")
    with index.open("rb") as file:
        header = file.read(HEADER.size)
    if not header.startswith(MAGIC):
        raise ValueError(f"{index}: not an index of Megatron's: it begins with {header[:9]!r}, not {MAGIC!r}")
    if len(header) < HEADER.size:
        raise ValueError(f"{index}: cut off in its header, after {len(header)} bytes; copy it again")
    _, version, code, n, documents = HEADER.unpack(header)
    if version != 1 or code not in DTYPES:
        raise ValueError(f"{index}: version {version}, type {code}; only version 1 with integers can be read")
    expected, there = HEADER.size + 12 * n + 8 * documents, index.stat().st_size
    if n == 0 or there != expected:
        why = f"{n} sequences and {documents} document marks need {expected} bytes, and there are {there}"
        raise ValueError(f"{index}: {why if n else 'it holds no sequences'}; regenerate or copy it again")
    sizes = np.memmap(index, "<i4", "r", HEADER.size, (n,))
    pointers = np.memmap(index, "<i8", "r", HEADER.size + 4 * n, (n,))
    dtype = np.dtype(DTYPES[code]).newbyteorder("<")
    size = content.stat().st_size
    wrong = (sizes < 0) | (pointers < 0) | (pointers % dtype.itemsize != 0)
    wrong |= pointers + sizes.astype(np.int64) * dtype.itemsize > size
    if wrong.any():
        i = int(np.argmax(wrong))
        why = f"sequence {i} has {sizes[i]} tokens from byte {pointers[i]} on, and {content.name} has {size} bytes"
        raise ValueError(f"{index}: {why}; the two do not belong together, or one is cut off")
    if size == 0:
        raise ValueError(f"{content}: empty; regenerate it")
    tokens = np.memmap(content, dtype, "r", shape=(size // dtype.itemsize,))
    return Indexed(tokens, sizes, pointers // dtype.itemsize)


def write_indexed(prefix: str | Path, dtype: type[np.generic], sequences: Iterable[np.ndarray]) -> tuple[int, int]:
    """Writes PREFIX.bin and PREFIX.idx, each complete when it appears, and returns how many sequences and tokens."""
    index, content = files_of(prefix)
    parts = [path.with_name(f"{path.name}.{os.getpid()}.part") for path in (content, index)]
    sizes: list[int] = []
    try:
        with parts[0].open("wb") as file:
            for tokens in sequences:
                file.write(np.ascontiguousarray(tokens, dtype).tobytes())
                sizes.append(len(tokens))
        if not sizes:
            raise ValueError(f"{content}: nothing to write, because the files that it is made of hold no text")
        with parts[1].open("wb") as file:
            file.write(HEADER.pack(MAGIC, 1, CODES[np.dtype(dtype)], len(sizes), len(sizes) + 1))
            ends = np.cumsum(sizes, dtype=np.int64)
            file.write(np.array(sizes, "<i4").tobytes())
            file.write(((ends - sizes) * np.dtype(dtype).itemsize).astype("<i8").tobytes())
            file.write(np.arange(len(sizes) + 1, dtype="<i8").tobytes())
        parts[0].replace(content)
        parts[1].replace(index)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)
    return len(sizes), int(sum(sizes))
