"""A run → a shell text that exports its variables and starts MaxText.

What the text does not say is found by reading it again: every value that comes back otherwise gets its note.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from seatrial import source
from seatrial.dialects.maxtext import values as maxtext_values
from seatrial.dialects.maxtext.environment import FLAGS, PLACED, is_kept
from seatrial.dialects.maxtext.keys import ARCHITECTURE
from seatrial.dialects.maxtext.model import NAMED
from seatrial.dialects.table import coerce
from seatrial.dialects.table.entries import Request
from seatrial.dialects.table.written import Note, Written
from seatrial.errors import Mark
from seatrial.source import Document, Node
from seatrial.spec import AXES, MeshShape, Resolved, RopeScaling, RunSpec, flatten
from seatrial.spec.presets import MODELS
from seatrial.xla_flags import is_sound

_PROGRAM = ("python3", "-m", "maxtext.trainers.pre_train.train", "src/maxtext/configs/base.yml")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_HERE = "MaxText takes what it finds on the machines; say it to Seatrial on the command line"
_NO_WORD = "MaxText has no such setting"
# Why a value is not in the text: the first row whose path it is, or is under.
_WHY: tuple[tuple[str, str], ...] = (
    ("model.name", "MaxText knows models by its own names; the dimensions are given"),
    ("model.rope_scaling", "MaxText's llama3.1 stretching has fixed numbers"),
    ("model.vocab_multiple", "MaxText pads nothing; the vocabulary's size is given as it is"),
    ("model", "MaxText's Llama decoder has RMSNorm, rotary positions of the whole head and no biases"),
    ("initialization", "MaxText begins with a normal distribution by fan-in"),
    ("dropout", "MaxText has one dropout_rate for all"),
    ("topology.device", _HERE),
    ("topology", _HERE),
    ("parallelism.sequence_parallel", "without tensor parallelism, it has no effect"),
    ("parallelism.virtual_pipeline", "MaxText's repeats × stages × layers per stage make the number of layers"),
    ("parallelism", "MaxText's mesh is written with the size that -1 comes to, or cannot be this one"),
    ("batch", "MaxText's batch is a multiple of what a forward pass takes on all devices"),
    ("precision.quantization", "MaxText does not know it, or not together with several micro-batches a step"),
    ("precision", "MaxText sums and rounds as XLA decides"),
    ("optimizer.algorithm", "MaxText has adamw and sgd"),
    ("optimizer.schedule", "MaxText has cosine, and wsd with a linear or cosine decay"),
    ("optimizer.warmup_steps", "MaxText takes a share of the schedule, and none gives this number of steps"),
    ("optimizer.hold_steps", "MaxText holds the rate in its schedule wsd alone, for what warm-up and decay leave"),
    ("optimizer.on_non_finite", "MaxText ends the run, or goes on with what there is"),
    ("optimizer", _NO_WORD),
    ("objective", "MaxText shortens prompts in its own way"),
    ("data.kind", "MaxText has no pipeline for such data, or not for such paths"),
    ("data.weights", "MaxText mixes by weights, and by grain alone; equal ones are given where there are none"),
    ("data", "MaxText's pipeline for this data does not read it"),
    ("epochs", "MaxText counts epochs of real data, and has no number for no limit"),
    ("evaluation", "MaxText evaluates every so many steps, on so many batches"),
    ("logging", "MaxText has one way of logging"),
    ("execution.remat", "MaxText has no policy of this name"),
    ("execution.remat_modules", "MaxText chooses by its policies' names"),
    ("execution.attention", "MaxText has no attention of this name"),
    ("execution.xla_flags", "a flag with blanks or quotes in it does not stay one flag"),
    ("execution.environment", "some of these are no names for a shell, are secrets, or mean something else to MaxText"),
    ("execution.profile_from_step", "MaxText profiles from a step on, or not at all"),
    ("checkpoint.resume", "MaxText goes on from the checkpoints of its run's name wherever it saves them"),
    ("checkpoint.resume_from", "MaxText loads everything only where it saves checkpoints"),
    ("checkpoint", "MaxText saves every so many steps, into a folder of the run's"),
    ("log_dir", "MaxText would take this text for something else"),
    ("distributed", "MaxText leaves it to JAX"),
    ("container", "a command says nothing of the container that it runs in"),
    ("nic_type", _NO_WORD),
    ("hf_token_file", "MaxText reads the token from the variable HF_TOKEN"),
    ("expectations", "MaxText holds a run to nothing"),
)  # fmt: skip


def write(spec: RunSpec, read: Callable[[Request], Resolved]) -> Written:
    """The text, and a note for each value that it does not say."""
    environment, values = stated(spec)
    arguments = {name: _argument(value) for name, value in values.items()}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    words = [" ".join(_PROGRAM), *(f"{name}={shlex.quote(value)}" for name, value in arguments.items())]
    text = "\n".join(["#!/usr/bin/env bash", *lines, " \\\n    ".join(words), ""])
    again = read(_request(environment, [*_PROGRAM, *(f"{name}={value}" for name, value in arguments.items())]))
    assert again.spec is not None, again.problems
    return Written(text=text, suffix=".sh", notes=tuple(_notes(spec, again.spec)))


def stated(spec: RunSpec) -> tuple[dict[str, str], dict[str, Any]]:
    """(variables, keys of MaxText's) that say what can be said of a run."""
    return dict(_environment(spec)), {name: value for name, value in _arguments(spec) if _can_be_said(value)}


def _notes(spec: RunSpec, again: RunSpec) -> Iterator[Note]:
    said, meant = flatten(again), flatten(spec)
    if spec.container is not None:
        yield Note(path="container", value=spec.container, why=_why("container"))
    for path, value in meant.items():
        if path in ("name", "dialect") or path.startswith("container"):
            continue
        if path not in said or said[path] != value or type(said[path]) is not type(value):
            yield Note(path=path, value=value, why=_why(path))
    if spec.model.rope_scaling is None and again.model.rope_scaling is not None:
        yield Note(path="model.rope_scaling", value=None, why=_why("model.rope_scaling"))


def _why(path: str) -> str:
    return next((why for start, why in _WHY if path == start or path.startswith(f"{start}.")), _NO_WORD)


def _request(environment: dict[str, str], words: list[str]) -> Request:
    """What reading the text comes to, without the text."""
    mark = Mark(file="run.sh", line=1, column=1)
    variables = {name: Node(value=value, text=value, mark=mark) for name, value in environment.items()}
    argv = [Node(value=word, text=word, mark=mark) for word in words]
    root = Node(value={"environment": Node(value=variables, mark=mark), "argv": Node(value=argv, mark=mark)}, mark=mark)
    document = Document(file="/nowhere/run.sh", root=root)
    return Request(document=document, overrides=[], action="plan", user="", home=Path("/"))


# --- values → text ----------------------------------------------------------------------------------------------------


def _can_be_said(value: Any) -> bool:
    """Whether MaxText takes a value for itself: not a text that means None to it, nor an interpolation."""
    if value == "":
        return True  # how MaxText writes that there is none
    items = value if isinstance(value, (list, tuple)) else [value]
    return value is not None and not any(
        isinstance(item, str) and ("${" in item or maxtext_values.nothing(item) or item == "") for item in items
    )


def _argument(value: Any) -> str:
    """A value as MaxText reads it from a command line, which is as YAML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return json.dumps(list(value), ensure_ascii=False)
    if isinstance(value, float):
        return repr(value)
    text = str(value)
    if isinstance(value, str) and not _reads_as_itself(text):
        return json.dumps(text, ensure_ascii=False)
    return text


def _reads_as_itself(text: str) -> bool:
    if not re.fullmatch(r"[A-Za-z0-9_./-][A-Za-z0-9_./ -]*", text) or text != text.strip() or text.startswith("-"):
        return False
    try:
        return isinstance(source.core_scalar(text), str) and text.lower() not in ("yes", "no", "on", "off", "y", "n")
    except ValueError:
        return True


def _environment(spec: RunSpec) -> Iterator[tuple[str, str]]:
    for name, value in spec.execution.environment.items():
        if _VARIABLE.fullmatch(name) and is_kept(name):
            yield name, value
    distributed = flatten(spec.distributed, "distributed")
    plain = {"distributed.initialization_timeout_seconds", "topology.num_nodes"}
    default = flatten(type(spec.distributed)(), "distributed")
    for name, (path, _) in PLACED.items():
        if path not in plain and distributed[path] != default[path]:
            yield name, str(distributed[path])
    flags = {name: value for name, value in spec.execution.xla_flags.items() if is_sound(name, value)}
    if flags:
        yield FLAGS, " ".join(f"--{name}={value}" for name, value in flags.items())


def _arguments(spec: RunSpec) -> Iterator[tuple[str, Any]]:
    """(key, value) of everything that MaxText can be told."""
    yield "run_name", spec.name
    yield "hardware", "gpu"
    yield from _model(spec)
    yield "steps", spec.steps
    yield from _batch(spec)
    yield from _mesh(spec)
    yield from _precision(spec)
    yield from _optimizer(spec)
    yield from _objective(spec)
    yield from _data(spec)
    yield from _execution(spec)
    yield from _kept(spec)


def _model(spec: RunSpec) -> Iterator[tuple[str, Any]]:
    model = spec.model
    if model.name in NAMED and model == MODELS[model.name]:
        yield "model_name", model.name
    else:
        activations = {name: words for words, name in maxtext_values.ACTIVATIONS.items()}
        for key, field in ARCHITECTURE.items():
            value = getattr(model, field)
            yield key, activations[value] if key == "mlp_activations" else value
        if model.rope_scaling == RopeScaling():
            yield "rope_type", "llama3.1"
        if model.sliding_window is not None:
            yield "attention_type", "local_sliding"
            yield "sliding_window_size", model.sliding_window
        if model.tied_embeddings:
            yield "normalize_embedding_logits", False
    rates = {spec.dropout.hidden, spec.dropout.attention, spec.dropout.ffn}
    if len(rates) == 1 and rates != {0.0}:
        if model.name in NAMED and model == MODELS[model.name]:
            yield "override_model_config", True
            yield "enable_dropout", True
        yield "dropout_rate", rates.pop()


def _batch(spec: RunSpec) -> Iterator[tuple[str, Any]]:
    each = spec.batch.micro_batch_size * spec.data_parallel_size
    yield "per_device_batch_size", coerce.fraction_of(each, spec.topology.num_devices)
    yield "gradient_accumulation_steps", spec.accumulation_steps
    yield "max_target_length", spec.batch.sequence_length


def _mesh(spec: RunSpec) -> Iterator[tuple[str, Any]]:
    parts = (
        ("dcn", spec.parallelism.across_nodes, spec.topology.num_nodes),
        ("ici", spec.parallelism.within_node, spec.topology.devices_per_node),
    )
    is_sequence = spec.parallelism.sequence_parallel and spec.mesh["tensor"] > 1
    for part, shape, devices in parts:
        sizes = _resolved(shape, devices).sizes
        for axis in AXES:
            name = "tensor_sequence" if axis == "tensor" and is_sequence else axis
            yield f"{part}_{name}_parallelism", sizes[axis]
    stages = spec.mesh["pipeline"]
    around = stages * spec.parallelism.virtual_pipeline
    if stages > 1:
        yield "num_pipeline_repeats", spec.parallelism.virtual_pipeline if spec.model.num_layers % around == 0 else 1
        held = around if spec.model.num_layers % around == 0 else stages
        yield "num_layers_per_pipeline_stage", max(1, spec.model.num_layers // held)
    yield "shard_optimizer_over_data", spec.parallelism.zero1
    if spec.parallelism.context_strategy != "all_gather":
        yield "context_parallel_strategy", spec.parallelism.context_strategy


def _resolved(shape: MeshShape, devices: int) -> MeshShape:
    """The shape with sizes alone; where a -1 cannot be made of the devices, it is 1."""
    found = shape.resolve(devices)
    return MeshShape(**{axis: 1 if size == -1 else size for axis, size in found.sizes.items()})


def _precision(spec: RunSpec) -> Iterator[tuple[str, Any]]:
    precision = spec.precision
    yield "dtype", precision.compute_dtype
    yield "weight_dtype", precision.params_dtype
    yield "grad_dtype", precision.gradient_dtype
    yield "mu_dtype", precision.optimizer_dtype
    is_refused = precision.quantization in maxtext_values.NO_ACCUMULATION and spec.accumulation_steps > 1
    if precision.quantization in maxtext_values.QUANTIZATION and not is_refused:
        yield "quantization", precision.quantization


def _optimizer(spec: RunSpec) -> Iterator[tuple[str, Any]]:
    optimizer = spec.optimizer
    yield "opt_type", optimizer.algorithm if optimizer.algorithm in maxtext_values.ALGORITHMS else "adamw"
    yield "learning_rate", optimizer.learning_rate
    yield "learning_rate_final_fraction", optimizer.final_learning_rate_fraction
    yield "learning_rate_schedule_steps", -1 if optimizer.decay_steps is None else optimizer.decay_steps
    length = optimizer.decay_steps or spec.steps
    warmup, hold = min(optimizer.warmup_steps, length), optimizer.hold_steps
    yield "warmup_steps_fraction", coerce.fraction_of(warmup, length)
    is_wsd = optimizer.schedule == "linear" or (optimizer.schedule == "cosine" and hold > 0)
    if is_wsd and warmup + hold <= length:
        yield "lr_schedule_type", "wsd"
        yield "wsd_decay_style", optimizer.schedule
        yield "wsd_decay_steps_fraction", coerce.fraction_of(length - warmup - hold, length)
    yield "adam_b1", optimizer.beta1
    yield "adam_b2", optimizer.beta2
    yield "adam_eps", optimizer.epsilon
    yield "adam_weight_decay", optimizer.weight_decay
    if not optimizer.decay_norms:
        yield "adamw_mask", [".*norm.*", ".*bias.*"]
    yield "gradient_clipping_threshold", optimizer.clip_norm or 0.0
    if optimizer.on_non_finite == "continue":
        yield "abort_on_nan_loss", False
        yield "abort_on_inf_loss", False
    yield "init_weights_seed", spec.seed
    yield "data_shuffle_seed", spec.seed


def _objective(spec: RunSpec) -> Iterator[tuple[str, Any]]:
    objective = spec.objective
    if objective.kind == "sft":
        yield "use_sft", True
        yield "sft_train_on_completion_only", True
    if objective.kind in ("dpo", "orpo"):
        yield "use_dpo", True
        yield "dpo.algo", objective.kind
    yield "dpo.orpo_lambda" if objective.kind == "orpo" else "dpo.dpo_beta", objective.beta
    if objective.max_prompt_length is not None:
        yield "dpo.max_prompt_length", objective.max_prompt_length


def _data(spec: RunSpec) -> Iterator[tuple[str, Any]]:
    data = spec.data
    words = {kind: word for word, kind in maxtext_values.DATASETS.items()} | {"megatron": "grain"}
    kind = words.get(data.kind, "synthetic")
    needed = {"hf": data.dataset, "grain": _mixed(spec)}.get(kind, "nothing")
    if not needed or not _can_be_said(needed):
        kind = "synthetic"
    yield "dataset_type", kind
    if kind == "synthetic":
        return
    if data.kind == "megatron":
        yield "grain_file_type", "mmap"
        yield "eod_mask_loss", data.mask_document_ends
    yield "tokenizer_path", data.tokenizer
    yield "packing", data.packing
    if spec.epochs is not None:
        yield "num_epoch", spec.epochs
    if kind == "grain":
        yield "grain_train_files", _mixed(spec)
        yield "grain_eval_files", _one(data.validation_paths)
        return
    if kind == "hf":
        yield "hf_path", data.dataset
        yield "hf_train_files", _one(data.paths)
        yield "hf_eval_files", _one(data.validation_paths)
        return
    yield "dataset_name", data.dataset
    yield "dataset_path", _one(data.paths)


def _one(paths: tuple[str, ...]) -> str | None:
    """The path, where there is just one: MaxText takes no list."""
    return paths[0] if len(paths) == 1 else None


def _mixed(spec: RunSpec) -> str | None:
    """A path, or several with their weights, as grain mixes them; equal ones where there are none."""
    paths, weights = spec.data.paths, spec.data.weights or (1.0,) * len(spec.data.paths)
    if not paths or len(weights) != len(paths) or any(";" in path for path in paths):
        return None
    if len(paths) == 1 and not spec.data.weights:
        return paths[0]
    return "".join(f"{path},{weight!r};" for path, weight in zip(paths, weights, strict=True))


def _execution(spec: RunSpec) -> Iterator[tuple[str, Any]]:
    execution = spec.execution
    yield "remat_policy", execution.remat if execution.remat in maxtext_values.REMAT else "full"
    yield "scan_layers", execution.scan_layers
    words = {ours: word for word, ours in maxtext_values.ATTENTION.items()}
    yield "attention", words.get(execution.attention, "autoselected")
    yield "jax_cache_dir", "" if execution.compile_cache is None else execution.compile_cache
    if execution.profile_from_step is not None:
        yield "profiler", "xplane"
        yield "skip_first_n_steps_for_profiler", execution.profile_from_step
    yield "profiler_steps", execution.profile_steps


def _kept(spec: RunSpec) -> Iterator[tuple[str, Any]]:
    checkpoint = spec.checkpoint
    yield "enable_checkpointing", checkpoint.enabled
    yield "async_checkpointing", checkpoint.asynchronous
    if checkpoint.interval_steps is not None or checkpoint.enabled:
        yield "checkpoint_period", checkpoint.interval_steps or spec.steps
    if checkpoint.keep is not None:
        yield "max_num_checkpoints_to_keep", checkpoint.keep
    if checkpoint.resume_from is not None and checkpoint.weights_only:
        yield "load_parameters_path", checkpoint.resume_from
    elif checkpoint.resume_from is not None and checkpoint.enabled:
        yield "load_full_state_path", checkpoint.resume_from
    yield "eval_interval", spec.evaluation.interval_steps or -1
    yield "eval_steps", spec.evaluation.batches or -1
    yield "target_eval_loss", spec.evaluation.target_loss or 0.0
    yield "enable_tensorboard", spec.logging.tensorboard
    yield "base_output_directory", spec.log_dir
    yield "jax_distributed_initialization_timeout", spec.distributed.initialization_timeout_seconds
