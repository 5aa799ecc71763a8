"""The model behind an NxDT file: Hugging Face's config.json, a preset that its sizes identify, or its tokenizer's size.

Files that a configuration names are read where they exist on this machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seatrial import source
from seatrial.dialects.data_files import tokenizer_file
from seatrial.dialects.nxdt.settings import Settings
from seatrial.dialects.table import coerce
from seatrial.dialects.table.suggestions import did_you_mean
from seatrial.errors import InputError
from seatrial.spec import Dropout, Initialization, ModelSpec, RopeScaling
from seatrial.spec.presets import MODELS, known_vocabulary
from seatrial.spec.presets import architecture as shape_of

MAX_TOKENIZER_BYTES = 20_000_000  # Llama 3's has 17 MB at most
# What tells models of one size apart. Left out: what people change in a model that stays the same.
_SIZES = ("hidden_dim", "num_layers", "num_heads", "num_kv_heads", "ffn_dim")
_TELLING = (
    "head_dim", "rope_theta", "sliding_window", "tied_embeddings", "norm", "activation", "positions",
    "rotary_fraction", "biases",
)  # fmt: skip
# Families of models that are none of the presets, as people write them in names and paths.
_OTHERS = re.compile(r"mistral|mixtral|qwen|gemma|deepseek|falcon|baichuan|phi-?\d|olmo|bloom|yi-\d", re.IGNORECASE)
# Keys whose text tells of which family a model is.
_HINTS = ("name", "model.model_config", "data.tokenizer.type", "data.tokenizer.model", "data.train_dir")
# The longest sequence that each family was released for: Meta's config.json, max_position_embeddings.
_PUBLISHED_POSITIONS = {"llama2": 4096, "llama3": 8192, "llama3.1": 131_072, "llama3.2": 131_072, "llama3.3": 131_072}


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A model, and what it begins and is regularised with."""

    model: ModelSpec
    initialization: Initialization
    dropout: Dropout


def published(model: ModelSpec) -> ModelSpec:
    """The same model under its published name, if it is one of those."""
    same = (name for name, preset in MODELS.items() if shape_of(preset) == shape_of(model))
    return model if model.name in MODELS else replace(model, name=next(same, model.name))


# --- model_source hf --------------------------------------------------------------------------------------------------

# Keys that a file may give beside model_config, and the fields that they change.
_SIZE_KEYS = {"num_layers": "num_layers", "hidden_size": "hidden_dim", "rope_theta": "rope_theta"}


