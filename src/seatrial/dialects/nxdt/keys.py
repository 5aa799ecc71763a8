"""Every key of an NxDT file: what it may hold, where its value goes in a RunSpec, and how it is written from one.

Rows that several keys decide together are read in `build` and `optimizer`; what a file needs beyond its rows is written
in `write`. A row that is not written repeats another one, or says what is so anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from seatrial.dialects.nxdt import readers
from seatrial.dialects.nxdt.optimizer import ALGORITHMS, OPTIM, OPTIMIZERS, REFUSED, SCHEDULES, schedule_name
from seatrial.dialects.nxdt.precision import MANUAL, REDUCE, SPELLINGS, SWITCHES, TYPES, formats, reduce_format
from seatrial.dialects.nxdt.readers import anything, boolean, optional
from seatrial.dialects.table import coerce
from seatrial.dialects.table.coerce import count, natural, not_negative, one_of, positive, share, text, whole
from seatrial.dialects.table.keys import OMIT, PATH, FromSpec, Key, as_is, equivalent, ignored, rejected, repeats, to
from seatrial.spec import RunSpec

ALIGNMENT, OLD_ALIGNMENT = "model_alignment_strategy", "data.alignment_strategy"
CHECKPOINTS = "exp_manager.checkpoint_callback_params"
STRATEGY = "distributed_strategy"
COMPILE_CACHE = "/var/tmp/neuron-compile-cache"  # Neuron's own
FUSIONS = "model.fusions"
MONITORS = {"val_loss": "validation_loss", "reduced_train_loss": "loss", "train_loss": "loss", "loss": "loss"}
_MONITOR = {metric: name for name, metric in reversed(MONITORS.items())}
_CLASSES = {module: name for name, module in reversed(readers.MODULES.items())}

_TEXT, _BOTH = optional(text), (True, False)
_HYPERPOD = "it is for HyperPod's launcher"
_RUNTIME, _COMPILER = "it configures Neuron's runtime", "it configures Neuron's compiler"
_LIGHTNING, _NEMO = "it concerns PyTorch Lightning itself", "it concerns NeMo itself"
_PRECISION, _LENGTH = "precision.type decides", "trainer.max_steps is the length of a run here"
_ENDS = "a run ends with max_steps or max_epochs, and with nothing else"
_FORMAT = "checkpoints have one format here, which any number of devices can read"
_CHECKPOINT_NAMES = "checkpoints are named by their step"
_TRACKERS = "the history of a run is in its run directory and is sent to no service"
_LOGS = "one process always writes the run's log and events, and the others write theirs where they fail"
_LIVENESS = "the agent on each node watches for stragglers and hangs"
_TIMES = "the time of every step is always logged"
_NO_ENGINE = "and no engine here starts NxDT itself"
_NO_EXPERTS = f"mixtures of experts are not supported, {_NO_ENGINE}"
_LOADER = "data is loaded in Seatrial's own way"
_LAYOUT, _TORCH = "it is how weights are stored, not what is computed", "it chooses torch's kernel"
_LAYERS = "all layers are treated alike"
_FIXED = "only the default is supported"


def _in(section: str, rows: Mapping[str, Key]) -> dict[str, Key]:
    """The rows of a section; several keys of one row have a blank between them."""
    return {f"{section}.{name}": key for names, key in rows.items() for name in names.split()}


def _always(value: Any) -> FromSpec:
    """A value without effect here that NxDT does not start without: it reads the key as an attribute."""
    return lambda spec: value


def _validates(spec: RunSpec) -> bool:
    """True if there is validation data, and an interval at which it is used."""
    has_interval = (spec.evaluation.interval_steps, spec.evaluation.interval_fraction) != (None, None)
    return has_interval and (bool(spec.data.validation_paths) or spec.data.kind == "megatron")


def _of_blends(spec: RunSpec) -> Any:
    """null, the same way, of what NxDT's module for .bin and .idx files reads beside them."""
    return None if spec.data.kind == "megatron" else OMIT


def _is(kind: str) -> FromSpec:
    return lambda spec: spec.objective.kind == kind


def _recomputes(spec: RunSpec) -> str | None:
    return {"none": None, "full": "full"}.get(spec.execution.remat, "selective")


def _axis(name: str) -> FromSpec:
    return lambda spec: spec.mesh[name]


def _format(name: str) -> FromSpec:
    return lambda spec: formats(spec.precision).get(name, OMIT)


