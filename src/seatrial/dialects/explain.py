"""Explains a value of a run: its origin, and its name in each dialect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from seatrial.command import MASK, without_looks
from seatrial.dialects import DIALECTS
from seatrial.dialects.convert import TARGETS, about, parse
from seatrial.dialects.fields import FIELDS, Field
from seatrial.dialects.table.entries import is_within
from seatrial.dialects.table.keys import Key, spelling
from seatrial.dialects.table.suggestions import did_you_mean
from seatrial.dialects.table.written import Written, shown
from seatrial.errors import InputError
from seatrial.spec import METRICS, Origin, Resolved, RunSpec, flatten


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """A value in another spelling: its key and text there, or only the key; or the reason that it is not said."""

    key: str = ""
    text: str = ""
    why_not: str = ""

    def __str__(self) -> str:
        if self.why_not:
            return f"– {self.why_not}"
        return f"{self.key} = {self.text}" if self.text else self.key or "–"


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A value: its spec path, what it means, its origin, and what it becomes elsewhere."""

    path: str
    value: Any
    field: Field | None
    origin: Origin
    elsewhere: Mapping[str, Elsewhere]

    def lines(self) -> Iterator[str]:
        """For people."""
        unit = f" ({self.field.unit})" if self.field and self.field.unit else ""
        yield f"{self.path} = {shown(self.path, self.value)}{unit}"
        if self.field:
            yield f"  {self.field.meaning}"
        yield f"  from: {_place(self.path, self.origin)}"
        width = max(map(len, self.elsewhere))
        yield from (f"  {name:{width}}  {there}" for name, there in self.elsewhere.items())

    def as_dict(self) -> dict[str, Any]:
        """For scripts; secrets stay masked."""
        mark = self.origin.mark
        return {
            "path": self.path,
            "value": _masked(self.path, self.value),
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
            "elsewhere": {
                name: {"key": there.key or None, "text": there.text or None, "why_not": there.why_not or None}
                for name, there in self.elsewhere.items()
            },
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
    "rejected": "not supported",
}  # fmt: skip


def explain(resolved: Resolved, key: str) -> list[Explanation] | list[NoValue]:
    """The explanations of a key: a spec path, a part of the spec, or a key of any dialect, whole or its end.

    Raises InputError for an unknown key, and for one whose value this run does not have.
    """
    assert resolved.spec is not None
    values = dict(_values(resolved.spec))
    tables = {dialect.name: table(dialect.module) for dialect in reversed(DIALECTS)}  # the native one first
    name = key.removeprefix("--")
    paths = _among(values, resolved, name)
    if not paths:
        dialect, rows = _rows(tables, resolved.spec.dialect, name)
        parts = [part for row in rows.values() for part in row.paths]
        if rows and not parts:
            return [NoValue(key=known, dialect=dialect, row=row) for known, row in rows.items()]
        if not rows:
            known = dict.fromkeys([*values, *(name for table in tables.values() for name in table)])
            raise InputError.single("unknown-key", key, "nothing has this name", did_you_mean(key, list(known)))
        paths = [path for path in values if any(is_within(path, part) for part in parts)]
        if not paths:
            why = f"it goes to {', '.join(parts)}, which this run does not have"
            raise InputError.single("no-value", key, why, "give it a value, or ask for another key")
    written = _written(resolved)
    return [
        Explanation(
            path=path, value=values[path], field=_field(path), origin=resolved.origin(path),
            elsewhere={name: there for name in TARGETS if (there := _elsewhere(path, name, tables, written))},
        )
        for path in paths
    ]  # fmt: skip


def _rows(tables: Mapping[str, Mapping[str, Key]], own: str, name: str) -> tuple[str, dict[str, Key]]:
    """The rows that a name means, and their dialect: the run's own before the others; none where it has no such key."""
    for dialect in (own, *tables):
        rows = {known: row for known, row in tables.get(dialect, {}).items() if _ends(known, name)}
        if rows:
            return dialect, rows
    return "", {}


