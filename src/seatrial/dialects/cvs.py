"""A CVS JAX configuration (`config` and `model_params`) → RunSpec.

CVS (ROCm's Cluster Validation Suite) runs MaxText with it: MaxText's defaults hold for what the file does not say.
"""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any, TypeVar

from seatrial import hardware
from seatrial.dialects import coerce
from seatrial.dialects.cvs_cells import Cell, cells, select
from seatrial.dialects.cvs_findings import contradictions, without_effect
from seatrial.dialects.cvs_keys import DERIVED, KEYS, NODES, SECTIONS, find
from seatrial.dialects.cvs_settings import Settings, gather
from seatrial.dialects.entries import Entry, Request
from seatrial.dialects.overrides import did_you_mean
from seatrial.errors import Problem
from seatrial.presets import MODELS
from seatrial.spec import (
    Batch,
    Checkpoint,
    Container,
    Data,
    Distributed,
    Execution,
    Expectation,
    MeshShape,
    ModelSpec,
    Optimizer,
    Origin,
    Parallelism,
    Precision,
    Resolved,
    RunSpec,
    Topology,
)

NAME = "cvs-jax"
SECTIONS_OF_FILE = ("config", "model_params")
SELECTORS = ("topology", "model", "gpu")
WARMUP_FRACTION = 0.1  # MaxText's warmup_steps_fraction

ENV = "config.container_config.env_dict"

Part = TypeVar("Part")


def read(request: Request) -> Resolved:
    """The spec of the selected cell. Raises InputError where the file has no cells at all."""
    root = request.document.root
    problems = [
        Entry.of(name, node).key_problem(
            "error", "unknown-key", "only config and model_params stand here", did_you_mean(name, SECTIONS_OF_FILE)
        )
        for name, node in root.members.items()
        if name not in SECTIONS_OF_FILE and not name.startswith("_")
    ]
    config = root.members["config"]
    if not isinstance(config.value, dict):
        problems.append(
            Entry.of("config", config).problem("error", "bad-value", "a mapping belongs here", "write { … }")
        )
    wanted = {override.key: override.text for override in request.overrides if override.key in SELECTORS}
    cell, about_it = select(cells(root), wanted, root.members["model_params"].mark)
    if about_it:
        problems.append(about_it)
    settings = gather(request, cell, [override for override in request.overrides if override.key not in SELECTORS])
    settings.problems[:0] = [*request.document.problems, *problems]
    spec, origins = _build(settings, cell) if cell else (None, {})
    if spec is not None:
        settings.problems.extend(contradictions(settings, spec))
        settings.problems.extend(without_effect(settings, spec))
    return Resolved(spec=spec, origins=origins, problems=tuple(settings.problems))


# --- values → spec ----------------------------------------------------------------------------------------------------


def _place(settings: Settings) -> tuple[dict[str, Any], dict[str, Origin]]:
    """Spec path → value and → origin, for every value that goes somewhere as it is."""
    placed: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for name, value in settings.values.items():
        key, entry = find(name), settings.entries[name]
        if name in KEYS and key and key.to and (entry.is_override or not key.to.startswith("model.")):
            placed[key.to], origins[key.to] = value, entry.origin()
    for section, key in SECTIONS.items():
        if key.to:
            origins[key.to] = Origin(kind="file", key=settings.path(section))
            for part, entry in settings.section(section).items():
                placed[f"{key.to}.{part}"] = coerce.text(entry.value)
                origins[f"{key.to}.{part}"] = entry.origin()
    for name, source in DERIVED.items():
        if name not in settings.values and source in settings.values and name in settings.entries:
            path = "container.environment." + name.removeprefix(f"{ENV}.")
            placed[path] = str(settings.values[source])
            origins[path] = replace(settings.entries[source].origin(), kind="derived", note=f"from {source}")
    return placed, origins


