"""A MaxText configuration's values → RunSpec, with MaxText's arithmetic and defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping

from seatrial.dialects.maxtext import machines as maxtext_machines
from seatrial.dialects.maxtext import model as maxtext_model
from seatrial.dialects.maxtext.keys import DEFAULTS, KEYS, OURS, PARTS
from seatrial.dialects.maxtext.machines import NODES, Built
from seatrial.dialects.maxtext.settings import Settings
from seatrial.dialects.maxtext.values import DATASETS
from seatrial.dialects.typed import as_name
from seatrial.spec import (
    METRICS,
    Checkpoint,
    Data,
    Distributed,
    Dropout,
    Evaluation,
    Execution,
    Expectation,
    Logging,
    MeshShape,
    Objective,
    Optimizer,
    Origin,
    Parallelism,
    Precision,
    RunSpec,
    Topology,
)

NAME = "maxtext"

# Keys whose value goes to one path as it is; the others of the table are computed below.
_PLAIN = (
    "max_target_length", "dtype", "weight_dtype", "grad_dtype", "quantization", "opt_type", "learning_rate",
    "learning_rate_final_fraction", "learning_rate_schedule_steps", "adam_b1", "adam_b2", "adam_eps",
    "adam_weight_decay", "init_weights_seed", "shard_optimizer_over_data", "context_parallel_strategy", "remat_policy",
    "attention", "scan_layers", "jax_cache_dir", "profiler_steps", "eval_interval", "eval_steps", "enable_tensorboard",
    "base_output_directory", "async_checkpointing", "max_num_checkpoints_to_keep", "dpo.max_prompt_length",
    "jax_distributed_initialization_timeout",
)  # fmt: skip


def build(settings: Settings) -> tuple[RunSpec | None, dict[str, Origin]]:
    """The spec, as far as the values allow one, and where its values came from."""
    built = Built()
    for name in _PLAIN:
        built.put(KEYS[name].to, settings.get(name), settings.origin(name))
    model = maxtext_model.build(settings, built.origins)
    steps = _steps(settings, built)
    maxtext_machines.mesh(settings, built)
    maxtext_machines.topology(settings, built)
    _precision_and_optimizer(settings, built, steps or 1)
    _objective(settings, built)
    _data(settings, built)
    _execution(settings, built)
    _checkpoint(settings, built)
    _dropout(settings, built)
    within, across = (built.part(MeshShape, f"parallelism.{part}") for part in PARTS.values())
    topology = built.part(Topology, "topology")
    batch = maxtext_machines.batch(settings, built, topology, within, across)
    if model is None or batch is None or steps is None:
        return None, built.origins
    _virtual_pipeline(settings, built, model.num_layers, within.pipeline * across.pipeline)
    name = settings.get("run_name")
    built.origins |= settings.around.origins
    is_named = name is not None and "$" not in name and "<" not in name
    built.origins["name"] = settings.origin("run_name", "" if is_named else "the model's name stands in for it")
    spec = RunSpec(
        name=as_name(name if is_named else model.name),
        dialect=NAME,
        model=model,
        batch=batch,
        steps=steps,
        epochs=built.values["epochs"],
        topology=topology,
        parallelism=Parallelism(
            within_node=within, across_nodes=across,
            virtual_pipeline=built.values["parallelism.virtual_pipeline"],
            zero1=built.values["parallelism.zero1"],
            sequence_parallel=built.values["parallelism.sequence_parallel"],
            context_strategy=built.values["parallelism.context_strategy"],
        ),
        precision=built.part(Precision, "precision"),
        dropout=built.part(Dropout, "dropout"),
        optimizer=built.part(Optimizer, "optimizer"),
        objective=built.part(Objective, "objective"),
        data=built.part(Data, "data"),
        evaluation=built.part(Evaluation, "evaluation"),
        logging=built.part(Logging, "logging"),
        execution=built.part(Execution, "execution"),
        checkpoint=built.part(Checkpoint, "checkpoint"),
        distributed=built.part(Distributed, "distributed"),
        container=settings.around.container,
        log_dir=built.values["log_dir"],
        expectations=_expectations(settings, built),
        seed=built.values["seed"],
    )  # fmt: skip
    return spec, built.origins


# --- steps, and how often a batch goes around -------------------------------------------------------------------------


def _steps(settings: Settings, built: Built) -> int | None:
    steps, schedule = settings.get("steps"), settings.get("learning_rate_schedule_steps")
    if steps is None and schedule is None:
        why = "with -1, learning_rate_schedule_steps says how long the run is, and that is -1, too"
        settings.find("steps", "error", "bad-value", why, "give a number of steps")
    name = "steps" if steps is not None else "learning_rate_schedule_steps"
    built.put("steps", steps if steps is not None else schedule, settings.origin(name))
    return None if settings.wrong("steps") else built.values["steps"]


def _virtual_pipeline(settings: Settings, built: Built, layers: int, stages: int) -> None:
    """How often a batch goes around: once for each group of layers that the stages hold at a time."""
    path, repeats = "parallelism.virtual_pipeline", settings.get("num_pipeline_repeats")
    each = settings.get("num_layers_per_pipeline_stage")
    if stages <= 1:
        built.put(path, 1, Origin(kind="default", note="there is no pipeline"))
        return
    if layers % (stages * each * (repeats or 1)) or (repeats and stages * each * repeats != layers):
        name = "num_pipeline_repeats" if repeats else "num_layers_per_pipeline_stage"
        why = f"{stages} stages × {each} layers × {repeats or 'repeats'} do not make the model's {layers} layers"
        settings.find(name, "error", "not-divisible", why, "make the product of the three the number of layers")
    made = repeats or max(1, layers // (stages * each))
    note = "" if repeats else "layers ÷ stages ÷ num_layers_per_pipeline_stage"
    built.put(path, made, settings.origin("num_pipeline_repeats", note))


# --- what is computed -------------------------------------------------------------------------------------------------


def _precision_and_optimizer(settings: Settings, built: Built, steps: int) -> None:
    moments = "mu_dtype" if settings.get("mu_dtype") else "weight_dtype"
    note = "" if moments == "mu_dtype" else "MaxText keeps Adam's moments in weight_dtype"
    built.put("precision.optimizer_dtype", settings.get(moments), settings.origin(moments, note))
    clip = settings.get("gradient_clipping_threshold")
    built.put("optimizer.clip_norm", clip or None, settings.origin("gradient_clipping_threshold"))
    aborts = {name: settings.get(name) for name in ("abort_on_nan_loss", "abort_on_inf_loss")}
    first = next((name for name, value in aborts.items() if value), "abort_on_nan_loss")
    built.put("optimizer.on_non_finite", "abort" if any(aborts.values()) else "continue", settings.origin(first))
    mask = settings.get("adamw_mask")
    built.put("optimizer.decay_norms", not mask, settings.origin("adamw_mask", "" if mask else "all are decayed"))
    _schedule(settings, built, steps)


def _schedule(settings: Settings, built: Built, steps: int) -> None:
    """Warm-up and phases in steps, as MaxText rounds them: shares of the schedule, cut off."""
    length = settings.get("learning_rate_schedule_steps") or steps
    warmup = int(length * settings.get("warmup_steps_fraction"))
    note = f"{settings.get('warmup_steps_fraction'):g} of {length} steps"
    origin = settings.origin("warmup_steps_fraction", note)
    built.put("optimizer.warmup_steps", warmup, origin)
    is_wsd = settings.get("lr_schedule_type") == "wsd"
    style = settings.get("wsd_decay_style") if is_wsd else "cosine"
    named = "wsd_decay_style" if is_wsd and "wsd_decay_style" in settings.values else "lr_schedule_type"
    built.put("optimizer.schedule", style, settings.origin(named))
    if is_wsd:
        decay = int(length * settings.get("wsd_decay_steps_fraction"))
        if warmup + decay > length:
            why = f"{warmup} steps of warm-up and {decay} of decay are more than the schedule's {length}"
            settings.find("wsd_decay_steps_fraction", "error", "bad-value", why, "make both shares 1 at most")
        origin = settings.origin("wsd_decay_steps_fraction", "what warm-up and decay leave of the schedule")
        built.put("optimizer.hold_steps", max(0, length - warmup - decay), origin)


def _objective(settings: Settings, built: Built) -> None:
    is_sft = settings.get("use_sft") or "train_sft" in settings.trainer
    is_dpo = settings.get("use_dpo") or "train_dpo" in settings.trainer
    kind = settings.get("dpo.algo") if is_dpo else "sft" if is_sft else "pretraining"
    built.put("objective.kind", kind, settings.origin("use_dpo" if is_dpo else "use_sft"))
    beta = "dpo.orpo_lambda" if kind == "orpo" else "dpo.dpo_beta"
    built.put("objective.beta", settings.get(beta), settings.origin(beta))


def _dropout(settings: Settings, built: Built) -> None:
    """One rate for all; the files of MaxText's named models turn it off."""
    is_named = settings.get("model_name") != "default"
    enabled = settings.values.get("enable_dropout", not is_named) if maxtext_model.is_free(settings) else False
    rate = settings.get("dropout_rate") if enabled else 0.0
    note = "" if enabled else "enable_dropout is false" + (", as the model's file says" if is_named else "")
    for path in ("hidden", "attention", "ffn"):
        built.put(f"dropout.{path}", rate, settings.origin("dropout_rate", note))


