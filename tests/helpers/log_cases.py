"""Case folders: `<family>/<case>/log.txt`, and in `expected.json` the events that it is read as."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from seatrial import logs
from seatrial.events import Event, Fault, RunStarted, Step, dumps
from seatrial.logs import reader

HERE = Path(__file__).parents[1] / "logs"
WRITTEN = datetime(2026, 11, 21, 18, tzinfo=UTC).timestamp()
GOLDEN = os.environ.get("SEATRIAL_GOLDEN") == "1"


def folders(family: str) -> list[Path]:
    return sorted(path.parent for path in (HERE / family).glob("*/log.txt"))


def told(event: Event) -> dict[str, Any]:
    """An event without what every one has: no version, no second clock, no empty field, and the source by its name."""
    data: dict[str, Any] = json.loads(dumps(event))
    if isinstance(event, (RunStarted, Fault)):
        data["facts"]["source"] = Path(str(event.facts["source"])).name
    return {
        name: value for name, value in data.items() if name not in ("v", "monotonic_time") and value not in ("", {})
    }


def check(folder: Path) -> None:
    """Reads the log, as of a file of one day, and compares; `SEATRIAL_GOLDEN=1` writes what it is read as instead."""
    with TemporaryDirectory() as elsewhere:
        log = Path(shutil.copy(folder / "log.txt", elsewhere))
        os.utime(log, (WRITTEN, WRITTEN))
        found = [told(event) for event in logs.read([log])]
    expected = folder / "expected.json"
    if GOLDEN:
        lines = ",\n".join("  " + json.dumps(event, ensure_ascii=False) for event in found)
        expected.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    assert found == json.loads(expected.read_text(encoding="utf-8"))


def steps(events: Iterable[Event]) -> list[Step]:
    return [event for event in events if isinstance(event, Step)]


def by_tables(lines: Iterable[str]) -> list[Event]:
    """The events of the log, read without learning from its lines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "learn_pattern", lambda *_, **__: None)
        return list(logs.parse(lines))


def both(lines: Sequence[str]) -> list[Event]:
    """The events of the log, on which the tables, the fast path, and the path for many lines at once agree."""
    found = list(logs.parse(lines))
    told_of = [dumps(event) for event in found]
    assert [dumps(event) for event in by_tables(lines)] == told_of
    at_once = reader.read_text([list(lines)], tuple(logs.FAMILIES.values()), process=0, source="")
    assert [dumps(event) for event in at_once] == told_of
    return found


def values(step: Step) -> dict[str, float]:
    """Everything that a step says, by name."""
    names = ("seconds", "tokens", "loss", "grad_norm", "learning_rate")
    own = {name: value for name in names if (value := getattr(step, name)) is not None}
    return {"step": step.step, **own, **step.reported}


def same(found: Mapping[str, float], expected: Mapping[str, float]) -> bool:
    """True if both say the same; nan is the same as nan, and the last bit of a unit's factor does not count."""
    return found.keys() == expected.keys() and all(
        (math.isnan(found[name]) and math.isnan(value)) or math.isclose(found[name], value, rel_tol=1e-14)
        for name, value in expected.items()
    )
