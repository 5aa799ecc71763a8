"""A file → its rows, each with its place: JSON lines, an array of JSON, Parquet, Arrow; no more than a part is held."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seatrial.errors import reason_of
from seatrial.records import TABLES, DataError
from seatrial.records.paths import why_no_file

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNAR = (".parquet", ".arrow")

_COPY = "copy it again, or give another file"
_LINES = "write one object a line, or one array of objects"
_PIECE = 1 << 20  # bytes
MOST_SHOWN = 200  # characters of an error or of names
_BLANKS = re.compile(r"[ \t\r\n]+")


class TooLong(DataError):
    """A row that is longer than the limit for one, and may be a sound one."""


@dataclass(kw_only=True)
class Limits:
    """The limits of reading tables; by default, none. `left` goes down with every row, and none follows at 0."""

    rows_at_once: int = 1024  # that are held together, of Parquet and Arrow
    longest: float = math.inf  # bytes of a row of JSON
    left: float = math.inf  # bytes of all rows together

    def take(self, size: int) -> bool:
        """True if this many bytes were still to be read."""
        self.left, before = self.left - size, self.left
        return before > 0


WHOLE = Limits()


def read_rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The rows of a table's text columns. Raises DataError, with file and row, for what is not there or no text."""
    return (texts for _, texts in numbered_texts(path, columns))


