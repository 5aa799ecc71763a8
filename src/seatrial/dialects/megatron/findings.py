"""Refusals of Megatron-LM itself, deviations of ROCm's scripts from their variables, and misleading arguments.

Source of the refusals: validate_args in megatron/training/arguments.py, and TransformerConfig.
"""

from __future__ import annotations

from collections.abc import Callable

from seatrial.dialects.megatron.arguments import DISCARDED
from seatrial.dialects.megatron.build import is_fully_sharded
from seatrial.dialects.megatron.script import SCRIPTS
from seatrial.dialects.megatron.settings import Settings
from seatrial.dialects.table.entries import NO_CHANGE
from seatrial.errors import Severity
from seatrial.spec import RunSpec

When = Callable[[Settings], bool]
Refusal = tuple[str, When, str, str]  # (the argument that is blamed, when, why, how to fix it)
Trap = tuple[str, Severity, str, When, str, str]  # the same, with severity and code


def _both(*names: str) -> When:
    return lambda s: all(s.given(name) for name in names)


def _without(name: str, *needed: str) -> When:
    return lambda s: s.given(name) and not any(s.given(other) for other in needed)


def _granularity(s: Settings) -> str | None:
    """The granularity of recomputation; --recompute-activations goes before."""
    return "selective" if s.given("recompute-activations") else s["recompute-granularity"]


# An argument, and those of which it needs one.
NEEDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("save", ("save-interval", "persistent-save-interval")), ("tp-comm-overlap", ("sequence-parallel",)),
    ("overlap-param-gather", ("use-distributed-optimizer", "use-megatron-fsdp", "use-custom-fsdp")),
    ("overlap-param-gather", ("overlap-grad-reduce",)),
    ("fp8-param-gather", ("use-distributed-optimizer", "use-torch-fsdp2", "use-megatron-fsdp", "use-custom-fsdp")),
    ("use-precision-aware-optimizer", ("use-distributed-optimizer",)),
    ("use-torch-fsdp2", ("no-gradient-accumulation-fusion",)),
    ("use-torch-fsdp2", ("untie-embeddings-and-output-weights",)),
)  # fmt: skip

# An argument, one that it does not go with, and why.
_CONFLICTS = (
    ("train-samples", "train-iters", "the length of the run is given in steps, too"),
    ("lr-decay-samples", "train-iters", "with --train-iters the schedule is in steps: give --lr-decay-iters"),
    ("lr-warmup-samples", "train-iters", "with --train-iters the warm-up is in steps: give --lr-warmup-iters"),
    ("lr-decay-iters", "train-samples", "with --train-samples the schedule is in samples: give --lr-decay-samples"),
    ("lr-warmup-iters", "train-samples", "with --train-samples the warm-up is in samples: give --lr-warmup-samples"),
    ("lr-warmup-fraction", "lr-warmup-iters", "the warm-up is given as a number of steps, too"),
    ("lr-warmup-fraction", "lr-warmup-samples", "the warm-up is given as a number of samples, too"),
    ("num-layers", "encoder-num-layers", "--encoder-num-layers is another name for it"),
    ("seq-length", "encoder-seq-length", "--encoder-seq-length is another name for it"),
    ("mock-data", "data-path", "there is real data, too"),
    ("mock-data", "train-data-path", "there is real data, too"),
    ("data-path", "train-data-path", "there are paths for training alone, too"),
    ("data-path", "valid-data-path", "there are paths for validation alone, too"),
    ("num-virtual-stages-per-pipeline-rank", "num-layers-per-virtual-pipeline-stage",
     "--num-layers-per-virtual-pipeline-stage says it, too"),
    ("fp16", "bf16", "there can be one number format only"),
    ("swiglu", "squared-relu", "there can be one activation only"),
    ("use-flash-attn", "deterministic-mode", "flash attention is not deterministic"),
    ("cross-entropy-loss-fusion", "deterministic-mode", "the fused loss is not deterministic"),
    ("use-distributed-optimizer", "use-torch-fsdp2", "torch's FSDP2 shards the optimizer itself"),
)  # fmt: skip

