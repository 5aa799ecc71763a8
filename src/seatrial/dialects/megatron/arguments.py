"""The arguments of Megatron-LM's pretrain_gpt.py that say what is trained, and torchrun's, each with how it is written.

Source: NVIDIA/Megatron-LM, megatron/training/arguments.py, as of core_r0.15; those that say nothing of a run, and names
that came and went, are in `without_effect.txt`. The order of the rows is that in which a command is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any

from seatrial.dialects.megatron.stages import end_of
from seatrial.dialects.table import coerce
from seatrial.dialects.table.coerce import count, mapped, natural, not_negative, one_of, positive, share, text
from seatrial.dialects.table.keys import PATH, FromSpec, Key, as_is, equivalent, ignored, to
from seatrial.dialects.table.versions import versions
from seatrial.dialects.table.without_effect import rows
from seatrial.spec import RunSpec, ScheduleKind
from seatrial.spec.presets import known_vocabulary

_TENSOR, _PIPELINE, _CONTEXT = (
    f"parallelism.within_node.{axis},parallelism.across_nodes.{axis}" for axis in ("tensor", "pipeline", "context")
)
_FSDP = "parallelism.within_node.fsdp,parallelism.across_nodes.fsdp"
_DATA = "parallelism.within_node.data,parallelism.across_nodes.data"


def flag(value: Any) -> bool:
    """An argument without a value: it is there. As an override it has one, true or false."""
    word = "" if value is None else str(value).strip().lower()
    if word not in ("", "1", "true", "0", "false"):
        raise ValueError("it takes no value")
    return word not in ("0", "false")


def several(value: Any) -> tuple[str, ...]:
    """One word or more, up to the next argument."""
    return coerce.texts(value.split() if isinstance(value, str) else value)


@coerce.takes("two whole numbers, as 1023,0")
def window(value: Any) -> int | None:
    """(left, right): how many keys a query reads, its own among them; -1 on the left is all of them.

    Attention is causal, so what stands on the right changes nothing.
    """
    words = value if isinstance(value, (list, tuple)) else text(value).strip("() ").split(",")
    sides = [coerce.whole(word) for word in words]
    if len(sides) != 2 or min(sides) < -1:
        raise ValueError(f"{value} is no pair of keys to the left and to the right, as 1023,0")
    return None if sides[0] == -1 else sides[0] + 1


@coerce.takes("a number of steps")
def steps(value: Any) -> int:
    """A whole number of steps, which may be written as 1000.0."""
    number = positive(value)
    if not number.is_integer():
        raise ValueError(f"{number:g} is not a whole number")
    return int(number)


# How keys and values are exchanged; the result is the same.
CONTEXT = {"p2p": "ring", "a2a+p2p": "ring", "all_gather": "all_gather", "allgather": "all_gather", "a2a": "all_gather"}


def strategy(value: Any) -> str:
    """One word, or one for each layer; the first decides."""
    words = [mapped(CONTEXT)(word) for word in several(value)]
    if not words:
        raise ValueError(f"give one of {', '.join(CONTEXT)}")
    return str(words[0])


# How products are scaled, by recipe and format → what is done here; anything else is delayed.
FP8: Mapping[tuple[str, str], str] = {
    ("delayed", "hybrid"): "fp8", ("tensorwise", "hybrid"): "te_fp8_currentscaling", ("tensorwise", "e4m3"): "fp8_e4m3",
}  # fmt: skip
DISCARDED = ("layernorm", "moe_act")  # modules whose output Megatron discards; it refuses them with delayed scales
SCHEDULES: Mapping[str, ScheduleKind] = {
    "cosine": "cosine", "linear": "linear", "constant": "constant", "inverse-square-root": "inverse_square_root",
}  # fmt: skip
_STATE = one_of("fp32", "bf16", otherwise="fp16 and fp8 are not supported")

ATTENTION = {
    "flash": "flash", "fused": "cudnn_flash_te", "unfused": "dot_product", "local": "dot_product", "auto": "auto",
}  # fmt: skip

# --- what is written, where that is more than the value of a path -----------------------------------------------------

_SAVES: FromSpec = attrgetter("checkpoint.enabled")


def _where(holds: FromSpec, value: Any) -> FromSpec:
    """A value, where something holds."""
    return lambda spec: value if holds(spec) else None


def _is_float16(spec: RunSpec) -> bool:
    return spec.precision.compute_dtype == "float16"


def _scales(spec: RunSpec) -> bool:
    """True if the scale of the loss follows the gradients."""
    return _is_float16(spec) and spec.precision.loss_scale is None


def is_sharded(spec: RunSpec) -> bool:
    """True if parameters are sharded over data-parallel replicas."""
    return spec.mesh["fsdp"] > 1


def has_files(spec: RunSpec) -> bool:
    """True if there is data that Megatron can read."""
    return spec.data.kind == "megatron" and bool(spec.data.paths)


def _has_tokenizer(spec: RunSpec) -> bool:
    return spec.data.kind == "megatron" and spec.data.tokenizer != "byte"


def _vocab_size(spec: RunSpec) -> int | None:
    """A NullTokenizer adds a token; the vocabulary of a tokenizer that is known by its name is not repeated."""
    if not _has_tokenizer(spec):
        return spec.model.vocab_size - 1
    return spec.model.vocab_size if known_vocabulary("HuggingFaceTokenizer", spec.data.tokenizer) is None else None


def _strategy(spec: RunSpec) -> str | None:
    """The word for how keys and values travel, where it is not the usual one."""
    usual, found = "ring" if spec.mesh["context"] > 1 else "all_gather", spec.parallelism.context_strategy
    return None if found == usual else {"ring": "p2p", "all_gather": "all_gather"}[found]


def _keeps_half(spec: RunSpec) -> bool:
    """True if the optimizer's state is bfloat16, where Megatron can choose that."""
    return spec.precision.compute_dtype == spec.precision.optimizer_dtype == "bfloat16" and spec.parallelism.zero1


