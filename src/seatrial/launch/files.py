"""Files that others read while they are written: replaced in one step, so that nobody sees half of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Puts a text in the place of a file, which may not be there yet; nor may its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def write_json(path: Path, data: Any) -> None:
    """Plain data as JSON, in the same way."""
    write_text(path, json.dumps(data, indent=1) + "\n")
