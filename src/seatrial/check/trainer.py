"""Runs that Seatrial's own trainer does not support yet."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from seatrial.check.data import FROM_FILES, has_validation
from seatrial.check.finder import Finder
from seatrial.check.mesh import mesh_is_sound, pads_shards
from seatrial.errors import Problem
from seatrial.estimate import memory
from seatrial.estimate.layer_memory import PARTS
from seatrial.spec import LOSS_TOKENS, NOT_QUANTIZATIONS, QUANTIZATIONS, RunSpec, uneven_splits

KEPT_BY = ("loss", "validation_loss")  # that checkpoints can be kept by

Refusal = tuple[str, str, str]  # spec path, why, how to fix it


def not_supported_yet(finder: Finder) -> Iterator[Problem]:
    """Seatrial's own trainer supports all of the run."""
    spec, needs = finder.spec, finder.needs
    is_rehearsal = needs.trainer and not needs.device
    for refusals, fails in ((_refused(spec, is_rehearsal=is_rehearsal), needs.trainer), (_of_data(spec), needs.data)):
        fails = fails and finder.engine == memory.OWN
        for path, why, fix in refusals:
            yield finder.at(
                path, "error" if fails else "warning", "not-supported-yet",
                f"Seatrial's own trainer does not support this yet: {why}",
                fix if fails else f"no obstacle for a plan or a verdict; for a run with that trainer, {fix}",
            )  # fmt: skip


def _refused(spec: RunSpec, *, is_rehearsal: bool) -> Iterator[Refusal]:
    unknown = [part for part in spec.execution.remat_modules if part not in PARTS]
    if spec.execution.remat == "selective" and unknown:
        why = f"{unknown[0]!r} is not a part of a layer that it can recompute"
        yield "execution.remat_modules", why, f"use some of {', '.join(PARTS)}"
    for name in ("compute_dtype", "params_dtype", "optimizer_dtype", "gradient_dtype", "reduce_dtype"):
        if getattr(spec.precision, name) == "float16":
            why = "float16, whose range needs a scaled loss"
            yield f"precision.{name}", why, "use bfloat16 or float32, or --engine megatron"
            break
    sizes = spec.mesh if mesh_is_sound(spec) else {}
    if sizes and _has_uneven_stages(spec) and not is_rehearsal:  # which has as many layers in each
        own = spec.parallelism.stage_layers
        why = f"stages of a pipeline with different numbers of layers{f' ({_listed(own)})' if own else ''}"
        yield "model.num_layers", why, f"make it a multiple of {sizes['pipeline'] * spec.parallelism.virtual_pipeline}"
    quantization = spec.precision.quantization
    if reason := _no_recipe(quantization, sizes):
        yield "precision.quantization", f"{quantization} products, since {reason}", "turn it off"
    best = spec.checkpoint.keep_best
    if best is not None and best not in KEPT_BY:
        why = f"{best!r} is not a metric that checkpoints can be kept by"
        yield "checkpoint.keep_best", why, f"use {' or '.join(KEPT_BY)}"
    for split in uneven_splits(spec) if sizes else ():
        if split.name == "hidden_dim" and not is_rehearsal and pads_shards(spec):
            why = f"{split.axes} = {split.parts} replicas that share parameters of width {split.size}"
            yield split.path, why, f"give replicas whose number divides {split.size}"
        if split.name == LOSS_TOKENS:
            why = f"{split.size} tokens of a step, which {split.parts} stages of a pipeline share for the loss"
            yield split.path, why, f"make them a multiple of {split.parts}"


def _of_data(spec: RunSpec) -> Iterator[Refusal]:
    """The refusals of data that the trainer cannot learn from, or evaluate on."""
    data, evaluation, kind = spec.data, spec.evaluation, spec.objective.kind
    interval = "evaluation.interval_steps" if evaluation.interval_steps else "evaluation.interval_fraction"
    if data.kind == "synthetic":
        endless = "random data has no end"
        if spec.epochs is not None:
            yield "epochs", f"{endless}, and so no epochs", "give the number of steps alone"
        if evaluation.interval_fraction:
            yield interval, f"{endless}, and so no epochs", "give evaluation.interval_steps"
        elif evaluation.is_on and evaluation.every_epochs:
            yield "evaluation.every_epochs", f"{endless}, and so no epochs", "give evaluation.interval_steps alone"
        elif evaluation.is_on and (evaluation.batches is None or evaluation.initial_batches < 0):
            yield "evaluation.batches", f"{endless}, so that all of it cannot be evaluated", "give a number of batches"
    elif data.kind not in FROM_FILES:
        if kind != "pretraining":
            why = f"{kind} learns from prompts and answers, which it reads from records alone"
            yield "data.kind", why, "write them as JSON lines, and give those as records"
        if evaluation.is_on and not has_validation(data):
            yield interval, f"of {data.kind} data it evaluates what files of their own hold", "give validation files"


def _listed(numbers: Sequence[int]) -> str:
    """Some numbers of layers, equal ones together: 2 × 3, 30 × 4."""
    return ", ".join(f"{len(list(same))} × {number}" for number, same in itertools.groupby(numbers))


def _has_uneven_stages(spec: RunSpec) -> bool:
    """True if stages differ in their layers: as given, or because the embedding or the head takes one's place."""
    parallelism, stages = spec.parallelism, spec.mesh["pipeline"]
    if len(set(parallelism.stage_layers)) > 1:
        return True
    counts = parallelism.counts_embedding or parallelism.counts_head
    return bool(stages > 1 and counts and spec.model.num_layers % (stages * parallelism.virtual_pipeline))


def _no_recipe(quantization: str | None, sizes: Mapping[str, int]) -> str | None:
    """The reason that the trainer cannot quantize its products like this; None if it can."""
    recipe = QUANTIZATIONS.get(quantization or "")
    if quantization is None or (recipe and not (recipe.startswith("delayed") and sizes.get("pipeline", 1) > 1)):
        return None
    if recipe:
        return "a pipeline does not gather earlier steps' values; te_fp8_currentscaling needs none"
    return NOT_QUANTIZATIONS.get(quantization, f"there are only {', '.join(QUANTIZATIONS)}")