REFUSALS: tuple[Refusal, ...] = (
    *((name, _without(name, *others), f"it needs {' or '.join(f'--{other}' for other in others)}",
       f"add --{others[0]}, or remove it") for name, others in NEEDS),
    *((name, _both(name, other), why, f"remove it, or --{other}") for name, other, why in _CONFLICTS),
    ("max-position-embeddings", lambda s: (s["max-position-embeddings"] or 10**12) < (s["seq-length"] or 0),
     "sequences are longer than that", "make it at least --seq-length"),
    ("recompute-method", lambda s: _granularity(s) == "selective" and s.given("recompute-method"),
     "selective recomputation has no method", "remove it, or make the granularity full"),
    ("recompute-modules", lambda s: _granularity(s) == "selective" and s["fp8-format"] is not None
     and s["fp8-recipe"] == "delayed" and not set(DISCARDED).isdisjoint(s["recompute-modules"] or ()),
     f"with delayed scales of fp8 there is no recomputation of {' and '.join(DISCARDED)}",
     "remove them, or give --fp8-recipe tensorwise"),
    ("recompute-granularity", lambda s: _granularity(s) == "full" and not s.given("recompute-method"),
     "full recomputation needs --recompute-method", "add --recompute-method uniform --recompute-num-layers 1"),
    ("distribute-saved-activations",
     lambda s: s.given("distribute-saved-activations") and s["tensor-model-parallel-size"] == 1,
     "there is no tensor parallelism over which to distribute them", "remove it"),
    ("distribute-saved-activations", lambda s: s.given("distribute-saved-activations") and _granularity(s) != "full",
     "only full recomputation distributes them", "remove it, or make the granularity full"),
    ("exp-avg-dtype", lambda s: "bf16" in (s["exp-avg-dtype"], s["exp-avg-sq-dtype"])
     and not s.given("use-precision-aware-optimizer"), "it needs --use-precision-aware-optimizer", "add that"),
    ("main-grads-dtype", lambda s: s.given("accumulate-allreduce-grads-in-fp32") and s["main-grads-dtype"] == "bf16",
     "--accumulate-allreduce-grads-in-fp32 says otherwise", "keep one of the two"),
    ("pipeline-model-parallel-size", lambda s: s.given("use-torch-fsdp2") and s["pipeline-model-parallel-size"] > 1,
     "torch's FSDP2 does not go with pipeline parallelism", "make it 1, or remove --use-torch-fsdp2"),
    ("ckpt-format", lambda s: s.given("use-torch-fsdp2")
     and s.get("ckpt-format", "torch_dist") not in ("torch_dist", "torch_dcp"),
     "torch's FSDP2 needs torch_dist or torch_dcp", "give --ckpt-format torch_dist"),
    ("ckpt-format", lambda s: s.given("use-megatron-fsdp") and s["ckpt-format"] != "fsdp_dtensor",
     "Megatron's FSDP needs fsdp_dtensor", "give --ckpt-format fsdp_dtensor"),
    ("no-position-embedding",
     lambda s: _without("no-position-embedding", "use-rotary-position-embeddings")(s)
     and s["position-embedding-type"] != "rope",
     "it goes only with rotary positions", "give --position-embedding-type rope"),
)  # fmt: skip

# What TransformerConfig refuses: versions before core 0.4, and the forks of them, do not.
REFUSALS_OF_CORE: tuple[Refusal, ...] = (
    ("recompute-method", lambda s: _granularity(s) == "full"
     and _without("recompute-method", "recompute-num-layers")(s),
     "since core 0.4 full recomputation needs --recompute-num-layers", "add --recompute-num-layers 1"),
    ("recompute-num-layers", lambda s: _granularity(s) == "selective" and s.given("recompute-num-layers"),
     "since core 0.4 selective recomputation has no number of layers", "remove it, or make the granularity full"),
    ("distribute-saved-activations", lambda s: s["tensor-model-parallel-size"] > 1
     and _both("distribute-saved-activations", "sequence-parallel")(s),
     "with --sequence-parallel they are distributed already", "remove one of the two"),
)  # fmt: skip

