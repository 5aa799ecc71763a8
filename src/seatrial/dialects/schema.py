"""The JSON Schema (draft 2020-12) of a native configuration, from the types, ranges and words that its reader uses."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any, Literal

from seatrial.dialects.fields import FIELDS
from seatrial.dialects.table import ranges
from seatrial.dialects.table.coerce import Range
from seatrial.dialects.typed import NAME_PATTERN, PRESET, SCHEMA, bare, hints
from seatrial.estimate import hardware
from seatrial.spec import ModelSpec, RunSpec, Topology
from seatrial.spec.presets import MODELS

DRAFT = "https://json-schema.org/draft/2020-12/schema"
NOTES = {"^_": {"description": "A note; whatever stands here has no effect."}}
_SCALAR = {"type": ["string", "number", "boolean"]}
_PAIR = {"type": "array", "items": _SCALAR, "minItems": 2, "maxItems": 2}


def json_schema() -> dict[str, Any]:
    """What a native configuration may be, with descriptions, units, defaults, ranges and words."""
    run = _object(RunSpec, "")
    run["properties"][SCHEMA] = {"description": "The place of this schema, for editors."}
    return {"$schema": DRAFT, "title": "A training run (Seatrial)", **run}


def _object(kind: type, path: str, *, all_optional: bool = False) -> dict[str, Any]:
    fields = [f for f in dataclasses.fields(kind) if f.name in hints(kind)]
    needed = [f.name for f in fields if f.default is MISSING and f.default_factory is MISSING and f.name != "name"]
    return {
        "type": "object",
        "properties": {f.name: _field(kind, f, f"{path}.{f.name}" if path else f.name) for f in fields},
        "patternProperties": NOTES,
        "additionalProperties": False,
        **({"required": needed} if needed and not all_optional else {}),
    }


def _field(owner: type, f: dataclasses.Field[Any], path: str) -> dict[str, Any]:
    kind, is_optional = bare(hints(owner)[f.name])
    made = _model(path) if kind is ModelSpec else _value(owner, f.name, kind, path)
    described = {"description": _description(path), **made}
    if isinstance(f.default, (str, int, float, bool)):
        described["default"] = f.default
    return _or_null(described) if is_optional else described


def _value(owner: type, name: str, kind: Any, path: str) -> dict[str, Any]:
    if dataclasses.is_dataclass(kind):
        return _object(typing.cast(type, kind), path)
    if typing.get_origin(kind) is tuple:
        item = typing.get_args(kind)[0]
        is_pair = typing.get_origin(item) is tuple
        return {"type": "array", "items": _PAIR if is_pair else _value(owner, name, item, path)}
    if typing.get_origin(kind) is Mapping:
        return {"type": "object", "additionalProperties": _SCALAR}
    if typing.get_origin(kind) is Literal:
        return {"enum": list(typing.get_args(kind))}
    if (owner, name) in ranges.CHOICES:
        return {"enum": list(ranges.CHOICES[owner, name])}
    if kind in (int, float):
        return _number("integer" if kind is int else "number", ranges.range_of(owner, name, kind))
    if (owner, name) == (Topology, "device"):
        return {"type": "string", "examples": list(hardware.DEVICES)}
    if (owner, name) == (RunSpec, "name"):
        return {"type": "string", "pattern": f"^{NAME_PATTERN}$"}
    return {"type": "boolean" if kind is bool else "string"}


def _number(kind: str, limits: Range) -> dict[str, Any]:
    low = {"exclusiveMinimum" if limits.above else "minimum": limits.low}
    high = {"exclusiveMaximum" if limits.below else "maximum": limits.high}
    inside = {"type": kind, **low, **high}
    return inside if limits.also is None else {"anyOf": [inside, {"const": limits.also}]}


def _model(path: str) -> dict[str, Any]:
    """A preset's name, or fields; with a preset to start from, none of them is needed."""
    fields = _object(ModelSpec, path)
    needed = fields.pop("required")
    preset = {"enum": list(MODELS)}
    described = {"description": _description(f"{path}.{PRESET}"), **preset}
    fields["properties"] = {PRESET: described, **fields["properties"]}
    return {"anyOf": [preset, {**fields, "anyOf": [{"required": [PRESET]}, {"required": needed}]}]}


def _or_null(value: dict[str, Any]) -> dict[str, Any]:
    if "enum" in value:
        return {**value, "enum": [*value["enum"], None]}
    if "type" in value:
        return {**value, "type": [value["type"], "null"]}
    return {**value, "anyOf": [*value["anyOf"], {"type": "null"}]}


def _description(path: str) -> str:
    field = FIELDS[path]
    return f"{field.meaning} Unit: {field.unit}." if field.unit else field.meaning