_RUN: dict[str, Key] = {
    "name": as_is("name", readers.named, "The experiment's name.", required=True),
    "model_source": to("model,data.kind", one_of("hf", "megatron"),
                       "Whose model and data NxDT uses: hf (Hugging Face's) or megatron (Megatron's).",
                       required=True),
    "seed": as_is("seed", readers.seed, "Seed of the weights and of the order of the data.", default=1234),
    "compiler_flags": ignored(_COMPILER, _TEXT, "Of the Neuron compiler.", write=_always("--model-type transformer")),
    "compiler_cache_url": as_is("execution.compile_cache", readers.folder_here,
                                "Where compiled programs are kept; an s3:// URL is ignored.", default=None,
                                write=lambda spec: spec.execution.compile_cache or COMPILE_CACHE),
    "aync_exec_max_inflight_requests": ignored(
        _RUNTIME, whole, "Steps in flight. NxDT spells it like this; async_… is accepted too.", write=_always(5)
    ),
    "async_exec_max_inflight_requests": ignored(_RUNTIME, whole, "The other spelling of aync_…."),
    "bucket_size_collectives": ignored("XLA's own thresholds combine collectives", whole, "In MB.",
                                       write=_always(1024)),
    "neuron_rt_exec_timeout": ignored(_RUNTIME, whole, "In seconds.", write=_always(100)),
    "neuron_experimental_compress_rg": ignored(_COMPILER, boolean, "Whether replica groups are compressed.",
                                               write=_always(False)),
    **_in("run", {
        "name results_dir time_limit model_type": ignored(_HYPERPOD, _TEXT), "compile": ignored(_HYPERPOD, anything),
    }),
    "hydra": ignored("it is for Hydra", anything),
    "defaults": ignored("it is for Hydra", anything),
    "topology.device": to("topology.device", _TEXT, "Seatrial's own key, which NxDT does not read: the accelerator."),
}  # fmt: skip

_TRAINER = _in("trainer", {
    "devices": to("topology.devices_per_node", count,
                  "Devices of each node: a request for that many NeuronCores, met by any accelerator.", required=True,
                  write=lambda spec: spec.parallelism.within_node.resolve(spec.topology.devices_per_node).product),
    "lnc": ignored("it maps logical to physical NeuronCores", optional(one_of("1", "2")),
                   "1 or 2 to each device; 1 makes a topology.device of trainium2 a trainium2-lnc1."),
    "num_nodes": to("topology.num_nodes", count, "1 where it is not given.",
                    write=lambda spec: spec.parallelism.across_nodes.resolve(spec.topology.num_nodes).product),
    "max_epochs": as_is("epochs", optional(readers.count_or_all),
                        "-1: no limit, so that max_steps is the run's length.", default=None,
                        write=lambda spec: spec.epochs or -1),
    "max_steps": as_is("steps", readers.steps, "Optimizer steps, one global batch each; also the length of every "
                       "schedule. -1, or not given: as many as max_epochs has.", write=lambda spec: spec.steps or -1),
    "log_every_n_steps": as_is("logging.interval_steps", count, default=1),
    "val_check_interval": to(
        "evaluation.interval_steps,evaluation.interval_fraction", optional(readers.steps_or_share),
        "A whole number: steps. A number with a point: a share of an epoch; 1.0 where it is not given.",
        write=lambda spec: spec.evaluation.interval_steps or spec.evaluation.interval_fraction, only=_validates,
    ),
    "check_val_every_n_epoch": to(
        "evaluation.every_epochs", optional(count),
        "Validation in every so many epochs, in each of which val_check_interval counts from 0; 1 if not given. "
        "null: val_check_interval counts steps across epochs.", only=_validates,
        write=lambda spec: spec.evaluation.every_epochs or (1 if spec.evaluation.interval_steps is None else None),
    ),
    "num_sanity_val_steps": to("evaluation.initial_batches", readers.natural_or_all, "-1: all.", default=2,
                               only=_validates),
    "limit_val_batches": to(
        "evaluation.batches,evaluation.fraction", optional(readers.batches_or_share),
        "1 is one batch, 1.0 all of them; 0 and 0.0 turn validation off.",
        write=lambda spec: 0.0 if not _validates(spec) else spec.evaluation.fraction
        if spec.evaluation.batches is None else spec.evaluation.batches,
    ),
    "limit_test_batches": ignored("nothing is tested at the end of a run", optional(readers.batches_or_share),
                                  "Batches of test data.", quiet=(None, 0, 1, 0.0, 1.0)),
    "gradient_clip_val": as_is("optimizer.clip_norm", lambda value: optional(not_negative)(value) or None,
                               "Global norm to which gradients are clipped; null or 0: off.", default=None),
    "sequential_move_factor": ignored("it concerns how Neuron initializes weights", whole,
                                      "How many ranks initialize weights at a time."),
    "limit_train_batches": rejected(_LENGTH, readers.all_or_part, quiet=(None,)),
    "min_epochs": ignored(_ENDS, optional(natural), quiet=(None,)),
    "min_steps": ignored(_ENDS, optional(whole), quiet=(None, -1)),
    "max_time": rejected(f"{_LENGTH}; the launcher limits time", optional(anything), quiet=(None,)),
    "fast_dev_run": rejected(f"{_LENGTH}; use `seatrial run --rehearse` to try a configuration", anything,
                             quiet=(False, 0)),
    "overfit_batches": rejected("use data.dev_choose_samples for a part of the data", anything, quiet=(0, 0.0)),
    "enable_progress_bar inference_mode": ignored(_LIGHTNING, boolean, quiet=_BOTH),
    "profiler plugins": ignored(_LIGHTNING, anything, quiet=(None,)),
    "detect_anomaly barebones use_distributed_sampler": ignored(_LIGHTNING, boolean, quiet=(False,)),
    "benchmark": ignored("it concerns cuDNN in PyTorch", optional(boolean), quiet=(None, False)),
    "deterministic": ignored("XLA's flags decide", anything, quiet=(None, False)),
    "reload_dataloaders_every_n_epochs": ignored(_LIGHTNING, natural, quiet=(0,)),
    "precision": ignored(_PRECISION, anything, quiet=(None,)),
    "logger": ignored("exp_manager decides", anything, quiet=(None, False)),
    "enable_checkpointing": ignored("exp_manager decides", optional(boolean), quiet=(None, False)),
    "default_root_dir": ignored("exp_manager decides", _TEXT, quiet=(None,)),
    "accelerator": ignored("the devices that are found decide", anything, quiet=("tpu", "auto")),
    "strategy": ignored("distributed_strategy decides", anything, quiet=("auto",)),
    "accumulate_grad_batches": rejected("accumulation follows from data.global_batch_size and data.micro_batch_size",
                                        count, quiet=(1,)),
    "gradient_clip_algorithm": rejected("gradients are clipped by their global norm; NxDT accepts no value here either",
                                        optional(one_of("norm", "value")), quiet=(None,)),
    "enable_model_summary": rejected("there is none, as in NxDT", boolean, quiet=(False,)),
})  # fmt: skip

