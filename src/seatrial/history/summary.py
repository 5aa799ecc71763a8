"""A run directory → one row of the index: a few figures and names, and no value that may be a secret.

The files are read as plain JSON: a row needs no more, and thousands of directories have to be read in seconds.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from seatrial.command import masked
from seatrial.events import NO_CLOCK
from seatrial.runs.copies import first_event_files, first_events, record_id
from seatrial.runs.documents import Documents, reduction_of
from seatrial.runs.status import GOES_ON, state_of
from seatrial.verdict import EXIT_CODES

Value = str | int | float | None
IndexRow = dict[str, Value]

FILES = ("plan.json", "judged.json", "spec.json", "verdict.json", "status.json", "metrics.json")

# No influence on how a run goes: names, folders that it writes to, addresses, a scheduler's options, which nightly jobs
# change with the date; the rest of its spec is its fingerprint.
_NOT_IN_THE_FINGERPRINT = (
    "name", "dialect", "log_dir", "hf_token_file", "expectations", "distributed", "checkpoint.directory",
    "data.index_dir", "execution.compile_cache", "container.name",
)  # fmt: skip
# Of the variables and of an engine's own keys those of these names.
_NAMED = ("execution.environment", "execution.engine_keys", "container.environment")
_OF_ONE_RUN = re.compile(
    r"(MASTER_|PET_|SLURM_|PBS_|JAX_COORDINATOR|WANDB|MLFLOW|COMET).*|.*(RANK|(RUN|JOB|EXPERIMENT)_?(ID|NAME))"
    r"|.*(TENSORBOARD|LOG|OUTPUT|PROFILE|TRACE|SAVE).*_?(DIR|DIRECTORY|PATH)", re.IGNORECASE,
)  # fmt: skip

# Column → (document, path in it). "spec" is what was run, or else what it was judged against.
_NUMBERS: dict[str, tuple[str, str]] = {
    "num_nodes": ("spec", "topology.num_nodes"),
    "num_devices": ("metrics", "performance.num_devices"),
    "sequence_length": ("spec", "batch.sequence_length"),
    "global_batch_size": ("spec", "batch.global_batch_size"),
    "wall_seconds": ("metrics", "completion.wall_seconds"),
    "num_steps": ("metrics", "completion.num_steps"),
    "planned_steps": ("metrics", "completion.planned_steps"),
    "step_seconds": ("metrics", "performance.estimates.step_seconds.value"),
    "step_seconds_low": ("metrics", "performance.estimates.step_seconds.low"),
    "step_seconds_high": ("metrics", "performance.estimates.step_seconds.high"),
    "tokens_per_second_per_device": ("metrics", "performance.estimates.tokens_per_second_per_device.value"),
    "tflops_per_second_per_device": ("metrics", "performance.estimates.tflops_per_second_per_device.value"),
    "mfu": ("metrics", "performance.estimates.mfu.value"),
    "last_loss": ("metrics", "numerics.last_loss"),
}
_TEXTS: dict[str, tuple[str, str]] = {
    "model": ("spec", "model.name"),
    "device": ("metrics", "performance.device"),
    "convention": ("metrics", "performance.convention"),
}
COLUMNS = (
    "directory", "stamp", "name", "started_at", "outcome", "note", "rehearsal", "precision", "family", "versions",
    "fingerprint", "record", "attempts", *_TEXTS, *_NUMBERS,
)  # fmt: skip
STATES = (*EXIT_CODES, "running", "not_finished", "not_judged", "unreadable")


def stamp(run_dir: Path) -> str:
    """A hash that changes whenever one of the files does that a row is made of."""
    parts = []
    for path in (*(run_dir / name for name in FILES), *first_event_files(run_dir)):
        try:
            found = path.stat()
        except OSError:
            continue
        parts.append(f"{path.name}:{found.st_size}:{found.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def summarise(run_dir: Path, *, now: float | None = None) -> IndexRow:
    """The row of a run directory; what cannot be read makes it "unreadable", with the reason in `note`."""
    row: IndexRow = dict.fromkeys(COLUMNS)
    row |= {"directory": str(run_dir), "stamp": stamp(run_dir), "name": _text(run_dir.name)}
    documents = Documents(run_dir)
    try:
        found = {name.removesuffix(".json"): _document(documents, name) for name in FILES}
        found["spec"] = _mapping(documents.spec_data())
    except ValueError as error:
        return row | {"outcome": "unreadable", "note": _text(str(error))}
    spec, plan, started = found["spec"], found["plan"], _started(run_dir)
    facts = _mapping(started.get("facts"))
    versions = {str(name): str(version) for name, version in _mapping(facts.get("versions")).items()}
    row |= {column: _number(_at(found[name], path)) for column, (name, path) in _NUMBERS.items()}
    row |= {column: _text(_at(found[name], path)) for column, (name, path) in _TEXTS.items()}
    outcome, note = _outcome(run_dir, found, now)
    attempts = _at(found["metrics"], "completion.attempts")
    return row | {
        "name": _text(spec.get("name")) or row["name"],
        "device": row["device"] or _text(started.get("device_kind")) or _text(_at(spec, "topology.device")),
        "num_devices": row["num_devices"] or _number(started.get("num_devices")),
        "precision": _text(_at(spec, "precision.quantization")) or _text(_at(spec, "precision.compute_dtype")),
        "rehearsal": reduction_of(plan),
        "family": _text(facts.get("family")) or _text(found["judged"].get("family")) or _text(plan.get("engine")),
        "versions": json.dumps(versions, sort_keys=True) if versions else None,
        "fingerprint": _fingerprint(spec),
        "record": record_id(run_dir),
        "attempts": len(attempts) if isinstance(attempts, list) else None,
        "started_at": _start(run_dir, started, found["status"]),
        "outcome": outcome,
        "note": note,
    }


def real(value: object) -> float | None:
    """A value of a row as a number; None where there is none, or where it is not finite."""
    return float(value) if isinstance(value, (int, float)) else None


def configuration_of(row: Mapping[str, Value]) -> tuple[Value, ...]:
    """The same for runs of one configuration, by one trainer, on as many of the same devices."""
    return tuple(row[column] for column in ("fingerprint", "device", "num_devices", "family"))


def without_copies(rows: Iterable[IndexRow]) -> list[IndexRow]:
    """The rows without those of a run that another one is of; of copies, the one that started first stays.

    A copy may only seem to have started later, by the times of its files.
    """
    found: dict[Value, IndexRow] = {}
    rows = list(rows)
    for row in sorted(rows, key=lambda row: (real(row["started_at"]) or 0.0, str(row["directory"]))):
        found.setdefault(row["record"] or f"/{row['directory']}", row)
    kept = {str(row["directory"]) for row in found.values()}
    return [row for row in rows if str(row["directory"]) in kept]


def versions_of(row: Mapping[str, Value]) -> dict[str, str]:
    """The versions of a row by name."""
    found: dict[str, str] = json.loads(str(row["versions"] or "{}"))
    return found


def _document(documents: Documents, name: str) -> dict[str, Any]:
    """A JSON object, empty where there is no file. Raises ValueError for anything that is not one."""
    try:
        return documents.get(name)
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror or error}") from error


def _started(run_dir: Path) -> dict[str, Any]:
    """The first `run_started` near the top of the events' files, as plain data."""
    events = chain.from_iterable(first_events(run_dir))
    return next((event for event in events if event.get("kind") == "run_started"), {})


