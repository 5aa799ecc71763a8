"""A tree of nodes → dataclasses of the spec, by their field names and types; every finding collected, origins kept."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from functools import cache
from typing import Any, Literal

from seatrial.dialects.fields import FIELDS
from seatrial.dialects.table import coerce, ranges
from seatrial.dialects.table.suggestions import did_you_mean, suggestions
from seatrial.errors import Problem
from seatrial.source import Node
from seatrial.spec import ModelSpec, Origin, RunSpec, Topology
from seatrial.spec.presets import MODELS

WRONG: Any = object()  # stands for a value that a finding has been made about
PRESET = "preset"
SCHEMA = "$schema"  # where editors of JSON look for the schema; it says nothing about the run
NAME_PATTERN = r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?"


def bare(kind: Any) -> tuple[Any, bool]:
    """A type without its `| None`, and whether it had one."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        inner = [option for option in typing.get_args(kind) if option is not types.NoneType]
        return inner[0], len(inner) < len(typing.get_args(kind))
    return kind, False


@cache
def hints(kind: type) -> dict[str, Any]:
    """The fields of a part of the spec that a file may set, with their types."""
    return {name: hint for name, hint in typing.get_type_hints(kind).items() if name != "dialect"}


def schema(kind: type = RunSpec, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, type) of everything that a configuration may set."""
    for name, hint in hints(kind).items():
        inner, below = bare(hint)[0], f"{path}.{name}" if path else name
        if not dataclasses.is_dataclass(inner):
            yield below, inner
            continue
        if inner is ModelSpec:
            yield below, str
            yield f"{below}.{PRESET}", str
        yield from schema(typing.cast(type, inner), below)


_TAKEN_APART = ((ModelSpec, PRESET), (RunSpec, SCHEMA))

# --- what a field may hold beyond its type ----------------------------------------------------------------------------


def as_name(text: str) -> str:
    """Any text as a name that is safe in a path."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-") or "run"


def _name(value: str) -> str:
    if not re.fullmatch(NAME_PATTERN, value):
        raise ValueError(f"{coerce.shown(value)} is no name: use letters, digits, . _ and -")
    return value


_WORDS: dict[tuple[type, str], Callable[[str], str]] = {
    (RunSpec, "name"): _name,
    (Topology, "device"): ranges.device,
    **{field: coerce.one_of(*words) for field, words in ranges.CHOICES.items()},
}


def _what_fits(owner: type, name: str, hint: Any) -> str:
    """What a field may hold, as advice; the choices and the special words are named where they are refused."""
    kind, is_optional = bare(hint)
    rest = ", or null" if is_optional else ""
    if (owner, name) in _WORDS or typing.get_origin(kind) is Literal:
        return f"give one of the values named here{rest}" if name != "name" else "give a name of such characters"
    if kind in (int, float):
        what = "whole number" if kind is int else "number"
        return f"give a {what} {ranges.range_of(owner, name, kind)}{rest}"
    return f"give {({bool: 'true or false', str: 'text in quotes'}).get(kind, 'a mapping of names to texts')}{rest}"


def _advice(owner: type, name: str, hint: Any, node: Node) -> str:
    """What to do about a value that does not fit: the word that was probably meant, else what would fit."""
    kind, _ = bare(hint)
    words = typing.get_args(kind) if typing.get_origin(kind) is Literal else ranges.CHOICES.get((owner, name), ())
    meant = suggestions(node.text, tuple(words)) if isinstance(node.value, str) and words else []
    return f"did you mean {' or '.join(meant)}?" if meant else _what_fits(owner, name, hint)


@cache
def _paths() -> tuple[str, ...]:
    return tuple(path for path, _ in schema())


def _meaning(path: str) -> str:
    """What a key means, in the middle of a sentence; of a section, which keys it needs."""
    field = FIELDS.get(re.sub(r"\.\d+\.", ".", path))
    if field is None:
        below = [known.removeprefix(f"{path}.") for known in _paths() if known.startswith(f"{path}.")]
        return f"{path}: {{{', '.join(f'{name}: …' for name in below)}}}"
    return f"{field.meaning[0].lower()}{field.meaning[1:].rstrip('.')}"


