"""What Megatron-LM itself refuses, what ROCm's scripts do otherwise than they are told, and what misleads.

Source of the refusals: validate_args in megatron/training/arguments.py, and TransformerConfig.
"""

from __future__ import annotations

from collections.abc import Callable

from seatrial.dialects.megatron.build import is_fully_sharded
from seatrial.dialects.megatron.settings import Settings
from seatrial.spec import RunSpec

# (the argument that is blamed, when, why, how to fix it)
Refusal = tuple[str, Callable[[Settings], bool], str, str]


def _both(*names: str) -> Callable[[Settings], bool]:
    return lambda s: all(s.given(name) for name in names)


def _without(name: str, *needed: str) -> Callable[[Settings], bool]:
    return lambda s: s.given(name) and not any(s.given(other) for other in needed)


def _alone(s: Settings) -> bool:
    return s.given("use-torch-fsdp2")


REFUSALS: tuple[Refusal, ...] = (
    ("train-samples", _both("train-samples", "train-iters"), "the length of the run is given in steps, too",
     "keep --train-iters or --train-samples"),
    ("lr-decay-samples", _both("train-iters", "lr-decay-samples"), "with --train-iters the schedule is one of steps",
     "give --lr-decay-iters"),
    ("lr-warmup-samples", _both("train-iters", "lr-warmup-samples"), "with --train-iters the warm-up is one of steps",
     "give --lr-warmup-iters"),
    ("lr-decay-iters", _both("train-samples", "lr-decay-iters"), "with --train-samples the schedule is one of samples",
     "give --lr-decay-samples"),
    ("lr-warmup-iters", lambda s: s.given("train-samples") and s["lr-warmup-iters"] > 0,
     "with --train-samples the warm-up is one of samples", "give --lr-warmup-samples"),
    ("lr-warmup-fraction",
     lambda s: s.given("lr-warmup-fraction") and s["lr-warmup-iters"] + s["lr-warmup-samples"] > 0,
     "the warm-up is given as a number, too", "keep one of the two"),
    ("num-layers", _both("num-layers", "encoder-num-layers"), "--encoder-num-layers is another name for it",
     "keep one of the two"),
    ("seq-length", _both("seq-length", "encoder-seq-length"), "--encoder-seq-length is another name for it",
     "keep one of the two"),
    ("max-position-embeddings",
     lambda s: (s["max-position-embeddings"] or 10**12) < (s["seq-length"] or 0),
     "sequences are longer than that", "make it --seq-length at least"),
    ("save", lambda s: s.given("save") and not s["save-interval"],
     "--save needs --save-interval", "add --save-interval"),
    ("mock-data", lambda s: s.given("mock-data") and bool(s["data-path"] or s["train-data-path"]),
     "there is real data, too", "keep one of the two"),
    ("data-path", lambda s: bool(s["data-path"] and (s["train-data-path"] or s["valid-data-path"])),
     "there are paths for training or validation alone, too", "keep --data-path, or the others"),
    ("tp-comm-overlap", _without("tp-comm-overlap", "sequence-parallel"), "it needs --sequence-parallel",
     "add that, or remove it"),
    ("overlap-param-gather",
     _without("overlap-param-gather", "use-distributed-optimizer", "use-megatron-fsdp", "use-custom-fsdp"),
     "it needs --use-distributed-optimizer", "add that, or remove it"),
    ("overlap-param-gather", _without("overlap-param-gather", "overlap-grad-reduce"), "it needs --overlap-grad-reduce",
     "add that, or remove it"),
    ("num-virtual-stages-per-pipeline-rank",
     _both("num-virtual-stages-per-pipeline-rank", "num-layers-per-virtual-pipeline-stage"),
     "--num-layers-per-virtual-pipeline-stage says it, too", "keep one of the two"),
    ("recompute-method", lambda s: s["recompute-granularity"] == "selective" and s.given("recompute-method"),
     "selective recomputation has no method", "remove it, or make the granularity full"),
    ("recompute-granularity", lambda s: s["recompute-granularity"] == "full" and not s.given("recompute-method"),
     "full recomputation needs --recompute-method", "add --recompute-method uniform --recompute-num-layers 1"),
    ("distribute-saved-activations",
     lambda s: s.given("distribute-saved-activations") and s["tensor-model-parallel-size"] == 1,
     "there is no tensor parallelism over which to distribute them", "remove it"),
    ("use-precision-aware-optimizer", _without("use-precision-aware-optimizer", "use-distributed-optimizer"),
     "it needs --use-distributed-optimizer", "add that"),
    ("exp-avg-dtype", lambda s: "bf16" in (s["exp-avg-dtype"], s["exp-avg-sq-dtype"])
     and not s.given("use-precision-aware-optimizer"), "it needs --use-precision-aware-optimizer", "add that"),
    ("main-grads-dtype", lambda s: s.given("accumulate-allreduce-grads-in-fp32") and s["main-grads-dtype"] == "bf16",
     "--accumulate-allreduce-grads-in-fp32 says otherwise", "keep one of the two"),
    ("swiglu", _both("swiglu", "squared-relu"), "there can be one activation only", "keep one of the two"),
    ("use-flash-attn", _both("deterministic-mode", "use-flash-attn"), "flash attention is not deterministic",
     "remove it, or --deterministic-mode"),
    ("cross-entropy-loss-fusion", _both("deterministic-mode", "cross-entropy-loss-fusion"),
     "the fused loss is not deterministic", "remove it, or --deterministic-mode"),
    ("pipeline-model-parallel-size", lambda s: _alone(s) and s["pipeline-model-parallel-size"] > 1,
     "torch's FSDP2 does not go with pipeline parallelism", "make it 1, or remove --use-torch-fsdp2"),
    ("use-distributed-optimizer", _both("use-torch-fsdp2", "use-distributed-optimizer"),
     "torch's FSDP2 shards the optimizer itself", "remove it"),
    ("use-torch-fsdp2", _without("use-torch-fsdp2", "no-gradient-accumulation-fusion"),
     "torch's FSDP2 does not go with fused gradient accumulation", "add --no-gradient-accumulation-fusion"),
    ("use-torch-fsdp2", _without("use-torch-fsdp2", "untie-embeddings-and-output-weights"),
     "torch's FSDP2 needs an output head with weights of its own", "add --untie-embeddings-and-output-weights"),
    ("ckpt-format",
     lambda s: _alone(s) and s.values.get("ckpt-format", "torch_dist") not in ("torch_dist", "torch_dcp"),
     "torch's FSDP2 needs torch_dist or torch_dcp", "give --ckpt-format torch_dist"),
    ("ckpt-format", lambda s: s.given("use-megatron-fsdp") and s.values.get("ckpt-format") != "fsdp_dtensor",
     "Megatron's FSDP needs fsdp_dtensor", "give --ckpt-format fsdp_dtensor"),
    ("no-position-embedding",
     lambda s: s.given("no-position-embedding") and not s.given("use-rotary-position-embeddings")
     and s["position-embedding-type"] != "rope",
     "it goes only with rotary positions", "give --position-embedding-type rope"),
)  # fmt: skip


