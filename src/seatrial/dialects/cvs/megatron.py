"""A CVS Megatron configuration (`config` and `model_params`) ⇄ RunSpec.

CVS runs ROCm's train_llama3.sh with it, so what that script fixes holds here too: its arguments (Llama's dimensions by
size alone, AdamW from 1e-4 to 1e-5 over 320 000 iterations, mock data) and Megatron's defaults for what it omits.
"""

from __future__ import annotations

from dataclasses import replace

from seatrial.dialects.cvs import deviations
from seatrial.dialects.cvs.build import device, made_origins, nodes, opened, parts, place
from seatrial.dialects.cvs.megatron_findings import findings
from seatrial.dialects.cvs.megatron_keys import DEVICES_PER_NODE, KEYS, MASTER_PORT, TABLE, size_of
from seatrial.dialects.cvs.settings import Cell, Settings
from seatrial.dialects.cvs.table import ENV
from seatrial.dialects.cvs.write import written
from seatrial.dialects.table.entries import Request
from seatrial.dialects.table.layouts import lay_out
from seatrial.dialects.table.written import Written, with_steps
from seatrial.spec import (
    AXES,
    Batch,
    Data,
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

NAME = "cvs-megatron"
SECTIONS = TABLE.sections
DEVIATIONS = deviations.MEGATRON
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
    spec, origins = _build(settings, cell) if cell else (None, {})
    if spec is not None:
        findings(settings, spec)
    return Resolved(spec=spec, origins=origins, problems=tuple(settings.problems))


# --- values → spec ----------------------------------------------------------------------------------------------------


def _build(settings: Settings, cell: Cell) -> tuple[RunSpec | None, dict[str, Origin]]:
    placed, origins = place(settings)
    if settings.wrong("precision"):
        placed["precision.quantization"] = None  # an error says that it is wrong; the default would only add to that
    num_nodes = nodes(settings, cell, placed, origins)
    topology = Topology(
        num_nodes=num_nodes, devices_per_node=placed.get("topology.devices_per_node", DEVICES_PER_NODE),
        device=device(settings, cell),
    )  # fmt: skip
    parallelism = _parallelism(settings, topology)
    if parallelism is None or "steps" not in placed or settings.wrong("model_size"):
        return None, origins
    is_adam = placed.get("optimizer.algorithm", "adamw") == "adamw"
    spec = RunSpec(
        dialect=NAME,
        model=model(settings.get("model_size")),
        batch=gather_part(Batch, "batch", placed),
        steps=placed["steps"],
        topology=topology,
        parallelism=replace(parallelism, zero1=is_adam and not settings.get("fsdp")),
        precision=gather_part(Precision, "precision", placed),
        optimizer=OPTIMIZER if is_adam else SGD,
        data=gather_part(Data, "data", placed),
        seed=SEED,
        **parts(cell, placed, coordinator_port=MASTER_PORT),
    )
    return spec, _origins(settings, cell) | origins


def model(name: str) -> ModelSpec:
    """A preset as the script builds it: with Megatron's rotary positions and its padded vocabulary."""
    return replace(
        MODELS[name], name=f"{name}-rope-10000", rope_theta=ROPE_BASE, rope_scaling=None, vocab_multiple=VOCAB_MULTIPLE
    )


def _parallelism(settings: Settings, topology: Topology) -> Parallelism | None:
    """The mesh as Megatron lays it out: tensor within a node first, then context, data, and pipeline outermost."""
    is_sharded = settings.get("fsdp")
    tensor = 1 if is_sharded else settings.get("tensor_parallelism")
    pipeline, context = settings.get("pipeline_parallelism"), settings.get(f"{ENV}.CP", 1)
    replicas, rest = divmod(topology.num_devices, tensor * pipeline * context)
    if rest:
        name = "tensor_parallelism" if tensor > 1 else "pipeline_parallelism" if pipeline > 1 else f"{ENV}.CP"
        product = f"{tensor} (tensor) × {pipeline} (pipeline)" + (f" × {context} (context)" if context > 1 else "")
        why = (
            f"{product} does not divide the {topology.num_devices} devices of {topology.num_nodes} × "
            f"{topology.devices_per_node}"
        )
        settings.add(name, "error", "mesh-devices", why, f"make the product a divisor of {topology.num_devices}")
        return None
    sizes = {"tensor": tensor, "context": context, "fsdp" if is_sharded else "data": replicas, "pipeline": pipeline}
    within, across = lay_out(sizes, topology.devices_per_node)
    return Parallelism(
        context_strategy="ring" if context > 1 else "all_gather", within_node=within, across_nodes=across,
        sequence_parallel=tensor > 1 and not is_sharded and settings.get(f"{ENV}.SEQ_PARALLEL", True),
    )  # fmt: skip


_MEGATRON = "Megatron's default, which train_llama3.sh leaves alone"
_BF16 = "train_llama3.sh's default; newer scripts have GRAD_REDUCE_IN_BF16=1"
_DEFAULTS = {
    "model.vocab_multiple": _MEGATRON,
    "topology.devices_per_node": f"train_llama3.sh uses all devices of a node: {DEVICES_PER_NODE} of these",
    "parallelism.zero1": "train_llama3.sh gives --use-distributed-optimizer, but for FSDP",
    "parallelism.sequence_parallel": "SEQ_PARALLEL=1, where there is tensor parallelism",
    "optimizer": "train_llama3.sh's fixed argument",
    "optimizer.epsilon": _MEGATRON,
    "data.kind": "CVS exports MOCK_DATA=1",
    "distributed.coordinator_port": "MASTER_PORT of train_llama3.sh",
    "precision.gradient_dtype": _BF16,
    "precision.reduce_dtype": _BF16,
    "seed": _MEGATRON,
}


def _origins(settings: Settings, cell: Cell) -> dict[str, Origin]:
    size = settings.origin("model_size", "train_llama3.sh's dimensions for this size")
    axes = {
        f"parallelism.{part}.{axis}": Origin(kind="derived", key=cell.path, note="devices ÷ the other axes")
        for part in ("within_node", "across_nodes") for axis in AXES
    }  # fmt: skip
    return axes | made_origins(settings, cell, _DEFAULTS) | {
        "model": size,
        "model.rope_theta": replace(size, kind="derived", note="train_llama3.sh gives no --rotary-base"),
        "model.rope_scaling": replace(size, kind="derived", note="train_llama3.sh gives no --use-rope-scaling"),
    }  # fmt: skip


# --- spec → text ------------------------------------------------------------------------------------------------------

_WHY = {
    **dict.fromkeys(("initialization", "dropout", "optimizer", "logging", "seed"), "train_llama3.sh fixes it"),
    **dict.fromkeys(
        ("container.environment", "distributed.coordinator_port"),
        "CVS starts Megatron's containers without env_dict",
    ),
    "model": "train_llama3.sh knows the dimensions of Llama 3.1's 8B and 70B only, with Megatron's RoPE and padding",
    "data": "CVS runs it on mock data only",
    "checkpoint": "CVS saves no checkpoint",
    "parallelism.zero1": "train_llama3.sh shards the optimizer's state, but for FSDP",
    "parallelism": "one of data and fsdp takes all replicas, laid out as Megatron does, and fsdp excludes tensor",
    "precision": "train_llama3.sh has bfloat16, and FP8 on top",
    "execution.remat": "layers are recomputed in full or not at all",
    "execution": "it is another engine's choice",
    "expectations": "result_dict has no such target, and none has a tolerance",
}


def write(spec: RunSpec) -> Written:
    """The spec as a CVS Megatron configuration of one cell, with a note for each value that it cannot say."""
    return written(with_steps(spec, "CVS"), TABLE, f"llama3_1_{size_of(spec)}b", read, _WHY)