def found_architecture(settings: Settings) -> Architecture | None:
    """The model that model_config names, but with what the file says of its sizes."""
    wanted = settings.get("model.model_config")
    if wanted in MODELS:
        found: Architecture | None = _published(wanted)
    else:
        path = _config_file(settings, wanted) if wanted else None
        found = _of_config(settings, path) if path else _identified(settings, wanted)
    if found is None:
        return None
    model = found.model
    given = {field: settings.get(f"model.{name}") for name, field in _SIZE_KEYS.items()}
    changes = {name: value for name, value in given.items() if value not in (None, getattr(model, name))}
    hidden = changes.get("hidden_dim")
    if hidden:
        changes["head_dim"] = max(1, hidden // model.num_heads)
        if hidden % model.num_heads:
            why = f"hidden_size {hidden} does not divide into the {model.num_heads} heads of {wanted or model.name}"
            settings.add("model.hidden_size", "error", "not-divisible", why, f"use a multiple of {model.num_heads}")
    if changes:
        model = replace(model, **changes, name=f"{model.name}-changed" if model.name in MODELS else model.name)
    return replace(found, model=model)


def _published(name: str) -> Architecture:
    """A preset, initialized as Hugging Face's Llama is: no projection is scaled."""
    initialization = Initialization(std=0.02, scaled=False)
    return Architecture(model=MODELS[name], initialization=initialization, dropout=Dropout())


def _config_file(settings: Settings, wanted: str) -> Path | None:
    """The config.json itself, if it is here: from this folder, or beside the configuration."""
    for folder in (Path(), Path(settings.file).parent):
        with suppress(OSError, ValueError, RuntimeError):  # a name that is too long; a home that there is none
            path = folder / Path(wanted).expanduser()
            path = path / "config.json" if path.is_dir() else path
            if path.is_file():
                return path
    return None


def _of_config(settings: Settings, path: Path) -> Architecture | None:
    """A Hugging Face LlamaConfig; everything wrong with it is an error about model_config."""

    def wrong(why: str, fix: str) -> None:
        settings.add("model.model_config", "error", "bad-model-config", f"{path.name}: {why}", fix)

    fix = "name the config.json of a Llama model"
    try:
        config = source.read(path).root.plain()
        if not isinstance(config, dict):
            wrong("it is no mapping", fix)
        elif config.get("model_type", "llama") != "llama":
            wrong(f"it is a {coerce.shown(config['model_type'])} model, and only Llama is supported", fix)
        else:
            return _llama(config)
    except InputError as error:
        first = error.problems[0]
        wrong(f"{first.why}{f' ({first.mark.line}:{first.mark.column})' if first.mark else ''}", first.fix)
    except ValueError as error:
        wrong(str(error), "correct it, or name another config.json")
    return None


# Keys of a LlamaConfig → field, reader, default of transformers.
_CONFIG: dict[str, tuple[str, coerce.Reader, Any]] = {
    "vocab_size": ("vocab_size", coerce.count, 32_000), "num_hidden_layers": ("num_layers", coerce.count, 32),
    "intermediate_size": ("ffn_dim", coerce.count, 11_008), "rope_theta": ("rope_theta", coerce.positive, 10_000.0),
    "rope_scaling": ("rope_scaling", lambda value: _rope_scaling(value), None),
    "rms_norm_eps": ("norm_epsilon", coerce.positive, 1e-6),
    "tie_word_embeddings": ("tied_embeddings", coerce.boolean, False), "mlp_bias": ("biases", coerce.boolean, False),
    "sliding_window": ("sliding_window", coerce.count, None),
}  # fmt: skip
_SCALING: dict[str, tuple[str, coerce.Reader]] = {  # of rope_scaling
    "factor": ("factor", coerce.positive), "low_freq_factor": ("low_freq_factor", coerce.positive),
    "high_freq_factor": ("high_freq_factor", coerce.positive),
    "original_max_position_embeddings": ("original_max_positions", coerce.count),
}  # fmt: skip


def _llama(config: Mapping[str, Any]) -> Architecture:
    """A LlamaConfig; what it leaves out has the defaults of transformers. Raises ValueError."""
    rope = config.get("rope_parameters")  # where transformers 5 writes what 4 has in two keys
    if isinstance(rope, Mapping):
        config = {**config, "rope_theta": rope.get("rope_theta", config.get("rope_theta")), "rope_scaling": rope}

    def get(name: str, read: coerce.Reader, default: Any) -> Any:
        try:
            return default if config.get(name) is None else read(config[name])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    heads, hidden = get("num_attention_heads", coerce.count, 32), get("hidden_size", coerce.count, 4096)
    if get("hidden_act", coerce.text, "silu") != "silu":
        raise ValueError(f"hidden_act is {coerce.shown(config['hidden_act'])}, and Llama's is silu")
    if get("attention_bias", coerce.boolean, False) != get("mlp_bias", coerce.boolean, False):
        raise ValueError("attention_bias and mlp_bias differ, and a model has all biases or none here")
    if hidden % heads and config.get("head_dim") is None:
        raise ValueError(f"hidden_size {hidden} cannot be split evenly over {heads} heads")
    model = ModelSpec(
        name="custom",
        hidden_dim=hidden,
        num_heads=heads,
        num_kv_heads=get("num_key_value_heads", coerce.count, heads),
        head_dim=get("head_dim", coerce.count, max(1, hidden // heads)),
        **{field: get(name, read, default) for name, (field, read, default) in _CONFIG.items()},
    )
    return Architecture(
        model=published(model),
        initialization=Initialization(std=get("initializer_range", coerce.positive, 0.02), scaled=False),
        dropout=Dropout(attention=get("attention_dropout", coerce.decimal, 0.0)),
    )


def _rope_scaling(value: Any) -> RopeScaling | None:
    if not isinstance(value, dict):
        raise ValueError(f"{coerce.shown(value)} is not a mapping")
    kind = value.get("rope_type", value.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ValueError(f"{coerce.shown(kind)} is unknown here; llama3 is known")
    return RopeScaling(**{field: read(value[name]) for name, (field, read) in _SCALING.items() if name in value})


def _identified(settings: Settings, wanted: str | None) -> Architecture | None:
    """The preset that the sizes in the file are those of, where its config.json is not here."""
    candidates = _candidates(settings)
    missing = f"there is no config.json at {coerce.shown(wanted)}" if wanted else "no model is named"
    if _is_another(settings):
        why = f"{missing}, and the file calls the model by another family's name: only Llama models are supported"
        settings.add("model.model_config", "error", "no-model-config", why, "name a Llama's config.json, or a preset")
        return None
    given = {name: settings.get(f"model.{name}") for name in _SIZE_KEYS}
    sizes = ", ".join(f"{name} {value}" for name, value in given.items() if value is not None)
    if len(candidates) == 1:
        why = f"{missing}; by {sizes} the model is {candidates[0]}"
        fix = f"copy it here, or say so: model.model_config={candidates[0]}"
        settings.add("model.model_config", "warning", "no-model-config", why, fix)
        return _published(candidates[0])
    which = f"could be {', '.join(candidates)}" if candidates else "match no known model"
    which = "do not tell which" if given["hidden_size"] is None else which
    named = f"name a preset, for example model.model_config={(candidates or list(MODELS))[0]}"
    fix = did_you_mean(wanted, MODELS, otherwise=f"copy it here, or {named}") if wanted else named
    why = missing + (f", and {sizes} {which}" if sizes else "")
    settings.add("model.model_config", "error", "no-model-config", why, fix)
    return None


def _is_another(settings: Settings) -> bool:
    """True if a name or path in the file says that the model is of another family than the presets."""
    return any(_OTHERS.search(str(settings.get(name) or "")) for name in _HINTS if name != "data.train_dir")


def _candidates(settings: Settings) -> list[str]:
    """The presets that nothing in the file speaks against; of several, those of the released sequence length.

    The length is only the training's, so it does not choose between models that differ in more than positions.
    """
    layers, hidden, theta = (settings.get(f"model.{name}") for name in ("num_layers", "hidden_size", "rope_theta"))
    tensor = settings.get("distributed_strategy.tensor_model_parallel_size", 1)
    copies = settings.get("distributed_strategy.kv_replicator", 1)
    hints = [str(settings.get(name) or "") for name in _HINTS]
    if hidden is None:
        return []
    named = [model for model in MODELS.values() if model.hidden_dim == hidden]
    whole = [model for model in named if layers in (None, model.num_layers)]
    found = [model for model in whole or named if theta in (None, model.rope_theta)]
    found = [model for model in found if not model.num_kv_heads * copies % tensor] or found
    sizes = {known_vocabulary(None, hint) for hint in hints} | {settings.get("model.vocab_size")}
    found = [model for model in found if model.vocab_size in sizes] or found
    positions = settings.get("model.max_position_embeddings", settings.get("model.encoder_seq_length"))
    fitting = [model for model in found if _PUBLISHED_POSITIONS[model.name.rpartition("-")[0]] == positions]
    is_sure = len({model.vocab_size for model in found}) == 1
    chosen = (is_sure and fitting) or found
    distinct = {json.dumps(shape_of(model), default=str): model.name for model in reversed(chosen)}
    return list(reversed(distinct.values()))


# --- model_source megatron: the vocabulary ----------------------------------------------------------------------------


def vocabulary_of(settings: Settings, model: ModelSpec) -> int | None:
    """The size of the vocabulary: of the tokenizer, where it is known, or of the preset of just this architecture.

    Else None, and an error that asks for it: NxDT takes it from the tokenizer, and another size is another model.
    """
    tokenizer = settings.get("data.tokenizer.type") or settings.get("data.tokenizer.model")
    known = (tokenizer and _counted(tokenizer)) or known_vocabulary(None, tokenizer)
    if known:
        return known
    what = f"the tokenizer {coerce.shown(tokenizer)} is not here" if tokenizer else "no tokenizer is named"
    preset, why_not = _preset_of(model)
    if preset is not None and not _is_another(settings):
        settings.add(
            "data.tokenizer.type", "warning", "vocabulary-assumed",
            f"{what}, and NxDT takes the size of the vocabulary from it; assumed are {preset.vocab_size} tokens, that "
            f"of {preset.name}", f"give the size: model.vocab_size={preset.vocab_size}",
        )  # fmt: skip
        return preset.vocab_size
    settings.add(
        "model.vocab_size", "error", "vocabulary-unknown",
        f"the size of the vocabulary is not stated: {what}, and {why_not}",
        "give model.vocab_size=… on the command line, or name a tokenizer.json that is here in data.tokenizer.type",
    )  # fmt: skip
    return None


def _preset_of(model: ModelSpec) -> tuple[ModelSpec | None, str]:
    """The preset of these sizes, unless anything else of the model speaks against it; and why there is none."""
    alike = {
        preset.name: [name for name in _TELLING if getattr(preset, name) != getattr(model, name)]
        for preset in MODELS.values()
        if all(getattr(preset, name) == getattr(model, name) for name in _SIZES)
    }
    exact = next((MODELS[name] for name, differing in alike.items() if not differing), None)
    if exact or not alike:
        return exact, "the file's name for the model is another's" if exact else "no known model has these sizes"
    nearest = min(alike, key=lambda name: len(alike[name]))
    return None, f"the sizes are those of {nearest}, but not its {', '.join(alike[nearest])}"


def _counted(tokenizer: str) -> int | None:
    """The number of a Hugging Face tokenizer's tokens; None if its tokenizer.json is not here or cannot be used."""
    path = tokenizer_file(tokenizer)
    try:
        if path is None or path.stat().st_size > MAX_TOKENIZER_BYTES:
            return None
        content = json.loads(path.read_bytes())
        vocabulary = content["model"]["vocab"]
        added = [token["id"] for token in content.get("added_tokens", ())]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if isinstance(vocabulary, dict):
        added += vocabulary.values()
        return max((number for number in added if isinstance(number, int)), default=-1) + 1 or None
    size = len(vocabulary) if isinstance(vocabulary, list) else None
    return None if size is None else size + sum(number >= size for number in added)