def _data(settings: Settings, built: Built) -> None:
    """What is read, by the pipeline that reads it; of synthetic data, nothing."""
    kind = settings.get("dataset_type")
    note = "" if "dataset_type" in settings.values else "since 0.2.5; before, tfds"
    is_mapped = kind == "grain" and settings.values.get("grain_file_type") == "mmap"
    built.put("data.kind", "megatron" if is_mapped else kind, settings.origin("dataset_type", note))
    built.put("epochs", None if kind == "synthetic" else settings.get("num_epoch"), settings.origin("num_epoch"))
    if kind == "synthetic":
        return
    built.put("data.packing", settings.get("packing"), settings.origin("packing"))
    if settings.values.get("tokenizer_path"):
        built.put("data.tokenizer", settings.values["tokenizer_path"], settings.origin("tokenizer_path"))
    elif not is_mapped:
        why = "MaxText takes the tokenizer of the model, or Llama 2's; here bytes are the tokens"
        settings.find("tokenizer_path", "info", "tokenizer-not-given", why, "give tokenizer_path=…")
    sources = SOURCES[kind]
    for path, name in sources.items():
        value = settings.get(name) if name in DEFAULTS else settings.values.get(name)
        if value:
            built.put(path, value if path == "data.dataset" else (value,), settings.origin(name))
    if "grain_train_files" in sources.values():
        _mixture(settings, built)
    if is_mapped and "eod_mask_loss" in settings.values:
        built.put("data.mask_document_ends", settings.values["eod_mask_loss"], settings.origin("eod_mask_loss"))


