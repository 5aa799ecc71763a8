"""Files → tokens, once: text of any kind, and the texts of tables."""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from seatrial.records import TABLES
from seatrial.records.paths import content_of
from seatrial.records.rows import read_rows
from seatrial.train.data.indexed import Indexed, files_of, in_memory, read_indexed, write_indexed
from seatrial.train.data.tokenizer import Tokenizer

ROWS_AT_ONCE = 1024


def documents(path: Path, tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    """The tokens of each text of a table, or of any other file as one text, with the token that ends it."""
    texts = read_rows(path, ("text",)) if path.name.endswith(TABLES) else iter([(content_of(path),)])
    for rows in batched(texts):
        try:
            encoded = tokenizer.encode([text for (text,) in rows])
        except UnicodeDecodeError as error:
            why = f"byte {error.start} is not UTF-8 ({error.reason})"
            raise ValueError(f"{path}: {why}; convert it, or use the byte tokenizer") from error
        yield from (np.append(tokens, tokens.dtype.type(tokenizer.end)) for tokens in encoded)


def documents_from_begin(path: Path, tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    """The same, each with the token that begins it; a tokenizer without one adds none, as Hugging Face's."""
    begin = [] if tokenizer.begin is None else [tokenizer.begin]
    return (np.concatenate((np.array(begin, tokens.dtype), tokens)) for tokens in documents(path, tokenizer))


def batched(rows: Iterator[Any]) -> Iterator[list[Any]]:
    """Lists of some rows each."""
    while some := list(islice(rows, ROWS_AT_ONCE)):
        yield some


def tokenised(
    files: list[Path],
    tokenizer: Tokenizer,
    index_dir: str | None,
    sequences: Callable[[Path, Tokenizer], Iterator[np.ndarray]] = documents,
) -> Indexed:
    """The sequences of all files, one after the other; made once, and kept where other processes find them.

    Kept under a name that follows from the files (path, size, time), the tokenizer and what is made of them; bytes are
    not kept, because they are the files themselves. Raises ValueError where nothing can be written.
    """
    made = (tokens for path in files for tokens in sequences(path, tokenizer))
    if tokenizer.fingerprint == "byte":
        return in_memory(made)
    from platformdirs import user_cache_path

    folder = Path(index_dir).expanduser() if index_dir else user_cache_path("seatrial") / "tokens"
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    special = [tokenizer.begin, tokenizer.end, tokenizer.template.text]
    key = json.dumps([2, sequences.__name__, tokenizer.fingerprint, *special, stats])
    prefix = folder / f"tokens-{hashlib.sha256(key.encode()).hexdigest()[:32]}"
    if not files_of(prefix)[0].is_file():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with prefix.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # one process makes it, the others wait; a dead one holds nobody up
                if not files_of(prefix)[0].is_file():
                    write_indexed(prefix, tokenizer.dtype, made)
        except OSError as error:
            why = f"tokens cannot be kept there ({error.strerror})"
            raise ValueError(f"{folder}: {why}; give another data.index_dir") from error
    return read_indexed(prefix)
