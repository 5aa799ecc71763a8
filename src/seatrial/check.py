"""Cross-field rules: what is wrong, or looks wrong, with a spec as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from seatrial.presets import MODELS, same_architecture
from seatrial.spec import Resolved


def lint(resolved: Resolved, *, action: str) -> Resolved:
    """The same, with what the rules found appended to its problems."""
    return resolved


def contradiction(name: str, stated: Mapping[str, tuple[str, Any]]) -> str | None:
    """How numbers given for a model differ from its name's preset: user's key → (field of ModelSpec, value)."""
    preset = MODELS.get(name)
    differing = {} if preset is None else {
        key: (field, value) for key, (field, value) in stated.items() if getattr(preset, field) != value
    }  # fmt: skip
    if preset is None or not differing:
        return None
    whose = same_architecture(replace(preset, **dict(differing.values())))
    numbers = ", ".join(f"{key} {value} (not {getattr(preset, field)})" for key, (field, value) in differing.items())
    return f"{numbers}: these numbers are {f'those of {whose}' if whose else 'nobody’s'}, not those of {name}"
