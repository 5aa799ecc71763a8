"""The kernel logs of a run's nodes → faults: what the kernel said that can end a run, and which process it ended."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from seatrial.events import Fault
from seatrial.logs.faults import FaultScanner
from seatrial.node.agent import PEER_LOST
from seatrial.runs.files import read_object
from seatrial.runs.telemetry import Observed, read

SOON, BEFORE = 15.0, 2.0  # seconds in which a process ends of what the kernel says of it
TOGETHER = 1.0  # seconds in which the kernel says all that it has to say of one thing
# Faults of one process, which need not be one of the run's.
_OF_A_PROCESS = {"host_oom", "segfault"}


def faults(run_dir: Path, ended_at: Mapping[str, float]) -> list[Fault]:
    """The faults that the kernels reported and that can end a run, in the order of time.

    `ended_at`: when the launcher reported the end of a process, by its place ("rank 1 on node2"); its cause is placed
    before that, however the clocks of the machines differ.
    """
    found = [
        replace(fault, wall_time=min(fault.wall_time, ended_at.get(fault.where, math.inf) - 0.001))
        for seen in read(run_dir, only="kernel")
        for fault in kernel_faults(seen, _processes(run_dir, seen.host))
    ]
    return sorted(found, key=lambda fault: fault.wall_time)


def kernel_faults(seen: Observed, processes: Sequence[Mapping[str, Any]]) -> Iterator[Fault]:
    """The faults that a node's kernel speaks of; `processes` are those of the run there, as its agent reports them.

    What it did to one process counts if that is one of them, or if one of them ended soon after: a container or a
    parent may stand between.
    """
    for fault in spoken_of(seen, process=min((int(each["rank"]) for each in processes), default=0)):
        if fault.fault not in _OF_A_PROCESS:
            yield fault
        elif victim := _victim(fault, processes):
            where = f"rank {victim['rank']} on {seen.host}"
            yield replace(fault, where=where, facts={**fault.facts, "rank": victim["rank"]})


def spoken_of(seen: Observed, *, process: int = 0) -> Iterator[Fault]:
    """All faults that a node's kernel speaks of; of several lines for one, the one that says most."""
    scanner, source = FaultScanner(), f"kernel log of {seen.host}"
    found: list[Fault] = []
    for number, line in enumerate(seen.kernel, 1):
        for fault in scanner.scan(
            f"[{line.stamp:12.6f}] {line.text}", number, process=process, source=source, wall_time=line.at, rank=None,
            host=seen.host,
        ):  # fmt: skip
            found.append(replace(fault, line=None, text=line.text.strip(), facts={**fault.facts, "kernel": True}))
            if fault.fault in _OF_A_PROCESS:
                scanner.progressed()  # so that none of its lines is folded away
    explained = sorted(fault.wall_time for fault in found if fault.fault != "kernel_warning")
    corrected = sorted(fault.wall_time for fault in found if fault.fault == "hardware_corrected")
    for fault in found:
        if fault.fault in _OF_A_PROCESS and "pid" not in fault.facts:
            continue
        if fault.fault == "hardware_error" and _near(fault, corrected):
            yield replace(fault, fault="hardware_corrected")
        elif fault.fault != "kernel_warning" or not _near(fault, explained):
            yield fault


def _near(fault: Fault, times: Sequence[float]) -> bool:
    """True if one of these times, which are in order, is that of the fault, more or less."""
    place = bisect_left(times, fault.wall_time - TOGETHER)
    return place < len(times) and times[place] < fault.wall_time + TOGETHER


def _victim(fault: Fault, processes: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The process of the run that a fault ended; None if there is none."""
    pid = fault.facts["pid"]
    in_order = (0, PEER_LOST)  # the latter is what a process does that has lost another
    ended = [p for p in processes if p.get("ended") and not p.get("stopped") and p.get("exit_code") not in in_order]
    named = [each for each in ended if each.get("pid") == pid]
    soon = [each for each in ended if -BEFORE <= float(each["ended"]) - fault.wall_time <= SOON]
    return min(named or soon, key=lambda each: abs(float(each["ended"]) - fault.wall_time), default=None)


def _processes(run_dir: Path, host: str) -> list[Mapping[str, Any]]:
    try:
        status = read_object(run_dir / "nodes" / host / "status.json")
        return [each for each in status["processes"] if isinstance(each.get("rank"), int)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
