"""The values of MaxText's keys for a run, where a key does not hold a value of the spec as it is.

Each function is the `write` of a row in `keys`, or makes one; None omits the key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from seatrial.dialects.maxtext import values
from seatrial.dialects.table import coerce
from seatrial.dialects.table.keys import FromSpec
from seatrial.spec import INPUT, Data, ModelSpec, Objective, RunSpec
from seatrial.spec.presets import MODELS

# --- model and objective ----------------------------------------------------------------------------------------------


def is_named(model: ModelSpec) -> bool:
    """True if MaxText has a file with exactly this architecture, under this name."""
    return model.name in values.NAMED and model == MODELS[model.name]


def of_unnamed(read: Callable[[ModelSpec], Any]) -> FromSpec:
    """A value of a model that MaxText has no file for."""
    return lambda spec: None if is_named(spec.model) else read(spec.model)


def dropout_rate(spec: RunSpec) -> float | None:
    """The one rate of all, above 0."""
    rates = {spec.dropout.hidden, spec.dropout.attention, spec.dropout.ffn}
    return (rates.pop() or None) if len(rates) == 1 else None


def overrides_dropout(spec: RunSpec) -> bool | None:
    """True if there is dropout in a model whose file turns it off."""
    return (is_named(spec.model) and dropout_rate(spec) is not None) or None


def is_sft(spec: RunSpec) -> bool | None:
    """True if the run fine-tunes on answers."""
    return spec.objective.kind == "sft" or None


def needs_no_beta(spec: RunSpec) -> bool:
    """True if DPO's beta is said by another key, or by none because it is the default and nothing reads it."""
    return spec.objective.kind == "orpo" or (spec.objective.kind != "dpo" and spec.objective.beta == Objective.beta)


# --- batch, mesh and optimizer ----------------------------------------------------------------------------------------


def per_device_batch_size(spec: RunSpec) -> float:
    """Sequences per device and forward pass."""
    return coerce.fraction_of(spec.batch.micro_batch_size * spec.data_parallel_size, spec.topology.num_devices)


def axis_size(part: str, axis: str) -> FromSpec:
    """The size of an axis in a part of the mesh, or 1 where its -1 cannot be made of the devices.

    `tensor_sequence` stands in the place of `tensor` where activations between blocks are split.
    """

    def write(spec: RunSpec) -> int | None:
        is_sequence = spec.parallelism.sequence_parallel and spec.mesh["tensor"] > 1
        if axis.startswith("tensor") and is_sequence != (axis == "tensor_sequence"):
            return None
        shape, devices = {
            "ici": (spec.parallelism.within_node, spec.topology.devices_per_node),
            "dcn": (spec.parallelism.across_nodes, spec.topology.num_nodes),
        }[part]
        size = shape.resolve(devices).sizes[axis.removesuffix("_sequence")]
        return 1 if size == -1 else size

    return write


