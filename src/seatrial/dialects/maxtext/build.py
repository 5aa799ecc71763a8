"""A MaxText configuration's values → RunSpec, with MaxText's arithmetic and defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from seatrial.dialects import jobs
from seatrial.dialects.jobs import JOB, NODES
from seatrial.dialects.maxtext import machines as maxtext_machines
from seatrial.dialects.maxtext import model as maxtext_model
from seatrial.dialects.maxtext import values
from seatrial.dialects.maxtext.keys import KEYS, OURS
from seatrial.dialects.maxtext.machines import Built
from seatrial.dialects.maxtext.settings import Settings
from seatrial.dialects.maxtext.values import DATASETS
from seatrial.dialects.spec_fields import fields_of
from seatrial.dialects.typed import as_name
from seatrial.spec import INPUT, METRICS, TENSORS, Expectation, Origin, RunSpec

NAME = "maxtext"

# The parts of a run that are made of the values under their paths, as they are.
_PARTS = (
    "parallelism", "precision", "dropout", "optimizer", "objective", "data", "evaluation", "logging", "execution",
    "checkpoint", "distributed",
)  # fmt: skip


def build(settings: Settings) -> tuple[RunSpec | None, dict[str, Origin]]:
    """The spec, as far as the values allow one, and where its values came from."""
    built = Built(settings)
    model = maxtext_model.build(settings, built.origins)
    steps = _steps(settings, built)
    within, across = maxtext_machines.mesh(settings, built)
    topology = maxtext_machines.topology(settings, built, within, across)
    _precision_and_optimizer(settings, built)
    _schedule(settings, built, steps or 1)
    _objective(settings, built)
    _data(settings, built)
    _execution(settings, built)
    _checkpoint(settings, built)
    _dropout(settings, built)
    batch = maxtext_machines.batch(settings, built, topology, within, across)
    if model is None or batch is None or steps is None:
        return None, built.origins
    _virtual_pipeline(settings, built, model.num_layers, within.pipeline * across.pipeline)
    name = settings.get("run_name")
    is_named = name is not None and "$" not in name and "<" not in name
    built.put("name", "run_name", note="" if is_named else "the model's name is used instead")
    built.origins |= settings.around.origins
    built.values |= {"parallelism.within_node": within, "parallelism.across_nodes": across}
    parts: dict[str, Any] = {part: built.part(fields_of(RunSpec)[part].kind, part) for part in _PARTS}
    spec = RunSpec(
        name=as_name(name if is_named else model.name), dialect=NAME, model=model, batch=batch, steps=steps,
        epochs=built.values["epochs"], topology=topology, container=settings.around.container,
        log_dir=built.values["log_dir"], expectations=_expectations(settings, built), seed=built.values["seed"],
        **parts,
    )  # fmt: skip
    return spec, built.origins


# --- steps, and how often a batch goes around -------------------------------------------------------------------------


def _steps(settings: Settings, built: Built) -> int | None:
    names = ("steps", "learning_rate_schedule_steps")
    name = next((name for name in names if settings.get(name) is not None), "")
    if not name:
        why = "-1 means learning_rate_schedule_steps, which is -1 as well"
        settings.add("steps", "error", "bad-value", why, "give a number of steps")
    built.put("steps", name or names[1])
    return None if settings.wrong("steps") else built.values["steps"]


def _virtual_pipeline(settings: Settings, built: Built, layers: int, stages: int) -> None:
    """Puts the number of rounds of a batch: one for each group of layers that the stages hold at a time."""
    path, repeats = "parallelism.virtual_pipeline", settings.get("num_pipeline_repeats")
    each = settings.get("num_layers_per_pipeline_stage")
    if stages <= 1:
        built.values[path], built.origins[path] = 1, Origin(kind="default", note="there is no pipeline")
        return
    if layers % (stages * each * (repeats or 1)) or (repeats and stages * each * repeats != layers):
        name = "num_pipeline_repeats" if repeats else "num_layers_per_pipeline_stage"
        why = f"{stages} stages × {each} layers × {repeats or 'repeats'} are not the model's {layers} layers"
        settings.add(name, "error", "not-divisible", why, "make the product of the three the number of layers")
    note = "" if repeats else "layers ÷ stages ÷ num_layers_per_pipeline_stage"
    built.put(path, "num_pipeline_repeats", repeats or max(1, layers // (stages * each)), note)


# --- what is computed -------------------------------------------------------------------------------------------------


def _precision_and_optimizer(settings: Settings, built: Built) -> None:
    if settings.get("mu_dtype"):
        built.put("precision.optimizer_dtype", "mu_dtype")
    else:
        built.put("precision.optimizer_dtype", "weight_dtype", note="MaxText keeps Adam's moments in weight_dtype")
    names = ("abort_on_nan_loss", "abort_on_inf_loss")
    aborts = [name for name in names if settings.get(name)]
    built.put("optimizer.on_non_finite", (*aborts, *names)[0], "abort" if aborts else "continue")
    mask = settings.get("adamw_mask")
    built.put("optimizer.decay_norms", "adamw_mask", not mask, "" if mask else "all are decayed")


def _schedule(settings: Settings, built: Built, steps: int) -> None:
    """Warm-up and phases in steps, as MaxText rounds them: shares of the schedule, cut off."""
    length = settings.get("learning_rate_schedule_steps") or steps
    share = settings.get("warmup_steps_fraction")
    warmup = int(length * share)
    built.put("optimizer.warmup_steps", "warmup_steps_fraction", warmup, f"{share:g} of {length} steps")
    if settings.get("lr_schedule_type") != "wsd":
        built.put("optimizer.schedule", "lr_schedule_type", "maxtext_cosine")
        return
    named = "wsd_decay_style" if "wsd_decay_style" in settings.values else "lr_schedule_type"
    built.put("optimizer.schedule", named, values.DECAYS[settings.get("wsd_decay_style")])
    name = "wsd_decay_steps_fraction"
    decay = int(length * settings.get(name))
    if warmup + decay > length:
        why = f"{warmup} steps of warm-up and {decay} of decay are more than the schedule's {length}"
        settings.add(name, "error", "bad-value", why, "make both shares 1 at most")
    note = "the schedule less warm-up and decay"
    built.put("optimizer.hold_steps", name, max(0, length - warmup - decay), note)


def _objective(settings: Settings, built: Built) -> None:
    is_sft = settings.get("use_sft") or "train_sft" in settings.trainer
    is_dpo = settings.get("use_dpo") or "train_dpo" in settings.trainer
    kind = settings.get("dpo.algo") if is_dpo else "sft" if is_sft else "pretraining"
    built.put("objective.kind", "use_dpo" if is_dpo else "use_sft", kind)
    built.put("objective.beta", "dpo.orpo_lambda" if kind == "orpo" else "dpo.dpo_beta")


def _dropout(settings: Settings, built: Built) -> None:
    """One rate for all; the files of MaxText's named models turn it off."""
    is_named = settings.get("model_name") != maxtext_model.DEFAULT
    is_free = not is_named or settings.get("override_model_config")
    enabled = settings.get("enable_dropout", not is_named) if is_free else False
    note = "" if enabled else "enable_dropout is false" + (", as the model's file says" if is_named else "")
    for path in KEYS["dropout_rate"].paths:
        built.put(path, "dropout_rate", settings.get("dropout_rate") if enabled else 0.0, note)


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