_CHECKPOINT = _in(CHECKPOINTS, {
    "monitor": to("checkpoint.keep_best", text, "Which checkpoints are kept, by: step, val_loss, reduced_train_loss.",
                  default="val_loss", write=lambda spec: _MONITOR.get(spec.checkpoint.keep_best or "", "step")),
    "mode": to("checkpoint.keep_best", one_of("min", "max"), "min: less of it is better; max: more.", default="min",
               write=lambda spec: "min" if spec.checkpoint.keep_best in _MONITOR else "max"),
    "save_top_k": to("checkpoint.keep", readers.natural_or_all, "-1: all. 0: only the last one of the run.", default=3,
                     write=lambda spec: -1 if spec.checkpoint.keep is None else spec.checkpoint.keep),
    "every_n_train_steps": to("checkpoint.interval_steps", optional(whole), write=PATH),
    "train_time_interval": to(
        "checkpoint.interval_minutes", optional(positive), "In seconds.",
        write=lambda spec: coerce.part_of(minutes, 60.0) if (minutes := spec.checkpoint.interval_minutes) else OMIT,
    ),
    "dirpath": as_is("checkpoint.directory", readers.path_or_none, default=None,
                     write=lambda spec: spec.checkpoint.directory or OMIT),
    "save_last": ignored("the last checkpoint of a run is always saved", boolean, "Whether it is kept.", quiet=_BOTH),
    "filename": ignored(_CHECKPOINT_NAMES, _TEXT, "The pattern of their names."),
    "model_parallel_size": repeats("the sizes in distributed_strategy decide", count,
                                   lambda spec: spec.mesh["tensor"] * spec.mesh["pipeline"]),
    "use_master_weights_in_ckpt": equivalent(
        "checkpoints always hold the weights that the optimizer updates", boolean,
        "Whether checkpoints hold master weights, without which resuming is not exact.",
    ),
    "every_n_epochs": rejected("checkpoints are saved by steps here", optional(whole), quiet=(None, 0)),
    "save_weights_only": rejected("a checkpoint without the optimizer's state cannot be resumed from", boolean,
                                  quiet=(False,)),
    "filepath prefix postfix": ignored(_CHECKPOINT_NAMES, anything, quiet=(None, False)),
    "save_on_train_epoch_end save_nemo_on_train_end auto_insert_metric_name verbose async_save "
    "save_last_n_optim_states save_best_model always_save_nemo enable_version_counter": ignored(
        _NEMO, anything, quiet=(None, False)
    ),
})  # fmt: skip

