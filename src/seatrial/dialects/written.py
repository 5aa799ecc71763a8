"""A configuration as text in one of the dialects, and what of the spec that dialect has no words for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Note:
    """A value of the spec that is not in the text, or not as it is: its path, itself, and why."""

    path: str
    value: Any
    why: str


@dataclass(frozen=True, kw_only=True)
class Written:
    """The text, the suffix of a file with such a text, and a note for each value that it does not say."""

    text: str
    suffix: str
    notes: tuple[Note, ...] = ()