def before(s: Settings) -> None:
    """What can be said before anything is derived."""
    if s.has_errors:
        return
    if s.script:
        _script(s)
    for name, is_so, why, fix in REFUSALS:
        if is_so(s) and not (s.script and name in ("overlap-param-gather", "ckpt-format")):
            s.add(name, "error", "refused-by-megatron", why, fix)
    if not s.script:
        _connections(s)
    length, context = s["seq-length"], s["context-parallel-size"]
    if length and context > 1 and length % (2 * context):
        why = f"{length} is no multiple of 2 × context parallelism = {2 * context}"
        s.add("seq-length", "error", "refused-by-megatron", why, f"give a multiple of {2 * context}")


def after(s: Settings, spec: RunSpec) -> None:
    """What can be said of a whole run."""
    if not s.script:
        _arguments(s, spec)
    if s["fp8-recipe"] in ("mxfp8", "blockwise") and spec.precision.quantization:
        why = "whole tensors are scaled here, by earlier steps' values, and not blocks of them"
        s.add("fp8-recipe", "warning", "nearest-recipe", why, "give tensorwise or delayed, or leave it")
    if spec.optimizer.schedule not in ("cosine", "constant"):
        why = "here it is the schedule of NeMo of this name, whose rate is a step ahead of Megatron's"
        s.add("lr-decay-style", "info", "schedule-differs", why, "nothing to do, or give cosine")
    if spec.data.kind == "synthetic":
        why = "mock data shows that the steps work, not that anything is learnt"
        name = "DATA_PATH" if s.script else "--data-path"
        s.add("mock-data", "info", "synthetic-data", why, f"nothing to do, or give {name}")