def _data(settings: Settings, built: Built) -> None:
    """Puts the data, by the pipeline that reads it; of synthetic data, only its kind."""
    kind = settings.get("dataset_type")
    note = "" if "dataset_type" in settings.values else "since 0.2.5; before, tfds"
    is_mapped = kind == "grain" and settings.get("grain_file_type") == "mmap"
    built.put("data.kind", "dataset_type", "megatron" if is_mapped else kind, note)
    built.put("epochs", "num_epoch", None if kind == "synthetic" else settings.get("num_epoch"))
    if kind == "synthetic":
        return
    built.put("data.packing", "packing")
    if not is_mapped:
        built.put("data.add_bos", "add_bos")
    if not settings.get("tokenizer_path") and not is_mapped:
        why = "MaxText uses the tokenizer of the model, or Llama 2's; here each byte is a token"
        settings.add("tokenizer_path", "info", "tokenizer-not-given", why, "give tokenizer_path=…")
    for path, name in {"data.tokenizer": "tokenizer_path", **SOURCES[kind]}.items():
        if value := settings.get(name):
            built.put(path, name, (value,) if path.endswith("paths") else value)
    if kind == "grain":
        _mixture(settings, built)
    if is_mapped and "eod_mask_loss" in settings.values:
        built.put("data.mask_document_ends", "eod_mask_loss")


