"""The arguments of a Megatron command → RunSpec; what is not given is derived as Megatron-LM does."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from seatrial.dialects import jobs
from seatrial.dialects.megatron import stages
from seatrial.dialects.megatron.arguments import ALIASES, ARGUMENTS, FP8, LAUNCHER, SCHEDULES
from seatrial.dialects.megatron.model import model_of
from seatrial.dialects.megatron.script import ASSUMED_DEVICES, VISIBLE
from seatrial.dialects.megatron.settings import Settings
from seatrial.dialects.table import coerce
from seatrial.dialects.table.layouts import lay_out
from seatrial.dialects.table.suggestions import did_you_mean
from seatrial.dialects.typed import as_name
from seatrial.estimate import hardware
from seatrial.spec import (
    Batch,
    Checkpoint,
    Data,
    Distributed,
    Dropout,
    Dtype,
    Evaluation,
    Execution,
    Initialization,
    Logging,
    ModelSpec,
    Optimizer,
    Parallelism,
    Precision,
    RunSpec,
    Topology,
    gather_part,
)

NAME = "megatron"
_ENDPOINT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+|\$\w+|\$\{\w+\})(?::(.+))?")
LEGACY_SPLIT = "969,30,1"  # Megatron's, for --data-path without --split


def build(s: Settings, file: str) -> RunSpec | None:
    """The run, as far as the settings allow one."""
    _report_missing(s)
    if s.has_errors:
        return None
    topology, length = _topology(s), s["seq-length"]
    model = model_of(s, length)
    parallelism = None if s.has_errors or topology is None else _parallelism(s, topology, model)
    if model is None or topology is None or parallelism is None:
        return None
    micro, values = s["micro-batch-size"], s.placed()
    mesh = RunSpec(
        name="", dialect=NAME, model=model, steps=1, topology=topology, parallelism=parallelism,
        batch=Batch(sequence_length=length, global_batch_size=1, micro_batch_size=micro),
    )  # fmt: skip
    total = s["global-batch-size"] or micro * mesh.data_parallel_size
    steps = s["train-iters"] or max(1, s["train-samples"] // total)
    ends = s["exit-interval"] if s.given("exit-interval") and s["exit-interval"] < steps else steps
    optimizer = _optimizer(s, steps, ends, total)
    return None if optimizer is None else replace(
        mesh,
        name=s["wandb-exp-name"] or s["EXP_NAME"] or as_name(Path(file).stem),
        batch=replace(mesh.batch, global_batch_size=total),
        steps=ends,
        precision=_precision(s),
        initialization=gather_part(Initialization, "initialization", values),
        dropout=gather_part(Dropout, "dropout", values),
        optimizer=optimizer,
        data=_data(s),
        evaluation=_evaluation(s),
        logging=gather_part(Logging, "logging", values, tensorboard=s.given("tensorboard-dir")),
        execution=_execution(s),
        checkpoint=_checkpoint(s, steps),
        distributed=gather_part(
            Distributed, "distributed", values | _rendezvous(s, topology), slurm=jobs.options(s.job)
        ),
        container=s.around.container,
        log_dir=s["LOG_DIR"],
        seed=s["seed"],
    )  # fmt: skip


def _report_missing(s: Settings) -> None:
    """An error for each argument that is needed and not there, nor meant by an unknown one.

    None where a variable of which nothing is known may hold them.
    """
    if any(problem.code == "unknown-variable" and problem.severity == "error" for problem in s.problems):
        return
    suggested = " ".join(problem.fix for problem in s.problems if problem.code == "unknown-argument")
    others = {**ALIASES, "train-iters": "train-samples"}
    for name in (name for name, key in ARGUMENTS.items() if key.required):
        names = list(dict.fromkeys((name, others.get(name, name))))
        if not any(each in s.entries or each in s.values or f"--{each}?" in suggested for each in names):
            why = f"{' or '.join(f'--{each}' for each in names)} is missing, and has no default"
            s.add(name, "error", "missing-argument", why, f"add --{name}")


# --- devices ----------------------------------------------------------------------------------------------------------


def _topology(s: Settings) -> Topology | None:
    nodes = s.get("NNODES", 1) if s.script else _number_of(s, "torchrun.nnodes")
    each = (_visible(s) or ASSUMED_DEVICES) if s.script else _number_of(s, "torchrun.nproc_per_node")
    name = s["topology.device"]
    device = hardware.find(str(name)) if name is not None else None
    if name is not None and device is None:
        why = f"unknown device; known are {', '.join(hardware.DEVICES)}"
        s.add("topology.device", "error", "unknown-device", why, did_you_mean(str(name), hardware.DEVICES))
    if nodes is None or each is None or s.has_errors:
        return None
    return Topology(num_nodes=nodes, devices_per_node=each, device=device.name if device else None)


def _visible(s: Settings) -> int | None:
    """The devices that a script may use, where a variable says which."""
    named = (str(s[name]) for name in VISIBLE if re.fullmatch(r"\d+(,\d+)*", str(s[name])))
    return next((len(text.split(",")) for text in named), None)


def _number_of(s: Settings, option: str) -> int | None:
    """A number of torchrun's, or 1; `2:2` is 2, and `gpu` is unknown here."""
    value = str(s.get(option, 1))
    low, _, high = value.partition(":")
    try:
        if high and low != high:
            raise ValueError(f"{coerce.shown(value)} lets the number of nodes change during the run")
        return coerce.count(low)
    except ValueError as error:
        s.add(option, "error", "bad-value", str(error), f"give {option.rpartition('.')[2]}=… as a whole number")
        return None


