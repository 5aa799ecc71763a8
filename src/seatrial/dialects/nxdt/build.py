"""An NxDT file's values → RunSpec: what takes more than one key, or what NxDT derives from others."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Literal

from seatrial.dialects.nxdt.architecture import Architecture, found_architecture, published, vocabulary_of
from seatrial.dialects.nxdt.keys import ALIGNMENT, CHECKPOINTS, FUSIONS, HF_ONLY, MEGATRON_ONLY, MONITORS, STRATEGY
from seatrial.dialects.nxdt.optimizer import optimizer as optimizer_of
from seatrial.dialects.nxdt.precision import precision
from seatrial.dialects.nxdt.settings import Settings
from seatrial.dialects.table import coerce
from seatrial.dialects.table.entries import NO_CHANGE
from seatrial.dialects.table.layouts import lay_out
from seatrial.dialects.typed import as_name
from seatrial.estimate import hardware
from seatrial.spec import (
    Batch,
    Checkpoint,
    Data,
    Dropout,
    Evaluation,
    Execution,
    Initialization,
    Logging,
    ModelSpec,
    Objective,
    Origin,
    Parallelism,
    RunSpec,
    Topology,
    gather_part,
)

NAME = "nxdt"

Kind = Literal["pretraining", "sft", "dpo", "orpo"]
Placed = Mapping[str, Any]  # path of the spec → value, of what no other key has a say in

DEFAULT_BETA = 0.01  # of dpo and orpo alike
MAX_PROMPT_LENGTH = 2048
PHYSICAL = {"trainium2": "trainium2-lnc1"}  # devices of which each is one NeuronCore where trainer.lnc is 1
# What each of the data modules reads beside paths and the tokenizer.
_READ_BY: dict[str, tuple[str, ...]] = {
    "records": ("max_examples",), "arrow": (),
    "megatron": ("split", "index_dir", "reset_positions", "reset_attention", "mask_document_ends"),
}  # fmt: skip


def build(settings: Settings) -> RunSpec | None:
    """The spec, as far as the values allow one; everything is checked even if there is none."""
    placed = settings.placed()
    steps, topology, kind = placed.get("steps"), _topology(settings), _kind(settings)
    has_length = _has_length(settings, steps, placed["epochs"])
    length = _sequence_length(settings, kind)
    data = _data(settings, kind, placed)
    architecture = _architecture(settings, placed)
    width = architecture.model.hidden_dim if architecture else settings.get("model.hidden_size") or 1
    optimizer = optimizer_of(settings, placed, steps, width)
    formats, checkpoint = precision(settings), _checkpoint(settings, placed)
    evaluation = _evaluation(settings, data)
    parallelism = _parallelism(settings, topology, placed) if topology else None
    sizes = [placed.get(f"batch.{name}_batch_size") for name in ("global", "micro")]
    if topology is None or architecture is None or optimizer is None or parallelism is None:
        return None
    if not has_length or length is None or None in sizes or not data.paths:
        return None
    return RunSpec(
        name=as_name(settings.get("name", NAME)),
        dialect=NAME,
        model=architecture.model,
        batch=gather_part(Batch, "batch", placed, sequence_length=length),
        steps=steps,
        epochs=placed["epochs"],
        topology=topology,
        parallelism=_with_stages(settings, parallelism, architecture.model.num_layers),
        precision=formats,
        initialization=architecture.initialization,
        dropout=architecture.dropout,
        optimizer=optimizer,
        objective=_objective(settings, kind),
        data=data,
        evaluation=evaluation,
        logging=gather_part(Logging, "logging", placed),
        execution=_execution(settings, placed),
        checkpoint=checkpoint,
        log_dir=_log_dir(settings),
        seed=placed["seed"],
    )


def _has_length(settings: Settings, steps: int | None, epochs: int | None) -> bool:
    """True if the run has a number of steps, or of epochs; else an error. Which data have epochs, the rules say."""
    if steps is None and epochs is None and "trainer.max_steps" in settings.values:
        settings.add(
            "trainer.max_steps", "error", "steps-unknown",
            "-1 leaves the number of steps to trainer.max_epochs, and that gives no number either",
            "give trainer.max_steps=… or trainer.max_epochs=…",
        )  # fmt: skip
    elif steps is None and epochs is None:
        settings.missing("trainer.max_steps", "nothing says how long the run is; trainer.max_epochs would too")
    return steps is not None or (epochs is not None and not settings.wrong("trainer.max_steps"))


# --- devices ----------------------------------------------------------------------------------------------------------


def _topology(settings: Settings) -> Topology | None:
    """The devices, where the file gives their number."""
    devices, wanted = settings.get("trainer.devices"), settings.get("topology.device")
    device = hardware.find(wanted) if wanted else None
    if wanted and device is None:
        why = f"{coerce.shown(wanted)} is no known device; known are {', '.join(hardware.DEVICES)}"
        settings.add("topology.device", "error", "unknown-device", why, "give one of these, or omit it")
    if devices is None:
        return None
    nodes = settings.get("trainer.num_nodes", 1)
    name = device.name if device else None
    if name and settings.get("trainer.lnc") == "1":
        name = PHYSICAL.get(name, name)
    return Topology(num_nodes=nodes, devices_per_node=devices, device=name)


def _parallelism(settings: Settings, topology: Topology, placed: Placed) -> Parallelism:
    """The mesh as NxD numbers its ranks, the first axis fastest: data parallelism gets what the others leave."""
    tensor, pipeline, context = (
        settings.get(f"{STRATEGY}.{name}parallel_size") for name in ("tensor_model_", "pipeline_model_", "context_")
    )
    shards, world = math.prod((tensor, pipeline, context)), topology.num_devices
    if world % shards:
        devices, nodes = topology.devices_per_node, topology.num_nodes
        settings.add(
            f"{STRATEGY}.tensor_model_parallel_size" if tensor > 1 else "trainer.devices", "error", "mesh-devices",
            f"TP {tensor} × PP {pipeline} × CP {context} = {shards} devices for one replica, and {devices} devices "
            f"× {nodes} node{'s' * (nodes > 1)} = {world} are no multiple of it",
            f"make trainer.devices × trainer.num_nodes a multiple of {shards}, or these sizes smaller",
        )  # fmt: skip
    sizes = {"tensor": tensor, "context": context, "data": max(1, world // shards), "pipeline": pipeline}
    within_node, across_nodes = lay_out(sizes, topology.devices_per_node)
    is_ring = settings.get(f"{FUSIONS}.ring_attention", context > 1)
    return gather_part(
        Parallelism, "parallelism", placed, within_node=within_node, across_nodes=across_nodes,
        context_strategy="ring" if is_ring else "all_gather",
    )  # fmt: skip


def _with_stages(settings: Settings, parallelism: Parallelism, layers: int) -> Parallelism:
    """The layers of each stage: by the cuts that are given, else NxD's own (pipeline/partition.py)."""
    stages = settings.get(f"{STRATEGY}.pipeline_model_parallel_size") * parallelism.virtual_pipeline
    last = settings.get("model.pipeline_cuts")
    if stages == 1 or (last is None and (layers % stages == 0 or layers < stages)):  # fewer layers: a rule says so
        return parallelism
    if last is None:
        each, more = divmod(layers, stages)
        return replace(parallelism, stage_layers=(each,) * (stages - more) + (each + 1,) * more)
    ends = [0, *(number + 1 for number in last), layers]
    return replace(parallelism, stage_layers=tuple(end - begin for begin, end in itertools.pairwise(ends)))


