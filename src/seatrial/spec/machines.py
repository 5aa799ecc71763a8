"""The machines of a run: devices and the mesh over them, processes, containers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

# Mesh axes, slowest first: neighbours along the last axis exchange the most data, so they must be closest.
AXES = ("pipeline", "data", "fsdp", "context", "tensor")


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The machines that the run asks for."""

    num_nodes: int = 1
    devices_per_node: int = 1
    device: str | None = None  # a name of `hardware.DEVICES`; None: whatever is there

    @property
    def num_devices(self) -> int:
        return self.num_nodes * self.devices_per_node


@dataclass(frozen=True, kw_only=True)
class MeshShape:
    """A size per mesh axis; one of them may be -1, which means: all devices that the others leave."""

    pipeline: int = 1
    data: int = 1
    fsdp: int = 1
    context: int = 1
    tensor: int = 1

    @property
    def sizes(self) -> dict[str, int]:
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def product(self) -> int:
        """Devices that the mesh needs; with a -1 in it, the product of the other axes."""
        return math.prod(size for size in self.sizes.values() if size != -1)

    @property
    def is_resolved(self) -> bool:
        return -1 not in self.sizes.values()

    def resolve(self, num_devices: int) -> MeshShape:
        """The same shape with its -1 replaced by what `num_devices` leaves, or unchanged where that does not divide."""
        if self.is_resolved or num_devices % self.product:
            return self
        rest = num_devices // self.product
        return MeshShape(**{axis: rest if size == -1 else size for axis, size in self.sizes.items()})


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """The split of the work: `within_node` over fast links (MaxText's ici), `across_nodes` over the network (dcn)."""

    within_node: MeshShape = field(default_factory=MeshShape)
    across_nodes: MeshShape = field(default_factory=MeshShape)
    virtual_pipeline: int = 1  # model chunks per pipeline stage
    stage_layers: tuple[int, ...] = ()  # layers of each chunk, in the model's order; (): as many in each
    counts_embedding: bool = False  # Megatron: the embedding takes a layer's place in the first pipeline stage
    counts_head: bool = False  # and the output head one in the last
    zero1: bool = False  # optimizer state sharded over `data`, parameters replicated
    sequence_parallel: bool = False  # Megatron: activations between blocks sharded along the sequence over `tensor`
    context_strategy: Literal["all_gather", "ring"] = "all_gather"  # how keys and values come together over `context`


@dataclass(frozen=True, kw_only=True)
class Distributed:
    """The rendezvous of the processes, and options of a Slurm job; the defaults of the timeouts are JAX's own."""

    coordinator_host: str | None = None  # None: the first node
    coordinator_port: int | None = None  # None: a free port, chosen at launch
    initialization_timeout_seconds: int = 300
    heartbeat_timeout_seconds: int = 100
    slurm: Mapping[str, str] = field(default_factory=dict)  # options of a job, by name; --slurm goes before them


@dataclass(frozen=True, kw_only=True)
class Container:
    image: str
    name: str | None = None
    devices: tuple[str, ...] = ()
    volumes: tuple[tuple[str, str], ...] = ()  # (host path, container path)
    environment: Mapping[str, str] = field(default_factory=dict)
    shm_size: str | None = None
    pull: Literal["never", "missing", "always"] | None = None  # None: it must be there when the hosts are looked at
    privileged: bool = False  # root in it is root of the host
    cap_add: tuple[str, ...] = ()
    security_opt: tuple[str, ...] = ()
    group_add: tuple[str, ...] = ()

    def without_hardware(self) -> Container:
        """The same without what only a run on the real devices needs."""
        return replace(self, devices=(), volumes=(), privileged=False, cap_add=(), security_opt=(), group_add=())
