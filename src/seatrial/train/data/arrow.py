"""Rows of tokens as `datasets.save_to_disk` writes them: `input_ids`, perhaps `labels` and `attention_mask`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from seatrial.records import DataError
from seatrial.records.rows import open_arrow
from seatrial.train.data.examples import Ends, Example


class TokenRows:
    """Rows of R tokens as R // T sequences each; labels are a copy of the tokens, shifted here.

    The last token of a row has no next one, so its loss does not count; nor does that of a label of -100.
    """

    group = 1
    notes: Sequence[str] = ()

    def __init__(self, files: list[Path], max_rows: int | None, length: int, ends: Ends) -> None:
        self._files, self._length, self._ends = files, length, ends
        self._tables = [read_arrow(path) for path in files]  # in their parts: to join them would copy all
        for path, table in zip(files, self._tables, strict=True):
            if "input_ids" not in table.column_names:
                there = ", ".join(table.column_names)
                raise ValueError(f"{path}: has no column 'input_ids'; there are {there}; tokenise the data first")
        self._firsts = np.cumsum([0, *(len(table) for table in self._tables)])
        first = next((file for file, table in enumerate(self._tables) if len(table)), None)
        self._width = 0 if first is None else len(self._column(first, "input_ids", 0))
        self._parts = self._width // length
        if not self._parts or self._width % length > 1:
            raise ValueError(
                f"{files[first or 0]}: rows of {self._width} tokens cannot be cut into sequences of {length} "
                "(batch.sequence_length); chunk the data to that length, or to a multiple of it"
            )
        self.count = min(int(self._firsts[-1]), max_rows or int(self._firsts[-1])) * self._parts

    def _column(self, file: int, name: str, row: int) -> np.ndarray:
        try:
            return np.asarray(self._tables[file].column(name)[row].values.to_numpy(), np.int64)
        except (AttributeError, TypeError, ValueError, pa.ArrowException) as error:
            raise ValueError(f"{self._files[file]}, row {row}: no list of whole numbers in {name!r}") from error

    def _place(self, number: int) -> tuple[int, int]:
        """The file of a row, and its number there."""
        file = int(np.searchsorted(self._firsts, number, side="right")) - 1
        return file, number - int(self._firsts[file])

    def where(self, row: int, place: int) -> str:
        file, there = self._place(row // self._parts)
        return f"{self._files[file]}, row {there}"

    def _row(self, number: int) -> dict[str, np.ndarray]:
        file, row = self._place(number)
        columns = [n for n in ("input_ids", "labels", "attention_mask") if n in self._tables[file].column_names]
        found = {name: self._column(file, name, row) for name in columns}
        for name, values in found.items():
            if len(values) != self._width:
                why = f"{len(values)} numbers in {name!r}, and the first row has {self._width}"
                raise ValueError(f"{self._files[file]}, row {row}: {why}; chunk all to one length")
        tokens = found["input_ids"]
        targets = np.append(found.get("labels", tokens)[1:], -100)
        counts = (targets != -100) & (np.append(found.get("attention_mask", tokens * 0 + 1)[1:], 0) != 0)
        return {"tokens": tokens, "targets": np.where(counts, targets, 0), "weights": counts.astype(np.float32)}

    def take(self, rows: np.ndarray) -> Example:
        parts = []
        for number, part in zip(*(x.tolist() for x in np.divmod(rows, self._parts)), strict=True):
            cut = slice(part * self._length, (part + 1) * self._length)
            parts.append({name: values[cut] for name, values in self._row(number).items()})
        return self._ends.mark({name: np.stack([part[name] for part in parts]) for name in parts[0]})


def read_arrow(path: Path) -> pa.Table:
    """An Arrow file or stream, memory-mapped. Raises DataError where it is neither, or not whole."""
    try:
        return open_arrow(path).read_all()
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: not an Arrow file, or cut off ({error})", "copy it again") from error
