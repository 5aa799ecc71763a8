"""Files that others read while they are written: replaced in one step, so that nobody sees half of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

AGENT_FILES = ("agent.py", "observer.py", "sensors.py")  # side by side


def write_text(path: Path, text: str) -> None:
    """Puts a text in the place of a file, which may not be there yet; nor may its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def write_json(path: Path, data: Any) -> None:
    """Plain data as JSON, in the same way."""
    write_text(path, json.dumps(data, indent=1) + "\n")


def of_the_agent() -> dict[str, str]:
    """What has to lie in a run directory for an agent to start there: the texts of its files, by where they go."""
    here = Path(__file__).parent
    return {f"launch/{name}": (here / name).read_text(encoding="utf-8") for name in AGENT_FILES}
