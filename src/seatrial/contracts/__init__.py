"""Contracts for machines: the JSON Schema (draft 2020-12) of each file that other programs read or write.

What a version promises is in docs/reference/contracts.md. `seatrial schema NAME` prints one.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from seatrial.errors import InputError

DRAFT = "https://json-schema.org/draft/2020-12/schema"
VERSION = 1  # the "v" of the files

# Name → (the module that has it as `schema()`, what it describes).
CONTRACTS: dict[str, tuple[str, str]] = {
    "native": ("seatrial.contracts.native", "A training run: Seatrial's own configuration"),
    "cluster": ("seatrial.contracts.cluster", "A cluster file: the hosts of a run"),
    "plan": ("seatrial.contracts.plan", "plan.json: what is run"),
    "event": ("seatrial.contracts.event", "A line of events-*.jsonl: a fact of a run"),
    "metrics": ("seatrial.contracts.metrics", "metrics.json: what the events of a run amount to"),
    "verdict": ("seatrial.contracts.verdict", "verdict.json: each check of a run, and the outcome"),
}
NAMES = tuple(CONTRACTS)


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a contract, with its identifier and title. Raises InputError for a name that is none."""
    if name not in CONTRACTS:
        raise InputError.single("unknown-schema", "schema", f"there is no {name!r}", f"one of: {', '.join(NAMES)}")
    module, title = CONTRACTS[name]
    head = {
        "$schema": DRAFT,
        "$id": f"urn:seatrial:{name}:v{VERSION}",
        "title": f"{title} (Seatrial, version {VERSION})",
    }
    made: dict[str, Any] = import_module(module).schema()
    return head | {key: value for key, value in made.items() if key not in head}
