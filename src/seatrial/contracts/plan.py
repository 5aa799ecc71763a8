"""plan.json."""

from __future__ import annotations

from seatrial.contracts.types import Json, described, schema_of
from seatrial.dialects.fields import FIELDS
from seatrial.engines import ENGINES
from seatrial.launch.targets import TARGETS
from seatrial.spec import RunSpec

VERSION = 1
_TEXT: Json = {"type": "string"}
_TEXTS: Json = {"type": "array", "items": _TEXT}


def _object(description: str, **properties: Json) -> Json:
    """An object of which every field is there."""
    return {
        "type": "object", "description": description, "properties": properties, "required": list(properties),
    }  # fmt: skip


def schema() -> Json:
    """The plan of a run, as it is written; `Plan.as_dict` makes it."""
    spec = described(schema_of(RunSpec, finite=True), RunSpec, _meaning)
    definitions = spec.pop("$defs")
    change = _object(
        "A value that the rehearsal or the collapsed run changes.",
        path=_TEXT | {"description": "Of the value in the spec, dotted."},
        original={"description": "What was asked for."},
        rehearsed={"description": "What is run instead."},
        why=_TEXT | {"description": "The rule, for people."},
    )
    process = _object(
        "A process of the run.",
        rank={"type": "integer", "minimum": 0, "description": "Rank of the process."},
        host=_TEXT | {"description": "Name of its host."},
        argv={"type": "array", "items": _TEXT, "minItems": 1, "description": "Program and arguments, without a shell."},
        environment={
            "type": "object", "additionalProperties": _TEXT,
            "description": "Variables that it gets; secrets are masked.",
        },
        log=_TEXT | {"description": "Its log, relative to the run directory."},
    )  # fmt: skip
    reduced = _object(
        "How the run differs from the configuration.",
        collapsed={"type": "boolean", "description": "Only the mesh was shrunk; else model and batch, too."},
        changes={"type": "array", "items": {"$ref": "#/$defs/Change"}, "description": "Each of its changes."},
    )
    made = _object(
        "What is run, and how: what the processes get, and where they are.",
        v={"const": VERSION, "description": "Version of the contract."},
        engine=_TEXT | {"description": "The program that trains.", "examples": list(ENGINES)},
        on=_TEXT | {"description": "Where it runs.", "examples": list(TARGETS)},
        spec={"$ref": "#/$defs/RunSpec", "description": "What the processes get; secrets are masked."},
        rehearsal={
            "anyOf": [reduced, {"type": "null"}],
            "description": "How the run differs from the configuration; null: not at all.",
        },
        processes={
            "type": "array", "items": {"$ref": "#/$defs/Process"}, "minItems": 1, "description": "By their ranks.",
        },
        notes=_TEXTS | {"description": "For people."},
        dropped=_TEXTS | {"description": "Keys that bear on speed or memory, and that the engine did not get."},
        files={
            "type": "object", "additionalProperties": _TEXT,
            "description": "What is written before the start: path in the run directory → content.",
        },
    )  # fmt: skip
    return {**made, "$defs": {"RunSpec": spec, "Change": change, "Process": process, **definitions}}


def _meaning(path: str) -> str | None:
    """The meaning of a field of a run, with its unit; None where none is known."""
    field = FIELDS.get(path)
    if field is None:
        return None
    return f"{field.meaning} Unit: {field.unit}." if field.unit else field.meaning
