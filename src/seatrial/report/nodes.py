"""Node telemetry of a run: a lane per node, what stands out, and all of it as plain data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seatrial.logs.faults import KINDS
from seatrial.logs.kernel import spoken_of
from seatrial.report.gather import RunReport
from seatrial.report.section import Section, without_empty_columns
from seatrial.runs.telemetry import WARNING, Change, Device, Figures, KernelLine, Observed, Point

MAX_LANES = 16  # nodes that are drawn; those where something stands out before the others
MAX_DRAWN = 240  # points of a chart
MAX_NOTED = 4  # counters of a node that are named where room is short
MAX_LINES = 50  # of the kernel
FULL = 0.95  # of a node's memory
# Quantity → title, unit, and what makes a figure in that unit of ours.
CHARTS: Mapping[str, tuple[str, str, float]] = {
    "celsius": ("Temperature", "°C", 1.0),
    "watts": ("Power", "W", 1.0),
    "utilization": ("Utilisation", "%", 100.0),
    "memory_bytes": ("Device memory", "GiB", 2.0**-30),
    "node utilization": ("Processors", "%", 100.0),
    "node memory_bytes": ("Node memory", "GiB", 2.0**-30),
}
_FIGURES = ("Utilisation", "Power, W", "Hottest, °C", "Memory, GiB", "Clock, MHz")
_COLUMNS = ("Device", *_FIGURES, "Clock held down by", "Memory errors")
# A cap on the power holds down the clock of any device that works hard; the others should not be.
_USUAL_REASONS = {"power cap"}
# Packets that nobody waited for are counted as dropped, too.
_SAYS_LITTLE = {"rx_dropped", "rx_missed_errors"}


@dataclass(frozen=True, kw_only=True)
class Lane:
    """A node as the page shows it; `columns` are those of its devices, of which `numbers` are figures."""

    host: str
    about: str
    notes: tuple[str, ...]
    charts: tuple[tuple[str, str, str], ...]  # quantity, title with its unit, mean and highest
    columns: tuple[str, ...]
    devices: tuple[tuple[str, ...], ...]
    changes: tuple[tuple[str, ...], ...]
    kernel: tuple[tuple[str, str], ...]
    kernel_hidden: int
    absent: str
    numbers: tuple[str, ...] = _FIGURES


def lanes(report: RunReport) -> list[Lane]:
    """The nodes that are shown, in the order of their ranks."""
    return [_lane(node, report.started_at) for node in _shown(report)]


def hidden(report: RunReport) -> int:
    """The number of nodes that are not shown."""
    return max(0, len(report.nodes) - MAX_LANES)


def chart_data(report: RunReport) -> list[dict[str, Any]]:
    """The data of the lanes' charts: seconds after the start, and the lowest, mean and highest of all devices."""
    start = report.started_at or 0.0
    return [
        {
            quantity: _drawn(node.series[quantity].points, start, factor)
            for quantity, (_, _, factor) in CHARTS.items()
            if quantity in node.series
        }
        for node in _shown(report)
    ]


def _drawn(points: Sequence[Point], start: float, factor: float) -> list[list[float]]:
    """Four series of at most MAX_DRAWN values: seconds, lowest, mean, highest."""
    size = math.ceil(len(points) / MAX_DRAWN)
    buckets = [points[n : n + size] for n in range(0, len(points), size)]
    return [
        [_short(bucket[0][0] - start) for bucket in buckets],
        [_short(factor * min(point[1] for point in bucket)) for bucket in buckets],
        [_short(factor * sum(point[2] for point in bucket) / len(bucket)) for bucket in buckets],
        [_short(factor * max(point[3] for point in bucket)) for bucket in buckets],
    ]


def notable(report: RunReport) -> Section | None:
    """The findings on the nodes; without rows where there are none."""
    rows = [(node.host, what, finding) for node in report.nodes for what, finding in _findings(node)]
    columns = ("Node", "What", "Finding")
    return Section(key="notable", title="Findings on the nodes", columns=columns, rows=tuple(rows))


def summary(node: Observed) -> dict[str, Any]:
    """A node as plain data."""
    return {
        "host": node.host,
        "cores": node.cores,
        "memory_bytes": node.memory_bytes,
        "interval_seconds": node.interval_seconds,
        "absent": dict(node.lacks),
        "node": {quantity: _range(figures) for quantity, figures in node.node.items()},
        "devices": {
            name: {
                "model": device.model,
                "memory_bytes": device.memory_bytes,
                "samples": device.samples,
                "throttled": dict(device.throttled),
                **{quantity: _range(figures) for quantity, figures in device.figures.items()},
            }
            for name, device in node.devices.items()
        },
        "counters": [vars(change) for change in node.changes],
        "kernel": [vars(line) for line in _telling(node)[:MAX_LINES]],
        "left_out": dict(node.left_out),
        "unreadable": node.unreadable,
    }


def _range(figures: Figures) -> dict[str, float]:
    return {"lowest": figures.lowest, "mean": figures.mean, "highest": figures.highest}


def _shown(report: RunReport) -> list[Observed]:
    notable_first = sorted(range(len(report.nodes)), key=lambda n: (not any(_findings(report.nodes[n])), n))
    return [report.nodes[n] for n in sorted(notable_first[:MAX_LANES])]


# --- what stands out --------------------------------------------------------------------------------------------------