_EXPERIMENT = _in("exp_manager", {
    "log_local_rank_0_only": ignored(_LOGS, boolean, "One log a node; false where it is not given.", quiet=_BOTH),
    "log_global_rank_0_only": ignored(_LOGS, boolean, "One log in all.", quiet=_BOTH),
    "create_tensorboard_logger": as_is("logging.tensorboard", boolean, default=False),
    "explicit_log_dir": to("log_dir", _TEXT, "The folder of logs, as it is; null: as exp_dir says.", default=None,
                           write=PATH),
    "exp_dir": to("log_dir", _TEXT, "The folder above that of the logs, which is named exp_manager.name."),
    "name": to("log_dir", _TEXT, "The folder of logs in exp_dir.", default="default"),
    "resume_if_exists": as_is("checkpoint.resume", boolean, default=False),
    "resume_ignore_no_checkpoint": to(
        "checkpoint.resume_required", boolean,
        "Whether a run starts from scratch if resume_if_exists finds no checkpoint; if false, it stops.",
        default=False, write=lambda spec: not spec.checkpoint.resume_required,
    ),
    "resume_from_checkpoint": as_is("checkpoint.resume_from", readers.path_or_none,
                                    "Used where resume_if_exists finds no checkpoint of this run.", default=None),
    "resume_past_end": ignored(_NEMO, boolean, quiet=(False,)),
    "create_checkpoint_callback": as_is("checkpoint.enabled", boolean, default=True),
    "async_checkpointing": as_is("checkpoint.asynchronous", boolean, default=False),
    "log_parameter_norm": as_is("logging.parameter_norm", boolean, default=False),
    "log_gradient_norm": as_is("logging.gradient_norm", boolean, default=False),
    "enable_recovery_time_instrumentation": as_is(
        "logging.startup_times", boolean, "Whether the times of starting and restoring are reported.", default=False
    ),
    "save_xser load_xser": ignored(_FORMAT, boolean, "torch_xla's serialisation; false where it is not given."),
    "save_bf16": ignored(_FORMAT, boolean, quiet=(False,)),
    "ckpt_ptl_version": ignored(_FORMAT, text),
    "version": ignored("a run directory has a name of its own", _TEXT, quiet=(None,)),
    "use_datetime_version": ignored("a run directory has a name of its own", boolean, quiet=_BOTH),
    "create_early_stopping_callback": rejected("no run is ended early", boolean, quiet=(False,)),
    "early_stopping_callback_params": ignored("no run is ended early", anything, quiet=(None,)),
    "create_preemption_callback": ignored(_LIVENESS, boolean, quiet=_BOTH),
    "create_straggler_detection_callback create_fault_tolerance_callback": ignored(_LIVENESS, optional(boolean),
                                                                                   quiet=(None, False)),
    "straggler_detection_params fault_tolerance": ignored(_LIVENESS, anything, quiet=(None,)),
    "files_to_copy": ignored("a run directory holds what was run", anything, quiet=(None,)),
    "log_step_timing": ignored(_TIMES, boolean, quiet=(True,)),
    "log_delta_step_timing": ignored(_TIMES, boolean, quiet=(False,)),
    "step_timing_kwargs": ignored(_TIMES, anything, quiet=(None,)),
    "log_tflops_per_sec_per_gpu": ignored("throughput is always logged", boolean, quiet=(True,)),
    "disable_validation_on_resume": ignored(_NEMO, boolean, quiet=_BOTH),
    "ema": rejected("no moving average of the weights is kept", anything, quiet=(None,)),
    "max_time_per_run": rejected("the launcher limits time", optional(anything), quiet=(None,)),
    "seconds_to_sleep": ignored(_NEMO, coerce.decimal, quiet=(5.0,)),
    "create_wandb_logger create_mlflow_logger create_dllogger_logger create_clearml_logger "
    "create_neptune_logger": ignored(_TRACKERS, anything, quiet=(None, False)),
    "wandb_logger_kwargs mlflow_logger_kwargs dllogger_logger_kwargs clearml_logger_kwargs neptune_logger_kwargs "
    "summary_writer_kwargs": ignored(_TRACKERS, anything, quiet=(None, {})),
})  # fmt: skip

_STRATEGY = _in(STRATEGY, {
    **{
        f"{axis}_{'' if axis == 'context' else 'model_'}parallel_size": to(
            f"parallelism.within_node.{axis},parallelism.across_nodes.{axis}", count, meaning, default=1,
            write=_axis(axis),
        )
        for axis, meaning in (
            ("tensor", "Parts of each matrix."), ("pipeline", "Pipeline stages."),
            ("context", "Parts of each sequence."),
        )
    },
    "virtual_pipeline_model_parallel_size": as_is("parallelism.virtual_pipeline",
                                                  lambda value: optional(count)(value) or 1,
                                                  "Model chunks per pipeline stage; null is 1.", default=1),
    "expert_model_parallel_size token_shuffle_group_size": rejected(_NO_EXPERTS, count, quiet=(1,)),
    "pipeline_model_parallel_split_rank": rejected("encoder-decoder models are not supported", optional(natural),
                                                   quiet=(0, None)),
    "zero1": as_is("parallelism.zero1", boolean, "Optimizer state sharded over data parallelism.", default=True),
    "sequence_parallel": as_is("parallelism.sequence_parallel", boolean,
                               "Activations between blocks sharded over tensor parallelism.", default=False),
    "kv_replicator": equivalent("each device gets the key/value heads that its query heads share", readers.copies,
                                "Copies of the key/value heads, so that they can be split over tensor parallelism."),
})  # fmt: skip

