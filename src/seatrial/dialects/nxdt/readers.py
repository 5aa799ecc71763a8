"""A scalar of an NxDT file → a value: what PyYAML and OmegaConf make of it there, read by YAML 1.2 here.

Two words differ between the two YAMLs: `yes` and `on` are true in 1.1 and text in 1.2; and many files write Python's
None, which is text in both and means null.
"""

from __future__ import annotations

import re
from typing import Any

from seatrial.dialects.table import coerce
from seatrial.dialects.table.coerce import Range, Reader, count, decimal, in_range, share, takes, whole
from seatrial.spec import RunSpec

OPEN = "<changeme>"
_YES_NO = {"yes": True, "on": True, "no": False, "off": False}
# NxDT's classes, and what the spec calls them: Megatron's words, where it has one.
MODULES = {
    "CoreAttention": "core_attn", "LlamaMLP": "mlp", "LlamaRMSNorm": "layernorm", "ActivationMultiplyMLP": "mlp_act",
    "LlamaDecoderLayer": "layer", "LlamaRotaryEmbedding": "rope", "MixtralRMSNorm": "layernorm",
    "NeuronSwitchMLP": "moe",
}  # fmt: skip

natural_or_all = in_range(Range(low=0, also=-1), whole)
share_above_zero = in_range(coerce.MORE_THAN_NONE, decimal)
probability = in_range(coerce.LESS_THAN_ALL, decimal)
seed = in_range(Range(low=1, high=2**31 - 1), whole)


def is_null(value: Any) -> bool:
    """True if a value is null, or Python's word for it."""
    return value is None or value == "None"


def optional(read: Reader) -> Reader:
    """The same reader, and null."""
    return coerce.optional(read, is_null)


@takes("true or false")
def boolean(value: Any) -> bool:
    """true or false, and YAML 1.1's words for them."""
    if isinstance(value, str) and value.lower() in _YES_NO:
        return _YES_NO[value.lower()]
    return coerce.boolean(value)


@takes("the names of the last layers of stages: [model.layers.15, …]")
def cuts(value: Any) -> list[int]:
    """The numbers of the layers behind which a pipeline is cut, by their names."""
    names = value if isinstance(value, list) else [value]
    found = [re.search(r"\.(\d{1,4})$", str(name)) for name in names]
    numbers = [int(match[1]) for match in found if match]
    if len(numbers) != len(names) or numbers != sorted(set(numbers)):
        raise ValueError(f"{coerce.shown(value)} are not names of layers in order, as in model.layers.15")
    return numbers


@takes("a whole number from 1 on, or -1 for no limit")
def count_or_all(value: Any) -> int | None:
    return None if (number := coerce.axis_size(value)) == -1 else number


steps = takes("a whole number from 1 on")(lambda value: count_or_all(value))  # -1 is an error of its own


size_of_model = takes("a whole number from 1 on, or -1 for that of model_config")(lambda value: count_or_all(value))


@takes("a number above 0, or -1 for that of model_config")
def rope_base(value: Any) -> float | None:
    number = coerce.decimal(value)
    return None if number == -1 else coerce.positive(number)


@takes("a whole number of batches, or a share of them with a point: 1 is one batch, 1.0 all of them, 0 none")
def batches_or_share(value: Any) -> int | float:
    """A number of batches (int) or a share of them (float), as Lightning tells them apart: by the type."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{coerce.shown(value)} is neither a number of batches nor a share of them")
    return coerce.natural(value) if isinstance(value, int) else share(value)


def steps_or_share(value: Any) -> int | float:
    """Steps (int), or a share of an epoch (float), as Lightning tells them apart: by the type."""
    if isinstance(value, int) and not isinstance(value, bool):
        return count(value)
    number = coerce.positive(value)
    if number > 1:
        raise ValueError(f"{number:g} is no share of an epoch; steps are counted by a number without a point")
    return number


def all_or_part(value: Any) -> Any:
    """None for all: nothing, or the share 1.0; the number 1 is a part."""
    return None if value is None or (isinstance(value, float) and value == 1.0) else value


@takes("two numbers from 0 to 1, [beta1, beta2]")
def betas(value: Any) -> tuple[float, float]:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        what = f"a list of {len(value)}" if isinstance(value, (list, tuple)) else coerce.shown(value)
        raise ValueError(f"{what} is not a pair of numbers")
    return share(value[0]), share(value[1])


@takes("the number of copies, a whole number from 1 on")
def copies(value: Any) -> int:
    if isinstance(value, bool):
        word = str(value).lower()
        raise ValueError(f"{word} is no number: NxDT's documentation calls this a bool, but its code multiplies by it")
    return count(value)


@takes("'0' or '1'")
def switch(value: Any) -> bool:
    """NxDT's '0' and '1', which it exports as environment variables."""
    if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    if value in ("0", "1"):
        return bool(value == "1")
    raise ValueError(f"{coerce.shown(value)} is neither '0' nor '1', nor true or false")


