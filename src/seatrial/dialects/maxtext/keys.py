"""Every key of MaxText 0.2.5, and those that it had before: where its value goes in a RunSpec, or why it goes nowhere.

Names, defaults and meanings are those of its `configs/base.yml` and `configs/types.py`. Here stand the keys that
make a run; those that do not stand in `without_effect`.
"""

from __future__ import annotations

from typing import Any

from seatrial.dialects.maxtext import values, without_effect
from seatrial.dialects.maxtext.values import choice, no_less_than, or_minus_one, or_none, or_zero, same, switch
from seatrial.dialects.table import coerce
from seatrial.dialects.table.keys import Key, to
from seatrial.spec import METRICS

_PATH = or_none(coerce.text)
_DTYPE = choice(
    same(("bfloat16", "float32")), refused=("float16", "float8_e4m3fn", "float8_e5m2"),
    because="only bfloat16 and float32 are supported here",
)  # fmt: skip

# What holds where a key is absent; a list in a note of an origin says the rest.
DEFAULTS: dict[str, Any] = {
    "run_name": None, "model_name": "default", "steps": 150_001, "hardware": "tpu",
    "per_device_batch_size": 12.0, "max_target_length": 2048, "gradient_accumulation_steps": 1,
    "dtype": "bfloat16", "weight_dtype": "float32", "grad_dtype": "float32", "mu_dtype": None, "quantization": None,
    "opt_type": "adamw", "learning_rate": 3e-5, "lr_schedule_type": "cosine", "learning_rate_final_fraction": 0.1,
    "warmup_steps_fraction": 0.1, "wsd_decay_steps_fraction": 0.1, "wsd_decay_style": "linear",
    "learning_rate_schedule_steps": None, "adam_b1": 0.9, "adam_b2": 0.95, "adam_eps": 1e-8, "adam_weight_decay": 0.1,
    "adamw_mask": (), "gradient_clipping_threshold": 1.0, "remat_policy": "full", "scan_layers": True,
    "attention": "auto", "dataset_type": "synthetic", "packing": True, "num_epoch": 1, "enable_checkpointing": True,
    "async_checkpointing": True, "checkpoint_period": 10_000, "max_num_checkpoints_to_keep": None,
    "load_full_state_path": None, "load_parameters_path": None, "enable_dropout": True, "dropout_rate": 0.0,
    "profiler": None, "skip_first_n_steps_for_profiler": 1, "profiler_steps": 5, "jax_cache_dir": "~/jax_cache",
    "enable_tensorboard": True, "eval_interval": None, "eval_steps": None, "init_weights_seed": 0,
    "jax_distributed_initialization_timeout": 300, "use_sft": False, "use_dpo": False, "dpo.algo": "dpo",
    "dpo.dpo_beta": 0.1, "dpo.orpo_lambda": 0.1, "dpo.max_prompt_length": None, "shard_optimizer_over_data": False,
    "num_pipeline_repeats": None, "num_layers_per_pipeline_stage": 1, "global_parameter_scale": 1,
    "base_emb_dim": 2048, "base_num_query_heads": 16, "base_num_kv_heads": 16, "base_mlp_dim": 7168,
    "base_num_decoder_layers": 16, "head_dim": 128, "vocab_size": 32_000, "normalization_layer_epsilon": 1e-5,
    "mlp_activations": "swiglu", "logits_via_embedding": False, "rope_max_timescale": 10_000.0, "rope_type": "default",
    "override_model_config": False, "grain_file_type": "arrayrecord", "dataset_name": "c4/en:3.1.0",
    "attention_type": "global", "sliding_window_size": 0, "context_parallel_strategy": "all_gather",
    "abort_on_nan_loss": True, "abort_on_inf_loss": True, "base_output_directory": None,
    "compile_topology": None, "compile_topology_num_slices": None,
}  # fmt: skip

# The mesh: MaxText's axes that are ours; `tensor_sequence` is `tensor` with sequence parallelism.
AXES = {
    "data": "data", "fsdp": "fsdp", "pipeline": "pipeline", "context": "context", "tensor": "tensor",
    "tensor_sequence": "tensor",
}  # fmt: skip
PARTS = {"ici": "within_node", "dcn": "across_nodes"}
DEFAULTS |= {f"{part}_{axis}_parallelism": 1 for part in PARTS for axis in AXES}
DEFAULTS |= {"ici_fsdp_parallelism": -1, "dcn_data_parallelism": -1}