def _mixture(settings: Settings, built: Built) -> None:
    """`path,weight;path,weight`: what grain mixes, and how much of each."""
    name = "grain_train_files"
    text = settings.get(name) or ""
    if ";" not in text:
        return
    found = [item.rpartition(",") for item in text.split(";") if item]
    paths = tuple(path for path, _, _ in found)
    try:
        weights = tuple(float(weight) for _, _, weight in found)
    except ValueError:
        weights = (-1.0,)
    if not all(paths) or not all(0 < weight < math.inf for weight in weights):
        why = "of several paths, each needs its weight: path,weight;path,weight"
        settings.add(name, "error", "bad-value", why, "give every path a weight above 0")
        return
    built.put("data.paths", name, paths)
    built.put("data.weights", name, weights)


# --- how it is done, and kept -----------------------------------------------------------------------------------------


def _execution(settings: Settings, built: Built) -> None:
    first = settings.get("skip_first_n_steps_for_profiler") if settings.get("profiler") else None
    built.put("execution.profile_from_step", "profiler", first)
    if settings.get("remat_policy") == "custom":
        _tensors(settings, built)
    variables = settings.variables
    built.values[JOB] = jobs.options(settings.job)
    built.origins |= jobs.origins(settings.job)
    built.values["execution.xla_flags"] = {name: value for name, (value, _) in variables.flags.items()}
    built.values["execution.environment"] = {name: str(entry.value) for name, entry in variables.rest.items()}
    built.origins |= {f"execution.xla_flags.{name}": entry.origin() for name, (_, entry) in variables.flags.items()}
    built.origins |= {f"execution.environment.{name}": entry.origin() for name, entry in variables.rest.items()}
    for path, (value, entry) in variables.placed.items():
        is_key = any(key.to == path and name in settings.values for name, key in KEYS.items())
        if path != NODES and not is_key:
            built.values[path], built.origins[path] = value, entry.origin()


def _tensors(settings: Settings, built: Built) -> None:
    """Puts the tensors that remat_policy=custom keeps: those on the device, and those in the host's memory."""
    there = tensors_of(settings)
    for place, path, possible in (
        ("device", "execution.remat_kept", TENSORS), ("offload", "execution.remat_offloaded", (INPUT, *TENSORS)),
    ):  # fmt: skip
        names = [name for name in there if settings.get(name) == place]
        kept = {tensor for name in names for tensor in there[name]}
        note = ", ".join(f"{name}={place}" for name in names)
        value = tuple(tensor for tensor in possible if tensor in kept)
        built.put(path, next((name for name in names if name in settings.values), "remat_policy"), value, note)


def tensors_of(settings: Settings) -> Mapping[str, tuple[str, ...]]:
    """Keys of remat_policy=custom → tensors of a layer here: those that MaxText names in the layers of this model."""
    is_gated = settings.get("mlp_activations") == "swiglu"
    missing = {"mlpwi_0", "mlpwi_1"} if settings.get("fused_mlp") or not is_gated else {"mlpwi"}
    if not settings.get("fused_qkv"):
        missing.add("qkv_proj")
    there = values.ALL_TENSORS if is_gated else {**values.ALL_TENSORS, "mlpwi": ("up",)}
    return {name: tensors for name, tensors in there.items() if name not in missing}


def _checkpoint(settings: Settings, built: Built) -> None:
    built.put("checkpoint.enabled", "enable_checkpointing")
    built.put("checkpoint.resume", "enable_checkpointing", note="a run resumes from the checkpoints of its name")
    if settings.get("enable_checkpointing") or "checkpoint_period" in settings.values:
        built.put("checkpoint.interval_steps", "checkpoint_period")
    weights_only = bool(settings.get("load_parameters_path"))
    name = "load_parameters_path" if weights_only else "load_full_state_path"
    built.put("checkpoint.resume_from", name)
    if weights_only:
        built.put("checkpoint.weights_only", name, True)


def _expectations(settings: Settings, built: Built) -> tuple[Expectation, ...]:
    named = {name: name.removeprefix("expectations.") for name in OURS if name in settings.values}
    found = {name: metric for name, metric in named.items() if metric in METRICS}
    built.origins |= {name: settings.origin(name) for name in found}
    return tuple(Expectation(metric=metric, value=settings.values[name]) for name, metric in found.items())