# What MegatronDataModule reads, and what the two others do.
DATA_PREFIXES = _in("data", {
    "data_prefix": to("data.paths,data.weights,data.validation_paths,data.test_paths", readers.data_prefix,
                      "Common path of .bin and .idx files, with weights, or by split.", write=readers.prefixes),
    "index_mapping_dir": as_is("data.index_dir", _TEXT, default=None),
    "data_impl": rejected("only memory-mapped .bin and .idx files are read", _TEXT, quiet=(None, "mmap"),
                          write=_always("mmap")),
    "dataloader_type": rejected(
        "data is read in one shuffled order, which a resumed run continues", optional(one_of("single", "cyclic")),
        quiet=(None, "single"), write=_always("single"),
    ),
    "num_workers": ignored(_LOADER, natural, quiet=(0, 1, 2), write=_always(2)),
    "splits_string": as_is("data.split", optional(readers.shares), default=None),
    "reset_position_ids": as_is("data.reset_positions", boolean, default=False),
    "reset_attention_mask": as_is("data.reset_attention", boolean, default=False),
    "eod_mask_loss": as_is("data.mask_document_ends", boolean, default=False),
})  # fmt: skip
DATA_FILES = _in("data", {
    "train_dir": to("data.paths", _TEXT, "A folder of save_to_disk; with alignment, a .jsonl or .arrow file.",
                    write=lambda spec: readers.named_path(spec.data.paths[0]) if spec.data.paths else readers.OPEN),
    "val_dir": to("data.validation_paths", _TEXT, write=lambda spec: next(iter(spec.data.validation_paths), None)),
    "test_dir": to("data.test_paths", _TEXT, write=lambda spec: next(iter(spec.data.test_paths), None)),
    "dev_choose_samples": as_is("data.max_examples", optional(count), "The first so many; null: all.",
                                default=None, only=lambda spec: spec.objective.kind != "pretraining"),
})  # fmt: skip

_DATA = _in("data", {
    "micro_batch_size": as_is("batch.micro_batch_size", count,
                              "Sequences per data-parallel replica and forward pass.", required=True),
    "global_batch_size": as_is("batch.global_batch_size", count, "Sequences per step.", required=True),
    "seq_length": to("batch.sequence_length", count, "Tokens per sequence; decides where alignment is.", write=PATH),
    "no_seqlen_plus_one_input_tokens": rejected("the last token of a sequence always has a next one", boolean,
                                                quiet=(False,)),
    "validation_drop_last": ignored("incomplete batches of validation data are left out", boolean, quiet=(True,)),
    "pad_samples_to_global_batch_size": ignored("incomplete batches of validation data are left out", boolean,
                                                quiet=(False,)),
    "skip_warmup": ignored(_LOADER, boolean, quiet=_BOTH),
    "fine_tuning": rejected("NxDT does not support it either; use an alignment block", boolean, quiet=(False,)),
    "train_ds": rejected("NxDT does not support it either; use data.train_dir", anything, quiet=(None,)),
    "validation_ds": rejected("NxDT does not support it either; use data.val_dir", anything, quiet=(None,)),
    "test_ds": rejected("NxDT does not support it either", anything, quiet=(None,)),
    "dataset_name subset_name prompt_name": rejected(
        "templates are not applied here: apply them to the data first", _TEXT, quiet=(None,)
    ),
    "use_sft_style_data_module": to("objective.kind", boolean, "Of old SFT samples; NxDT does not read it."),
    "packing": to("data.packing", boolean, "Of old SFT samples; NxDT does not read it.", default=False),
    "tokenizer.type": to("data.tokenizer", _TEXT, "The path or name of a Hugging Face tokenizer.",
                         write=lambda spec: readers.named_path(spec.data.tokenizer)),
    "tokenizer.model": to("data.tokenizer", _TEXT, "The path of a SentencePiece model.", write=_of_blends),
    "tokenizer.library": ignored(
        "it only tells NxDT how to read the tokenizer",
        optional(one_of("huggingface", "megatron", "sentencepiece", "byte-level", "regex", "tabular", "tiktoken")),
        quiet=("huggingface", "megatron", "sentencepiece", None), write=_always("huggingface"),
    ),
    "tokenizer.vocab_file tokenizer.merge_file": ignored("the tokenizer's folder holds it", _TEXT, quiet=(None,),
                                                         write=_of_blends),
    "tokenizer.delimiter": ignored("it is for tables", _TEXT, quiet=(None,)),
    "tokenizer.sentencepiece_legacy": ignored("the tokenizer's folder decides", boolean, quiet=_BOTH),
    "tokenizer.use_fast": equivalent("both kinds of a tokenizer make the same tokens", boolean),
})  # fmt: skip