# Pipeline → which key says what.
SOURCES: Mapping[str, Mapping[str, str]] = {
    "huggingface": {
        "data.dataset": "hf_path", "data.paths": "hf_train_files", "data.validation_paths": "hf_eval_files",
    },
    "grain": {"data.paths": "grain_train_files", "data.validation_paths": "grain_eval_files"},
    "tfds": {"data.dataset": "dataset_name", "data.paths": "dataset_path"},
    "c4_mlperf": {"data.dataset": "dataset_name", "data.paths": "dataset_path"},
}  # fmt: skip
assert set(SOURCES) == set(DATASETS.values()) - {"synthetic"}


def _mixture(settings: Settings, built: Built) -> None:
    """`path,weight;path,weight`: what grain mixes, and how much of each."""
    paths = built.values.get("data.paths", ())
    if len(paths) != 1 or ";" not in paths[0]:
        return
    found = [item.rpartition(",") for item in paths[0].split(";") if item]
    try:
        weights = tuple(float(weight) for _, _, weight in found)
    except ValueError:
        weights = (-1.0,)
    if not all(name and 0 < weight < math.inf for (name, _, _), weight in zip(found, weights, strict=False)):
        why = "of several paths, each needs its weight: path,weight;path,weight"
        settings.find("grain_train_files", "error", "bad-value", why, "give every path a weight above 0")
        return
    built.put("data.paths", tuple(name for name, _, _ in found), settings.origin("grain_train_files"))
    built.put("data.weights", weights, settings.origin("grain_train_files"))


# --- how it is done, and kept -----------------------------------------------------------------------------------------


def _execution(settings: Settings, built: Built) -> None:
    first = settings.get("skip_first_n_steps_for_profiler") if settings.get("profiler") else None
    built.put("execution.profile_from_step", first, settings.origin("profiler"))
    variables = settings.variables
    built.values["execution.xla_flags"] = {name: value for name, (value, _) in variables.flags.items()}
    built.values["execution.environment"] = {name: str(entry.value) for name, entry in variables.rest.items()}
    built.origins |= {f"execution.xla_flags.{name}": entry.origin() for name, (_, entry) in variables.flags.items()}
    built.origins |= {f"execution.environment.{name}": entry.origin() for name, entry in variables.rest.items()}
    for path, (value, entry) in variables.placed.items():
        repeated = path == "distributed.initialization_timeout_seconds" and (
            "jax_distributed_initialization_timeout" in settings.values
        )
        if path != NODES and not repeated:
            built.put(path, value, entry.origin())


def _checkpoint(settings: Settings, built: Built) -> None:
    enabled, origin = settings.get("enable_checkpointing"), settings.origin("enable_checkpointing")
    built.put("checkpoint.enabled", enabled, origin)
    note = "a run goes on from the checkpoints of its name"
    built.put("checkpoint.resume", enabled, settings.origin("enable_checkpointing", note))
    if enabled or "checkpoint_period" in settings.values:
        built.put("checkpoint.interval_steps", settings.get("checkpoint_period"), settings.origin("checkpoint_period"))
    name = "load_parameters_path" if settings.get("load_parameters_path") else "load_full_state_path"
    built.put("checkpoint.resume_from", settings.get(name), settings.origin(name))
    if name == "load_parameters_path":
        built.put("checkpoint.weights_only", True, settings.origin(name))


def _expectations(settings: Settings, built: Built) -> tuple[Expectation, ...]:
    bars = []
    for name in OURS:
        metric = name.removeprefix("expectations.")
        if metric in METRICS and name in settings.values:
            bars.append(Expectation(metric=metric, value=settings.values[name]))
            built.origins[name] = settings.origin(name)
    return tuple(bars)
