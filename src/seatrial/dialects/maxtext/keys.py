"""Every key of MaxText 0.2.5: how it is read and written, where its value goes in a RunSpec, or why it goes nowhere.

Names, defaults and meanings are those of its `configs/base.yml` and `configs/types.py`. Here are the keys that make a
run, in the order in which a run is written; the others are in `without_effect`.
"""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any

from seatrial.dialects.maxtext import values, without_effect, writing
from seatrial.dialects.maxtext.values import choice, or_minus_one, or_none, or_zero, same, switch
from seatrial.dialects.maxtext.writing import of_data, of_mapped, of_unnamed, of_wsd, one
from seatrial.dialects.spec_fields import device
from seatrial.dialects.table import coerce
from seatrial.dialects.table.coerce import Reader
from seatrial.dialects.table.keys import OMIT, PATH, Key, as_is, equivalent, ignored, to
from seatrial.spec import AXES, INPUT, METRICS, RopeScaling

_PATH = or_none(coerce.text)
_DTYPE = choice(same(("bfloat16", "float32")), refused=("float16", "float8_e4m3fn", "float8_e5m2"),
                because="only bfloat16 and float32 are supported here")  # fmt: skip
_ALL_DROPOUT = "dropout.hidden, dropout.attention, dropout.ffn"
_ONE_PATH = "one path or glob"
_PREFERENCES = ("dpo", "orpo")
_OF_ACTIVATION = {ours: words for words, ours in values.ACTIVATIONS.items()}
_OF_ATTENTION = {ours: word for word, ours in values.ATTENTION.items()}


def _optional(path: str, read: Reader, none: Any, meaning: str = "", *, default: Any = None) -> Key:
    """A key whose value is the one at a path of the spec, and `none` where that is None."""
    get = attrgetter(path)
    return as_is(path, read, meaning, default=default, write=lambda spec: none if get(spec) is None else get(spec))


def _dimension(field: str, read: Reader, default: Any) -> Key:
    return to(f"model.{field}", read, default=default, write=of_unnamed(attrgetter(field)))


_DIMENSIONS: dict[str, Key] = {
    "base_emb_dim": _dimension("hidden_dim", coerce.count, 2048),
    "base_num_query_heads": _dimension("num_heads", coerce.count, 16),
    "base_num_kv_heads": _dimension("num_kv_heads", coerce.count, 16),
    "base_mlp_dim": _dimension("ffn_dim", coerce.count, 7168),
    "base_num_decoder_layers": _dimension("num_layers", coerce.count, 16),
    "head_dim": _dimension("head_dim", coerce.count, 128),
    "vocab_size": _dimension("vocab_size", coerce.count, 32_000),
    "normalization_layer_epsilon": _dimension("norm_epsilon", coerce.positive, 1e-5),
    "mlp_activations": to("model.activation", values.activations, default="swiglu",
                          write=of_unnamed(lambda model: _OF_ACTIVATION[model.activation])),
    "logits_via_embedding": _dimension("tied_embeddings", switch, False),
    "rope_max_timescale": _dimension("rope_theta", coerce.positive, 10_000.0),
}  # fmt: skip
# Which field of the model a key of the architecture is.
ARCHITECTURE = {name: key.to.removeprefix("model.") for name, key in _DIMENSIONS.items()}

