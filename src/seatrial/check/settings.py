"""Settings without an effect, and containers that cannot work."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from seatrial.check.finder import Finder
from seatrial.errors import Problem
from seatrial.estimate import memory
from seatrial.spec import Precision, RunSpec, flatten

# A setting, where it has an effect at all, and the reason where it has none.
_Effect = Callable[[RunSpec], object]
_TOKENISED = ("text", "huggingface", "grain", "tfds", "c4_mlperf")
_SCALING = ("loss_scale", "initial_loss_scale", "min_loss_scale", "loss_scale_window", "loss_scale_hysteresis")


def _is_usual(name: str, holds: _Effect) -> _Effect:
    """A condition that is also true where a number of the scaled loss is its default."""
    return lambda spec: holds(spec) or getattr(spec.precision, name) == getattr(Precision(), name)


_NEEDS: tuple[tuple[str, _Effect, str], ...] = (
    ("model.sliding_window", lambda s: (s.model.sliding_window or 0) < s.batch.sequence_length, "no sequence is longer "
     "than the window"),
    ("parallelism.context_strategy", lambda s: s.parallelism.context_strategy == "all_gather" or s.mesh["context"] > 1,
     "the context axis has one device"),
    ("parallelism.sequence_parallel", lambda s: s.mesh["tensor"] > 1, "sequence parallelism splits over the tensor "
     "axis, which has one device"),
    ("parallelism.virtual_pipeline", lambda s: s.mesh["pipeline"] > 1, "the pipeline has one stage"),
    ("precision.tensor_reduce_dtype", lambda s: s.mesh["tensor"] > 1, "no product is split over the tensor axis"),
    *((f"parallelism.{name}", lambda s: s.mesh["pipeline"] > 1, "the pipeline has one stage")
      for name in ("stage_layers", "counts_embedding", "counts_head")),
    *((f"precision.{name}", _is_usual(name, lambda s: s.precision.compute_dtype == "float16"),
       "only float16 has a scaled loss") for name in _SCALING),
    *((f"precision.{name}", _is_usual(name, lambda s: s.precision.loss_scale is None), "the scale of the loss is "
       "constant") for name in _SCALING[1:]),
    ("parallelism.zero1", lambda s: s.mesh["data"] > 1, "ZeRO-1 splits over the data axis, which has one device"),
    ("execution.remat_modules", lambda s: s.execution.remat == "selective", "only selective recomputation reads it"),
    *((f"execution.{name}", lambda s: s.execution.remat == "custom", "only custom recomputation reads it")
      for name in ("remat_kept", "remat_offloaded")),
    ("optimizer.momentum", lambda s: s.optimizer.algorithm in ("sgd", "rmsprop"), "only sgd and rmsprop have one"),
    *((f"optimizer.{name}", lambda s: s.optimizer.schedule == "step", "only the schedule step has one")
      for name in ("decay_factor", "decay_interval_steps")),
    *((f"checkpoint.{name}", lambda s: s.checkpoint.enabled, "no checkpoint is saved")
      for name in ("interval_steps", "interval_minutes", "keep_best")),
    ("checkpoint.resume_required", lambda s: s.checkpoint.resume, "nothing is resumed"),
    ("checkpoint.weights_only", lambda s: s.checkpoint.resume_from, "no checkpoint is given to begin with"),
    ("evaluation.batches", lambda s: s.evaluation.is_on or s.evaluation.initial_batches, "nothing is evaluated"),
    *((f"evaluation.{name}", lambda s: s.evaluation.is_on, "nothing is evaluated")
      for name in ("every_epochs", "target_loss", "patience")),
    ("objective.beta", lambda s: s.objective.kind in ("dpo", "orpo"), "only dpo and orpo have one"),
    ("data.packing", lambda s: s.data.kind != "synthetic", "synthetic data has no examples to pack"),
    ("data.add_bos", lambda s: s.data.kind in _TOKENISED, "only text that is tokenised here begins with a token"),
    ("data.split", lambda s: s.data.kind != "synthetic", "synthetic data has nothing to split"),
)  # fmt: skip

# Settings that have an effect with one engine where they have none with others.
_WITH_ENGINE: dict[tuple[str, str], _Effect] = {
    # Of Megatron-LM's replicas, each device of a context axis is one.
    ("parallelism.zero1", memory.MEGATRON): lambda s: s.mesh["context"] > 1,
}

SHARED_MEMORY = 2**30  # NCCL keeps tens of megabytes for each pair of processes there; docker's default is 64 MB in all
_SIZES = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def settings_have_an_effect(finder: Finder) -> Iterator[Problem]:
    """Every setting has an effect in this run."""
    spec = finder.spec
    values = flatten(spec)
    for path, has_effect, why in _NEEDS:
        with_engine = _WITH_ENGINE.get((path, finder.engine))
        has_one = has_effect(spec) or (with_engine and with_engine(spec))
        if finder.is_switched_on(path, values[path]) and not has_one:
            yield finder.at(
                path, "info", "no-effect", f"it has no effect: {why}", "remove it, or keep it: it changes nothing"
            )


def container_can_work(finder: Finder) -> Iterator[Problem]:
    """A container has an image, paths that can be mounted, the memory that processes share, and no needless rights."""
    container = finder.spec.container
    if container is None:
        return
    if not container.image.strip():
        fix = "name one, as registry/name:tag"
        yield finder.at("container.image", "error", "missing-key", "no image is named", fix)
    for host, inside in container.volumes:
        if not inside.startswith("/"):
            why = f"{inside!r} is not an absolute path, as a path in a container must be"
            yield finder.at(f"container.volumes.{host}", "error", "bad-volume", why, "begin the path with /")
    targets = [inside.rstrip("/") for _, inside in container.volumes]
    for target in sorted({target for target in targets if targets.count(target) > 1}):
        why = f"two folders are mounted at {target or '/'}"
        yield finder.at("container.volumes", "error", "bad-volume", why, "mount one of them elsewhere")
    if container.privileged:
        why = "root in this container is root of its host, and sees all of its devices"
        fix = "omit it if `devices`, `cap_add` and `group_add` (video, render) are enough"
        yield finder.at("container.privileged", "warning", "privileged", why, fix)
    size = _bytes(container.shm_size) if container.shm_size else None
    if container.shm_size and size is None:
        why = f"{container.shm_size!r} is not a memory size"
        yield finder.at("container.shm_size", "error", "bad-value", why, "write it like 64G")
    elif size is not None and size < SHARED_MEMORY:
        why = f"{container.shm_size} is too little for NCCL and data workers, which then die with a bus error"
        yield finder.at("container.shm_size", "warning", "small-shared-memory", why, "use 64G, for example")


def _bytes(text: str) -> float | None:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", text.strip().lower())
    return float(found.group(1)) * _SIZES[found.group(2)] if found else None
