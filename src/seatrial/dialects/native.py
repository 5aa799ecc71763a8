"""Seatrial's own configuration, JSON or YAML: the fields of RunSpec by their names.

Everything with a default may be omitted. A model is a preset's name, or an object of its fields, with or without a
`preset` to start from. Numbers are written as numbers; on the command line everything is text, read as YAML would.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from seatrial.dialects.fields import FIELDS
from seatrial.dialects.spec_fields import PRESET, fields_of, schema
from seatrial.dialects.table import coerce
from seatrial.dialects.table.entries import Request
from seatrial.dialects.table.keys import to
from seatrial.dialects.table.overrides import Override, put, resolve, value_node
from seatrial.dialects.table.written import Written
from seatrial.dialects.typed import LEAVES, WRONG, Reader, as_name
from seatrial.dialects.yaml_writer import dump
from seatrial.errors import InputError, Problem
from seatrial.source import Node
from seatrial.spec import ModelSpec, Resolved, RunSpec
from seatrial.spec.presets import MODELS, architecture

NAME = "native"
KEYS = {
    path: to(path, LEAVES.get(field.kind, coerce.text), FIELDS[path].meaning, required=path in ("model", "steps"))
    for path, field in schema()
}
MAX_CHANGES = 4  # of a preset; a model with more of them is written in full


def read(request: Request) -> Resolved:
    """The spec that a file and its overrides describe, or everything that is wrong with them."""
    problems = list(request.document.problems)
    root, overridden = _override(request.document.root, request.overrides, problems)
    reader = Reader(overridden=overridden, problems=problems)
    given = reader.fields(RunSpec, root)
    name = as_name(Path(request.document.file).stem)
    spec = None if given is WRONG else RunSpec(**{"name": name, "dialect": NAME, **given})
    return Resolved(spec=spec, origins=reader.origins, problems=tuple(problems))


# --- writing ----------------------------------------------------------------------------------------------------------


def write(spec: RunSpec) -> Written:
    """The spec as YAML, without what has its default; everything can be said, so there are no notes."""
    data = {"name": as_name(spec.name), "model": _model(spec.model), **_changed(spec, "name", "model")}
    return Written(text=dump(data), suffix=".yaml")


def _changed(part: Any, *apart: str) -> dict[str, Any]:
    """The fields of a part of the spec that differ from their defaults, as plain data."""
    kind: type = type(part)
    return {
        name: _plain(value)
        for name, field in fields_of(kind).items()
        if name not in apart and (value := getattr(part, name)) != field.default
    }


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return _changed(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def _model(model: ModelSpec) -> Any:
    """The name of a preset, or what differs from the nearest one, or from the defaults where none is near."""
    changes = {
        name: {key: value for key, value in architecture(model).items() if value != getattr(preset, key)}
        for name, preset in MODELS.items()
    }
    nearest = min(MODELS, key=lambda name: (len(changes[name]), name != model.name))
    if len(changes[nearest]) > MAX_CHANGES:
        return {"name": model.name, **_changed(model, "name")}
    if model == MODELS[nearest]:
        return nearest
    return {PRESET: nearest, "name": model.name, **{key: _plain(value) for key, value in changes[nearest].items()}}


# --- overrides --------------------------------------------------------------------------------------------------------


def _override(root: Node, overrides: Sequence[Override], problems: list[Problem]) -> tuple[Node, dict[str, str]]:
    """The tree with the overrides in it, and for each of them its path and its key as given."""
    possible = dict(schema())
    mappings = [path for path, field in possible.items() if field.kind is Mapping]
    overridden: dict[str, str] = {}
    for override in overrides:
        given = {".".join(parts): parts for parts in _leaves(root)}
        try:
            path = resolve(override, given=given, possible=possible, open_=mappings)
            leaf = value_node(override, is_json=True)
        except InputError as error:
            problems.extend(error.problems)
            continue
        inside = next((mapping for mapping in mappings if path.startswith(f"{mapping}.")), None)
        parts = (*inside.split("."), path[len(inside) + 1 :]) if inside else tuple(path.split("."))
        root = put(root, given.get(path, parts), leaf, scalar=PRESET)
        overridden[path] = override.key
    return root, overridden


def _leaves(root: Node) -> Iterator[tuple[str, ...]]:
    """The keys that lead to each value of the file that is no mapping."""
    waiting: list[tuple[tuple[str, ...], Node]] = [((), root)]
    while waiting:
        parts, node = waiting.pop()
        if isinstance(node.value, dict):
            waiting += [((*parts, key), child) for key, child in node.value.items()]
        elif parts:
            yield parts