def _fp8(spec: RunSpec) -> tuple[str | None, str | None]:
    """(--fp8-recipe, --fp8-format)."""
    return next((words for words, name in FP8.items() if name == spec.precision.quantization), (None, None))


def _recomputed(spec: RunSpec) -> tuple[str, ...]:
    """The modules that Megatron would recompute: with delayed scales, those whose output it keeps."""
    is_delayed = _fp8(spec)[0] == "delayed"
    return tuple(m for m in spec.execution.remat_modules if not (is_delayed and m in DISCARDED))


def _warmup(spec: RunSpec) -> int:
    return min(spec.optimizer.warmup_steps, (spec.optimizer.decay_steps or spec.step_limit) - 1)


def _schedule(spec: RunSpec) -> tuple[str, str | None, int | None]:
    """(--lr-decay-style, --lr-wsd-decay-style, --lr-wsd-decay-iters)."""
    optimizer = spec.optimizer
    kind = optimizer.schedule.removeprefix("maxtext_")  # the nearest
    style = next((word for word, name in SCHEDULES.items() if name == kind), "cosine")
    fall = (optimizer.decay_steps or spec.step_limit) - _warmup(spec) - optimizer.hold_steps
    is_held = optimizer.hold_steps > 0 and style in ("linear", "cosine") and fall > 0
    return ("WSD", style, fall) if is_held else (style, None, None)


def _words(words: tuple[str, ...]) -> tuple[str, ...]:
    """Paths that argparse does not take for arguments."""
    return tuple(f"./{word}" if word.startswith("-") else word for word in words)


def _blend(spec: RunSpec) -> tuple[str, ...]:
    paths, weights = _words(spec.data.paths), spec.data.weights
    pairs = (word for weight, path in zip(weights, paths, strict=False) for word in (repr(weight), path))
    return tuple(pairs) if weights else paths


def _data(words: Callable[[RunSpec], tuple[str, ...]], *, split: bool) -> FromSpec:
    """Paths, where there is one list of them that is split, or one of each kind."""
    return lambda spec: words(spec) if has_files(spec) and bool(spec.data.split) is split else ()


def _granularity(spec: RunSpec) -> str | None:
    return {"full": "full", "none": None}.get(spec.execution.remat, "selective")


def _is_full(spec: RunSpec) -> bool:
    return spec.execution.remat == "full"


def _resumed(spec: RunSpec) -> str | None:
    """The folder from which a run goes on."""
    return folder(spec) if spec.checkpoint.resume else None


def folder(spec: RunSpec) -> str | None:
    """The folder of the checkpoints; None if none are saved."""
    return (spec.checkpoint.directory or "checkpoints") if spec.checkpoint.enabled else None


