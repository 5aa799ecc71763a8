"""The runs of the history as typed values, and as a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from seatrial.history.listing import find_runs, run_id
from seatrial.history.summary import IndexRow, versions_of
from seatrial.report.columns import Column, Table


@dataclass(frozen=True, kw_only=True)
class PastRun:
    """A run directory in the history; None: not known.

    `outcome` is that of its verdict, or running, not_finished, not_judged or unreadable; `note` says more of it.
    `rehearsal` is "rehearsal" or "collapsed run" for a run that was not the one asked for, else "". `fingerprint` is
    the same for runs of the same configuration. `started_at` counts seconds since the epoch. The figures are those of
    the steady window, `step_seconds` in seconds with its 95% interval, `mfu` a fraction.
    """

    id: str
    directory: Path
    name: str
    started_at: float | None
    outcome: str
    note: str | None
    rehearsal: str
    model: str | None
    device: str | None
    precision: str | None
    family: str | None
    convention: str | None
    fingerprint: str | None
    versions: Mapping[str, str]
    num_nodes: int | None
    num_devices: int | None
    sequence_length: int | None
    global_batch_size: int | None
    num_steps: int | None
    planned_steps: int | None
    step_seconds: float | None
    step_seconds_low: float | None
    step_seconds_high: float | None
    tokens_per_second_per_device: float | None
    tflops_per_second_per_device: float | None
    mfu: float | None
    last_loss: float | None


@dataclass(frozen=True, kw_only=True)
class History:
    """The runs below a folder, the newest first; `gone` are directories that were there at the last listing."""

    runs: tuple[PastRun, ...]
    gone: tuple[str, ...]

    @property
    def table(self) -> Table:
        """The runs as a table; `versions` is JSON there, and `directory` text."""
        rows = [[_cell(getattr(run, column.name)) for column in COLUMNS] for run in self.runs]
        return Table.of_rows(COLUMNS, rows)


def past_runs(root: Path, **wanted: Any) -> History:
    """The runs below a root; what is wanted and errors are those of `find_runs`."""
    rows, gone = find_runs(root, **wanted)
    return History(runs=tuple(map(_past_run, rows)), gone=tuple(gone))


def _past_run(row: IndexRow) -> PastRun:
    made: dict[str, Any] = {
        "id": run_id(row),
        "directory": Path(str(row["directory"])),
        "rehearsal": str(row["rehearsal"] or ""),
        "versions": versions_of(row),
    }
    for column in COLUMNS:
        if column.name not in made:
            value = row[column.name]
            made[column.name] = _NUMBERS[column.type](value) if column.type in _NUMBERS else value
    return PastRun(**made)


def _integer(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) else None


def _real(value: Any) -> float | None:
    """A number; the index has "nan" and "inf" as text."""
    return None if value is None else float(value)


def _cell(value: Any) -> Any:
    if isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True)
    return str(value) if isinstance(value, Path) else value


_UNITS = {
    "started_at": "s", "step_seconds": "s", "step_seconds_low": "s", "step_seconds_high": "s", "mfu": "fraction",
    "tokens_per_second_per_device": "tokens/s", "tflops_per_second_per_device": "TFLOP/s",
}  # fmt: skip
_TYPES: Mapping[str, Literal["int64", "float64"]] = {"int | None": "int64", "float | None": "float64"}
COLUMNS = tuple(
    Column(name=field.name, type=_TYPES.get(str(field.type), "string"), unit=_UNITS.get(field.name, ""), meaning="")
    for field in fields(PastRun)
)
_NUMBERS = {"int64": _integer, "float64": _real}