_NAME_AND_MODEL: dict[str, Key] = {
    "run_name": to("name", _PATH, "the name of the run; a run with the same name resumes from its checkpoints",
                   default=None, write=PATH),
    "hardware": equivalent("the devices that are found decide", choice(same(("tpu", "gpu", "gpu_multiprocess", "cpu"))),
                           "the platform; gpu: one process per node, gpu_multiprocess: one per device",
                           write=lambda spec: "gpu"),
    "model_name": to("model.name", coerce.text, "a model that MaxText knows; its file sets the architecture",
                     default="default", write=lambda spec: spec.model.name if writing.is_named(spec.model) else None),
    **_DIMENSIONS,
    "rope_type": to(
        "model.rope_scaling",
        choice(same(("default", "llama3.1")), refused=("yarn",), because="YaRN is not supported here"),
        "default, or llama3.1: its frequency-dependent scaling by 8, which models named llama3.1… always have",
        default="default", write=of_unnamed(lambda model: "llama3.1" if model.rope_scaling == RopeScaling() else None),
    ),
    "attention_type": to(
        "model.sliding_window",
        choice(same(("global", "local_sliding")), refused=("chunk", "mla", "full", "compressed", "block_diffusion"),
               because="only global and local_sliding are supported here"),
        "global: causal, over the whole sequence; local_sliding: over the last sliding_window_size tokens",
        default="global", write=of_unnamed(lambda model: "local_sliding" if model.sliding_window else None),
    ),
    "sliding_window_size": to("model.sliding_window", or_none(coerce.natural), "window of local_sliding", default=0,
                              write=of_unnamed(attrgetter("sliding_window"))),
    "normalize_embedding_logits": ignored(
        "logits of tied embeddings are not divided by √base_emb_dim here", switch, quiet=(True, False),
        write=of_unnamed(lambda model: False if model.tied_embeddings else None),
    ),
    "global_parameter_scale": to(
        "model.hidden_dim, model.num_heads, model.num_kv_heads, model.ffn_dim, model.num_layers", coerce.count,
        "a power of 2 by which the base_ dimensions scale the model up", default=1,
    ),
    "override_model_config": equivalent("it lets other keys change the named model", switch, quiet=(False,),
                                        write=writing.overrides_dropout),
    "enable_dropout": to(_ALL_DROPOUT, switch, "false: dropout_rate has no effect", default=True,
                         write=writing.overrides_dropout),
    "dropout_rate": to(_ALL_DROPOUT, coerce.share, default=0.0, write=writing.dropout_rate),
}  # fmt: skip

_BATCH: dict[str, Key] = {
    "steps": to("steps", or_minus_one(coerce.count), "optimizer steps; -1: learning_rate_schedule_steps",
                default=150_001, write=PATH),
    "per_device_batch_size": to(
        "batch.micro_batch_size, batch.global_batch_size", coerce.positive,
        "sequences per device and forward pass; may be less than 1 where an axis other than data and fsdp is used",
        default=12.0, write=writing.per_device_batch_size,
    ),
    "gradient_accumulation_steps": to(
        "batch.global_batch_size", coerce.count, "forward and backward passes per optimizer step", default=1,
        write=attrgetter("accumulation_steps"),
    ),
    "max_target_length": as_is("batch.sequence_length", coerce.count, default=2048),
}  # fmt: skip

# The mesh; `tensor_sequence` is `tensor` with sequence parallelism.
PARTS = {"dcn": "across_nodes", "ici": "within_node"}
_WHERE = {"dcn": "over the nodes (slices)", "ici": "within a node (a slice)"}
_THE_REST = (("dcn", "data"), ("ici", "fsdp"))  # -1 by default


def _axis(part: str, axis: str) -> Key:
    path, default = f"parallelism.{PARTS[part]}.{axis}", -1 if (part, axis) in _THE_REST else 1
    meaning = f"devices along {axis}, {_WHERE[part]}; -1: all remaining devices"
    if axis == "tensor_sequence":
        path = f"parallelism.{PARTS[part]}.tensor, parallelism.sequence_parallel"
        meaning = f"tensor parallelism {_WHERE[part]} with activations between blocks split along the sequence"
    write, is_alone = writing.axis_size(part, axis), not axis.startswith("tensor")
    return to(path, coerce.axis_size, meaning, default=default, write=write, as_is=is_alone)


_MESH: dict[str, Key] = {
    **{f"{part}_{axis}_parallelism": _axis(part, axis) for part in PARTS for axis in (*AXES, "tensor_sequence")},
    "num_pipeline_repeats": to(
        "parallelism.virtual_pipeline", or_minus_one(coerce.count),
        "passes of a batch through the pipeline; -1: as many as the layers need", default=None,
        write=lambda spec: writing.pipeline(spec)[0],
    ),
    "num_layers_per_pipeline_stage": to("parallelism.virtual_pipeline", coerce.count, default=1,
                                        write=lambda spec: writing.pipeline(spec)[1]),
    "shard_optimizer_over_data": as_is("parallelism.zero1", switch, default=False),
    "context_parallel_strategy": as_is(
        "parallelism.context_strategy", choice(values.CONTEXT), "how attention is distributed; the result is the same",
        default="all_gather", write=writing.context_strategy,
    ),
    "compile_topology": to("topology.device, topology.devices_per_node", _PATH, "the topology to compile for: v5e-256",
                           default=None),
    "compile_topology_num_slices": to("topology.num_nodes", or_minus_one(coerce.count), default=None),
    "num_slices": to("topology.num_nodes", or_minus_one(coerce.count), "-1: MaxText detects it"),
}  # fmt: skip

