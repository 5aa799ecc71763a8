"""A CVS Megatron configuration (`config` and `model_params`) ⇄ RunSpec.

CVS runs ROCm's train_llama3.sh with it, so what that script fixes holds here too: its arguments (Llama's dimensions by
size alone, AdamW from 1e-4 to 1e-5 over 320 000 iterations, mock data) and Megatron's defaults for what it leaves out.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from seatrial.dialects.cvs import megatron_keys as cvs_megatron_keys
from seatrial.dialects.cvs.build import (
    container,
    device,
    execution,
    expectations,
    nodes,
    opened,
    place,
    run_name,
)
from seatrial.dialects.cvs.cells import Cell
from seatrial.dialects.cvs.megatron_findings import findings
from seatrial.dialects.cvs.megatron_keys import DEFAULTS, SIZES, TABLE
from seatrial.dialects.cvs.settings import Settings
from seatrial.dialects.cvs.table import ENV
from seatrial.dialects.cvs.write import bars, common, gpu, nearest, written
from seatrial.dialects.table import coerce
from seatrial.dialects.table.entries import Entry, Request
from seatrial.dialects.table.written import Written
from seatrial.spec import (
    AXES,
    Batch,
    Data,
    Distributed,
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

NAME = "cvs-megatron"
KEYS = cvs_megatron_keys.KEYS
SECTIONS = cvs_megatron_keys.TABLE.sections
DEVICES_PER_NODE = 8  # of every node with these GPUs; the script counts what is there
MASTER_PORT = 6000
ROPE_BASE = 10_000.0  # Megatron's --rotary-base, which the script leaves alone
VOCAB_MULTIPLE = 128  # Megatron's --make-vocab-size-divisible-by
SEED = 1234  # Megatron's --seed

# The script's fixed arguments; without a warm-up, and with Megatron's epsilon.
OPTIMIZER = Optimizer(
    learning_rate=1e-4, final_learning_rate_fraction=0.1, decay_steps=320_000, beta1=0.9, beta2=0.95, weight_decay=0.1,
    clip_norm=1.0,
)  # fmt: skip
SGD = replace(OPTIMIZER, algorithm="sgd", momentum=0.9)


def read(request: Request) -> Resolved:
    """The spec of the selected cell. Raises InputError where the file has no cells at all."""
    settings, cell = opened(request, TABLE)
    return build(settings, cell)


def build(settings: Settings, cell: Cell | None) -> Resolved:
    """The spec that the settings of a cell describe."""
    spec, origins = _build(settings, cell) if cell else (None, {})
    if spec is not None:
        settings.problems.extend(findings(settings, spec))
    return Resolved(spec=spec, origins=origins, problems=tuple(settings.problems))


# --- values → spec ----------------------------------------------------------------------------------------------------


def _build(settings: Settings, cell: Cell) -> tuple[RunSpec | None, dict[str, Origin]]:
    placed, origins = place(settings)
    values = {name: KEYS[name].read(text) for name, text in DEFAULTS.items()} | settings.values
    if settings.is_wrong("precision"):
        values["precision"] = None  # it is wrong, which is said; the default would only add to that
    for name, text in DEFAULTS.items():
        if name not in settings.values:
            default = Origin(kind="default", key=settings.path(name), text=text, note="CVS's default")
            placed[KEYS[name].to], origins[KEYS[name].to] = values[name], default
    num_nodes = nodes(settings, cell, placed, origins)
    topology = Topology(
        num_nodes=num_nodes, devices_per_node=placed.get("topology.devices_per_node", DEVICES_PER_NODE),
        device=device(settings, cell),
    )  # fmt: skip
    parallelism = _parallelism(settings, values, topology)
    if parallelism is None or "steps" not in placed or settings.is_wrong("model_size"):
        return None, origins
    is_adam = placed.get("optimizer.algorithm", "adamw") == "adamw"
    spec = RunSpec(
        name=run_name(cell),
        dialect=NAME,
        model=model(values["model_size"]),
        batch=gather_part(Batch, "batch", placed),
        steps=placed["steps"],
        topology=topology,
        parallelism=replace(parallelism, zero1=is_adam and not values["fsdp"]),
        precision=gather_part(Precision, "precision", placed),
        optimizer=OPTIMIZER if is_adam else SGD,
        data=gather_part(Data, "data", placed),
        execution=execution(placed),
        distributed=gather_part(Distributed, "distributed", placed, coordinator_port=MASTER_PORT),
        container=container(placed),
        nic_type=placed.get("nic_type"),
        hf_token_file=placed.get("hf_token_file"),
        log_dir=placed.get("log_dir"),
        expectations=expectations(placed),
        seed=SEED,
    )
    return spec, _made_origins(settings, cell) | origins


def model(name: str) -> ModelSpec:
    """A preset as the script builds it: with Megatron's rotary positions and its padded vocabulary."""
    return replace(
        MODELS[name], name=f"{name}-rope-10000", rope_theta=ROPE_BASE, rope_scaling=None, vocab_multiple=VOCAB_MULTIPLE
    )


