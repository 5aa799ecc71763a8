"""ROCm's train_llama2.sh and train_llama3.sh: their variables, and the arguments of Megatron-LM that they come to.

Source: ROCm/Megatron-LM, examples/llama, as of 2026; what older versions did otherwise stands with the variables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from seatrial.dialects.megatron.arguments import ARGUMENTS
from seatrial.dialects.table.coerce import count, mapped, one_of, port, text, whole
from seatrial.dialects.table.keys import Key, equivalent, ignored, rejected, to


def switch(value: Any) -> bool:
    """0 or 1."""
    number = whole(value)
    if number not in (0, 1):
        raise ValueError(f"{number} is neither 0 nor 1")
    return bool(number)


def _as(argument: str) -> str:
    return ARGUMENTS[argument].to


NETWORK = ("NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_CROSS_NIC", "NCCL_PROTO", "NCCL_CHECKS_DISABLE",
            "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "RCCL_MSCCL_ENABLE", "TORCH_NCCL_HIGH_PRIORITY",
            "GPU_MAX_HW_QUEUES", "CUDA_DEVICE_MAX_CONNECTIONS", "HSA_NO_SCRATCH_RECLAIM",
            "TOKENIZERS_PARALLELISM")  # fmt: skip
_FUSED = "fused kernels change speed, and the result no more than rounding does"
_OWN_LOG = "it concerns only the script's own log"
_OLD = "versions of 2026 no longer read it"

VARIABLES: Mapping[str, Key] = {
    "MODEL_SIZE": to("model.num_layers,model.hidden_dim,model.ffn_dim,model.num_heads,model.num_kv_heads",
                     mapped({"7": 7, "8": 8, "13": 13, "70": 70}), "7, 13 or 70 of Llama 2; 8 or 70 of Llama 3."),
    "TP": to(_as("tensor-model-parallel-size"), count, "Under FSDP the script sets it to 1."),
    "PP": to(_as("pipeline-model-parallel-size"), count),
    "CP": to(_as("context-parallel-size"), count),
    "MBS": to("batch.micro_batch_size", count),
    "BS": to("batch.global_batch_size", count, "Of all devices together."),
    "SEQ_LENGTH": to("batch.sequence_length", count),
    "TOTAL_ITERS": to("steps", count),
    "SEQ_PARALLEL": to("parallelism.sequence_parallel", switch, "Under FSDP=1 the script turns it off."),
    "FSDP": to(_as("use-torch-fsdp2"), switch, "torch's FSDP2; resets TP and SEQ_PARALLEL."),
    "MEGATRON_FSDP": to(_as("use-megatron-fsdp"), switch, "Megatron's FSDP, parameters sharded; resets TP."),
    "ENABLE_HSDP": to(_as("num-distributed-optimizer-instances"), switch, "Shards within HSDP_NUM_REPLICAS groups."),
    "HSDP_NUM_REPLICAS": to(_as("num-distributed-optimizer-instances"), count),
    "OPTIMIZER": to("optimizer.algorithm,parallelism.zero1", text, "adam, sharded over replicas; all else means sgd."),
    "TE_FP8": to("precision.quantization", switch, "0 is bfloat16, whatever TE_FP16 elsewhere suggests."),
    "TE_FP8_RECIPE": to("precision.quantization", one_of("delayed", "tensorwise", "mxfp8",
                        otherwise="the script would end without training, and without an error"),
                        "Of TE_FP8=1: scales by earlier steps' values, or by the tensor's own."),
    "TE_FP4": rejected("FP4 is not supported here", switch, quiet=(False,)),
    "TE_FP4_RECIPE": ignored("it is read only under TE_FP4=1", one_of("nvfp4", "mxfp4"), quiet=("nvfp4",)),
    **{name: ignored("it is read only under TE_FP4=1", text)
       for name in ("FP4_PARAM_GATHER", "FP4_SELECTIVE_BF16", "FP4_BF16_START", "FP4_BF16_END")},
    "FP8_PARAM_GATHER": equivalent("parameters travel in FP8; what is learnt is kept in float32", switch),
    "FP8_TRANSPOSE_CACHE": equivalent("what is cached changes speed and memory only", switch),
    "GRAD_REDUCE_IN_BF16": to("precision.gradient_dtype,precision.reduce_dtype", switch,
                              "Of train_llama3.sh; versions before 2026 summed in float32."),
    "RECOMPUTE": to("execution.remat", switch),
    "USE_FLASH_ATTN": to("execution.attention", switch),
    "GRADIENT_ACCUMULATION_FUSION": equivalent(_FUSED, switch),
    "DDP_AVERAGE_IN_COLLECTIVE": equivalent("how communication is split and hidden changes speed only", switch),
    "CROSS_ENTROPY_LOSS_FUSION": equivalent(_FUSED, switch),
    "CROSS_ENTROPY_FUSION_IMPL": equivalent(_FUSED, one_of("native", "te")),
    "FUSED_SINGLE_QKV_ROPE": equivalent(_FUSED, switch),
    "ROPE_FUSION": equivalent(_FUSED, switch),
    "GEMM_TUNING": equivalent("it only chooses among kernels, and makes the first steps slower", switch),
    "MCORE": equivalent("Megatron has no other models any more", switch),
    "CONTI_PARAMS": equivalent("where gradients lie in memory changes speed only", switch),
    "TOKENIZER_TYPE": to("data.tokenizer", ARGUMENTS["tokenizer-type"].read),
    "TOKENIZER_MODEL": to("data.tokenizer,model.vocab_size", text),
    "DATA_PATH": to("data.paths,data.weights", text, "Set, even to nothing, it ends the use of mock data."),
    "MOCK_DATA": to("data.kind", switch, "Of versions before 2026, where 1 was the default; now DATA_PATH decides."),
    "DATA_DIR": ignored(_OLD, text),
    "DATA_CACHE_PATH": to("data.index_dir", text, "Read only where NNODES is above 1."),
    "SAVE_CKPT_PATH": to("checkpoint.directory,checkpoint.enabled", text),
    "LOAD_CKPT_PATH": to("checkpoint.resume_from", text, "Its weights; no optimizer state."),
    "SAVE_INTERVAL": to("checkpoint.interval_steps", count, "Read only with SAVE_CKPT_PATH."),
    "EVAL_INTERVAL": to("evaluation.interval_steps", count, "Read only with SAVE_CKPT_PATH."),
    "EVAL_ITERS": to("evaluation.batches", whole, "0 or less, as by default: no evaluation."),
    "CKPT_FORMAT": ignored("checkpoints are kept in Seatrial's own format", one_of("torch", "torch_dist", "torch_dcp",
                           "fsdp_dtensor", "zarr"), quiet=("torch",)),
    "CHECKPOINT_PATH": ignored(_OLD, text),
    "LOG_INTERVAL": to("logging.interval_steps", count),
    "LOG_DIR": to("log_dir", text),
    "EXP_NAME": to("name", text, "Part of the log's name."),
    "TRAIN_LOG": ignored("the script sets it itself, from LOG_DIR and EXP_NAME", text),
    "TEE_OUTPUT": ignored(_OWN_LOG, switch, quiet=(True,)),
    "NO_TRAINING": rejected("with 1 nothing is trained: the script only sums up an older log", switch, quiet=(False,)),
    "ENABLE_PROFILING": to("execution.profile_from_step", switch),
    "NNODES": to("topology.num_nodes", count),
    "NODE_RANK": equivalent("it differs from node to node", whole),
    "MASTER_ADDR": to("distributed.coordinator_host", text),
    "MASTER_PORT": to("distributed.coordinator_port", port),
    "GPUS_PER_NODE": ignored("the script asks torch for the devices there are; HIP_VISIBLE_DEVICES limits them", count),
    **{name: to("topology.devices_per_node", text, "Devices that torch sees; the script starts a process on each.")
       for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")},
    **{name: to(f"execution.environment.{name}", text, "As it is, for every process.") for name in NETWORK},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Script:
    """What a script does by itself: its defaults, the models that it knows, its own arguments."""

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

Argument = tuple[str, Any, str]  # (argument, value, the variable that decided it, or nothing)


def arguments(name: str, stated: Mapping[str, Any]) -> Iterator[Argument]:
    """The arguments that a script passes to pretrain_gpt.py, where its variables have the stated values."""
    script = SCRIPTS[name]
    values = {**script.defaults, **stated}
    yield from ((argument, value, "") for argument, value in {**FIXED, **script.arguments}.items())
    names = ("num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", "num-query-groups")
    sizes = script.sizes.get(values["MODEL_SIZE"], script.sizes[70])
    yield from ((argument, size, "MODEL_SIZE") for argument, size in zip(names, sizes, strict=True))
    is_fsdp = values["FSDP"] or values["MEGATRON_FSDP"]
    by_fsdp = "FSDP" if values["FSDP"] else "MEGATRON_FSDP"
    yield "tensor-model-parallel-size", *((1, by_fsdp) if is_fsdp else (values["TP"], "TP"))
    for argument, variable in (
        ("pipeline-model-parallel-size", "PP"), ("context-parallel-size", "CP"), ("micro-batch-size", "MBS"),
        ("global-batch-size", "BS"), ("seq-length", "SEQ_LENGTH"), ("train-iters", "TOTAL_ITERS"),
        ("tokenizer-type", "TOKENIZER_TYPE"), ("tokenizer-model", "TOKENIZER_MODEL"), ("log-interval", "LOG_INTERVAL"),
        ("eval-iters", "EVAL_ITERS"),
    ):  # fmt: skip
        yield argument, values[variable], variable
    if values["OPTIMIZER"] == "adam":
        yield from (("optimizer", "adam", "OPTIMIZER"), ("adam-beta1", 0.9, ""), ("adam-beta2", 0.95, ""))
    else:
        yield "optimizer", "sgd", "OPTIMIZER"
    if values["OPTIMIZER"] == "adam" and not values["FSDP"]:
        yield from (("use-distributed-optimizer", True, "OPTIMIZER"), ("overlap-param-gather", True, ""))
    if values["SEQ_PARALLEL"] and not values["FSDP"]:
        yield "sequence-parallel", True, "SEQ_PARALLEL"
    if values["FSDP"]:
        yield from (("use-torch-fsdp2", True, "FSDP"), ("no-gradient-accumulation-fusion", True, ""))
    if values["MEGATRON_FSDP"]:
        yield from (("use-megatron-fsdp", True, "MEGATRON_FSDP"), ("ckpt-format", "fsdp_dtensor", ""))
        yield "data-parallel-sharding-strategy", "optim_grads_params", "MEGATRON_FSDP"
        if values["ENABLE_HSDP"]:
            yield "num-distributed-optimizer-instances", values["HSDP_NUM_REPLICAS"], "HSDP_NUM_REPLICAS"
    if values["GRAD_REDUCE_IN_BF16"]:
        yield "grad-reduce-in-bf16", True, "GRAD_REDUCE_IN_BF16"
    if values["TE_FP8"]:
        yield "fp8-format", "e4m3" if values["TE_FP8_RECIPE"] == "mxfp8" else "hybrid", "TE_FP8"
        yield "fp8-recipe", values["TE_FP8_RECIPE"], "TE_FP8_RECIPE"
    if values["RECOMPUTE"]:
        yield from (("recompute-granularity", "full", "RECOMPUTE"), ("recompute-method", "block", ""))
    yield "attention-backend", "flash" if values["USE_FLASH_ATTN"] else "fused", "USE_FLASH_ATTN"
    if values["ENABLE_PROFILING"]:
        yield "profile", True, "ENABLE_PROFILING"
    yield from _data(values)
    yield from _checkpoints(values)


def _data(values: Mapping[str, Any]) -> Iterator[Argument]:
    if "DATA_PATH" in values and values.get("MOCK_DATA") is not True:
        yield "data-path", tuple(values["DATA_PATH"].split()), "DATA_PATH"
        if values.get("NNODES", 1) > 1:
            yield "data-cache-path", values["DATA_CACHE_PATH"], "DATA_CACHE_PATH"
    else:
        yield "mock-data", True, "MOCK_DATA"


def _checkpoints(values: Mapping[str, Any]) -> Iterator[Argument]:
    if values.get("SAVE_CKPT_PATH"):
        yield from (("save", values["SAVE_CKPT_PATH"], "SAVE_CKPT_PATH"),
                    ("save-interval", values["SAVE_INTERVAL"], "SAVE_INTERVAL"),
                    ("eval-interval", values["EVAL_INTERVAL"], "EVAL_INTERVAL"))  # fmt: skip
    if values.get("LOAD_CKPT_PATH"):
        yield from (("load", values["LOAD_CKPT_PATH"], "LOAD_CKPT_PATH"), ("no-load-optim", True, "LOAD_CKPT_PATH"))
