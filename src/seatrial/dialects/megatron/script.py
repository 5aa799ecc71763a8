"""ROCm's train_llama2.sh and train_llama3.sh: their variables, and the arguments of Megatron-LM that they come to.

Source: ROCm/Megatron-LM, examples/llama, as of 2026; differences of older versions are at the variables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from seatrial.dialects.megatron.arguments import ARGUMENTS, ATTENTION, FP8, folder, has_files, is_sharded
from seatrial.dialects.table.coerce import count, mapped, one_of, port, takes, text, whole
from seatrial.dialects.table.keys import PATH, Key, as_is, equivalent, ignored, rejected, to, written_values
from seatrial.spec import RunSpec
from seatrial.spec.presets import MODELS, known_vocabulary, same_architecture

ASSUMED_DEVICES = 8  # of a node, where only torch could tell
MOST_DEVICES = 128  # of a node, that a variable names one by one


@takes("0 or 1")
def switch(value: Any) -> bool:
    """0 or 1."""
    number = whole(value)
    if number not in (0, 1):
        raise ValueError(f"{number} is neither 0 nor 1")
    return bool(number)


@dataclass(frozen=True, kw_only=True)
class Script:
    """The values that a script has by itself: its defaults, the models that it knows, its own arguments."""

    defaults: Mapping[str, Any]
    sizes: Mapping[int, tuple[int, int, int, int, int]]  # layers, hidden, ffn, heads, key/value heads
    arguments: Mapping[str, Any] = field(default_factory=dict)


_HOME = "/root"  # of the container in which the scripts are started
_DEFAULTS: Mapping[str, Any] = {
    "MODEL_SIZE": 70, "TP": 8, "PP": 1, "CP": 1, "MBS": 1, "BS": 8, "SEQ_LENGTH": 2048, "TOTAL_ITERS": 12,
    "SEQ_PARALLEL": True, "FSDP": False, "MEGATRON_FSDP": False, "ENABLE_HSDP": False, "HSDP_NUM_REPLICAS": 2,
    "OPTIMIZER": "adam", "TE_FP8": False, "TE_FP8_RECIPE": "delayed", "RECOMPUTE": False, "USE_FLASH_ATTN": False,
    "TOKENIZER_TYPE": "HuggingFaceTokenizer", "SAVE_INTERVAL": 5000, "EVAL_INTERVAL": 5000, "EVAL_ITERS": -1,
    "LOG_INTERVAL": 1, "ENABLE_PROFILING": False, "DATA_CACHE_PATH": f"{_HOME}/cache", "CKPT_FORMAT": "torch",
}  # fmt: skip
_70B = (80, 8192, 28_672, 64, 8)
SCRIPTS: Mapping[str, Script] = {
    "train_llama3.sh": Script(
        defaults={**_DEFAULTS, "GRAD_REDUCE_IN_BF16": True, "TOKENIZER_MODEL": "NousResearch/Meta-Llama-3-8B"},
        sizes={8: (32, 4096, 14_336, 32, 8), 70: _70B},
        arguments={"max-position-embeddings": 131_072},
    ),
    "train_llama2.sh": Script(
        defaults={
            **_DEFAULTS, "SEQ_LENGTH": 4096, "USE_FLASH_ATTN": True, "GRAD_REDUCE_IN_BF16": False,
            "TOKENIZER_MODEL": "NousResearch/Llama-2-7b-chat-hf",
        },
        sizes={7: (32, 4096, 11_008, 32, 32), 13: (40, 5120, 13_824, 40, 40), 70: _70B},
        arguments={"max-position-embeddings": 32_000, "split": "99990,8,2"},
    ),
}  # fmt: skip

# What both scripts say whatever their variables are.
FIXED: Mapping[str, Any] = {
    "untie-embeddings-and-output-weights": True, "position-embedding-type": "rope", "swiglu": True,
    "disable-bias-linear": True, "init-method-std": 0.02, "attention-dropout": 0.0, "hidden-dropout": 0.0,
    "normalization": "RMSNorm", "bf16": True, "lr": 1e-4, "min-lr": 1e-5, "lr-decay-iters": 320_000,
    "lr-decay-style": "cosine", "weight-decay": 0.1, "clip-grad": 1.0, "group-query-attention": True,
    "overlap-grad-reduce": True, "eval-interval": 320_000, "tensorboard-dir": "LOG_DIR",
}  # fmt: skip

# --- what is written --------------------------------------------------------------------------------------------------


def script_of(spec: RunSpec) -> tuple[str, int]:
    """The script, by its tokenizer's vocabulary or else by the architecture, and of its sizes the nearest."""
    owner = same_architecture(spec.model) or ""
    vocabularies = {known_vocabulary(None, each.defaults["TOKENIZER_MODEL"]): name for name, each in SCRIPTS.items()}
    usual = "train_llama2.sh" if owner.startswith("llama2") else "train_llama3.sh"
    name = vocabularies.get(spec.model.vocab_size, usual)
    sizes = SCRIPTS[name].sizes
    if owner in MODELS and (size := re.search(r"-(\d+)b$", owner)) and int(size.group(1)) in sizes:
        return name, int(size.group(1))
    wanted = spec.model.num_layers * spec.model.hidden_dim**2
    return name, min(sizes, key=lambda size: abs(sizes[size][0] * sizes[size][1] ** 2 - wanted))