# --- pretrain_gpt.py --------------------------------------------------------------------------------------------------

_LAYERS = "which layers are computed again changes memory and speed only"
_GRADIENTS = "precision.gradient_dtype,precision.reduce_dtype"
_PATHS = "data.kind,data.paths,data.weights"

ARGUMENTS: Mapping[str, Key] = {
    # the model
    "num-layers": as_is("model.num_layers", count, required=True),
    "encoder-num-layers": to("model.num_layers", count, "Another name for --num-layers."),
    "hidden-size": as_is("model.hidden_dim", count, required=True),
    "ffn-hidden-size": as_is("model.ffn_dim", count, "Width of the MLP; default: 4 × hidden-size, with --swiglu 8/3."),
    "num-attention-heads": as_is("model.num_heads", count, required=True),
    "kv-channels": as_is("model.head_dim", count, "Width of a head; default: hidden-size / num-attention-heads."),
    "group-query-attention": to("model.num_kv_heads", flag, "Several query heads share a key/value head.",
                                write=lambda s: s.model.num_kv_heads != s.model.num_heads),
    "num-query-groups": to("model.num_kv_heads", count, "Key/value heads, under --group-query-attention.", default=1,
                           only=lambda s: s.model.num_kv_heads != s.model.num_heads),
    "max-position-embeddings": to("model.max_positions", count, "Longest sequence; rows of a table of positions.",
                                  write=lambda s: max(s.batch.sequence_length, s.model.max_positions or 0),
                                  required=True),
    "position-embedding-type": to(
        "model.positions",
        one_of("learned_absolute", "rope", otherwise="none, relative and mrope positions are not supported here"),
        default="learned_absolute", write=lambda s: "rope" if s.model.positions == "rope" else "learned_absolute",
    ),
    "use-rotary-position-embeddings": to("model.positions", flag, "Old name of --position-embedding-type rope."),
    "rotary-base": to("model.rope_theta", coerce.whole, "Base of the rotary frequencies.", default=10_000,
                      write=lambda s: max(1, round(s.model.rope_theta))),
    "rotary-percent": as_is("model.rotary_fraction", share, "Fraction of each head that is rotated.", default=1.0),
    "use-rope-scaling": to("model.rope_scaling", flag, "Llama 3.1's stretching of rotary positions.",
                           write=lambda s: s.model.rope_scaling is not None),
    "rope-scaling-factor": to("model.rope_scaling.factor", positive, default=8.0,
                              only=attrgetter("model.rope_scaling")),
    "normalization": to("model.norm", one_of("LayerNorm", "RMSNorm"), default="LayerNorm",
                        write=lambda s: "RMSNorm" if s.model.norm == "rmsnorm" else "LayerNorm"),
    "norm-epsilon": as_is("model.norm_epsilon", positive, default=1e-5),
    "layernorm-epsilon": to("model.norm_epsilon", positive, "Old name of --norm-epsilon."),
    "swiglu": to("model.activation", flag, "SwiGLU instead of GELU.", write=lambda s: s.model.activation == "swiglu"),
    "untie-embeddings-and-output-weights": to("model.tied_embeddings", flag, "The output head has weights of its own.",
                                              write=lambda s: not s.model.tied_embeddings),
    "window-size": as_is("model.sliding_window", window, "Keys to the left and right that a query reads; -1: all.",
                      write=lambda s: s.model.sliding_window and f"{s.model.sliding_window - 1},0"),
    "disable-bias-linear": to("model.biases", flag, "No biases on linear maps.", write=lambda s: not s.model.biases),
    "make-vocab-size-divisible-by": as_is("model.vocab_multiple", count, default=128,
                                          meaning="The vocabulary is padded to it × tensor parallelism."),
    "tokenizer-type": to("data.tokenizer", one_of(
        "HuggingFaceTokenizer", "Llama2Tokenizer", "Llama3Tokenizer", "GPT2BPETokenizer", "SentencePieceTokenizer",
        "GPTSentencePieceTokenizer", "TikTokenizer", "NullTokenizer", "MegatronHFTokenizer",
    ), write=lambda s: "HuggingFaceTokenizer" if _has_tokenizer(s) else "NullTokenizer"),
    "tokenizer-model": to("data.tokenizer,model.vocab_size", text, "Path or name; its vocabulary is the model's.",
                          write=lambda s: s.data.tokenizer if _has_tokenizer(s) else None),
    "vocab-size": to("model.vocab_size", count, "Of a NullTokenizer, which adds a token; else the tokenizer decides.",
                     write=_vocab_size),
    "padded-vocab-size": to("model.vocab_size", count, "Rows of the embedding, padding included."),
    # batch and length of the run
    "seq-length": as_is("batch.sequence_length", count, required=True),
    "encoder-seq-length": to("batch.sequence_length", count, "Another name for --seq-length."),
    "micro-batch-size": as_is("batch.micro_batch_size", count, required=True),
    "global-batch-size": as_is("batch.global_batch_size", count, "Default: one micro batch per data-parallel replica."),
    "train-iters": as_is("steps", count, required=True),
    "train-samples": to("steps", count, "Sequences in all; the steps are this ÷ the global batch."),
    "exit-interval": to("steps", count, "The run ends at the first multiple of it; the schedule does not know."),
    "seed": as_is("seed", count, default=1234),
    "init-method-std": as_is("initialization.std", positive, default=0.02),
    "attention-dropout": as_is("dropout.attention", share, default=0.1),
    "hidden-dropout": as_is("dropout.hidden", share, default=0.1),
    # the mesh
    "cp-comm-type": to("parallelism.context_strategy", strategy, "How keys and values are exchanged; default: p2p.",
                       write=_strategy),
    "tensor-model-parallel-size": to(_TENSOR, count, default=1, write=lambda s: s.mesh["tensor"]),
    "pipeline-model-parallel-size": to(_PIPELINE, count, default=1, write=lambda s: s.mesh["pipeline"]),
    "context-parallel-size": to(_CONTEXT, count, default=1, write=lambda s: s.mesh["context"]),
    "sequence-parallel": as_is("parallelism.sequence_parallel", flag,
                               "Without tensor parallelism Megatron turns it off."),
    "num-layers-per-virtual-pipeline-stage": to("parallelism.virtual_pipeline", count, "Layers of a model chunk."),
    "num-virtual-stages-per-pipeline-rank": to(
        "parallelism.virtual_pipeline", count,
        only=lambda s: s.parallelism.virtual_pipeline > 1 < s.mesh["pipeline"],
    ),
    "decoder-first-pipeline-num-layers": to("parallelism.stage_layers", natural, "Layers of the first stage; the "
                                            "others share the rest.", write=partial(end_of, end=0)),
    "decoder-last-pipeline-num-layers": to("parallelism.stage_layers", natural, "Layers of the last stage.",
                                           write=partial(end_of, end=-1)),
    "pipeline-model-parallel-layout": to("parallelism.stage_layers", text, "Stages between |, in each E for the "
                                         "embedding, t for a layer, L for the loss; (…)*4 repeats."),
    "account-for-embedding-in-pipeline-split": as_is(
        "parallelism.counts_embedding", flag, "The embedding counts as a layer of the first stage."
    ),
    "account-for-loss-in-pipeline-split": as_is(
        "parallelism.counts_head", flag, "The output head counts as a layer of the last stage."
    ),
    "use-distributed-optimizer": as_is("parallelism.zero1", flag),
    "use-torch-fsdp2": to(_FSDP, flag, "Parameters sharded over all replicas."),
    "use-megatron-fsdp": to(_FSDP, flag, "Sharding as --data-parallel-sharding-strategy says.", write=is_sharded),
    "use-custom-fsdp": to(_FSDP, flag, "Old name of --use-megatron-fsdp."),
    "data-parallel-sharding-strategy": to(
        f"{_FSDP},parallelism.zero1", one_of("no_shard", "optim", "optim_grads", "optim_grads_params"),
        "What --use-megatron-fsdp shards: nothing, optimizer state, gradients too, parameters too.",
        default="no_shard", write=_where(is_sharded, "optim_grads_params"),
    ),
    "ckpt-format": ignored("checkpoints have Seatrial's own format", text,
                           write=_where(is_sharded, "fsdp_dtensor")),
    "num-distributed-optimizer-instances": to(_DATA, count, "Replicas of the sharded state (hybrid sharding).",
                                              default=1, write=lambda s: s.mesh["data"] if is_sharded(s) else None),
    # number formats
    "bf16": to("precision.compute_dtype", flag, "bfloat16 with float32 master weights; default: float32.",
               write=lambda s: s.precision.compute_dtype == "bfloat16"),
    "fp16": to("precision.compute_dtype", flag, "float16 with float32 master weights and a scaled loss.",
               write=_is_float16),
    "loss-scale": as_is("precision.loss_scale", positive, "One scale for the whole run; default: it follows the "
                        "gradients.", only=_is_float16),
    "initial-loss-scale": as_is("precision.initial_loss_scale", positive, default=2.0**32, only=_scales),
    "min-loss-scale": as_is("precision.min_loss_scale", positive, default=1.0, only=_scales),
    "loss-scale-window": as_is("precision.loss_scale_window", steps, default=1000, only=_scales),
    "hysteresis": as_is("precision.loss_scale_hysteresis", count, default=2, only=_scales),
    "grad-reduce-in-bf16": to(_GRADIENTS, flag, write=lambda s: s.precision.compute_dtype
                              == s.precision.gradient_dtype == s.precision.reduce_dtype == "bfloat16"),
    "accumulate-allreduce-grads-in-fp32": to(
        _GRADIENTS, flag, "Of bfloat16 they are unless told otherwise.",
        write=lambda s: _is_float16(s) and s.precision.gradient_dtype == s.precision.reduce_dtype == "float32",
    ),
    "use-precision-aware-optimizer": to("precision.optimizer_dtype", flag, "Lets the formats of its state be chosen.",
                                        write=_keeps_half),
    "main-grads-dtype": to(_GRADIENTS, one_of("fp32", "bf16"), default="fp32"),
    "exp-avg-dtype": to("precision.optimizer_dtype", _STATE, default="fp32", write=_where(_keeps_half, "bf16")),
    "exp-avg-sq-dtype": to("precision.optimizer_dtype", _STATE, write=_where(_keeps_half, "bf16")),
    "fp8-recipe": to(
        "precision.quantization", one_of("delayed", "tensorwise", "mxfp8", "blockwise",
                                         otherwise="custom recipes are not supported here"),
        "Scales by earlier steps' values (delayed, its default) or by the tensor's own (tensorwise).",
        default="delayed", write=lambda s: _fp8(s)[0],
    ),
    "fp8-format": to("precision.quantization", one_of("e4m3", "hybrid"), "Matrix products in FP8.",
                     write=lambda s: _fp8(s)[1]),
    "fp8-hybrid": to("precision.quantization", flag, "Old name of --fp8-format hybrid."),
    "fp8-e4m3": to("precision.quantization", flag, "Old name of --fp8-format e4m3."),
    # the optimizer
    "lr-decay-style": to("optimizer.schedule", one_of(*SCHEDULES, "WSD"), default="linear",
                         write=lambda s: _schedule(s)[0]),
    "lr-wsd-decay-style": to(
        "optimizer.schedule", one_of("linear", "cosine", otherwise="exponential and minus_sqrt are not supported here"),
        "How --lr-decay-style WSD ends.", write=lambda s: _schedule(s)[1],
    ),
    "lr-wsd-decay-iters": to("optimizer.hold_steps", count, "Length of the decay at the end of WSD.",
                             write=lambda s: _schedule(s)[2]),
    "lr-wsd-decay-samples": to("optimizer.hold_steps", count, "The same in sequences."),
    "optimizer": to("optimizer.algorithm", one_of("adam", "sgd", otherwise="muon is not supported here"),
                    "adam is AdamW: its weight decay is decoupled.", default="adam",
                    write=lambda s: "sgd" if s.optimizer.algorithm == "sgd" else "adam"),
    "lr": as_is("optimizer.learning_rate", positive, required=True),
    "min-lr": to("optimizer.final_learning_rate_fraction", not_negative, "Rate at the end of the schedule.",
                 default=0.0, write=lambda s: min(s.optimizer.learning_rate, coerce.part_of(
                     s.optimizer.final_learning_rate_fraction, s.optimizer.learning_rate))),
    "decoupled-lr": as_is("optimizer.embedding_learning_rate", positive, "Of the embedding and the output head."),
    "decoupled-min-lr": as_is("optimizer.embedding_final_learning_rate", not_negative, "Theirs at the end."),
    "lr-decay-iters": as_is("optimizer.decay_steps", count, "Length of the schedule, warm-up included."),
    "lr-decay-samples": to("optimizer.decay_steps", count, "The same in sequences."),
    "lr-warmup-fraction": to("optimizer.warmup_steps", share, "Share of the schedule that is warm-up."),
    "lr-warmup-iters": to("optimizer.warmup_steps", natural, default=0, write=_warmup),
    "lr-warmup-samples": to("optimizer.warmup_steps", natural, "The same in sequences."),
    "weight-decay": as_is("optimizer.weight_decay", not_negative, "Not applied to biases and norms.", default=0.01),
    "adam-beta1": as_is("optimizer.beta1", share, default=0.9),
    "adam-beta2": as_is("optimizer.beta2", share, default=0.999),
    "adam-eps": as_is("optimizer.epsilon", positive, default=1e-8),
    "sgd-momentum": to("optimizer.momentum", share, default=0.9, only=lambda s: s.optimizer.algorithm == "sgd"),
    "clip-grad": to("optimizer.clip_norm", not_negative, "0: no clipping.", default=1.0,
                    write=lambda s: s.optimizer.clip_norm or 0.0),
    "no-check-for-nan-in-loss-and-grad": to("optimizer.on_non_finite", flag, "The run continues; default: it stops.",
                                            write=lambda s: s.optimizer.on_non_finite == "continue"),
    # data
    "mock-data": to("data.kind", flag, "Sequences made by Megatron itself.", write=lambda s: not has_files(s)),
    "split": to("data.split", text, "Shares of training, validation and test; default: 969,30,1.", only=has_files),
    "data-path": to(_PATHS, several, "Of .bin and .idx files, with weights or without.",
                    write=_data(_blend, split=True)),
    "train-data-path": to(_PATHS, several, write=_data(_blend, split=False)),
    "valid-data-path": to("data.validation_paths", several,
                          write=_data(lambda s: _words(s.data.validation_paths), split=False)),
    "test-data-path": to("data.test_paths", several, write=_data(lambda s: _words(s.data.test_paths), split=False)),
    "data-cache-path": as_is("data.index_dir", text, only=has_files),
    "reset-position-ids": as_is("data.reset_positions", flag, only=has_files),
    "reset-attention-mask": as_is("data.reset_attention", flag, only=has_files),
    "eod-mask-loss": as_is("data.mask_document_ends", flag, only=has_files),
    # evaluation, log, speed and memory
    "eval-interval": as_is("evaluation.interval_steps", count, default=1000),
    "full-validation": to("evaluation.batches", flag, "Each evaluation uses all validation data.",
                          write=lambda s: s.evaluation.interval_steps is not None and s.evaluation.batches is None),
    "eval-iters": to("evaluation.batches", coerce.whole, "0 or less: no evaluation.", default=100,
                     write=lambda s: 0 if s.evaluation.interval_steps is None else s.evaluation.batches or 1),
    "log-interval": as_is("logging.interval_steps", count, default=100),
    "log-params-norm": as_is("logging.parameter_norm", flag),
    "tensorboard-dir": to("logging.tensorboard", text, write=_where(attrgetter("logging.tensorboard"), "tensorboard")),
    "wandb-exp-name": to("name", text, "What the run is called; Megatron needs it with --wandb-project.",
                         write=lambda s: s.name if "--wandb-project" in s.execution.engine_keys else None),
    "recompute-activations": to("execution.remat", flag, "Another name for --recompute-granularity selective."),
    "recompute-granularity": to("execution.remat", one_of("full", "selective"), write=_granularity),
    "recompute-method": equivalent(_LAYERS, one_of("uniform", "block"), write=_where(_is_full, "uniform")),
    "recompute-num-layers": equivalent(_LAYERS, count, write=_where(_is_full, 1)),
    "recompute-modules": to("execution.remat_modules", several, write=lambda s: _granularity(s) == "selective"
                            and (_words(_recomputed(s)) or ("core_attn",))),
    "attention-backend": to("execution.attention", mapped(ATTENTION), default="auto", write=lambda s: next(
        (word for word, name in ATTENTION.items() if name == s.execution.attention), "auto")),
    "use-flash-attn": to("execution.attention", flag, "Old name of --attention-backend flash."),
    "profile": to("execution.profile_from_step", flag, write=lambda s: s.execution.profile_from_step is not None),
    "profile-step-start": to("execution.profile_from_step", natural, default=10, write=PATH),
    "profile-step-end": to("execution.profile_steps", count, "The step after the last profiled one.",
                           default=12, write=lambda s: None if s.execution.profile_from_step is None
                           else s.execution.profile_from_step + s.execution.profile_steps),
    # checkpoints
    "save": to("checkpoint.directory,checkpoint.enabled", text, write=folder),
    "save-interval": to("checkpoint.interval_steps", natural, "Needed with --save; 0 without it is the same as none.",
                        write=lambda s: (s.checkpoint.interval_steps or s.steps) if _SAVES(s) else None),
    "persistent-save-interval": to("checkpoint.interval_steps", count, "Another name for --save-interval."),
    "async-save": to("checkpoint.asynchronous", flag, only=_SAVES),
    "use-persistent-ckpt-worker": equivalent(
        "who saves a checkpoint in the background does not change it; since core 0.16 --async-save needs it", flag,
        write=lambda s: _SAVES(s) and s.checkpoint.asynchronous,
    ),
    "exit-on-missing-checkpoint": to("checkpoint.resume_required", flag, "Stops if --load finds nothing.",
                                     only=_resumed),
    "load": to("checkpoint.resume,checkpoint.resume_from", text, "If it is where --save writes, the run resumes.",
               write=lambda s: _resumed(s) or s.checkpoint.resume_from),
    "pretrained-checkpoint": to("checkpoint.resume_from", text, "Initial weights if --load finds nothing.",
                                only=_resumed),
    "no-load-optim": to("checkpoint.weights_only", flag, "Loads no optimizer state, and goes on at the step of the "
                        "checkpoint."),
    "finetune": to("checkpoint.weights_only", flag, "Loads only the weights, and starts at step 0.",
                   write=lambda s: s.checkpoint.weights_only and s.checkpoint.resume_from is not None
                   and not _resumed(s) and "--no-load-optim" not in s.execution.engine_keys),
}  # fmt: skip

