"""The model: its numbers agree with each other and with its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from seatrial.check.finder import Finder
from seatrial.errors import Problem
from seatrial.spec import ModelSpec
from seatrial.spec.presets import MODELS, of_dimensions, same_architecture

ROTARY = ("rope_theta", "rope_scaling")
_NOT_SHAPE = ("name", "vocab_multiple")


def contradiction(name: str, stated: Mapping[str, tuple[str, Any]]) -> str | None:
    """The difference of a model's numbers from its name's preset, if any: user's key → (field of ModelSpec, value)."""
    preset = MODELS.get(name)
    if preset is None:
        return None
    differing = {
        key: (field, value)
        for key, (field, value) in stated.items()
        if field not in ROTARY and getattr(preset, field) != value
    }
    if not differing:
        return None
    owner = same_architecture(replace(preset, **dict(differing.values())))
    numbers = ", ".join(f"{key} {value} (not {getattr(preset, field)})" for key, (field, value) in differing.items())
    whose = f"those of {owner}" if owner and owner != name else "of no known model"
    return f"{numbers}: these numbers are {whose}, not those of {name}"


def architecture(finder: Finder) -> Iterator[Problem]:
    """The model's numbers are those of its name."""
    model = finder.spec.model
    stated = {finder.key(f"model.{f}"): (f, value) for f, value in vars(model).items() if f not in _NOT_SHAPE}
    why = contradiction(model.name, stated)
    if why:
        preset = MODELS[model.name]
        first = next(f for f, value in stated.values() if f not in ROTARY and value != getattr(preset, f))
        yield finder.at(
            f"model.{first}", "warning", "architecture-contradicts-name", f"{why}; the numbers decide",
            "give the model another name, or the numbers of this one",
        )  # fmt: skip


def rotary_base(finder: Finder) -> Iterator[Problem]:
    """Rotary positions turn as fast as those that the model's weights were trained with."""
    model = finder.spec.model
    alike = [MODELS[name] for name in of_dimensions(model) if _alike(MODELS[name], model)]
    owners = [MODELS[model.name]] if model.name in MODELS else alike
    if not owners or model.positions != "rope" or any(_rotary(owner) == _rotary(model) for owner in owners):
        return
    owner = owners[0]
    if model.rope_theta != owner.rope_theta:
        if model.name not in MODELS and finder.is_given("model.rope_theta"):
            return  # a model of one's own, and one's own choice
        yield finder.at(
            "model.rope_theta", "warning", "rotary-base",
            f"positions turn with a base of {model.rope_theta:g}, and {owner.name} was trained with "
            f"{owner.rope_theta:g}: the speed is the same, but its weights would not work, and losses do not compare",
            f"give {owner.rope_theta:g}",
        )  # fmt: skip
    elif model.name in MODELS:
        what = "are not scaled as" if model.rope_scaling is None else "are scaled otherwise than"
        why = f"its frequencies {what} those of {owner.name}: losses differ, the speed does not"
        yield finder.at("model.rope_scaling", "info", "rotary-base", why, "ignore this if only the speed matters")


def _rotary(model: ModelSpec) -> tuple[Any, ...]:
    return tuple(getattr(model, field) for field in ROTARY)


def _alike(preset: ModelSpec, model: ModelSpec) -> bool:
    """True if a model of a preset's dimensions differs only in its name, positions and padding of the vocabulary."""
    near = 0 <= model.vocab_size - preset.vocab_size <= 0.02 * preset.vocab_size
    return near and preset.tied_embeddings == model.tied_embeddings


def heads(finder: Finder) -> Iterator[Problem]:
    """Query heads share key/value heads evenly, and a head's dimensions come in pairs."""
    model = finder.spec.model
    if model.num_heads % model.num_kv_heads:
        yield finder.at(
            "model.num_kv_heads", "error", "not-divisible",
            f"{model.num_heads} query heads cannot share {model.num_kv_heads} key/value heads evenly",
            f"use a divisor of {model.num_heads}",
        )  # fmt: skip
    if model.positions != "rope":
        return
    turned = int(model.head_dim * model.rotary_fraction)
    if model.head_dim % 2:
        why = f"rotary positions turn pairs of dimensions, and {model.head_dim} is odd"
        yield finder.at("model.head_dim", "error", "not-divisible", why, "use an even number")
    elif turned % 2:
        why = f"rotary positions turn pairs, and {model.rotary_fraction:g} of {model.head_dim} dimensions are {turned}"
        yield finder.at(
            "model.rotary_fraction", "error", "not-divisible", why, f"use {(turned + 1) / model.head_dim:g}"
        )
