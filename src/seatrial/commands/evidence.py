"""Completes the events of a run before it is judged, from what was recorded in other forms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from seatrial import events
from seatrial.engines import ENGINES, engine
from seatrial.errors import InputError
from seatrial.events import Event, Fault, RunEnded
from seatrial.logs import kernel
from seatrial.logs.clock import Lifetime, on_host_clock
from seatrial.runs.directory import rank_logs
from seatrial.runs.documents import Documents
from seatrial.runs.files import read_object, replacing, write_text
from seatrial.runs.status import read_status


def complete_events(documents: Documents) -> None:
    """Writes the events that the launcher could only note, that an engine's logs hold, and that kernels reported."""
    _write_unrecorded(documents.directory)
    _write_engine_events(documents)
    _write_kernel_faults(documents.directory)


def write_events(record: Sequence[Event], run_dir: Path) -> None:
    """A file of events per process."""
    by_process: dict[int, list[Event]] = {}
    for event in record:
        by_process.setdefault(event.process, []).append(event)
    for process, own in by_process.items():
        lines = (events.dumps(event) + "\n" for event in own)
        with replacing(run_dir / f"events-{process}.jsonl") as file:
            file.writelines(lines)


def _write_unrecorded(run_dir: Path) -> None:
    """Writes the events that the launcher, on a full disk, could only note in the run's status."""
    path = run_dir / "events-launcher.jsonl"
    try:
        lines = read_status(run_dir).get("unrecorded")
    except InputError:
        return
    if not isinstance(lines, list) or (path.exists() and any(isinstance(e, RunEnded) for e in events.read(path))):
        return
    with closing(events.Writer(path)) as writer:
        for line in lines:
            writer.write(events.loads(str(line)))


def _write_engine_events(documents: Documents) -> None:
    """The events of a run whose engine writes none itself, from the logs of its processes."""
    run_dir = documents.directory
    name = documents["plan.json"].get("engine") if documents.has("plan.json") else "native"
    family = engine(name).FAMILY if isinstance(name, str) and name in ENGINES else None
    found = [log for _, log in rank_logs(run_dir)]
    if family and found:
        from seatrial import logs

        write_events(on_host_clock(logs.read(found, family), _lifetimes(run_dir)), run_dir)


def _lifetimes(run_dir: Path) -> dict[int, Lifetime]:
    """The start and end of each process, by rank, as the agents' status files say."""
    found: dict[int, Lifetime] = {}
    for path in (run_dir / "status.json", *run_dir.glob("nodes/*/status.json")):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            found |= {each["rank"]: _lifetime(each) for each in read_object(path)["processes"] if each["started"]}
    return found


def _lifetime(process: Mapping[str, Any]) -> Lifetime:
    """Raises ValueError for times that cannot be."""
    start, end = float(process["started"]), float(process["ended"] or process["last_output"] or process["started"])
    if not start <= end < math.inf:
        raise ValueError("a process cannot end before its start")
    return start, end


def _write_kernel_faults(run_dir: Path) -> None:
    """Writes the faults that the nodes' kernels reported and that can end a run."""
    launcher, path = run_dir / "events-launcher.jsonl", run_dir / "events-kernel.jsonl"
    path.unlink(missing_ok=True)
    recorded = events.read(launcher) if launcher.exists() else ()
    found = kernel.faults(run_dir, {event.where: event.wall_time for event in recorded if isinstance(event, Fault)})
    if found:
        write_text(path, "".join(events.dumps(fault) + "\n" for fault in found))
