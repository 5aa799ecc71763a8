"""A tree of nodes → dataclasses of the spec, by their field names and types; every finding collected, origins kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from seatrial.dialects.fields import FIELDS
from seatrial.dialects.spec_fields import NAME_PATTERN, PRESET, SpecField, device, fields_of, schema
from seatrial.dialects.table import coerce
from seatrial.dialects.table.entries import is_within
from seatrial.dialects.table.suggestions import did_you_mean, suggestions
from seatrial.errors import Problem
from seatrial.source import Node
from seatrial.spec import ModelSpec, Origin, RunSpec
from seatrial.spec.presets import MODELS

WRONG: Any = object()  # stands for a value that a finding has been made about
SCHEMA = "$schema"  # where editors of JSON look for the schema; it says nothing about the run
_READ_APART = ((ModelSpec, PRESET), (RunSpec, SCHEMA))

# --- what a field may hold beyond its type ----------------------------------------------------------------------------


def as_name(text: str) -> str:
    """Any text as a name that is safe in a path."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-") or "run"


def _name(value: str) -> str:
    if not re.fullmatch(NAME_PATTERN, value):
        raise ValueError(f"{coerce.shown(value)} is not a name: use letters, digits, . _ and -")
    return value


_NAMES: dict[str, Callable[[str], str]] = {"name": _name, "topology.device": device}  # by path
LEAVES: dict[Any, coerce.Reader] = {int: coerce.whole, float: coerce.decimal, bool: coerce.boolean}


def _advice(field: SpecField, node: Node, path: str) -> str:
    """The fix for a value that does not fit: the word that was probably meant, else what would fit."""
    if field.words or path in _NAMES:
        otherwise = "a name of such characters" if path == "name" else "one of the values named here"
    elif field.limits:
        otherwise = f"{coerce.taken(LEAVES[field.kind])} {field.limits}"
    else:
        otherwise = {bool: "true or false", str: "text in quotes"}.get(field.kind, "a mapping of names to texts")
    fix = f"give {otherwise}{', or null' * (field.is_optional and path != 'name')}"
    return did_you_mean(node.text, field.words, otherwise=fix) if isinstance(node.value, str) else fix


@cache
def _paths() -> tuple[str, ...]:
    return tuple(path for path, _ in schema())


def _meaning(path: str) -> str:
    """The meaning of a key, in the middle of a sentence; of a section without a text of its own, the keys in it."""
    field = FIELDS.get(re.sub(r"\.\d+\.", ".", path))
    if field is None:
        below = [known.removeprefix(f"{path}.") for known in _paths() if known.startswith(f"{path}.")]
        return f"{path}: {{{', '.join(f'{name}: …' for name in below)}}}"
    return f"{field.meaning[0].lower()}{field.meaning[1:].rstrip('.')}"


def _unknown(key: str, path: str) -> tuple[str, str]:
    """The reason that a key is not known, and the fix."""
    section, _, rest = key.partition(".")
    if rest and f"{path}.{key}".lstrip(".") in _paths():
        return "in a file, a dot does not lead into a section", f"write {section}: {{{rest}: …}}"
    name, colon, value = key.partition(":")
    if colon and f"{path}.{name}".lstrip(".") in _paths():
        return "a blank is missing after the colon, so that all of it is one key", f"write {name}: {value or '…'}"
    strange = next((character for character in key if not character.isascii()), "")
    why = f"there is no such key; {strange!r} in it is U+{ord(strange):04X}" if strange else "there is no such key"
    return why, did_you_mean(key, _paths(), path=path)


