"""The telemetry of a run's nodes: nodes/<host>/observed.jsonl → figures, series, counters, the kernel's lines.

The files come from other machines, and may be cut or damaged anywhere: unreadable lines are counted and skipped. A
series keeps as many points as a chart has pixels, and the lowest and highest values of those that it merges.
"""

from __future__ import annotations

import json
import math
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seatrial.node.sensors import AMD, ERRORS
from seatrial.runs.files import read_lines

TELEMETRY_FILE = "observed.jsonl"
MAX_POINTS = 240  # of a series
MAX_DEVICES, MAX_PLACES, MAX_NAMES = 256, 256, 1000
MAX_KERNEL_LINES = 50_000
QUANTITIES = frozenset(AMD)  # of a device
WARNING = 4  # the kernel's levels: 0 is the worst, 4 a warning
Point = tuple[float, float, float, float]  # seconds since the epoch; lowest, mean and highest of all devices


@dataclass(kw_only=True)
class Figures:
    """A quantity of one device: its range, its mean and the number of samples."""

    lowest: float = math.inf
    highest: float = -math.inf
    total: float = 0.0
    count: int = 0
    first: float = 0.0
    last: float = 0.0

    @property
    def mean(self) -> float:
        return self.total / self.count

    def take(self, value: float) -> None:
        if not self.count:
            self.first = value
        self.last = value
        if value < self.lowest:
            self.lowest = value
        if value > self.highest:
            self.highest = value
        self.total += value
        self.count += 1


class Series:
    """A quantity of all devices of a node over time; it grows to twice MAX_POINTS, and then halves."""

    def __init__(self) -> None:
        self._numbers = array("d")  # there may be a thousand nodes

    @property
    def points(self) -> list[Point]:
        return list(zip(*(self._numbers[n::4] for n in range(4)), strict=True))

    def take(self, at: float, values: Sequence[float]) -> None:
        self._numbers.extend((at, min(values), sum(values) / len(values), max(values)))
        if len(self._numbers) >= 8 * MAX_POINTS:
            points = self.points
            pairs = zip(points[::2], points[1::2], strict=True)
            halved = ((a[0], min(a[1], b[1]), (a[2] + b[2]) / 2, max(a[3], b[3])) for a, b in pairs)
            self._numbers = array("d", (number for point in halved for number in point))


@dataclass(kw_only=True)
class Device:
    """An accelerator. `throttled` counts the samples in which its clock was held down, by the reason."""

    model: str = ""
    memory_bytes: float = 0.0
    figures: dict[str, Figures] = field(default_factory=dict)
    throttled: Counter[str] = field(default_factory=Counter)
    samples: int = 0


@dataclass(kw_only=True)
class Count:
    """A counter: its first and last value, and when it was first seen to rise."""

    first: int
    last: int
    since: float | None = None


@dataclass(frozen=True, kw_only=True)
class Change:
    """The rise of a counter during the run, and since when by the node's clock, if known."""

    place: str
    name: str
    change: int
    since: float | None
    is_error: bool


@dataclass(frozen=True, kw_only=True)
class KernelLine:
    """A line of the kernel's log: `at` by the node's clock, `stamp` in the kernel's own seconds."""

    at: float
    level: int
    stamp: float
    text: str


