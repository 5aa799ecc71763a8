"""The model of a MaxText configuration: one of its named ones, whose file decides, or the dimensions that are given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath
from typing import Any

from seatrial.dialects.maxtext.command import BASE
from seatrial.dialects.maxtext.keys import ARCHITECTURE, DEFAULTS
from seatrial.dialects.maxtext.settings import Settings
from seatrial.dialects.maxtext.values import NAMED, OTHER_MODELS
from seatrial.dialects.table.suggestions import did_you_mean
from seatrial.spec import ModelSpec, Origin, RopeScaling
from seatrial.spec.presets import MODELS

DEFAULT = "default"
INSTRUCT = "-Instruct"  # the same architecture
_NOT_IN_FILE = {"llama2": ("rope_max_timescale",)}  # what those models' files leave open


def build(settings: Settings, origins: dict[str, Origin]) -> ModelSpec | None:
    """The model, or None where its name is none or a dimension is wrong."""
    name = settings.get("model_name")
    preset = _preset(settings, name)
    others = ("rope_type", "attention_type", "sliding_window_size", "global_parameter_scale")
    if preset is None or settings.wrong(*ARCHITECTURE, *others):
        return None
    origins["model"] = settings.origin("model_name")
    is_default = name == DEFAULT
    stated = list(ARCHITECTURE) if is_default else _stated(settings, preset, name)
    scale = _scales(settings)
    if scale is None:
        return None
    start = replace(preset, name=DEFAULT, rope_scaling=None) if is_default else preset
    model = replace(start, **{ARCHITECTURE[key]: settings.get(key) for key in stated})
    model = replace(model, **{field: getattr(model, field) * factor for field, factor in scale.items()})
    origins |= {f"model.{ARCHITECTURE[key]}": settings.origin(key) for key in stated}
    origins |= {f"model.{field}": settings.origin("global_parameter_scale") for field in scale}
    model = _attention(settings, model, origins)
    is_same = replace(model, name="") == replace(preset, name="")
    return model if is_default or is_same else replace(model, name=f"{preset.name}-changed")


def _attention(settings: Settings, model: ModelSpec, origins: dict[str, Origin]) -> ModelSpec:
    """The model with the scaling of its positions and its window."""
    if settings.get("rope_type") == "llama3.1":
        model = replace(model, rope_scaling=RopeScaling())
        origins["model.rope_scaling"] = settings.origin("rope_type")
    elif model.rope_scaling is not None and not settings.get("model_name").startswith("llama3.1"):
        why = "its rotary positions are scaled as in Llama 3.3 itself; MaxText does so for llama3.1… only"
        settings.add("model_name", "info", "rope-scaling", why, "give rope_type=llama3.1 for MaxText to do it too")
    if settings.get("attention_type") == "local_sliding":
        model = replace(model, sliding_window=settings.get("sliding_window_size") or None)
        origins["model.sliding_window"] = settings.origin("sliding_window_size")
    return model


def _preset(settings: Settings, name: Any) -> ModelSpec | None:
    """The architecture to start from: the named model's, or any Llama's for `default`."""
    plain = str(name).removesuffix(INSTRUCT)
    if name == DEFAULT or plain in NAMED:
        return MODELS[plain if name != DEFAULT else "llama2-7b"]
    code, fix = "unknown-model", did_you_mean(plain, NAMED)
    if plain.startswith(OTHER_MODELS):
        code = "not-supported"
        why = f"MaxText's model {name} is no Llama, and only Llamas are supported here"
        fix = f"use one of {', '.join(NAMED)}, or model_name=default and base_… dimensions"
    elif plain in MODELS:
        why = f"MaxText has no model {name}, and refuses the name"
        fix = "omit it and give the dimensions as base_emb_dim, base_num_query_heads, …"
    else:
        why = f"MaxText has no model of this name; of Llamas, it has {', '.join(NAMED)}"
    settings.add("model_name", "error", code, why, fix)
    return None


def _stated(settings: Settings, preset: ModelSpec, name: str) -> list[str]:
    """The keys that change a named model. In a file they do not, on the command line MaxText refuses them."""
    free = set(_NOT_IN_FILE.get(preset.name.partition("-")[0], ()))
    if settings.get("override_model_config"):
        free |= {key for key, layer in settings.layers.items() if layer != "file"}
    values = settings.values
    given = [key for key in ARCHITECTURE if key in values and values[key] != getattr(preset, ARCHITECTURE[key])]
    silent: dict[str, str] = {}
    for key in given:
        wanted, shown = getattr(preset, ARCHITECTURE[key]), f"{key} {settings.entries[key].text or 'as given'}"
        if key not in free and settings.layers[key] != "file":
            why = f"{shown} contradicts model_name {name}, which says {wanted}; MaxText refuses it"
            fix = "remove one of the two, or give override_model_config=true"
            settings.add(key, "error", "contradicts-model", why, fix)
        elif key not in free and not _is_of_base(settings, key):
            silent[key] = f"{shown} (not {wanted})"
    if silent:
        why = f"{', '.join(silent.values())}: no effect, MaxText reads {name}'s own file after this one"
        fix = "remove them, or model_name; on the command line, with override_model_config=true, they have an effect"
        settings.add(next(iter(silent)), "warning", "architecture-contradicts-name", why, fix)
    return [key for key in given if key in free]


def _is_of_base(settings: Settings, key: str) -> bool:
    """True if a value is the default, as a copy of MaxText's base.yml gives it for MaxText's own model."""
    mark = settings.entries[key].mark
    is_base = mark is not None and PurePath(mark.file).name == BASE
    return is_base and bool(settings.values[key] == DEFAULTS[key])


def _scales(settings: Settings) -> dict[str, int] | None:
    """Field → factor, of `global_parameter_scale`: MaxText spreads its logarithm over heads, width and depth."""
    name = "global_parameter_scale"
    scale = settings.get(name)
    if scale & (scale - 1):
        settings.add(name, "error", "bad-value", f"{scale} is no power of 2",
                     "use 1, 2, 4, 8, …, or change base_… instead")  # fmt: skip
        return None
    depth, rest = divmod(scale.bit_length() - 1, 3)
    heads, width = 2 ** (depth + (rest > 0)), 2 ** (depth + (rest > 1))
    factors = {"hidden_dim": width, "num_heads": heads, "num_kv_heads": heads, "ffn_dim": heads, "num_layers": 2**depth}
    return {} if scale == 1 else factors