def _arguments(s: Settings, spec: RunSpec) -> None:
    if not s.given("mock-data") and spec.data.kind == "synthetic":
        why = "there is no data, so Megatron makes some up"
        s.add("mock-data", "warning", "no-data", why, "add --data-path, or --mock-data if that is meant")
    if s.given("calculate-per-token-loss") and s.given("eod-mask-loss"):
        why = "with --eod-mask-loss some tokens do not count, and here every sequence weighs the same"
        s.add("calculate-per-token-loss", "error", "not-supported", why, "remove one of the two")
    if "num-query-groups" in s.values and not s.given("group-query-attention"):
        why = "without --group-query-attention it has no effect: each head has its own keys and values"
        s.add("num-query-groups", "warning", "no-effect", why, "add --group-query-attention, or remove it")
    if s.given("sequence-parallel") and s["tensor-model-parallel-size"] == 1:
        why = "without tensor parallelism Megatron turns it off"
        s.add("sequence-parallel", "warning", "no-effect", why, "remove it, or raise --tensor-model-parallel-size")
    if s.given("cp-comm-type") and "a2a" in s.entries["cp-comm-type"].text:
        why = f"heads stay where they are here; {s['cp-comm-type']} is done instead, with the same result"
        s.add("cp-comm-type", "info", "nearest-strategy", why, "nothing to do")
    if s["split"] is None and s["data-path"]:
        why = "--split is missing, so 969,30,1 holds: 3 % of the data are kept from training"
        s.add("data-path", "warning", "default-split", why, "add --split")


def _connections(s: Settings) -> None:
    connections = s.environment.get("CUDA_DEVICE_MAX_CONNECTIONS")
    split = s["tensor-model-parallel-size"] > 1 or s["context-parallel-size"] > 1
    is_sharded = is_fully_sharded(s) or s.given("use-megatron-fsdp")
    if is_sharded and connections == "1":
        why = "FSDP needs CUDA_DEVICE_MAX_CONNECTIONS to be other than 1, or unset"
        name = "use-torch-fsdp2" if s.given("use-torch-fsdp2") else "use-megatron-fsdp"
        s.add(name, "error", "refused-by-megatron", why, "remove CUDA_DEVICE_MAX_CONNECTIONS=1")
    elif split and not is_sharded and connections != "1":
        why = "tensor and context parallelism need CUDA_DEVICE_MAX_CONNECTIONS=1 on devices before Blackwell"
        name = "tensor-model-parallel-size" if s["tensor-model-parallel-size"] > 1 else "context-parallel-size"
        s.add(name, "warning", "max-connections", why, "export CUDA_DEVICE_MAX_CONNECTIONS=1")


# --- ROCm's scripts ---------------------------------------------------------------------------------------------------