def _axes() -> dict[str, Key]:
    where = {"ici": "within a node (a slice)", "dcn": "over the nodes (slices)"}
    keys = {
        f"{part}_{axis}_parallelism": to(
            f"parallelism.{PARTS[part]}.{ours}", coerce.axis_size,
            f"devices along {axis}, {where[part]}; -1 is what the others leave",
        )
        for part in PARTS for axis, ours in AXES.items() if axis != "tensor_sequence"
    }  # fmt: skip
    return keys | {
        f"{part}_tensor_sequence_parallelism": to(
            f"parallelism.{PARTS[part]}.tensor, parallelism.sequence_parallel", coerce.axis_size,
            f"tensor parallelism {where[part]} with activations between blocks split along the sequence",
        )
        for part in PARTS
    }  # fmt: skip


# Which field of the model a key of the architecture is; `global_parameter_scale` multiplies the first five.
ARCHITECTURE = {
    "base_emb_dim": "hidden_dim", "base_num_query_heads": "num_heads", "base_num_kv_heads": "num_kv_heads",
    "base_mlp_dim": "ffn_dim", "base_num_decoder_layers": "num_layers", "head_dim": "head_dim",
    "vocab_size": "vocab_size", "normalization_layer_epsilon": "norm_epsilon", "mlp_activations": "activation",
    "logits_via_embedding": "tied_embeddings", "rope_max_timescale": "rope_theta",
}  # fmt: skip

_ARCHITECTURE: dict[str, Key] = {
    "base_emb_dim": to("model.hidden_dim", coerce.count),
    "base_num_query_heads": to("model.num_heads", coerce.count),
    "base_num_kv_heads": to("model.num_kv_heads", coerce.count),
    "base_mlp_dim": to("model.ffn_dim", coerce.count),
    "base_num_decoder_layers": to("model.num_layers", coerce.count),
    "head_dim": to("model.head_dim", coerce.count),
    "vocab_size": to("model.vocab_size", coerce.count),
    "normalization_layer_epsilon": to("model.norm_epsilon", coerce.positive),
    "mlp_activations": to("model.activation", values.activations),
    "logits_via_embedding": to("model.tied_embeddings", switch),
    "rope_max_timescale": to("model.rope_theta", coerce.positive),
    "rope_type": to(
        "model.rope_scaling",
        choice(same(("default", "llama3.1")), refused=("yarn",), because="YaRN is not supported here"),
        "default, or llama3.1: its frequency-dependent stretching by 8; models called llama3.1… have it anyway",
    ),
    "attention_type": to(
        "model.sliding_window",
        choice(
            same(("global", "local_sliding")), refused=values.OTHER_ATTENTION_TYPES,
            because="only global and local_sliding are supported here",
        ),
        "global: causal, over the whole sequence; local_sliding: over the last sliding_window_size tokens of it",
    ),
    "sliding_window_size": to("model.sliding_window", no_less_than(0, coerce.whole), "of local_sliding"),
    "global_parameter_scale": to(
        "model.hidden_dim, model.num_heads, model.num_kv_heads, model.ffn_dim, model.num_layers", coerce.count,
        "a power of 2 by which the model grows, over all of its base_ dimensions",
    ),
}  # fmt: skip

