"""The arguments of Megatron-LM's pretrain_gpt.py that say what is trained, with its own defaults, and torchrun's.

Source: NVIDIA/Megatron-LM, megatron/training/arguments.py, as of core_r0.15; names that came and went are in `REST`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.dialects.table.coerce import count, decimal, one_of, port, positive, text, texts, whole
from seatrial.dialects.table.keys import Key, equivalent, to

_TENSOR, _PIPELINE, _CONTEXT = (
    f"parallelism.within_node.{axis},parallelism.across_nodes.{axis}" for axis in ("tensor", "pipeline", "context")
)
_FSDP = "parallelism.within_node.fsdp,parallelism.across_nodes.fsdp"
_DATA = "parallelism.within_node.data,parallelism.across_nodes.data"


def flag(value: Any) -> bool:
    """An argument without a value: it is there. As an override it has one, true or false."""
    if value is None or value is True:
        return True
    if isinstance(value, str) and value.strip().lower() in ("", "1", "true"):
        return True
    if value is False or (isinstance(value, str) and value.strip().lower() in ("0", "false")):
        return False
    raise ValueError("it takes no value")


def several(value: Any) -> tuple[str, ...]:
    """One word or more, up to the next argument."""
    return texts(value.split() if isinstance(value, str) else value)


def from_zero(value: Any) -> int:
    """A whole number from 0 on."""
    number = whole(value)
    if number < 0:
        raise ValueError(f"{number} is less than 0")
    return number


def share(value: Any) -> float:
    """A number from 0 to 1."""
    number = decimal(value)
    if not 0 <= number <= 1:
        raise ValueError(f"{number:g} is not between 0 and 1")
    return number


def not_negative(value: Any) -> float:
    """A number from 0 on."""
    number = decimal(value)
    if number < 0:
        raise ValueError(f"{number:g} is less than 0")
    return number


def window(value: Any) -> int | None:
    """(left, right): how many keys a query reads, its own among them; -1 on the left is all of them.

    Attention is causal, so what stands on the right changes nothing.
    """
    words = value if isinstance(value, (list, tuple)) else text(value).strip("() ").split(",")
    sides = [whole(word) for word in words]
    if len(sides) != 2 or min(sides) < -1:
        raise ValueError(f"{value} is no pair of keys to the left and to the right, as 1023,0")
    return None if sides[0] == -1 else sides[0] + 1


# How keys and values come together; the result is the same by any.
CONTEXT = {"p2p": "ring", "a2a+p2p": "ring", "all_gather": "all_gather", "allgather": "all_gather", "a2a": "all_gather"}


def strategy(value: Any) -> str:
    """One word, or one for each layer; the first decides."""
    words = several(value)
    unknown = next((word for word in words if word not in CONTEXT), None)
    if unknown is not None or not words:
        raise ValueError(f"{unknown or 'nothing'} is none of {', '.join(CONTEXT)}")
    return CONTEXT[words[0]]


# How products are scaled, by recipe and format → what is done here; of one that is not here, delayed.
FP8: Mapping[tuple[str, str], str] = {
    ("delayed", "hybrid"): "fp8", ("tensorwise", "hybrid"): "te_fp8_currentscaling", ("tensorwise", "e4m3"): "fp8_e4m3",
}  # fmt: skip
RECIPES = ("delayed", "tensorwise", "mxfp8", "blockwise")

_STATE = one_of("fp32", "bf16", otherwise="fp16 and fp8 are not supported")

ARGUMENTS: Mapping[str, Key] = {
    # the model
    "num-layers": to("model.num_layers", count),
    "encoder-num-layers": to("model.num_layers", count, "Another name for --num-layers."),
    "hidden-size": to("model.hidden_dim", count),
    "ffn-hidden-size": to("model.ffn_dim", count, "Width of the MLP; absent: 4 × hidden-size, or with --swiglu 8/3."),
    "num-attention-heads": to("model.num_heads", count),
    "kv-channels": to("model.head_dim", count, "Width of a head; absent: hidden-size / num-attention-heads."),
    "group-query-attention": to("model.num_kv_heads", flag, "Several query heads share a key/value head."),
    "num-query-groups": to("model.num_kv_heads", count, "Key/value heads, under --group-query-attention."),
    "max-position-embeddings": to("model.max_positions", count, "Longest sequence; rows of a table of positions."),
    "position-embedding-type": to(
        "model.positions",
        one_of("learned_absolute", "rope", otherwise="none, relative and mrope positions are not supported here"),
    ),
    "use-rotary-position-embeddings": to("model.positions", flag, "Old name of --position-embedding-type rope."),
    "rotary-base": to("model.rope_theta", whole, "Base of the rotary frequencies, a whole number."),
    "rotary-percent": to("model.rotary_fraction", share, "Fraction of each head that is turned."),
    "use-rope-scaling": to("model.rope_scaling", flag, "Llama 3.1's stretching of rotary positions."),
    "rope-scaling-factor": to("model.rope_scaling.factor", positive),
    "normalization": to("model.norm", one_of("LayerNorm", "RMSNorm")),
    "norm-epsilon": to("model.norm_epsilon", positive),
    "layernorm-epsilon": to("model.norm_epsilon", positive, "Old name of --norm-epsilon."),
    "swiglu": to("model.activation", flag, "SwiGLU instead of GELU."),
    "untie-embeddings-and-output-weights": to("model.tied_embeddings", flag, "The output head has weights of its own."),
    "disable-bias-linear": to("model.biases", flag, "No biases on linear maps."),
    "window-size": to("model.sliding_window", window, "Keys to the left and to the right that a query reads; -1: all."),
    "make-vocab-size-divisible-by": to("model.vocab_multiple", count, "× tensor parallelism, in Megatron, too."),
    "vocab-size": to("model.vocab_size", count, "Of a NullTokenizer, which adds a token; else the tokenizer decides."),
    "padded-vocab-size": to("model.vocab_size", count, "Rows of the embedding, padding included."),
    "tokenizer-type": to("data.tokenizer", one_of(
        "HuggingFaceTokenizer", "Llama2Tokenizer", "Llama3Tokenizer", "GPT2BPETokenizer", "SentencePieceTokenizer",
        "GPTSentencePieceTokenizer", "TikTokenizer", "NullTokenizer", "MegatronHFTokenizer",
    )),
    "tokenizer-model": to("data.tokenizer,model.vocab_size", text, "Path or name; its vocabulary is the model's."),
    "init-method-std": to("initialization.std", positive),
    "attention-dropout": to("dropout.attention", share),
    "hidden-dropout": to("dropout.hidden", share),
    # batch and length of the run
    "seq-length": to("batch.sequence_length", count),
    "encoder-seq-length": to("batch.sequence_length", count, "Another name for --seq-length."),
    "micro-batch-size": to("batch.micro_batch_size", count),
    "global-batch-size": to("batch.global_batch_size", count, "Absent: one micro batch per data-parallel replica."),
    "train-iters": to("steps", count),
    "train-samples": to("steps", count, "Sequences in all; the steps are this ÷ the global batch."),
    "exit-interval": to("steps", count, "The run ends at the first multiple of it; the schedule does not know."),
    "seed": to("seed", from_zero),
    # the mesh
    "tensor-model-parallel-size": to(_TENSOR, count),
    "pipeline-model-parallel-size": to(_PIPELINE, count),
    "context-parallel-size": to(_CONTEXT, count),
    "cp-comm-type": to("parallelism.context_strategy", strategy, "How keys and values travel; absent: p2p, a ring."),
    "num-layers-per-virtual-pipeline-stage": to("parallelism.virtual_pipeline", count, "Layers of a model chunk."),
    "num-virtual-stages-per-pipeline-rank": to("parallelism.virtual_pipeline", count),
    "sequence-parallel": to("parallelism.sequence_parallel", flag, "Without tensor parallelism Megatron turns it off."),
    "use-distributed-optimizer": to("parallelism.zero1", flag),
    "use-torch-fsdp2": to(_FSDP, flag, "Parameters sharded over all replicas."),
    "use-megatron-fsdp": to(_FSDP, flag, "Sharding as --data-parallel-sharding-strategy says."),
    "use-custom-fsdp": to(_FSDP, flag, "Old name of --use-megatron-fsdp."),
    "data-parallel-sharding-strategy": to(
        f"{_FSDP},parallelism.zero1", one_of("no_shard", "optim", "optim_grads", "optim_grads_params"),
        "What --use-megatron-fsdp shards: nothing, optimizer state, gradients too, parameters too.",
    ),
    "num-distributed-optimizer-instances": to(_DATA, count, "Replicas of the sharded state (hybrid sharding)."),
    # number formats
    "bf16": to("precision.compute_dtype", flag, "bfloat16 with float32 master weights; absent: float32."),
    "grad-reduce-in-bf16": to("precision.gradient_dtype,precision.reduce_dtype", flag),
    "accumulate-allreduce-grads-in-fp32": to("precision.gradient_dtype,precision.reduce_dtype", flag),
    "use-precision-aware-optimizer": to("precision.optimizer_dtype", flag, "Lets the formats of its state be chosen."),
    "main-grads-dtype": to("precision.gradient_dtype,precision.reduce_dtype", one_of("fp32", "bf16")),
    "exp-avg-dtype": to("precision.optimizer_dtype", _STATE),
    "exp-avg-sq-dtype": to("precision.optimizer_dtype", _STATE),
    "fp8-format": to("precision.quantization", one_of("e4m3", "hybrid"), "Matrix products in FP8."),
    "fp8-recipe": to(
        "precision.quantization", one_of(*RECIPES, otherwise="custom recipes are not supported here"),
        "Scales by earlier steps' values (delayed, its default) or by the tensor's own (tensorwise).",
    ),
    "fp8-hybrid": to("precision.quantization", flag, "Old name of --fp8-format hybrid."),
    "fp8-e4m3": to("precision.quantization", flag, "Old name of --fp8-format e4m3."),
    # the optimizer
    "optimizer": to("optimizer.algorithm", one_of("adam", "sgd", otherwise="muon is not supported here"),
                    "adam is AdamW: its weight decay is decoupled."),
    "lr": to("optimizer.learning_rate", positive),
    "min-lr": to("optimizer.final_learning_rate_fraction", not_negative, "Rate at the end of the schedule."),
    "lr-decay-style": to(
        "optimizer.schedule", one_of("cosine", "linear", "constant", "inverse-square-root", "WSD"),
    ),
    "lr-wsd-decay-style": to(
        "optimizer.schedule", one_of("linear", "cosine", otherwise="exponential and minus_sqrt are not supported here"),
        "How --lr-decay-style WSD ends.",
    ),
    "lr-decay-iters": to("optimizer.decay_steps", count, "Length of the schedule, warm-up included."),
    "lr-decay-samples": to("optimizer.decay_steps", count, "The same in sequences."),
    "lr-wsd-decay-iters": to("optimizer.hold_steps", count, "Length of the decay at the end of WSD."),
    "lr-wsd-decay-samples": to("optimizer.hold_steps", count, "The same in sequences."),
    "lr-warmup-fraction": to("optimizer.warmup_steps", share, "Share of the schedule that is warm-up."),
    "lr-warmup-iters": to("optimizer.warmup_steps", from_zero),
    "lr-warmup-samples": to("optimizer.warmup_steps", from_zero, "The same in sequences."),
    "weight-decay": to("optimizer.weight_decay", not_negative, "Never of biases and norms."),
    "adam-beta1": to("optimizer.beta1", share),
    "adam-beta2": to("optimizer.beta2", share),
    "adam-eps": to("optimizer.epsilon", positive),
    "sgd-momentum": to("optimizer.momentum", share),
    "no-check-for-nan-in-loss-and-grad": to("optimizer.on_non_finite", flag, "The run goes on; absent: it ends."),
    "clip-grad": to("optimizer.clip_norm", not_negative, "0: no clipping."),
    # data
    "mock-data": to("data.kind", flag, "Sequences made by Megatron itself."),
    "data-path": to("data.kind,data.paths,data.weights", several, "Of .bin and .idx files, with weights or without."),
    "train-data-path": to("data.kind,data.paths,data.weights", several),
    "valid-data-path": to("data.validation_paths", several),
    "test-data-path": to("data.test_paths", several),
    "split": to("data.split", text, "Shares of training, validation and test; absent: 969,30,1."),
    "data-cache-path": to("data.index_dir", text),
    "reset-position-ids": to("data.reset_positions", flag),
    "reset-attention-mask": to("data.reset_attention", flag),
    "eod-mask-loss": to("data.mask_document_ends", flag),
    # evaluation, log, checkpoints
    "eval-interval": to("evaluation.interval_steps", count),
    "eval-iters": to("evaluation.batches", whole, "0 or less: no evaluation."),
    "full-validation": to("evaluation.batches", flag, "All of the validation data, each time."),
    "log-interval": to("logging.interval_steps", count),
    "log-params-norm": to("logging.parameter_norm", flag),
    "tensorboard-dir": to("logging.tensorboard", text),
    "wandb-exp-name": to("name", text),
    "save": to("checkpoint.directory,checkpoint.enabled", text),
    "save-interval": to("checkpoint.interval_steps", count),
    "persistent-save-interval": to("checkpoint.interval_steps", count, "Another name for --save-interval."),
    "async-save": to("checkpoint.asynchronous", flag),
    "most-recent-k": to("checkpoint.keep", whole, "Checkpoints that are kept; absent, or -1: all."),
    "load": to("checkpoint.resume,checkpoint.resume_from", text, "Where --save writes: to go on from there."),
    "exit-on-missing-checkpoint": to("checkpoint.resume_required", flag, "Stops where --load finds nothing."),
    "pretrained-checkpoint": to("checkpoint.resume_from", text, "Weights to begin with where --load finds nothing."),
    "finetune": to("checkpoint.weights_only", flag, "Takes the weights alone from --load, and begins at step 0."),
    "no-load-optim": to("checkpoint.weights_only", flag),
    # speed and memory
    "recompute-activations": to("execution.remat", flag, "Another name for --recompute-granularity selective."),
    "recompute-granularity": to("execution.remat", one_of("full", "selective")),
    "recompute-modules": to("execution.remat_modules", several),
    "recompute-method": equivalent("which layers are computed again changes memory and speed only",
                                   one_of("uniform", "block")),
    "recompute-num-layers": equivalent("which layers are computed again changes memory and speed only", count),
    "attention-backend": to("execution.attention", one_of("flash", "fused", "unfused", "local", "auto")),
    "use-flash-attn": to("execution.attention", flag, "Old name of --attention-backend flash."),
    "profile": to("execution.profile_from_step", flag),
    "profile-step-start": to("execution.profile_from_step", from_zero),
    "profile-step-end": to("execution.profile_steps", count, "The step behind the last one of the profile."),
}  # fmt: skip

# Megatron's defaults, where they decide something; what is absent here is off, or derived.
DEFAULTS: Mapping[str, Any] = {
    "num-query-groups": 1, "position-embedding-type": "learned_absolute", "rotary-base": 10_000, "rotary-percent": 1.0,
    "rope-scaling-factor": 8.0, "normalization": "LayerNorm", "norm-epsilon": 1e-5,
    "make-vocab-size-divisible-by": 128, "init-method-std": 0.02, "attention-dropout": 0.1, "hidden-dropout": 0.1,
    "seed": 1234, "tensor-model-parallel-size": 1, "pipeline-model-parallel-size": 1, "context-parallel-size": 1,
    "data-parallel-sharding-strategy": "no_shard", "num-distributed-optimizer-instances": 1, "main-grads-dtype": "fp32",
    "exp-avg-dtype": "fp32", "exp-avg-sq-dtype": "fp32", "optimizer": "adam", "min-lr": 0.0,
    "lr-decay-style": "linear", "lr-warmup-iters": 0, "lr-warmup-samples": 0, "weight-decay": 0.01, "adam-beta1": 0.9,
    "adam-beta2": 0.999, "adam-eps": 1e-8, "fp8-recipe": "delayed", "sgd-momentum": 0.9, "clip-grad": 1.0,
    "eval-interval": 1000, "eval-iters": 100, "log-interval": 100, "attention-backend": "auto",
    "profile-step-start": 10, "profile-step-end": 12,
}  # fmt: skip

_WHERE = "how the processes find each other changes nothing of the result"

# torchrun's own options, before the program; it takes - for _ as well.
LAUNCHER: Mapping[str, Key] = {
    "nproc_per_node": to("topology.devices_per_node", text, "Processes of a node, one a device."),
    "nnodes": to("topology.num_nodes", text),
    "master_addr": to("distributed.coordinator_host", text),
    "master_port": to("distributed.coordinator_port", port),
    "node_rank": equivalent("it differs from node to node", text),
    **{
        name: equivalent(_WHERE, text)
        for name in (
            "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "local_addr", "start_method", "role", "log_dir",
            "redirects", "tee", "monitor_interval", "max_restarts", "local_ranks_filter", "logs_specs", "numa_binding",
            "event_log_handler", "signals_to_handle",
        )
    },
    **{name: equivalent(_WHERE, flag) for name in ("standalone", "no_python", "run_path", "use_env", "module")},
}  # fmt: skip