_ABORTS = to("optimizer.on_non_finite", switch, "false: the run continues", default=True,
             write=lambda spec: False if spec.optimizer.on_non_finite == "continue" else None)  # fmt: skip
_OPTIMIZER: dict[str, Key] = {
    "dtype": as_is("precision.compute_dtype", _DTYPE, default="bfloat16"),
    "weight_dtype": as_is("precision.params_dtype", _DTYPE, default="float32"),
    "grad_dtype": as_is("precision.gradient_dtype", _DTYPE, default="float32"),
    "mu_dtype": to("precision.optimizer_dtype", or_none(_DTYPE), "format of Adam's first moment; empty: weight_dtype",
                   default=None, write=lambda spec: None if spec.precision.optimizer_dtype == "float16"
                   else spec.precision.optimizer_dtype),
    "quantization": as_is(
        "precision.quantization",
        or_none(choice(same(values.QUANTIZATION) | {"": None, "te_no_quant": None}, refused=("serve_fp8_weight",),
                       because="it concerns inference only")),
        default=None, write=writing.quantization,
    ),
    "opt_type": as_is(
        "optimizer.algorithm",
        choice(values.ALGORITHMS, refused=("muon",), because="Muon is not supported here; use adamw"), default="adamw",
        otherwise="adamw",
    ),
    "learning_rate": as_is("optimizer.learning_rate", coerce.positive, default=3e-5),
    "learning_rate_final_fraction": as_is("optimizer.final_learning_rate_fraction", coerce.share, default=0.1),
    "learning_rate_schedule_steps": _optional("optimizer.decay_steps", or_minus_one(coerce.count), -1,
                                              "length of the schedule, warm-up included; -1: steps"),
    "warmup_steps_fraction": to("optimizer.warmup_steps", coerce.share, "warm-up, as a fraction of the schedule",
                                default=0.1, write=lambda spec: writing.phases(spec)[0]),
    "lr_schedule_type": to("optimizer.schedule, optimizer.hold_steps", choice(same(("cosine", "wsd"))),
                           "cosine decay, or wsd: warm-up, a stable phase, and a decay at the end", default="cosine",
                           write=of_wsd(lambda spec: "wsd")),
    "wsd_decay_style": to("optimizer.schedule", choice(same(("linear", "cosine"))), "decay of wsd", default="linear",
                          write=of_wsd(writing.decay_style)),
    "wsd_decay_steps_fraction": to("optimizer.hold_steps", coerce.share, "decay, as a fraction of the schedule",
                                   default=0.1, write=lambda spec: writing.phases(spec)[1]),
    "adam_b1": as_is("optimizer.beta1", coerce.share, default=0.9),
    "adam_b2": as_is("optimizer.beta2", coerce.share, default=0.95),
    "adam_eps": as_is("optimizer.epsilon", coerce.positive, default=1e-8),
    "adam_weight_decay": as_is("optimizer.weight_decay", coerce.not_negative, default=0.1),
    "adamw_mask": to("optimizer.decay_norms", values.texts,
                     "patterns of parameters without weight decay; none: all are decayed", default=(),
                     write=lambda spec: None if spec.optimizer.decay_norms else [".*norm.*", ".*bias.*"]),
    "gradient_clipping_threshold": _optional("optimizer.clip_norm", or_zero(coerce.not_negative), 0.0,
                                             "gradients are clipped to this global norm; 0: not at all", default=1.0),
    "abort_on_nan_loss": _ABORTS,
    "abort_on_inf_loss": _ABORTS,
    "init_weights_seed": as_is("seed", coerce.natural, default=0),
    "data_shuffle_seed": ignored("there is one seed for everything here: init_weights_seed", coerce.natural,
                                 write=attrgetter("seed")),
}  # fmt: skip