def _start(run_dir: Path, started: Mapping[str, Any], status: Mapping[str, Any]) -> Value:
    """Seconds since the epoch: of the run's own start, or else of the first file that was written about it."""
    counted = _mapping(started.get("facts")).get("clock") == "counted"  # then its times only add up the steps
    for value in (None if counted else started.get("wall_time"), status.get("started")):
        if isinstance(value, (int, float)) and 0 < value < NO_CLOCK:
            return float(value)
    times = []
    for name in FILES:
        with suppress(OSError):
            times.append((run_dir / name).stat().st_mtime)
    return min(times, default=None)


def _outcome(run_dir: Path, documents: Mapping[str, Any], now: float | None) -> tuple[Value, Value]:
    """(one of STATES, a sentence on it)."""
    verdict, status = documents["verdict"], documents["status"]
    state = state_of(run_dir, status, now) if status else ""
    if state in GOES_ON:  # a verdict would be on an earlier attempt
        return "running", f"step {status.get('last_step')}" if state == "running" else state
    if verdict:
        outcome = _text(verdict.get("outcome"))
        known = outcome in STATES
        headline = masked(_text(verdict.get("headline")) or "")  # it may quote the last line of a log
        return (outcome, headline or None) if known else ("unreadable", "verdict.json has no outcome")
    return ("not_finished", "its launcher is gone") if state == "abandoned" else ("not_judged", None)


def _fingerprint(spec: Mapping[str, Any]) -> Value:
    decisive: dict[str, Any] = json.loads(json.dumps(spec))
    for path in _NOT_IN_THE_FINGERPRINT:
        section, _, key = path.rpartition(".")
        _mapping(decisive.get(section) if section else decisive).pop(key, None)
    for path in _NAMED:
        given = _mapping(_at(decisive, path))
        for name in [name for name in given if _OF_ONE_RUN.fullmatch(name.lstrip("-"))]:
            del given[name]
    if not decisive:
        return None
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:12]


def _at(data: Any, path: str) -> Any:
    for key in path.split("."):
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> Value:
    """A number as it stands in JSON: what is not finite is text, because SQLite has no NaN."""
    if value in ("nan", "inf", "-inf"):
        return str(value)
    fits = (type(value) is int and abs(value) < 2**63) or (type(value) is float and math.isfinite(value))
    return value if fits else None


def _text(value: Any) -> str | None:
    """Text that can be stored: JSON may hold half of a character."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) and value else None
