"""RunSpec → NxDT YAML; what it cannot say is found by reading the text back, so that no loss goes unnoted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from seatrial.dialects import yaml_writer
from seatrial.dialects.nxdt.data import ALIGNMENT
from seatrial.dialects.nxdt.experiment import MONITORS
from seatrial.dialects.nxdt.interpolation import escape
from seatrial.dialects.nxdt.model import MODULES
from seatrial.dialects.nxdt.optimizer import OPTIMIZERS, SCHEDULES
from seatrial.dialects.nxdt.precision import MANUAL, TYPES
from seatrial.dialects.nxdt.readers import is_null
from seatrial.dialects.table import coerce
from seatrial.dialects.table.entries import Request
from seatrial.dialects.table.written import Written, write
from seatrial.spec import Optimizer, Precision, Resolved, RunSpec
from seatrial.spec.presets import MODELS, architecture

Tree = dict[str, Any]
Read = Callable[[Request], Resolved]

OPEN = "<changeme>"

# Why a path of the spec is not said, or not as it is, by the longest beginning that fits.
WHY = {
    "topology.device": "an NxDT file does not name its accelerator",
    "topology": "the numbers of devices and nodes are those of the mesh",
    "parallelism": "NxDT lays its axes out by itself: tensor first, then context, data and pipeline; data follows",
    "parallelism.within_node.fsdp": "NxDT has no FSDP: these devices are data-parallel replicas",
    "parallelism.across_nodes.fsdp": "NxDT has no FSDP: these devices are data-parallel replicas",
    "parallelism.context_strategy": "NxDT has ring attention, and only over parts of a sequence",
    "precision": "the nearest of NxDT's settings is written",
    "precision.quantization": "NxDT has no quantized products",
    "initialization": "an hf model begins as its config.json says",
    "dropout": "an hf model drops out as its config.json says",
    "model": "NxDT's model has no key for it",
    "model.name": "NxDT does not name its models",
    "model.rope_scaling": "NxDT's Megatron model does not scale positions",
    "model.max_positions": "rotary positions have no table",
    "optimizer": "this optimizer or schedule has no such argument",
    "optimizer.on_non_finite": "NxDT has no setting for it",
    "optimizer.schedule": "the nearest of NeMo's schedules is written; its warm-up differs by a step",
    "optimizer.decay_steps": "NxDT's schedules end with the run",
    "objective": "this objective has no such key",
    "data": "NxDT's data modules for this model and objective cannot say it",
    "data.kind": "NxDT learns from .bin and .idx files, Arrow folders or examples: make them of yours, and name them",
    "data.weights": "equal shares are written",
    "evaluation": "NxDT says this in one way only, and nothing where validation is off",
    "execution.remat": "the nearest of NxDT's three is written",
    "execution.xla_flags": "NxDT has no XLA flags",
    "execution.environment": "NxDT's file exports no variables",
    "execution.attention": "the nearest of NxDT's two is written",
    "execution": "NxDT has no such setting",
    "checkpoint": "NxDT cannot say it together with the rest",
    "checkpoint.keep_best": "NxDT knows validation loss and training loss",
    "distributed": "NxDT's launcher decides how processes find each other",
    "container": "NxDT's file says nothing of containers",
    "nic_type": "NxDT's file says nothing of networks",
    "hf_token_file": "NxDT reads no token",
    "log_dir": "it cannot be written so that NxDT reads it as text",
    "expectations": "NxDT's file has no bars",
    "seed": "NxDT wants a seed above 0",
}
WHOLE = ("container", "distributed", "model.rope_scaling")  # one note for the part

REMAT = {"none": None, "full": "full"}  # anything else is selective
ALGORITHMS = {rule.algorithm: name for name, rule in OPTIMIZERS.items()}
KINDS: dict[str, str] = {"cosine": "CosineAnnealing", **{schedule.kind: name for name, schedule in SCHEDULES.items()}}
CLASSES = {module: name for name, module in reversed(MODULES.items())}
_MONITOR = {metric: name for name, metric in reversed(MONITORS.items())}


def written(spec: RunSpec, read: Read) -> Written:
    """The text of the model source that loses less."""
    sources = ("hf", "megatron") if _preset(spec) else ("megatron",)
    return min((_written(spec, read, source) for source in sources), key=lambda found: len(found.notes))


def _written(spec: RunSpec, read: Read, model_source: str) -> Written:
    text = yaml_writer.dump(_escaped(_tree(spec, model_source)))
    return write(spec, text, ".yaml", read, WHY, whole=WHOLE)


def _escaped(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _escaped(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [_escaped(child) for child in value]
    return escape(value) if isinstance(value, str) else value


# --- spec → tree ------------------------------------------------------------------------------------------------------


def _preset(spec: RunSpec) -> str | None:
    """The preset that the model is, but for the depth and the base of its positions; under its own name first."""
    model = spec.model
    changes: dict[str, Any] = {"num_layers": model.num_layers, "rope_theta": model.rope_theta}
    names = [name for name, preset in MODELS.items() if architecture(replace(preset, **changes)) == architecture(model)]
    exact = [name for name in names if architecture(MODELS[name]) == architecture(model)]
    wanted = model.name.removesuffix("-changed")
    return wanted if wanted in (exact or names) else next(iter(exact or names), None)


def _tree(spec: RunSpec, model_source: str) -> Tree:
    tree: Tree = {"name": spec.name, "model_source": model_source}
    if spec.seed > 0:
        tree["seed"] = spec.seed
    mesh = spec.mesh
    return tree | {
        "trainer": _trainer(spec),
        "exp_manager": _experiment(spec),
        "distributed_strategy": {
            "tensor_model_parallel_size": mesh["tensor"],
            "pipeline_model_parallel_size": mesh["pipeline"],
            "virtual_pipeline_model_parallel_size": spec.parallelism.virtual_pipeline,
            **({"context_parallel_size": mesh["context"]} if mesh["context"] > 1 else {}),
            "zero1": spec.parallelism.zero1,
            "sequence_parallel": spec.parallelism.sequence_parallel,
        },
        "data": _data(spec, model_source),
        **_alignment(spec),
        "model": _model(spec, model_source),
        "precision": _precision(spec.precision),
        **({"compiler_cache_url": spec.execution.compile_cache} if spec.execution.compile_cache else {}),
    }  # fmt: skip


def _trainer(spec: RunSpec) -> Tree:
    within = spec.parallelism.within_node.resolve(spec.topology.devices_per_node)
    across = spec.parallelism.across_nodes.resolve(spec.topology.num_nodes)
    return {
        "devices": within.product,
        "num_nodes": across.product,
        "max_epochs": spec.epochs or -1,
        "max_steps": spec.steps,
        "log_every_n_steps": spec.logging.interval_steps,
        **_evaluation(spec),
        "gradient_clip_val": spec.optimizer.clip_norm,
    }


def _evaluation(spec: RunSpec) -> Tree:
    when = spec.evaluation
    has_data = bool(spec.data.validation_paths) or spec.data.kind == "megatron"
    if (when.interval_steps is None and when.interval_fraction is None) or not has_data:
        return {"limit_val_batches": 0.0}
    steps = when.interval_steps
    return {
        "val_check_interval": steps if steps is not None else when.interval_fraction,
        "check_val_every_n_epoch": 1 if steps is None else None,
        "num_sanity_val_steps": when.initial_batches,
        "limit_val_batches": when.fraction if when.batches is None else when.batches,
    }


def _experiment(spec: RunSpec) -> Tree:
    checkpoint, logging = spec.checkpoint, spec.logging
    best = _MONITOR.get(checkpoint.keep_best or "")
    minutes = checkpoint.interval_minutes
    params = {
        "monitor": best or "step",
        "mode": "min" if best else "max",
        "save_top_k": -1 if checkpoint.keep is None else checkpoint.keep,
        "every_n_train_steps": checkpoint.interval_steps,
        **({"train_time_interval": coerce.part_of(minutes, 60.0)} if minutes else {}),
        **({"dirpath": checkpoint.directory} if checkpoint.directory else {}),
    }
    return {
        "explicit_log_dir": spec.log_dir,
        "create_tensorboard_logger": logging.tensorboard,
        "log_parameter_norm": logging.parameter_norm,
        "log_gradient_norm": logging.gradient_norm,
        "enable_recovery_time_instrumentation": logging.startup_times,
        "create_checkpoint_callback": checkpoint.enabled,
        "checkpoint_callback_params": params,
        "async_checkpointing": checkpoint.asynchronous,
        "resume_if_exists": checkpoint.resume,
        "resume_ignore_no_checkpoint": not checkpoint.resume_required,
        "resume_from_checkpoint": checkpoint.resume_from,
    }


def _data(spec: RunSpec, model_source: str) -> Tree:
    data = spec.data
    tree: Tree = {
        "micro_batch_size": spec.batch.micro_batch_size,
        "global_batch_size": spec.batch.global_batch_size,
        "seq_length": spec.batch.sequence_length,
    }
    if spec.objective.kind == "pretraining" and model_source == "megatron":
        tree |= {
            "data_prefix": _prefix(spec),
            "splits_string": data.split,
            "index_mapping_dir": data.index_dir,
            "reset_position_ids": data.reset_positions,
            "reset_attention_mask": data.reset_attention,
            "eod_mask_loss": data.mask_document_ends,
        }
    else:
        tree |= {
            "train_dir": _named(data.paths[0] if data.paths else OPEN),
            "val_dir": next(iter(data.validation_paths), None),
            "test_dir": next(iter(data.test_paths), None),
        }
        if spec.objective.kind != "pretraining":
            tree["dev_choose_samples"] = data.max_examples
    return {**tree, "tokenizer": {"library": "huggingface", "type": _named(data.tokenizer)}}


def _named(path: str) -> str:
    """A path; one that reads as null is written as the same place in other words."""
    return f"./{path}" if is_null(path) else path


def _prefix(spec: RunSpec) -> Any:
    data = spec.data

    def weighted(paths: tuple[str, ...], weights: tuple[float, ...] = ()) -> list[Any]:
        if len(paths) == 1 and not weights:
            return list(paths)
        pairs = zip(weights or (1.0,) * len(paths), paths, strict=False)
        return [part for pair in pairs for part in pair]

    train = weighted(data.paths, data.weights) if data.paths else [OPEN]
    if not data.validation_paths and not data.test_paths:
        return train
    parts = {"train": train, "validation": weighted(data.validation_paths), "test": weighted(data.test_paths)}
    return {name: part for name, part in parts.items() if part}


def _alignment(spec: RunSpec) -> Tree:
    objective = spec.objective
    if objective.kind == "pretraining":
        return {}
    if objective.kind == "sft":
        return {ALIGNMENT: {"sft": {"packing": spec.data.packing}}}
    length = objective.max_prompt_length
    block = {
        "kl_beta" if objective.kind == "dpo" else "beta": objective.beta,
        **({"max_prompt_length": length} if length is not None else {}),
        "truncation_mode": objective.truncation,
    }
    return {ALIGNMENT: {objective.kind: block}}


def _model(spec: RunSpec, model_source: str) -> Tree:
    model, execution = spec.model, spec.execution
    fusions = {} if execution.attention == "auto" else {"flash_attention": execution.attention != "dot_product"}
    fusions |= {"ring_attention": True} if spec.mesh["context"] > 1 else {}
    modules = [CLASSES[module] for module in execution.remat_modules if module in CLASSES]
    remat = REMAT.get(execution.remat, "selective")
    positions = {"max_position_embeddings": model.max_positions} if model.max_positions else {}
    head: Tree = {"encoder_seq_length": spec.batch.sequence_length, **positions}
    head |= {"num_layers": model.num_layers, "hidden_size": model.hidden_dim}
    preset = _preset(spec)
    if model_source == "hf" and preset:
        head |= {"model_config": preset}
        head |= {"rope_theta": model.rope_theta} if model.rope_theta != MODELS[preset].rope_theta else {}
    else:
        head |= _megatron(spec)
    return head | {
        "weight_init_only": spec.checkpoint.weights_only,
        "activations_checkpoint_granularity": remat,
        **({"activations_checkpoint_recompute": modules or ["CoreAttention"]} if remat == "selective" else {}),
        **({"fusions": fusions} if fusions else {}),
        "do_layer_norm_weight_decay": spec.optimizer.decay_norms,
        "optim": _optimizer(spec.optimizer),
    }  # fmt: skip


def _megatron(spec: RunSpec) -> Tree:
    model = spec.model
    return {
        "ffn_hidden_size": model.ffn_dim,
        "num_attention_heads": model.num_heads,
        "num_kv_heads": model.num_kv_heads,
        "kv_channels": model.head_dim,
        "vocab_size": model.vocab_size,
        "make_vocab_size_divisible_by": model.vocab_multiple,
        "share_embeddings_and_output_weights": model.tied_embeddings,
        "normalization": model.norm,
        "layernorm_epsilon": model.norm_epsilon,
        "position_embedding_type": "rope" if model.positions == "rope" else "learned_absolute",
        "position_freq_base": model.rope_theta,
        "rotary_percentage": model.rotary_fraction,
        "activation": model.activation,
        "has_bias": model.biases,
        **({"sliding_window_size": model.sliding_window} if model.sliding_window is not None else {}),
        "init_method_std": spec.initialization.std,
        "use_scaled_init_method": spec.initialization.scaled,
        "hidden_dropout": spec.dropout.hidden,
        "attention_dropout": spec.dropout.attention,
        "ffn_dropout": spec.dropout.ffn,
    }


def _optimizer(optimizer: Optimizer) -> Tree:
    name = ALGORITHMS[optimizer.algorithm]
    possible = {
        "lr": optimizer.learning_rate,
        "weight_decay": optimizer.weight_decay,
        "betas": [optimizer.beta1, optimizer.beta2],
        "eps": optimizer.epsilon,
        "momentum": optimizer.momentum,
        "alpha": optimizer.beta2,
        "rho": optimizer.beta2,
    }
    tree: Tree = {"name": name} | {
        argument: value for argument, value in possible.items() if argument in OPTIMIZERS[name].arguments
    }
    if optimizer.schedule == "constant":
        return tree
    schedule = SCHEDULES[KINDS[optimizer.schedule]]
    rate = optimizer.learning_rate
    arguments = {
        "hold_steps": optimizer.hold_steps,
        "constant_steps": optimizer.constant_steps,
        "min_lr": coerce.part_of(optimizer.final_learning_rate_fraction, rate),
        "decay_rate": optimizer.decay_power,
        "power": optimizer.decay_power,
    }
    sched: Tree = {"name": KINDS[optimizer.schedule], "warmup_steps": optimizer.warmup_steps}
    sched |= {argument: value for argument, value in arguments.items() if argument in schedule.arguments}
    return {**tree, "sched": sched}


def _precision(precision: Precision) -> Tree:
    plain = replace(precision, quantization=None)
    named = next((name for name, formats in TYPES.items() if formats == plain), None)
    if named:
        return {"type": named}
    return {
        "type": MANUAL,
        "master_weights": precision.params_dtype == "float32",
        "fp32_grad_acc": precision.gradient_dtype == "float32",
        "xla_use_bf16": "0",
        "xla_downcast_bf16": "1" if precision.compute_dtype == "bfloat16" else "0",
        "neuron_rt_stochastic_rounding_en": "1" if precision.stochastic_rounding else "0",
    }