def _findings(node: Observed) -> Iterator[tuple[str, str]]:
    for name, device in node.devices.items():
        yield from _device_findings(name, device)
    errors = [change for change in node.changes if change.is_error and change.name not in _SAYS_LITTLE]
    if errors:
        more = f", and {len(errors) - MAX_NOTED} more" if len(errors) > MAX_NOTED else ""
        counters = ", ".join(f"{each.place} {each.name} +{each.change:,}" for each in errors[:MAX_NOTED])
        yield "Network counters", counters + more
    memory = node.node.get("memory_bytes")
    if memory and node.memory_bytes and memory.highest > FULL * node.memory_bytes:
        yield "Memory", f"{memory.highest / node.memory_bytes:.0%} of the node's memory was in use"
    if telling := _telling(node):
        more = f" (and {len(telling) - 1:,} more lines)" if len(telling) > 1 else ""
        yield "Kernel", telling[0].text + more


def _device_findings(name: str, device: Device) -> Iterator[tuple[str, str]]:
    slowed = [(reason, n) for reason, n in device.throttled.items() if reason not in _USUAL_REASONS]
    if slowed:
        reasons = ", ".join(f"{reason} in {n / device.samples:.0%} of the samples" for reason, n in slowed)
        yield "Throttled", f"{name}: {reasons}"
    for quantity, count in _memory_errors(device):
        yield "Memory errors", f"{name}: {count:.0f} {'uncorrectable' if quantity == 'uncorrected' else quantity}"


def _memory_errors(device: Device) -> Iterator[tuple[str, float]]:
    """(quantity, how many there were during the run)."""
    for quantity in ("uncorrected", "corrected"):
        found = device.figures.get(quantity)
        if found and found.last > found.first:
            yield quantity, found.last - found.first


def _telling(node: Observed) -> list[KernelLine]:
    """The kernel's warnings and worse, and the lines that the table of faults knows; the faults come first."""
    known = {fault.text for fault in spoken_of(node) if KINDS[fault.fault].severity == "fatal"}
    found = [line for line in node.kernel if line.level <= WARNING or line.text.strip() in known]
    return sorted(found, key=lambda line: (line.text.strip() not in known, line.at))


# --- a lane -----------------------------------------------------------------------------------------------------------


def _lane(node: Observed, start: float | None) -> Lane:
    telling = _telling(node)
    columns, devices = without_empty_columns(_COLUMNS, [_device_row(*each) for each in node.devices.items()])
    return Lane(
        host=node.host,
        about=_about(node),
        notes=tuple(f"{what}: {finding}" for what, finding in _findings(node)),
        charts=tuple(
            (quantity, f"{title}, {unit}", _mean_and_highest(node, quantity, factor))
            for quantity, (title, unit, factor) in CHARTS.items()
            if quantity in node.series
        ),
        columns=columns,
        devices=devices,
        changes=tuple(_change(change, start) for change in node.changes),
        kernel=tuple((_after(line.at, start), line.text) for line in telling[:MAX_LINES]),
        kernel_hidden=len(node.kernel) - min(len(telling), MAX_LINES) + node.left_out["kernel"],
        absent=_absent(node),
    )


def _about(node: Observed) -> str:
    models = Counter(device.model for device in node.devices.values() if device.model)
    parts = [f"{count} × {model}" for model, count in models.items()]
    parts += [f"{node.cores} processors, {node.memory_bytes / 2**30:,.0f} GiB"] if node.cores else []
    return " · ".join(parts)


def _absent(node: Observed) -> str:
    """The sources that were not watched, and why; a tool that is not there only where no other watched the devices."""
    lacks = {source: why for source, why in node.lacks.items() if not (node.devices and why.startswith("there is no "))}
    tools = ("nvidia-smi", "amd-smi")
    if not node.devices and all(lacks.get(tool) == f"there is no {tool}" for tool in tools):
        others = {source: why for source, why in lacks.items() if source not in tools}
        lacks = {"devices": "neither nvidia-smi nor amd-smi is there", **others}
    return "; ".join(f"{source}: {why}" for source, why in lacks.items())


def _mean_and_highest(node: Observed, quantity: str, factor: float) -> str:
    points = node.series[quantity].points
    mean = sum(point[2] for point in points) / len(points)
    return f"mean {factor * mean:,.0f}, highest {factor * max(point[3] for point in points):,.0f}"


def _device_row(name: str, device: Device) -> tuple[str, ...]:
    def figure(quantity: str, show: str, factor: float = 1.0) -> str:
        found = device.figures.get(quantity)
        if found is None:
            return ""
        return show.format(low=factor * found.lowest, mean=factor * found.mean, high=factor * found.highest)

    held = ", ".join(f"{reason} {count / device.samples:.0%}" for reason, count in device.throttled.most_common())
    errors = ", ".join(f"{count:.0f} {quantity}" for quantity, count in _memory_errors(device))
    return (
        name, figure("utilization", "{mean:.0f}%", 100), figure("watts", "{mean:.0f} (to {high:.0f})"),
        figure("celsius", "{high:.0f}"), figure("memory_bytes", "{high:.1f}", 2.0**-30),
        figure("clock_mhz", "{low:.0f} to {high:.0f}"), held, errors,
    )  # fmt: skip


def _change(change: Change, start: float | None) -> tuple[str, ...]:
    since = _after(change.since, start) if change.since is not None and change.is_error else ""
    return change.place, change.name, f"+{change.change:,}", since


def _after(at: float, start: float | None) -> str:
    return "" if start is None else f"after {at - start:,.0f} s"


def _short(value: float) -> float:
    return float(f"{value:.4g}") if abs(value) < 1e4 else round(value)
