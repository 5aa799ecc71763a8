"""The model of a MaxText configuration: one of its named ones, whose file decides, or the dimensions that are given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath
from typing import Any

from seatrial.dialects.maxtext.command import BASE
from seatrial.dialects.maxtext.keys import ARCHITECTURE, DEFAULTS
from seatrial.dialects.maxtext.settings import Settings
from seatrial.dialects.maxtext.values import OTHER_MODELS
from seatrial.dialects.table.overrides import did_you_mean
from seatrial.spec import ModelSpec, Origin, RopeScaling
from seatrial.spec.presets import MODELS

DEFAULT = "default"
INSTRUCT = "-Instruct"  # the same architecture

# The Llamas that MaxText has a file for.
NAMED = (
    "llama2-7b", "llama2-13b", "llama2-70b", "llama3-8b", "llama3-70b", "llama3.1-8b", "llama3.1-70b", "llama3.1-405b",
    "llama3.3-70b",
)  # fmt: skip
_NOT_IN_FILE = {"llama2": ("rope_max_timescale",)}  # what those models' files leave open

# Which power of 2 of global_parameter_scale each dimension takes, by the remainder of its logarithm by 3.
_SCALED = ("base_emb_dim", "base_num_query_heads", "base_num_kv_heads", "base_mlp_dim", "base_num_decoder_layers")


def is_free(settings: Settings) -> bool:
    """Whether what stands in the configuration may change the model."""
    return bool(settings.get("model_name") == DEFAULT or settings.get("override_model_config"))


def build(settings: Settings, origins: dict[str, Origin]) -> ModelSpec | None:
    """The model, or None where its name is none or a dimension is wrong."""
    name = settings.get("model_name")
    preset = _preset(settings, name)
    if preset is None or settings.wrong(
        *ARCHITECTURE, "rope_type", "attention_type", "sliding_window_size", "global_parameter_scale"
    ):
        return None
    origins["model"] = settings.origin("model_name")
    changed = _stated(settings, preset, name)
    scale = _scales(settings)
    if scale is None:
        return None
    if name == DEFAULT:
        model = replace(
            preset, name=DEFAULT, rope_scaling=None,
            **{field: settings.get(key) for key, field in ARCHITECTURE.items()},
        )  # fmt: skip
        origins |= {f"model.{field}": settings.origin(key) for key, field in ARCHITECTURE.items()}
    else:
        model = replace(preset, **{ARCHITECTURE[key]: settings.values[key] for key in changed})
        origins |= {f"model.{ARCHITECTURE[key]}": settings.origin(key) for key in changed}
    if settings.get("global_parameter_scale") != 1:
        model = replace(model, **{f: getattr(model, f) * factor for f, factor in scale.items()})
        origins |= {f"model.{f}": settings.origin("global_parameter_scale") for f in scale}
    if settings.get("rope_type") == "llama3.1":
        model = replace(model, rope_scaling=RopeScaling())
        origins["model.rope_scaling"] = settings.origin("rope_type")
    elif model.rope_scaling is not None and not name.startswith("llama3.1"):
        why = "its rotary positions are stretched as Llama 3.3's own are; MaxText does so for llama3.1… only"
        settings.find("model_name", "info", "rope-scaling", why, "give rope_type=llama3.1 for MaxText to do it too")
    if settings.get("attention_type") == "local_sliding":
        model = replace(model, sliding_window=settings.get("sliding_window_size") or None)
        origins["model.sliding_window"] = settings.origin("sliding_window_size")
    is_same = replace(model, name="") == replace(preset, name="")
    return model if name == DEFAULT or is_same else replace(model, name=f"{preset.name}-changed")


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
        fix = "leave it out and give the dimensions as base_emb_dim, base_num_query_heads, …"
    else:
        why = f"MaxText has no model of this name; of Llamas, it has {', '.join(NAMED)}"
    settings.find("model_name", "error", code, why, fix)
    return None


def _stated(settings: Settings, preset: ModelSpec, name: str) -> list[str]:
    """The keys that change a named model. In a file they do not, on the command line MaxText refuses them."""
    if name == DEFAULT:
        return []
    open_ = _NOT_IN_FILE.get(preset.name.partition("-")[0], ())
    changed = []
    silent: list[tuple[str, str]] = []
    for key, field in ARCHITECTURE.items():
        if key not in settings.values or settings.values[key] == getattr(preset, field):
            continue
        layer, shown = settings.layers[key], f"{key} {settings.entries[key].text or 'as given'}"
        if key in open_ or (settings.get("override_model_config") and layer != "file"):
            changed.append(key)
        elif layer == "file" and _is_of_base(settings, key):
            continue  # said there of MaxText's own model
        elif layer == "file":
            silent.append((key, f"{shown} (not {getattr(preset, field)})"))
        else:
            why = f"{shown} contradicts model_name {name}, which says {getattr(preset, field)}; MaxText refuses it"
            fix = "remove one of the two, or give override_model_config=true"
            settings.find(key, "error", "contradicts-model", why, fix)
    if silent:
        why = f"{', '.join(text for _, text in silent)}: no effect, MaxText reads {name}'s own file after this one"
        fix = "remove them, or model_name; on the command line, with override_model_config=true, they are obeyed"
        settings.find(silent[0][0], "warning", "architecture-contradicts-name", why, fix)
    return changed


def _is_of_base(settings: Settings, key: str) -> bool:
    """Whether a value is the default, as a copy of MaxText's base.yml says it."""
    mark = settings.entries[key].mark
    is_base = mark is not None and PurePath(mark.file).name == BASE
    return is_base and bool(settings.values[key] == DEFAULTS[key])


def _scales(settings: Settings) -> dict[str, int] | None:
    """Field → factor, of `global_parameter_scale`: MaxText spreads its logarithm over heads, width and depth."""
    scale = settings.get("global_parameter_scale")
    if scale & (scale - 1):
        why = f"{scale} is no power of 2"
        settings.find(
            "global_parameter_scale", "error", "bad-value", why, "use 1, 2, 4, 8, …, or change base_… instead"
        )
        return None
    depth, rest = divmod(scale.bit_length() - 1, 3)
    heads, width = depth + (rest > 0), depth + (rest > 1)
    exponents = (width, heads, heads, heads, depth)
    return {ARCHITECTURE[key]: 2**exponent for key, exponent in zip(_SCALED, exponents, strict=True)}
