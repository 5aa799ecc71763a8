"""NxDT's top level and `distributed_strategy`: the run itself, its devices and the mesh over them."""

from __future__ import annotations

import math

from seatrial.dialects.nxdt.readers import anything, boolean, choice, copies, named, natural, optional, seed
from seatrial.dialects.nxdt.settings import Settings
from seatrial.dialects.table import coerce
from seatrial.dialects.table.keys import Key, equivalent, ignored, rejected, to
from seatrial.dialects.table.layouts import lay_out
from seatrial.estimate import hardware
from seatrial.spec import Parallelism, Topology

_RUNTIME = "it steers Neuron's runtime"
_COMPILER = "it steers Neuron's compiler"
_HYPERPOD = "it is for HyperPod's launcher"
_HYDRA = "it is for Hydra"
_NO_EXPERTS = "there are no mixtures of experts here"
_ONE = optional(coerce.count)

TOP: dict[str, Key] = {
    "name": to("name", named, "The experiment's name.", required=True),
    "model_source": to(
        "model,data.kind", choice("hf", "megatron"),
        "Which implementation of model and data NxDT takes: Hugging Face's or Megatron's.", required=True,
    ),
    "seed": to("seed", seed, "Seed of weights and of the order of data; 1234 where it is not given."),
    "compiler_flags": ignored(_COMPILER, optional(coerce.text)),
    "compiler_cache_url": to(
        "execution.compile_cache", optional(coerce.text), "Where compiled programs are kept; an s3:// URL is left out."
    ),
    "aync_exec_max_inflight_requests": ignored(
        _RUNTIME, coerce.whole, "Steps in flight; misspelt so in NxDT, and accepted as async_… too."
    ),
    "async_exec_max_inflight_requests": ignored(_RUNTIME, coerce.whole, "The other spelling of aync_…."),
    "bucket_size_collectives": ignored("XLA's own thresholds combine collectives", coerce.whole, "In MB."),
    "neuron_rt_exec_timeout": ignored(_RUNTIME, coerce.whole, "In seconds."),
    "neuron_experimental_compress_rg": ignored(_COMPILER, boolean),
    "run.name": ignored(_HYPERPOD, optional(coerce.text)),
    "run.results_dir": ignored(_HYPERPOD, optional(coerce.text)),
    "run.time_limit": ignored(_HYPERPOD, optional(coerce.text)),
    "run.model_type": ignored(_HYPERPOD, optional(coerce.text)),
    "run.compile": ignored(_HYPERPOD, anything),
    "hydra": ignored(_HYDRA, anything),
    "defaults": ignored(_HYDRA, anything),
    "topology.device": to(
        "topology.device", optional(coerce.text), "Seatrial's own key, which NxDT does not read: the accelerator."
    ),
}  # fmt: skip

STRATEGY: dict[str, Key] = {
    "distributed_strategy.tensor_model_parallel_size": to(
        "parallelism.within_node.tensor,parallelism.across_nodes.tensor", coerce.count, "Parts of each matrix."
    ),
    "distributed_strategy.pipeline_model_parallel_size": to(
        "parallelism.within_node.pipeline,parallelism.across_nodes.pipeline", coerce.count, "Pipeline stages."
    ),
    "distributed_strategy.virtual_pipeline_model_parallel_size": to(
        "parallelism.virtual_pipeline", _ONE, "Model chunks per pipeline stage; null is 1."
    ),
    "distributed_strategy.context_parallel_size": to(
        "parallelism.within_node.context,parallelism.across_nodes.context", coerce.count, "Parts of each sequence."
    ),
    "distributed_strategy.expert_model_parallel_size": rejected(_NO_EXPERTS, coerce.count, quiet=(1,)),
    "distributed_strategy.token_shuffle_group_size": rejected(_NO_EXPERTS, coerce.count, quiet=(1,)),
    "distributed_strategy.pipeline_model_parallel_split_rank": rejected(
        "there are no encoder-decoder models here", optional(natural), quiet=(0, None)
    ),
    "distributed_strategy.zero1": to(
        "parallelism.zero1", boolean, "Optimizer state sharded over data parallelism; true where it is not given."
    ),
    "distributed_strategy.sequence_parallel": to(
        "parallelism.sequence_parallel", boolean, "Activations between blocks sharded over tensor parallelism."
    ),
    "distributed_strategy.kv_replicator": equivalent(
        "each device gets the key/value heads that its query heads share", copies,
        "Copies of the key/value heads, so that they can be split over tensor parallelism.",
    ),
}  # fmt: skip

KEYS: dict[str, Key] = TOP | STRATEGY

AXES = {  # fastest first, as NxD numbers its ranks: neighbours along the first are neighbours in the machine
    "tensor": "distributed_strategy.tensor_model_parallel_size",
    "context": "distributed_strategy.context_parallel_size",
    "data": "",
    "pipeline": "distributed_strategy.pipeline_model_parallel_size",
}
DEFAULT_SEED = 1234


def topology(settings: Settings) -> Topology | None:
    """The devices, where the file gives their number."""

    devices = settings.get("trainer.devices")
    wanted = settings.get("topology.device")
    device = hardware.find(wanted) if wanted else None
    if wanted and device is None:
        why = f"{coerce.shown(wanted)} is no known device; known are {', '.join(hardware.DEVICES)}"
        settings.add("topology.device", "error", "unknown-device", why, "give one of these, or leave it out")
    if devices is None:
        return None
    return Topology(
        num_nodes=settings.get("trainer.num_nodes", 1), devices_per_node=devices, device=device.name if device else None
    )


def sizes(settings: Settings) -> dict[str, int]:
    """The size of each axis that the file gives, fastest first; data parallelism is 1 here."""
    return {axis: settings.get(key, 1) if key else 1 for axis, key in AXES.items()}


def parallelism(settings: Settings, topology: Topology) -> Parallelism:
    """The mesh: data parallelism takes the devices that the other axes leave."""
    mesh = sizes(settings)
    shards = math.prod(mesh.values())
    world = topology.num_devices
    if world % shards:
        devices, nodes = topology.devices_per_node, topology.num_nodes
        settings.add(
            "distributed_strategy.tensor_model_parallel_size" if mesh["tensor"] > 1 else "trainer.devices",
            "error", "mesh-devices",
            f"TP {mesh['tensor']} × PP {mesh['pipeline']} × CP {mesh['context']} = {shards} devices for one replica, "
            f"and {devices} devices × {nodes} node{'s' * (nodes > 1)} = {world} are no multiple of it",
            f"make trainer.devices × trainer.num_nodes a multiple of {shards}, or these sizes smaller",
        )  # fmt: skip
    mesh["data"] = max(1, world // shards)
    within_node, across_nodes = lay_out(mesh, topology.devices_per_node)
    return Parallelism(
        within_node=within_node,
        across_nodes=across_nodes,
        virtual_pipeline=settings.get("distributed_strategy.virtual_pipeline_model_parallel_size") or 1,
        zero1=settings.get("distributed_strategy.zero1", True),
        sequence_parallel=settings.get("distributed_strategy.sequence_parallel", False),
        context_strategy="ring" if settings.get("model.fusions.ring_attention", mesh["context"] > 1) else "all_gather",
    )
