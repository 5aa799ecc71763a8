"""The values of MaxText's keys: its closed lists, each with what an entry means here, and readers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from seatrial.dialects.table import coerce
from seatrial.dialects.table.coerce import Reader
from seatrial.dialects.table.suggestions import suggestions
from seatrial.spec import ScheduleKind


def same(words: Iterable[str]) -> dict[str, str]:
    """Words that mean themselves."""
    return {word: word for word in words}


# MaxText's list → the trainer's row. What those of quantization keep beside it is too little to matter.
NEAREST_REMAT = {
    "minimal_with_quantization": "minimal", "minimal_with_context_and_quantization": "minimal_with_context",
}  # fmt: skip
REMAT = {
    **same((
        "none", "full", "minimal", "minimal_with_context", "minimal_flash", "save_dot_except_mlp",
        "save_dot_with_context_except_mlp", "save_dot_except_mlpwi", "save_qkv_proj", "save_out_proj",
        "qkv_proj_offloaded", "minimal_offloaded",
    )),
    **NEAREST_REMAT, "custom": "custom",
}  # fmt: skip

# The keys that remat_policy=custom reads → the tensors of a layer here. The first three are there instead of
# others: of products computed as one, of an MLP without a gate, and where attention's result gets a second name.
PLACES = ("remat", "device", "offload")
OTHER_TENSORS = {"qkv_proj": ("query", "key", "value"), "mlpwi": ("gate", "up"), "attention_out": ("context",)}
TENSORS: dict[str, tuple[str, ...]] = {
    "decoder_layer_input": ("input",), "context": ("context",), "query_proj": ("query",), "key_proj": ("key",),
    "value_proj": ("value",), "out_proj": ("out",), "mlpwi_0": ("gate",), "mlpwi_1": ("up",), "mlpwo": ("down",),
}  # fmt: skip
ALL_TENSORS = {**TENSORS, **OTHER_TENSORS}

ATTENTION = {"autoselected": "auto", **same(("dot_product", "flash", "cudnn_flash_te", "cudnn_flash_jax"))}
SEGMENTS = 32  # of a packed sequence, as MaxText recommends
SERVING_ATTENTION = ("paged", "vllm_rpa", "vllm_batched_rpa")

QUANTIZATION = (
    "fp8", "nanoo_fp8", "fp8_full", "fp8_gpu", "fp8_nanoo", "fp8_e4m3", "fp8_e5m2", "fp4", "int8", "int4", "intmp",
    "te_fp8_delayedscaling", "te_fp8_currentscaling", "te_mxfp8", "te_nvfp4", "te_nvfp4_no_rht",
)  # fmt: skip
NO_ACCUMULATION = ("fp8", "nanoo_fp8", "fp8_gpu", "te_fp8_delayedscaling")  # refused with several micro-batches

DATASETS = {"hf": "huggingface", **same(("synthetic", "grain", "tfds", "c4_mlperf"))}

# How a sequence is split over devices → the strategy here; the result is the same by any.
CONTEXT = {"all_gather": "all_gather", "ring": "ring", "ulysses": "all_gather", "usp": "ring"}

ALGORITHMS = {"adamw": "adamw", "adam_pax": "adamw", "sgd": "sgd"}
DECAYS: Mapping[str, ScheduleKind] = {"cosine": "maxtext_cosine", "linear": "maxtext_linear"}

OTHER_DECODERS = (
    "mixtral", "deepseek", "deepseek4", "gemma", "gemma2", "gemma3", "gemma4", "gemma4_small", "qwen2", "qwen3",
    "qwen3_moe", "qwen3_custom_moe", "qwen3_next", "qwen3_5", "gpt3", "gpt_oss", "simple", "simple_mlp", "llama4",
    "olmo3", "envy",
)  # fmt: skip

ACTIVATIONS = {("silu", "linear"): "swiglu", ("gelu",): "gelu"}

# The Llamas that MaxText has a file for, and the beginnings of the names of its other models.
NAMED = (
    "llama2-7b", "llama2-13b", "llama2-70b", "llama3-8b", "llama3-70b", "llama3.1-8b", "llama3.1-70b", "llama3.1-405b",
    "llama3.3-70b",
)  # fmt: skip
OTHER_MODELS = (
    "mistral", "mixtral", "deepseek", "kimi", "gemma", "qwen", "gpt3", "gpt-oss", "llama4", "olmo", "envy", "weaver",
    "maxtext-omni",
)  # fmt: skip


def nothing(value: Any) -> bool:
    """True if MaxText reads a value as None: null, and the word in any case."""
    return value is None or (isinstance(value, str) and value.strip().lower() in ("none", "null"))


def or_none(read: Reader, *also: Any) -> Reader:
    """A reader that reads nothing as None, and what else stands for it: an empty text, unless it is given."""
    return coerce.optional(read, lambda value: nothing(value) or value in (also or ("",)))


def or_minus_one(read: Reader) -> Reader:
    """A reader that reads -1 as None."""
    return or_none(read, -1, "-1")


def or_zero(read: Reader) -> Reader:
    """A reader that reads 0 as None."""
    return lambda value: read(value) or None


def switch(value: Any) -> bool:
    """True or false, as pydantic and YAML 1.1 read them."""
    word = str(value).strip().lower()
    if word in ("yes", "on", "1", "no", "off", "0"):
        return word in ("yes", "on", "1")
    return coerce.boolean(value)


class Unlisted(ValueError):
    """A word that a closed list has not, or that is not supported; `fix` says what to give instead."""

    def __init__(self, why: str, fix: str) -> None:
        super().__init__(why)
        self.fix = fix


# What people write, and what MaxText calls it.
_MEANT = {"bf16": "bfloat16", "fp32": "float32", "f32": "float32", "cuda": "gpu", "rocm": "gpu", "adam": "adamw"}


def choice(
    options: Mapping[str, Any], *, refused: Iterable[str] = (), because: str = "", empty: str | None = None
) -> Reader:
    """A reader for a closed list; `refused` are words of it that are not supported, `because` says why."""
    refused = tuple(refused)

    def read(value: Any) -> Any:
        is_empty = nothing(value) or value == ""
        word = empty if empty is not None and is_empty else coerce.text(value)
        if word in options:
            return options[word]
        named = ", ".join(option or "(empty)" for option in options)
        if word in refused:
            raise Unlisted(f"MaxText has {coerce.shown(word)}, but {because}", f"use one of {named}")
        meant = [_MEANT.get(word.lower(), word)]
        near = [*(each for each in meant if each in options), *suggestions(word, options), *suggestions(word, refused)]
        fix = f"did you mean {near[0]}?" if near else "give one of the values named here"
        raise Unlisted(f"{coerce.shown(word)} is not one of {named}", fix)

    return read


def activations(value: Any) -> str:
    """The activations of an MLP's branches, as the name of the whole."""
    words = coerce.texts([value] if isinstance(value, str) else value)
    if words not in ACTIVATIONS:
        raise ValueError(f'{list(words)} is neither ["silu","linear"] (SwiGLU) nor ["gelu"]')
    return ACTIVATIONS[words]


def texts(value: Any) -> tuple[str, ...]:
    """A list of texts, or one."""
    if nothing(value) or value == "":
        return ()
    return coerce.texts(value if isinstance(value, (list, tuple)) else [value])


def can_be_said(value: Any) -> bool:
    """True if MaxText reads a value as itself: not a text that means None to it, nor an interpolation."""
    if value == "":
        return True  # how MaxText writes that there is none
    items = value if isinstance(value, (list, tuple)) else [value]
    return value is not None and not any(
        isinstance(item, str) and ("${" in item or nothing(item) or item == "") for item in items
    )
