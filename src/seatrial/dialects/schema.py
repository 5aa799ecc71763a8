"""The JSON Schema (draft 2020-12) of a native configuration, from the types, ranges and words that its reader uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from seatrial.dialects.fields import FIELDS
from seatrial.dialects.spec_fields import NAME_PATTERN, PRESET, SpecField, fields_of
from seatrial.dialects.table.coerce import Range
from seatrial.dialects.typed import SCHEMA
from seatrial.estimate import hardware
from seatrial.spec import ModelSpec, RunSpec
from seatrial.spec.presets import MODELS

DRAFT = "https://json-schema.org/draft/2020-12/schema"
NOTES = {"^_": {"description": "A note; whatever stands here has no effect."}}
_SCALAR = {"type": ["string", "number", "boolean"]}
_PAIR = {"type": "array", "items": _SCALAR, "minItems": 2, "maxItems": 2}


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a native configuration, with descriptions, units, defaults, ranges and words."""
    run = _object(RunSpec, "")
    run["properties"][SCHEMA] = {"description": "The place of this schema, for editors."}
    return {"$schema": DRAFT, "title": "A training run (Seatrial)", **run}


def _object(part: type, path: str, *, all_optional: bool = False) -> dict[str, Any]:
    fields = fields_of(part)
    needed = [name for name, field in fields.items() if field.is_needed]
    return {
        "type": "object",
        "properties": {name: _field(field, f"{path}.{name}" if path else name) for name, field in fields.items()},
        "patternProperties": NOTES,
        "additionalProperties": False,
        **({"required": needed} if needed and not all_optional else {}),
    }


def _field(field: SpecField, path: str) -> dict[str, Any]:
    made = _model(path) if field.kind is ModelSpec else _value(field, path)
    described = {"description": _description(path), **made}
    if isinstance(field.default, (str, int, float, bool)):
        described["default"] = field.default
    return _or_null(described) if field.is_optional else described


def _value(field: SpecField, path: str) -> dict[str, Any]:
    if field.is_list:
        return {"type": "array", "items": _value(replace(field, is_list=False), path)}
    if field.part:
        return _object(field.part, path)
    if field.words:
        return {"enum": list(field.words)}
    if field.limits:
        return _number("integer" if field.kind is int else "number", field.limits)
    if path == "topology.device":
        return {"type": "string", "examples": list(hardware.DEVICES)}
    if path == "name":
        return {"type": "string", "pattern": f"^{NAME_PATTERN}$"}
    if field.kind is Mapping:
        return {"type": "object", "additionalProperties": _SCALAR}
    return _PAIR if field.kind is tuple else {"type": "boolean" if field.kind is bool else "string"}


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
