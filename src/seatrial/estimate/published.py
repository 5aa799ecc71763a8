"""Published training speeds, and which of them a run can be compared with.

`published.csv` has one measured figure a row, with its source; targets that somebody set are not in it, nor rows that
contradict themselves. A figure is comparable only on the same device and the same layers; whatever else differs is
named and graded by `ASPECTS`. Speeds are carried over between sequence lengths, vocabularies and FLOPs conventions by
the work per token, never by copying a TFLOP/s.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from seatrial.errors import InputError
from seatrial.estimate import flops, hardware
from seatrial.estimate.hardware import TERA
from seatrial.spec import Expectation, ModelSpec, RunSpec
from seatrial.spec.presets import MODELS

SAME_VOCABULARY = 0.01  # Megatron pads it to a multiple of 128 × TP
_SHAPE = ("hidden_dim", "num_layers", "num_heads", "num_kv_heads", "head_dim", "ffn_dim", "tied_embeddings")


@dataclass(frozen=True, kw_only=True)
class PublishedResult:
    """One row of `published.csv`; None: not stated there.

    `model` is a preset's name, or of a model without preset the name that its publisher gives it. `proxy` marks a model
    with fewer layers, `variant` a device that is not the usual one of its name. `recipe` is the kind of fp8 or fp4
    scaling. `convention` is that of the TFLOP/s, where the model's dimensions are known. `published` is a month.
    """

    model: str
    proxy: bool
    device: str
    variant: str
    num_devices: int
    precision: str
    recipe: str
    sequence_length: int
    global_batch_size: int | None
    micro_batch_size: int | None
    tensor: int | None
    pipeline: int | None
    context: int | None
    fsdp: int | None
    step_seconds: float | None
    tokens_per_second_per_device: float
    tflops_per_second_per_device: float | None
    mfu: float | None
    convention: str
    framework: str
    published: str
    source: str
    note: str


@dataclass(frozen=True, kw_only=True)
class Difference:
    """An aspect in which a published result and a run differ."""

    aspect: str
    published: str
    yours: str


@dataclass(frozen=True, kw_only=True)
class Comparable:
    """A published result beside a run: how far it is from it, and what its speed would be worth there.

    `tokens_per_second_per_device` is the published rate, `equivalent_tokens_per_second_per_device` the rate that does
    the same FLOP/s on the run's own model and sequence (the same number where these are the same), and
    `tflops_per_second_per_device` either of them as model FLOP/s by `convention`. `distance` ranks: 0 is exact.
    """

    result: PublishedResult
    differences: tuple[Difference, ...]
    distance: float
    convention: str
    equivalent_tokens_per_second_per_device: float
    tflops_per_second_per_device: float

    @property
    def tokens_per_second_per_device(self) -> float:
        return self.result.tokens_per_second_per_device

    @property
    def same_work(self) -> bool:
        """True if a token is the same work in both, so that the rates themselves can be compared."""
        return _OTHER_WORK.isdisjoint(difference.aspect for difference in self.differences)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """The part of a run that decides which figures are comparable with it."""

    spec: RunSpec
    num_devices: int

    @property
    def precision(self) -> str:
        name = self.spec.precision.quantization or ""
        return next((family for family in ("fp8", "fp4") if family in name), name or self.spec.precision.compute_dtype)


Number = float | str | None
Reader = Callable[[PublishedResult, _Run], tuple[Number, Number]]


@dataclass(frozen=True, kw_only=True)
class Aspect:
    """Something that may differ: what a difference costs in rank, and whether a gate may overlook it.

    A difference between numbers costs `penalty`, and half of it again for each doubling.
    """

    name: str
    penalty: float
    gate_overlooks: bool
    read: Reader


def _batch_per_device(result: PublishedResult, run: _Run) -> tuple[Number, Number]:
    total = result.global_batch_size
    return total / result.num_devices if total else None, run.spec.batch.global_batch_size / run.num_devices


def _parallelism(result: PublishedResult, run: _Run) -> tuple[Number, Number]:
    mesh, stated = run.spec.mesh, (result.tensor, result.pipeline, result.context or 1)
    if result.tensor is None or result.pipeline is None:
        return None, _show_parallelism(mesh["tensor"], mesh["pipeline"], mesh["context"])
    return _show_parallelism(*stated), _show_parallelism(mesh["tensor"], mesh["pipeline"], mesh["context"])


def _show_parallelism(*sizes: int | None) -> str:
    return " × ".join(f"{name} {size}" for name, size in zip(("TP", "PP", "CP"), sizes, strict=True))


def _vocabulary(result: PublishedResult, run: _Run) -> tuple[Number, Number]:
    theirs, ours = MODELS[result.model].vocab_size, run.spec.model.vocab_size
    return (ours if abs(theirs - ours) <= SAME_VOCABULARY * ours else theirs), ours


ASPECTS = (
    Aspect(
        name="precision", penalty=100, gate_overlooks=False, read=lambda result, run: (result.precision, run.precision)
    ),
    Aspect(
        name="sequence length", penalty=40, gate_overlooks=False,
        read=lambda result, run: (result.sequence_length, run.spec.batch.sequence_length),
    ),
    Aspect(name="vocabulary", penalty=20, gate_overlooks=False, read=_vocabulary),
    Aspect(name="device variant", penalty=10, gate_overlooks=False, read=lambda result, _: (result.variant, "")),
    Aspect(name="batch per device", penalty=4, gate_overlooks=True, read=_batch_per_device),
    Aspect(
        name="scale", penalty=2, gate_overlooks=True, read=lambda result, run: (result.num_devices, run.num_devices)
    ),
    Aspect(name="parallelism", penalty=1, gate_overlooks=True, read=_parallelism),
)  # fmt: skip
_OTHER_WORK = {"sequence length", "vocabulary"}
_MAY_DIFFER_IN_A_GATE = {aspect.name for aspect in ASPECTS if aspect.gate_overlooks}


@cache
def results() -> tuple[PublishedResult, ...]:
    """Every published result that the package has."""
    text = files("seatrial.estimate").joinpath("published.csv").read_text(encoding="utf-8")
    return tuple(_result(row) for row in csv.DictReader(text.splitlines()))


def _result(row: Mapping[str, str]) -> PublishedResult:
    kinds = {"int": int, "float": float, "int | None": int, "float | None": float, "bool": bool}
    values: dict[str, Any] = {}
    for name, kind in PublishedResult.__annotations__.items():
        empty = None if kind.endswith("None") else ""
        values[name] = kinds.get(kind, str)(row[name]) if row[name] else empty
    return PublishedResult(**{**values, "proxy": bool(row["proxy"])})


def nearest(
    spec: RunSpec,
    *,
    num_devices: int,
    device: str | None = None,
    convention: str = flops.DEFAULT_CONVENTION,
    limit: int = 5,
) -> list[Comparable]:
    """The published results that this run can be compared with, the closest first; of equally close ones, the newest.

    `device` is what it ran on, as configuration or runtime name it (default: the spec's). Empty where the device is not
    known, or nothing was published for this model on it. Raises KeyError for an unknown FLOPs convention.
    """
    known = hardware.find(device or spec.topology.device)
    if known is None:
        return []
    run = _Run(spec=spec, num_devices=num_devices)
    ours = flops.flops_per_token(spec.model, spec.batch.sequence_length, convention)
    found = [
        _compare(result, run, convention, ours)
        for result in results()
        if result.device == known.name and not result.proxy and _same_layers(result.model, spec.model)
    ]
    newest_first = sorted(found, key=lambda comparable: comparable.result.published, reverse=True)
    return sorted(newest_first, key=lambda comparable: comparable.distance)[:limit]


def _same_layers(name: str, model: ModelSpec) -> bool:
    preset = MODELS.get(name)
    return preset is not None and all(getattr(preset, field) == getattr(model, field) for field in _SHAPE)


def _compare(result: PublishedResult, run: _Run, convention: str, flops_per_token: float) -> Comparable:
    theirs = flops.flops_per_token(MODELS[result.model], result.sequence_length, convention)
    achieved = result.tokens_per_second_per_device * theirs
    differences, distance = [], 0.0
    for aspect in ASPECTS:
        published, yours = aspect.read(result, run)
        if published == yours:
            continue
        differences.append(Difference(aspect=aspect.name, published=_show(published), yours=_show(yours)))
        distance += aspect.penalty * (1 + _doublings(published, yours) / 2)
    return Comparable(
        result=result,
        differences=tuple(differences),
        distance=distance,
        convention=convention,
        equivalent_tokens_per_second_per_device=achieved / flops_per_token,
        tflops_per_second_per_device=achieved / TERA,
    )


def _doublings(one: Number, other: Number) -> float:
    if isinstance(one, (int, float)) and isinstance(other, (int, float)) and one > 0 and other > 0:
        return abs(math.log2(one / other))
    return 0.0


def _show(value: Number) -> str:
    if value is None:
        return "not stated"
    return value or "the usual one" if isinstance(value, str) else f"{value:,.10g}"


def expectation_from(comparable: Comparable, *, tolerance: float) -> Expectation:
    """The published rate as a target in tokens/s per device, to be met within `tolerance` (a fraction).

    Raises InputError where precision, sequence length, vocabulary or the kind of device differ: such a rate says
    nothing about this run.
    """
    grave = [d for d in comparable.differences if d.aspect not in _MAY_DIFFER_IN_A_GATE]
    if grave:
        raise InputError.single(
            "not-comparable",
            "--published",
            "the nearest published result differs in "
            + ", ".join(f"{d.aspect} ({d.published}, yours {d.yours})" for d in grave),
            "leave the option away, and state the expected speed in the configuration",
        )
    value = comparable.tokens_per_second_per_device
    return Expectation(metric="tokens_per_second_per_device", value=value, tolerance=tolerance)
