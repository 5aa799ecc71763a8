"""Mesh and batch: the mesh uses the devices that there are, and what it splits divides evenly."""

from __future__ import annotations

from collections.abc import Iterator

from seatrial.check.finder import Finder
from seatrial.errors import Problem
from seatrial.spec import LOSS_TOKENS, MeshShape, RunSpec, Split, uneven_splits

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
    topology, parallelism, assumed = finder.spec.topology, finder.spec.parallelism, finder.note("topology.num_nodes")
    for part, shape, there, count, what in (
        ("within_node", parallelism.within_node, topology.devices_per_node, "devices_per_node",
         f"devices of a node{assumed}"),
        ("across_nodes", parallelism.across_nodes, topology.num_nodes, "num_nodes", f"nodes{assumed}"),
    ):  # fmt: skip
        keys = {axis: finder.key(f"parallelism.{part}.{axis}") for axis in shape.sizes}
        if misfit := _misfit(shape, there, keys, finder.key(f"topology.{count}"), what):
            axis, why, fix = misfit
            yield finder.at(f"parallelism.{part}.{axis}", "error", "mesh-devices", why, fix)


def _misfit(shape: MeshShape, there: int, keys: dict[str, str], count: str, what: str) -> tuple[str, str, str] | None:
    """(axis, why, fix) where a part of the mesh does not use so many devices; `keys` and `count` are the user's."""
    unset = [axis for axis, size in shape.sizes.items() if size == -1]
    given = [axis for axis, size in shape.sizes.items() if size not in (1, -1)]
    if len(unset) > 1:
        both = " and ".join(keys[axis] for axis in unset)
        return unset[1], f"{both} are both -1, and only one axis can take all that remain", "give all but one a size"
    if _fits(shape, there):
        return None
    product = " × ".join(f"{keys[axis]} {shape.sizes[axis]}" for axis in given) or "1"
    verb, divisor, multiple = ("does not divide", "a divisor of ", "a multiple of ") if unset else ("is not", "", "")
    fix = f"make the product of these axes {divisor}{there}, or {count} {multiple}{shape.product}"
    return (given or unset or ["fsdp"])[0], f"{product} {verb} the {there} {what}", fix


def pads_shards(spec: RunSpec) -> bool:
    """True if a configuration's usual trainer shards parameters as one padded list; ours does not."""
    return "megatron" in spec.dialect or spec.dialect == "nxdt"


def _uneven(spec: RunSpec) -> dict[str, Split]:
    """By name, what the mesh does not split evenly; nothing where the mesh itself is wrong."""
    found = uneven_splits(spec, pads_shards=pads_shards(spec)) if mesh_is_sound(spec) else ()
    return {split.name: split for split in found}


def batch_divides(finder: Finder) -> Iterator[Problem]:
    """The global batch is a multiple of the micro batches of all replicas."""
    spec = finder.spec
    if split := _uneven(spec).get("global_batch_size"):
        yield finder.at(
            split.path, "error", "not-divisible",
            f"{split.size} sequences a step are not a multiple of {spec.batch.micro_batch_size} (micro batch) × "
            f"{spec.data_parallel_size} (data × fsdp)", f"use a multiple of {split.parts}",
        )  # fmt: skip


def split_dimensions(finder: Finder) -> Iterator[Problem]:
    """Every dimension that a mesh axis splits is a multiple of the axis."""
    for name, split in _uneven(finder.spec).items():
        if name in ("num_layers", "global_batch_size", LOSS_TOKENS):  # these have rules of their own
            continue
        why = f"{name} {split.size} cannot be split evenly over {split.axes} = {split.parts}"
        fix = f"use a multiple of {split.parts}, or a smaller axis"
        if name == "vocab_size":
            fix += "; or pad the tables (model.vocab_multiple), as Megatron-LM does to a multiple of 128 × tensor"
        yield finder.at(split.path, "error", "not-divisible", why, fix)


def shared_heads_are_known(finder: Finder) -> Iterator[Problem]:
    """Devices of the tensor axis share a key/value head only in versions of Megatron-LM that can."""
    spec = finder.spec
    heads, tensor = spec.model.num_kv_heads, spec.mesh["tensor"] if mesh_is_sound(spec) else 1
    is_megatron = finder.engine == "megatron" and spec.dialect != "nxdt"
    if is_megatron and heads < tensor and tensor % heads == 0:
        why = (f"{tensor // heads} devices of the tensor axis share a key/value head, which Megatron-LM can since "
               "December 2025 (#2565); before, it refuses it")  # fmt: skip
        fix = f"use such a version, or tensor parallelism of {heads} or less"
        yield finder.at("model.num_kv_heads", "warning", "shared-heads", why, fix)


def pipeline_is_even(finder: Finder) -> Iterator[Problem]:
    """Every pipeline stage has its number of layers, and waits less than it computes."""
    spec = finder.spec
    if not mesh_is_sound(spec) or spec.mesh["pipeline"] == 1:
        return
    stages, virtual, layers = spec.mesh["pipeline"], spec.parallelism.virtual_pipeline, spec.model.num_layers
    within = spec.parallelism.within_node.pipeline > 1
    where = f"parallelism.{'within_node' if within else 'across_nodes'}.pipeline"
    if split := _uneven(spec).get("num_layers"):
        parts = f"{stages} stages" + (f" × {virtual} virtual ones" if virtual > 1 else "")
        ends = split.size - layers
        whole = f"{layers} layers" + (f" and {ends} for the ends, which count as layers," if ends else "")
        why = f"{whole} cannot be split evenly over {parts}"
        yield finder.at(where, "error", "not-divisible", why, f"use a divisor of {split.size} in all")
    own = spec.parallelism.stage_layers
    if own and (len(own) != stages * virtual or sum(own) != layers or min(own) < 0):
        why = f"{len(own)} numbers of layers, {sum(own)} in all, are not {layers} layers on {stages * virtual} stages"
        fix = "give each stage its number of layers, or omit it"
        yield finder.at("parallelism.stage_layers", "error", "stage-layers", why, fix)
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
            f"{stages} stages share {passes} micro-batch{'es' if passes > 1 else ''} per step, so they are idle "
            f"{share:.0%} of the time", f"use {4 * stages} micro-batches or more, or fewer stages",
        )  # fmt: skip