def _parallelism(settings: Settings, values: dict[str, Any], topology: Topology) -> Parallelism | None:
    """The mesh as Megatron lays it out: tensor within a node first, then context, data, and pipeline outermost."""
    is_sharded = values["fsdp"]
    tensor = 1 if is_sharded else values["tensor_parallelism"]
    pipeline, context = values["pipeline_parallelism"], values.get(f"{ENV}.CP", 1)
    if topology.num_devices % (tensor * pipeline * context):
        name = "tensor_parallelism" if tensor > 1 else "pipeline_parallelism" if pipeline > 1 else f"{ENV}.CP"
        product = f"{tensor} (tensor) × {pipeline} (pipeline)" + (f" × {context} (context)" if context > 1 else "")
        settings.problems.append(
            entry_of(settings, name).problem(
                "error", "mesh-devices",
                f"{product} does not divide the {topology.num_devices} devices of {topology.num_nodes} × "
                f"{topology.devices_per_node}",
                f"make the product a divisor of {topology.num_devices}",
            )
        )  # fmt: skip
        return None
    replicas = topology.num_devices // (tensor * pipeline * context)
    sizes = {"tensor": tensor, "context": context, "fsdp" if is_sharded else "data": replicas, "pipeline": pipeline}
    within: dict[str, int] = {}
    rest = topology.devices_per_node
    for axis, size in sizes.items():
        within[axis] = math.gcd(size, rest)
        rest //= within[axis]
    across = {axis: size // within[axis] for axis, size in sizes.items()}
    return Parallelism(
        context_strategy="ring" if context > 1 else "all_gather",
        within_node=MeshShape(**within), across_nodes=MeshShape(**across),
        sequence_parallel=tensor > 1 and not is_sharded and values.get(f"{ENV}.SEQ_PARALLEL", True),
    )  # fmt: skip


def entry_of(settings: Settings, name: str) -> Entry:
    """The entry of a key, or one in its place at the cell where the file does not give it."""
    mark = settings.cell.node.mark if settings.cell else None
    return settings.entries.get(name) or Entry(key=settings.path(name), value=None, text="", mark=mark)


def _made_origins(settings: Settings, cell: Cell) -> dict[str, Origin]:
    """Where the values came from that stand nowhere as they are."""
    script = Origin(kind="default", note="train_llama3.sh's fixed argument")
    megatron = Origin(kind="default", note="Megatron's default, which train_llama3.sh leaves alone")
    size = entry_of(settings, "model_size").origin("train_llama3.sh's dimensions for this size")
    axes = {
        f"parallelism.{part}.{axis}": Origin(kind="derived", key=cell.path, note="devices ÷ the other axes")
        for part in ("within_node", "across_nodes") for axis in AXES
    }  # fmt: skip
    return axes | {
        "model": size,
        "model.rope_theta": replace(size, kind="derived", note="train_llama3.sh gives no --rotary-base"),
        "model.rope_scaling": replace(size, kind="derived", note="train_llama3.sh gives no --use-rope-scaling"),
        "model.vocab_multiple": megatron,
        "topology.device": Origin(kind="file", key=cell.path, text=cell.gpu, mark=cell.gpu_mark),
        "topology.devices_per_node": Origin(
            kind="default", note=f"train_llama3.sh takes all devices that it finds; nodes of these have "
            f"{DEVICES_PER_NODE}"
        ),
        "parallelism.zero1": replace(script, note="train_llama3.sh gives --use-distributed-optimizer, but for FSDP"),
        "parallelism.sequence_parallel": replace(script, note="SEQ_PARALLEL=1, where there is tensor parallelism"),
        "optimizer": script,
        "optimizer.epsilon": megatron,
        "data.kind": replace(script, note="CVS exports MOCK_DATA=1"),
        "distributed.coordinator_port": replace(script, note="MASTER_PORT of train_llama3.sh"),
        "precision.gradient_dtype": replace(script, note="newer scripts have GRAD_REDUCE_IN_BF16=1"),
        "precision.reduce_dtype": replace(script, note="newer scripts have GRAD_REDUCE_IN_BF16=1"),
        "seed": megatron,
        "execution.environment": Origin(kind="file", key="config", note="the variables that CVS exports"),
        "expectations": Origin(kind="file", key=settings.path("result_dict")),
    }  # fmt: skip


# --- spec → text ------------------------------------------------------------------------------------------------------

_FIXED = "train_llama3.sh fixes it"
_REASONS = {
    "model": "train_llama3.sh knows the dimensions of Llama 3.1's 8B and 70B only, with Megatron's RoPE and padding",
    "initialization": _FIXED,
    "dropout": _FIXED,
    "optimizer": _FIXED,
    "logging": _FIXED,
    "seed": _FIXED,
    "data": "CVS runs it on mock data only",
    "checkpoint": "CVS saves no checkpoint",
    "parallelism.zero1": "train_llama3.sh shards the optimizer's state, but for FSDP",
    "parallelism": "one of data and fsdp takes all replicas, laid out as Megatron does, and fsdp excludes tensor",
    "precision": "train_llama3.sh has bfloat16, and FP8 on top",
    "execution.remat": "layers are recomputed in full or not at all",
    "execution.environment": "only variables that have a key of their own are exported",
    "execution": "it is another engine's choice",
    "topology.device": "the cell is named after the GPU, and this is none of them",
    "expectations": "result_dict has no such bar, and none has a tolerance",
    "container": "values in braces and <changeme> mean something else in a CVS file",
}


def write(spec: RunSpec) -> Written:
    """The spec as a CVS Megatron configuration of one cell, with a note for each value that it cannot say."""
    topology = "multi_node" if spec.topology.num_nodes > 1 else "single_node"
    size = next(text for text, name in SIZES.items() if name == nearest(spec.model, SIZES.values()))
    mesh = spec.mesh
    is_sharded = mesh["fsdp"] > 1 and mesh["tensor"] == 1
    has_tensor = mesh["tensor"] > 1
    settings = common(spec, TABLE) | {
        "config.master_address": spec.distributed.coordinator_host,
        "config.training_iterations": spec.steps,
        "config.data_cache_dir": spec.data.index_dir,
        **{f"{ENV}.{name}": value for name, value in _variables(spec, has_tensor=has_tensor).items()},
        "tokenizer_model": f"NousResearch/Meta-Llama-3-{size}B",
        "model_size": size,
        "batch_size": spec.batch.global_batch_size,
        "micro_batch_size": spec.batch.micro_batch_size,
        "precision": "TE_FP8" if "fp8" in (spec.precision.quantization or "") else "TE_BF16",
        "sequence_length": spec.batch.sequence_length,
        "tensor_parallelism": mesh["tensor"],
        "pipeline_parallelism": mesh["pipeline"],
        "recompute": int(spec.execution.remat != "none"),
        "fsdp": int(is_sharded),
        **bars(spec, TABLE),
    }
    elapsed = "result_dict.elapsed_time_per_iteration"
    if elapsed in settings:
        settings[elapsed] = coerce.part_of(settings[elapsed], 1000)
    return written(spec, settings, f"{topology}/llama3_1_{size}b/{gpu(spec)}", read, _REASONS, TABLE)


def _variables(spec: RunSpec, *, has_tensor: bool) -> dict[str, Any]:
    """Those variables of train_llama3.sh that CVS has no key for, where they are not what they are anyway."""
    count, port = spec.topology.devices_per_node, spec.distributed.coordinator_port
    gradients = {spec.precision.gradient_dtype, spec.precision.reduce_dtype}
    return {
        "MASTER_PORT": port if port != MASTER_PORT else None,
        "HIP_VISIBLE_DEVICES": ",".join(map(str, range(count))) if count != DEVICES_PER_NODE else None,
        "CP": spec.mesh["context"] if spec.mesh["context"] > 1 else None,
        "SEQ_PARALLEL": 0 if has_tensor and not spec.parallelism.sequence_parallel else None,
        "OPTIMIZER": "sgd" if spec.optimizer.algorithm == "sgd" else None,
        "GRAD_REDUCE_IN_BF16": 1 if gradients == {"bfloat16"} else None,
    }
