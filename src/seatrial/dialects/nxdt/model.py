"""NxDT's `model`: the knobs of its Megatron transformer, the overrides of a Hugging Face one, and recomputation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seatrial.dialects.nxdt.architecture import Architecture, assumed_vocabulary, found_architecture, published
from seatrial.dialects.nxdt.readers import (
    anything,
    boolean,
    choice,
    named,
    natural,
    optional,
    positive_share,
    probability,
)
from seatrial.dialects.nxdt.settings import Settings
from seatrial.dialects.table import coerce
from seatrial.dialects.table.keys import Key, equivalent, ignored, rejected, to
from seatrial.spec import Dropout, Execution, Initialization, ModelSpec

_EXPERTS = "there are no mixtures of experts here"
_LAYOUT = "it is how weights are stored, not what is computed"
_KERNEL = "it chooses a kernel"
_FUSED = "XLA fuses what it can"


@coerce.takes("a list of modules, for example [CoreAttention]")
def _modules(value: Any) -> tuple[str, ...]:
    names = coerce.texts([value] if isinstance(value, str) else value)
    unknown = next((name for name in names if name not in MODULES), None)
    if unknown is not None:
        raise ValueError(f"{coerce.shown(unknown)} is no module that can be recomputed; there is {', '.join(MODULES)}")
    return tuple(MODULES[name] for name in names)


# NxDT's classes, and what the spec calls them: Megatron's words, where it has one.
MODULES = {
    "CoreAttention": "core_attn", "LlamaMLP": "mlp", "LlamaRMSNorm": "layernorm", "ActivationMultiplyMLP": "mlp_act",
    "LlamaDecoderLayer": "layer", "LlamaRotaryEmbedding": "rope", "MixtralRMSNorm": "layernorm",
    "NeuronSwitchMLP": "moe",
}  # fmt: skip


@coerce.takes("a whole number from 1 on, or -1 for that of model_config")
def _size(value: Any) -> int | None:
    number = coerce.whole(value)
    if number < 1 and number != -1:
        raise ValueError(f"{number} is neither a size nor -1, which keeps that of model_config")
    return None if number == -1 else number


SHAPE: dict[str, Key] = {
    "model.model_config": to("model", named, "The Hugging Face config.json, its folder, or the name of a preset."),
    "model.encoder_seq_length": to("batch.sequence_length", coerce.count, "Tokens per sequence."),
    "model.max_position_embeddings": to("model.max_positions", optional(coerce.count),
                                        "Rows of the table of learned positions; rotary ones have none."),
    "model.num_layers": to("model.num_layers", optional(_size), "-1 keeps that of model_config."),
    "model.hidden_size": to("model.hidden_dim", optional(_size), "-1 keeps that of model_config."),
    "model.rope_theta": to("model.rope_theta", optional(coerce.positive)),
    "model.vocab_size": to("model.vocab_size", optional(coerce.count), "Seatrial's own key, which NxDT does not read: "
                           "there, the tokenizer's size is the model's."),
    "model.ffn_hidden_size": to("model.ffn_dim", coerce.count),
    "model.num_attention_heads": to("model.num_heads", coerce.count),
    "model.num_kv_heads": to("model.num_kv_heads", optional(coerce.count), "null: as many as query heads."),
    "model.kv_channels": to("model.head_dim", optional(coerce.count), "null: hidden_size / num_attention_heads."),
    "model.init_method_std": to("initialization.std", coerce.positive, "0.02 where it is not given."),
    "model.use_scaled_init_method": to("initialization.scaled", boolean, "true where it is not given."),
    "model.hidden_dropout": to("dropout.hidden", probability, "0.1 where it is not given."),
    "model.attention_dropout": to("dropout.attention", probability),
    "model.ffn_dropout": to("dropout.ffn", probability),
    "model.normalization": to("model.norm", choice("layernorm", "rmsnorm"), "layernorm where it is not given."),
    "model.layernorm_epsilon": to("model.norm_epsilon", coerce.positive),
    "model.make_vocab_size_divisible_by": to("model.vocab_multiple", coerce.count,
                                             "Tables are padded to a multiple of it × tensor; 128."),
    "model.share_embeddings_and_output_weights": to("model.tied_embeddings", boolean, "true where it is not given."),
    "model.position_embedding_type": to("model.positions", choice("learned_absolute", "rope"),
                                        "learned_absolute where it is not given."),
    "model.rotary_percentage": to("model.rotary_fraction", positive_share, "The share of each head that is turned."),
    "model.position_freq_base": to("model.rope_theta", coerce.positive, "10000 where it is not given."),
    "model.position_abf_factor": to("model.rope_theta", coerce.positive, "The base is multiplied by it."),
    "model.positition_interpolation_factor": rejected(
        "positions are not interpolated", coerce.positive, "Misspelt so in NxDT.", quiet=(1.0,)
    ),
    "model.activation": to("model.activation", choice("gelu", "swiglu"), "gelu where it is not given."),
    "model.has_bias": to("model.biases", boolean, "true where it is not given."),
}  # fmt: skip

REST: dict[str, Key] = {
    "model.weight_init_only": to("checkpoint.weights_only", boolean),
    "model.do_layer_norm_weight_decay": to("optimizer.decay_norms", boolean),
    "model.activations_checkpoint_granularity": to(
        "execution.remat", optional(choice("selective", "full")), "null: everything is kept."
    ),
    "model.activations_checkpoint_recompute": to("execution.remat_modules", optional(_modules)),
    "model.fusions.flash_attention": to("execution.attention", boolean, "Attention without a table of all scores."),
    "model.fusions.ring_attention": to(
        "parallelism.context_strategy", boolean,
        "Attention over parts of a sequence, which go around; true where there are parts and it is not given.",
    ),
    "model.fusions.softmax": ignored(_FUSED, boolean, quiet=(True, False)),
    "model.qkv_linear": equivalent(_LAYOUT, boolean),
    "model.fuse_qkv": equivalent(_LAYOUT, boolean),
    "model.transpose_nki_inputs": equivalent(_LAYOUT, boolean),
    "model.persist_layer_norm": ignored(_KERNEL, boolean, quiet=(True, False)),
    "model.use_cpu_initialization": equivalent("initial weights do not depend on the device", boolean),
    "model.pipeline_cuts": equivalent(
        "stages have equal numbers of layers here; where they begin changes no result", optional(anything),
        "The layers at which pipeline stages begin.",
    ),
    "model.apply_query_key_layer_scaling": equivalent(
        "scores are divided by the layer's number and multiplied by it again", boolean
    ),
    "model.sliding_window_size": to(
        "model.sliding_window", optional(coerce.count), "Attention to the last so many tokens; null: to all."
    ),
    "model.transformer_block_type": rejected("only pre_ln blocks are known", coerce.text, quiet=("pre_ln",)),
    "model.fp32_residual_connection": rejected("residuals are in the compute format", boolean, quiet=(False,)),
    "model.fp16_lm_cross_entropy": rejected("the loss is computed in float32", boolean, quiet=(False,)),
    "model.activations_checkpoint_method": ignored("every layer is treated alike", optional(coerce.text),
                                                   quiet=(None, "uniform")),
    "model.activations_checkpoint_num_layers": ignored("every layer is treated alike", optional(natural),
                                                       quiet=(None, 1)),
    "model.activations_checkpoint_layers_per_pipeline": ignored("every layer is treated alike", optional(natural),
                                                                quiet=(None,)),
    "model.precision": ignored("precision.type decides", anything, quiet=(32, "32", None)),
    "model.masked_softmax_fusion": ignored(_FUSED, boolean, quiet=(True, False)),
    "model.bias_gelu_fusion": ignored(_FUSED, boolean, quiet=(True, False)),
    "model.bias_activation_fusion": ignored(_FUSED, boolean, quiet=(True, False)),
    "model.bias_dropout_add_fusion": ignored(_FUSED, boolean, quiet=(True, False)),
    "model.gradient_accumulation_fusion": ignored(_FUSED, boolean, quiet=(True, False)),
    "model.use_emha": rejected("there is one kind of attention", boolean, quiet=(False,)),
    "model.megatron_amp_o2": ignored("precision.type decides", boolean, quiet=(False,)),
    "model.disable_layer_norm_checkpointing": ignored(_LAYOUT, boolean, quiet=(True, False)),
    "model.save_logits": rejected("logits are never kept", boolean, quiet=(False,)),
    **{
        f"model.moe.{name}": rejected(_EXPERTS, optional(anything), quiet=(None,))
        for name in (
            "num_experts", "frequency", "dropout", "capacity_factor", "dropless", "routing_algorithm",
            "router_activation", "sinkhorn_iterations", "sinkhorn_tol", "top_k", "output_router_logits",
            "router_aux_loss_coef", "normalize_top_k_affinities", "glu_mlp",
        )
    },
}  # fmt: skip

KEYS: dict[str, Key] = SHAPE | REST

# What only one of the two model sources reads.
MEGATRON_ONLY = (
    *(name for name in SHAPE if name not in (
                    "model.model_config", "model.encoder_seq_length", "model.max_position_embeddings",
                    "model.num_layers", "model.hidden_size", "model.rope_theta", "model.vocab_size")),
    "model.apply_query_key_layer_scaling", "model.sliding_window_size", "model.transformer_block_type",
)  # fmt: skip
HF_ONLY = ("model.model_config", "model.rope_theta")


def architecture(settings: Settings) -> Architecture | None:
    """The model with its initialisation and dropout, from config.json, a preset, or the knobs of Megatron."""
    is_hf = settings.get("model_source", "hf") == "hf"
    _other_source(settings, is_hf)
    found = found_architecture(settings) if is_hf else _megatron(settings)
    if found is None:
        return None
    vocabulary = settings.get("model.vocab_size")
    if vocabulary is not None and vocabulary != found.model.vocab_size:
        found = replace(found, model=replace(found.model, vocab_size=vocabulary))
    return replace(found, model=published(found.model))


def _other_source(settings: Settings, is_hf: bool) -> None:
    """Keys that the other source would read: they do nothing."""
    others = [name for name in (MEGATRON_ONLY if is_hf else HF_ONLY) if name in settings.entries]
    if others:
        source, what = ("hf", "model_config says all this") if is_hf else ("megatron", "only hf models read it")
        names = ", ".join(name.rpartition(".")[2] for name in others)
        settings.add(
            others[0], "warning", "no-effect", f"model_source is {source}, where {names} is not read: {what}",
            "remove it, or give the other model_source",
        )  # fmt: skip


def _megatron(settings: Settings) -> Architecture | None:
    """Megatron's transformer; its own defaults are GPT's, not Llama's."""
    needed = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads")
    values = {name: settings.get(f"model.{name}") for name in needed}
    for name in needed:
        settings.missing(f"model.{name}")
        if f"model.{name}" in settings.values and values[name] is None:
            settings.add(f"model.{name}", "error", "bad-value", "a Megatron model needs the number", "give the number")
    if any(value is None for value in values.values()):
        return None
    heads, hidden = values["num_attention_heads"], values["hidden_size"]
    head_dim = settings.get("model.kv_channels")
    if head_dim is None and hidden % heads:
        why = f"hidden_size {hidden} cannot be split evenly over {heads} heads"
        settings.add("model.num_attention_heads", "error", "not-divisible", why, f"use a divisor of {hidden}")
    positions = settings.get("model.position_embedding_type", "learned_absolute")
    is_learned = positions == "learned_absolute"
    model = ModelSpec(
        name="custom",
        vocab_size=0,
        hidden_dim=hidden,
        num_layers=values["num_layers"],
        num_heads=heads,
        num_kv_heads=settings.get("model.num_kv_heads") or heads,
        head_dim=head_dim or max(1, hidden // heads),
        ffn_dim=values["ffn_hidden_size"],
        rope_theta=settings.get("model.position_freq_base", 10_000.0) * settings.get("model.position_abf_factor", 1.0),
        norm_epsilon=settings.get("model.layernorm_epsilon", 1e-5),
        tied_embeddings=settings.get("model.share_embeddings_and_output_weights", True),
        norm=settings.get("model.normalization", "layernorm"),
        activation=settings.get("model.activation", "gelu"),
        positions="learned" if is_learned else "rope",
        max_positions=settings.get("model.max_position_embeddings") if is_learned else None,
        rotary_fraction=settings.get("model.rotary_percentage", 1.0),
        biases=settings.get("model.has_bias", True),
        sliding_window=settings.get("model.sliding_window_size"),
        vocab_multiple=settings.get("model.make_vocab_size_divisible_by", 128),
    )
    return Architecture(
        model=replace(model, vocab_size=settings.get("model.vocab_size") or assumed_vocabulary(settings, model)),
        initialization=Initialization(
            std=settings.get("model.init_method_std", 0.02), scaled=settings.get("model.use_scaled_init_method", True)
        ),
        dropout=Dropout(
            hidden=settings.get("model.hidden_dropout", 0.1),
            attention=settings.get("model.attention_dropout", 0.0),
            ffn=settings.get("model.ffn_dropout", 0.0),
        ),
    )


def execution(settings: Settings) -> Execution:
    """What is recomputed, how attention is computed, and where compiled programs are kept."""
    granularity = settings.get("model.activations_checkpoint_granularity")
    modules = settings.get("model.activations_checkpoint_recompute") or ("core_attn",)
    if "model.activations_checkpoint_granularity" not in settings.entries:
        granularity = "selective"
    flash = settings.get("model.fusions.flash_attention")
    cache = settings.get("compiler_cache_url")
    return Execution(
        remat=granularity or "none",
        remat_modules=modules if granularity == "selective" else (),
        attention="auto" if flash is None else "flash" if flash else "dot_product",
        compile_cache=cache if cache and "://" not in cache else None,
    )