def _is_fsdp(spec: RunSpec) -> bool:
    """True if torch's FSDP can do it, which shards everything over all replicas."""
    return is_sharded(spec) and not spec.parallelism.zero1 and spec.mesh["pipeline"] == spec.mesh["data"] == 1


def _replicas(spec: RunSpec) -> int | None:
    """Groups of hybrid sharding."""
    return spec.mesh["data"] if is_sharded(spec) and not _is_fsdp(spec) and spec.mesh["data"] > 1 else None


def _recipe(spec: RunSpec) -> str | None:
    hybrids = {name: recipe for (recipe, kind), name in FP8.items() if kind == "hybrid"}
    return hybrids.get(spec.precision.quantization or "")


def _blend(spec: RunSpec) -> str | None:
    data = spec.data
    pairs = (f"{weight!r} {path}" for weight, path in zip(data.weights, data.paths, strict=False))
    return " ".join(pairs if data.weights else data.paths) if has_files(spec) else None


def _devices(spec: RunSpec) -> str | None:
    devices = spec.topology.devices_per_node
    return None if devices == ASSUMED_DEVICES or devices > MOST_DEVICES else ",".join(map(str, range(devices)))


# --- the variables ----------------------------------------------------------------------------------------------------

NETWORK = ("NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_CROSS_NIC", "NCCL_PROTO", "NCCL_CHECKS_DISABLE",
            "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "RCCL_MSCCL_ENABLE", "TORCH_NCCL_HIGH_PRIORITY",
            "GPU_MAX_HW_QUEUES", "CUDA_DEVICE_MAX_CONNECTIONS", "HSA_NO_SCRATCH_RECLAIM",
            "TOKENIZERS_PARALLELISM")  # fmt: skip
_FUSED = "fused kernels change speed, and results only by rounding"
_INSTANCES = ARGUMENTS["num-distributed-optimizer-instances"].to
_OLD = "versions of 2026 no longer read it"
VISIBLE = {"HIP_VISIBLE_DEVICES": _devices, "ROCR_VISIBLE_DEVICES": None, "CUDA_VISIBLE_DEVICES": None}
_ALWAYS = ("MODEL_SIZE", "TP", "MBS", "BS", "SEQ_LENGTH", "TOTAL_ITERS", "TE_FP8")  # written whatever they are

