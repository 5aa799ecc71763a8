"""The model: its numbers agree with each other and with its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from seatrial.check.finder import Finder
from seatrial.errors import Problem
from seatrial.presets import MODELS, same_architecture


def contradiction(name: str, stated: Mapping[str, tuple[str, Any]]) -> str | None:
    """How numbers given for a model differ from its name's preset: user's key → (field of ModelSpec, value)."""
    preset = MODELS.get(name)
    if preset is None:
        return None
    differing = {key: (field, value) for key, (field, value) in stated.items() if getattr(preset, field) != value}
    if not differing:
        return None
    owner = same_architecture(replace(preset, **dict(differing.values())))
    numbers = ", ".join(f"{key} {value} (not {getattr(preset, field)})" for key, (field, value) in differing.items())
    whose = f"those of {owner}" if owner and owner != name else "of no known model"
    return f"{numbers}: these numbers are {whose}, not those of {name}"


def architecture(finder: Finder) -> Iterator[Problem]:
    model = finder.spec.model
    stated = {finder.key(f"model.{f}"): (f, value) for f, value in vars(model).items() if f != "name"}
    why = contradiction(model.name, stated)
    if why:
        first = next(f for f, value in stated.values() if value != getattr(MODELS[model.name], f))
        yield finder.at(
            f"model.{first}", "warning", "architecture-contradicts-name", f"{why}; the numbers decide",
            "give the model another name, or the numbers of this one",
        )  # fmt: skip


def heads(finder: Finder) -> Iterator[Problem]:
    model = finder.spec.model
    if model.num_heads % model.num_kv_heads:
        yield finder.at(
            "model.num_kv_heads", "error", "not-divisible",
            f"{model.num_heads} query heads cannot share {model.num_kv_heads} key/value heads evenly",
            f"use a divisor of {model.num_heads}",
        )  # fmt: skip
    if model.head_dim % 2:
        why = f"rotary positions turn pairs of dimensions, and {model.head_dim} is odd"
        yield finder.at("model.head_dim", "error", "not-divisible", why, "use an even number")
