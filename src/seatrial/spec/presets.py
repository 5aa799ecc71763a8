"""Published model architectures and tokenizers by name. Source: each model's own `config.json`, as released."""

from __future__ import annotations

import re
from dataclasses import replace
from operator import attrgetter

from seatrial.spec import ModelSpec, RopeScaling

_LLAMA2_7B = ModelSpec(
    name="llama2-7b", vocab_size=32_000, hidden_dim=4096, num_layers=32, num_heads=32, num_kv_heads=32, head_dim=128,
    ffn_dim=11_008,
)  # fmt: skip
_LLAMA3_8B = ModelSpec(
    name="llama3-8b", vocab_size=128_256, hidden_dim=4096, num_layers=32, num_heads=32, num_kv_heads=8, head_dim=128,
    ffn_dim=14_336, rope_theta=500_000.0,
)  # fmt: skip
_LLAMA31_8B = replace(_LLAMA3_8B, name="llama3.1-8b", rope_scaling=RopeScaling())
_LLAMA31_70B = replace(
    _LLAMA31_8B, name="llama3.1-70b", hidden_dim=8192, num_layers=80, num_heads=64, ffn_dim=28_672
)  # fmt: skip
_LLAMA32_1B = replace(
    _LLAMA31_8B, name="llama3.2-1b", hidden_dim=2048, num_layers=16, head_dim=64, ffn_dim=8192, tied_embeddings=True,
    rope_scaling=RopeScaling(factor=32.0),
)  # fmt: skip

MODELS: dict[str, ModelSpec] = {
    model.name: model
    for model in (
        _LLAMA2_7B,
        replace(
            _LLAMA2_7B, name="llama2-13b", hidden_dim=5120, num_layers=40, num_heads=40, num_kv_heads=40, ffn_dim=13_824
        ),
        replace(
            _LLAMA2_7B, name="llama2-70b", hidden_dim=8192, num_layers=80, num_heads=64, num_kv_heads=8, ffn_dim=28_672
        ),
        _LLAMA3_8B,
        replace(_LLAMA31_70B, name="llama3-70b", rope_scaling=None),
        _LLAMA31_8B,
        _LLAMA31_70B,
        replace(
            _LLAMA31_70B, name="llama3.1-405b", hidden_dim=16_384, num_layers=126, num_heads=128, ffn_dim=53_248
        ),
        _LLAMA32_1B,
        replace(_LLAMA32_1B, name="llama3.2-3b", hidden_dim=3072, num_layers=28, num_heads=24, head_dim=128),
        replace(_LLAMA31_70B, name="llama3.3-70b"),
    )
}  # fmt: skip


def architecture(model: ModelSpec) -> dict[str, int | float | bool | RopeScaling | None]:
    """The fields that make up a model's shape, without its name."""
    return {key: value for key, value in vars(model).items() if key != "name"}


def of_dimensions(model: ModelSpec) -> list[str]:
    """The presets that have a model's dimensions, whatever it is called."""
    dimensions = attrgetter("hidden_dim", "num_layers", "num_heads", "num_kv_heads", "head_dim", "ffn_dim")
    return [name for name, preset in MODELS.items() if dimensions(preset) == dimensions(model)]


def same_architecture(model: ModelSpec) -> str | None:
    """The first preset that has a model's dimensions; None where they are nobody's."""
    return next(iter(of_dimensions(model)), None)


# Vocabularies of tokenizers that are known by name, with their special tokens. A number behind `llama` is no version
# where it is one of parameters (open_llama_3b, llama-30b) or a year.
_VERSION_ENDS = r"(?![0-9]|b(?![a-z]))"
_VOCABULARIES = tuple(
    (re.compile(pattern, re.IGNORECASE), size)
    for pattern, size in (
        (rf"llama[-_]?v?2{_VERSION_ENDS}|code-?llama", 32_000),
        (rf"llama[-_]?v?3[1-3]?{_VERSION_ENDS}", 128_256),
        (r"(^|/)gpt-?2(-(medium|large|xl))?$|gpt2bpe", 50_257),
        (r"mistral-7b-(instruct-)?v0\.[12]$|mixtral-8x7b", 32_000),
    )
)
_OF_TYPES = {"Llama2Tokenizer": 32_000, "GPT2BPETokenizer": 50_257}


def known_vocabulary(kind: str | None, tokenizer: str | None) -> int | None:
    """The number of tokens of a tokenizer that is known by its name or path, or by its type; else None.

    Of several names in a path, the last one is the tokenizer's.
    """
    named = ((match.end(), size) for pattern, size in _VOCABULARIES for match in pattern.finditer(tokenizer or ""))
    return max(named, default=(0, _OF_TYPES.get(kind or "")))[1]
