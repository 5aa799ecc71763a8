"""A request to a dialect, and its entries: one for each key, wherever its value was written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from seatrial.dialects.table.overrides import Override
from seatrial.errors import Mark, Problem, Severity
from seatrial.source import Document, Node
from seatrial.spec import Action, Origin

NO_CHANGE = "no change is needed"  # the fix of a note

_Value = TypeVar("_Value")


def is_within(path: str, whole: str) -> bool:
    """True if a dotted path is that of a whole, or of something in it."""
    return f"{path}.".startswith(f"{whole}.")


def below(whole: str, values: Mapping[str, _Value]) -> dict[str, _Value]:
    """The values below a path, by the rest of their own paths."""
    start = f"{whole}."
    return {path.removeprefix(start): value for path, value in values.items() if path.startswith(start)}


@dataclass(frozen=True, kw_only=True)
class Request:
    """A document to read and its overrides, for an action, a user and an engine; empty: it is not said what trains."""

    document: Document
    overrides: Sequence[Override]
    action: Action
    user: str
    home: Path
    engine: str = ""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A key and its value; `key` is the path from the root of the file. An override has no marks."""

    key: str
    value: Any  # a scalar, or a plain list or dict
    text: str
    mark: Mark | None = None
    key_mark: Mark | None = None

    @classmethod
    def of(cls, key: str, node: Node) -> Entry:
        """The entry of a value in a file."""
        return cls(key=key, value=node.plain(), text=node.text, mark=node.mark, key_mark=node.key_mark)

    @property
    def is_override(self) -> bool:
        return self.mark is None

    def origin(self, note: str = "") -> Origin:
        """The origin of a value of the spec that came from here."""
        return Origin(
            kind="override" if self.is_override else "file", key=self.key, text=self.text, note=note, mark=self.mark
        )

    def problem(self, severity: Severity, code: str, why: str, fix: str) -> Problem:
        """A finding about the value."""
        return Problem(severity=severity, code=code, path=self.key, why=why, fix=fix, mark=self.mark)

    def key_problem(self, severity: Severity, code: str, why: str, fix: str) -> Problem:
        """A finding about the key itself."""
        return Problem(severity=severity, code=code, path=self.key, why=why, fix=fix, mark=self.key_mark)
