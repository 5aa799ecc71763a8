"""Mesh and batch, schedule and data: what is divided divides, and what is asked for is there."""

from __future__ import annotations

from collections.abc import Iterator

from seatrial.check.finder import Finder
from seatrial.errors import Problem
from seatrial.spec import MeshShape, RunSpec


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
    model, mesh = spec.model, spec.mesh
    embed = mesh["fsdp"] * (mesh["data"] if spec.parallelism.zero1 else 1)
    tokens = mesh["tensor"] if spec.parallelism.sequence_parallel else 1
    for path, size, axes, parts in (
        ("model.num_heads", model.num_heads, "tensor", mesh["tensor"]),
        ("model.num_kv_heads", model.num_kv_heads, "tensor", mesh["tensor"]),
        ("model.ffn_dim", model.ffn_dim, "tensor", mesh["tensor"]),
        ("model.vocab_size", model.vocab_size, "tensor", mesh["tensor"]),
        ("model.hidden_dim", model.hidden_dim, "fsdp × data" if spec.parallelism.zero1 else "fsdp", embed),
        ("batch.sequence_length", spec.batch.sequence_length, "tensor (sequence parallelism)", tokens),
    ):
        if size % parts:
            why = f"{path.rpartition('.')[2]} {size} cannot be split evenly over {axes} = {parts}"
            yield finder.at(path, "error", "not-divisible", why, f"use a multiple of {parts}, or a smaller axis")


def warmup_ends(finder: Finder) -> Iterator[Problem]:
    spec = finder.spec
    if spec.optimizer.warmup_steps >= spec.steps > 1:
        yield finder.at(
            "optimizer.warmup_steps", "warning", "endless-warm-up",
            f"the learning rate is still rising when the run ends after {spec.steps} steps",
            "warm up for fewer steps, or train for more",
        )  # fmt: skip


def data_is_there(finder: Finder) -> Iterator[Problem]:
    data, model = finder.spec.data, finder.spec.model
    if data.kind == "text" and not data.paths:
        yield finder.at("data.paths", "error", "missing-key", "text is asked for, but no files", "add data.paths")
    if data.kind == "synthetic" and data.paths:
        why = "synthetic data reads no files"
        yield finder.at("data.paths", "warning", "no-effect", why, 'set data.kind to "text", or remove the paths')
    if data.kind == "text" and model.vocab_size < 256:
        why = f"the byte tokenizer makes 256 tokens, and the model has {model.vocab_size}"
        yield finder.at("model.vocab_size", "error", "vocabulary-too-small", why, "use 256 or more")