def _among(values: Mapping[str, Any], resolved: Resolved, name: str) -> list[str]:
    """The spec paths that a name means: as the user wrote it, else as the spec has it, else by its end."""
    written = [path for path in values if path in resolved.origins and _ends(resolved.origins[path].key, name)]
    exactly = [path for path in values if is_within(path, name)]
    return written or exactly or [path for path in values if _ends(path, name)]


def _values(spec: RunSpec) -> Iterator[tuple[str, Any]]:
    """Spec path → value; the entries of mappings and targets by their own names too."""
    for path, value in flatten(spec).items():
        if path == "dialect":
            continue
        if path == "expectations":
            yield from ((f"{path}.{target.metric}", target.value) for target in value)
            continue
        yield path, value
        if isinstance(value, Mapping):
            yield from ((f"{path}.{name}", item) for name, item in value.items())


def table(module: str) -> dict[str, Key]:
    """The keys of a dialect, and the mappings whose keys are the user's own, as `name.*`."""
    loaded = import_module(f"seatrial.dialects.{module}")
    sections: Mapping[str, Key] = getattr(loaded, "SECTIONS", {})
    return {**loaded.KEYS, **{f"{name}.*": key for name, key in sections.items()}}


def _ends(known: str, name: str) -> bool:
    """True if a name is a key, or the end of its path."""
    plain = known.removeprefix("--").removesuffix(".*")
    return bool(known) and (plain == name or plain.endswith(f".{name}"))


def _field(path: str) -> Field | None:
    """The description of a path; of an entry of a mapping, that of the mapping; of a target, its metric's."""
    whole, _, name = path.rpartition(".")
    if whole == "expectations" and name in METRICS:
        metric = METRICS[name]
        return Field(meaning=f"{metric.title} that the run has to reach; {metric.better} is better.", unit=metric.unit)
    return FIELDS.get(path) or FIELDS.get(whole)


def _written(resolved: Resolved) -> dict[str, tuple[Written, Resolved]]:
    """The run in every spelling that can express it, and read back from it; a run with errors in none."""
    if resolved.spec is None or any(problem.severity == "error" for problem in resolved.problems):
        return {}
    texts: dict[str, Written] = {}
    for name, target in TARGETS.items():
        with suppress(InputError):
            texts[name] = target.write(resolved.spec)
    return {name: (text, TARGETS[name].read(parse(text))) for name, text in texts.items()}


def _elsewhere(
    path: str, name: str, tables: Mapping[str, Mapping[str, Key]], written: Mapping[str, tuple[Written, Resolved]]
) -> Elsewhere:
    """A value in another spelling; where the run cannot be written in that, only its keys there."""
    if name not in written:
        table = tables[TARGETS[name].dialect]
        whole = path.rpartition(".")[0]
        return Elsewhere(key=", ".join(spelling(table, path) or (spelling(table, whole) if whole else ())))
    text, again = written[name]
    for note in text.notes:
        if about(note.path, path):
            return Elsewhere(why_not=note.why)
    origin = again.origin(path)
    if origin.kind == "default" or not origin.key:
        return Elsewhere(key="as is its default")
    return Elsewhere(key=origin.key, text=shown(path, origin.text))


def _masked(path: str, value: Any) -> Any:
    """The value as it is, but for secrets."""
    if isinstance(value, Mapping):
        return {name: _masked(f"{path}.{name}", item) for name, item in value.items()}
    if shown(path, value) == MASK:
        return MASK
    return without_looks(value) if isinstance(value, str) else value


def _place(path: str, origin: Origin) -> str:
    """An origin in words."""
    text = f" = {shown(path, origin.text)}" if origin.text else ""
    note = f" ({origin.note})" if origin.note else ""
    at = f"{origin.mark}: " if origin.mark else ""
    if origin.kind == "default":
        return f"default{note}"
    return f"{at}{origin.kind} {origin.key}{text}{note}"