def _unknown(key: str, path: str) -> tuple[str, str]:
    """Why a key is not known, and what to do about it."""
    section, _, rest = key.partition(".")
    if rest and f"{path}.{key}".lstrip(".") in _paths():
        return "in a file a dot is no way into a section", f"write {section}: {{{rest}: …}}"
    name, colon, value = key.partition(":")
    if colon and f"{path}.{name}".lstrip(".") in _paths():
        return "no blank stands behind the colon, which makes all of it one key", f"write {name}: {value or '…'}"
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

    def fields(self, kind: type, node: Node, path: str = "", *, all_optional: bool = False) -> Any:
        """The given fields of a dataclass by name, or WRONG. Keys that begin with `_` are notes."""
        if not isinstance(node.value, dict):
            fix = f"write {{{', '.join(f'{name}: …' for name in list(hints(kind))[:3])}}}"
            return self._wrong(node, path, f"{coerce.shown(node.plain())} is not a mapping", fix)
        values: dict[str, Any] = {}
        meant: list[str] = []  # what unknown keys may have meant is not said to be missing
        for key, child in node.value.items():
            below = f"{path}.{key}" if path else key
            if key in hints(kind):
                values[key] = self._value(kind, key, hints(kind)[key], child, below)
            elif not key.startswith("_") and (kind, key) not in _TAKEN_APART:
                meant += suggestions(key, _paths(), path=path)
                why, fix = _unknown(key, path)
                values[key] = self._wrong(child, below, why, fix, "unknown-key", at_key=True)
        for f in dataclasses.fields(kind):
            is_needed = f.default is MISSING and f.default_factory is MISSING and f.name != "name" and not all_optional
            if is_needed and f.name in hints(kind) and f.name not in values:
                below = f"{path}.{f.name}" if path else f.name
                why, fix = "it has no default, and is not given", f"add it: {_meaning(below)}"
                values[f.name] = WRONG if below in meant else self._wrong(node, below, why, fix, "missing-key")
        return WRONG if any(value is WRONG for value in values.values()) else values

    def _value(self, owner: type, name: str, hint: Any, node: Node, path: str) -> Any:
        kind, is_optional = bare(hint)
        if kind is ModelSpec:
            return self._model(node, path)
        if node.value is None and is_optional:
            self._keep_origin(node, path)
            return None
        if dataclasses.is_dataclass(kind):
            given = self.fields(typing.cast(type, kind), node, path)
            return WRONG if given is WRONG else typing.cast(type, kind)(**given)
        self._keep_origin(node, path)
        if typing.get_origin(kind) is tuple:
            return self._items(owner, name, typing.get_args(kind)[0], node, path)
        try:
            value = self._scalar(kind, node, path)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return ranges.in_range(owner, name, value)
            return _WORDS[owner, name](value) if (owner, name) in _WORDS else value
        except ValueError as error:
            return self._wrong(node, path, str(error), _advice(owner, name, hint, node))

    def _scalar(self, kind: Any, node: Node, path: str) -> Any:
        """A value of the field's own type; only what the command line gives is coerced. Raises ValueError."""
        value = node.value
        if typing.get_origin(kind) is Mapping:
            return self._texts(node, path)
        if value is None and not node.text:
            raise ValueError("nothing stands here")
        if kind is str or typing.get_origin(kind) is Literal:
            value = node.text if self._is_override(path) else value
            if not isinstance(value, str):
                raise ValueError(f"{coerce.shown(node.plain())} is not text; put it in quotes if it is meant as such")
            return value if kind is str else coerce.one_of(*typing.get_args(kind))(value)
        read = {int: coerce.whole, float: coerce.decimal, bool: coerce.boolean}[kind](node.plain())
        if isinstance(value, str) and not self._is_override(path):
            wanted = {int: "a whole number", float: "a number", bool: "true or false"}[kind]
            raise ValueError(f"{coerce.shown(value)} is text, not {wanted} (write {coerce.text(read)}, without quotes)")
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

    def _items(self, owner: type, name: str, kind: Any, node: Node, path: str) -> Any:
        """A tuple of texts, of numbers, of pairs of texts, or of dataclasses."""
        if self._is_override(path) and kind is str and not isinstance(node.value, list):
            return (node.text,)
        if not isinstance(node.value, list):
            keys = (
                ", ".join(f"{key}: …" for key in hints(typing.cast(type, kind)))
                if dataclasses.is_dataclass(kind)
                else ""
            )
            fix = f"write a list: [{{{keys}}}]" if keys else "write a list: [ … ]"
            return self._wrong(node, path, f"{coerce.shown(node.plain())} is not a list", fix)
        items = [self._item(owner, name, kind, child, f"{path}.{i}") for i, child in enumerate(node.value)]
        return WRONG if any(item is WRONG for item in items) else tuple(items)

    def _item(self, owner: type, name: str, kind: Any, node: Node, path: str) -> Any:
        if dataclasses.is_dataclass(kind):
            given = self.fields(typing.cast(type, kind), node, path)
            return WRONG if given is WRONG else typing.cast(type, kind)(**given)
        self._keep_origin(node, path)
        try:
            if kind is float:
                return ranges.in_range(owner, name, self._scalar(kind, node, path))
            if kind is str:
                return self._scalar(kind, node, path)
            pair = coerce.texts(node.plain())
            if len(pair) != 2:
                raise ValueError(f"{len(pair)} texts are not a pair")
            return pair
        except ValueError as error:
            wanted = {str: "text in quotes", float: "a number"}.get(kind, "a pair of texts, [ … , … ]")
            return self._wrong(node, path, str(error), f"give {wanted}")

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
            why = f"{coerce.shown(named.plain())} is no preset; there is {', '.join(MODELS)}"
            at = f"{path}.{PRESET}" if node.members else path
            return self._wrong(named, at, why, did_you_mean(str(named.plain()), MODELS), "unknown-model")
        changed = {} if given is WRONG or not given else {"name": f"{preset.name}-changed"}
        return WRONG if given is WRONG else dataclasses.replace(preset, **(changed | given))

    def _wrong(
        self, node: Node, path: str, why: str, fix: str, code: str = "bad-value", *, at_key: bool = False
    ) -> Any:
        mark = None if self._is_override(path) else node.key_mark if at_key else node.mark
        self.problems.append(Problem(severity="error", code=code, path=path or "(root)", why=why, fix=fix, mark=mark))
        return WRONG

    def _is_override(self, path: str) -> bool:
        return any(path == given or path.startswith(f"{given}.") for given in self.overridden)

    def _keep_origin(self, node: Node, path: str) -> None:
        if self._is_override(path):
            origin = Origin(kind="override", key=self.overridden.get(path, path), text=node.text)
        else:
            origin = Origin(kind="file", key=path, text=node.text, mark=node.mark)
        self.origins[path] = origin