VARIABLES: Mapping[str, Key] = {
    "MODEL_SIZE": to("model.num_layers,model.hidden_dim,model.ffn_dim,model.num_heads,model.num_kv_heads",
                     mapped({"7": 7, "8": 8, "13": 13, "70": 70}), "7, 13 or 70 of Llama 2; 8 or 70 of Llama 3.",
                     write=lambda s: script_of(s)[1]),
    "TP": to(ARGUMENTS["tensor-model-parallel-size"].to, count, "Under FSDP the script sets it to 1.",
             write=lambda s: 1 if is_sharded(s) else s.mesh["tensor"]),
    "PP": to(ARGUMENTS["pipeline-model-parallel-size"].to, count, write=lambda s: s.mesh["pipeline"]),
    "CP": to(ARGUMENTS["context-parallel-size"].to, count, write=lambda s: s.mesh["context"]),
    "MBS": as_is("batch.micro_batch_size", count),
    "BS": as_is("batch.global_batch_size", count, "Of all devices together."),
    "SEQ_LENGTH": as_is("batch.sequence_length", count),
    "TOTAL_ITERS": as_is("steps", count),
    "SEQ_PARALLEL": to("parallelism.sequence_parallel", switch, "Under FSDP=1 the script turns it off.",
                       write=lambda s: s.parallelism.sequence_parallel and not _is_fsdp(s)),
    "FSDP": to(ARGUMENTS["use-torch-fsdp2"].to, switch, "torch's FSDP2; resets TP and SEQ_PARALLEL.", write=_is_fsdp),
    "MEGATRON_FSDP": to(ARGUMENTS["use-megatron-fsdp"].to, switch, "Megatron's FSDP, parameters sharded; resets TP.",
                        write=lambda s: is_sharded(s) and not _is_fsdp(s)),
    "ENABLE_HSDP": to(_INSTANCES, switch, "Shards within HSDP_NUM_REPLICAS groups.",
                      write=lambda s: _replicas(s) is not None),
    "HSDP_NUM_REPLICAS": to(_INSTANCES, count, write=_replicas),
    "OPTIMIZER": to("optimizer.algorithm,parallelism.zero1", text, "adam, sharded over replicas; anything else is sgd.",
                    write=lambda s: "sgd" if s.optimizer.algorithm == "sgd" else "adam"),
    "TE_FP8": to("precision.quantization", switch, "0 is bfloat16, whatever TE_FP16 elsewhere suggests.",
                 write=lambda s: _recipe(s) is not None),
    "TE_FP8_RECIPE": to("precision.quantization", one_of("delayed", "tensorwise", "mxfp8",
                        otherwise="the script would end without training, and without an error"),
                        "Of TE_FP8=1: scales by earlier steps' values, or by the tensor's own.", write=_recipe),
    "TE_FP4": rejected("FP4 is not supported here", switch, quiet=(False,)),
    "TE_FP4_RECIPE": ignored("it is read only under TE_FP4=1", one_of("nvfp4", "mxfp4"), quiet=("nvfp4",)),
    **{name: ignored("it is read only under TE_FP4=1", text)
       for name in ("FP4_PARAM_GATHER", "FP4_SELECTIVE_BF16", "FP4_BF16_START", "FP4_BF16_END")},
    "FP8_PARAM_GATHER": equivalent("parameters are gathered in FP8; master weights stay float32", switch),
    "FP8_TRANSPOSE_CACHE": equivalent("what is cached changes speed and memory only", switch),
    "GRAD_REDUCE_IN_BF16": to("precision.gradient_dtype,precision.reduce_dtype", switch,
                              "Of train_llama3.sh; versions before 2026 summed in float32.",
                              write=lambda s: s.precision.gradient_dtype == "bfloat16"),
    "RECOMPUTE": to("execution.remat", switch, write=lambda s: s.execution.remat == "full"),
    "USE_FLASH_ATTN": to("execution.attention", switch, write=lambda s: s.execution.attention == "flash"),
    **{name: equivalent(_FUSED, switch) for name in ("GRADIENT_ACCUMULATION_FUSION", "CROSS_ENTROPY_LOSS_FUSION",
       "FUSED_SINGLE_QKV_ROPE", "ROPE_FUSION")},
    "CROSS_ENTROPY_FUSION_IMPL": equivalent(_FUSED, one_of("native", "te")),
    "DDP_AVERAGE_IN_COLLECTIVE": equivalent("how communication is split and overlapped changes speed only", switch),
    "GEMM_TUNING": equivalent("it only chooses among kernels, and makes the first steps slower", switch),
    "MCORE": equivalent("Megatron has no other models anymore", switch),
    "CONTI_PARAMS": equivalent("where gradients lie in memory changes speed only", switch),
    "TOKENIZER_TYPE": to("data.tokenizer", ARGUMENTS["tokenizer-type"].read),
    "TOKENIZER_MODEL": to("data.tokenizer,model.vocab_size", text, write=lambda s: s.data.tokenizer
                          if has_files(s) and known_vocabulary(None, s.data.tokenizer) else None),
    "DATA_PATH": to("data.paths,data.weights", text, "If set, even to nothing, mock data is not used.",
                    write=_blend),
    "MOCK_DATA": to("data.kind", switch, "Of versions before 2026, where 1 was the default; now DATA_PATH decides."),
    "DATA_DIR": ignored(_OLD, text),
    "DATA_CACHE_PATH": to("data.index_dir", text, "Read only where NNODES is above 1.", only=has_files),
    "SAVE_CKPT_PATH": to("checkpoint.directory,checkpoint.enabled", text, write=folder),
    "LOAD_CKPT_PATH": to("checkpoint.resume_from", text, "Its weights; no optimizer state.", write=PATH),
    "SAVE_INTERVAL": to("checkpoint.interval_steps", count, "Read only with SAVE_CKPT_PATH.",
                        write=ARGUMENTS["save-interval"].write),
    "EVAL_INTERVAL": to("evaluation.interval_steps", count, "Read only with SAVE_CKPT_PATH.",
                        only=attrgetter("checkpoint.enabled")),
    "EVAL_ITERS": to("evaluation.batches", whole, "0 or less, as by default: no evaluation.",
                     only=attrgetter("evaluation.interval_steps")),
    "CKPT_FORMAT": ignored("checkpoints have Seatrial's own format", one_of("torch", "torch_dist", "torch_dcp",
                           "fsdp_dtensor", "zarr"), quiet=("torch",),
                           write=lambda s: "torch_dist" if _is_fsdp(s) and s.checkpoint.enabled else None),
    "CHECKPOINT_PATH": ignored(_OLD, text),
    "LOG_INTERVAL": as_is("logging.interval_steps", count),
    "EXP_NAME": to("name", text, "Part of the log's name."),
    "TRAIN_LOG": ignored("the script sets it itself, from LOG_DIR and EXP_NAME", text),
    "TEE_OUTPUT": ignored("it concerns only the script's own log", switch, quiet=(True,)),
    "NO_TRAINING": rejected("with 1 nothing is trained: the script only sums up an older log", switch, quiet=(False,)),
    "ENABLE_PROFILING": to("execution.profile_from_step", switch,
                           write=lambda s: s.execution.profile_from_step is not None),
    "NNODES": as_is("topology.num_nodes", count),
    "NODE_RANK": equivalent("it differs from node to node", whole),
    "MASTER_ADDR": as_is("distributed.coordinator_host", text),
    "MASTER_PORT": as_is("distributed.coordinator_port", port),
    "LOG_DIR": as_is("log_dir", text),
    "GPUS_PER_NODE": ignored("the script asks torch for the devices there are; HIP_VISIBLE_DEVICES limits them", count),
    **{name: to("topology.devices_per_node", text, "Devices that torch sees; the script starts a process on each.",
                write=write) for name, write in VISIBLE.items()},
    **{name: to(f"execution.environment.{name}", text, "Passed unchanged to every process.") for name in NETWORK},
}  # fmt: skip

