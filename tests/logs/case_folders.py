"""Case folders: `<family>/<case>/log.txt`, and in `expected.json` the events that it is read as."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from seatrial import logs
from seatrial.events import Event, Fault, RunStarted, Step, dumps

HERE = Path(__file__).parent
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
    """Reads the log and compares; `SEATRIAL_GOLDEN=1` writes what it is read as instead."""
    found = [told(event) for event in logs.read([folder / "log.txt"])]
    expected = folder / "expected.json"
    if GOLDEN:
        lines = ",\n".join("  " + json.dumps(event, ensure_ascii=False) for event in found)
        expected.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    assert found == json.loads(expected.read_text(encoding="utf-8"))


def steps(events: Iterable[Event]) -> list[Step]:
    return [event for event in events if isinstance(event, Step)]
