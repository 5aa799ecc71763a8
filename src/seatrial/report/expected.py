"""The memory that a run needs of each device and the time of its steps, for people and for scripts."""

from __future__ import annotations

from typing import Any

from seatrial.estimate import hardware, memory, time_profile
from seatrial.estimate.compiled import Compiled
from seatrial.estimate.flops import DEFAULT_CONVENTION, flops_per_token
from seatrial.estimate.hardware import GIB, TERA
from seatrial.estimate.levers import levers
from seatrial.estimate.time_model import StepTime, predict
from seatrial.estimate.time_profile import Profile
from seatrial.spec import RunSpec

MOST_LEVERS, MOST_PARTS = 4, 3
LINK, MOST_OF_IT = "communication: ", "most of it"
LEAST_SHARE = 0.005  # of a step: smaller parts are shown together


def expected(spec: RunSpec, engine: str, profile: Profile | None = None) -> dict[str, Any]:
    """The estimates of a run by an engine, as plain data; None for what needs a device that is known.

    `profile`: of the device, measured; None: the published one.
    """
    device, peak = hardware.find(spec.topology.device), peak_of(spec)
    profile = profile or time_profile.published(device)
    need, time = memory.per_device(spec, engine), predict(spec, engine, profile)
    tokens = spec.tokens_per_step / spec.topology.num_devices
    steps = time.interval if time else None
    return {
        "device": device.name if device else None,
        "memory_bytes": need.total_bytes,
        "memory_bytes_by_use": need.parts,
        "device_memory_bytes": device.memory_bytes if device else None,
        "process_memory_bytes": memory.available_bytes(spec, engine),
        "step_seconds": list(steps) if steps else None,
        "tokens_per_second_per_device": [tokens / seconds for seconds in reversed(steps)] if steps else None,
        "mfu": [utilization(spec, seconds) for seconds in reversed(steps)] if steps and peak else None,
        "peak_flops_per_second": peak[0] if peak else None,
        "peak_format": peak[1] if peak else None,
        "time": _time(spec, engine, time) if time else None,
    }


def _time(spec: RunSpec, engine: str, time: StepTime) -> dict[str, Any]:
    return {
        "step_seconds": time.step_seconds,
        "low_seconds": time.interval[0],
        "high_seconds": time.interval[1],
        "interval": time.profile.certainty,
        "seconds_by_part": dict(time.seconds),
        "hidden_seconds_by_part": dict(time.hidden_seconds),
        "profile": time.profile.origin,
        "levers": [{"change": each.change, "step_seconds": each.step_seconds, "fits": each.fits}
                   for each in levers(spec, engine, time.profile)],
    }  # fmt: skip


def peak_of(spec: RunSpec) -> tuple[float, str] | None:
    """The peak FLOP/s of a run's device, and in which number format; None where they are not known."""
    device = hardware.find(spec.topology.device)
    return device.peak(spec.precision.compute_dtype, spec.precision.quantization) if device else None


def utilization(spec: RunSpec, step_seconds: float) -> float | None:
    """MFU (a fraction, causal attention) of a step; None where the device's peak is not known."""
    peak = peak_of(spec)
    work = spec.tokens_per_step / spec.topology.num_devices * flops_per_token(spec.model, spec.batch.sequence_length)
    return work / peak[0] / step_seconds if peak else None