def pipeline(spec: RunSpec) -> tuple[int | None, int | None]:
    """(passes of a batch, layers that a stage holds at a time) as far as the layers allow; None without stages."""
    stages, repeats, layers = spec.mesh["pipeline"], spec.parallelism.virtual_pipeline, spec.model.num_layers
    if stages <= 1:
        return None, None
    repeats = 1 if layers % (stages * repeats) else repeats
    return repeats, max(1, layers // (stages * repeats))


def context_strategy(spec: RunSpec) -> str | None:
    """The strategy, where it is not MaxText's default."""
    strategy = spec.parallelism.context_strategy
    return None if strategy == "all_gather" else strategy


def quantization(spec: RunSpec) -> str | None:
    """The format, if MaxText knows it and does not refuse it with several micro-batches."""
    word = spec.precision.quantization
    is_refused = word in values.NO_ACCUMULATION and spec.accumulation_steps > 1
    return word if word in values.QUANTIZATION and not is_refused else None


def phases(spec: RunSpec) -> tuple[float, float | None]:
    """(warm-up, decay) as fractions of the schedule; the decay is that of wsd, which has a stable phase before it."""
    optimizer = spec.optimizer
    length = optimizer.decay_steps or spec.step_limit
    warmup, hold = min(optimizer.warmup_steps, length), optimizer.hold_steps
    style = decay_style(spec)
    is_wsd = style == "linear" or (style == "cosine" and hold > 0)
    decay = length - warmup - hold
    return coerce.fraction_of(warmup, length), coerce.fraction_of(decay, length) if is_wsd and decay >= 0 else None


def decay_style(spec: RunSpec) -> str | None:
    """The nearest of MaxText's decays; None where the rate falls in another way, or not at all."""
    words = {"cosine": "cosine", "linear": "linear", **{kind: word for word, kind in values.DECAYS.items()}}
    return words.get(spec.optimizer.schedule)


def of_wsd(read: FromSpec) -> FromSpec:
    """A value that is given where the schedule is wsd."""
    return lambda spec: None if phases(spec)[1] is None else read(spec)


# --- data and checkpoints ---------------------------------------------------------------------------------------------


def data_set_type(spec: RunSpec) -> str:
    """MaxText's pipeline for the data; synthetic where it has none, or none for these paths."""
    words = {kind: word for word, kind in values.DATASETS.items()} | {"megatron": "grain"}
    word = words.get(spec.data.kind, "synthetic")
    needed = {"hf": spec.data.dataset, "grain": mixture(spec.data)}.get(word, "nothing is needed")
    return word if needed and values.can_be_said(needed) else "synthetic"


def of_data(read: Callable[[Data], Any], *kinds: str) -> FromSpec:
    """A value that is given for some of MaxText's pipelines, or for all but synthetic data."""
    kinds = kinds or tuple(word for word in values.DATASETS if word != "synthetic")
    return lambda spec: read(spec.data) if data_set_type(spec) in kinds else None


def of_mapped(read: Callable[[Data], Any]) -> FromSpec:
    """A value that is given for Megatron's files."""
    return of_data(lambda data: read(data) if data.kind == "megatron" else None, "grain")


def one(field: str) -> Callable[[Data], str | None]:
    """The path, where there is just one: MaxText has no lists of paths."""
    return lambda data: getattr(data, field)[0] if len(getattr(data, field)) == 1 else None


def if_evaluated(field: str) -> FromSpec:
    """A number of the evaluation, or -1; none where MaxText refuses one, for want of files for it."""

    def write(spec: RunSpec) -> int | None:
        number = getattr(spec.evaluation, field)
        has_none = data_set_type(spec) in ("hf", "grain") and one("validation_paths")(spec.data) is None
        return -1 if number is None else None if has_none else number

    return write


def mixture(data: Data) -> str | None:
    """A path, or several with their weights, as grain mixes them; equal ones where there are none."""
    weights = data.weights or (1.0,) * len(data.paths)
    if not data.paths or len(weights) != len(data.paths) or any(";" in path for path in data.paths):
        return None
    if len(data.paths) == 1 and not data.weights:
        return data.paths[0]
    return "".join(f"{path},{weight!r};" for path, weight in zip(data.paths, weights, strict=True))


def checkpoint_period(spec: RunSpec) -> int | None:
    """The interval; of a run that has none and saves, its last step."""
    return spec.checkpoint.interval_steps or (spec.steps if spec.checkpoint.enabled else None)


# --- execution --------------------------------------------------------------------------------------------------------


def place_of(name: str) -> FromSpec:
    """The place where remat_policy=custom keeps a tensor of MaxText's; None if the model's layers do not have it."""
    tensor = "up" if name == "mlpwi" else values.TENSORS.get(name, ("",))[0]

    def place(spec: RunSpec) -> str | None:
        execution = spec.execution
        is_there = not name.startswith("mlpwi") or (name != "mlpwi") == (spec.model.activation == "swiglu")
        if execution.remat != "custom" or not tensor or not is_there:
            return None
        if tensor in execution.remat_offloaded:
            return "offload"
        return "device" if tensor in (INPUT, *execution.remat_kept) else "remat"

    return place
