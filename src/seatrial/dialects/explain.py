"""Where a value of a run came from, and what it is called in each dialect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from seatrial.dialects import DIALECTS
from seatrial.dialects.convert import shown
from seatrial.dialects.fields import FIELDS, Field
from seatrial.dialects.keys import Key, spelling
from seatrial.dialects.suggestions import did_you_mean
from seatrial.errors import InputError
from seatrial.spec import Origin, Resolved, RunSpec, flatten


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A value: its spec path, what it means, its origin, and its keys by dialect."""

    path: str
    value: Any
    field: Field | None
    origin: Origin
    spellings: Mapping[str, tuple[str, ...]]

    def lines(self) -> Iterator[str]:
        """For people."""
        unit = f" ({self.field.unit})" if self.field and self.field.unit else ""
        yield f"{self.path} = {shown(self.path, self.value)}{unit}"
        if self.field:
            yield f"  {self.field.meaning}"
        yield f"  from: {_place(self.path, self.origin)}"
        width = max(map(len, self.spellings))
        for dialect, keys in self.spellings.items():
            yield f"  {dialect:{width}}  {', '.join(keys) or '–'}"

    def as_dict(self) -> dict[str, Any]:
        """For scripts; secrets stay masked."""
        mark = self.origin.mark
        return {
            "path": self.path,
            "value": self.value if shown(self.path, "") != "***" else "***",
            "meaning": self.field.meaning if self.field else None,
            "unit": self.field.unit or None if self.field else None,
            "origin": {
                "kind": self.origin.kind,
                "key": self.origin.key or None,
                "text": shown(self.path, self.origin.text) or None,
                "note": self.origin.note or None,
                "file": mark.file if mark else None,
                "line": mark.line if mark else None,
                "column": mark.column if mark else None,
            },
            "spellings": {dialect: list(keys) for dialect, keys in self.spellings.items()},
        }


@dataclass(frozen=True, kw_only=True)
class NoValue:
    """A key of a dialect that no value of a run is made of, and what becomes of it instead."""

    key: str
    dialect: str
    row: Key

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"{self.key} ({self.dialect}): {WITHOUT_VALUE[self.row.disposition]}: {self.row.why}"
        if self.row.meaning:
            yield f"  {self.row.meaning}"

    def as_dict(self) -> dict[str, Any]:
        """For scripts."""
        row = self.row
        return {"key": self.key, "dialect": self.dialect, "disposition": row.disposition, "why": row.why}


WITHOUT_VALUE = {
    "done": "no value of a run", "equivalent": "the result is the same whatever it says", "ignored": "no effect here",
    "rejected": "cannot be obeyed",
}  # fmt: skip


def explain(resolved: Resolved, key: str) -> list[Explanation] | list[NoValue]:
    """What there is to say about a key: a spec path, a part of the spec, or a key of any dialect, whole or its end.

    Raises InputError for a key that nobody knows, and for one whose value this run does not have.
    """
    assert resolved.spec is not None
    values = dict(_values(resolved.spec))
    tables = _tables()
    name = key.removeprefix("--")
    paths = _among(values, resolved, name)
    own = resolved.spec.dialect
    for dialect in (own, *tables) if own in tables and not paths else tables:
        if paths:
            break
        rows = {known: row for known, row in tables[dialect].items() if _ends(known, name)}
        parts = [part.strip() for row in rows.values() for part in row.to.split(",") if part.strip()]
        paths = [path for path in values if any(path == part or path.startswith(f"{part}.") for part in parts)]
        if rows and not parts:
            return [NoValue(key=known, dialect=dialect, row=row) for known, row in rows.items()]
        if parts and not paths:
            why = f"it goes to {', '.join(parts)}, which this run does not have"
            raise InputError.single("no-value", key, why, "give it a value, or ask for another key")
    if not paths:
        known = dict.fromkeys([*values, *(name for table in tables.values() for name in table)])
        raise InputError.single("unknown-key", key, "nothing has this name", did_you_mean(key, list(known)))
    return [
        Explanation(
            path=path, value=values[path], field=_field(path), origin=resolved.origin(path),
            spellings={name: _spelled(table, path) for name, table in tables.items()},
        )
        for path in paths
    ]  # fmt: skip


def _among(values: Mapping[str, Any], resolved: Resolved, name: str) -> list[str]:
    """The spec paths that a name means: as the user wrote it, else as the spec has it, else by its end."""
    written = [path for path in values if path in resolved.origins and _ends(resolved.origins[path].key, name)]
    exactly = [path for path in values if path == name or path.startswith(f"{name}.")]
    return written or exactly or [path for path in values if _ends(path, name)]


def _values(spec: RunSpec) -> Iterator[tuple[str, Any]]:
    """Spec path → value; the entries of mappings and the bars by their own names too."""
    for path, value in flatten(spec).items():
        if path == "dialect":
            continue
        if path == "expectations":
            yield from ((f"{path}.{bar.metric}", bar.value) for bar in value)
            continue
        yield path, value
        if isinstance(value, Mapping):
            yield from ((f"{path}.{name}", item) for name, item in value.items())


def _tables() -> dict[str, Mapping[str, Key]]:
    """The table of keys of each dialect, the native one first."""
    known = {dialect.name: dialect for dialect in reversed(DIALECTS)}
    there = {name: dialect for name, dialect in known.items() if find_spec(f"seatrial.dialects.{dialect.module}")}
    return {name: dialect.load().KEYS for name, dialect in there.items()}


def _ends(known: str, name: str) -> bool:
    """Whether a name is a key, or the end of its path."""
    plain = known.removeprefix("--")
    return bool(known) and (plain == name or plain.endswith(f".{name}"))


def _field(path: str) -> Field | None:
    """The description of a path; of an entry of a mapping, that of the mapping."""
    return FIELDS.get(path) or FIELDS.get(path.rpartition(".")[0])


def _spelled(table: Mapping[str, Key], path: str) -> tuple[str, ...]:
    """The keys that say it; for an entry of a mapping, or a part, those of the whole where it has none of its own."""
    whole = path.rpartition(".")[0]
    return spelling(table, path) or (spelling(table, whole) if whole else ())


def _place(path: str, origin: Origin) -> str:
    """An origin in words."""
    text = f" = {shown(path, origin.text)}" if origin.text else ""
    note = f" ({origin.note})" if origin.note else ""
    at = f"{origin.mark}: " if origin.mark else ""
    if origin.kind == "default":
        return f"default{note}"
    return f"{at}{origin.kind} {origin.key}{text}{note}"