def _rendezvous(s: Settings, topology: Topology) -> dict[str, Any]:
    """Host and port of the first node, as --rdzv_endpoint has them; a backend other than these two has its own server.

    One node alone needs neither. As for torchrun, --master_addr and --master_port have no say beside it.
    """
    host, port = LAUNCHER["rdzv_endpoint"].paths
    match = _ENDPOINT.fullmatch(str(s["torchrun.rdzv_endpoint"] or ""))
    if match is None or topology.num_nodes == 1 or s.get("torchrun.rdzv_backend", "static") not in ("static", "c10d"):
        return {}
    found: dict[str, Any] = {host: match[1].strip("[]"), port: None}
    with suppress(ValueError):
        found[port] = coerce.port(match[2])
    return found


def is_fully_sharded(s: Settings) -> bool:
    """True if parameters are sharded over data-parallel replicas."""
    is_full = s["data-parallel-sharding-strategy"] == "optim_grads_params"
    return s.given("use-torch-fsdp2") or bool(s["use-megatron-fsdp"] and is_full)


def _parallelism(s: Settings, topology: Topology, model: ModelSpec | None) -> Parallelism | None:
    """Megatron's order of ranks, tensor fastest, then context, data and pipeline, laid over the nodes in turn."""
    tensor, context = s["tensor-model-parallel-size"], s["context-parallel-size"]
    pipeline, world = s["pipeline-model-parallel-size"], topology.num_devices
    split = tensor * context * pipeline
    if world % split:
        why = f"{world} devices are not divisible by tensor × context × pipeline parallelism = {split}"
        names = ("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size")
        name = max(names, key=lambda name: s[name])
        each = math.gcd(split, topology.devices_per_node if topology.devices_per_node > 1 else ASSUMED_DEVICES)
        enough = f"more devices, as nnodes={split // each} nproc_per_node={each} do"
        if s.unstated:
            s.add(name, "error", "devices-not-stated", f"{s.unstated}; {why}", f"give {enough}")
        else:
            s.add(name, "error", "refused-by-megatron", why, f"give {enough}, or less parallelism")
        return None
    replicas = world // split
    copies = s["num-distributed-optimizer-instances"] if is_fully_sharded(s) else replicas
    if replicas % copies:
        why = f"{replicas} data-parallel replicas cannot be split into {copies} instances"
        name, fix = "num-distributed-optimizer-instances", f"give a divisor of {replicas}"
        s.add(name, "error", "refused-by-megatron", why, fix)
        return None
    sizes = {
        "tensor": tensor, "context": context, "fsdp": replicas // copies, "data": copies, "pipeline": pipeline,
    }  # fmt: skip
    within, across = lay_out(sizes, topology.devices_per_node)
    chunks = _chunks(s, pipeline, model)
    shards_state = s["use-megatron-fsdp"] and s["data-parallel-sharding-strategy"] in ("optim", "optim_grads")
    return Parallelism(
        within_node=within, across_nodes=across, virtual_pipeline=chunks,
        stage_layers=_stage_layers(s, pipeline, chunks, model),
        zero1=bool(s.given("use-distributed-optimizer") or shards_state),
        sequence_parallel=s.given("sequence-parallel") and tensor > 1,
        counts_embedding=s.given("account-for-embedding-in-pipeline-split"),
        counts_head=s.given("account-for-loss-in-pipeline-split"),
        context_strategy=s["cp-comm-type"] or ("ring" if context > 1 else "all_gather"),
    )  # fmt: skip


