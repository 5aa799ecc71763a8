"""verdict.json."""

from __future__ import annotations

from seatrial.contracts.types import Json, schema_of, versioned
from seatrial.verdict import AXES, EXIT_CODES, VERSION, Verdict


def schema() -> Json:
    """The verdict on a run, as it is written: it has all three axes."""
    code: Json = {"enum": sorted(set(EXIT_CODES.values())), "description": "The exit code that the outcome has."}
    made = versioned(schema_of(Verdict), VERSION, exit_code=code)
    axes: Json = made["properties"]["axes"]
    axes |= {"required": list(AXES), "description": "Completion, numerics and performance, each with its checks."}
    axes.pop("propertyNames")
    return made