# Where ROCm's scripts do something else than their variables say, or refuse.
SCRIPT_TRAPS: tuple[Trap, ...] = (
    ("TP", "warning", "reset-by-script",
     lambda s: (s.given("FSDP") or s.given("MEGATRON_FSDP")) and s.get("TP", 1) > 1,
     "with FSDP=1 or MEGATRON_FSDP=1 the script sets TP to 1, whatever is given here", "give TP=1"),
    ("FSDP", "info", "reset-by-script", _without("FSDP", "TP"), "the script sets TP from 8 to 1", "give TP=1"),
    ("MEGATRON_FSDP", "info", "reset-by-script", _without("MEGATRON_FSDP", "TP", "FSDP"),
     "the script sets TP from 8 to 1", "give TP=1"),
    ("SEQ_PARALLEL", "warning", "reset-by-script", _both("FSDP", "SEQ_PARALLEL"),
     "with FSDP=1 the script turns sequence parallelism off, whatever is given here", "give SEQ_PARALLEL=0"),
    ("SAVE_CKPT_PATH", "error", "refused-by-megatron",
     lambda s: s.given("FSDP") and bool(s["SAVE_CKPT_PATH"]) and s.get("CKPT_FORMAT", "torch") == "torch",
     "Megatron refuses to save FSDP's state in the format torch, which the script asks for",
     "add CKPT_FORMAT=torch_dist"),
    ("MEGATRON_FSDP", "error", "refused-by-megatron", _both("FSDP", "MEGATRON_FSDP"), "there is FSDP=1, too",
     "keep one of the two"),
    ("ENABLE_HSDP", "error", "refused-by-script", _without("ENABLE_HSDP", "MEGATRON_FSDP"), "it needs MEGATRON_FSDP=1",
     "add that, or remove it"),
    ("HSDP_NUM_REPLICAS", "error", "refused-by-script",
     lambda s: s.given("ENABLE_HSDP") and s.get("HSDP_NUM_REPLICAS", 2) < 2, "hybrid sharding needs 2 or more",
     "give 2 or more"),
    ("MOCK_DATA", "warning", "contradiction", lambda s: s.given("MOCK_DATA") and "DATA_PATH" in s.values,
     "versions of 2026 do not read it: DATA_PATH decides; here, as before, mock data is used", "remove one of the two"),
    ("MOCK_DATA", "warning", "contradiction", lambda s: s["MOCK_DATA"] is False and "DATA_PATH" not in s.values,
     "versions of 2026 use mock data as long as DATA_PATH is not set, whatever is given here", "give DATA_PATH"),
    ("OPTIMIZER", "warning", "misleading", lambda s: s.get("OPTIMIZER", "adam") not in ("adam", "sgd"),
     "the script uses sgd for everything but adam", "give adam or sgd"),
    ("TOKENIZER_MODEL", "error", "refused-by-script",
     lambda s: _is_llama2(s) and s["TOKENIZER_TYPE"] == "Llama2Tokenizer" and "TOKENIZER_MODEL" in s.values,
     "the script has its own model of a Llama2Tokenizer, and fails if one is given", "remove it"),
    ("TE_FP8_RECIPE", "error", "refused-by-script",
     lambda s: _is_llama2(s) and _without("TE_FP8", "MEGATRON_FSDP")(s) and s["TE_FP8_RECIPE"] == "mxfp8",
     "train_llama2.sh has mxfp8 only with MEGATRON_FSDP=1; else it ends without training, and without an error",
     "give delayed or tensorwise"),
    ("MASTER_ADDR", "warning", "no-coordinator",
     lambda s: s.get("NNODES", 1) > 1 and s.get("MASTER_ADDR", "localhost") == "localhost",
     "each node would wait for itself: MASTER_ADDR defaults to localhost",
     "give the address of the first node"),
    ("NNODES", "warning", "no-interface",
     lambda s: s.get("NNODES", 1) > 1 and "NCCL_SOCKET_IFNAME" not in s.environment,
     "the script uses the network interface ens51np0 of every node unless another is given",
     "give NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME"),
)  # fmt: skip

# Where arguments of pretrain_gpt.py mislead.
ARGUMENT_TRAPS: tuple[Trap, ...] = (
    ("mock-data", "warning", "no-data", lambda s: not (s.given("mock-data") or s["data-path"] or s["train-data-path"]),
     "no data is given, so Megatron generates some", "add --data-path, or --mock-data if that is intended"),
    ("calculate-per-token-loss", "error", "not-supported", _both("calculate-per-token-loss", "eod-mask-loss"),
     "with --eod-mask-loss some tokens do not count, and here every sequence weighs the same", "remove one of the two"),
    ("num-query-groups", "warning", "no-effect", _without("num-query-groups", "group-query-attention"),
     "without --group-query-attention it has no effect: each head has its own keys and values",
     "add --group-query-attention, or remove it"),
    ("sequence-parallel", "warning", "no-effect",
     lambda s: s.given("sequence-parallel") and s["tensor-model-parallel-size"] == 1,
     "without tensor parallelism Megatron turns it off", "remove it, or raise --tensor-model-parallel-size"),
    ("async-save", "warning", "no-effect", _without("async-save", "use-persistent-ckpt-worker"),
     "since core 0.16 Megatron turns it off without --use-persistent-ckpt-worker, and saves while the training waits",
     "add --use-persistent-ckpt-worker, or remove it"),
    ("no-load-optim", "warning", "own-resumption",
     lambda s: _both("no-load-optim", "load")(s) and not s.given("finetune"),
     "Megatron goes on at the checkpoint's step without its optimizer's state; Seatrial's own trainer takes that as "
     "well where the run resumes, and begins at step 0 where it takes the weights alone",
     f"run it with --engine {Settings.ENGINE}, or give --finetune to begin at step 0"),
    ("cp-comm-type", "info", "nearest-strategy",
     lambda s: s.given("cp-comm-type") and "a2a" in s.entries["cp-comm-type"].text,
     "heads are not exchanged here; a ring or an all-gather is used instead, with the same result",
     NO_CHANGE),
    ("data-path", "warning", "default-split", lambda s: s["split"] is None and bool(s["data-path"]),
     "--split is missing, so the default 969,30,1 applies: 3 % of the data is held out of training", "add --split"),
)  # fmt: skip