# --- nodes → values ---------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Reader:
    """`overridden`: the paths that were given on the command line, each with its key as given."""

    overridden: Mapping[str, str]
    problems: list[Problem]
    origins: dict[str, Origin] = field(default_factory=dict)

    def fields(self, part: type, node: Node, path: str = "", *, all_optional: bool = False) -> Any:
        """The given fields of a dataclass by name, or WRONG. Keys that begin with `_` are notes."""
        known = fields_of(part)
        if not isinstance(node.value, dict):
            fix = f"write {{{', '.join(f'{name}: …' for name in list(known)[:3])}}}"
            return self._wrong(node, path, f"{coerce.shown(node.plain())} is not a mapping", fix)
        values: dict[str, Any] = {}
        meant: list[str] = []  # what unknown keys may have meant is not reported as missing
        for key, child in node.value.items():
            below = f"{path}.{key}" if path else key
            if key in known:
                values[key] = self._value(known[key], child, below)
            elif not key.startswith("_") and (part, key) not in _READ_APART:
                meant += suggestions(key, _paths(), path=path)
                why, fix = _unknown(key, path)
                values[key] = self._wrong(child, below, why, fix, "unknown-key", at_key=True)
        for name, each in known.items():
            if each.is_needed and not all_optional and name not in values:
                below = f"{path}.{name}" if path else name
                why, fix = "it is required", f"add it: {_meaning(below)}"
                values[name] = WRONG if below in meant else self._wrong(node, below, why, fix, "missing-key")
        return WRONG if any(value is WRONG for value in values.values()) else values

    def _value(self, field: SpecField, node: Node, path: str) -> Any:
        if field.kind is ModelSpec:
            return self._model(node, path)
        if node.value is None and field.is_optional:
            self._keep_origin(node, path)
            return None
        if field.part and not field.is_list:
            return self._part(field.part, node, path)
        self._keep_origin(node, path)
        return self._items(field, node, path) if field.is_list else self._leaf(field, node, path)

    def _part(self, part: type, node: Node, path: str) -> Any:
        given = self.fields(part, node, path)
        return WRONG if given is WRONG else part(**given)

    def _leaf(self, field: SpecField, node: Node, path: str) -> Any:
        try:
            return self._scalar(field, node, path)
        except ValueError as error:
            return self._wrong(node, path, str(error), _advice(field, node, path))

    def _scalar(self, field: SpecField, node: Node, path: str) -> Any:
        """A value of the field's own type; only what the command line gives is coerced. Raises ValueError."""
        value = node.value
        if field.kind is Mapping:
            return self._texts(node, path)
        if value is None and not node.text:
            raise ValueError("it is empty")
        if field.kind is str:
            value = node.text if self._is_override(path) else value
            if not isinstance(value, str):
                raise ValueError(f"{coerce.shown(node.plain())} is not text; put it in quotes if it is meant to be")
            read_text = coerce.one_of(*field.words) if field.words else _NAMES.get(path, str)
            return read_text(value)
        reader = LEAVES[field.kind]
        read = reader(node.plain())
        if isinstance(value, str) and not self._is_override(path):
            what = f"{coerce.shown(value)} is text, not {coerce.taken(reader)}"
            raise ValueError(f"{what} (write {coerce.text(read)}, without quotes)")
        if field.limits and not field.limits.holds(read):
            raise ValueError(f"{coerce.shown(read)} is {field.limits.missed_by(read)}")
        return read

    def _texts(self, node: Node, path: str) -> Any:
        """A mapping of the user's own names to texts. Raises ValueError."""
        if not isinstance(node.value, dict):
            raise ValueError(f"{coerce.shown(node.plain())} is not a mapping")
        texts: dict[str, Any] = {}
        for key, child in node.value.items():
            self._keep_origin(child, f"{path}.{key}")
            try:
                texts[key] = coerce.text(child.plain())
            except ValueError as error:
                texts[key] = self._wrong(child, f"{path}.{key}", str(error), "give a text or a number")
        return WRONG if any(text is WRONG for text in texts.values()) else texts

    def _items(self, field: SpecField, node: Node, path: str) -> Any:
        """A tuple of texts, of numbers, of pairs of texts, or of dataclasses."""
        if self._is_override(path) and field.kind is str and not isinstance(node.value, list):
            words = node.text.split(",") if field.words else [node.text]
            node = replace(node, value=[replace(node, value=word.strip(), text=word.strip()) for word in words])
        if not isinstance(node.value, list):
            keys = ", ".join(f"{key}: …" for key in fields_of(field.part)) if field.part else ""
            fix = f"write a list: [{{{keys}}}]" if keys else "write a list: [ … ]"
            return self._wrong(node, path, f"{coerce.shown(node.plain())} is not a list", fix)
        one = replace(field, is_list=False)
        items = [self._item(one, child, f"{path}.{i}") for i, child in enumerate(node.value)]
        return WRONG if any(item is WRONG for item in items) else tuple(items)

    def _item(self, field: SpecField, node: Node, path: str) -> Any:
        if field.part:
            return self._part(field.part, node, path)
        self._keep_origin(node, path)
        try:
            if field.kind is not tuple:
                return self._scalar(field, node, path)
            pair = coerce.texts(node.plain())
            if len(pair) != 2:
                raise ValueError(f"{len(pair)} texts are not a pair")
            return pair
        except ValueError as error:
            texts = {str: "give text in quotes", tuple: "give a pair of texts, [ … , … ]"}
            fix = texts.get(field.kind) or coerce.advice(LEAVES[field.kind])
            return self._wrong(node, path, str(error), _advice(field, node, path) if field.words else fix)

    def _model(self, node: Node, path: str) -> Any:
        """A model by the name of its preset, or by its fields, with or without a preset to start from."""
        named = node.members.get(PRESET, None if isinstance(node.value, dict) else node)
        if named is None:
            given = self.fields(ModelSpec, node, path)
            return WRONG if given is WRONG else ModelSpec(**{"name": "custom", **given})
        self._keep_origin(named, path)
        preset = MODELS.get(named.value) if isinstance(named.value, str) else None
        given = self.fields(ModelSpec, node, path, all_optional=True) if node.members else {}
        if preset is None:
            why = f"{coerce.shown(named.plain())} is no preset; known are {', '.join(MODELS)}"
            at = f"{path}.{PRESET}" if node.members else path
            return self._wrong(named, at, why, did_you_mean(str(named.plain()), MODELS), "unknown-model")
        changed = {} if given is WRONG or not given else {"name": f"{preset.name}-changed"}
        return WRONG if given is WRONG else replace(preset, **(changed | given))

    def _wrong(
        self, node: Node, path: str, why: str, fix: str, code: str = "bad-value", *, at_key: bool = False
    ) -> Any:
        mark = None if self._is_override(path) else node.key_mark if at_key else node.mark
        self.problems.append(Problem(severity="error", code=code, path=path or "(root)", why=why, fix=fix, mark=mark))
        return WRONG

    def _is_override(self, path: str) -> bool:
        return any(is_within(path, given) for given in self.overridden)

    def _keep_origin(self, node: Node, path: str) -> None:
        if self._is_override(path):
            origin = Origin(kind="override", key=self.overridden.get(path, path), text=node.text)
        else:
            origin = Origin(kind="file", key=path, text=node.text, mark=node.mark)
        self.origins[path] = origin