_TRAINING: dict[str, Key] = {
    "run_name": to("name", _PATH, "the name of the run; a run of the same name goes on from its checkpoints"),
    "model_name": to("model.name", coerce.text, "a model of MaxText's; its file decides the architecture"),
    "steps": to("steps", or_minus_one(coerce.count), "optimizer steps; -1: learning_rate_schedule_steps"),
    "num_epoch": to("epochs", coerce.count, "how often real data is gone through, at most"),
    "per_device_batch_size": to(
        "batch.micro_batch_size, batch.global_batch_size", coerce.positive,
        "sequences per device and forward pass; may be less than 1 where an axis other than data and fsdp is used",
    ),
    "gradient_accumulation_steps": to(
        "batch.global_batch_size", coerce.count, "forward and backward passes per optimizer step"
    ),
    "max_target_length": to("batch.sequence_length", coerce.count),
    "dtype": to("precision.compute_dtype", _DTYPE),
    "weight_dtype": to("precision.params_dtype", _DTYPE),
    "grad_dtype": to("precision.gradient_dtype", _DTYPE),
    "mu_dtype": to("precision.optimizer_dtype", or_none(_DTYPE), "format of Adam's first moment; empty: weight_dtype"),
    "quantization": to(
        "precision.quantization",
        or_none(choice(
            same(values.QUANTIZATION) | dict.fromkeys(values.NO_QUANTIZATION), refused=("serve_fp8_weight",),
            because="it concerns inference only",
        )),
    ),
    "opt_type": to(
        "optimizer.algorithm",
        choice(values.ALGORITHMS, refused=("muon",), because="Muon is not supported here; use adamw"),
    ),
    "learning_rate": to("optimizer.learning_rate", coerce.positive),
    "lr_schedule_type": to(
        "optimizer.schedule, optimizer.hold_steps", choice(same(("cosine", "wsd"))),
        "cosine decay, or wsd: warm-up, a stable phase, and a decay at the end",
    ),
    "wsd_decay_style": to("optimizer.schedule", choice(same(("linear", "cosine"))), "how wsd decays"),
    "wsd_decay_steps_fraction": to("optimizer.hold_steps", values.fraction, "share of the schedule, at its end"),
    "warmup_steps_fraction": to("optimizer.warmup_steps", values.fraction, "share of the schedule that warms up"),
    "learning_rate_final_fraction": to("optimizer.final_learning_rate_fraction", values.fraction),
    "learning_rate_schedule_steps": to(
        "optimizer.decay_steps", or_minus_one(coerce.count), "length of the schedule, warm-up included; -1: steps"
    ),
    "adam_b1": to("optimizer.beta1", values.fraction),
    "adam_b2": to("optimizer.beta2", values.fraction),
    "adam_eps": to("optimizer.epsilon", coerce.positive),
    "adam_weight_decay": to("optimizer.weight_decay", no_less_than(0)),
    "adamw_mask": to(
        "optimizer.decay_norms", values.texts, "patterns of parameters that are not decayed; none: all are, norms too"
    ),
    "gradient_clipping_threshold": to(
        "optimizer.clip_norm", no_less_than(0), "gradients are clipped to this global norm; 0: not at all"
    ),
    "abort_on_nan_loss": to("optimizer.on_non_finite", switch, "false: the run goes on"),
    "abort_on_inf_loss": to("optimizer.on_non_finite", switch, "false: the run goes on"),
    "init_weights_seed": to("seed", no_less_than(0, coerce.whole)),
    "enable_dropout": to("dropout.hidden, dropout.attention, dropout.ffn", switch, "false: dropout_rate has no effect"),
    "dropout_rate": to("dropout.hidden, dropout.attention, dropout.ffn", values.fraction),
    "shard_optimizer_over_data": to("parallelism.zero1", switch),
    "context_parallel_strategy": to(
        "parallelism.context_strategy", choice(values.CONTEXT), "how attention is split up, which does not change it"
    ),
    "num_pipeline_repeats": to(
        "parallelism.virtual_pipeline", or_minus_one(coerce.count),
        "how often a batch goes around the pipeline; -1: until all layers have been passed",
    ),
    "num_layers_per_pipeline_stage": to("parallelism.virtual_pipeline", coerce.count),
    "remat_policy": to(
        "execution.remat", choice(values.REMAT, empty="none"), "which activations are kept for the backward pass"
    ),
    "attention": to(
        "execution.attention",
        choice(values.ATTENTION, refused=values.SERVING_ATTENTION, because="it concerns inference only"),
    ),
    "scan_layers": to("execution.scan_layers", switch),
    "jax_cache_dir": to("execution.compile_cache", _PATH),
    "profiler": to("execution.profile_from_step", or_none(choice(same(("xplane", "nsys"))))),
    "skip_first_n_steps_for_profiler": to("execution.profile_from_step", no_less_than(0, coerce.whole)),
    "profiler_steps": to("execution.profile_steps", coerce.count),
    "use_sft": to("objective.kind", switch, "supervised fine-tuning"),
    "use_dpo": to("objective.kind", switch, "preference optimisation, by dpo.algo"),
    "dpo.algo": to("objective.kind", choice(same(("dpo", "orpo")))),
    "dpo.dpo_beta": to("objective.beta", coerce.positive),
    "dpo.orpo_lambda": to("objective.beta", coerce.positive),
    "dpo.max_prompt_length": to("objective.max_prompt_length", or_none(coerce.count)),
    "eval_interval": to("evaluation.interval_steps", or_minus_one(coerce.count)),
    "eval_steps": to("evaluation.batches", or_minus_one(coerce.count)),
    "target_eval_loss": to("evaluation.target_loss", or_zero(no_less_than(0)), "0: the run ends with its steps"),
    "enable_tensorboard": to("logging.tensorboard", switch),
    "base_output_directory": to("log_dir", _PATH, "where logs and checkpoints go, in a folder run_name"),
    "jax_distributed_initialization_timeout": to("distributed.initialization_timeout_seconds", coerce.count),
}  # fmt: skip

