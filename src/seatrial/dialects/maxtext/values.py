"""What the values of MaxText's keys are: its closed lists, each with what an entry means here, and its readers."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from seatrial.dialects.table import coerce
from seatrial.dialects.table.coerce import Reader
from seatrial.estimate import hardware

# MaxText's list → the trainer's row. What those of quantization keep beside it is too little to matter.
REMAT = {
    "none": "none",
    "full": "full",
    "minimal": "minimal",
    "minimal_with_context": "minimal_with_context",
    "minimal_flash": "minimal_flash",
    "save_dot_except_mlp": "save_dot_except_mlp",
    "save_dot_with_context_except_mlp": "save_dot_with_context_except_mlp",
    "save_dot_except_mlpwi": "save_dot_except_mlpwi",
    "save_qkv_proj": "save_qkv_proj",
    "save_out_proj": "save_out_proj",
    "minimal_with_quantization": "minimal",
    "minimal_with_context_and_quantization": "minimal_with_context",
    "qkv_proj_offloaded": "qkv_proj_offloaded",
    "minimal_offloaded": "minimal_offloaded",
    "custom": "full",
}

ATTENTION = {
    "autoselected": "auto", "dot_product": "dot_product", "flash": "flash", "cudnn_flash_te": "cudnn_flash_te",
    "cudnn_flash_jax": "cudnn_flash_jax",
}  # fmt: skip
SERVING_ATTENTION = ("paged", "vllm_rpa", "vllm_batched_rpa")

QUANTIZATION = (
    "fp8", "nanoo_fp8", "fp8_full", "fp8_gpu", "fp8_nanoo", "fp8_e4m3", "fp8_e5m2", "fp4", "int8", "int4", "intmp",
    "te_fp8_delayedscaling", "te_fp8_currentscaling", "te_mxfp8", "te_nvfp4", "te_nvfp4_no_rht",
)  # fmt: skip
NO_QUANTIZATION = ("", "te_no_quant")
NO_ACCUMULATION = ("fp8", "nanoo_fp8", "fp8_gpu", "te_fp8_delayedscaling")  # refused with several micro-batches

DATASETS = {
    "synthetic": "synthetic", "hf": "huggingface", "grain": "grain", "tfds": "tfds", "c4_mlperf": "c4_mlperf",
}  # fmt: skip

# How a sequence is split over devices → the strategy here; the result is the same by any.
CONTEXT = {"all_gather": "all_gather", "ring": "ring", "ulysses": "all_gather", "usp": "ring"}

ALGORITHMS = {"adamw": "adamw", "adam_pax": "adamw", "sgd": "sgd"}

LLAMA = ("default", "llama2", "mistral")
OTHER_DECODERS = (
    "mixtral", "deepseek", "deepseek4", "gemma", "gemma2", "gemma3", "gemma4", "gemma4_small", "qwen2", "qwen3",
    "qwen3_moe", "qwen3_custom_moe", "qwen3_next", "qwen3_5", "gpt3", "gpt_oss", "simple", "simple_mlp", "llama4",
    "olmo3", "envy",
)  # fmt: skip
OTHER_ATTENTION_TYPES = ("chunk", "mla", "full", "compressed", "block_diffusion")

ACTIVATIONS = {("silu", "linear"): "swiglu", ("gelu",): "gelu"}

# Models that MaxText knows, and that are no Llamas; their names begin like this.
OTHER_MODELS = (
    "mistral", "mixtral", "deepseek", "kimi", "gemma", "qwen", "gpt3", "gpt-oss", "llama4", "olmo", "envy", "weaver",
    "maxtext-omni",
)  # fmt: skip


def nothing(value: Any) -> bool:
    """Whether MaxText takes a value for None: it says so of null, and of the word in any case."""
    return value is None or (isinstance(value, str) and value.strip().lower() in ("none", "null"))


def or_none(read: Reader) -> Reader:
    """A reader that takes nothing, and an empty text, for None."""

    def reader(value: Any) -> Any:
        return None if nothing(value) or value == "" else read(value)

    return reader


def or_minus_one(read: Reader) -> Reader:
    """A reader that takes -1 for None."""

    def reader(value: Any) -> Any:
        return None if nothing(value) or value in (-1, "-1", -1.0) else read(value)

    return reader


def or_zero(read: Reader) -> Reader:
    """A reader that takes 0 for None."""

    def reader(value: Any) -> Any:
        return read(value) or None

    return reader


def switch(value: Any) -> bool:
    """True or false, as pydantic and YAML 1.1 read them."""
    word = str(value).strip().lower()
    if word in ("yes", "on", "1", "no", "off", "0"):
        return word in ("yes", "on", "1")
    return coerce.boolean(value)


class Unlisted(ValueError):
    """A word that a closed list has not, or that cannot be done; `fix` says what to give instead."""

    def __init__(self, why: str, fix: str) -> None:
        super().__init__(why)
        self.fix = fix


# What people write, and what MaxText calls it.
_MEANT = {"bf16": "bfloat16", "fp32": "float32", "f32": "float32", "cuda": "gpu", "rocm": "gpu", "adam": "adamw"}


def _near(word: str, *lists: Iterable[str]) -> str:
    """What MaxText calls it, or the word of the first list that has one like it."""
    known = [list(words) for words in lists]
    word = word.lower()
    meant = _MEANT.get(word, "")
    if meant and any(meant in words for words in known):
        return meant
    found = (difflib.get_close_matches(word, words, n=1, cutoff=0.6) for words in known)
    return next((near[0] for near in found if near), "")


def choice(
    options: Mapping[str, Any], *, refused: Iterable[str] = (), because: str = "", empty: str | None = None
) -> Reader:
    """A reader for a closed list; `refused` are words of it that mean what cannot be done, `because` says why."""
    refused = tuple(refused)

    def read(value: Any) -> Any:
        word = empty if empty is not None and (nothing(value) or value == "") else coerce.text(value)
        assert word is not None
        if word in options:
            return options[word]
        named = ", ".join(option or "(empty)" for option in options)
        if word in refused:
            raise Unlisted(f"MaxText has {coerce.shown(word)}, but {because}", f"use one of {named}")
        near = _near(word, options, refused)
        fix = f"did you mean {near}?" if near else "give one of the values named here"
        raise Unlisted(f"{coerce.shown(word)} is not one of {named}", fix)

    return read


def same(words: Iterable[str]) -> dict[str, str]:
    """Words that mean themselves."""
    return {word: word for word in words}


def no_less_than(least: float, read: Reader = coerce.decimal) -> Reader:
    """A reader for numbers from `least` on."""

    def reader(value: Any) -> Any:
        number = read(value)
        if number < least:
            raise ValueError(f"{number:g} is less than {least:g}")
        return number

    return reader


def fraction(value: Any) -> float:
    """A number from 0 to 1."""
    number = coerce.decimal(value)
    if not 0 <= number <= 1:
        raise ValueError(f"{number:g} is not between 0 and 1")
    return number


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


def device(value: Any) -> str:
    """The name of a device that is known here."""
    found = hardware.find(coerce.text(value))
    if found is None:
        raise ValueError(f"{coerce.shown(value)} is no known device; known are {', '.join(hardware.DEVICES)}")
    return found.name


def anything(value: Any) -> Any:
    return value
