"""The memory that a run needs of each device and its expected speed, for people and for scripts."""

from __future__ import annotations

from typing import Any

from seatrial.estimate import hardware, memory, speed
from seatrial.estimate.compiled import Compiled
from seatrial.estimate.flops import DEFAULT_CONVENTION
from seatrial.estimate.hardware import GIB, TERA
from seatrial.spec import RunSpec


def expected(spec: RunSpec, engine: str) -> dict[str, Any]:
    """The estimates of a run by an engine, as plain data; None for what needs a device that is known."""
    device = hardware.find(spec.topology.device)
    need, reach = memory.per_device(spec, engine), speed.expected(spec, device)
    return {
        "device": device.name if device else None,
        "memory_bytes": need.total_bytes,
        "memory_bytes_by_use": need.parts,
        "device_memory_bytes": device.memory_bytes if device else None,
        "process_memory_bytes": memory.available_bytes(spec, engine),
        "step_seconds": list(reach.step_seconds) if reach else None,
        "tokens_per_second_per_device": list(reach.tokens_per_second_per_device) if reach else None,
        "mfu": list(reach.utilization) if reach else None,
        "peak_flops_per_second": reach.peak_flops_per_second if reach else None,
        "peak_format": reach.peak_format if reach else None,
    }


def expected_lines(spec: RunSpec, engine: str, compiled: Compiled | None = None) -> list[tuple[str, str, str]]:
    """The estimates as rows: what, how much, how it comes about; the memory of the step where it was compiled."""
    device = hardware.find(spec.topology.device)
    need, reach = memory.per_device(spec, engine), speed.expected(spec, device)
    held = compiled.parts if compiled else need.parts
    total = compiled.total_bytes if compiled else need.total_bytes
    parts = ", ".join(f"{name} {show_size(size)}" for name, size in held.items() if size)
    there = memory.available_bytes(spec, engine)
    share = f"{total / there:.0%} of {show_size(there)}" if there else ""
    share += (
        f", which a process gets of {show_size(device.memory_bytes)}" if device and there != device.memory_bytes else ""
    )
    share += "; " if share else ""
    if compiled:
        parts += f"; by the compiled step, {show_size(need.total_bytes)} by the estimate"
    elif engine == memory.OWN and memory.is_uncertain(spec):
        parts += "; a guess, since the layers are not scanned: --compile knows"
    rows = [("memory per device", f"{'' if compiled else 'about '}{show_size(total)}", share + parts)]
    if reach is None:
        why = "the run names no device" if device is None else f"no peak of {device.name} is known for this precision"
        return [*rows, ("step time", "unknown", why)]
    low, high = reach.utilization
    peak = f"{reach.peak_flops_per_second / TERA:g} TFLOP/s in {reach.peak_format}"
    least, most = reach.tokens_per_second_per_device
    return [
        *rows,
        ("step time", f"{_span(*reach.step_seconds)} s", f"at {low:.0%} to {high:.0%} of {peak}, as tuned runs reach "
         f"({DEFAULT_CONVENTION} attention)"),
        ("speed", f"{_span(least, most)} tokens/s/device", f"{spec.tokens_per_step:,} tokens a step on "
         f"{spec.topology.num_devices} devices"),
    ]  # fmt: skip


def _span(low: float, high: float) -> str:
    digits = 0 if high >= 100 else 1 if high >= 10 else 3 if high < 1 else 2
    return f"{low:,.{digits}f} to {high:,.{digits}f}"


def show_size(size: float) -> str:
    """Bytes in the largest unit that leaves at least 1."""
    if size >= GIB:
        return f"{size / GIB:,.1f} GiB"
    if size >= 2**20:
        return f"{size / 2**20:,.0f} MiB"
    return f"{size / 2**10:,.1f} KiB" if size >= 2**10 else f"{size:,.0f} B"
