"""The same training on fewer devices: the mesh shrinks to what a machine has, and gradients are accumulated instead.

A rehearsal makes everything small; here only the mesh does, so losses and parameters are those of the run asked for.
The global batch and the micro batch stay, and fewer replicas take more passes over them. The axes shrink in the order
of SHRINKS: replicas first, because they hold nothing that others do not, then what costs most to keep split.
"""

from __future__ import annotations

import dataclasses
import math

from seatrial.shrink.rehearsal import Change, Rehearsal, differences
from seatrial.spec import MeshShape, ModelSpec, RunSpec, Topology

SHRINKS = ("data", "pipeline", "context", "tensor", "fsdp")

_FITTED = f"axes shrink in the order {', '.join(SHRINKS)}, by their smallest factors, until the devices suffice"
_ONE_NODE = "the devices of this machine, as one node"
RULES: dict[str, str] = {
    "topology": _ONE_NODE,
    "parallelism.across_nodes": _ONE_NODE,
    "parallelism.within_node": _FITTED,
    "parallelism.stage_layers": "they are those of the original stages",
    "parallelism.virtual_pipeline": "without stages there is nothing to interleave",
    "model.vocab_multiple": "tables padded as before: to a multiple of this × the tensor axis",
}


def collapse(spec: RunSpec, *, num_devices: int, virtual: bool = False) -> Rehearsal:
    """The spec on `num_devices` devices of one node, or as many of them as its axes can use, and all that differs.

    `virtual`: they are CPU devices, whatever the spec names. Losses are the same up to the order of sums.
    """
    mesh = _shrunk(spec, num_devices)
    tensor = spec.mesh["tensor"]
    padding = spec.model.vocab_multiple * tensor // mesh["tensor"] if spec.model.vocab_multiple > 1 else 1
    collapsed = dataclasses.replace(
        spec,
        model=dataclasses.replace(spec.model, vocab_multiple=padding),
        topology=Topology(
            num_nodes=1, devices_per_node=math.prod(mesh.values()), device=None if virtual else spec.topology.device
        ),
        parallelism=dataclasses.replace(
            spec.parallelism,
            within_node=MeshShape(**mesh),
            across_nodes=MeshShape(),
            virtual_pipeline=spec.parallelism.virtual_pipeline if mesh["pipeline"] > 1 else 1,
            stage_layers=spec.parallelism.stage_layers if mesh["pipeline"] == spec.mesh["pipeline"] else (),
        ),
    )
    changes = differences(spec, collapsed, RULES)
    if collapsed.accumulation_steps != spec.accumulation_steps:
        why = "fewer replicas take more passes over the same global batch"
        given = {"original": spec.accumulation_steps, "rehearsed": collapsed.accumulation_steps}
        changes.append(Change(path="accumulation_steps", why=why, **given))
    return Rehearsal(spec=collapsed, changes=tuple(changes), collapsed=True)


def _shrunk(spec: RunSpec, num_devices: int) -> dict[str, int]:
    mesh = dict(spec.mesh)
    for axis in SHRINKS:
        while math.prod(mesh.values()) > num_devices and mesh[axis] > 1:
            smaller = [size for size in range(1, mesh[axis]) if mesh[axis] % size == 0]
            mesh[axis] = max(size for size in smaller if axis != "tensor" or _shares_heads(spec.model, size))
    return mesh


def _shares_heads(model: ModelSpec, tensor: int) -> bool:
    """True if a tensor axis of this size splits the key/value heads, or lets as many devices share each."""
    return model.num_kv_heads % tensor == 0 or tensor % model.num_kv_heads == 0