def _stage_layers(s: Settings, pipeline: int, chunks: int, model: ModelSpec | None) -> tuple[int, ...]:
    """The layers of each chunk where stages differ; an error where Megatron refuses them."""
    layout = s["pipeline-model-parallel-layout"]
    ends = ("decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers")
    first, last = (s[name] for name in ends)
    if pipeline == 1 or model is None or (layout is None and first is None and last is None):
        return ()
    name = "pipeline-model-parallel-layout" if layout is not None else ends[first is None]
    try:
        if layout is None:
            return stages.of_ends(model.num_layers, pipeline, chunks, first, last)
        found = stages.of_layout(layout)
        if len(found) % pipeline or sum(found) != model.num_layers:
            raise ValueError(f"it has {sum(found)} layers on {len(found)} stages, not {model.num_layers} on {pipeline}")
    except ValueError as error:
        fix = f"give numbers of layers that add up to {model.num_layers}"
        s.add(name, "error", "refused-by-megatron", str(error), fix)
        return ()
    return found


def _chunks(s: Settings, pipeline: int, model: ModelSpec | None) -> int:
    """The chunks of the model on each stage; an error where Megatron refuses them."""
    name = next((name for name in _CHUNKS if s.given(name)), None)
    if name is None or model is None:
        return 1
    chunks = _CHUNKS[name](s, pipeline, model)
    least = 3 if s.given("no-overlap-p2p-communication") else 2
    if chunks > 1 and pipeline < least:
        without = " and no overlap of their communication" if least > 2 else ""
        why = f"with {chunks} chunks on a stage{without} Megatron needs {least} stages or more, and has {pipeline}"
        s.add(name, "error", "refused-by-megatron", why, f"remove it, or give --pipeline-model-parallel-size {least}")
    return chunks


