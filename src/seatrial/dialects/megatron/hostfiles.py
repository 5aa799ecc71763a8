"""Lists of machines, as DeepSpeed's runner and mpirun read them: a host a line, with `slots=` processes on it.

Source: deepspeed/launcher/runner.py (DeepSpeed 0.9 to 0.18); `mpirun --help` of Open MPI 4.1 and 5.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LOCAL = "localhost"  # as DeepSpeed's runner calls its own node where it has no file
JOB_HOSTFILE = "/job/hostfile"  # DeepSpeed's, where no other is named
_MOST = 200_000  # characters
_LINE = re.compile(r"(\S+)\s+slots=(\d{1,6})")
_MPI_LINE = re.compile(r"(?P<host>[^\s:]+)(?::(?P<short>\d{1,6}))?(?:\s.*?\bslots\s*=\s*(?P<slots>\d{1,6}))?")

Slots = dict[str, tuple[int, ...]]  # host → the numbers of the devices that are used on it, in the order of ranks


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Of the hosts in a file, those that are used: the options of DeepSpeed's runner; -1 is none, as there."""

    include: str = ""
    exclude: str = ""
    num_nodes: int = -1
    num_gpus: int = -1

    @property
    def is_local(self) -> bool:
        """True if it names nothing but devices of the runner's own node."""
        named = {part.partition(":")[0] for part in (self.include or self.exclude).split("@")}
        return named == {LOCAL}


def text_of(path: str, captured: Mapping[str, str], folder: str) -> str | None:
    """The text of a hostfile: as a captured script left it, or on this machine; None where there is none."""
    if path in captured:
        return captured[path]
    try:
        with (Path(folder) / path).open(encoding="utf-8", errors="replace") as file:
            return file.read(_MOST)
    except (OSError, ValueError):
        return None


def slots_of(text: str) -> dict[str, int]:
    """The slots of each host. Raises ValueError for what DeepSpeed's runner refuses."""
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None:
            raise ValueError(f"line {number} is not `host slots=8`")
        if match[1] in found:
            raise ValueError(f"line {number} names {match[1]} for the second time")
        found[match[1]] = int(match[2])
    if not found:
        raise ValueError("no host is in it")
    return found


def selected(slots: Mapping[str, int], by: Selection) -> Slots:
    """The hosts and devices that are used. Raises ValueError for what DeepSpeed's runner refuses."""
    if by.include and by.exclude:
        raise ValueError("--include and --exclude cannot both be given")
    if (by.include or by.exclude) and (by.num_nodes >= 0 or by.num_gpus >= 0):
        raise ValueError("--num_nodes and --num_gpus do not go with --include and --exclude")
    every = {host: tuple(range(count)) for host, count in slots.items()}
    found = _included(every, by.include) if by.include else _without(every, by.exclude) if by.exclude else every
    if by.num_nodes > 0:
        found = dict(list(found.items())[: by.num_nodes])
    if by.num_gpus > 0:
        found = dict.fromkeys(found, tuple(range(by.num_gpus)))
    if not found:
        raise ValueError("no host is left")
    return found


def _included(every: Slots, text: str) -> Slots:
    """The hosts that are named; the runner takes the numbers behind them as they are."""
    named = _named(text, every)
    found = {host: named[host] or numbers for host, numbers in every.items() if host in named}
    return {host: numbers for host, numbers in found.items() if numbers}


def _without(every: Slots, text: str) -> Slots:
    """All hosts, without those that are named or the slots behind them."""
    named = _named(text, every)
    found = dict(every)
    for host, numbers in named.items():
        if wrong := [number for number in numbers if number not in every[host]]:
            raise ValueError(f"{host} has no slot {wrong[0]}")
        found[host] = tuple(number for number in every[host] if numbers and number not in numbers)
    return {host: numbers for host, numbers in found.items() if numbers}


def _named(text: str, every: Slots) -> Slots:
    """The hosts of `worker-0@worker-1:0,2`, each with its slots; none where all are meant. Raises ValueError."""
    found: Slots = {}
    for part in text.split("@"):
        host, colon, numbers = part.partition(":")
        if colon and not re.fullmatch(r"\s*\d{1,6}\s*(,\s*\d{1,6}\s*)*", numbers):
            raise ValueError(f"{part!r} is not HOST or HOST:0,1")
        if host not in every:
            raise ValueError(f"{host} is no host of the file")
        more = tuple(int(number) for number in numbers.split(",")) if colon else ()
        found[host] = tuple(sorted({*found.get(host, ()), *more}))
    return found


def mpi_slots(text: str) -> dict[str, int]:
    """The slots of each host in a file of mpirun's; 0 where it does not say how many. Lines of one host add up."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        match = _MPI_LINE.match(line.partition("#")[0].strip())
        if match is not None:
            found[match["host"]] = found.get(match["host"], 0) + int(match["slots"] or match["short"] or 0)
    return found


def filled(slots: Mapping[str, int], processes: int) -> tuple[int, int] | None:
    """(nodes, processes of each) where mpirun fills one host after the other; None where they get different numbers."""
    each: list[int] = []
    left = processes
    for count in slots.values():
        if left > 0:
            each.append(min(count, left))
            left -= each[-1]
    return (len(each), each[0]) if each and left == 0 and each[0] > 0 and len(set(each)) == 1 else None
