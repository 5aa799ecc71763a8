"""The runs of an index as a table or as JSON, and a run by its name."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seatrial.errors import InputError
from seatrial.history.index import Changes, Index, default_path
from seatrial.history.summary import STATES, Row, Value, is_run
from seatrial.report.problems import inert
from seatrial.verdict import show

ID_CHARACTERS = 8
SHORTEST_ID = 4
CELL_CHARACTERS = 44
MOST_TOLD = 5


def list_runs(
    root: Path,
    *,
    as_json: bool,
    rebuild: bool = False,
    model: str | None = None,
    device: str | None = None,
    outcome: str | None = None,
    limit: int = 30,
    path: Path | None = None,
) -> str:
    """The runs below a root, the newest first; the index (default: the user's own) is brought up to date before.

    `model` and `device` are parts of their names, `limit` 0 shows all. Raises InputError for a root that is not there,
    an outcome that does not exist, and an index that cannot be used.
    """
    wanted = outcome.lower().replace(" ", "_").replace("-", "_") if outcome else None
    if wanted is not None and wanted not in STATES:
        raise InputError.single(
            "unknown-outcome", "--outcome", f"there is no {outcome!r}", f"use one of: {', '.join(STATES)}"
        )
    if limit < 0:
        raise InputError.single("limit", "--limit", f"{limit} is no number of runs", "give 1 or more, or 0 for all")
    if not root.is_dir():
        why = f"{root} is not a folder" if root.exists() else f"there is no folder {root}"
        raise InputError.single("no-root", "--root", why, "name the folder that holds the run directories")
    with Index(path or default_path()) as index:
        changes = index.refresh(root, rebuild=rebuild)
        rows = [
            row
            for row in index.rows(root)
            if _part(model, row["model"]) and _part(device, row["device"]) and wanted in (None, row["outcome"])
        ]
    shown = rows[:limit] if limit else rows
    return _as_json(shown, len(rows), changes) if as_json else _as_text(shown, len(rows), changes, root)


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
        rows = [row for row in index.rows() if text and is_run(Path(str(row["directory"])))]
    names = (
        [row for row in rows if Path(str(row["directory"])).name == text],
        [row for row in rows if row["name"] == text],
        [row for row in rows if len(text) >= SHORTEST_ID and run_id(row).startswith(text.lower())],
    )
    found = next((matches for matches in names if matches), [])
    if len(found) == 1:
        return Path(str(found[0]["directory"]))
    if found:
        several = ", ".join(f"{run_id(row)} ({row['directory']})" for row in found[:MOST_TOLD])
        raise InputError.single(
            "several-runs", text, f"{len(found)} runs are called so: {several}", "name the directory, or the id"
        )
    why = "there is no such directory, and the history has no run of this name or id"
    raise InputError.single("no-run", text, why, "name a run directory; `seatrial history` lists those that it knows")


def run_id(row: Mapping[str, Value]) -> str:
    """A short name of a run directory, the same whenever it is indexed."""
    return hashlib.sha256(os.fsencode(str(row["directory"]))).hexdigest()[:ID_CHARACTERS]


def _part(wanted: str | None, value: Value) -> bool:
    return wanted is None or (isinstance(value, str) and wanted.lower() in value.lower())


def _as_json(rows: Sequence[Row], total: int, changes: Changes) -> str:
    return json.dumps(
        {"v": 1, "runs": [_plain(row) for row in rows], "total": total, "gone": list(changes.gone)}, indent=1
    )


def _plain(row: Row) -> dict[str, Any]:
    plain: dict[str, Any] = {"id": run_id(row), **row}
    plain.pop("stamp")
    versions = row["versions"]
    return plain | {
        "rehearsal": bool(row["rehearsal"]),
        "versions": json.loads(versions) if isinstance(versions, str) else {},
    }


def _as_text(rows: Sequence[Row], total: int, changes: Changes, root: Path) -> str:
    lines = []
    if rows:
        table = [_TITLES, *(_cells(row) for row in rows)]
        widths = [max(len(line[n]) for line in table) for n in range(len(_TITLES))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in table]
        lines = [line.rstrip() for line in lines]
    notes = [] if total else [f"no runs below {inert(str(root))} that fit"]
    if len(rows) < total:
        notes.append(f"{total - len(rows)} more: --limit 0 shows all")
    if changes.gone:
        told = ", ".join(inert(path) for path in changes.gone[:MOST_TOLD])
        more = ", …" if len(changes.gone) > MOST_TOLD else ""
        notes.append(f"gone since the last look: {told}{more}")
    unreadable = [
        f"{inert(_directory(row))}: {inert(str(row['note']))}" for row in rows if row["outcome"] == "unreadable"
    ]
    return "\n".join([*lines, *notes, *unreadable])


_TITLES = (
    "id", "date", "outcome", "directory", "model", "devices", "precision", "seq × batch", "step s [95%]",
    "tokens/s/dev", "TFLOP/s/dev", "MFU", "loss",
)  # fmt: skip


def _cells(row: Row) -> tuple[str, ...]:
    started = row["started_at"]
    interval = (row["step_seconds_low"], row["step_seconds_high"])
    step = _figure(row["step_seconds"])
    if all(isinstance(value, (int, float)) for value in interval):
        step += f" [{_figure(interval[0])}, {_figure(interval[1])}]"
    return tuple(
        _clipped(cell)
        for cell in (
            run_id(row),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(started)) if isinstance(started, (int, float)) else "-",
            str(row["outcome"]).replace("_", " "),
            _directory(row),
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
    )


def _figure(value: Value, unit: str = "") -> str:
    return "-" if value is None else show(value, unit)


def _directory(row: Row) -> str:
    path = Path(str(row["directory"]))
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _clipped(text: str) -> str:
    """One harmless line; of a long one the end, because names differ there."""
    text = inert(text)
    return text if len(text) <= CELL_CHARACTERS else "…" + text[1 - CELL_CHARACTERS :]