# --- the arguments ----------------------------------------------------------------------------------------------------

Values = Mapping[str, Any]  # variable → its value, or the script's default, or None
Argument = tuple[str, Any, str]  # (argument, value, the variable that decided it, or nothing)


def _when(variable: str, value: Any = True) -> Callable[[Values], Any]:
    return lambda v: value if v[variable] else None


def _shards_state(v: Values) -> bool | None:
    return (v["OPTIMIZER"] == "adam" and not v["FSDP"]) or None


def _reads_files(v: Values) -> bool:
    return v["DATA_PATH"] is not None and v["MOCK_DATA"] is not True


# Variables whose value an argument gets as it is.
_PASSED: Mapping[str, str] = {
    "TP": "tensor-model-parallel-size", "PP": "pipeline-model-parallel-size", "CP": "context-parallel-size",
    "MBS": "micro-batch-size", "BS": "global-batch-size", "SEQ_LENGTH": "seq-length", "TOTAL_ITERS": "train-iters",
    "TOKENIZER_TYPE": "tokenizer-type", "TOKENIZER_MODEL": "tokenizer-model", "LOG_INTERVAL": "log-interval",
    "EVAL_ITERS": "eval-iters",
}  # fmt: skip

# (argument, the variable that decides it, its value or None where it is not passed); of several, the last counts.
_DECIDED: tuple[tuple[str, str, Callable[[Values], Any]], ...] = (
    ("tensor-model-parallel-size", "MEGATRON_FSDP", _when("MEGATRON_FSDP", 1)),
    ("tensor-model-parallel-size", "FSDP", _when("FSDP", 1)),
    ("optimizer", "OPTIMIZER", lambda v: "adam" if v["OPTIMIZER"] == "adam" else "sgd"),
    ("adam-beta1", "", lambda v: 0.9 if v["OPTIMIZER"] == "adam" else None),
    ("adam-beta2", "", lambda v: 0.95 if v["OPTIMIZER"] == "adam" else None),
    ("use-distributed-optimizer", "OPTIMIZER", _shards_state),
    ("overlap-param-gather", "", _shards_state),
    ("sequence-parallel", "SEQ_PARALLEL", lambda v: (v["SEQ_PARALLEL"] and not v["FSDP"]) or None),
    ("use-torch-fsdp2", "FSDP", _when("FSDP")),
    ("no-gradient-accumulation-fusion", "", _when("FSDP")),
    ("use-megatron-fsdp", "MEGATRON_FSDP", _when("MEGATRON_FSDP")),
    ("ckpt-format", "", _when("MEGATRON_FSDP", "fsdp_dtensor")),
    ("data-parallel-sharding-strategy", "MEGATRON_FSDP", _when("MEGATRON_FSDP", "optim_grads_params")),
    ("num-distributed-optimizer-instances", "HSDP_NUM_REPLICAS",
     lambda v: v["HSDP_NUM_REPLICAS"] if v["MEGATRON_FSDP"] and v["ENABLE_HSDP"] else None),
    ("grad-reduce-in-bf16", "GRAD_REDUCE_IN_BF16", _when("GRAD_REDUCE_IN_BF16")),
    ("fp8-format", "TE_FP8", _when("TE_FP8", "hybrid")),
    ("fp8-format", "TE_FP8", lambda v: "e4m3" if v["TE_FP8"] and v["TE_FP8_RECIPE"] == "mxfp8" else None),
    ("fp8-recipe", "TE_FP8_RECIPE", lambda v: v["TE_FP8_RECIPE"] if v["TE_FP8"] else None),
    ("recompute-granularity", "RECOMPUTE", _when("RECOMPUTE", "full")),
    ("recompute-method", "", _when("RECOMPUTE", "block")), ("recompute-num-layers", "", _when("RECOMPUTE", 80)),
    ("attention-backend", "USE_FLASH_ATTN", lambda v: ATTENTION["flash" if v["USE_FLASH_ATTN"] else "fused"]),
    ("profile", "ENABLE_PROFILING", _when("ENABLE_PROFILING")),
    ("data-path", "DATA_PATH", lambda v: tuple(v["DATA_PATH"].split()) if _reads_files(v) else None),
    ("data-cache-path", "DATA_CACHE_PATH",
     lambda v: v["DATA_CACHE_PATH"] if _reads_files(v) and (v["NNODES"] or 1) > 1 else None),
    ("mock-data", "MOCK_DATA", lambda v: None if _reads_files(v) else True),
    ("save", "SAVE_CKPT_PATH", lambda v: v["SAVE_CKPT_PATH"] or None),
    ("save-interval", "SAVE_INTERVAL", lambda v: v["SAVE_INTERVAL"] if v["SAVE_CKPT_PATH"] else None),
    ("eval-interval", "EVAL_INTERVAL", lambda v: v["EVAL_INTERVAL"] if v["SAVE_CKPT_PATH"] else None),
    ("load", "LOAD_CKPT_PATH", lambda v: v["LOAD_CKPT_PATH"] or None),
    ("no-load-optim", "LOAD_CKPT_PATH", _when("LOAD_CKPT_PATH")),
)  # fmt: skip


