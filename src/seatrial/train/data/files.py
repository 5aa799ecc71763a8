"""Files → rows → tokens, once: text of any kind, JSON lines, Parquet, Arrow, folders of `datasets.save_to_disk`."""

from __future__ import annotations

import fcntl
import glob
import gzip
import hashlib
import json
import sysconfig
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from seatrial.runs.files import read_object
from seatrial.train.data.indexed import Indexed, files_of, in_memory, read_indexed, write_indexed
from seatrial.train.data.tokenizer import Tokenizer

STANDARD_LIBRARY = "stdlib:"
TABLES = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".parquet", ".arrow")
ROWS_AT_ONCE = 1024


def find_files(patterns: Iterable[str], key: str = "data.paths", *, folders: bool = False) -> list[Path]:
    """The files that paths and globs name, sorted; with `folders`, the tables in these too.

    Raises ValueError for a name of none.
    """
    files: set[Path] = set()
    for pattern in patterns:
        name = pattern
        if pattern.startswith(STANDARD_LIBRARY):
            name = str(Path(sysconfig.get_paths()["stdlib"]) / pattern.removeprefix(STANDARD_LIBRARY))
        names = glob.glob(str(Path(name).expanduser()), recursive=True)  # noqa: PTH207 - absolute patterns too
        found = [Path(name) for name in names if Path(name).is_file()]
        found += [file for name in names if folders and Path(name).is_dir() for file in _in_folder(Path(name))]
        if not found:
            raise ValueError(f"{key}: no file matches {pattern!r}; give a path, folder or glob on this machine")
        files.update(found)
    return sorted(files)


def _in_folder(folder: Path) -> list[Path]:
    """What a folder of `save_to_disk` lists, else the tables that lie in it."""
    state = folder / "state.json"
    if not state.is_file():
        if (folder / "dataset_dict.json").is_file():
            raise ValueError(f"{folder}: holds several splits; name the folder of one, as {folder / 'train'}")
        return [path for path in folder.iterdir() if path.name.endswith(TABLES)]
    try:
        names = [Path(entry["filename"]).name for entry in read_object(state)["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{state}: does not list data files as save_to_disk does; save the data again") from error
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder}: {missing[0]} is missing, which state.json lists; copy or save the data again")
    return [folder / name for name in names]


# --- tables -----------------------------------------------------------------------------------------------------------


def read_arrow(path: Path) -> pa.Table:
    """An Arrow file or stream, memory-mapped."""
    with pa.memory_map(str(path)) as file:
        for read in (pa.ipc.open_stream, pa.ipc.open_file):
            try:
                file.seek(0)
                return read(file).read_all()
            except (pa.ArrowInvalid, OSError) as error:
                why = error
    raise ValueError(f"{path}: not an Arrow file, or cut off ({why}); copy it again")


def read_rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The rows of a table's text columns. Raises ValueError, with file and row, for what is not there or no text."""
    for where, row in numbered_rows(path, columns):
        for column in columns:
            if not isinstance(row.get(column), str):
                has = "has no" if column not in row else f"has {str(row[column])[:40]!r} instead of"
                raise ValueError(f"{where}: {has} text in {column!r}; there are {', '.join(map(str, row))[:200]}")
        yield tuple(row[column] for column in columns)


def numbered_rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(file and row, its values) of a table's rows; of Parquet and Arrow, no other columns than these.

    Raises ValueError, with file and row, for what is no object of JSON, and for a column that a table does not have.
    """
    for where, row in (_columns if path.suffix in (".parquet", ".arrow") else _json_lines)(path, columns):
        if not isinstance(row, dict):
            raise ValueError(f"{where}: {str(row)[:40]!r} is not an object; write {{{', '.join(columns)}}} as JSON")
        yield where, row


def names_of(path: Path) -> tuple[str, list[str]]:
    """(where that stands, the names of a table's columns, or of what its first row has); none of a file without rows.

    Raises ValueError where it is no table.
    """
    if path.suffix in (".parquet", ".arrow"):
        try:
            schema = pyarrow.parquet.read_schema(path) if path.suffix == ".parquet" else read_arrow(path).schema
        except (OSError, pa.ArrowException) as error:
            raise ValueError(f"{path}: cannot be read ({error}); copy it again") from error
        return str(path), list(schema.names)
    where, row = next(numbered_rows(path, ("…",)), (str(path), {}))
    return where, list(map(str, row))


def _json_lines(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if number == 1 and line.lstrip().startswith(b"["):  # one array instead of lines
                    yield from ((f"{path}, row {i}", row) for i, row in enumerate(json.loads(line + file.read())))
                elif line.strip():
                    where = f"{path}, line {number}"
                    try:
                        yield where, json.loads(line)
                    except (ValueError, RecursionError) as error:
                        raise ValueError(f"{where}: not JSON ({error}); write one object a line") from error
    except (OSError, EOFError, zlib.error, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from error


def _columns(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    try:
        if path.suffix == ".parquet":
            file = pyarrow.parquet.ParquetFile(path, memory_map=True)
            names = file.schema_arrow.names
            batches = file.iter_batches(ROWS_AT_ONCE, columns=[name for name in columns if name in names])
        else:
            table = read_arrow(path)
            names, batches = table.column_names, iter(table.to_batches(max_chunksize=ROWS_AT_ONCE))
        missing = [name for name in columns if name not in names]
        if missing:
            raise ValueError(f"{path}: has no column {missing[0]!r}; there are {', '.join(names)[:200]}")
        rows = (row for batch in batches for row in batch.select(columns).to_pylist())
        yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows))
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"{path}: cannot be read ({error}); copy it again") from error


# --- tokens -----------------------------------------------------------------------------------------------------------


def documents(path: Path, tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    """The tokens of each text of a table, or of any other file as one text, with the token that ends it."""
    texts = read_rows(path, ("text",)) if path.name.endswith(TABLES) else iter([(path.read_bytes(),)])
    for rows in batched(texts):
        try:
            encoded = tokenizer.encode([text for (text,) in rows])
        except UnicodeDecodeError as error:
            why = f"byte {error.start} is not UTF-8 ({error.reason})"
            raise ValueError(f"{path}: {why}; convert it, or use the byte tokenizer") from error
        yield from (np.append(tokens, tokens.dtype.type(tokenizer.end)) for tokens in encoded)


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
    special = [tokenizer.begin, tokenizer.end, tokenizer.template]
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
