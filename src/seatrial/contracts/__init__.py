"""Contracts for machines: the JSON Schema (draft 2020-12) of each file that other programs read or write.

What a version promises is in docs/reference/contracts.md. `seatrial schema NAME` prints one.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from seatrial.errors import InputError

DRAFT = "https://json-schema.org/draft/2020-12/schema"
VERSION = 1  # the "v" of the files

# Name → (the module:function that makes it, what it describes).
CONTRACTS: dict[str, tuple[str, str]] = {
    "native": ("seatrial.dialects.schema:json_schema", "A training run: Seatrial's own configuration"),
    "cluster": ("seatrial.contracts.cluster:schema", "A cluster file: the hosts of a run"),
    "plan": ("seatrial.contracts.plan:schema", "plan.json: what is run"),
    "event": ("seatrial.contracts.event:schema", "A line of events-*.jsonl: a fact of a run"),
    "metrics": ("seatrial.contracts.metrics:schema", "metrics.json: what the events of a run amount to"),
    "verdict": ("seatrial.contracts.verdict:schema", "verdict.json: each check of a run, and the outcome"),
}
NAMES = tuple(CONTRACTS)


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a contract, with its identifier and title. Raises InputError for a name that is none."""
    if name not in CONTRACTS:
        raise InputError.single("unknown-schema", "schema", f"there is no {name!r}", f"one of: {', '.join(NAMES)}")
    place, title = CONTRACTS[name]
    module, _, function = place.partition(":")
    head = {
        "$schema": DRAFT,
        "$id": f"urn:seatrial:{name}:v{VERSION}",
        "title": f"{title} (Seatrial, version {VERSION})",
    }
    made: dict[str, Any] = getattr(import_module(module), function)()
    return head | {key: value for key, value in made.items() if key not in head}