def arguments(name: str, stated: Mapping[str, Any]) -> Iterator[Argument]:
    """The arguments that a script passes to pretrain_gpt.py, where its variables have the stated values."""
    script = SCRIPTS[name]
    values = {**dict.fromkeys(VARIABLES), **script.defaults, **stated}
    yield from ((argument, value, "") for argument, value in {**FIXED, **script.arguments}.items())
    names = ("num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", "num-query-groups")
    sizes = script.sizes.get(values["MODEL_SIZE"], script.sizes[70])
    yield from ((argument, size, "MODEL_SIZE") for argument, size in zip(names, sizes, strict=True))
    yield from ((argument, values[variable], variable) for variable, argument in _PASSED.items())
    decided = ((argument, value(values), variable) for argument, variable, value in _DECIDED)
    yield from (each for each in decided if each[1] is not None)


def written_variables(spec: RunSpec) -> tuple[dict[str, str], str]:
    """(variables of a script, its name): those that differ from its defaults or matter most."""
    name, _ = script_of(spec)
    defaults = SCRIPTS[name].defaults
    return {
        variable: str(int(value)) if isinstance(value, bool) else str(value)
        for variable, value in written_values(spec, VARIABLES)
        if value not in (None, "") and (variable in _ALWAYS or value != defaults.get(variable, False))
    }, name