@takes("a path or a name")
def named(value: Any) -> str:
    text = coerce.text(value)
    if not text:
        raise ValueError("it is empty")
    return text


def path_or_none(value: Any) -> str | None:
    """A path; nothing and null are none."""
    return optional(coerce.text)(value) or None


def folder_here(value: Any) -> str | None:
    """A path on this machine; the URL of a store is none."""
    path = path_or_none(value)
    return None if path and "://" in path else path


def named_path(path: str) -> str:
    """A path as it is written: one that reads as null is written as the same place in other words."""
    return f"./{path}" if is_null(path) else path


@takes("a list of modules, for example [CoreAttention]")
def modules(value: Any) -> tuple[str, ...]:
    names = coerce.texts([value] if isinstance(value, str) else value)
    unknown = next((name for name in names if name not in MODULES), None)
    if unknown is not None:
        raise ValueError(f"{coerce.shown(unknown)} is no module that can be recomputed; there is {', '.join(MODULES)}")
    return tuple(MODULES[name] for name in names)


@takes("shares of training, validation and test, for example 980,10,10")
def shares(value: Any) -> str:
    text = coerce.text(value)
    parts = text.split(",")
    if not 1 <= len(parts) <= 3 or any(coerce.decimal(part) < 0 for part in parts):
        raise ValueError(f"{coerce.shown(text)} does not consist of up to three shares")
    return text


@takes("[path], or [weight, path, weight, path, …]")
def data_prefix(value: Any) -> Any:
    """Megatron's data_prefix: a path, [path], [weight, path, …], or a mapping of splits to any of these."""
    if value is None:
        return None
    if isinstance(value, dict):
        unknown = [name for name in value if name not in ("train", "validation", "test")]
        if unknown or "train" not in value:
            what = f"{coerce.shown(unknown[0])} is no split" if unknown else "train is missing"
            raise ValueError(f"{what}; the splits are train, validation and test")
        return {name: _weighted(part) for name, part in value.items() if part is not None}
    return _weighted(value)


def _weighted(value: Any) -> tuple[tuple[float, str], ...]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{coerce.shown(value)} is neither a path nor a list")
    if len(value) == 1:
        return ((1.0, named(value[0])),)
    if not value or len(value) % 2:
        raise ValueError(f"a list of {len(value)} does not consist of pairs of weight and path")
    pairs = list(zip(value[::2], value[1::2], strict=True))
    wrong = next((w for w, _ in pairs if isinstance(w, (str, bool)) or not isinstance(w, (int, float)) or w < 0), None)
    if wrong is not None:
        raise ValueError(f"{coerce.shown(wrong)} stands where a weight belongs, before its path")
    return tuple((coerce.decimal(weight), named(path)) for weight, path in pairs)


def prefixes(spec: RunSpec) -> Any:
    """The inverse of `data_prefix`."""
    data = spec.data

    def weighted(paths: tuple[str, ...], weights: tuple[float, ...] = ()) -> list[Any]:
        if len(paths) == 1 and not weights:
            return list(paths)
        pairs = zip(weights or (1.0,) * len(paths), paths, strict=False)
        return [part for pair in pairs for part in pair]

    train = weighted(data.paths, data.weights) if data.paths else [OPEN]
    if not data.validation_paths and not data.test_paths:
        return train
    parts = {"train": train, "validation": weighted(data.validation_paths), "test": weighted(data.test_paths)}
    return {name: part for name, part in parts.items() if part}


def anything(value: Any) -> Any:
    """Whatever it is: nothing here reads it."""
    return tuple(value) if isinstance(value, list) else value
