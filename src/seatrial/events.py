"""The facts of a run, one JSON object per line: `events-<process>.jsonl`.

Six kinds. Units stand in names; nothing here is derived, so any later stage can be redone from the file.
Non-finite numbers are written as the strings "nan", "inf", "-inf", because JSON has none.
"""

from __future__ import annotations

import dataclasses
import heapq
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Event:
    """What every event says: which process (-1: the launcher), and when by both clocks (seconds)."""

    kind: ClassVar[str]
    process: int = 0
    wall_time: float = field(default_factory=time.time)
    monotonic_time: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    """The process knows what it will do; written once, before its first step.

    `facts` holds what the report shows of it: versions, mesh, device memory, compile seconds and so on.
    """

    kind: ClassVar[str] = "run_started"
    run: str = ""
    attempt: int = 1
    host: str = ""
    num_processes: int = 1
    num_devices: int = 1
    device_kind: str = ""  # as the runtime names it
    planned_steps: int | None = None
    tokens_per_step: int | None = None
    num_parameters: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Step(Event):
    """One optimizer step, as one process saw it. None: not reported, which is not the same as 0.

    `seconds` is the time from the previous step's end to this one's; `data_seconds` is what of it was spent waiting
    for data. `reported` keeps a foreign log's own figures by metric name.
    """

    kind: ClassVar[str] = "step"
    step: int
    seconds: float | None = None
    tokens: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    data_seconds: float | None = None
    reported: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Eval(Event):
    kind: ClassVar[str] = "eval"
    step: int
    loss: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Event):
    """`action`: "save" or "restore"."""

    kind: ClassVar[str] = "checkpoint"
    action: str
    step: int
    seconds: float | None = None
    bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Fault(Event):
    """Something broke. `fault` names its class, `where` the node, rank or file, `line` and `text` the evidence."""

    kind: ClassVar[str] = "fault"
    fault: str
    where: str = ""
    line: int | None = None
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class RunEnded(Event):
    """`reason`: completed, non_finite_loss, died, no_progress, interrupted or could_not_run."""

    kind: ClassVar[str] = "run_ended"
    reason: str
    exit_code: int | None = None


KINDS: dict[str, type[Event]] = {k.kind: k for k in (RunStarted, Step, Eval, Checkpoint, Fault, RunEnded)}


def encode(value: Any) -> Any:
    """Plain data that JSON can carry: non-finite numbers as strings, tuples as lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, Mapping):
        return {str(k): encode(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(v) for v in value]
    return value


_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def _decode(name: str, value: Any) -> Any:
    if name == "reported":
        return {k: _NON_FINITE.get(v, v) if isinstance(v, str) else v for k, v in value.items()}
    if name in _FLOATS and isinstance(value, str):
        return _NON_FINITE.get(value, value)
    return value


_FLOATS = {f.name for k in KINDS.values() for f in dataclasses.fields(k) if "float" in str(f.type)}


def dumps(event: Event) -> str:
    """One event as one line of JSON, without its newline; fields that are None are left out."""
    fields = {k: encode(v) for k, v in vars(event).items() if v is not None}
    return json.dumps({"v": VERSION, "kind": event.kind, **fields}, ensure_ascii=False)


def loads(line: str) -> Event:
    """The inverse of `dumps`. Unknown fields are ignored, so that an older reader reads a newer file.

    Raises ValueError for a line that is not an event.
    """
    data = json.loads(line)
    if not isinstance(data, dict) or data.get("kind") not in KINDS:
        raise ValueError(f"not an event: {line[:80]!r}")
    kind = KINDS[data["kind"]]
    known = {f.name for f in dataclasses.fields(kind)}
    try:
        return kind(**{k: _decode(k, v) for k, v in data.items() if k in known})
    except TypeError as error:
        raise ValueError(f"an incomplete {kind.kind} event: {line[:80]!r}") from error


class Writer:
    """Appends events to one file; every line is flushed, so a killed process loses none that it wrote."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] = path.open("a", encoding="utf-8")

    def write(self, event: Event) -> None:
        self._file.write(dumps(event) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> Iterator[Event]:
    """The events of one file in order; a torn last line (the writer was killed) is left out."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                yield loads(line)
            except ValueError:
                if line.endswith("\n"):
                    raise


def merge(streams: Iterable[Iterable[Event]]) -> list[Event]:
    """All events of a run by wall time. The order within a stream stays, even where its clock was set back."""
    return list(heapq.merge(*streams, key=lambda event: event.wall_time))


def read_run(run_dir: Path) -> list[Event]:
    """Every `events-*.jsonl` of a run directory, merged."""
    return merge(read(path) for path in sorted(run_dir.glob("events-*.jsonl")))
