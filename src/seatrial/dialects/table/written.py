"""A configuration as text in one of the dialects, and what of the spec that dialect has no words for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from seatrial.command import MASK, is_secret
from seatrial.spec import Expectation, RunSpec, flatten


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


class _Absent:
    """Stands for a value that is not there, because the part that it would be in is not."""


ABSENT = _Absent()
_NOT_COMPARED = ("name", "dialect")


def changed(spec: RunSpec, again: RunSpec) -> Iterator[tuple[str, Any, Any]]:
    """(path, value, what it is in the other spec) of each leaf of a spec that another one has otherwise.

    `name` and `dialect` aside. Of a part that only the other one has, the leaf that is None in its place.
    """
    after = flatten(again)
    for path, value in flatten(spec).items():
        other = after.get(path, ABSENT)
        if path not in _NOT_COMPARED and (other != value or type(other) is not type(value)):
            yield path, value, other


def shown(path: str, value: Any) -> str:
    """A value of the spec as people are shown it; secrets stay masked."""
    if is_secret(path.partition(".environment.")[2]):
        return MASK
    if value is ABSENT or value in ("", (), {}):
        return "nothing"
    if isinstance(value, Expectation):
        return f"{value.metric} {value.value}" + (f" ± {value.tolerance}" if value.tolerance is not None else "")
    if is_dataclass(value):
        given = {f.name: part for f in fields(value) if (part := getattr(value, f.name)) not in (None, (), {})}
        return shown(path, given)
    if isinstance(value, dict):
        items = (f"{key}: {shown(f'{path}.{key}', item)}" for key, item in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(shown(path, item) for item in value) + "]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)