def _part(kind: type[Part], prefix: str, placed: dict[str, Any], **defaults: Any) -> Part:
    """A part of the spec from what is placed under its path."""
    given = {f.name: placed[path] for f in fields(kind) if (path := f"{prefix}.{f.name}") in placed}  # type: ignore[arg-type]
    return kind(**(defaults | given))


def _mapping(prefix: str, placed: dict[str, Any]) -> dict[str, Any]:
    return {path.removeprefix(f"{prefix}."): value for path, value in placed.items() if path.startswith(f"{prefix}.")}


def _build(settings: Settings, cell: Cell) -> tuple[RunSpec | None, dict[str, Origin]]:
    """The spec, as far as the values allow one, and where its values came from."""
    placed, origins = _place(settings)
    model = _model(settings, cell, placed)
    parallelism = Parallelism(
        within_node=_part(MeshShape, "parallelism.within_node", placed),
        across_nodes=_part(MeshShape, "parallelism.across_nodes", placed),
    )
    if "topology.num_nodes" not in placed:
        placed["topology.num_nodes"], origins["topology.num_nodes"] = _assumed_nodes(cell)
    topology = _topology(settings, cell, placed, parallelism)
    if model is None or topology is None or not {"steps", "batch.sequence_length"} <= placed.keys():
        return None, origins
    batch = _batch(settings, placed, topology, parallelism)
    if batch is None:
        return None, origins
    steps = placed["steps"]
    precision = _part(
        Precision, "precision", placed, params_dtype="float32",
        optimizer_dtype=placed.get("precision.params_dtype", "float32"),
    )  # fmt: skip
    spec = RunSpec(
        name=re.sub(r"[^A-Za-z0-9._-]+", "-", f"{cell.model}-{cell.gpu}-{cell.topology}").strip(".-"),
        dialect=NAME,
        model=model,
        batch=batch,
        steps=steps,
        topology=topology,
        parallelism=parallelism,
        precision=precision,
        optimizer=Optimizer(warmup_steps=int(steps * WARMUP_FRACTION)),
        data=Data(),
        execution=_part(
            Execution, "execution", placed,
            xla_flags=_mapping("execution.xla_flags", placed),
            environment=_mapping("execution.environment", placed),
        ),
        checkpoint=_part(Checkpoint, "checkpoint", placed),
        distributed=_part(Distributed, "distributed", placed),
        container=_container(placed),
        nic_type=placed.get("nic_type"),
        hf_token_file=placed.get("hf_token_file"),
        log_dir=placed.get("log_dir"),
        expectations=tuple(
            Expectation(metric=metric, value=value) for metric, value in _mapping("expectations", placed).items()
        ),
    )  # fmt: skip
    return spec, origins | _made_origins(settings, cell)


def _made_origins(settings: Settings, cell: Cell) -> dict[str, Origin]:
    """Where the values came from that stand nowhere as they are."""
    default = Origin(kind="default", note="MaxText's default")
    per_device = settings.entries["per_device_batch_size"]
    return {
        "model": Origin(
            kind="file", key=cell.path, text=cell.model, note="the preset of this name", mark=cell.model_mark
        ),
        "topology.device": Origin(kind="file", key=cell.path, text=cell.gpu, mark=cell.gpu_mark),
        "topology.devices_per_node": Origin(kind="derived", key=settings.path("ici_*"), note="product of ici_*"),
        "batch.global_batch_size": replace(per_device.origin(), kind="derived", note="× devices"),
        "batch.micro_batch_size": replace(per_device.origin(), kind="derived", note="× devices ÷ (data × fsdp)"),
        "precision.optimizer_dtype": replace(default, note="MaxText keeps Adam's moments in weight_dtype"),
        "optimizer": default,
        "optimizer.warmup_steps": replace(default, note=f"MaxText's default: {WARMUP_FRACTION:g} of the steps"),
        "execution.environment": Origin(kind="file", key="config", note="the variables that CVS exports"),
        "expectations": Origin(kind="file", key=settings.path("result_dict")),
    }