_LONGEST = "Tokens of a prompt that is shortened; 2048 where it is not given."
_ALIGNMENT: dict[str, Key] = {
    **{
        f"{kind}.{name}": to(path, read, meaning, write=write, only=_is(kind))
        for kind, beta, meant in (
            ("dpo", "kl_beta", "How much leaving the reference model costs; 0.01 where it is not given."),
            ("orpo", "beta", "Weight of the odds ratio; 0.01 where it is not given."),
        )
        for name, path, read, meaning, write in (
            (beta, "objective.beta", positive, meant, None),
            ("max_prompt_length", "objective.max_prompt_length", count, _LONGEST,
             lambda spec: spec.objective.max_prompt_length or OMIT),
            ("truncation_mode", "objective.truncation", one_of("keep_start", "keep_end"),
             "What of a prompt stays: keep_start or keep_end; keep_start where it is not given.", None),
        )
    },
    "dpo.loss_type": rejected("the sigmoid is the only loss of NxDT too", text, "sigmoid where it is not given.",
                              quiet=("sigmoid",)),
    "dpo.precompute_ref_log_probs": equivalent("the reference model's answers are the same, whenever they are made",
                                               boolean, "Whether the reference model runs once, before training."),
    "sft.packing": to("data.packing", boolean, "Several examples in one sequence; false where it is not given.",
                      only=_is("sft")),
    **_in("peft", {
        "lora_rank lora_alpha lora_dropout lora_bias lora_verbose target_modules load_lora_from_ckpt save_lora_base "
        "merge_lora save_lora_config_adapter merge_sharded_lora": rejected(
            f"adapters (LoRA) are not supported (all weights train), {_NO_ENGINE}", anything, quiet=(None,)
        ),
    }),
}  # fmt: skip


def _alignment() -> Iterator[tuple[str, Key]]:
    """The block in its three forms: under `data` (NxDT 1.1), by itself (1.2), with other names (1.3)."""
    for name, key in _ALIGNMENT.items():
        older = name.replace(".max_prompt", ".max_dpo_prompt")
        for place in (ALIGNMENT, OLD_ALIGNMENT):
            yield f"{place}.{name}", key if place == ALIGNMENT else replace(key, write=None)
            if older != name:
                yield f"{place}.{older}", replace(key, write=None)


# The knobs of Megatron's model: what only model_source megatron reads, and its defaults.
MEGATRON_ONLY = _in("model", {
    "ffn_hidden_size": as_is("model.ffn_dim", count),
    "num_attention_heads": as_is("model.num_heads", count),
    "num_kv_heads": as_is("model.num_kv_heads", optional(count), "null: as many as query heads.", default=None),
    "kv_channels": as_is("model.head_dim", optional(count), "null: hidden_size / num_attention_heads.", default=None),
    "init_method_std": as_is("initialization.std", positive, default=0.02),
    "use_scaled_init_method": as_is("initialization.scaled", boolean, default=True),
    "hidden_dropout": as_is("dropout.hidden", readers.probability, default=0.1),
    "attention_dropout": as_is("dropout.attention", readers.probability, default=0.0),
    "ffn_dropout": as_is("dropout.ffn", readers.probability, default=0.0),
    "normalization": as_is("model.norm", one_of("layernorm", "rmsnorm"), "Kind of norm: layernorm or rmsnorm.",
                           default="layernorm"),
    "layernorm_epsilon": as_is("model.norm_epsilon", positive, default=1e-5),
    "make_vocab_size_divisible_by": as_is("model.vocab_multiple", count,
                                          "Tables are padded to a multiple of it × tensor parallelism.", default=128),
    "share_embeddings_and_output_weights": as_is("model.tied_embeddings", boolean, default=True),
    "position_embedding_type": to("model.positions", one_of("learned_absolute", "rope"),
                                  "learned_absolute (a table) or rope (rotary).", default="learned_absolute",
                                  write=lambda spec: "rope" if spec.model.positions == "rope" else "learned_absolute"),
    "rotary_percentage": as_is("model.rotary_fraction", readers.share_above_zero,
                               "The share of each head that is turned.", default=1.0),
    "position_freq_base": to("model.rope_theta", positive, default=10_000.0, write=PATH),
    "position_abf_factor": to("model.rope_theta", positive, "The base is multiplied by it.", default=1.0),
    "positition_interpolation_factor": rejected("positions are not interpolated", positive, "NxDT spells it like this.",
                                                quiet=(1.0,)),
    "activation": as_is("model.activation", one_of("gelu", "swiglu"), "In the MLP: gelu or swiglu.", default="gelu"),
    "has_bias": as_is("model.biases", boolean, default=True),
    "apply_query_key_layer_scaling": equivalent("scores are divided by the layer's number and multiplied by it again",
                                                boolean),
    "sliding_window_size": as_is("model.sliding_window", optional(count),
                                 "Attention to the last so many tokens; null: to all.", default=None,
                                 write=lambda spec: spec.model.sliding_window or OMIT),
    "transformer_block_type": rejected("only pre_ln blocks are known", text, quiet=("pre_ln",)),
})  # fmt: skip
HF_ONLY = _in("model", {
    "model_config": to("model", readers.named, "The Hugging Face config.json, its folder, or the name of a preset."),
    "rope_theta": to("model.rope_theta", optional(readers.rope_base),
                     "Base of the rotary frequencies; -1 keeps that of model_config."),
})  # fmt: skip

