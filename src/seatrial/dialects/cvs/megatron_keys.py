"""Every key of a CVS Megatron configuration: where its value goes in a RunSpec, or why it goes nowhere.

What becomes of each was read from CVS (ROCm/cvs 7afb1ca3, lib/megatron_training_lib.py) and from the script that it
starts (ROCm/Megatron-LM 02b8aa76, examples/llama/train_llama3.sh).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seatrial.dialects.cvs import table as cvs_table
from seatrial.dialects.cvs.table import CONFIG, ENV, Table, exported, named_billions, target
from seatrial.dialects.cvs.write import nearest
from seatrial.dialects.table import coerce, keys
from seatrial.dialects.table.keys import OMIT, Key
from seatrial.spec import RunSpec

_to, _as_is, _ignored = keys.to, keys.as_is, keys.ignored

DEVICES_PER_NODE = 8  # of every node with these GPUs; the script counts what is there
MASTER_PORT = 6000  # of train_llama3.sh

SCRIPTS = {"llama-3": "examples/llama/train_llama3.sh", "llama-2": "examples/llama/train_llama2.sh"}  # CVS's default

# MODEL_SIZE is the script's only word about the model.
SIZES = {"8": "llama3.1-8b", "70": "llama3.1-70b"}


def size_of(spec: RunSpec) -> str:
    """MODEL_SIZE of the model that is nearest."""
    return next(text for text, name in SIZES.items() if name == nearest(spec.model, SIZES.values()))


def is_sharded(spec: RunSpec) -> bool:
    """True if it runs with FSDP=1, which excludes tensor parallelism."""
    return spec.mesh["fsdp"] > 1 and spec.mesh["tensor"] == 1


def milliseconds(value: Any) -> float:
    """A time in milliseconds, as seconds."""
    return coerce.fraction_of(coerce.positive(value), 1000)


def share(value: Any) -> float:
    """A fraction above 0 and up to 1."""
    number = coerce.positive(value)
    if number > 1:
        raise ValueError(f"{number:g} is above 1, and Megatron's `mem usages` is a fraction: 85 % is 0.85")
    return number


def _switch(off: Any, on: Any) -> coerce.Reader:
    return coerce.mapped({"0": off, "1": on})


def _devices(value: Any) -> int:
    """The number of devices in a list of their numbers ("0,1,2,3" → 4)."""
    numbers = [coerce.whole(part) for part in coerce.text(value).split(",")]
    if len(set(numbers)) < len(numbers) or min(numbers) < 0:
        raise ValueError(f"{coerce.shown(value)} is no list of different devices, such as 0,1,2,3")
    return len(numbers)


def _format(value: Any) -> str | None:
    """The format of quantized matrix products, or None; TE_FP16, like CVS's other names, is bfloat16 without FP8."""
    word = coerce.mapped(cvs_table.PRECISIONS)(value)
    return "fp8" if word == "fp8" else None


def _device_list(spec: RunSpec) -> Any:
    count = spec.topology.devices_per_node
    return ",".join(map(str, range(count))) if count != DEVICES_PER_NODE else OMIT


_UNMODELLED = "another way to shard or to compute than the ones that are known here"