def _assumed_nodes(cell: Cell) -> tuple[int, Origin]:
    """A number of nodes to go on with where none is given, so that everything else can be checked all the same."""
    nodes = 1 if cell.topology == "single_node" else 2
    return nodes, Origin(kind="default", key=NODES, note=f"assumed until {NODES} is filled in")


def _model(settings: Settings, cell: Cell, placed: dict[str, Any]) -> ModelSpec | None:
    """The preset that the cell is named after, with what overrides change of it."""
    preset = MODELS.get(cell.model)
    if preset is None:
        settings.problems.append(
            Problem(
                severity="error", code="unknown-model", path=cell.path, mark=cell.model_mark,
                why=f"there is no preset of this name; there is {', '.join(MODELS)}",
                fix=did_you_mean(cell.model, MODELS),
            )
        )  # fmt: skip
        return None
    return replace(preset, **_mapping("model", placed))


def _topology(settings: Settings, cell: Cell, placed: dict[str, Any], parallelism: Parallelism) -> Topology | None:
    nodes = placed["topology.num_nodes"]
    if cell.topology == "single_node" and nodes > 1:
        settings.problems.append(
            settings.entries[NODES].problem(
                "error", "not-supported-yet",
                "CVS starts as many independent jobs of one node each; only one of them can be run here",
                "give config.nnodes=1, or use a multi_node configuration for one job over all nodes",
            )
        )  # fmt: skip
    if not parallelism.within_node.is_resolved:
        name = next(n for n, key in KEYS.items() if key.to.startswith("parallelism.within_node.")
                    and settings.values.get(n) == -1)  # fmt: skip
        settings.problems.append(
            settings.entries[name].problem(
                "error", "devices-unknown", "the devices of a node are the product of ici_*, so none of them may be -1",
                f"give {name}=… its size",
            )
        )  # fmt: skip
        return None
    device = hardware.find(cell.gpu)
    if device is None:
        settings.problems.append(
            Problem(
                severity="warning", code="unknown-device", path=cell.path, mark=cell.gpu_mark,
                why="nothing is known about this GPU: there will be no MFU, and no bar is compared with its peak",
                fix=did_you_mean(cell.gpu, hardware.DEVICES),
            )
        )  # fmt: skip
    return Topology(
        num_nodes=nodes, devices_per_node=parallelism.within_node.product, device=device.name if device else None
    )


def _batch(settings: Settings, placed: dict[str, Any], topology: Topology, parallelism: Parallelism) -> Batch | None:
    """MaxText's per-device batch as the batch of the whole and of each data-parallel replica."""
    per_device = placed.get("batch.global_batch_size")
    if per_device is None:
        return None
    across = parallelism.across_nodes.resolve(topology.num_nodes)
    replicas = abs(parallelism.within_node.data * parallelism.within_node.fsdp * across.data * across.fsdp)
    total = per_device * topology.num_devices
    micro = total / replicas
    if total < 1 or not total.is_integer() or not micro.is_integer():
        settings.problems.append(
            settings.entries["per_device_batch_size"].problem(
                "error", "batch-not-whole",
                f"× {topology.num_devices} devices it makes {total:g} sequences a step, which do not divide among "
                f"{replicas} data-parallel replicas",
                f"make it a multiple of {replicas / topology.num_devices:g}",
            )
        )  # fmt: skip
        return None
    return Batch(
        sequence_length=placed["batch.sequence_length"], global_batch_size=int(total), micro_batch_size=int(micro)
    )


def _container(placed: dict[str, Any]) -> Container | None:
    if "container.image" not in placed:
        return None
    return _part(
        Container, "container", placed,
        volumes=tuple(_mapping("container.volumes", placed).items()),
        environment=_mapping("container.environment", placed),
    )  # fmt: skip