@dataclass(kw_only=True)
class Observed:
    """The telemetry of one node, with the number of its `unreadable` lines."""

    host: str
    cores: int = 0
    memory_bytes: float = 0.0
    interval_seconds: float = 0.0
    lacks: dict[str, str] = field(default_factory=dict)
    devices: dict[str, Device] = field(default_factory=dict)
    node: dict[str, Figures] = field(default_factory=dict)
    series: dict[str, Series] = field(default_factory=dict)  # by quantity; the node's own begin with "node "
    kernel: list[KernelLine] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0
    counters: dict[tuple[str, str], Count] = field(default_factory=dict)  # by place and name

    @property
    def changes(self) -> list[Change]:
        """The counters that rose: errors first, those that rose most before the others."""
        found = [
            Change(
                place=place, name=name, change=count.last - count.first, since=count.since,
                is_error=bool(ERRORS.search(name)),
            )
            for (place, name), count in self.counters.items()
            if count.last > count.first
        ]  # fmt: skip
        return sorted(found, key=lambda change: (not change.is_error, -change.change, change.place, change.name))

    def take(self, entry: Mapping[str, Any]) -> None:
        """Takes in a line. Raises TypeError, KeyError or ValueError for a damaged one."""
        at = _number(entry["at"])
        match entry["kind"]:
            case "begun":
                self.cores, self.memory_bytes = int(_number(entry["cores"])), _number(entry["memory_bytes"])
                self.interval_seconds = _number(entry["interval_seconds"])
            case "source":
                self.lacks[str(entry["source"])[:80]] = str(entry["why"])
            case "devices":
                for name, about in entry["devices"].items():
                    device = self._device(name)
                    device.model, device.memory_bytes = str(about["model"]), _number(about["memory_bytes"])
            case "sample":
                self._sample(at, entry.get("devices", {}), entry.get("node", {}))
            case "counters":
                self._count(at, entry["counters"])
            case "kernel" if len(self.kernel) < MAX_KERNEL_LINES:
                level, stamp = int(_number(entry["level"])), _number(entry["stamp"])
                self.kernel.append(KernelLine(at=at, level=level, stamp=stamp, text=str(entry["text"])))
            case "ended":
                self.left_out.update({str(kind): int(_number(n)) for kind, n in entry.get("left_out", {}).items()})

    def _device(self, name: str) -> Device:
        if name not in self.devices:
            if len(self.devices) >= MAX_DEVICES:
                raise ValueError("more devices than a node has")
            self.devices[name] = Device()
        return self.devices[name]

    def _sample(self, at: float, devices: Mapping[str, Any], node: Mapping[str, Any]) -> None:
        together: dict[str, list[float]] = {}
        for name, sampled in devices.items():
            device = self._device(name)
            device.samples += 1
            device.throttled.update({str(reason) for reason in list(sampled.get("throttled", ()))[:16]})
            for quantity in [each for each in sampled if each in QUANTITIES]:
                number = _number(sampled[quantity])
                if quantity not in device.figures:
                    device.figures[quantity] = Figures()
                device.figures[quantity].take(number)
                together.setdefault(quantity, []).append(number)
        for quantity, values in together.items():
            self.series.setdefault(quantity, Series()).take(at, values)
        for quantity, value in node.items():
            if quantity in ("utilization", "memory_bytes"):
                self.node.setdefault(quantity, Figures()).take(_number(value))
                self.series.setdefault(f"node {quantity}", Series()).take(at, [_number(value)])

    def _count(self, at: float, counters: Mapping[str, Any]) -> None:
        for place, values in list(counters.items())[:MAX_PLACES]:
            for name, value in list(values.items())[:MAX_NAMES]:
                number = int(_number(value))
                count = self.counters.setdefault((place, name), Count(first=number, last=number))
                if number < count.last:  # it was reset
                    count.first = number
                elif number > count.last and count.since is None:
                    count.since = at
                count.last = number


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise TypeError("not a number")
    return float(value)


def read(run_dir: Path, *, only: str = "") -> Iterator[Observed]:
    """The telemetry of each node, in the order of their names, or `only` one kind of line.

    Nothing where there is none. Raises OSError.
    """
    for path in sorted(run_dir.glob(f"nodes/*/{TELEMETRY_FILE}")):
        yield _read(path, f'"kind":"{only}"' if only else "")


def _read(path: Path, having: str) -> Observed:
    seen = Observed(host=path.parent.name)
    for line in read_lines(path):
        if having not in line:
            continue
        try:
            seen.take(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            seen.unreadable += bool(line.strip())
    return seen
