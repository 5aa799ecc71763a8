"""A line of events-*.jsonl."""

from __future__ import annotations

from seatrial.contracts.types import Json, schema_of, versioned
from seatrial.events import KINDS, LEAST, VERSION


def schema() -> Json:
    """An event of one of the six kinds; a field that is not known is left out."""
    kinds: dict[str, Json] = {}
    definitions: Json = {}
    for name, kind in KINDS.items():
        made = schema_of(kind, omits_none=True)
        definitions |= made.pop("$defs")
        for field, least in LEAST.items():
            if field in made["properties"]:
                made["properties"][field]["minimum"] = least
        made["properties"]["wall_time"] |= {"type": "number"}  # by which events are put in order: always finite
        made["properties"]["wall_time"].pop("$ref")
        kinds[kind.__name__] = versioned(made, VERSION, kind={"const": name, "description": "What the event is."})
    return {
        "description": "A fact of a run, as a process recorded it; nothing in it is derived from another.",
        "type": "object",
        "required": ["v", "kind"],
        "properties": {"kind": {"enum": list(KINDS), "description": "What the event is."}},
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in kinds],
        "$defs": {**kinds, **definitions},
    }
