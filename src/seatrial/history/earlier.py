"""Other runs of the same configuration: those beside a run directory, and those that the index knows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seatrial.errors import InputError
from seatrial.history.index import Index, default_path
from seatrial.history.summary import IndexRow, real
from seatrial.runs.directory import is_run

MOST_RUNS = 20  # the newest
FEWEST_RUNS = 3  # that tell how far runs differ


def earlier_runs(b: Sequence[Path]) -> list[Path]:
    """The runs of the configuration of `b` that passed and started before each of them, the newest first.

    Raises InputError where there is none, or the index cannot be used.
    """
    groups = _groups(_known_rows(b), b)
    starts = [start for own, _ in groups if (start := real(own["started_at"])) is not None]
    first = min(starts, default=0.0) if len(starts) == len(b) else 0.0
    others = [row for _, rows in groups[:1] for row in rows if 0 < (real(row["started_at"]) or 0.0) < first]
    if not others:
        why = "no earlier run of this configuration passed, beside it or in the history"
        fix = "name the runs to compare it with; `seatrial history --root DIR` adds those of another folder"
        raise InputError.single("no-earlier-run", str(b[0]), why, fix)
    return [Path(str(row["directory"])) for row in others[:MOST_RUNS]]


def step_seconds_of_others(named: Sequence[Path]) -> list[list[float]]:
    """The step times in seconds of other runs that passed, a group per configuration and versions of those named.

    Only groups of three runs or more; none where there is no index to look into.
    """
    try:
        return step_seconds_among(_known_rows(named), named)
    except InputError:
        return []


def step_seconds_among(rows: Sequence[IndexRow], named: Sequence[Path]) -> list[list[float]]:
    """As `step_seconds_of_others`, of these rows."""
    alike = {
        (own["fingerprint"], own["versions"]): [row for row in others if row["versions"] == own["versions"]]
        for own, others in _groups(rows, named)
    }
    found = [
        [seconds for row in others if (seconds := real(row["step_seconds"])) is not None and seconds > 0]
        for others in alike.values()
    ]
    return [group[:MOST_RUNS] for group in found if len(group) >= FEWEST_RUNS]


def _known_rows(named: Sequence[Path]) -> list[IndexRow]:
    """The rows of the index, with what stands beside the named runs."""
    with Index(default_path()) as index:
        for folder in {run.resolve().parent for run in named}:
            index.refresh(folder, levels=1)
        return index.rows()


def _groups(rows: Sequence[IndexRow], named: Sequence[Path]) -> list[tuple[IndexRow, list[IndexRow]]]:
    """Each of the named runs that has a configuration, with the others of it that passed, the newest first."""
    own = {str(run.resolve()) for run in named}
    return [
        (row, [o for o in rows if str(o["directory"]) not in own and _is_alike(o, row)])
        for row in rows
        if str(row["directory"]) in own and row["fingerprint"] is not None
    ]


def _is_alike(other: IndexRow, row: IndexRow) -> bool:
    """True if it is of the same configuration and trainer, passed, and still there."""
    same = all(other[column] == row[column] for column in ("fingerprint", "device", "family"))
    return same and other["outcome"] == "pass" and is_run(Path(str(other["directory"])))
