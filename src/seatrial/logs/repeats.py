"""Tells repeats of a run from the ranks of one, where two logs are named after the same rank."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seatrial.logs.file_names import RANK_NAMES, STREAM
from seatrial.logs.files import is_completed, losses_of, starts_of
from seatrial.recording import Recording

# Which attempt, node or rank of a run wrote a file: in its name or its folder's.
_PARTS = (*RANK_NAMES, re.compile(r"(?<![a-z])(?:attempt|restart|retry|try)[-_.]?\d+", re.IGNORECASE))
MOST_RUNS = 50  # in files of like names
FEWEST_SHARED = 3  # steps
PRINTED, MOST_SAME = 1e-3, 0.9  # what a log with few digits rounds by; of the losses
LOCKSTEP = 0.5  # of a step: ranks of one run end each step together


@dataclass(frozen=True, kw_only=True)
class Group:
    """The logs that are named as those of one run: how they begin, as far as it says which, and their processes."""

    key: str
    processes: Mapping[str, Sequence[Path]]  # by the name of the process, as far as it says which

    @property
    def paths(self) -> list[Path]:
        return [path for paths in self.processes.values() for path in paths]


@dataclass(frozen=True, kw_only=True)
class Course:
    """A run by one of its logs: devices, the time of each step (by the log's clock if `is_timed`), losses."""

    num_devices: int | None
    steps: Mapping[int, float]
    losses: Mapping[int, float]
    is_timed: bool
    completed: bool


def course_of(events: Recording) -> Course:
    """The course of a run by the events of one log."""
    steps = events.all_steps
    started = starts_of(events)
    return Course(
        num_devices=next((event.num_devices for event in started if event.num_devices), None),
        steps=dict(zip(steps.numbers, steps.values("wall_time").tolist(), strict=True)),
        losses=losses_of(events),
        is_timed=bool(started) and all(event.facts.get("clock") == "log" for event in started),
        completed=is_completed(events),
    )


def alike(some: Mapping[int, float], of: Mapping[int, float]) -> bool:
    """True if some losses are those of a run, where both have them; step numbers may differ by one.

    A loss that is no number, where the run has one or none, makes them others.
    """
    return any(_alike({step + shift: loss for step, loss in some.items()}, of) for shift in (0, 1, -1))


def _alike(some: Mapping[int, float], of: Mapping[int, float]) -> bool:
    if any(not math.isfinite(loss) and math.isfinite(of.get(step, 0.0)) for step, loss in some.items()):
        return False
    pairs = [(loss, of[step]) for step, loss in some.items() if step in of and math.isfinite(loss)]
    same = sum(_is_same(one, other) for one, other in pairs)
    return len(pairs) >= max(1, min(FEWEST_SHARED, len(some), len(of))) and same >= MOST_SAME * len(pairs)


def _is_same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=PRINTED, abs_tol=PRINTED) or (math.isnan(one) and math.isnan(other))


def groups_of(paths: Sequence[Path], folder: Path) -> list[Group]:
    """The logs by what their names share besides the rank, the node and the attempt."""
    names = {path: _named(path.relative_to(folder).as_posix()) for path in paths}
    similar = Counter(_numberless(key) for key in {key for key, _ in names.values()})
    found: dict[str, dict[str, list[Path]]] = {}
    for path, (name, process) in names.items():
        # So many names that differ in their numbers alone are those of ranks: 4711.0.out, …, 4711.127.out.
        key = _numberless(name) if similar[_numberless(name)] > MOST_RUNS else name
        found.setdefault(key, {}).setdefault(process, []).append(path)
    return [Group(key=key, processes=processes) for key, processes in found.items()]


