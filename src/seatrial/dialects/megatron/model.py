"""The model that Megatron's arguments describe, and the vocabulary of its tokenizer."""

from __future__ import annotations

from dataclasses import replace

from seatrial.dialects.megatron.settings import Settings
from seatrial.dialects.table.suggestions import did_you_mean
from seatrial.spec import ModelSpec, RopeScaling, gather_part
from seatrial.spec.presets import MODELS, architecture, known_vocabulary, of_dimensions

_ASSUMED_VOCABULARY = 128_256  # Llama 3's, where only Megatron can tell


def model_of(s: Settings, length: int) -> ModelSpec | None:
    preset = MODELS.get(str(s["model"])) if s.given("model") else None
    if s.given("model"):
        if preset is None:
            why = f"there is no preset of this name; there are {', '.join(MODELS)}"
            s.add("model", "error", "unknown-model", why, did_you_mean(str(s["model"]), MODELS))
        return preset
    hidden, heads = s["hidden-size"], s["num-attention-heads"]
    if not s.given("kv-channels") and hidden % heads:
        why = f"a hidden size of {hidden} is not divisible by {heads} heads"
        s.add("num-attention-heads", "error", "refused-by-megatron", why, "give another number, or --kv-channels")
    vocab_size = _vocab_size(s)
    if vocab_size is None or s.has_errors:
        return None
    is_gated = s.given("swiglu")
    rows = s["max-position-embeddings"]
    is_learned = s["position-embedding-type"] == "learned_absolute" and not s.given("use-rotary-position-embeddings")
    model = gather_part(
        ModelSpec, "model", s.placed(), name="gpt",
        vocab_size=vocab_size,
        num_layers=s["num-layers"],
        num_kv_heads=s["num-query-groups"] if s.given("group-query-attention") else heads,
        head_dim=hidden // heads,
        ffn_dim=int(hidden * 8 / 3 / 64) * 64 if is_gated else 4 * hidden,
        rope_theta=float(s["rotary-base"]),
        rope_scaling=RopeScaling(factor=s["rope-scaling-factor"]) if s.given("use-rope-scaling") else None,
        tied_embeddings=not s.given("untie-embeddings-and-output-weights"),
        norm=s["normalization"].lower(),
        activation="swiglu" if is_gated else "gelu",
        positions="learned" if is_learned else "rope",
        max_positions=rows if is_learned and rows != length else None,
        biases=not s.given("disable-bias-linear"),
    )  # fmt: skip
    if s.given("padded-vocab-size"):
        model = replace(model, vocab_multiple=1)
    return replace(model, name=_model_name(model))


def _model_name(model: ModelSpec) -> str:
    """The preset that a model is, but for the padding of its vocabulary, or the one whose dimensions it has."""
    for name, preset in MODELS.items():
        if architecture(replace(model, vocab_multiple=preset.vocab_multiple)) == architecture(preset):
            return name
    alike = of_dimensions(model)
    owner = next((name for name in alike if MODELS[name].vocab_size == model.vocab_size), next(iter(alike), None))
    return f"{owner}-changed" if owner else "gpt"


def _vocab_size(s: Settings) -> int | None:
    """As Megatron has it: the tokenizer's own; of a NullTokenizer, --vocab-size and a token for ends of documents."""
    if s.given("padded-vocab-size"):
        return int(s["padded-vocab-size"])
    stated, kind = s["vocab-size"], s["tokenizer-type"]
    if kind == "NullTokenizer" or (kind is None and stated and not s.given("tokenizer-model")):
        if stated is None:
            s.add("vocab-size", "error", "missing-argument", "a NullTokenizer needs --vocab-size", "add --vocab-size")
            return None
        return int(stated) + 1
    if kind is None and s.given("vocab-file"):
        kind = "GPT2BPETokenizer"  # pretrain_gpt.py's own default
    known = known_vocabulary(kind, s["tokenizer-model"])
    if known is None and stated is None:
        why = "the vocabulary is the tokenizer's, and this one is not known by name"
        name = "tokenizer-model" if "tokenizer-model" in s.entries else "vocab-size"
        if s.engine == s.ENGINE:
            why = f"{why}; Seatrial's own figures count {_ASSUMED_VOCABULARY} tokens, as many as Llama 3's"
            s.add(name, "warning", "unknown-vocabulary", why, "add --vocab-size, for the figures")
            return _ASSUMED_VOCABULARY
        fix = "omit it, or name a Llama tokenizer (…/Meta-Llama-3-8B)" if s.script else "add --vocab-size"
        s.add(name, "error", "unknown-vocabulary", why, fix)
        return None
    if known is not None and stated is not None and known != stated:
        why = f"the tokenizer has {known} tokens, and Megatron uses that number"
        s.add("vocab-size", "warning", "contradiction", why, f"give {known}, or remove it")
    return known or int(stated)