_STORED: dict[str, Key] = {
    "enable_checkpointing": to("checkpoint.enabled, checkpoint.resume", switch),
    "async_checkpointing": to("checkpoint.asynchronous", switch),
    "checkpoint_period": to("checkpoint.interval_steps", coerce.count),
    "max_num_checkpoints_to_keep": to("checkpoint.keep", or_none(coerce.count)),
    "load_full_state_path": to("checkpoint.resume_from", _PATH, "a checkpoint to go on from, optimizer included"),
    "load_parameters_path": to("checkpoint.resume_from, checkpoint.weights_only", _PATH, "weights to begin with"),
    "dataset_type": to(
        "data.kind",
        choice(values.DATASETS, refused=("olmo_grain",), because="OLMo's numpy files cannot be read here"),
    ),
    "grain_file_type": to(
        "data.kind", choice(same(("arrayrecord", "tfrecord", "parquet", "mmap")), refused=("mmap_npy",),
                            because="only mmap, Megatron's .bin and .idx, is supported of the two"),
        "format of grain's files; mmap: Megatron's .bin and .idx",
    ),
    "hf_path": to("data.dataset", _PATH, "name or folder of a Hugging Face data set"),
    "hf_train_files": to("data.paths", _PATH, "one path or glob"),
    "hf_eval_files": to("data.validation_paths", _PATH, "one path or glob"),
    "grain_train_files": to("data.paths, data.weights", _PATH, "one path or glob, or path,weight;path,weight"),
    "grain_eval_files": to("data.validation_paths", _PATH, "one path or glob"),
    "dataset_name": to("data.dataset", _PATH, "name of a data set of tfds"),
    "dataset_path": to("data.paths", _PATH, "folder or bucket in which tfds finds its data sets"),
    "tokenizer_path": to("data.tokenizer", _PATH),
    "packing": to("data.packing", switch, "several examples in one sequence"),
    "eod_mask_loss": to("data.mask_document_ends", switch, "Megatron's files: no loss on the end-of-document token"),
}  # fmt: skip

_MACHINES: dict[str, Key] = {
    "compile_topology": to(
        "topology.device, topology.devices_per_node", or_none(coerce.text), "what is compiled for: v5e-256"
    ),
    "compile_topology_num_slices": to("topology.num_nodes", or_minus_one(coerce.count)),
    "num_slices": to("topology.num_nodes", or_minus_one(coerce.count), "MaxText finds it itself; -1"),
}

# Not MaxText's: what it takes from the machine, and what it is held to. Given on Seatrial's own command line.
OURS: dict[str, Key] = {
    "topology.num_nodes": to("topology.num_nodes", coerce.count, "Seatrial's own: how many nodes there are"),
    "topology.devices_per_node": to(
        "topology.devices_per_node", coerce.count, "Seatrial's own: how many devices each node has"
    ),
    "topology.device": to("topology.device", values.device, "Seatrial's own: which accelerator"),
    **{
        f"expectations.{metric}": to(
            f"expectations.{metric}", coerce.positive, f"Seatrial's own: a bar for this metric, in {kind.unit}"
        )
        for metric, kind in METRICS.items()
    },
}

KEYS: dict[str, Key] = {
    **_axes(), **_ARCHITECTURE, **_TRAINING, **_STORED, **_MACHINES, **without_effect.KEYS, **OURS,
}  # fmt: skip