# --- model ------------------------------------------------------------------------------------------------------------


def _architecture(settings: Settings, placed: Placed) -> Architecture | None:
    """The model with its initialisation and dropout, from config.json, a preset, or the knobs of Megatron.

    Of a mixture of experts, which is refused, nothing else is asked for.
    """
    if any(name.startswith("model.moe.") for name, _ in settings.loud("rejected")):
        return None
    is_hf = settings.get("model_source", "hf") == "hf"
    others = [name for name in (MEGATRON_ONLY if is_hf else HF_ONLY) if name in settings.entries]
    if others:
        source, what = ("hf", "model_config says all this") if is_hf else ("megatron", "only hf models read it")
        names = ", ".join(name.rpartition(".")[2] for name in others)
        why = f"model_source is {source}, where {names} is not read: {what}"
        settings.add(others[0], "warning", "no-effect", why, "remove it, or give the other model_source")
    found = found_architecture(settings) if is_hf else _megatron(settings, placed)
    if found is None:
        return None
    vocabulary = settings.get("model.vocab_size") or found.model.vocab_size
    return replace(found, model=published(replace(found.model, vocab_size=vocabulary)))


def _megatron(settings: Settings, placed: Placed) -> Architecture | None:
    """Megatron's transformer; its own defaults are GPT's, not Llama's."""
    needed = [f"model.{name}" for name in ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads")]
    for name in needed:
        settings.missing(name)
        if settings.values.get(name, 0) is None:
            settings.add(name, "error", "bad-value", "a Megatron model needs the number", "give the number")
    _, hidden, _, heads = (settings.get(name) for name in needed)
    if any(settings.get(name) is None for name in needed):
        return None
    head_dim = settings.get("model.kv_channels")
    if head_dim is None and hidden % heads:
        why = f"hidden_size {hidden} cannot be split evenly over {heads} heads"
        settings.add("model.num_attention_heads", "error", "not-divisible", why, f"use a divisor of {hidden}")
    is_learned = settings.get("model.position_embedding_type") == "learned_absolute"
    model = gather_part(
        ModelSpec, "model", {
            **placed,
            "model.name": "custom",
            "model.vocab_size": settings.get("model.vocab_size") or 0,
            "model.num_kv_heads": settings.get("model.num_kv_heads") or heads,
            "model.head_dim": head_dim or max(1, hidden // heads),
            "model.rope_theta": settings.get("model.position_freq_base") * settings.get("model.position_abf_factor"),
            "model.positions": "learned" if is_learned else "rope",
            "model.max_positions": settings.get("model.max_position_embeddings") if is_learned else None,
        },
    )  # fmt: skip
    vocabulary = model.vocab_size or vocabulary_of(settings, model)
    if vocabulary is None:
        return None
    return Architecture(
        model=replace(model, vocab_size=vocabulary),
        initialization=gather_part(Initialization, "initialization", placed),
        dropout=gather_part(Dropout, "dropout", placed),
    )


def _execution(settings: Settings, placed: Placed) -> Execution:
    """The execution: what is recomputed, and how attention is computed."""
    granularity = settings.get("model.activations_checkpoint_granularity") or "none"
    if settings.wrong("model.activations_checkpoint_granularity"):
        granularity = "none"
    modules = settings.get("model.activations_checkpoint_recompute") or ("core_attn",)
    flash = settings.get(f"{FUSIONS}.flash_attention")
    return gather_part(
        Execution, "execution", placed, remat=granularity, remat_modules=modules if granularity == "selective" else (),
        attention={None: "auto", True: "flash", False: "dot_product"}[flash],
    )  # fmt: skip


# --- data and objective -----------------------------------------------------------------------------------------------


def _kind(settings: Settings) -> Kind:
    """The kind of objective, by the block that is there; two of them are an error."""
    kinds: tuple[Kind, ...] = ("dpo", "orpo", "sft")
    given = [name for name in kinds if settings.has(f"{ALIGNMENT}.{name}")]
    if len(given) > 1:
        why = f"{' and '.join(given)} are given, and a run has one objective"
        settings.add(f"{ALIGNMENT}.{given[1]}", "error", "contradiction", why, "keep one of the blocks")
    if given:
        return given[0]
    if settings.get("data.use_sft_style_data_module"):
        settings.add(
            "data.use_sft_style_data_module", "warning", "no-effect",
            "NxDT reads neither this nor data.packing, and stops because data_prefix is missing; here it means SFT",
            "write model_alignment_strategy: {sft: {packing: …}} instead",
        )  # fmt: skip
        return "sft"
    return "pretraining"


def _objective(settings: Settings, kind: Kind) -> Objective:
    """The objective with its own numbers."""
    if kind in ("pretraining", "sft"):
        return Objective(kind=kind)
    block = f"{ALIGNMENT}.{kind}"
    return Objective(
        kind=kind,
        beta=settings.get(f"{block}.{'kl_beta' if kind == 'dpo' else 'beta'}", DEFAULT_BETA),
        max_prompt_length=settings.get(f"{block}.max_prompt_length", MAX_PROMPT_LENGTH),
        truncation=settings.get(f"{block}.truncation_mode", "keep_start"),
    )


def _sequence_length(settings: Settings, kind: Kind) -> int | None:
    """Tokens per sequence; where the data and the model disagree, the data decides where NxDT reads its length."""
    model: int | None = settings.get("model.encoder_seq_length")
    given: int | None = settings.get("data.seq_length")
    if model is None:
        settings.missing("model.encoder_seq_length")
        return given
    if given is None or given == model:
        return model
    is_unread = kind == "pretraining" and settings.get("model_source", "hf") == "hf"  # rows of its data are cut already
    if is_unread:
        does = f"NxDT does not read data.seq_length for data of a hf model: {model} tokens are trained on"
    elif kind == "sft":
        does = f"NxDT stops at the first batch; here {given} tokens are trained on"
    else:
        does = f"as in NxDT, {given} tokens are trained on"
    settings.add(
        "data.seq_length", "warning", "sequence-length-mismatch",
        f"sequences of {given} tokens meet a model for {model} (model.encoder_seq_length): {does}",
        f"give both the same length: model.encoder_seq_length={given}, or data.seq_length={model}",
    )  # fmt: skip
    return model if is_unread else given


def _data(settings: Settings, kind: Kind, placed: Placed) -> Data:
    """The data, by the module that NxDT would use: alignment's, else that of the model's source."""
    tokenizer = settings.get("data.tokenizer.type") or settings.get("data.tokenizer.model")
    if kind == "pretraining" and settings.get("model_source", "hf") == "megatron":
        return _blend(settings, placed, tokenizer)
    paths, validation, test = (
        (value,) if (value := settings.get(f"data.{name}_dir")) else () for name in ("train", "val", "test")
    )
    if not paths:
        source = "with model_source hf, the training data is a folder of Arrow files"
        why = source if kind == "pretraining" else f"{kind} needs a file of examples, and none is given"
        settings.missing("data.train_dir", why)
    if kind != "pretraining" and tokenizer is None:
        settings.missing("data.tokenizer.type", f"the examples of {kind} are text, and nothing says how to tokenise it")
    packing = settings.get(f"{ALIGNMENT}.sft.packing", settings.get("data.packing"))
    return _data_of(
        "arrow" if kind == "pretraining" else "records", placed, tokenizer, paths=paths, validation_paths=validation,
        test_paths=test, packing=kind == "sft" and bool(packing),
    )  # fmt: skip


def _blend(settings: Settings, placed: Placed, tokenizer: str | None) -> Data:
    """.bin and .idx files, with weights, or by split."""
    prefix = settings.get("data.data_prefix")
    if prefix is None:
        settings.missing("data.data_prefix", "with model_source megatron, the training data is .bin and .idx files")
    splits = prefix if isinstance(prefix, dict) else {"train": prefix or ()}
    paths = {split: tuple(path for _, path in splits.get(split, ())) for split in ("train", "validation", "test")}
    weights = tuple(weight for weight, _ in splits["train"])
    placed = {**placed, "data.split": None} if isinstance(prefix, dict) else placed
    return _data_of(
        "megatron", placed, tokenizer, paths=paths["train"], weights=weights if len(weights) > 1 else (),
        validation_paths=paths["validation"], test_paths=paths["test"],
    )  # fmt: skip


def _data_of(
    kind: Literal["records", "arrow", "megatron"], placed: Placed, tokenizer: str | None, **values: Any
) -> Data:
    """The data of a module, with the keys that it reads."""
    read = {name: placed[f"data.{name}"] for name in _READ_BY[kind]}
    return Data(kind=kind, tokenizer=tokenizer or Data().tokenizer, **read, **values)


# --- evaluation, checkpoints, logs ------------------------------------------------------------------------------------


def _evaluation(settings: Settings, data: Data) -> Evaluation:
    """When validation runs, and on how much. Lightning skips it where there is no validation data."""
    has_data = bool(data.validation_paths) or (data.kind == "megatron" and not data.test_paths)
    interval, how_much = "trainer.val_check_interval", "trainer.limit_val_batches"
    every, limit = (1.0 if settings.get(name) is None else settings.get(name) for name in (interval, how_much))
    epochs = settings.get("trainer.check_val_every_n_epoch", 1)
    if limit == 0:
        return Evaluation()
    if not has_data:
        why = "there is no validation data (data.val_dir), so nothing is validated"
        settings.add(interval, "info", "no-effect", why, NO_CHANGE)
        return Evaluation()
    in_steps = every if isinstance(every, int) else None
    if in_steps is None and epochs is None:
        settings.add(
            interval, "error", "contradiction",
            f"a share of an epoch ({every:g}) with check_val_every_n_epoch null is not supported; Lightning refuses it "
            "too", "give the interval as a number of steps, without a point, or check_val_every_n_epoch: 1",
        )  # fmt: skip
    has_one_epoch = data.kind == "megatron"  # the whole run
    is_plain = epochs == 1 and (in_steps is None or has_one_epoch)
    return Evaluation(
        interval_steps=in_steps,
        interval_fraction=every if in_steps is None else None,
        every_epochs=None if is_plain else epochs,
        batches=limit if isinstance(limit, int) else None,
        fraction=1.0 if isinstance(limit, int) else limit,
        initial_batches=settings.get("trainer.num_sanity_val_steps"),
    )


def _checkpoint(settings: Settings, placed: Placed) -> Checkpoint:
    """When checkpoints are saved and which of them are kept; NeMo's defaults keep three."""
    keep = settings.get(f"{CHECKPOINTS}.save_top_k")
    every, seconds = (settings.get(f"{CHECKPOINTS}.{name}") for name in ("every_n_train_steps", "train_time_interval"))
    continues = settings.get("exp_manager.resume_ignore_no_checkpoint")
    return gather_part(
        Checkpoint, "checkpoint", placed,
        interval_steps=every if every and every > 0 and keep != 0 else None,
        interval_minutes=coerce.fraction_of(seconds, 60.0) if seconds and keep != 0 else None,
        keep=None if keep == -1 else max(1, keep),
        keep_best=_best(settings, keep),
        resume_required=placed["checkpoint.resume"] and not continues,
    )  # fmt: skip


def _best(settings: Settings, keep: int) -> str | None:
    """The metric by which checkpoints are kept; None: the newest. All or none need no metric."""
    monitor, mode = settings.get(f"{CHECKPOINTS}.monitor"), settings.get(f"{CHECKPOINTS}.mode")
    if monitor not in ("step", "global_step", *MONITORS):
        why = f"{coerce.shown(monitor)} is not supported; step, val_loss and reduced_train_loss are"
        fix = "give monitor: step with mode: max for the newest"
        settings.add(f"{CHECKPOINTS}.monitor", "error", "bad-value", why, fix)
        return None
    wanted, worst = ("min", "worst") if monitor in MONITORS else ("max", "oldest")
    if mode != wanted and keep not in (0, -1):
        why = f"{mode} of {monitor} would keep the {worst} checkpoints"
        settings.add(f"{CHECKPOINTS}.mode", "error", "contradiction", why, f"give mode: {wanted}")
    return MONITORS.get(monitor)


def _log_dir(settings: Settings) -> str | None:
    """explicit_log_dir as it is, or exp_dir/name; None: wherever the run directory is."""
    explicit, above = settings.get("exp_manager.explicit_log_dir"), settings.get("exp_manager.exp_dir")
    if explicit or not above:
        return explicit or None
    return f"{above.rstrip('/')}/{settings.get('exp_manager.name') or 'default'}"


# --- origins ----------------------------------------------------------------------------------------------------------

# What follows from another key where its own is not given: spec path, key, how.
_MADE_FROM = (
    ("model.num_kv_heads", "model.num_attention_heads", "as many as query heads"),
    ("model.head_dim", "model.num_attention_heads", "hidden_size / num_attention_heads"),
    ("initialization.std", "model.model_config", "that of the model"),
    ("initialization.scaled", "model.model_config", "Hugging Face scales none"),
    ("dropout.attention", "model.model_config", "that of the model"),
)


def origins(settings: Settings, spec: RunSpec | None) -> dict[str, Origin]:
    """The origin of each value: the key that gives it; what no key gives is NxDT's default."""
    default = Origin(kind="default", note="NxDT's default")
    derived = {f.name: default for f in fields(RunSpec) if f.name not in ("dialect", "container", "distributed")}
    derived |= {path: settings.origin(key, note) for path, key, note in _MADE_FROM if key in settings.values}
    for part in ("within_node", "across_nodes"):
        note = "devices ÷ (TP × PP × CP)"
        derived[f"parallelism.{part}.data"] = Origin(kind="derived", key="trainer.devices", note=note)
    note = "NxD gives the last stages what does not divide"
    pipeline = settings.origin(f"{STRATEGY}.pipeline_model_parallel_size")
    derived["parallelism.stage_layers"] = replace(pipeline, kind="derived", note=note)
    others = MEGATRON_ONLY if settings.get("model_source") == "hf" else HF_ONLY
    found = {path: origin for path, origin in settings.origins(derived).items()
             if origin.kind != "default" or origin.key not in others}  # fmt: skip
    block = next((entry for name, entry in settings.entries.items() if name.startswith(f"{ALIGNMENT}.")), None)
    if block is not None:
        found["objective.kind"] = found["data.kind"] = block.origin("by the block that is there")
    if spec is not None and spec.log_dir is None:
        found["log_dir"] = default
    lengths = ("model.encoder_seq_length", "data.seq_length")
    used = next((n for n in lengths if spec and settings.get(n) == spec.batch.sequence_length), lengths[0])
    if used in settings.values:
        found["batch.sequence_length"] = settings.origin(used)
    return found