def _is_llama2(s: Settings) -> bool:
    return s.script == "train_llama2.sh"


def _add(s: Settings, traps: tuple[Trap, ...]) -> None:
    for name, severity, code, is_so, why, fix in traps:
        if is_so(s):
            s.add(name, severity, code, why, fix)


def before(s: Settings) -> None:
    """Adds the findings that need no derived value."""
    if s.has_errors:
        return
    if s.script:
        _model_size(s)
        _add(s, SCRIPT_TRAPS)
    for name, is_so, why, fix in REFUSALS:
        if is_so(s) and not (s.script and name in ("overlap-param-gather", "ckpt-format")):
            s.add(name, "error", "refused-by-megatron", why, fix)
    severity: Severity = "warning" if s.of_forks or s.is_before("0.4") else "error"
    for name, is_so, why, fix in REFUSALS_OF_CORE:
        if is_so(s):
            s.add(name, severity, "refused-by-megatron", why, fix)
    if not s.script:
        _connections(s)
    length, context = s["seq-length"], s["context-parallel-size"]
    if length and context > 1 and length % (2 * context):
        why = f"{length} is no multiple of 2 × context parallelism = {2 * context}"
        s.add("seq-length", "error", "refused-by-megatron", why, f"give a multiple of {2 * context}")


def after(s: Settings, spec: RunSpec) -> None:
    """Adds the findings about a whole run."""
    if not s.script:
        _add(s, ARGUMENT_TRAPS)
    if s.unstated and "torchrun.nproc_per_node" in s.entries:
        fix = "have the file here, or give nnodes=… nproc_per_node=…"
        s.add("torchrun.nproc_per_node", "warning", "devices-not-stated", s.unstated, fix)
    if s["fp8-recipe"] in ("mxfp8", "blockwise") and spec.precision.quantization:
        why = "here whole tensors are scaled, by the values of earlier steps, not blocks of them"
        s.add("fp8-recipe", "warning", "nearest-recipe", why, "use tensorwise or delayed, or keep it")
    if spec.optimizer.schedule not in ("cosine", "linear", "constant"):
        why = "here NeMo's schedule of this name is used, whose rate is one step ahead of Megatron's"
        s.add("lr-decay-style", "info", "schedule-differs", why, "no change is needed, or give cosine")
    _rounded(s, spec.batch.global_batch_size)
    if spec.data.kind == "synthetic":
        why = "mock data shows that the steps work, not that anything is learnt"
        name = "DATA_PATH" if s.script else "--data-path"
        s.add("mock-data", "info", "synthetic-data", why, f"no change is needed, or give {name}")


def _rounded(s: Settings, batch: int) -> None:
    """A note on each length of the schedule in sequences that is no whole number of steps."""
    for name in ("lr-warmup-samples", "lr-decay-samples", "lr-wsd-decay-samples"):
        steps, rest = divmod(s[name] or 0, batch)
        if rest:
            why = f"{s[name]} sequences are {s[name] / batch:.2f} steps of {batch}; here the schedule has {steps}"
            s.add(name, "info", "rounded", why, f"give a multiple of {batch}, or keep it")


def _model_size(s: Settings) -> None:
    sizes = SCRIPTS[s.script].sizes
    if s.get("MODEL_SIZE", 70) not in sizes:
        *others, last = map(str, sizes)
        why = f"{s.script} supports only {', '.join(others)} and {last}"
        other = next(name for name in SCRIPTS if name != s.script)
        s.add("MODEL_SIZE", "error", "refused-by-script", why, f"give one of them, or use {other}")


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
