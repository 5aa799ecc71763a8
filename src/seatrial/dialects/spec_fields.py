"""The values that each field of the spec may have: one table for native reader, JSON Schema and reference pages."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass
from functools import cache
from typing import Any, Literal

from seatrial.check import REMAT
from seatrial.dialects.table import coerce
from seatrial.dialects.table.coerce import FRACTION, FROM_ZERO, LESS_THAN_ALL, MORE_THAN_NONE, Range
from seatrial.estimate import hardware
from seatrial.spec import (
    INPUT,
    METRICS,
    TENSORS,
    Data,
    Distributed,
    Dropout,
    Evaluation,
    Execution,
    Expectation,
    MeshShape,
    ModelSpec,
    Optimizer,
    Parallelism,
    RunSpec,
)

PRESET = "preset"
NAME_PATTERN = r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?"

_RANGES: dict[tuple[type, str], Range] = {
    (part, name): limits
    for part, names, limits in (
        (RunSpec, "seed", Range(low=0, high=2**31 - 1)),
        (Parallelism, "stage_layers", FROM_ZERO),
        (ModelSpec, "rotary_fraction", MORE_THAN_NONE),
        (Dropout, "hidden attention ffn", LESS_THAN_ALL),
        (Optimizer, "warmup_steps hold_steps constant_steps weight_decay embedding_final_learning_rate", FROM_ZERO),
        (Optimizer, "final_learning_rate_fraction momentum", FRACTION),
        (Optimizer, "beta1 beta2", LESS_THAN_ALL),
        (Data, "weights", FROM_ZERO),
        (Evaluation, "interval_fraction", MORE_THAN_NONE),
        (Evaluation, "fraction", FRACTION),
        (Evaluation, "initial_batches", Range(low=0, also=-1)),
        (Execution, "profile_from_step", FROM_ZERO),
        (Distributed, "coordinator_port", coerce.PORT),
        (Expectation, "tolerance", LESS_THAN_ALL),
    )
    for name in names.split()
}

_WORDS: dict[tuple[type, str], tuple[str, ...]] = {
    (Execution, "remat"): (*REMAT, "selective", "custom", "auto"),
    (Execution, "remat_kept"): TENSORS,
    (Execution, "remat_offloaded"): (INPUT, *TENSORS),
    (Expectation, "metric"): tuple(METRICS),
}


@dataclass(frozen=True, kw_only=True)
class SpecField:
    """A field of a part of the spec.

    `kind` is its type without `| None`: bool, int, float, str, a dataclass or Mapping; of a tuple, what its items are,
    and tuple for pairs of texts. `words` are the only texts that it takes, `limits` the only numbers.
    """

    name: str
    kind: Any
    is_list: bool
    is_optional: bool
    is_needed: bool
    default: Any  # MISSING where there is none
    words: tuple[str, ...]
    limits: Range | None

    @property
    def part(self) -> type | None:
        """The dataclass that the field, or each of its items, is."""
        return typing.cast(type, self.kind) if dataclasses.is_dataclass(self.kind) else None


@cache
def fields_of(part: type) -> Mapping[str, SpecField]:
    """The fields of a part of the spec that a file may set, by name."""
    types_ = typing.get_type_hints(part)
    return {f.name: _field(part, f, types_[f.name]) for f in dataclasses.fields(part) if f.name != "dialect"}


def _field(part: type, f: dataclasses.Field[Any], hint: Any) -> SpecField:
    inner = [option for option in typing.get_args(hint) if option is not types.NoneType]
    is_optional = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kind = inner[0] if is_optional else hint
    is_list = typing.get_origin(kind) is tuple
    kind = typing.get_args(kind)[0] if is_list else kind
    words = typing.get_args(kind) if typing.get_origin(kind) is Literal else _WORDS.get((part, f.name), ())
    origin = typing.get_origin(kind)
    kind = {Literal: str, Mapping: Mapping, tuple: tuple}.get(origin, kind) if origin else kind
    usual = coerce.AXIS if part is MeshShape else coerce.FROM_ONE if kind is int else coerce.ABOVE_ZERO
    default = f.default if f.default_factory is MISSING else f.default_factory()
    return SpecField(
        name=f.name, kind=kind, is_list=is_list, is_optional=is_optional, words=words, default=default,
        is_needed=default is MISSING and f.name != "name",
        limits=_RANGES.get((part, f.name), usual) if kind in (int, float) else None,
    )  # fmt: skip


def schema(part: type = RunSpec, path: str = "") -> Iterator[tuple[str, SpecField]]:
    """(path, field) of everything that a configuration may set."""
    for name, field in fields_of(part).items():
        below = f"{path}.{name}" if path else name
        if field.part is None or field.is_list:
            yield below, field
            continue
        if field.kind is ModelSpec:
            named = dataclasses.replace(field, kind=str)
            yield from ((below, named), (f"{below}.{PRESET}", named))
        yield from schema(field.part, below)


def device(value: Any) -> str:
    """A device by any of its names. Raises ValueError for one that is not known."""
    name = coerce.text(value)
    found = hardware.find(name)
    if found is None:
        raise ValueError(f"{coerce.shown(name)} is no known device; known are {', '.join(hardware.DEVICES)}")
    return found.name