_OBJECTIVE_AND_DATA: dict[str, Key] = {
    "use_sft": to("objective.kind", switch, "supervised fine-tuning", default=False, write=writing.is_sft),
    "sft_train_on_completion_only": ignored("fine-tuning trains on answers only here", switch, quiet=(True, False),
                                            write=writing.is_sft),
    "use_dpo": to("objective.kind", switch, "preference optimisation, by dpo.algo", default=False,
                  write=lambda spec: spec.objective.kind in _PREFERENCES or None),
    "dpo.algo": to("objective.kind", choice(same(_PREFERENCES)), default="dpo",
                   write=lambda spec: spec.objective.kind if spec.objective.kind in _PREFERENCES else None),
    "dpo.dpo_beta": to("objective.beta", coerce.positive, default=0.1,
                       write=lambda spec: None if writing.needs_no_beta(spec) else spec.objective.beta),
    "dpo.orpo_lambda": to("objective.beta", coerce.positive, default=0.1,
                          write=lambda spec: spec.objective.beta if spec.objective.kind == "orpo" else None),
    "dpo.max_prompt_length": as_is("objective.max_prompt_length", or_none(coerce.count), default=None),
    "dataset_type": to(
        "data.kind",
        choice(values.DATASETS, refused=("olmo_grain",), because="OLMo's numpy files cannot be read here"),
        default="synthetic", write=writing.data_set_type,
    ),
    "grain_file_type": to(
        "data.kind", choice(same(("arrayrecord", "tfrecord", "parquet", "mmap")), refused=("mmap_npy",),
                            because="only mmap, Megatron's .bin and .idx, is supported of the two"),
        "format of grain's files; mmap: Megatron's .bin and .idx", default="arrayrecord",
        write=of_mapped(lambda data: "mmap"),
    ),
    "eod_mask_loss": to("data.mask_document_ends", switch, "Megatron's files: no loss on the end-of-document token",
                        write=of_mapped(attrgetter("mask_document_ends"))),
    "tokenizer_path": to("data.tokenizer", _PATH, write=of_data(attrgetter("tokenizer"))),
    "packing": to("data.packing", switch, "several examples in one sequence", default=True,
                  write=lambda spec: spec.data.packing and writing.data_set_type(spec) != "synthetic"),
    "add_bos": to("data.add_bos", switch, "documents begin with the begin-of-text token", default=True,
                  write=of_data(attrgetter("add_bos"))),
    "num_epoch": to("epochs", coerce.count, "maximum passes over real data", default=1,
                    write=lambda spec: None if writing.data_set_type(spec) == "synthetic" else spec.epochs),
    "grain_train_files": to("data.paths, data.weights", _PATH, "one path or glob, or path,weight;path,weight",
                            write=of_data(writing.mixture, "grain")),
    "grain_eval_files": to("data.validation_paths", _PATH, _ONE_PATH, write=of_data(one("validation_paths"), "grain")),
    "hf_path": to("data.dataset", _PATH, "name or folder of a Hugging Face data set",
                  write=of_data(attrgetter("dataset"), "hf")),
    "hf_train_files": to("data.paths", _PATH, _ONE_PATH, write=of_data(one("paths"), "hf")),
    "hf_eval_files": to("data.validation_paths", _PATH, _ONE_PATH, write=of_data(one("validation_paths"), "hf")),
    "dataset_name": to("data.dataset", _PATH, "name of a data set of tfds", default="c4/en:3.1.0",
                       write=of_data(attrgetter("dataset"), "tfds", "c4_mlperf")),
    "dataset_path": to("data.paths", _PATH, "folder or bucket in which tfds finds its data sets",
                       write=of_data(one("paths"), "tfds", "c4_mlperf")),
}  # fmt: skip

