"""The meaning of every field of a run, in one line, with its unit: the table `fields.txt`.

The JSON Schema, the reference pages and `plan --explain` show them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files

_LINE = re.compile(r"^([\w.]+)(?: \[(.+?)\])?: (.+)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Field:
    """One sentence, and the unit of the value where it has one."""

    meaning: str
    unit: str = ""


FIELDS: dict[str, Field] = {
    path: Field(meaning=meaning, unit=unit)
    for path, unit, meaning in _LINE.findall(files("seatrial.dialects").joinpath("fields.txt").read_text("utf-8"))
}
