"""Devices, mesh and batch of a MaxText configuration, by its arithmetic."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from seatrial.dialects.maxtext.keys import AXES, PARTS
from seatrial.dialects.maxtext.settings import Settings
from seatrial.estimate import hardware
from seatrial.spec import Batch, MeshShape, Origin, Part, Topology, gather_part

NODES, EACH, DEVICE = "topology.num_nodes", "topology.devices_per_node", "topology.device"

_TPU = re.compile(r"(v4|v5p|v5e|v6e)-(\d+)")
_CORES_PER_CHIP = {"v4": 2, "v5p": 2}  # their topologies count cores


@dataclass
class Built:
    """Values and origins by spec path."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)

    def put(self, path: str, value: Any, origin: Origin) -> None:
        self.values[path], self.origins[path] = value, origin

    def part(self, kind: type[Part], prefix: str) -> Part:
        """A part of the spec from what stands under its path."""
        return gather_part(kind, prefix, self.values)


def mesh(settings: Settings, built: Built) -> None:
    """MaxText's axes as ours; `tensor_sequence` is `tensor` with activations between blocks split."""
    sequence = [f"{part}_tensor_sequence_parallelism" for part in PARTS]
    is_sequence = any(settings.get(name) != 1 for name in sequence)
    for part, ours in PARTS.items():
        for axis in ("data", "fsdp", "pipeline", "context", "tensor"):
            name = f"{part}_{axis}_parallelism"
            if axis == "tensor" and is_sequence:
                if settings.get(name) != 1:
                    why = "tensor and tensor_sequence are one axis here, on which activations are split or are not"
                    settings.find(name, "error", "not-supported", why, f"use {part}_tensor_sequence_parallelism alone")
                name = f"{part}_tensor_sequence_parallelism"
            built.put(f"parallelism.{ours}.{AXES[axis]}", settings.get(name), settings.origin(name))
    first = next((name for name in sequence if settings.get(name) != 1), sequence[0])
    built.put("parallelism.sequence_parallel", is_sequence, settings.origin(first))


def topology(settings: Settings, built: Built) -> None:
    """How many devices there are: MaxText takes those that it finds, so that the mesh has to tell, or the user."""
    within, across = (built.part(MeshShape, f"parallelism.{part}") for part in PARTS.values())
    device, each = _compiled_for(settings)
    told: list[tuple[str, Any]] = [
        (NODES, settings.values.get(NODES)),
        ("compile_topology_num_slices", settings.values.get("compile_topology_num_slices")),
        ("num_slices", settings.values.get("num_slices")),
    ]
    name, nodes = next(((name, value) for name, value in told if value is not None), ("", None))
    if nodes is not None:
        built.put(NODES, nodes, settings.origin(name))
    elif NODES in settings.variables.placed and settings.values.get("hardware") != "gpu_multiprocess":
        value, entry = settings.variables.placed[NODES]
        built.put(NODES, value, entry.origin())
    else:
        built.put(NODES, across.product, _from_mesh("dcn", across))
    if EACH in settings.values:
        built.put(EACH, settings.values[EACH], settings.origin(EACH))
    elif each is not None:
        built.put(EACH, each, settings.origin("compile_topology"))
    else:
        built.put(EACH, within.product, _from_mesh("ici", within))
        if not within.is_resolved:
            _say_assumed(settings, built)
    if DEVICE in settings.values:
        built.put(DEVICE, settings.values[DEVICE], settings.origin(DEVICE))
    elif device is not None:
        built.put(DEVICE, device, settings.origin("compile_topology"))


def _from_mesh(part: str, shape: MeshShape) -> Origin:
    note = f"product of {part}_*" + ("" if shape.is_resolved else ", with 1 for the -1 among them")
    return Origin(kind="derived", key=f"{part}_*_parallelism", note=note)


def _say_assumed(settings: Settings, built: Built) -> None:
    """That a -1 has no devices to be made of."""
    name = next(
        (n for n in (f"ici_{axis}_parallelism" for axis in AXES) if settings.get(n) == -1), "ici_fsdp_parallelism"
    )
    each = built.values[EACH]
    why = (
        f"it is -1, all devices that are there, and nothing here says how many: {each} "
        f"device{'s' if each > 1 else ''} a node, {built.values[NODES]} node{'s' if built.values[NODES] > 1 else ''} "
        "are assumed"
    )
    fix = f"say it, for example {EACH}=8 {NODES}=1 {DEVICE}=h100, behind the configuration"
    settings.find(name, "info", "devices-unknown", why, fix)


def _compiled_for(settings: Settings) -> tuple[str | None, int | None]:
    """The device and the devices a slice of `compile_topology`."""
    text = settings.values.get("compile_topology")
    if text is None:
        return None, None
    if text == "a3":
        return "h100-sxm", 8
    match = _TPU.fullmatch(text)
    device = hardware.find(match[1]) if match else None
    if match is None or int(match[2]) < 1 or int(match[2]) > 100_000:
        settings.find(
            "compile_topology", "warning", "unknown-topology", "nothing is known about it here",
            f"say what it is: {EACH}=… {DEVICE}=…",
        )  # fmt: skip
        return None, None
    chips = max(1, int(match[2]) // _CORES_PER_CHIP.get(match[1], 1))
    return (device.name if device else f"tpu-{match[1]}"), chips


def batch(settings: Settings, built: Built, devices: Topology, within: MeshShape, across: MeshShape) -> Batch | None:
    """MaxText's share of a device as the batch of the whole, and of each data-parallel replica."""
    name = "per_device_batch_size"
    if settings.wrong(name, "gradient_accumulation_steps", "max_target_length"):
        return None
    within, across = within.resolve(devices.devices_per_node), across.resolve(devices.num_nodes)
    replicas = abs(within.data * within.fsdp * across.data * across.fsdp)
    exact = settings.get(name) * devices.num_devices
    total = round(exact)
    origin = settings.origin(name)
    if abs(exact - total) > 1e-6 or total < 1 or total % replicas:
        settings.find(
            name, "error", "batch-not-whole",
            f"× {devices.num_devices} devices it makes {exact:g} sequences in a forward pass, which do not divide "
            f"among {replicas} data-parallel replica{'s' if replicas > 1 else ''}",
            f"make it a multiple of {replicas / devices.num_devices:g}",
        )  # fmt: skip
        return None
    steps = settings.get("gradient_accumulation_steps")
    note = "× devices" + (f" × {steps} gradient_accumulation_steps" if steps > 1 else "")
    for path, how in (("global_batch_size", note), ("micro_batch_size", "× devices ÷ (data × fsdp)")):
        is_default = origin.kind == "default"
        kind = Origin(kind=origin.kind if is_default else "derived", key=name, text=origin.text, mark=origin.mark,
                      note=f"MaxText's default; {how}" if is_default else how)  # fmt: skip
        built.origins[f"batch.{path}"] = kind
    return Batch(
        sequence_length=built.values["batch.sequence_length"], global_batch_size=total * steps,
        micro_batch_size=total // replicas,
    )  # fmt: skip