_EXECUTION_AND_FILES: dict[str, Key] = {
    "remat_policy": as_is(
        "execution.remat", choice(values.REMAT, empty="none"), "which activations are kept for the backward pass",
        default="full", otherwise="full",
    ),
    **{
        name: to(
            "execution.remat_kept, execution.remat_offloaded", choice(same(values.PLACES)),
            f"where remat_policy=custom keeps {', '.join(tensors)}",
            default="device" if tensors == (INPUT,) else "remat", write=writing.place_of(name),
        )
        for name, tensors in values.ALL_TENSORS.items()
    },
    "scan_layers": as_is("execution.scan_layers", switch, default=True),
    "attention": as_is(
        "execution.attention",
        choice(values.ATTENTION, refused=values.SERVING_ATTENTION, because="it concerns inference only"),
        default="auto", write=lambda spec: _OF_ATTENTION.get(spec.execution.attention, "autoselected"),
    ),
    "jax_cache_dir": _optional("execution.compile_cache", _PATH, "", default="~/jax_cache"),
    "profiler": to("execution.profile_from_step", or_none(choice({"xplane": "xplane", "nsys": "xplane"})), default=None,
                   write=lambda spec: None if spec.execution.profile_from_step is None else "xplane"),
    "skip_first_n_steps_for_profiler": to("execution.profile_from_step", coerce.natural, default=1, write=PATH),
    "profiler_steps": as_is("execution.profile_steps", coerce.count, default=5),
    "enable_checkpointing": to("checkpoint.enabled, checkpoint.resume", switch, default=True,
                               write=attrgetter("checkpoint.enabled")),
    "async_checkpointing": as_is("checkpoint.asynchronous", switch, default=True),
    "checkpoint_period": to("checkpoint.interval_steps", coerce.count, default=10_000, write=writing.checkpoint_period),
    "max_num_checkpoints_to_keep": as_is("checkpoint.keep", or_none(coerce.count), default=None),
    "load_parameters_path": to(
        "checkpoint.resume_from, checkpoint.weights_only", _PATH, "weights to start from", default=None,
        write=lambda spec: spec.checkpoint.resume_from if spec.checkpoint.weights_only else None,
    ),
    "load_full_state_path": to("checkpoint.resume_from", _PATH, "a checkpoint to resume from, optimizer included",
                               default=None, write=lambda spec: spec.checkpoint.resume_from  # it loads where it saves
                               if spec.checkpoint.enabled and not spec.checkpoint.weights_only else None),
    "eval_interval": as_is("evaluation.interval_steps", or_minus_one(coerce.count), default=None,
                           write=writing.if_evaluated("interval_steps")),
    "eval_steps": as_is("evaluation.batches", or_minus_one(coerce.count), default=None,
                        write=writing.if_evaluated("batches")),
    "target_eval_loss": _optional("evaluation.target_loss", or_zero(coerce.not_negative), 0.0,
                                  "0: the run ends with its steps", default=OMIT),
    "enable_tensorboard": as_is("logging.tensorboard", switch, default=True),
    "base_output_directory": as_is("log_dir", _PATH, "where logs and checkpoints go, in a folder named run_name",
                                   default=None),
    "jax_distributed_initialization_timeout": as_is("distributed.initialization_timeout_seconds", coerce.count,
                                                    default=300),
}  # fmt: skip

# Not MaxText's: the machines that it would detect, and the run's targets. Given on Seatrial's own command line.
OURS: dict[str, Key] = {
    "topology.num_nodes": to("topology.num_nodes", coerce.count, "Seatrial's own: how many nodes there are"),
    "topology.devices_per_node": to("topology.devices_per_node", coerce.count,
                                    "Seatrial's own: how many devices each node has"),
    "topology.device": to("topology.device", device, "Seatrial's own: which accelerator"),
    **{
        f"expectations.{metric}": to(f"expectations.{metric}", coerce.positive,
                                     f"Seatrial's own: a target for this metric, in {kind.unit}")
        for metric, kind in METRICS.items()
    },
}  # fmt: skip

KEYS: dict[str, Key] = {
    **_NAME_AND_MODEL, **_BATCH, **_MESH, **_OPTIMIZER, **_OBJECTIVE_AND_DATA, **_EXECUTION_AND_FILES,
    **without_effect.KEYS, **OURS,
}  # fmt: skip

# Keys several words of which are one value here: MaxText gets the one that was given.
OWN_WORDS = ("opt_type", "remat_policy", "profiler")

# Defaults that are other words in MaxText than here.
KEYS |= {
    name: replace(KEYS[name], shown=text)
    for name, text in {"attention": "autoselected", "mlp_activations": '["silu","linear"]'}.items()
}

# What MaxText assumes where a key is not given.
DEFAULTS: dict[str, Any] = {name: key.default for name, key in KEYS.items() if key.default is not OMIT}