def _named(name: str) -> tuple[str, str]:
    """(what a file's path says of the run, what it says of the process): a/node1/rank3.log → ("a/", "node1 rank3")."""
    name = STREAM.sub("", name)
    parts = name.split("/")
    # What stands below a folder of one rank is that rank's, whatever it is called.
    last = max((n for n, part in enumerate(parts) if any(each.search(part) for each in RANK_NAMES)), default=-1)
    if last >= 0:
        name = "/".join(parts[: last + 1])
    elif len(parts) > 1 and parts[-1] == "" and parts[-2].isdigit():  # torchrun's 0/stdout.log
        return _without("/".join(parts[:-2])), f"rank{parts[-2]}"
    key = _without(name)
    process = " ".join(match[0] for pattern in _PARTS for match in pattern.finditer(name))
    return (key, process) if process else (name, parts[-1])


def _numberless(name: str) -> str:
    """The path of a file, without the numbers in its own name."""
    above, slash, own = name.rpartition("/")
    return f"{above}{slash}{re.sub(r'[0-9]+', '#', own)}"


def _without(name: str) -> str:
    for pattern in _PARTS:
        name = pattern.sub("", name)
    return name


def told_apart(groups: Sequence[Group], courses: Sequence[Course]) -> tuple[list[list[Group]], str]:
    """The groups by the runs that they are of, and why; `courses` are of one log of each.

    What its names leave open is decided by the devices that its logs name, by their clocks and by their losses. Groups
    whose logs report no steps go with the first run.
    """
    total = sum(len(group.processes) for group in groups)
    runs: list[tuple[list[Group], Course]] = []
    reasons: list[str] = []
    for group, course in zip(groups, courses, strict=True):
        if not course.steps:
            continue
        whys = [_why_another(run, group, seen, course, total) for run, seen in runs]
        if "" in whys:
            runs[whys.index("")][0].append(group)
        else:
            reasons += whys[:1]
            runs.append(([group], course))
    if len(runs) < 2:
        return [list(groups)], ""
    silent = [group for group, course in zip(groups, courses, strict=True) if not course.steps]
    return [[*runs[0][0], *silent], *(run for run, _ in runs[1:])], reasons[0]


def _why_another(run: Sequence[Group], group: Group, seen: Course, course: Course, total: int) -> str:
    """The reason why a group is of another run than these; "" where it can be of the same.

    Logs that share few steps follow on each other: they are no repeats.
    """
    if not _repeated(seen, course):
        return ""
    size = course.num_devices
    if size and size == seen.num_devices:
        if total == size > 1:
            return ""
        if min(len(group.processes), len(run[0].processes)) >= size:
            return f"each has the logs of all {size:,} devices" if size > 1 else "each ran on 1 device"
    if _differ(seen.losses, course.losses):
        return "their losses differ"
    is_timed = seen.is_timed and course.is_timed
    if is_timed and _in_lockstep(seen, course):
        return ""
    shared = [process for process in group.processes if any(process in each.processes for each in run)]
    if not shared:
        return ""
    return "their clocks show the same steps at other times" if is_timed else f"each has a log of {shared[0]}"


def _differ(some: Mapping[int, float], others: Mapping[int, float]) -> bool:
    """True if most losses of common steps differ; with few digits, some are the same by chance."""
    pairs = [(some[step], others[step]) for step in some.keys() & others.keys()]
    same = sum(_is_same(one, other) for one, other in pairs)
    return len(pairs) >= FEWEST_SHARED and same < len(pairs) / 2


def _repeated(one: Course, other: Course) -> bool:
    """True if the second does the steps of the first again, and not because the first had died."""
    shared = one.steps.keys() & other.steps.keys()
    if len(shared) < max(FEWEST_SHARED, min(len(one.steps), len(other.steps)) / 2):
        return False
    if not (one.is_timed and other.is_timed):
        return True
    earlier, later = sorted((one, other), key=lambda course: min(course.steps.values()))
    follows = max(earlier.steps.values()) < min(later.steps.values())
    return not follows or earlier.completed


def _in_lockstep(one: Course, other: Course) -> bool:
    """True if two logs end the same steps at the same time, to half a step or a second of rounding."""
    times = sorted(one.steps.values())
    usual = (times[-1] - times[0]) / max(len(times) - 1, 1)
    apart = [abs(other.steps[step] - one.steps[step]) for step in one.steps.keys() & other.steps.keys()]
    return max(apart) <= max(1.0, LOCKSTEP * usual)
