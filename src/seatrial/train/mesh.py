"""Devices: what they can and hold; and a mesh over the five axes of `spec.AXES`, slowest links outermost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress

import jax
import numpy as np
from jax.sharding import Mesh

from seatrial.spec import AXES, RunSpec


def backend_of(device: jax.Device) -> str:
    """ "cpu", "cuda", "rocm" or "tpu": JAX itself calls the middle two "gpu"."""
    if device.platform != "gpu":
        return str(device.platform)
    return "rocm" if "rocm" in device.client.platform_version.lower() else "cuda"


def has_fp8_units(device: jax.Device) -> bool:
    """True of NVIDIA's GPUs from Ada and Hopper on, whose products of fp8 operands XLA finds."""
    if backend_of(device) != "cuda":
        return False
    return tuple(map(int, str(device.compute_capability).split("."))) >= (8, 9)


def most_memory(devices: Iterable[jax.Device]) -> dict[str, float]:
    """ "memory_bytes": the most that this process has held on any of its devices; {} where a backend is silent."""
    each: list[int | None] = []
    with suppress(NotImplementedError, jax.errors.JaxRuntimeError):  # not every backend's plugin counts its memory
        each = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in devices]
    held = [float(peak) for peak in each if peak is not None]
    return {"memory_bytes": max(held)} if held else {}


def make_mesh(spec: RunSpec, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The spec's mesh over `devices` (default: all, which JAX orders by process).

    Every axis is across_nodes × within_node, with the network part outermost: neighbours along an axis share a node
    wherever the configuration says so. Raises ValueError where the mesh and the devices differ in number.
    """
    devices = jax.devices() if devices is None else devices
    slow = spec.parallelism.across_nodes.resolve(spec.topology.num_nodes).sizes
    fast = spec.parallelism.within_node.resolve(spec.topology.devices_per_node).sizes
    wanted = math.prod(slow.values()) * math.prod(fast.values())
    if wanted != len(devices):
        raise ValueError(f"the mesh {spec.mesh} needs {wanted} devices, but there are {len(devices)}")
    grid = np.asarray(devices).reshape([slow[axis] for axis in AXES] + [fast[axis] for axis in AXES])
    interleaved = [position for axis in range(len(AXES)) for position in (axis, axis + len(AXES))]
    return Mesh(grid.transpose(interleaved).reshape([spec.mesh[axis] for axis in AXES]), AXES)
