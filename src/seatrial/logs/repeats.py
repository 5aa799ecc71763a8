"""Tells repeats of a run from the ranks of one, where two logs are named after the same rank."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seatrial.events import Event, RunEnded, RunStarted, Step
from seatrial.logs.files import RANK_NAMES

# Which attempt, node or rank of a run wrote a file: in its name or its folder's.
_PARTS = (*RANK_NAMES, re.compile(r"(?<![a-z])(?:attempt|restart|retry|try)[-_.]?\d+", re.IGNORECASE))
_STREAM = re.compile(r"[-_.]?std(?:out|err)(?![a-z])|\.(?:log|out|err|txt)(?=\.|$)", re.IGNORECASE)
_TORCHRUN = RANK_NAMES[2]
FEWEST_SHARED = 3  # steps
SAME_LOSS, PRINTED, MOST_SAME = 1e-3, 1e-3, 0.9  # relative; absolute, of a log with few digits; of the losses
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
    """What a log says of its run: the devices, and when it did its steps (None: its clock is not known)."""

    num_devices: int | None
    steps: Mapping[int, float]
    is_timed: bool
    completed: bool


def course_of(events: Iterable[Event]) -> Course:
    """The course of a run by the events of one log."""
    kept = list(events)
    started = [event for event in kept if isinstance(event, RunStarted)]
    ends = [event for event in kept if isinstance(event, RunEnded)]
    return Course(
        num_devices=next((event.num_devices for event in started if event.num_devices), None),
        steps={event.step: event.wall_time for event in kept if isinstance(event, Step)},
        is_timed=bool(started) and all(event.facts.get("clock") == "log" for event in started),
        completed=bool(ends) and ends[-1].reason in ("completed", "stopped_early"),
    )


def losses_of(events: Iterable[Event]) -> dict[int, float]:
    """The losses by step, those that are no numbers included."""
    return {event.step: event.loss for event in events if isinstance(event, Step) and event.loss is not None}


def alike(some: Mapping[int, float], of: Mapping[int, float]) -> bool:
    """Whether some losses are those of a run, as far as both have them, by its numbers of steps or the ones beside.

    A loss that is no number, where the run has one or none, makes them others.
    """
    return any(_alike({step + shift: loss for step, loss in some.items()}, of) for shift in (0, 1, -1))


def _alike(some: Mapping[int, float], of: Mapping[int, float]) -> bool:
    if any(not math.isfinite(loss) and math.isfinite(of.get(step, 0.0)) for step, loss in some.items()):
        return False
    pairs = [(loss, of[step]) for step, loss in some.items() if step in of and math.isfinite(loss)]
    same = sum(math.isclose(one, other, rel_tol=SAME_LOSS, abs_tol=PRINTED) for one, other in pairs)
    return len(pairs) >= max(1, min(FEWEST_SHARED, len(some), len(of))) and same >= MOST_SAME * len(pairs)


def groups_of(paths: Sequence[Path], folder: Path) -> list[Group]:
    """The logs by what their names share besides the rank, the node and the attempt."""
    found: dict[str, dict[str, list[Path]]] = {}
    for path in paths:
        key, process = _named(path.relative_to(folder).as_posix())
        found.setdefault(key, {}).setdefault(process, []).append(path)
    return [Group(key=key, processes=processes) for key, processes in found.items()]


def _named(name: str) -> tuple[str, str]:
    """(what a file's path says of the run, what it says of the process): a/node1/rank3.log → ("a/", "node1 rank3")."""
    name = _STREAM.sub("", name)
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


def _without(name: str) -> str:
    for pattern in _PARTS:
        name = pattern.sub("", name)
    return name


def clash(groups: Sequence[Group]) -> bool:
    """Whether a process of one name has logs in several groups."""
    named = [process for group in groups for process in group.processes]
    return len(set(named)) < len(named)


def why_several(groups: Sequence[Group], courses: Sequence[Course]) -> str:
    """Why these groups are runs of their own; "" where they can be of one. `courses` are of one log each.

    Logs that share few steps follow on each other, or only one of them reports steps: they are no repeats.
    """
    first, *others = (course for course in courses if course.steps)
    if not others or not all(_repeated(first, other) for other in others):
        return ""
    sizes = {course.num_devices for course in courses}
    counts = [len(group.processes) for group in groups]
    if len(sizes) == 1 and (size := next(iter(sizes))):
        if all(count == size for count in counts) or size == 1:
            return f"each has the logs of all {size:,} devices" if size > 1 else "each ran on 1 device"
        if sum(counts) == size:
            return ""
    if first.is_timed and all(other.is_timed for other in others):
        together = all(_in_lockstep(first, other) for other in others)
        return "" if together else "their clocks show the same steps at other times"
    name = next((name for name in groups[0].processes if all(name in each.processes for each in groups)), "")
    return f"each has a log of {name or 'the same rank'}"


def _repeated(one: Course, other: Course) -> bool:
    """Whether the second does the steps of the first once more, and not because that one had died before."""
    shared = one.steps.keys() & other.steps.keys()
    if len(shared) < max(FEWEST_SHARED, min(len(one.steps), len(other.steps)) / 2):
        return False
    if not (one.is_timed and other.is_timed):
        return True
    earlier, later = sorted((one, other), key=lambda course: min(course.steps.values()))
    follows = max(earlier.steps.values()) < min(later.steps.values())
    return not follows or earlier.completed


def _in_lockstep(one: Course, other: Course) -> bool:
    """Whether two logs end the same steps at the same time, to half a step or the second that a log may round to."""
    times = sorted(one.steps.values())
    usual = (times[-1] - times[0]) / max(len(times) - 1, 1)
    apart = [abs(other.steps[step] - one.steps[step]) for step in one.steps.keys() & other.steps.keys()]
    return max(apart) <= max(1.0, LOCKSTEP * usual)