_MODEL = _in("model", {
    "encoder_seq_length": to("batch.sequence_length", count, "Tokens per sequence.", write=PATH),
    "max_position_embeddings": to("model.max_positions", optional(count),
                                  "Rows of the table of learned positions; rotary ones have none.",
                                  write=lambda spec: spec.model.max_positions or spec.batch.sequence_length),
    "num_layers": as_is("model.num_layers", optional(readers.size_of_model), "-1 keeps that of model_config."),
    "hidden_size": as_is("model.hidden_dim", optional(readers.size_of_model), "-1 keeps that of model_config."),
    "vocab_size": as_is("model.vocab_size", optional(count), "Seatrial's own key, which NxDT does not read: "
                        "there, the tokenizer's size is the model's."),
    "weight_init_only": as_is("checkpoint.weights_only", boolean, default=False),
    "do_layer_norm_weight_decay": as_is("optimizer.decay_norms", boolean, default=False),
    "activations_checkpoint_granularity": to("execution.remat", optional(one_of("selective", "full")),
                                             "full: all of a layer is recomputed; selective: parts; null: nothing.",
                                             default=None, write=_recomputes),
    "activations_checkpoint_recompute": to(
        "execution.remat_modules", optional(readers.modules),
        write=lambda spec: [_CLASSES[module] for module in spec.execution.remat_modules if module in _CLASSES]
        or ["CoreAttention"], only=lambda spec: _recomputes(spec) == "selective",
    ),
    "fusions.flash_attention": to(
        "execution.attention", optional(boolean),
        "Attention without a table of all scores; null, or not given: what is fastest.",
        write=lambda spec: None if spec.execution.attention == "auto" else spec.execution.attention != "dot_product",
    ),
    "fusions.ring_attention": to(
        "parallelism.context_strategy", boolean,
        "Attention over parts of a sequence, which go around; true where there are parts and it is not given.",
        write=lambda spec: True, only=lambda spec: spec.mesh["context"] > 1,
    ),
    "fusions.softmax": ignored("XLA fuses what it can", optional(boolean), "A fused softmax.", quiet=(*_BOTH, None)),
    "masked_softmax_fusion bias_gelu_fusion bias_activation_fusion bias_dropout_add_fusion "
    "gradient_accumulation_fusion": ignored("XLA fuses what it can", boolean, quiet=_BOTH),
    "qkv_linear": equivalent(_LAYOUT, boolean, "NxD's GQAQKVLinear, which kv_replicator needs."),
    "fuse_qkv": equivalent(_LAYOUT, boolean, "One matrix for queries, keys and values; true where it is not given."),
    "transpose_nki_inputs": equivalent(_LAYOUT, boolean),
    "persist_layer_norm": ignored("it chooses a kernel", boolean, "A fused norm.", quiet=_BOTH),
    "use_cpu_initialization": equivalent("initial weights do not depend on the device", boolean,
                                         "Whether weights are initialised on the CPU."),
    "pipeline_cuts": to("parallelism.stage_layers", optional(readers.cuts), "The last layers of all pipeline stages "
                        "but the last; null: NxD gives the last stages what does not divide.", default=None),
    "fp32_residual_connection": rejected("residuals are in the compute format", boolean, quiet=(False,)),
    "fp16_lm_cross_entropy": rejected("the loss is computed in float32", boolean, quiet=(False,)),
    "activations_checkpoint_method": ignored(_LAYERS, _TEXT, quiet=(None, "uniform")),
    "activations_checkpoint_num_layers": ignored(_LAYERS, optional(natural), quiet=(None, 1)),
    "activations_checkpoint_layers_per_pipeline": ignored(_LAYERS, optional(natural), quiet=(None,)),
    "precision": ignored(_PRECISION, anything, quiet=(32, "32", None)),
    "use_emha": rejected("there is one kind of attention", boolean, quiet=(False,)),
    "megatron_amp_o2": ignored(_PRECISION, optional(boolean), quiet=(None, False)),
    "disable_layer_norm_checkpointing": ignored(_LAYOUT, boolean, quiet=_BOTH),
    "save_logits": rejected("logits are never kept", boolean, quiet=(False,)),
    **_in("moe", {
        "num_experts frequency dropout capacity_factor dropless routing_algorithm router_activation "
        "sinkhorn_iterations sinkhorn_tol top_k output_router_logits router_aux_loss_coef "
        "normalize_top_k_affinities glu_mlp": rejected(_NO_EXPERTS, optional(anything), quiet=(None,)),
    }),
})  # fmt: skip

