"""Mesh and batch, schedule and data: what is divided divides, and what is asked for is there."""

from __future__ import annotations

from collections.abc import Iterator

from seatrial.check.finder import RUNS, Finder
from seatrial.errors import Problem
from seatrial.spec import MeshShape, RunSpec

MOST_WAITING = 0.5  # of the time that a pipeline computes


def _fits(shape: MeshShape, devices: int) -> bool:
    resolved = shape.resolve(devices)
    return resolved.is_resolved and resolved.product == devices


def mesh_is_sound(spec: RunSpec) -> bool:
    return _fits(spec.parallelism.within_node, spec.topology.devices_per_node) and _fits(
        spec.parallelism.across_nodes, spec.topology.num_nodes
    )


def devices_used(finder: Finder) -> Iterator[Problem]:
    """Each part of the mesh uses exactly the devices that it spans."""
    topology, parallelism = finder.spec.topology, finder.spec.parallelism
    for part, shape, there, count, what in (
        ("within_node", parallelism.within_node, topology.devices_per_node, "devices_per_node", "devices of a node"),
        ("across_nodes", parallelism.across_nodes, topology.num_nodes, "num_nodes", "nodes"),
    ):
        unset = [axis for axis, size in shape.sizes.items() if size == -1]
        given = {axis: size for axis, size in shape.sizes.items() if size not in (1, -1)}
        path = f"parallelism.{part}.{next(iter(given or unset), 'fsdp')}"
        product = (
            " × ".join(f"{finder.key(f'parallelism.{part}.{axis}')} {size}" for axis, size in given.items()) or "1"
        )
        if len(unset) > 1:
            keys = " and ".join(finder.key(f"parallelism.{part}.{axis}") for axis in unset)
            why = f"{keys} are both -1, and only one axis can take what the others leave"
            yield finder.at(f"parallelism.{part}.{unset[1]}", "error", "mesh-devices", why, "give all but one a size")
        elif not _fits(shape, there):
            verb = "does not divide" if unset else "is not"
            yield finder.at(
                path, "error", "mesh-devices",
                f"{product} {verb} the {there} {what}{finder.note('topology.num_nodes')}",
                f"make the product of these axes {'a divisor of ' if unset else ''}{there}, or "
                f"{finder.key(f'topology.{count}')} {'a multiple of ' if unset else ''}{shape.product}",
            )  # fmt: skip


def batch_divides(finder: Finder) -> Iterator[Problem]:
    """The global batch is a multiple of the micro batches of all replicas."""
    spec = finder.spec
    if not mesh_is_sound(spec):
        return
    replicas, batch = spec.data_parallel_size, spec.batch
    if batch.global_batch_size % (batch.micro_batch_size * replicas):
        yield finder.at(
            "batch.global_batch_size", "error", "not-divisible",
            f"{batch.global_batch_size} sequences a step are not a multiple of "
            f"{batch.micro_batch_size} (micro batch) × {replicas} (data × fsdp)",
            f"use a multiple of {batch.micro_batch_size * replicas}",
        )  # fmt: skip


def split_dimensions(finder: Finder) -> Iterator[Problem]:
    """Every dimension that a mesh axis splits is a multiple of the axis."""
    spec = finder.spec
    if not mesh_is_sound(spec):
        return
    model, mesh, tensor = spec.model, spec.mesh, spec.mesh["tensor"]
    embed = mesh["fsdp"] * (mesh["data"] if spec.parallelism.zero1 else 1)
    # A causal mask gives the ends of a sequence unequal work, so each device takes a part from both.
    context = 2 * mesh["context"] if mesh["context"] > 1 else 1
    tokens = context * (tensor if spec.parallelism.sequence_parallel else 1)
    over = [f"2 × context {mesh['context']}"] if context > 1 else []
    over += [f"tensor {tensor} (sequence parallelism)"] if tokens > context else []
    padded = -(-model.vocab_size // (model.vocab_multiple * tensor)) * model.vocab_multiple * tensor
    # Megatron-LM lets no devices share a key/value head; the others do, Seatrial's own trainer among them.
    shares = tensor % model.num_kv_heads == 0 and (finder.action in RUNS or "megatron" not in spec.dialect)
    for path, size, axes, parts in (
        ("model.num_heads", model.num_heads, f"tensor = {tensor}", tensor),
        ("model.num_kv_heads", model.num_kv_heads, f"tensor = {tensor}", 1 if shares else tensor),
        ("model.ffn_dim", model.ffn_dim, f"tensor = {tensor}", tensor),
        ("model.vocab_size", padded if model.vocab_multiple > 1 else model.vocab_size, f"tensor = {tensor}", tensor),
        (
            "model.hidden_dim",
            model.hidden_dim,
            f"fsdp × data = {embed}" if spec.parallelism.zero1 else f"fsdp = {embed}",
            embed,
        ),
        ("batch.sequence_length", spec.batch.sequence_length, f"{' × '.join(over)} = {tokens}", tokens),
    ):
        if size % parts:
            why = f"{path.rpartition('.')[2]} {size} cannot be split evenly over {axes}"
            fix = f"use a multiple of {parts}, or a smaller axis"
            if path == "model.vocab_size":
                fix += "; or pad the tables (model.vocab_multiple), as Megatron-LM does to a multiple of 128 × tensor"
            yield finder.at(path, "error", "not-divisible", why, fix)  # fmt: skip


def pipeline_is_even(finder: Finder) -> Iterator[Problem]:
    """Every stage of a pipeline has as many layers, and work to wait less than it computes."""
    spec = finder.spec
    if not mesh_is_sound(spec) or spec.mesh["pipeline"] == 1:
        return
    stages, virtual, layers = spec.mesh["pipeline"], spec.parallelism.virtual_pipeline, spec.model.num_layers
    where = "parallelism.within_node.pipeline"
    if spec.parallelism.within_node.pipeline == 1:
        where = "parallelism.across_nodes.pipeline"
    if layers % (stages * virtual):
        parts = f"{stages} stages" + (f" × {virtual} virtual ones" if virtual > 1 else "")
        why = f"{layers} layers cannot be split evenly over {parts}"
        yield finder.at(where, "error", "not-divisible", why, f"use a divisor of {layers} in all")
    passes = spec.accumulation_steps
    if virtual > 1 and passes % stages:
        why = f"interleaved stages take micro-batches in groups of {stages}, and a step has {passes}"
        fix = f"make global ÷ (micro × replicas) a multiple of {stages}"
        yield finder.at("parallelism.virtual_pipeline", "warning", "not-divisible", why, fix)
    waiting = (stages - 1) / (passes * virtual)
    if waiting >= MOST_WAITING:
        share = waiting / (1 + waiting)
        yield finder.at(
            where, "warning", "idle-pipeline",
            f"{stages} stages share {passes} micro-batch{'es' if passes > 1 else ''} a step: {share:.0%} of the time "
            "they wait for each other", f"use {4 * stages} micro-batches or more, or fewer stages",
        )  # fmt: skip
