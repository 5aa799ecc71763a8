"""RunSpec → NxDT YAML: the rows of the table that its model source, objective, optimizer and schedule can have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from seatrial.dialects import yaml_writer
from seatrial.dialects.nxdt.interpolation import escaped
from seatrial.dialects.nxdt.keys import DATA_FILES, DATA_PREFIXES, HF_ONLY, KEYS, MEGATRON_ONLY
from seatrial.dialects.nxdt.optimizer import ALGORITHMS, ALWAYS, OPTIM, OPTIMIZERS, SCHED, SCHEDULES, schedule_name
from seatrial.dialects.nxdt.settings import OF_CONFIG
from seatrial.dialects.table.entries import Request
from seatrial.dialects.table.keys import written_values
from seatrial.dialects.table.written import Written, nested, read_back, write
from seatrial.errors import InputError
from seatrial.spec import Resolved, RunSpec
from seatrial.spec.presets import MODELS, architecture

Read = Callable[[Request], Resolved]

# Why a path of the spec is not said, or not as it is.
WHY = {
    "topology.device": "an NxDT file does not name its accelerator",
    "topology": "the numbers of devices and nodes are those of the mesh",
    "parallelism": "NxDT lays its axes out by itself: tensor first, then context, data and pipeline; data follows",
    "parallelism.within_node.fsdp": "NxDT has no FSDP: these devices are data-parallel replicas",
    "parallelism.across_nodes.fsdp": "NxDT has no FSDP: these devices are data-parallel replicas",
    "parallelism.context_strategy": "NxDT has ring attention, and only over parts of a sequence",
    "precision": "the nearest of NxDT's settings is written",
    "precision.quantization": "NxDT has no quantized products",
    "initialization": "an hf model is initialized as its config.json says",
    "dropout": "an hf model has the dropout of its config.json",
    "model": "NxDT's model has no key for it",
    "model.name": "NxDT does not name its models",
    "model.rope_scaling": "NxDT's Megatron model does not scale positions",
    "model.max_positions": "rotary positions have no table",
    "optimizer": "this optimizer or schedule has no such argument",
    "optimizer.on_non_finite": "NxDT has no setting for it",
    "optimizer.schedule": "the nearest of NeMo's schedules is written; its warm-up differs by a step",
    "optimizer.decay_steps": "NxDT's schedules end with the run",
    "objective": "this objective has no such key",
    "data": "NxDT's data modules for this model and objective have no key for it",
    "data.kind": "NxDT reads .bin and .idx files, Arrow folders or files of examples: convert the data, and name it",
    "data.weights": "NxDT mixes by weights only: equal ones are written, whatever the sizes of the data",
    "evaluation": "NxDT says this in one way only, and nothing where validation is off",
    "execution.remat": "the nearest of NxDT's three is written",
    "execution.xla_flags": "NxDT has no XLA flags",
    "execution.environment": "NxDT's file exports no variables",
    "execution.attention": "the nearest of NxDT's two is written",
    "execution.compile_cache": "NxDT always keeps compiled programs: Neuron's own folder is written",
    "execution": "NxDT has no such setting",
    "checkpoint": "NxDT cannot say it together with the rest",
    "checkpoint.keep_best": "NxDT knows validation loss and training loss",
    "distributed": "NxDT's launcher decides how processes find each other",
    "container": "NxDT's file does not describe containers",
    "nic_type": "NxDT's file does not describe networks",
    "hf_token_file": "NxDT reads no token",
    "log_dir": "it cannot be written so that NxDT reads it as text",
    "expectations": "NxDT's file has no targets",
    "seed": "NxDT wants a seed above 0",
}


def written(spec: RunSpec, read: Read, kept: Mapping[str, Any]) -> Written:
    """The text of the model source that loses less: Hugging Face's, for a preset that can be named, or Megatron's.

    `kept` are keys of the file that the spec was read from: what it does not hold of them, and users' own. Raises
    InputError where NxDT's file cannot say the run with either.
    """
    preset = _preset(spec)
    unnamed = {name: value for name, value in kept.items() if name not in OF_CONFIG}
    forms = [(preset, unnamed), (None, unnamed)] if preset else [(None, unnamed)]
    texts = [yaml_writer.dump(nested(_values(spec, *form))) for form in forms]
    if preset and OF_CONFIG[0] in kept:  # the file's own config.json rather than the preset that it is
        named = yaml_writer.dump(nested(_values(spec, preset, kept)))
        texts = [named, *texts] if _names_the_model(named, spec, read) else texts
    whole = ("container", "distributed", "model.rope_scaling")  # one note for each of these parts
    files, refusals = [], []
    for text in texts:
        try:
            files.append(write(spec, text, ".yaml", read, WHY, whole=whole))
        except InputError as error:
            refusals.append(error)
    if not files:
        raise refusals[0]
    return min(files, key=lambda file: len(file.notes))


def _names_the_model(text: str, spec: RunSpec, read: Read) -> bool:
    """True if a text, with the config.json that it names, is read as the same model."""
    again = read_back(text, ".yaml", read).spec
    return again is not None and architecture(again.model) == architecture(spec.model)


def _preset(spec: RunSpec) -> str | None:
    """The preset that the model is, but for the depth and the base of its positions; under its own name first."""
    model = spec.model
    changes: dict[str, Any] = {"num_layers": model.num_layers, "rope_theta": model.rope_theta}
    names = [name for name, preset in MODELS.items() if architecture(replace(preset, **changes)) == architecture(model)]
    exact = [name for name in names if architecture(MODELS[name]) == architecture(model)]
    wanted = model.name.removesuffix("-changed")
    return wanted if wanted in (exact or names) else next(iter(exact or names), None)


def _values(spec: RunSpec, preset: str | None, kept: Mapping[str, Any]) -> dict[str, Any]:
    """Key → value as it is written, for a Hugging Face model by its preset, or for a Megatron one."""
    is_blend = preset is None and spec.objective.kind == "pretraining"
    apart = {*(MEGATRON_ONLY if preset else HF_ONLY), *(DATA_FILES if is_blend else DATA_PREFIXES)}
    apart |= {"model.vocab_size"} if preset else set()
    rule = OPTIMIZERS[ALGORITHMS[spec.optimizer.algorithm]]
    schedule = SCHEDULES.get(schedule_name(spec.optimizer) or "")
    arguments = {OPTIM: ("name", *rule.arguments), SCHED: (*ALWAYS, *schedule.arguments) if schedule else ()}
    values = {
        name: value for name, value in written_values(spec, KEYS)
        if name not in apart and name.rpartition(".")[2] in arguments.get(name.rpartition(".")[0], name)
    }  # fmt: skip
    values["model_source"] = "hf" if preset else "megatron"
    if preset:
        values["model.model_config"] = preset
        if spec.model.rope_theta != MODELS[preset].rope_theta:
            values["model.rope_theta"] = spec.model.rope_theta
    values = {name: escaped(value) for name, value in values.items()}
    values |= {name: value for name, value in kept.items() if name not in apart}
    return {name: values[name] for name in (*KEYS, *kept) if name in values}
