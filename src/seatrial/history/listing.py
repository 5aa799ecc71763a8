"""The runs of an index as a table or as JSON, and a run by its name."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seatrial.console import inert, row_width, table
from seatrial.errors import InputError
from seatrial.history import history_page
from seatrial.history.index import Index, default_path
from seatrial.history.summary import STATES, IndexRow, Value, versions_of
from seatrial.runs.directory import RUNS, is_run, short_path
from seatrial.verdict import show

ID_CHARACTERS = 8
SHORTEST_ID = 4
MAX_NAMED = 5
FILTERS = ("model", "device", "outcome")
MAKE_ONE = (
    "Make one: `seatrial init tiny-text`, then `seatrial run tiny-text.json`. Other folders of runs: --root DIRECTORY"
)


def find_runs(
    root: Path,
    *,
    rebuild: bool = False,
    model: str | None = None,
    device: str | None = None,
    outcome: str | None = None,
    path: Path | None = None,
) -> tuple[list[IndexRow], tuple[str, ...]]:
    """(the runs below a root, the newest first; those that are gone); the index is brought up to date before.

    `model` and `device` are parts of their names. Raises InputError for a root that is not there (other than `runs`,
    which the first run makes), an outcome that does not exist, and an index that cannot be used; `path` is that of
    the index, by default the user's own.
    """
    wanted = _require_valid(root, outcome)
    with Index(path or default_path()) as index:
        gone = index.refresh(root, rebuild=rebuild).gone
        rows = [
            row
            for row in index.rows(root)
            if _contains(row["model"], model) and _contains(row["device"], device) and wanted in (None, row["outcome"])
        ]
    return rows, gone


def list_runs(root: Path, *, output: str = "text", limit: int = 30, **wanted: Any) -> str:
    """The runs below a root as "text", "json" or "html", the whole page.

    `wanted` is what else `find_runs` takes, and `limit` 0 shows all.

    Raises InputError for a limit below that, and as `find_runs` does.
    """
    if limit < 0:
        raise InputError.single("limit", "--limit", f"{limit} is no number of runs", "give 1 or more, or 0 for all")
    rows, gone = find_runs(root, **wanted)
    shown = rows[:limit] if limit else rows
    if output == "json":
        runs = [_plain(row) for row in shown]
        return json.dumps({"v": 1, "runs": runs, "total": len(rows), "gone": list(gone)}, indent=1)
    notes = _notes(shown, len(rows), gone, root, is_filtered=any(map(wanted.get, FILTERS)))
    if output == "html":
        return history_page.render(root, TITLES, [(row, run_id(row), row_cells(row, root)) for row in shown], notes)
    parts = [table([row_cells(row) for row in shown], head=TITLES, indent=0, columns=row_width())] if shown else []
    return "\n".join([*parts, *map(inert, notes)])


def _require_valid(root: Path, outcome: str | None) -> str | None:
    """The outcome as the index spells it."""
    wanted = outcome.lower().replace(" ", "_").replace("-", "_") if outcome else None
    if wanted is not None and wanted not in STATES:
        why, fix = f"there is no {outcome!r}", f"use one of: {', '.join(STATES)}"
        raise InputError.single("unknown-outcome", "--outcome", why, fix)
    is_first_time = root == RUNS and not root.exists()  # nothing was run here yet, and nobody named a folder
    if not root.is_dir() and not is_first_time:
        why = f"{root} is not a folder" if root.exists() else f"there is no folder {root}"
        raise InputError.single("no-root", "--root", why, "name the folder that holds the run directories")
    return wanted


def locate(text: str, *, path: Path | None = None) -> Path:
    """The run directory that a person means: itself, or by its folder's name, its run's name, or its id in the history.

    Raises InputError where there is none, or several.
    """
    given = Path(text)
    if text and os.path.lexists(given):
        if given.is_dir() and is_run(given):
            return given
        why = f"{text} is not a run directory" if given.is_dir() else f"{text} is a file"
        fix = "name a run directory, or judge the log first: seatrial judge LOG… --out DIR"
        raise InputError.single("no-run", text, why, fix)
    with Index(path or default_path()) as index:
        found = _matches(text, [row for row in index.rows() if text and is_run(_path(row))])
    if not found:
        why = "there is no such directory, and the history has no run of this name or id"
        fix = "name a run directory; `seatrial history` lists those that it knows"
        raise InputError.single("no-run", text, why, fix)
    if len(found) > 1:
        several = ", ".join(f"{run_id(row)} ({row['directory']})" for row in found[:MAX_NAMED])
        why = f"{len(found)} runs have this name: {several}"
        raise InputError.single("several-runs", text, why, "name the directory, or the id")
    return _path(found[0])


def _matches(text: str, rows: Sequence[IndexRow]) -> list[IndexRow]:
    """The rows of a folder's name, or else of a run's, or else of an id."""
    kinds: tuple[Callable[[IndexRow], bool], ...] = (
        lambda row: _path(row).name == text,
        lambda row: row["name"] == text,
        lambda row: len(text) >= SHORTEST_ID and run_id(row).startswith(text.lower()),
    )
    return next((found for kind in kinds if (found := [row for row in rows if kind(row)])), [])


def _path(row: IndexRow) -> Path:
    return Path(str(row["directory"]))


def run_id(row: Mapping[str, Value]) -> str:
    """A short name of a run directory, the same whenever it is indexed."""
    return hashlib.sha256(os.fsencode(str(row["directory"]))).hexdigest()[:ID_CHARACTERS]


def _contains(value: Value, part: str | None) -> bool:
    return part is None or (isinstance(value, str) and part.lower() in value.lower())


def _plain(row: IndexRow) -> dict[str, Any]:
    plain = {name: value for name, value in row.items() if name not in ("stamp", "record")}
    return {"id": run_id(row), **plain, "rehearsal": bool(row["rehearsal"]), "versions": versions_of(row)}


def _where(root: Path) -> str:
    return f"below {root}" if root.is_dir() else f"in {Path.cwd()}, where there is no folder {root}"


def _notes(shown: Sequence[IndexRow], total: int, gone: Sequence[str], root: Path, *, is_filtered: bool) -> list[str]:
    notes = []
    if not total:
        notes.append(f"no runs below {root} that fit" if is_filtered else f"no runs {_where(root)} yet. {MAKE_ONE}")
    if len(shown) < total:
        notes.append(f"{total - len(shown)} more: --limit 0 shows all")
    if gone:
        more = ", …" if len(gone) > MAX_NAMED else ""
        notes.append(f"gone since the last listing: {', '.join(gone[:MAX_NAMED])}{more}")
    return notes + [f"{short_path(_path(row))}: {row['note']}" for row in shown if row["outcome"] == "unreadable"]


TITLES = (
    "id", "date", "outcome", "directory", "model", "devices", "precision", "seq × batch", "step s [95%]",
    "tokens/s/dev", "TFLOP/s/dev", "MFU", "loss",
)  # fmt: skip


def row_cells(row: IndexRow, root: Path | None = None) -> tuple[str, ...]:
    """A row as text: its directory from the root that all are below, or as a person would give it."""
    started = row["started_at"]
    interval = (row["step_seconds_low"], row["step_seconds_high"])
    step = _figure(row["step_seconds"])
    if all(isinstance(value, (int, float)) for value in interval):
        step += f" [{_figure(interval[0])}, {_figure(interval[1])}]"
    return (
        run_id(row),
        time.strftime("%Y-%m-%d %H:%M", time.localtime(started)) if isinstance(started, (int, float)) else "-",
        str(row["outcome"]).replace("_", " "),
        str(_path(row).relative_to(root.resolve())) if root else str(short_path(_path(row))),
        str(row["model"] or "-") + (f" ({row['rehearsal']})" if row["rehearsal"] else ""),
        f"{row['num_devices'] or '?'} × {row['device']}" if row["device"] else _figure(row["num_devices"]),
        str(row["precision"] or "-"),
        f"{_figure(row['sequence_length'])} × {_figure(row['global_batch_size'])}",
        step,
        _figure(row["tokens_per_second_per_device"]),
        _figure(row["tflops_per_second_per_device"]),
        _figure(row["mfu"], "fraction"),
        _figure(row["last_loss"]),
    )


def _figure(value: Value, unit: str = "") -> str:
    return "-" if value is None else show(value, unit)
