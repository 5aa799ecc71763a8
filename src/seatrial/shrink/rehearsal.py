"""The same run, shrunk until it fits this machine: same mesh axes and program, smaller model, batch and sequence.

What makes a configuration work or fail stays: which mesh axes are split and which of them cross processes, strategy,
precision, recomputation, scan, attention, schedule, data path, objective, checkpointing, accumulation, grouped queries,
position scaling. What only costs time and memory shrinks by the rules below, and nothing ever grows but, on request,
the learning rate. Every difference between the two specs is a `Change` with its reason.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seatrial.errors import InputError
from seatrial.spec import AXES, Batch, Data, Evaluation, MeshShape, ModelSpec, Optimizer, RunSpec, Topology, flatten

# Measured on two cores: a step of 16 virtual devices in two processes takes 2.5 s of CPU time, most of it in sockets,
# one of 8 takes 0.8 s, and of 8 in one process 0.1 s.
MAX_DEVICES = 8
MAX_PROCESSES = 2  # one a node; two prove what crosses the network
DEVICES_PER_CORE = 4
DEVICE_BYTES = 256 << 20  # allowed to each; measured: 0.8 GiB for a process with 8
MAX_STEPS = 50
LAYERS_PER_STAGE = 2
KV_HEADS = 2
HEADS = 8
HEAD_DIM = 16
MIN_POSITIONS = 32  # with fewer, the scaling would stretch even the shortest wavelength, 2π
VOCAB_SIZE = 512  # a byte tokenizer needs 256
SEQUENCE_LENGTH = 128
MICRO_BATCH_SIZE = 2
ACCUMULATION_STEPS = 2
EVALUATION_BATCHES = 2

TEXT = ("stdlib:*.py",)
VALIDATION_TEXT = ("stdlib:json/*.py",)
LEARNING_RATE = 3e-3  # a large model's would change so small a one hardly at all in MAX_STEPS

# Of a schedule.
_LENGTHS = ("warmup_steps", "hold_steps", "constant_steps", "decay_steps", "decay_interval_steps")
# Spec path, or a parent of it → the rule that changes it.
RULES: dict[str, str] = {
    "steps": f"at most {MAX_STEPS} steps",
    "epochs": "random tokens have no end, and so no epochs",
    "topology.num_nodes": f"at most {MAX_PROCESSES} processes here, or as many as hosts; axes across nodes stay split",
    "topology.devices_per_node": f"at most {MAX_DEVICES} virtual devices; every axis within a node stays split",
    "topology.device": "virtual CPU devices",
    "parallelism.across_nodes": "axes shrink by their prime factors to as many nodes; none below 2",
    "parallelism.within_node": f"axes shrink by their prime factors to at most {MAX_DEVICES} devices; none below 2",
    "parallelism.stage_layers": "every stage has the same number of layers",
    "model.num_layers": f"at most {LAYERS_PER_STAGE} layers per pipeline stage, or one for each virtual one",
    "model.num_kv_heads": f"at most {KV_HEADS}, ungrouped {HEADS}; multiples of the tensor axis, or divisors as before",
    "model.num_heads": f"at most {HEADS}, but grouped as before: a divisor of the original per key/value head",
    "model.head_dim": f"at most {HEAD_DIM}",
    "model.hidden_dim": "heads × head_dim in the original proportion, divisible by the mesh",
    "model.ffn_dim": "in the original proportion to hidden_dim, divisible by the mesh",
    "model.vocab_size": f"at most {VOCAB_SIZE}, divisible by the tensor axis",
    "model.sliding_window": "in proportion to the sequence",
    "model.rope_scaling.original_max_positions": f"as the sequence, at least {MIN_POSITIONS}, so that it still acts",
    "batch.sequence_length": f"at most {SEQUENCE_LENGTH}, divisible by the mesh",
    "batch.micro_batch_size": f"at most {MICRO_BATCH_SIZE}",
    "batch.global_batch_size": f"micro batch × replicas × at most {ACCUMULATION_STEPS} accumulation steps",
    **{f"optimizer.{name}": "in proportion to the steps" for name in _LENGTHS},
    "data": "not all of it is on this machine: random tokens in the same form",
    "evaluation.interval_steps": "in proportion to the steps, and of random tokens once",
    "evaluation.interval_fraction": "random tokens have no end, and so no epochs",
    "evaluation.every_epochs": "a rehearsal has no time for epochs",
    "evaluation.batches": f"at most {EVALUATION_BATCHES}",
    "evaluation.target_loss": "a small model's loss says nothing",
    "evaluation.patience": "a small model's loss says nothing",
    "evaluation.initial_batches": f"of random tokens, at most {EVALUATION_BATCHES}",
    "checkpoint.interval_steps": "in proportion to the steps",
    "checkpoint.directory": "in the run directory, where no other run's checkpoints are",
    "checkpoint.resume_required": "begins with random weights: there is no checkpoint of a smaller model",
    "checkpoint.resume_from": "begins with random weights: a smaller model fits no checkpoint",
}
# With real text.
TEXT_RULES = {
    "data": "Python's standard library, a byte a token: text of which something can be learnt, on every machine",
    "optimizer.learning_rate": f"at least {LEARNING_RATE:g}, as suits the small model, so that the loss falls visibly",
}


@dataclass(frozen=True, kw_only=True)
class Change:
    """One value of the spec that the rehearsal does not take over, and the rule that made the new one."""

    path: str
    original: Any
    rehearsed: Any
    why: str


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """The spec that is run instead, one process per node of it, and every difference from the one asked for.

    `collapsed`: only the mesh is smaller (see `collapse`), and the training is the one asked for.
    """

    spec: RunSpec
    changes: tuple[Change, ...]
    collapsed: bool = False

    @property
    def num_processes(self) -> int:
        return self.spec.topology.num_nodes


def rehearse(
    spec: RunSpec,
    *,
    cores: int,
    memory_bytes: int,
    has_data: bool = True,
    hosts: int | None = None,
    fixed: Sequence[tuple[str, str]] = (),
    on_text: bool = False,
) -> Rehearsal:
    """The rehearsal of a spec on a machine with so many cores and so much memory, and with its data or without.

    With `hosts`, each of at most so many processes has a host of its own; without, all are on this machine. What is
    `fixed`, (part, field) of the spec, stays as it is: the program that trains has no other.

    `on_text`: learns from real text, at a learning rate of its own, so that the loss shows that it learns. Raises
    InputError where the objective needs other data.

    An axis that is split stays split whatever the limits are, so a mesh of many split axes may need more than
    MAX_DEVICES devices or MAX_PROCESSES processes: two of each.
    """
    asked = spec
    if on_text:
        spec, has_data = _on_text(spec), True
    slow = _fit(spec.parallelism.across_nodes.resolve(spec.topology.num_nodes).sizes, hosts or MAX_PROCESSES)
    devices = min(MAX_DEVICES, DEVICES_PER_CORE * cores, memory_bytes // DEVICE_BYTES)
    fast = _fit(
        spec.parallelism.within_node.resolve(spec.topology.devices_per_node).sizes, devices // math.prod(slow.values())
    )
    mesh = {axis: slow[axis] * fast[axis] for axis in AXES}
    steps = min(spec.step_limit, MAX_STEPS)
    ratio = steps / spec.steps if spec.steps else 1.0
    batch = _batch(spec, mesh)
    has_end = has_data and not on_text and spec.data.kind != "synthetic"
    small = dataclasses.replace(
        spec,
        steps=steps,
        epochs=spec.epochs if has_data else None,
        topology=Topology(num_nodes=math.prod(slow.values()), devices_per_node=math.prod(fast.values())),
        parallelism=dataclasses.replace(
            spec.parallelism,
            across_nodes=_shape(spec.parallelism.across_nodes, slow),
            within_node=_shape(spec.parallelism.within_node, fast),
            stage_layers=(),
        ),
        model=_model(spec, mesh, batch.sequence_length / spec.batch.sequence_length, _vocabulary(spec.data, has_data)),
        batch=batch,
        optimizer=_schedule(spec.optimizer, ratio),
        data=spec.data if has_data else _random_data(spec.data),
        evaluation=_evaluation(spec.evaluation, steps, ratio, has_end=has_end),
        checkpoint=dataclasses.replace(
            spec.checkpoint,
            interval_steps=_scaled(spec.checkpoint.interval_steps, ratio),
            directory=None,
            resume_required=False,
            resume_from=None,
        ),
    )
    for part, name in fixed:
        whole, kept = getattr(small, part), getattr(getattr(spec, part), name)
        small = dataclasses.replace(small, **{part: dataclasses.replace(whole, **{name: kept})})
    return Rehearsal(spec=small, changes=tuple(differences(asked, small, RULES | (TEXT_RULES if on_text else {}))))


def _fit(sizes: dict[str, int], limit: int) -> dict[str, int]:
    """Axis sizes whose product is at most `limit`; what is split stays split.

    The largest axis is reduced first, by its smallest prime factor, but never below 2.
    """
    sizes = dict(sizes)
    while math.prod(sizes.values()) > limit and (size := max(sizes.values())) > 2:
        factor = next((n for n in range(2, math.isqrt(size) + 1) if size % n == 0), size)
        sizes[max(sizes, key=sizes.__getitem__)] = max(2, size // factor)
    return sizes


def _shape(original: MeshShape, sizes: dict[str, int]) -> MeshShape:
    """The new sizes; a -1 stays -1, because the other axes leave it just the size it needs."""
    return MeshShape(**{axis: -1 if original.sizes[axis] == -1 else sizes[axis] for axis in AXES})


def _shrunk(original: int, target: float, multiple: int) -> int:
    """The largest multiple of `multiple` up to `target`; the original where that is not smaller or there is none."""
    return original if original <= target else int(target) // multiple * multiple or min(original, multiple)


def _batch(spec: RunSpec, mesh: dict[str, int]) -> Batch:
    micro = min(spec.batch.micro_batch_size, MICRO_BATCH_SIZE)
    # A pipeline is only filled with as many micro-batches as it has stages.
    accumulation = min(spec.accumulation_steps, max(ACCUMULATION_STEPS, mesh["pipeline"]))
    return Batch(
        sequence_length=_shrunk(
            spec.batch.sequence_length, SEQUENCE_LENGTH, 2 * mesh["context"] * mesh["tensor"] * mesh["pipeline"]
        ),
        micro_batch_size=micro,
        global_batch_size=min(spec.batch.global_batch_size, micro * accumulation * mesh["data"] * mesh["fsdp"]),
    )


def _model(spec: RunSpec, mesh: dict[str, int], sequence_ratio: float, vocab_size: int | None) -> ModelSpec:
    model, tensor, devices = spec.model, mesh["tensor"], math.prod(mesh.values())
    virtual = spec.parallelism.virtual_pipeline if mesh["pipeline"] > 1 else 1
    group = model.num_heads // model.num_kv_heads
    kv_heads = _shrunk(model.num_kv_heads, max(KV_HEADS if group > 1 else HEADS, tensor), tensor)
    if model.num_kv_heads < spec.mesh["tensor"]:  # devices that share a head go on sharing one
        shared = [n for n in range(1, tensor) if model.num_kv_heads % n == tensor % n == n * group % tensor == 0]
        kv_heads = max((n for n in shared if n <= KV_HEADS), default=min(shared, default=kv_heads))
    groups = [n for n in range(2, group + 1) if group % n == kv_heads * n % tensor == 0] or [1]
    heads = kv_heads * max((n for n in groups if kv_heads * n <= HEADS), default=groups[0])
    head_dim = min(model.head_dim, HEAD_DIM)
    width = heads * head_dim / (model.num_heads * model.head_dim)
    hidden = _shrunk(model.hidden_dim, max(model.hidden_dim * width, devices), devices)
    ffn = _shrunk(model.ffn_dim, max(model.ffn_dim * hidden / model.hidden_dim, devices), devices)
    scaling = model.rope_scaling
    if scaling is not None:
        positions = max(MIN_POSITIONS, round(scaling.original_max_positions * sequence_ratio))
        scaling = dataclasses.replace(scaling, original_max_positions=min(scaling.original_max_positions, positions))
    return dataclasses.replace(
        model,
        num_layers=mesh["pipeline"] * max(virtual, min(LAYERS_PER_STAGE, model.num_layers // spec.mesh["pipeline"])),
        num_kv_heads=kv_heads,
        num_heads=heads,
        head_dim=head_dim,
        hidden_dim=hidden,
        ffn_dim=ffn,
        vocab_size=_shrunk(model.vocab_size, vocab_size or model.vocab_size, tensor),
        rope_scaling=scaling,
        sliding_window=_scaled(model.sliding_window, sequence_ratio),
    )


def _vocabulary(data: Data, has_data: bool) -> int | None:
    """The words that are enough; None: whatever made the data may have used them all."""
    made_elsewhere = data.kind in ("megatron", "arrow") or data.tokenizer != "byte"
    return None if has_data and data.kind != "synthetic" and made_elsewhere else VOCAB_SIZE


def _on_text(spec: RunSpec) -> RunSpec:
    """The spec with real text, and a learning rate at which a small model learns from it."""
    if spec.objective.kind != "pretraining":
        why, fix = f"{spec.objective.kind} learns from prompts and answers, not from text", "omit it"
        raise InputError.single("text", "--text", why, fix)
    validation = VALIDATION_TEXT if spec.evaluation.is_on else ()
    text = dataclasses.replace(_random_data(spec.data), kind="text", paths=TEXT, validation_paths=validation)
    optimizer = dataclasses.replace(spec.optimizer, learning_rate=max(spec.optimizer.learning_rate, LEARNING_RATE))
    return dataclasses.replace(spec, data=text, optimizer=optimizer)


def _random_data(data: Data) -> Data:
    """Synthetic data in the form of data that are not here: documents stay apart where they would."""
    return Data(
        kind="synthetic",
        reset_positions=data.reset_positions or data.packing,
        reset_attention=data.reset_attention or data.packing,
        mask_document_ends=data.mask_document_ends,
    )


def _evaluation(evaluation: Evaluation, steps: int, ratio: float, *, has_end: bool) -> Evaluation:
    """As often in proportion, and to the end; of data without an end, a number of batches, and at a number of steps."""
    evaluation = dataclasses.replace(evaluation, target_loss=None, patience=None, every_epochs=None)
    interval, batches = _scaled(evaluation.interval_steps, ratio), evaluation.batches
    most = None if batches is None else min(batches, EVALUATION_BATCHES)
    if has_end or not (interval or evaluation.interval_fraction):
        return dataclasses.replace(evaluation, interval_steps=interval, batches=most)
    return dataclasses.replace(
        evaluation,
        interval_steps=interval or steps,
        interval_fraction=None,
        batches=most or EVALUATION_BATCHES,
        initial_batches=EVALUATION_BATCHES if evaluation.initial_batches < 0 else evaluation.initial_batches,
    )


def _scaled(steps: int | None, ratio: float) -> int | None:
    """A number of steps in proportion; 0 and None stay."""
    return max(1, round(steps * ratio)) if steps else steps


def _schedule(optimizer: Optimizer, ratio: float) -> Optimizer:
    changed: dict[str, Any] = {name: _scaled(getattr(optimizer, name), ratio) for name in _LENGTHS}
    return dataclasses.replace(optimizer, **changed)


def differences(original: RunSpec, changed: RunSpec, rules: Mapping[str, str]) -> list[Change]:
    """Every value that differs, with the rule of its path or of the path's parent. Raises KeyError without a rule."""
    before, after = flatten(original), flatten(changed)
    return [
        Change(path=path, original=value, rehearsed=after[path], why=rules.get(path) or rules[path.rpartition(".")[0]])
        for path, value in before.items()
        if value != after[path]
    ]