def numbered_texts(
    path: Path, columns: tuple[str, ...], limits: Limits = WHOLE
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(file and row, its texts in these columns). Raises as `numbered_rows` does, and DataError for what is no text."""
    for where, row in numbered_rows(path, columns, limits):
        for column in columns:
            if not isinstance(row.get(column), str):
                has = "has no" if column not in row else f"has {str(row[column])[:40]!r} instead of"
                why = f"{where}: {has} text in {column!r}; there are {_shown(row)}"
                raise DataError(why, f"write text in {' and '.join(columns)} of every record")
        yield where, tuple(row[column] for column in columns)


def numbered_rows(path: Path, columns: tuple[str, ...], limits: Limits = WHOLE) -> Iterator[tuple[str, dict[str, Any]]]:
    """(file and row, its values) of a table's rows; of Parquet and Arrow, no other columns than these.

    Raises DataError, with file and row, for what is no object of JSON, and for a column that a table does not have;
    TooLong for a row beyond the limit.
    """
    if why := why_no_file(path):
        raise DataError(f"{path}: {why}", "give other files")
    is_columnar = path.suffix in COLUMNAR
    for where, row in _columnar(path, columns, limits) if is_columnar else _json(path, limits):
        if not isinstance(row, dict):
            raise DataError(f"{where}: {str(row)[:40]!r} is not an object", f"write {{{', '.join(columns)}}} as JSON")
        yield where, row


def names_of(path: Path, limits: Limits = WHOLE) -> tuple[str, list[str]]:
    """(where that stands, the names of a table's columns, or of what its first row has); none of a file without rows.

    Raises DataError where it is no table.
    """
    if path.suffix in COLUMNAR:
        if why := why_no_file(path):
            raise DataError(f"{path}: {why}", "give other files")
        return str(path), list(_opened(path, 1)[0])
    where, row = next(numbered_rows(path, ("…",), limits), (str(path), {}))
    return where, list(map(str, row))


def _shown(names: Iterable[object]) -> str:
    return ", ".join(map(str, names))[:MOST_SHOWN]


# --- JSON -------------------------------------------------------------------------------------------------------------


def _json(path: Path, limits: Limits) -> Iterator[tuple[str, Any]]:
    """The lines of a file as JSON; of one array, its elements."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number in count(1):
                line = file.readline(-1 if limits.longest == math.inf else int(limits.longest) + 1)
                if not line:
                    return
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                    if line.lstrip().startswith(b"["):
                        yield from _Array(path, line, file, limits).rows()
                        return
                if not limits.take(len(line)):
                    return
                if line.strip():
                    yield f"{path}, line {number}", _parsed(path, number, line, limits.longest)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({reason_of(error)})", _COPY) from error


def _parsed(path: Path, number: int, line: bytes, longest: float) -> Any:
    where = f"{path}, line {number}"
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(line, final=len(line) <= longest)
        if len(line) > longest and text.lstrip().startswith("{"):
            raise _too_long(where, longest)
        return json.loads(text)
    except UnicodeDecodeError as error:
        why = f"{where}: byte {error.start} is not UTF-8 ({error.reason})"
        raise DataError(why, "convert the file to UTF-8, or give another one") from error
    except (json.JSONDecodeError, RecursionError) as error:
        fix = _LINES if path.name.endswith(TABLES) else f"give files that end in {', '.join(TABLES)}"
        raise DataError(f"{where}: not JSON ({error})", fix) from error


def _too_long(where: str, longest: float) -> TooLong:
    return TooLong(f"{where}: longer than {int(longest) >> 20} MiB, so it was not looked at", _LINES)


class _Array:
    """An array of JSON that is read as it is needed: no more of its text is held than one element and a piece."""

    def __init__(self, path: Path, start: bytes, file: io.BufferedIOBase, limits: Limits) -> None:
        self._path, self._file, self._limits = path, file, limits
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._bytes, self._row = 0, 0
        self._text, self._at = "", 0
        self._take(start)
        self._at = self._text.index("[") + 1

    def rows(self) -> Iterator[tuple[str, Any]]:
        """The elements, each with its place. Raises DataError where the array is not whole, or more follows it."""
        scan = json.JSONDecoder().raw_decode
        if self._next() == "]":
            self._at += 1
        else:
            for self._row in count():
                value, size = self._element(scan)
                if not self._limits.take(size):
                    return
                yield f"{self._path}, row {self._row}", value
                mark = self._next()
                if mark not in (",", "]"):
                    raise self._wrong("expecting ',' or ']' behind it" if mark else "the file ends behind it")
                self._at += 1
                if mark == "]":
                    break
                self._next()
        if self._next():
            raise self._wrong("more follows behind the array")

    def _element(self, scan: Any) -> tuple[Any, int]:
        """The element that begins here, and its length.

        What seems to be a number, or a text without an end, may go on in the next piece of the file.
        """
        while True:
            try:
                value, end = scan(self._text, self._at)
                why = ""
            except json.JSONDecodeError as error:
                value, end, why = None, len(self._text), error.msg
                if not why.startswith("Unterminated string") and error.pos < end - 16:  # longer than any word of JSON
                    raise self._wrong(why) from error
            except RecursionError as error:
                raise self._wrong("nested too deep") from error
            if end - self._at > self._limits.longest:
                raise _too_long(f"{self._path}, row {self._row}", self._limits.longest)
            if end == len(self._text) and self._more():
                continue
            if why:
                raise self._wrong(why)
            size, self._at = end - self._at, end
            return value, size

    def _next(self) -> str:
        """The next character that is no blank, which comes next; "" at the end of the file."""
        while True:
            blanks = _BLANKS.match(self._text, self._at)
            self._at = blanks.end() if blanks else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _more(self) -> bool:
        """Another piece of the text, as large as what is still needed of it; False where there is none."""
        piece = self._file.read(max(_PIECE, len(self._text) - self._at))
        if piece:
            self._take(piece)
        return bool(piece)

    def _take(self, piece: bytes) -> None:
        waiting = len(self._decoder.getstate()[0])
        try:
            self._text, self._at = self._text[self._at :] + self._decoder.decode(piece), 0
        except UnicodeDecodeError as error:
            place = self._bytes - waiting + error.start
            why = f"{self._path}, row {self._row}: byte {place} of the file is not UTF-8 ({error.reason})"
            raise DataError(why, "convert the file to UTF-8, or give another one") from error
        self._bytes += len(piece)

    def _wrong(self, why: str) -> DataError:
        return DataError(f"{self._path}, row {self._row}: not JSON ({why})", _LINES)


# --- Parquet and Arrow ------------------------------------------------------------------------------------------------


def _columnar(path: Path, columns: tuple[str, ...], limits: Limits) -> Iterator[tuple[str, Any]]:
    names, batches = _opened(path, limits.rows_at_once, columns)
    missing = [name for name in columns if name not in names]
    if missing:
        raise DataError(f"{path}: has no column {missing[0]!r}; there are {_shown(names)}", "rename its columns")
    number = 0
    for batch in batches:
        if not limits.take(batch.nbytes):
            return
        for row in batch.to_pylist():
            yield f"{path}, row {number}", row
            number += 1


def _opened(path: Path, at_once: int, columns: tuple[str, ...] = ()) -> tuple[list[str], Iterator[pa.RecordBatch]]:
    """The names of a table's columns, and batches of those of them that are asked for."""
    import pyarrow as pa

    def checked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches:
                batch.validate(full=True)  # damage that pyarrow would follow out of its memory, and texts not in UTF-8
                yield batch
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path}: cannot be read ({reason_of(error)[:MOST_SHOWN]})", _COPY) from error

    try:
        if path.suffix == ".parquet":
            from pyarrow.parquet import ParquetFile

            file = ParquetFile(path, memory_map=True)
            names = list(file.schema_arrow.names)
            return names, checked(file.iter_batches(at_once, columns=[name for name in columns if name in names]))
        reader = open_arrow(path)
        names = list(reader.schema.names)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({reason_of(error)[:MOST_SHOWN]})", _COPY) from error
    return names, checked(_cut(reader, [name for name in columns if name in names], at_once))


def _cut(reader: Any, columns: list[str], at_once: int) -> Iterator[pa.RecordBatch]:
    """The batches of an Arrow file or stream in smaller ones; they are not copied for it."""
    is_file = hasattr(reader, "num_record_batches")  # with an index, and not a stream
    whole = (reader.get_batch(i) for i in range(reader.num_record_batches)) if is_file else reader
    for batch in whole:
        chosen = batch.select(columns)
        yield from (chosen.slice(start, at_once) for start in range(0, len(chosen), at_once))


def open_arrow(path: Path) -> Any:
    """A reader of an Arrow file or stream, memory-mapped. Raises DataError for anything else."""
    import pyarrow as pa

    file = pa.memory_map(str(path))
    for read in (pa.ipc.open_stream, pa.ipc.open_file):
        try:
            file.seek(0)
            return read(file)
        except (pa.ArrowInvalid, OSError) as error:
            why = error
    raise DataError(f"{path}: not an Arrow file, or cut off ({reason_of(why)[:MOST_SHOWN]})", _COPY)
