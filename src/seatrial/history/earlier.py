"""Other runs of the same configuration: those beside a run directory, and those that the index knows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seatrial.errors import InputError
from seatrial.history.index import Index, default_path
from seatrial.history.summary import IndexRow, real, without_copies
from seatrial.runs.copies import record_id
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


def require_no_copies(runs: Sequence[Path]) -> None:
    """Raises InputError where one of the runs is a copy of another."""
    found: dict[str, Path] = {}
    for run in runs:
        record = record_id(run)
        other = found.setdefault(record, run) if record else run
        if other != run:
            why = f"it is a copy of {other}, or of the same log: one run, which says nothing of how far runs differ"
            raise InputError.single("same-run", str(run), why, "name each run once, or add --anyway")


def _known_rows(named: Sequence[Path]) -> list[IndexRow]:
    """The rows of the index, with what stands beside the named runs."""
    with Index(default_path()) as index:
        for folder in {run.resolve().parent for run in named}:
            index.refresh(folder, levels=1)
        return index.rows()


def _groups(rows: Sequence[IndexRow], named: Sequence[Path]) -> list[tuple[IndexRow, list[IndexRow]]]:
    """Each of the named runs that has a configuration, with the others of it that passed, the newest first.

    A copy of a run, or of one of those named, is no other run.
    """
    directories = {str(run.resolve()) for run in named}
    own = [row for row in rows if str(row["directory"]) in directories]
    records = {row["record"] for row in own} - {None}
    others = [row for row in rows if str(row["directory"]) not in directories and row["record"] not in records]
    return [
        (row, without_copies(other for other in others if _is_alike(other, row)))
        for row in own
        if row["fingerprint"] is not None
    ]


def _is_alike(other: IndexRow, row: IndexRow) -> bool:
    """True if it is of the same configuration and trainer, passed, and still there."""
    same = all(other[column] == row[column] for column in ("fingerprint", "device", "family"))
    return same and other["outcome"] == "pass" and is_run(Path(str(other["directory"])))
