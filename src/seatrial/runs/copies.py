"""The copies of a run directory: backups, and logs that were judged into two directories, are one run and not two."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from seatrial.runs.files import read_lines

MOST_FILES, MOST_LINES = 8, 50  # of events that are looked into
FIRST_STEPS = 8
ID_CHARACTERS = 16
_OF_A_STEP = ("step", "seconds", "loss", "wall_time")  # the last, where it does not only add up the steps


def first_event_files(run_dir: Path) -> Iterator[Path]:
    """The files with the events of the first processes."""
    return islice((path for path in sorted(run_dir.glob("events-*.jsonl")) if path.is_file()), MOST_FILES)


def first_events(run_dir: Path) -> Iterator[Iterator[dict[str, Any]]]:
    """The first events of the first processes, as plain data; those of a file end where it cannot be read."""
    return map(_events, first_event_files(run_dir))


def record_id(run_dir: Path) -> str | None:
    """A hash that every copy of a run directory has, and no other run; None for a run without steps.

    It is of the first steps, their losses and times: other runs of a configuration may have the same losses, and never
    the same times. A run that was judged while it went on has the same as later.
    """
    for events in first_events(run_dir):
        clock, devices, steps = None, None, list[Any]()
        for event in events:
            if event.get("kind") == "run_started":
                facts, devices = event.get("facts"), event.get("num_devices")
                clock = facts.get("clock") if isinstance(facts, dict) else None
            elif event.get("kind") == "step":
                steps.append([event.get(name) for name in _OF_A_STEP if name != "wall_time" or clock != "counted"])
            if len(steps) == FIRST_STEPS:
                break
        if steps:
            record = repr([devices, *steps])
            return hashlib.sha256(record.encode("utf-8", "replace")).hexdigest()[:ID_CHARACTERS]
    return None


def _events(path: Path) -> Iterator[dict[str, Any]]:
    with suppress(OSError, ValueError, RecursionError):  # judging says what is wrong with it
        for line in islice(read_lines(path), MOST_LINES):
            event = json.loads(line)
            yield event if isinstance(event, dict) else {}
