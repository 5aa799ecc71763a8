"""A CVS JAX configuration (`config` and `model_params`) → RunSpec.

CVS (ROCm's Cluster Validation Suite) runs MaxText with it: MaxText's defaults hold for what the file does not say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from seatrial.dialects.cvs import deviations
from seatrial.dialects.cvs.build import Placed, device, made_origins, nodes, opened, parts, place
from seatrial.dialects.cvs.findings import findings
from seatrial.dialects.cvs.keys import KEYS, TABLE
from seatrial.dialects.cvs.settings import Cell, Settings
from seatrial.dialects.cvs.write import nearest, written
from seatrial.dialects.maxtext.machines import batch_of
from seatrial.dialects.maxtext.writer import with_engine_keys
from seatrial.dialects.table.engine_keys import value_of
from seatrial.dialects.table.entries import Request, below
from seatrial.dialects.table.suggestions import did_you_mean
from seatrial.dialects.table.versions import versions
from seatrial.dialects.table.written import Written, with_steps
from seatrial.errors import Problem
from seatrial.spec import (
    Checkpoint,
    Data,
    MeshShape,
    ModelSpec,
    Optimizer,
    Origin,
    Parallelism,
    Precision,
    Resolved,
    RunSpec,
    Topology,
    gather_part,
)
from seatrial.spec.presets import MODELS

__all__ = ["DEVIATIONS", "KEYS", "NAME", "SECTIONS", "read", "write"]

NAME = "cvs-jax"
SECTIONS = TABLE.sections
DEVIATIONS = deviations.JAX
WARMUP_FRACTION = 0.1  # MaxText's warmup_steps_fraction

_DEFAULTS = {
    "optimizer": "MaxText's default",
    "optimizer.schedule": "MaxText's default: its cosine",
    "optimizer.decay_norms": "MaxText decays all parameters, norms too",
    "optimizer.warmup_steps": f"MaxText's default: {WARMUP_FRACTION:g} of the steps",
    "precision.optimizer_dtype": "MaxText keeps Adam's moments in weight_dtype",
    "checkpoint": "MaxText's default",
}
_CHECKPOINTS = {"interval_steps": 10_000, "keep": None, "resume": True}  # MaxText's, where it saves any

# Why a path of the spec is not said, or not as it is, by the longest beginning that fits.
_WHY = {
    "model": "the name of a cell stands for a published model, and no key changes it",
    "optimizer": "CVS passes no key of the optimizer on: MaxText's defaults hold",
    "precision.optimizer_dtype": "MaxText keeps Adam's moments in weight_dtype",
    "data": "of real data, CVS passes a Hugging Face data set as one pattern of files",
    "epochs": "MaxText goes once over real data, and CVS has no key for it",
    "batch.micro_batch_size": "MaxText's batch is one per device, without accumulation",
    "topology.devices_per_node": "the devices of a node are the product of ici_*",
    "expectations": "result_dict has TFLOP/s and tokens/s only, without tolerances",
}


def read(request: Request) -> Resolved:
    """The spec of the selected cell. Raises InputError where the file has no cells at all."""
    settings, cell = opened(request, TABLE)
    spec, origins = _build(settings, cell) if cell else (None, {})
    if spec is not None:
        findings(settings, spec)
        spec = with_engine_keys(spec, dict(_of_maxtext(settings)))
        keys = spec.execution.engine_keys
        origins |= {f"execution.engine_keys.{name}": settings.origin(name) for name in keys}
    return Resolved(spec=spec, origins=origins, problems=tuple(settings.problems))


def write(spec: RunSpec) -> Written:
    """The spec as a CVS JAX configuration of one cell, with a note for each value that such a file cannot say."""
    return written(with_steps(spec, "CVS"), TABLE, nearest(spec.model, MODELS), read, _WHY)


def _of_maxtext(settings: Settings) -> Iterator[tuple[str, Any]]:
    """MaxText's own keys in the cell; CVS writes a text of its file as YAML that needs no quotes.

    A size of the axis `sequence` is that of MaxText's newer axis `context` here.
    """
    known = versions("maxtext")
    for name, entry in settings.for_engine():
        value = value_of(entry.value) if isinstance(entry.value, str) else entry.value
        if name in known and not (name.endswith("_sequence_parallelism") and value != 1):
            yield name, value


# --- values → spec ----------------------------------------------------------------------------------------------------


def _build(settings: Settings, cell: Cell) -> tuple[RunSpec | None, dict[str, Origin]]:
    """The spec, as far as the values allow one, and where its values came from."""
    placed, origins = place(settings)
    given = ((KEYS[name].to, entry) for name, entry in settings.entries.items() if name in KEYS)
    unread = [path for path, entry in given if path.startswith("model.") and not entry.is_override]  # the name decides
    is_synthetic = placed.get("data.kind", "synthetic") == "synthetic"
    unread += ("data.dataset", "data.paths", "data.tokenizer", "data.packing") if is_synthetic else ()
    for path in unread:
        placed.pop(path, None)
        origins.pop(path, None)
    model = _model(settings, cell, placed)
    parallelism = Parallelism(
        within_node=gather_part(MeshShape, "parallelism.within_node", placed),
        across_nodes=gather_part(MeshShape, "parallelism.across_nodes", placed),
    )
    num_nodes = nodes(settings, cell, placed, origins)
    if any(key.to.startswith("parallelism.") and settings.wrong(name) for name, key in KEYS.items()):
        return None, origins  # nothing can be said of a mesh of which a size is not known
    topology = _topology(settings, cell, num_nodes, parallelism)
    needed = {"steps", "batch.sequence_length", "batch.global_batch_size"}
    if model is None or topology is None or not needed <= placed.keys():
        return None, origins
    share, length = placed["batch.global_batch_size"], placed["batch.sequence_length"]
    batch = batch_of(settings, share, length, topology, parallelism.within_node, parallelism.across_nodes)
    if batch is None:
        return None, origins
    precision = gather_part(
        Precision, "precision", placed, params_dtype="float32",
        optimizer_dtype=placed.get("precision.params_dtype", "float32"),
    )  # fmt: skip
    spec = RunSpec(
        dialect=NAME,
        model=model,
        batch=batch,
        steps=placed["steps"],
        topology=topology,
        parallelism=parallelism,
        precision=precision,
        optimizer=Optimizer(
            schedule="maxtext_cosine", warmup_steps=int(placed["steps"] * WARMUP_FRACTION), decay_norms=True
        ),
        epochs=None if is_synthetic else 1,  # MaxText's num_epoch
        data=Data() if is_synthetic else gather_part(Data, "data", placed, add_bos=True),
        checkpoint=gather_part(
            Checkpoint, "checkpoint", placed, **_CHECKPOINTS if placed.get("checkpoint.enabled") else {}
        ),
        **parts(cell, placed),
    )
    return spec, origins | _origins(settings, cell)


def _origins(settings: Settings, cell: Cell) -> dict[str, Origin]:
    per_device = settings.entries["per_device_batch_size"].origin()
    return made_origins(settings, cell, _DEFAULTS) | {
        "model": Origin(
            kind="file", key=cell.path, text=cell.model, note="the preset of this name", mark=cell.model_mark
        ),
        "topology.devices_per_node": Origin(kind="derived", key=settings.path("ici_*"), note="product of ici_*"),
        "batch.global_batch_size": replace(per_device, kind="derived", note="× devices"),
        "batch.micro_batch_size": replace(per_device, kind="derived", note="× devices ÷ (data × fsdp)"),
    }


def _model(settings: Settings, cell: Cell, placed: Placed) -> ModelSpec | None:
    """The preset that the cell is named after, with what overrides change of it."""
    preset = MODELS.get(cell.model)
    if preset is None:
        why, fix = f"there is no preset of this name; there is {', '.join(MODELS)}", did_you_mean(cell.model, MODELS)
        settings.problems.append(
            Problem(severity="error", code="unknown-model", path=cell.path, mark=cell.model_mark, why=why, fix=fix)
        )
        return None
    return replace(preset, **below("model", placed))


def _topology(settings: Settings, cell: Cell, num_nodes: int, parallelism: Parallelism) -> Topology | None:
    if not parallelism.within_node.is_resolved:
        name = next(n for n, key in KEYS.items() if key.to.startswith("parallelism.within_node.")
                    and settings.values.get(n) == -1)  # fmt: skip
        why = "the devices of a node are the product of ici_*, so none of them may be -1"
        settings.add(name, "error", "devices-unknown", why, f"give {name}=… its size")
        return None
    return Topology(
        num_nodes=num_nodes, devices_per_node=parallelism.within_node.product, device=device(settings, cell)
    )
