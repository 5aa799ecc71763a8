"""Devices, mesh and batch of a MaxText configuration, by its arithmetic."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from seatrial.dialects.jobs import EACH, NODES
from seatrial.dialects.maxtext.keys import PARTS
from seatrial.dialects.maxtext.settings import Settings
from seatrial.dialects.table import settings as table_settings
from seatrial.dialects.table.keys import OMIT
from seatrial.estimate import hardware
from seatrial.spec import Batch, MeshShape, Origin, Part, Topology, gather_part

DEVICE = "topology.device"

_TPU = re.compile(r"(v4|v5p|v5e|v6e)-(\d{1,6})")
_AXES = ("data", "fsdp", "pipeline", "context", "tensor", "tensor_sequence")
_CORES_PER_CHIP = {"v4": 2, "v5p": 2}  # their topologies count cores


@dataclass
class Built:
    """Values and origins by spec path; at first those of the keys that hold a value of the spec as it is."""

    settings: Settings
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.values |= self.settings.placed()
        names = {key.to: name for name, key in self.settings.keys.items() if key.as_is}
        self.origins |= {path: self.settings.origin(names[path]) for path in self.values}

    def put(self, path: str, name: str, value: Any = OMIT, note: str = "") -> None:
        """Puts a value, by default that of a key, in its place; it comes from that key."""
        self.values[path] = self.settings.get(name) if value is OMIT else value
        self.origins[path] = self.settings.origin(name, note)

    def part(self, kind: type[Part], prefix: str) -> Part:
        """A part of the spec from the values under its path."""
        return gather_part(kind, prefix, self.values)


def mesh(settings: Settings, built: Built) -> tuple[MeshShape, MeshShape]:
    """(within a node, across nodes); `tensor_sequence` is `tensor` with activations between blocks split."""
    wide = [f"{part}_tensor_sequence_parallelism" for part in ("ici", "dcn")]
    used = [name for name in wide if settings.get(name) != 1]
    for part, ours in PARTS.items():
        tensor, sequence = f"{part}_tensor_parallelism", f"{part}_tensor_sequence_parallelism"
        if used and settings.get(tensor) != 1:
            why = "tensor and tensor_sequence are one axis here"
            settings.add(tensor, "error", "not-supported", why, f"use {sequence} alone")
        built.put(f"parallelism.{ours}.tensor", sequence if used else tensor)
    built.put("parallelism.sequence_parallel", (used or wide)[0], bool(used))
    within, across = (built.part(MeshShape, f"parallelism.{PARTS[part]}") for part in ("ici", "dcn"))
    return within, across


def topology(settings: Settings, built: Built, within: MeshShape, across: MeshShape) -> Topology:
    """The nodes and devices: MaxText uses those that it finds, so the mesh or the user has to give their number."""
    device, each = _compiled_for(settings)
    counts = (NODES, "compile_topology_num_slices", "num_slices")
    name = next((name for name in counts if settings.get(name) is not None), "")
    if name:
        built.put(NODES, name)
    elif NODES in settings.variables.placed and settings.values.get("hardware") != "gpu_multiprocess":
        value, entry = settings.variables.placed[NODES]
        built.values[NODES], built.origins[NODES] = value, entry.origin()
    elif NODES in settings.job:
        built.values[NODES], built.origins[NODES] = settings.job[NODES].value, settings.job[NODES].origin()
    else:
        built.values[NODES], built.origins[NODES] = across.product, _from_mesh("dcn", across)
    if EACH in settings.values:
        built.put(EACH, EACH)
    elif each is not None:
        built.put(EACH, "compile_topology", each)
    elif EACH in settings.job and not within.is_resolved:
        built.values[EACH], built.origins[EACH] = settings.job[EACH].value, settings.job[EACH].origin()
    else:
        built.values[EACH], built.origins[EACH] = within.product, _from_mesh("ici", within)
        if not within.is_resolved:
            _say_assumed(settings, built)
    if DEVICE in settings.values:
        built.put(DEVICE, DEVICE)
    elif device is not None:
        built.put(DEVICE, "compile_topology", device)
    return built.part(Topology, "topology")


def _from_mesh(part: str, shape: MeshShape) -> Origin:
    note = f"product of {part}_*" + ("" if shape.is_resolved else ", with 1 for the -1 among them")
    return Origin(kind="derived", key=f"{part}_*_parallelism", note=note)


def _say_assumed(settings: Settings, built: Built) -> None:
    """Adds a note about how many devices a -1 is assumed to be."""
    names = (f"ici_{axis}_parallelism" for axis in _AXES)
    name = next((name for name in names if settings.get(name) == -1), "ici_fsdp_parallelism")
    each, nodes = built.values[EACH], built.values[NODES]
    why = (
        f"it is -1, all devices, and nothing says how many there are: {each} device{'s' * (each > 1)} per node "
        f"and {nodes} node{'s' * (nodes > 1)} are assumed"
    )
    fix = f"give it after the configuration, for example {EACH}=8 {NODES}=1 {DEVICE}=h100"
    settings.add(name, "info", "devices-unknown", why, fix)


def _compiled_for(settings: Settings) -> tuple[str | None, int | None]:
    """The device and the devices a slice of `compile_topology`."""
    text = settings.get("compile_topology")
    if text is None:
        return None, None
    if text == "a3":
        return "h100-sxm", 8
    match = _TPU.fullmatch(text)
    if match is None or not 1 <= int(match[2]) <= 100_000:
        fix = f"give {EACH}=… {DEVICE}=…"
        settings.add("compile_topology", "warning", "unknown-topology", "Seatrial does not know it", fix)
        return None, None
    device = hardware.find(match[1])
    chips = max(1, int(match[2]) // _CORES_PER_CHIP.get(match[1], 1))
    return (device.name if device else f"tpu-{match[1]}"), chips


PER_DEVICE = "per_device_batch_size"


def batch(settings: Settings, built: Built, devices: Topology, within: MeshShape, across: MeshShape) -> Batch | None:
    """The batch of the whole, and of each data-parallel replica, with their origins."""
    if settings.wrong(PER_DEVICE, "gradient_accumulation_steps", "max_target_length"):
        return None
    steps, length = settings.get("gradient_accumulation_steps"), built.values["batch.sequence_length"]
    found = batch_of(settings, settings.get(PER_DEVICE), length, devices, within, across, steps=steps)
    if found is None:
        return None
    for path, how in (
        ("global_batch_size", "× devices" + (f" × {steps} gradient_accumulation_steps" if steps > 1 else "")),
        ("micro_batch_size", "× devices ÷ (data × fsdp)"),
    ):
        origin = settings.origin(PER_DEVICE, how)
        built.origins[f"batch.{path}"] = origin if origin.kind == "default" else replace(origin, kind="derived")
    return found


def batch_of(
    settings: table_settings.Settings, share: float, length: int, devices: Topology, within: MeshShape,
    across: MeshShape, *, steps: int = 1,
) -> Batch | None:  # fmt: skip
    """MaxText's share of a device in a forward pass as a batch; None, with a finding, where it is not whole."""
    within, across = within.resolve(devices.devices_per_node), across.resolve(devices.num_nodes)
    replicas = abs(within.data * within.fsdp * across.data * across.fsdp)
    exact = share * devices.num_devices
    total = round(exact)
    if abs(exact - total) > 1e-6 or total < 1 or total % replicas:
        why = (
            f"× {devices.num_devices} devices it makes {exact:g} sequences per forward pass, which do not divide "
            f"among {replicas} data-parallel replica{'s' * (replicas > 1)}"
        )
        fix = f"make it a multiple of {replicas / devices.num_devices:g}"
        settings.add(PER_DEVICE, "error", "batch-not-whole", why, fix)
        return None
    return Batch(sequence_length=length, global_batch_size=total * steps, micro_batch_size=total // replicas)