_OPTIMIZER = _in(OPTIM, {
    "name": to("optimizer.algorithm", text, f"One of {', '.join(OPTIMIZERS)}.", required=True,
               write=lambda spec: ALGORITHMS[spec.optimizer.algorithm]),
    "lr": as_is("optimizer.learning_rate", positive, required=True),
    "weight_decay": as_is("optimizer.weight_decay", not_negative, "0.01 in adamw where not given, else 0."),
    "betas": to("optimizer.beta1,optimizer.beta2", readers.betas, "Decay of both moments.",
                write=lambda spec: [spec.optimizer.beta1, spec.optimizer.beta2]),
    "eps": as_is("optimizer.epsilon", positive, "Each optimizer has its own default."),
    "momentum": as_is("optimizer.momentum", share, "Of sgd and rmsprop.", default=0.0),
    "alpha": to("optimizer.beta2", share, "Decay of the second moment in rmsprop; 0.99 where not given.", write=PATH),
    "rho": to("optimizer.beta2", share, "Decay of the second moment in adadelta; 0.9 where not given.", write=PATH),
    "beta1": rejected(_FIXED, optional(share), quiet=(None,)),
    "amsgrad nesterov centered grad_averaging luc relative_step warmup_init maximize differentiable": rejected(
        _FIXED, anything, quiet=(False,)
    ),
    "correct_bias scale_parameter": rejected(_FIXED, anything, quiet=(True,)),
    "dampening lr_decay initial_accumulator_value": rejected(_FIXED, anything, quiet=(0, 0.0)),
    **{
        name: rejected(_FIXED, anything, quiet=quiet)
        for name, quiet in {
            "etas": ((0.5, 1.2),), "step_sizes": ((1e-6, 50), (1e-6, 50.0)), "luc_trust": (1e-3,), "luc_eps": (1e-8,),
            "clip_threshold": (1, 1.0), "decay_rate": (0.8, -0.8), "min_step": (1e-2,),
        }.items()
    },
    "capturable": ignored(_TORCH, boolean, "Whether CUDA graphs can hold the update.", quiet=_BOTH),
    "foreach fused": ignored(_TORCH, optional(boolean), quiet=(*_BOTH, None)),
    "sched.name": to("optimizer.schedule", text, f"One of {', '.join(SCHEDULES)}.",
                     write=lambda spec: schedule_name(spec.optimizer) or OMIT),
    **{
        f"sched.{part}_steps": to(f"optimizer.{part}_steps", optional(natural), meaning, write=PATH)
        for part, meaning in (("warmup", ""), ("hold", "At the full rate, after the warm-up."),
                              ("constant", "At min_lr, at the end of the run."))
    },
    **{
        f"sched.{part}_ratio": to(f"optimizer.{part}_steps", optional(share), "Of trainer.max_steps, instead of steps.")
        for part in ("warmup", "hold", "constant")
    },
    "sched.min_lr": to(
        "optimizer.final_learning_rate_fraction", optional(not_negative), "The lowest rate.",
        write=lambda spec: coerce.part_of(spec.optimizer.final_learning_rate_fraction, spec.optimizer.learning_rate),
    ),
    "sched.max_steps": ignored("trainer.max_steps decides, as in NxDT", optional(whole), "Length of the schedule."),
    "sched.decay_rate": to("optimizer.decay_power", positive, "Of NoamHoldAnnealing; 0.5 where not given.", write=PATH),
    "sched.power": to("optimizer.decay_power", positive, "Of the polynomial schedules; 1 where not given.", write=PATH),
    "sched.cycle": rejected("a learning rate that rises again is not supported", boolean, quiet=(False,)),
    "sched.d_model": ignored("the model's width decides", optional(count)),
    "sched.last_epoch": ignored("a resumed run continues where it was", whole, quiet=(-1,)),
    "sched.monitor": ignored("no schedule here depends on a metric", _TEXT, quiet=(None, "val_loss")),
    "sched.step_size": to("optimizer.decay_interval_steps", count, "Of StepLR: the rate falls every so many steps.",
                          write=PATH),
    "sched.gamma": to("optimizer.decay_factor", positive, "Of StepLR (0.1 where not given) and ExponentialLR, which "
                      "falls once an epoch: what the rate is multiplied by.",
                      write=PATH),
    "sched.reduce_on_plateau": rejected(REFUSED["ReduceLROnPlateau"], boolean, quiet=(False,)),
})  # fmt: skip

_FORMATS = _in("precision", {
    "type": to("precision", one_of(*TYPES, MANUAL, *SPELLINGS),
               f"One of the named sets of formats, {', '.join(TYPES)}, or manual.",
               required=True, write=_format("type")),
    **{
        name: to(path, optional(readers.switch), f"{meaning} Read where type is manual only.", write=_format(name))
        for name, (path, meaning) in SWITCHES.items()
    },
    "parallel_layers_reduce_dtype": to(
        "precision.tensor_reduce_dtype", optional(one_of(*REDUCE)),
        "Format of sums over tensor parallelism: bf16 where it is not given, and fp32 where type is.",
        write=lambda spec: reduce_format(spec.precision) or OMIT,
    ),
    "fp32_grads_cc": ignored("precision.type decides; NxDT does not read it either", optional(boolean),
                                       quiet=(*_BOTH, None)),
})  # fmt: skip

KEYS: dict[str, Key] = {
    **_RUN, **_TRAINER, **_EXPERIMENT, **_CHECKPOINT, **_STRATEGY, **_DATA, **DATA_PREFIXES, **DATA_FILES,
    **dict(_alignment()), **_MODEL, **HF_ONLY, **MEGATRON_ONLY, **_OPTIMIZER, **_FORMATS,
}  # fmt: skip