def expected_lines(
    spec: RunSpec,
    engine: str,
    profile: Profile | None = None,
    *,
    compiled: Compiled | None = None,
    in_full: bool = True,
) -> list[tuple[str, str, str]]:
    """The estimates as rows: what, how much, how it comes about; in full also each part of a step, and what changes it.

    `profile`: of the device, measured; None: the published one. `compiled`: the step, whose memory is known then.
    """
    device = hardware.find(spec.topology.device)
    profile = profile or time_profile.published(device)
    need, time = memory.per_device(spec, engine), predict(spec, engine, profile)
    held = compiled.parts if compiled else need.parts
    total = compiled.total_bytes if compiled else need.total_bytes
    parts = ", ".join(f"{name} {show_size(size)}" for name, size in held.items() if size)
    there = memory.available_bytes(spec, engine)
    share = f"{total / there:.0%} of {show_size(there)}" if there else ""
    if device and there != device.memory_bytes:
        share += f", which a process gets of {show_size(device.memory_bytes)}"
    share += "; " if share else ""
    if compiled:
        parts += f"; {show_size(need.total_bytes)} by the estimate"
    elif engine == memory.OWN and memory.is_uncertain(spec):
        parts += "; a guess, since the layers are not scanned: --compile knows"
    size = f"{show_size(total)} by the compiled step" if compiled else f"about {show_size(total)}"
    rows = [("memory per device", size, share + parts)]
    if time is None:
        return [*rows, ("step time", "unknown", _why_not(device, profile))]
    rows += _speed_lines(spec, time)
    return [*rows, *(_part_lines(spec, engine, time) if in_full else [_parts_in_short(time)])]


def _why_not(device: hardware.Device | None, profile: Profile | None) -> str:
    if device is None:
        return "the run names no device"
    if profile is None:
        return f"the links of {device.name} are not known"
    return f"no rate of {device.name} is known for this precision"


def _speed_lines(spec: RunSpec, time: StepTime) -> list[tuple[str, str, str]]:
    low, high = time.interval
    of_peak = ""
    if peak := peak_of(spec):
        least, most = utilization(spec, high), utilization(spec, low)
        of_peak = f"; {least:.0%} to {most:.0%} of {peak[0] / TERA:g} TFLOP/s in {peak[1]} ({DEFAULT_CONVENTION})"
    tokens = spec.tokens_per_step / spec.topology.num_devices
    return [
        ("step time", f"{show_seconds(time.step_seconds)} s",
         f"{_span(low, high)} s: {time.profile.certainty}, by {time.profile.origin}{of_peak}"),
        ("speed", f"{tokens / time.step_seconds:,.{0 if tokens / time.step_seconds >= 100 else 1}f} tokens/s/device",
         f"{_span(tokens / high, tokens / low)}; {spec.tokens_per_step:,} tokens a step on "
         f"{spec.topology.num_devices} devices"),
    ]  # fmt: skip


def _parts_in_short(time: StepTime) -> tuple[str, str, str]:
    """The largest parts of a step in one row."""
    parts = sorted(time.seconds.items(), key=lambda part: -part[1])[:MOST_PARTS]
    said = (f"{name.removeprefix(LINK)} {seconds / time.step_seconds:.0%}" for name, seconds in parts)
    return MOST_OF_IT, ", ".join(said), ""


def _part_lines(spec: RunSpec, engine: str, time: StepTime) -> list[tuple[str, str, str]]:
    largest_first = sorted(time.seconds.items(), key=lambda part: -part[1])
    rows: list[tuple[str, str, str]] = []
    shown = [part for part in largest_first if part[1] >= LEAST_SHARE * time.step_seconds]
    for name, seconds in shown:
        hidden = time.hidden_seconds.get(name, 0.0)
        beside = f", and {1000 * hidden:,.0f} ms beside computing" if 1000 * hidden >= 0.5 else ""
        rows.append((f"  {name}", f"{1000 * seconds:,.1f} ms", f"{seconds / time.step_seconds:.1%}{beside}"))
    others = largest_first[len(shown) :]
    if rest := sum(seconds for _, seconds in others):
        rows.append(("  the rest", f"{1000 * rest:,.1f} ms", ", ".join(name for name, _ in others)))
    for each in levers(spec, engine, time.profile)[:MOST_LEVERS]:
        change, fits = each.step_seconds / time.step_seconds - 1, "" if each.fits else ", which does not fit"
        rows.append(("  would change it", f"{change:+.1%}", f"{each.change}{fits}"))
    return rows


def show_seconds(seconds: float) -> str:
    """Seconds with as many digits as mean something."""
    return f"{seconds:,.{2 if seconds >= 1 else 3}f}" if seconds < 100 else f"{seconds:,.0f}"


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