ALIASES: Mapping[str, str] = {  # an argument, and another name for it
    "num-layers": "encoder-num-layers", "seq-length": "encoder-seq-length", "norm-epsilon": "layernorm-epsilon",
    "use-megatron-fsdp": "use-custom-fsdp", "save-interval": "persistent-save-interval",
}  # fmt: skip

# --- the others -------------------------------------------------------------------------------------------------------

# By how many values an argument takes, in the words of `versions.txt` and of `without_effect.txt`.
_READERS: Mapping[str, coerce.Reader] = {"": flag, "=": text, "one": text, "*": several}


def _reader(name: str, kind: str, value: Any) -> coerce.Reader:
    known = versions("megatron").get(name)
    return _READERS[kind or (known.values if known else "")]


OTHER_ARGUMENTS: Mapping[str, Key] = dict(rows("megatron", _reader))

# --- torchrun ---------------------------------------------------------------------------------------------------------

_WHERE = "rendezvous does not change the result"

# torchrun's own options, before the program; it takes - for _ as well.
LAUNCHER: Mapping[str, Key] = {
    "nproc_per_node": to("topology.devices_per_node", text, "Processes of a node, one a device.", write=PATH),
    "nnodes": to("topology.num_nodes", text, write=PATH),
    "master_addr": as_is("distributed.coordinator_host", text),
    "master_port": as_is("distributed.coordinator_port", coerce.port),
    "node_rank": equivalent("it differs from node to node", text,
                            write=lambda s: "$NODE_RANK" if s.topology.num_nodes > 1 else None),
    "rdzv_endpoint": to("distributed.coordinator_host,distributed.coordinator_port", text,
                        "HOST:PORT of the first node, where there are several."),
    **{
        name: equivalent(_WHERE, text)
        for name in (
            "rdzv_backend", "rdzv_id", "rdzv_conf", "local_addr", "start_method", "role", "log_dir",
            "redirects", "tee", "monitor_interval", "max_restarts", "local_ranks_filter", "logs_specs", "numa_binding",
            "event_log_handler", "signals_to_handle",
        )
    },
    **{name: equivalent(_WHERE, flag) for name in ("standalone", "no_python", "run_path", "use_env", "module")},
}  # fmt: skip