def _chunks_of_layout(s: Settings, pipeline: int, model: ModelSpec) -> int:
    with suppress(ValueError):  # `_stage_layers` reports it
        return max(1, len(stages.of_layout(s["pipeline-model-parallel-layout"])) // pipeline)
    return 1


def _chunks_of_layers(s: Settings, pipeline: int, model: ModelSpec) -> int:
    """The chunks by the number of layers of each; the ends of the model may count as layers."""
    name = "num-layers-per-virtual-pipeline-stage"
    ends = ("account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split")
    layers, each = model.num_layers + sum(s.given(end) for end in ends), s[name]
    of_a_stage = layers // pipeline
    if layers % pipeline == 0 and of_a_stage % each:  # stages that differ are found elsewhere
        why = f"the {of_a_stage} layers of a stage are not divisible into chunks of {each}"
        s.add(name, "error", "refused-by-megatron", why, f"give a divisor of {of_a_stage}")
    return max(1, int(of_a_stage // each))


# What says how many chunks there are; of several, the first.
_CHUNKS: Mapping[str, Callable[[Settings, int, ModelSpec], int]] = {
    "pipeline-model-parallel-layout": _chunks_of_layout,
    "num-virtual-stages-per-pipeline-rank": lambda s, *_: int(s["num-virtual-stages-per-pipeline-rank"]),
    "num-layers-per-virtual-pipeline-stage": _chunks_of_layers,
}


# --- training ---------------------------------------------------------------------------------------------------------


def _precision(s: Settings) -> Precision:
    is_aware = s.given("use-precision-aware-optimizer")
    half = is_aware and s["exp-avg-dtype"] == s["exp-avg-sq-dtype"] == "bf16"
    in_half = s.given("grad-reduce-in-bf16") or (is_aware and s["main-grads-dtype"] == "bf16")
    compute: Dtype = "float16" if s.given("fp16") else "bfloat16" if s.given("bf16") else "float32"
    gradients: Dtype = "float32"
    if compute == "bfloat16" and in_half:
        gradients = "bfloat16"
    elif compute == "float16" and not s.given("accumulate-allreduce-grads-in-fp32"):
        gradients = "float16"
    return gather_part(
        Precision, "precision", s.placed(), compute_dtype=compute,
        optimizer_dtype="bfloat16" if half and compute == "bfloat16" else "float32", gradient_dtype=gradients,
        reduce_dtype=gradients, quantization=_quantization(s),
    )  # fmt: skip


def _quantization(s: Settings) -> str | None:
    if not any(s.given(name) for name in ("fp8-format", "fp8-hybrid", "fp8-e4m3")):
        return None
    kind = "e4m3" if s.given("fp8-e4m3") else s["fp8-format"] or "hybrid"
    return FP8.get((s["fp8-recipe"], kind), "fp8")


def _optimizer(s: Settings, steps: int, ends: int, batch: int) -> Optimizer | None:
    """The schedule in steps; what is given in sequences is divided by the batch."""
    rate = s["lr"]
    decay = s["lr-decay-iters"] or (s["lr-decay-samples"] or 0) // batch or None
    whole = decay or steps
    warmup = s["lr-warmup-iters"] or (s["lr-warmup-samples"] or 0) // batch
    if s.given("lr-warmup-fraction"):
        warmup = int(s["lr-warmup-fraction"] * whole)
    if warmup >= whole:
        name = next((name for name in ("lr-warmup-iters", "lr-warmup-samples") if s.given(name)), "lr-warmup-fraction")
        why = f"the warm-up of {warmup} steps is not shorter than the schedule of {whole}"
        s.add(name, "error", "refused-by-megatron", why, f"make it less than {whole}")
    style, hold = s["lr-decay-style"], 0
    if style == "WSD":
        style = s["lr-wsd-decay-style"]
        fall = s["lr-wsd-decay-iters"] or (s["lr-wsd-decay-samples"] or 0) // batch
        if style is None or not fall or fall > whole - warmup:
            why = "WSD needs --lr-wsd-decay-style linear or cosine, and --lr-wsd-decay-iters that fit the schedule"
            s.add("lr-decay-style", "error", "bad-value", why, "give both, or another --lr-decay-style")
        hold = whole - warmup - fall
    if s["min-lr"] > rate:
        why = f"{s['min-lr']:g} is above --lr, {rate:g}"
        s.add("min-lr", "error", "refused-by-megatron", why, "give a rate from 0 to --lr")
    if s.has_errors:
        return None
    is_sgd = s["optimizer"] == "sgd"
    return gather_part(
        Optimizer, "optimizer", s.placed(),
        algorithm="sgd" if is_sgd else "adamw", schedule=SCHEDULES[style], warmup_steps=warmup, hold_steps=hold,
        decay_steps=decay or (steps if ends != steps else None),
        final_learning_rate_fraction=coerce.fraction_of(s["min-lr"], rate),
        momentum=s["sgd-momentum"] if is_sgd else 0.0, clip_norm=s["clip-grad"] or None,
        on_non_finite=_on_non_finite(s),
    )  # fmt: skip


def _on_non_finite(s: Settings) -> Literal["abort", "skip", "continue"]:
    """A scale that follows the gradients skips the steps in which they overflow, and Megatron checks nothing else."""
    if s.given("fp16") and s["loss-scale"] is None:
        return "skip"
    return "continue" if s.given("no-check-for-nan-in-loss-and-grad") else "abort"


def _data(s: Settings) -> Data:
    paths, weights = blend(s["data-path"] or s["train-data-path"] or ())
    if s.given("mock-data") or not paths:
        return Data()
    tokenizer = s["tokenizer-model"] if s["tokenizer-type"] != "NullTokenizer" else None
    return gather_part(
        Data, "data", s.placed(), kind="megatron", paths=paths, weights=weights,
        validation_paths=blend(s["valid-data-path"] or ())[0], test_paths=blend(s["test-data-path"] or ())[0],
        split=(s["split"] or LEGACY_SPLIT) if s["data-path"] else None, tokenizer=tokenizer or "byte",
    )  # fmt: skip


def blend(words: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Paths and weights as Megatron takes them: pairs of weight and path if all firsts of pairs are numbers."""
    try:
        if len(words) > 1 and len(words) % 2 == 0:
            return words[1::2], tuple(float(word) for word in words[::2])
    except ValueError:
        pass
    return words, ()


def _evaluation(s: Settings) -> Evaluation:
    if s.given("full-validation"):
        return Evaluation(interval_steps=s["eval-interval"])
    if s["eval-iters"] <= 0:
        return Evaluation()
    return Evaluation(interval_steps=s["eval-interval"], batches=s["eval-iters"])


def _execution(s: Settings) -> Execution:
    is_selective = s.given("recompute-activations") or s["recompute-granularity"] == "selective"
    remat = "selective" if is_selective else s["recompute-granularity"] or "none"
    attention = "flash" if s.given("use-flash-attn") else s["attention-backend"]
    start = s["profile-step-start"] if s.given("profile") else None
    return Execution(
        remat=remat, remat_modules=tuple(s["recompute-modules"] or ("core_attn",)) if is_selective else (),
        attention=attention, environment=s.environment, engine_keys=s.engine_keys(), profile_from_step=start,
        profile_steps=max(1, s["profile-step-end"] - start) if start is not None else Execution().profile_steps,
    )  # fmt: skip


def _checkpoint(s: Settings, steps: int) -> Checkpoint:
    directory, load = s["save"], s["load"]
    interval = s["save-interval"]
    resumes = load is not None and load == directory and not s.given("finetune")
    start = s["pretrained-checkpoint"] if resumes or load is None else load
    weights_only = start is not None and (start != load or s.given("finetune") or s.given("no-load-optim"))
    return Checkpoint(
        enabled=directory is not None, directory=directory, resume=resumes, resume_from=start,
        resume_required=resumes and s.given("exit-on-missing-checkpoint"),
        weights_only=weights_only, asynchronous=s.given("async-save") if directory else Checkpoint().asynchronous,
        interval_steps=interval if directory and (interval or steps) < steps else None,
        keep=None if directory else Checkpoint().keep,  # Megatron keeps all
    )  # fmt: skip
