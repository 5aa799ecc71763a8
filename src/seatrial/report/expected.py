"""The memory that a run needs of each device and its expected speed, for people and for scripts."""

from __future__ import annotations

from typing import Any

from seatrial.estimate import hardware, memory, speed
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


def expected_lines(spec: RunSpec, engine: str) -> list[tuple[str, str, str]]:
    """The estimates as rows: what, how much, how it comes about."""
    device = hardware.find(spec.topology.device)
    need, reach = memory.per_device(spec, engine), speed.expected(spec, device)
    parts = ", ".join(f"{name} {_size(size)}" for name, size in need.parts.items() if size)
    there = memory.available_bytes(spec, engine)
    share = f"{need.total_bytes / there:.0%} of {_size(there)}" if there else ""
    share += (
        f", which a process gets of {_size(device.memory_bytes)}" if device and there != device.memory_bytes else ""
    )
    share += "; " if share else ""
    if engine == memory.OWN and memory.is_uncertain(spec):
        parts += "; a guess, since the layers are not scanned: --compile knows"
    rows = [("memory per device", f"about {_size(need.total_bytes)}", share + parts)]
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


def _size(size: float) -> str:
    return f"{size / GIB:,.1f} GiB" if size >= GIB else f"{size / 2**20:,.0f} MiB"
