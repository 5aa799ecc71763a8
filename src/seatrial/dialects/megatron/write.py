"""A RunSpec → the text of a Megatron command, and a note for each value that the command reads back otherwise."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from seatrial import source
from seatrial.dialects.megatron.arguments import FP8
from seatrial.dialects.megatron.build import ASSUMED_DEVICES, ATTENTION, SCHEDULES
from seatrial.dialects.megatron.script import SCRIPTS, VARIABLES
from seatrial.dialects.megatron.settings import is_handed_on
from seatrial.dialects.table import coerce
from seatrial.dialects.table.entries import Request
from seatrial.dialects.table.written import Note, Written, changed, shown
from seatrial.spec import Resolved, RunSpec
from seatrial.spec.presets import MODELS, known_vocabulary, same_architecture

Read = Callable[[Request], Resolved]
Argument = tuple[
    str, Any
]  # (name, value): True for a flag, None or False where it is left out, a tuple for several words

EXAMPLES = "examples/llama"  # where the scripts are
MOST_DEVICES = 128  # of a node, that a variable names one by one
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"

# Why a value has no words in the arguments of pretrain_gpt.py, by the beginning of its path.
_REASONS: Mapping[str, str] = {
    "model.name": "a command does not name its model",
    "model.max_positions": "Megatron needs a table as long as its sequences, and there is none for rotary positions",
    "model.rope_theta": "--rotary-base is a whole number",
    "model.rope_scaling": "--use-rope-scaling has no setting but its factor",
    "model.vocab_size": "the tokenizer decides",
    "epochs": "Megatron counts steps, not epochs",
    "topology.device": "a command does not name the device",
    "parallelism": "Megatron lays tensor, context, data and pipeline parallelism over the nodes in this order",
    "precision.params_dtype": "Megatron's optimizer updates float32 weights",
    "precision.optimizer_dtype": "Megatron can choose it only for bfloat16 with --use-distributed-optimizer",
    "precision": "Megatron has no argument for it, or not together with the others",
    "initialization": "Megatron always scales the projections back into the residual",
    "dropout": "Megatron has no dropout inside the MLP",
    "optimizer.decay_norms": "Megatron never decays norms and biases",
    "optimizer.on_non_finite": "Megatron ends the run, or goes on with what there is",
    "optimizer.warmup_steps": "Megatron's warm-up ends before its schedule does",
    "optimizer": "Megatron has no such optimizer or schedule",
    "objective": "pretrain_gpt.py only pretrains",
    "data": "Megatron reads its own .bin and .idx files",
    "evaluation": "Megatron evaluates every so many steps, on so many batches or on all",
    "logging": "Megatron has no argument for it",
    "execution.environment": f"names that are none, secrets and what the launcher sets are left out; {CONNECTIONS} is "
    "set as Megatron demands",
    "execution": "it is a matter of JAX, or Megatron has no argument for it",
    "checkpoint": "Megatron says it with --save, --load and --save-interval",
    "distributed": "torchrun has its own timeouts",
    "container": "it is started inside one",
    "expectations": "a command holds no bars",
}
_SCRIPT_REASONS: Mapping[str, str] = {
    "model": "the script knows a few Llama models, with Megatron's base of rotary frequencies",
    "topology.devices_per_node": "the script asks torch",
    "parallelism.context_strategy": "the script leaves it to Megatron, which takes a ring over parts of a sequence",
    "optimizer": "the script has a schedule and an optimizer of its own",
    "seed": "the script leaves Megatron's seed",
    "logging": "the script logs as it does",
    "evaluation": "the script evaluates only with EVAL_ITERS, and where it saves",
    "execution": "the script has no variable for it",
}


def write(spec: RunSpec, style: str, read: Read) -> Written:
    """The spec as a command in one of the two styles."""
    text = _arguments_text(spec) if style == "arguments" else _variables_text(spec)
    document = source.parse_shell(text, file="written.sh")
    again = read(Request(document=document, overrides=[], action="plan", user="user", home=Path("/"))).spec
    if again is None:  # what is written above can always be read
        raise AssertionError("a command was written that cannot be read")
    reasons = _REASONS if style == "arguments" else {**_SCRIPT_REASONS, **_REASONS, **_SCRIPT_REASONS}
    return Written(text=text, suffix=".sh", notes=tuple(_notes(spec, again, reasons)))


def _notes(spec: RunSpec, again: RunSpec, reasons: Mapping[str, str]) -> Iterator[Note]:
    """One note for each leaf that reads back as something else; a part that is there or missing as a whole is one."""
    for path, value, other in changed(spec, again):
        longest = max((prefix for prefix in reasons if path.startswith(prefix)), key=len, default="")
        why = f"{reasons.get(longest, 'there is no argument for it')}; here: {shown(path, other)}"
        yield Note(path=path, value=value, why=why)


# --- pretrain_gpt.py --------------------------------------------------------------------------------------------------


def _arguments_text(spec: RunSpec) -> str:
    environment, launcher, arguments = command(spec)
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
    lines = ["torchrun", *map(shlex.join, launcher), "pretrain_gpt.py", *map(shlex.join, arguments)]
    return f"#!/bin/bash\n{exports}" + " \\\n    ".join(lines) + "\n"


def command(spec: RunSpec) -> tuple[dict[str, str], list[list[str]], list[list[str]]]:
    """(variables, arguments of torchrun, arguments of pretrain_gpt.py), each argument with its values."""
    environment = {name: value for name, value in spec.execution.environment.items() if is_handed_on(name)}
    if _is_sharded(spec) and environment.get(CONNECTIONS) == "1":
        del environment[CONNECTIONS]
    elif not _is_sharded(spec) and spec.mesh["tensor"] * spec.mesh["context"] > 1:
        environment[CONNECTIONS] = "1"
    launcher: list[Argument] = [
        ("nproc_per_node", spec.topology.devices_per_node), ("nnodes", spec.topology.num_nodes),
        ("master_addr", spec.distributed.coordinator_host), ("master_port", spec.distributed.coordinator_port),
    ]  # fmt: skip
    return environment, list(_words(launcher)), list(_words(_arguments(spec)))


def _words(arguments: Iterable[Argument]) -> Iterator[list[str]]:
    for name, value in arguments:
        if value is None or value is False or value == ():
            continue
        words = value if isinstance(value, tuple) else () if value is True else (value,)
        texts = [_word(word) for word in words]
        if len(texts) == 1 and texts[0].startswith("-") and not isinstance(value, tuple):
            yield [f"--{name}={texts[0]}"]  # else argparse takes it for an argument
        else:
            yield [f"--{name}", *texts]


def _word(value: Any) -> str:
    """A value as text; of several words none may look like an argument."""
    return repr(value) if isinstance(value, float) else str(value)


def _arguments(spec: RunSpec) -> Iterator[Argument]:
    yield from _model(spec)
    yield from (
        ("seq-length", spec.batch.sequence_length), ("micro-batch-size", spec.batch.micro_batch_size),
        ("global-batch-size", spec.batch.global_batch_size), ("train-iters", spec.steps), ("seed", spec.seed),
        ("init-method-std", spec.initialization.std), ("attention-dropout", spec.dropout.attention),
        ("hidden-dropout", spec.dropout.hidden),
    )  # fmt: skip
    yield from _mesh(spec)
    yield from _precision(spec)
    yield from _optimizer(spec)
    yield from _data(spec)
    yield from _rest(spec)
    yield from _checkpoint(spec)


def _model(spec: RunSpec) -> Iterator[Argument]:
    model = spec.model
    is_rope, scaling, length = model.positions == "rope", model.rope_scaling, spec.batch.sequence_length
    yield from (
        ("num-layers", model.num_layers), ("hidden-size", model.hidden_dim), ("ffn-hidden-size", model.ffn_dim),
        ("num-attention-heads", model.num_heads), ("kv-channels", model.head_dim),
        ("group-query-attention", model.num_kv_heads != model.num_heads),
        ("num-query-groups", model.num_kv_heads if model.num_kv_heads != model.num_heads else None),
        ("max-position-embeddings", max(length, model.max_positions or length)),
        ("position-embedding-type", "rope" if is_rope else "learned_absolute"),
        ("rotary-base", max(1, round(model.rope_theta))), ("rotary-percent", model.rotary_fraction),
        ("use-rope-scaling", scaling is not None), ("rope-scaling-factor", scaling.factor if scaling else None),
        ("normalization", "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm"), ("norm-epsilon", model.norm_epsilon),
        ("swiglu", model.activation == "swiglu"), ("untie-embeddings-and-output-weights", not model.tied_embeddings),
        ("window-size", None if model.sliding_window is None else f"{model.sliding_window - 1},0"),
        ("disable-bias-linear", not model.biases), ("make-vocab-size-divisible-by", model.vocab_multiple),
    )  # fmt: skip
    tokenizer = spec.data.tokenizer
    if spec.data.kind != "megatron" or tokenizer == "byte":
        yield from (("tokenizer-type", "NullTokenizer"), ("vocab-size", model.vocab_size - 1))
    else:
        yield from (("tokenizer-type", "HuggingFaceTokenizer"), ("tokenizer-model", tokenizer))
        known = known_vocabulary("HuggingFaceTokenizer", tokenizer)
        yield "vocab-size", model.vocab_size if known is None else None


def _is_sharded(spec: RunSpec) -> bool:
    return spec.mesh["fsdp"] > 1


def _mesh(spec: RunSpec) -> Iterator[Argument]:
    mesh, parallelism = spec.mesh, spec.parallelism
    usual = "ring" if mesh["context"] > 1 else "all_gather"
    words = {"ring": "p2p", "all_gather": "all_gather"}
    yield "cp-comm-type", words[parallelism.context_strategy] if parallelism.context_strategy != usual else None
    yield from (
        ("tensor-model-parallel-size", mesh["tensor"]), ("pipeline-model-parallel-size", mesh["pipeline"]),
        ("context-parallel-size", mesh["context"]), ("sequence-parallel", parallelism.sequence_parallel),
        ("num-virtual-stages-per-pipeline-rank",
         parallelism.virtual_pipeline if parallelism.virtual_pipeline > 1 else None),
        ("use-distributed-optimizer", parallelism.zero1),
    )  # fmt: skip
    if _is_sharded(spec):
        yield from (("use-megatron-fsdp", True), ("data-parallel-sharding-strategy", "optim_grads_params"),
                    ("ckpt-format", "fsdp_dtensor"), ("num-distributed-optimizer-instances", mesh["data"]))  # fmt: skip


def _precision(spec: RunSpec) -> Iterator[Argument]:
    precision = spec.precision
    is_half = precision.compute_dtype == "bfloat16"
    yield "bf16", is_half
    yield "grad-reduce-in-bf16", is_half and precision.gradient_dtype == precision.reduce_dtype == "bfloat16"
    if is_half and precision.optimizer_dtype == "bfloat16" and spec.parallelism.zero1:
        yield from (("use-precision-aware-optimizer", True), ("exp-avg-dtype", "bf16"), ("exp-avg-sq-dtype", "bf16"))
    found = next((kind for kind, name in FP8.items() if name == precision.quantization), None)
    yield from (("fp8-recipe", found[0]), ("fp8-format", found[1])) if found else ()


def _optimizer(spec: RunSpec) -> Iterator[Argument]:
    optimizer = spec.optimizer
    is_sgd, whole = optimizer.algorithm == "sgd", optimizer.decay_steps or spec.steps
    warmup = min(optimizer.warmup_steps, whole - 1)
    style = next((word for word, name in SCHEDULES.items() if name == optimizer.schedule), "cosine")
    fall = whole - warmup - optimizer.hold_steps
    if optimizer.hold_steps and style in ("linear", "cosine") and fall > 0:
        yield from (("lr-decay-style", "WSD"), ("lr-wsd-decay-style", style), ("lr-wsd-decay-iters", fall))
    else:
        yield "lr-decay-style", style
    least = coerce.part_of(optimizer.final_learning_rate_fraction, optimizer.learning_rate)
    yield from (
        ("optimizer", "sgd" if is_sgd else "adam"), ("lr", optimizer.learning_rate),
        ("min-lr", min(least, optimizer.learning_rate)), ("lr-decay-iters", optimizer.decay_steps),
        ("lr-warmup-iters", warmup), ("weight-decay", optimizer.weight_decay), ("adam-beta1", optimizer.beta1),
        ("adam-beta2", optimizer.beta2), ("adam-eps", optimizer.epsilon),
        ("sgd-momentum", optimizer.momentum if is_sgd else None), ("clip-grad", optimizer.clip_norm or 0.0),
        ("no-check-for-nan-in-loss-and-grad", optimizer.on_non_finite == "continue"),
    )  # fmt: skip


def _data(spec: RunSpec) -> Iterator[Argument]:
    data = spec.data
    if data.kind != "megatron" or not data.paths:
        yield "mock-data", True
        return
    paths, weights = tuple(_path(path) for path in data.paths), data.weights
    pairs = (word for weight, path in zip(weights, paths, strict=False) for word in (repr(weight), path))
    name = "data-path" if data.split else "train-data-path"
    yield from (("split", data.split), (name, tuple(pairs) if weights else paths))
    if not data.split:
        for name, others in (("valid-data-path", data.validation_paths), ("test-data-path", data.test_paths)):
            yield name, tuple(_path(path) for path in others)
    yield from (
        ("data-cache-path", data.index_dir), ("reset-position-ids", data.reset_positions),
        ("reset-attention-mask", data.reset_attention), ("eod-mask-loss", data.mask_document_ends),
    )  # fmt: skip


def _path(path: str) -> str:
    """A path that argparse does not take for an argument."""
    return f"./{path}" if path.startswith("-") else path


def _rest(spec: RunSpec) -> Iterator[Argument]:
    evaluation, execution = spec.evaluation, spec.execution
    is_on = evaluation.interval_steps is not None
    yield from (
        ("eval-interval", evaluation.interval_steps), ("full-validation", is_on and evaluation.batches is None),
        ("eval-iters", (evaluation.batches or 1) if is_on else 0), ("log-interval", spec.logging.interval_steps),
        ("log-params-norm", spec.logging.parameter_norm),
        ("tensorboard-dir", "tensorboard" if spec.logging.tensorboard else None),
    )  # fmt: skip
    if execution.remat == "full":
        yield from (("recompute-granularity", "full"), ("recompute-method", "uniform"), ("recompute-num-layers", 1))
    elif execution.remat != "none":
        yield "recompute-granularity", "selective"
        yield "recompute-modules", tuple(_path(name) for name in execution.remat_modules) or ("core_attn",)
    yield "attention-backend", next((word for word, name in ATTENTION.items() if name == execution.attention), "auto")
    if execution.profile_from_step is not None:
        yield from (("profile", True), ("profile-step-start", execution.profile_from_step),
                    ("profile-step-end", execution.profile_from_step + execution.profile_steps))  # fmt: skip


def _checkpoint(spec: RunSpec) -> Iterator[Argument]:
    checkpoint = spec.checkpoint
    directory = (checkpoint.directory or "checkpoints") if checkpoint.enabled else None
    if directory:
        yield from (("save", directory), ("save-interval", checkpoint.interval_steps or spec.steps),
                    ("async-save", checkpoint.asynchronous), ("most-recent-k", checkpoint.keep))  # fmt: skip
    resumes = directory if checkpoint.resume else None
    yield "exit-on-missing-checkpoint", resumes is not None and checkpoint.resume_required
    start = checkpoint.resume_from
    if start is not None and resumes:
        yield from (("load", resumes), ("pretrained-checkpoint", start))
    else:
        yield "load", start if start is not None else resumes
        yield "finetune", start is not None and checkpoint.weights_only


# --- ROCm's scripts ---------------------------------------------------------------------------------------------------


def _variables_text(spec: RunSpec) -> str:
    environment, variables, name = script_variables(spec)
    exports = "".join(f"export {variable}={shlex.quote(value)}\n" for variable, value in environment.items())
    words = [f"{variable}={shlex.quote(value)}" for variable, value in variables.items()]
    return f"#!/bin/bash\n{exports}" + " \\\n    ".join([*words, f"bash {EXAMPLES}/{name}"]) + "\n"


def script_variables(spec: RunSpec) -> tuple[dict[str, str], dict[str, str], str]:
    """(other variables, the script's own, its name): of its own, those that differ from its defaults or matter most."""
    name, size = _script(spec)
    script, mesh = SCRIPTS[name], spec.mesh
    is_sharded = _is_sharded(spec)
    data, checkpoint = spec.data, spec.checkpoint
    is_real = data.kind == "megatron" and bool(data.paths)
    blend = (f"{weight!r} {path}" for weight, path in zip(data.weights, data.paths, strict=False))
    quantized = ((kind, name) for kind, name in FP8.items() if kind[1] == "hybrid")
    scaled = next((kind[0] for kind, name in quantized if name == spec.precision.quantization), None)
    values: dict[str, Any] = {
        "MODEL_SIZE": size, "TP": mesh["tensor"], "PP": mesh["pipeline"], "CP": mesh["context"],
        "MBS": spec.batch.micro_batch_size, "BS": spec.batch.global_batch_size,
        "SEQ_LENGTH": spec.batch.sequence_length, "TOTAL_ITERS": spec.steps,
        "SEQ_PARALLEL": spec.parallelism.sequence_parallel, "FSDP": is_sharded and not spec.parallelism.zero1
        and mesh["pipeline"] == 1 and mesh["data"] == 1,
        "TE_FP8": scaled is not None, "TE_FP8_RECIPE": scaled, "RECOMPUTE": spec.execution.remat == "full",
        "USE_FLASH_ATTN": spec.execution.attention == "flash", "LOG_INTERVAL": spec.logging.interval_steps,
        "OPTIMIZER": "sgd" if spec.optimizer.algorithm == "sgd" else "adam",
        "GRAD_REDUCE_IN_BF16": spec.precision.gradient_dtype == "bfloat16",
        "ENABLE_PROFILING": spec.execution.profile_from_step is not None, "NNODES": spec.topology.num_nodes,
        "MASTER_ADDR": spec.distributed.coordinator_host, "MASTER_PORT": spec.distributed.coordinator_port,
        "LOG_DIR": spec.log_dir, "EVAL_ITERS": spec.evaluation.batches if spec.evaluation.interval_steps else None,
        "DATA_PATH": (" ".join(blend) if data.weights else " ".join(data.paths)) if is_real else None,
        "DATA_CACHE_PATH": data.index_dir if is_real else None,
        "SAVE_CKPT_PATH": (checkpoint.directory or "checkpoints") if checkpoint.enabled else None,
        "SAVE_INTERVAL": (checkpoint.interval_steps or spec.steps) if checkpoint.enabled else None,
        "EVAL_INTERVAL": spec.evaluation.interval_steps if checkpoint.enabled else None,
        "LOAD_CKPT_PATH": checkpoint.resume_from,
    }  # fmt: skip
    if is_sharded and not values["FSDP"]:
        values |= {"MEGATRON_FSDP": True, "ENABLE_HSDP": mesh["data"] > 1}
        values["HSDP_NUM_REPLICAS"] = mesh["data"] if mesh["data"] > 1 else None
    if is_sharded:
        values["TP"] = 1
    if values["FSDP"]:
        values["SEQ_PARALLEL"], values["CKPT_FORMAT"] = False, "torch_dist" if checkpoint.enabled else None
    if spec.topology.devices_per_node != ASSUMED_DEVICES and spec.topology.devices_per_node <= MOST_DEVICES:
        values["HIP_VISIBLE_DEVICES"] = ",".join(map(str, range(spec.topology.devices_per_node)))
    tokenizer = data.tokenizer if is_real and known_vocabulary(None, data.tokenizer) else None
    values["TOKENIZER_MODEL"] = tokenizer
    kept = ("MODEL_SIZE", "TP", "MBS", "BS", "SEQ_LENGTH", "TOTAL_ITERS", "TE_FP8")
    words = {
        variable: str(int(value)) if isinstance(value, bool) else str(value)
        for variable, value in values.items()
        if value not in (None, "") and (variable in kept or value != script.defaults.get(variable, False))
    }
    environment = {
        variable: value
        for variable, value in spec.execution.environment.items()
        if is_handed_on(variable)
        and value
        and (variable not in VARIABLES or VARIABLES[variable].to.startswith("execution.e"))
    }
    return environment, words, name


def _script(spec: RunSpec) -> tuple[str, int]:
    """The script, by its tokenizer's vocabulary or else by the architecture, and of its sizes the nearest."""
    owner = same_architecture(spec.model) or ""
    vocabularies = {
        known_vocabulary(None, script.defaults["TOKENIZER_MODEL"]): name for name, script in SCRIPTS.items()
    }
    usual = "train_llama2.sh" if owner.startswith("llama2") else "train_llama3.sh"
    name = vocabularies.get(spec.model.vocab_size, usual)
    if owner in MODELS and (size := re.search(r"-(\d+)b$", owner)) and int(size.group(1)) in SCRIPTS[name].sizes:
        return name, int(size.group(1))
    wanted = spec.model.num_layers * spec.model.hidden_dim**2
    return name, min(SCRIPTS[name].sizes, key=lambda size: abs(
        SCRIPTS[name].sizes[size][0] * SCRIPTS[name].sizes[size][1] ** 2 - wanted))  # fmt: skip
