"""A table by columns, each with its type and unit, that data frames take as it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from seatrial.errors import LaunchError


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column's name, Arrow type and unit, "" without one."""

    name: str
    type: Literal["int64", "float64", "string", "bool"]
    unit: str
    meaning: str


@dataclass(frozen=True, kw_only=True, repr=False)
class Table:
    """Columns of equal length; a value that is not known is None, which is not NaN.

    `table["loss"]` is a column as a tuple of Python's own values, `len(table)` the number of rows. pandas, polars and
    every other library that knows Arrow's PyCapsule interface or the data-frame interchange protocol takes the table as
    it is: `polars.DataFrame(table)`, `pandas.DataFrame.from_arrow(table)`, `pyarrow.table(table)`. For that, pyarrow
    must be installed (`pip install 'seatrial[train]'`); else LaunchError is raised.
    """

    columns: tuple[Column, ...]
    values: Mapping[str, tuple[Any, ...]]

    @classmethod
    def of_rows(cls, columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> Table:
        """A table of rows with a value per column."""
        found = list(zip(*rows, strict=True)) or [()] * len(columns)
        return cls(
            columns=tuple(columns),
            values={column.name: values for column, values in zip(columns, found, strict=True)},
        )

    def __len__(self) -> int:
        return len(self.values[self.columns[0].name])

    def __getitem__(self, name: str) -> tuple[Any, ...]:
        """A column. Raises KeyError for a name that is none."""
        return self.values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def __repr__(self) -> str:
        return f"Table({len(self)} rows: {', '.join(self.values)})"

    def to_arrow(self) -> Any:
        """A pyarrow.Table, of which each field has its `unit` and `meaning` as metadata."""
        try:
            import pyarrow as pa
        except ImportError as error:
            why = "a table for data frames needs pyarrow, which is not installed: pip install 'seatrial[train]'"
            raise LaunchError(why) from error
        fields = [
            pa.field(
                column.name,
                pa.type_for_alias(column.type),
                metadata={"unit": column.unit, "meaning": column.meaning},
            )
            for column in self.columns
        ]
        arrays = [pa.array(self.values[field.name], type=field.type, from_pandas=False) for field in fields]
        return pa.table(arrays, schema=pa.schema(fields))

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The table by Arrow's PyCapsule interface."""
        stream: object = self.to_arrow().__arrow_c_stream__(requested_schema)
        return stream

    def __dataframe__(self, nan_as_null: bool = False, allow_copy: bool = True) -> object:
        """The table by the data-frame interchange protocol."""
        frame: object = self.to_arrow().__dataframe__(nan_as_null=nan_as_null, allow_copy=allow_copy)
        return frame