def _script(s: Settings) -> None:
    stated = s.variables
    sizes = {"train_llama2.sh": (7, 13, 70), "train_llama3.sh": (8, 70)}[s.script]
    if stated.get("MODEL_SIZE", 70) not in sizes:
        why = f"{s.script} knows {', '.join(map(str, sizes[:-1]))} and {sizes[-1]}, and ends with an error otherwise"
        s.add("MODEL_SIZE", "error", "refused-by-script", why, f"give one of them, or take {_other(s.script)}")
    fsdp = next((name for name in ("FSDP", "MEGATRON_FSDP") if stated.get(name)), None)
    if fsdp and stated.get("TP", 8) > 1:
        is_told = "TP" in stated
        why = f"with {fsdp}=1 the script sets TP to 1, whatever stands here" if is_told else "it sets TP from 8 to 1"
        s.add("TP" if is_told else fsdp, "warning" if is_told else "info", "reset-by-script", why, "give TP=1")
    if stated.get("FSDP") and stated.get("SEQ_PARALLEL"):
        why = "with FSDP=1 the script turns sequence parallelism off, whatever stands here"
        s.add("SEQ_PARALLEL", "warning", "reset-by-script", why, "give SEQ_PARALLEL=0")
    if stated.get("FSDP") and stated.get("SAVE_CKPT_PATH") and stated.get("CKPT_FORMAT", "torch") == "torch":
        why = "Megatron refuses to save FSDP's state in the format torch, which the script asks for"
        s.add("SAVE_CKPT_PATH", "error", "refused-by-megatron", why, "add CKPT_FORMAT=torch_dist")
    if stated.get("FSDP") and stated.get("MEGATRON_FSDP"):
        s.add("MEGATRON_FSDP", "error", "refused-by-megatron", "there is FSDP=1, too", "keep one of the two")
    if stated.get("ENABLE_HSDP") and not stated.get("MEGATRON_FSDP"):
        s.add("ENABLE_HSDP", "error", "refused-by-script", "it needs MEGATRON_FSDP=1", "add that, or remove it")
    if stated.get("ENABLE_HSDP") and stated.get("HSDP_NUM_REPLICAS", 2) < 2:
        s.add("HSDP_NUM_REPLICAS", "error", "refused-by-script", "hybrid sharding needs 2 or more", "give 2 or more")
    if stated.get("MOCK_DATA") and "DATA_PATH" in stated:
        why = "versions of 2026 do not read it: DATA_PATH decides; here, as before, mock data is used"
        s.add("MOCK_DATA", "warning", "contradiction", why, "remove one of the two")
    if stated.get("MOCK_DATA") is False and "DATA_PATH" not in stated:
        why = "versions of 2026 use mock data as long as DATA_PATH is not set, whatever stands here"
        s.add("MOCK_DATA", "warning", "contradiction", why, "give DATA_PATH")
    if stated.get("OPTIMIZER", "adam") not in ("adam", "sgd"):
        why = f"the script takes everything but adam for sgd, {stated['OPTIMIZER']!r} too"
        s.add("OPTIMIZER", "warning", "misleading", why, "give adam or sgd")
    if s.script == "train_llama2.sh":
        _llama2(s)
    _network(s)


def _llama2(s: Settings) -> None:
    stated = s.variables
    if stated.get("TOKENIZER_TYPE") == "Llama2Tokenizer" and "TOKENIZER_MODEL" in stated:
        why = "the script brings its own model of a Llama2Tokenizer, and ends with an error where one is given"
        s.add("TOKENIZER_MODEL", "error", "refused-by-script", why, "remove it")
    if stated.get("TE_FP8") and stated.get("TE_FP8_RECIPE") == "mxfp8" and not stated.get("MEGATRON_FSDP"):
        why = "train_llama2.sh has mxfp8 only with MEGATRON_FSDP=1: it ends without training, and without an error"
        s.add("TE_FP8_RECIPE", "error", "refused-by-script", why, "give delayed or tensorwise")


def _network(s: Settings) -> None:
    if s.variables.get("NNODES", 1) == 1:
        return
    if s.variables.get("MASTER_ADDR", "localhost") == "localhost":
        why = "on several nodes each would wait for itself: MASTER_ADDR is localhost where it is not given"
        s.add("MASTER_ADDR", "warning", "no-coordinator", why, "give the address of the first node")
    if "NCCL_SOCKET_IFNAME" not in s.environment:
        why = "the script takes ens51np0 for the network interface of every node where it is not told another"
        s.add("NNODES", "warning", "no-interface", why, "give NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME")


def _other(script: str) -> str:
    return "train_llama3.sh" if script == "train_llama2.sh" else "train_llama2.sh"