KEYS: dict[str, Key] = {
    # --- config ---
    **CONFIG,
    "config.master_address": _as_is("distributed.coordinator_host", coerce.text, "MASTER_ADDR: the first node"),
    "config.training_iterations": _as_is("steps", coerce.count, "TOTAL_ITERS: --train-iters", required=True),
    "config.nccl_ib_hca_list": exported("NCCL_IB_HCA"),
    "config.nccl_ib_hca": keys.repeats(
        "CVS's Megatron tests export nccl_ib_hca_list as NCCL_IB_HCA",
        coerce.text, lambda spec: spec.execution.environment.get("NCCL_IB_HCA"),
    ),
    "config.data_cache_dir": _as_is("data.index_dir", coerce.text, "DATA_CACHE_PATH: all nodes have to see it"),
    "config.mock_data": keys.repeats(
        "CVS exports MOCK_DATA=1, whatever it says", coerce.boolean, lambda spec: spec.data.kind == "synthetic"
    ),
    "config.verify_network_errors": _ignored(
        "CVS accepts only the JSON word true for true, and never asks; network counters are not read here",
        coerce.boolean, quiet=(False,),
    ),
    "config.hca_id_pattern": _ignored(
        "network cards are not asked for their names here", coerce.text, quiet=("bnxt_|rocep",)
    ),
    "config.megatron_root": _ignored(
        "it is a folder in the container, which the image decides", coerce.text, quiet=("/workspace/Megatron-LM",)
    ),
    "config.scripts_dir": _ignored("no scripts are written to the nodes here", coerce.text),
    "config.rocm_dir": _ignored("it is where CVS's own tools look for ROCm", coerce.text),
    # --- variables of train_llama3.sh, left to the container. CVS starts it without them, so none is written but that
    # --- for the devices, without which a mesh may fit no node ---
    **{f"{ENV}.{name}": key for name, key in {
        "MASTER_PORT": _to("distributed.coordinator_port", coerce.port),
        "HIP_VISIBLE_DEVICES": _to(
            "topology.devices_per_node", _devices, "the devices that a node's processes see: the script counts them",
            write=_device_list,
        ),
        "CP": _to("parallelism.within_node.context", coerce.count, "--context-parallel-size"),
        "SEQ_PARALLEL": _to(
            "parallelism.sequence_parallel", _switch(False, True), "--sequence-parallel, off with fsdp and without TP",
        ),
        "OPTIMIZER": _to("optimizer.algorithm", coerce.mapped({"adam": "adamw", "sgd": "sgd"}),
                         "--optimizer; adam is AdamW"),
        "GRAD_REDUCE_IN_BF16": _to(
            "precision.gradient_dtype, precision.reduce_dtype", _switch("float32", "bfloat16"),
            "--grad-reduce-in-bf16, in newer versions of the script",
        ),
        **dict.fromkeys(("TE_FP4", "MEGATRON_FSDP", "ENABLE_HSDP"), keys.rejected(
            _UNMODELLED, coerce.text, quiet=("0",)
        )),
        "DATA_PATH": keys.rejected(
            "newer versions of the script train on it, others on mock data, as CVS means it", coerce.text
        ),
    }.items()},
    # --- the cell ---
    "model_size": _to("model.name", coerce.mapped(SIZES), "MODEL_SIZE, in billions: it alone decides the dimensions",
                      write=size_of),
    "tokenizer_model": _ignored(
        "mock data are made without it: of its name, only llama-3 matters, which chooses the script", coerce.text,
        write=lambda spec: f"NousResearch/Meta-Llama-3-{size_of(spec)}B",
    ),
    "batch_size": _as_is("batch.global_batch_size", coerce.count, "BS: of all devices together, not per device"),
    "micro_batch_size": _as_is("batch.micro_batch_size", coerce.count, "MBS: per replica and forward pass"),
    "sequence_length": _as_is("batch.sequence_length", coerce.count, "SEQ_LENGTH"),
    "precision": _to("precision.quantization", _format, "TE_FP8=1 for TE_FP8; every other name is bfloat16",
                     write=lambda spec: "TE_FP8" if "fp8" in (spec.precision.quantization or "") else "TE_BF16"),
    "tensor_parallelism": _to("parallelism.within_node.tensor", coerce.count, "TP; fsdp resets it to 1",
                              write=lambda spec: spec.mesh["tensor"]),
    "pipeline_parallelism": _to("parallelism.within_node.pipeline", coerce.count, "PP",
                                write=lambda spec: spec.mesh["pipeline"]),
    "fsdp": _to("parallelism.within_node.fsdp", _switch(False, True), "FSDP: --use-torch-fsdp2 over all replicas",
                write=lambda spec: int(is_sharded(spec))),
    "recompute": _to("execution.remat", _switch("none", "full"), "RECOMPUTE: of every layer, in full",
                     write=lambda spec: int(spec.execution.remat != "none")),
    # --- the cell: the targets ---
    "result_dict.throughput_per_gpu": target(
        "tflops_per_second_per_device", coerce.positive, "model TFLOP/s per GPU, at least"
    ),
    "result_dict.tokens_per_gpu": target(
        "tokens_per_second_per_device", coerce.positive, "tokens per second and GPU, at least"
    ),
    "result_dict.elapsed_time_per_iteration": target(
        "step_seconds", milliseconds, "milliseconds per step, at most", lambda value: coerce.part_of(value, 1000)
    ),
    "result_dict.mem_usage": target("memory_fraction", share, "fraction of a GPU's memory, at most"),
}  # fmt: skip

# What CVS assumes where a cell says nothing.
DEFAULTS = {
    "model_size": "70", "sequence_length": "8192", "batch_size": "128", "micro_batch_size": "2", "fsdp": "0",
    "tensor_parallelism": "1", "pipeline_parallelism": "1", "recompute": "0", "precision": "TE_FP8",
}  # fmt: skip
KEYS |= {name: replace(KEYS[name], default=KEYS[name].read(text), shown=text) for name, text in DEFAULTS.items()}

TABLE = Table(
    title="CVS's Megatron configurations",
    keys=KEYS,
    sections={
        **cvs_table.SECTIONS,
        ENV: replace(cvs_table.SECTIONS[ENV], write=None),
        "config.training_scripts": _ignored(
            "what runs is train_llama3.sh, wherever the image has it", coerce.text,
            "family of models → script: the first family that tokenizer_model names decides",
            quiet=tuple(SCRIPTS.values()),
        ),
    },
    defaults=DEFAULTS,
    needed={
        "config.container_image": "rocm/megatron-lm:v25.5_py312", "config.container_name": "megatron_llama3.1_8b",
        "config.hf_token_file": cvs_table.TOKEN_FILE,
    },
)  # fmt: skip

# Variables that CVS's command sets itself, after those of the container.
SET_BY_CVS = {
    "RECOMPUTE": "recompute", "SEQ_LENGTH": "sequence_length", "MBS": "micro_batch_size", "BS": "batch_size",
    "TP": "tensor_parallelism", "PP": "pipeline_parallelism", "FSDP": "fsdp", "MODEL_SIZE": "model_size",
    "TOTAL_ITERS": "config.training_iterations", "TE_FP8": "precision", "MASTER_ADDR": "config.master_address",
    "NNODES": "config.nnodes", "NODE_RANK": "the order of the nodes", "MOCK_DATA": "CVS (always 1)",
    "TOKENIZER_MODEL": "tokenizer_model", "DATA_CACHE_PATH": "config.data_cache_dir",
    "NCCL_IB_HCA": "config.nccl_ib_hca_list", "NCCL_IB_GID_INDEX": "config.nccl_ib_gid_index",
    "NCCL_SOCKET_IFNAME": "config.nccl_socket_ifname", "GLOO_SOCKET_IFNAME": "config.gloo_socket_ifname",
    "NCCL_DEBUG": "config.nccl_debug",
}  # fmt: skip


def billions(name: str) -> str | None:
    """The size in the name of a cell's model ("llama3_1_70b" → "70")."""
    return named_billions(name.replace("_", "-").lower())
