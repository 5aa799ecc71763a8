"""The runs of which a folder holds the logs: told apart by their jobs, and by what the logs of one run share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from seatrial.errors import InputError
from seatrial.events import RunStarted
from seatrial.logs.files import RANK_NAMES, SEVERAL_RUNS, read_files
from seatrial.logs.one_file import Spellings
from seatrial.recording import Recording

# The job that wrote a file, by its name or its folder's: Slurm's default, names that say so, and bare numbers.
_JOBS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (r"(?<![a-z])(?:slurm|job(?:[-_.]?id)?)[-_.]?(\d+)", r"(?<![\dA-Za-z.])(\d{5,})(?![\dA-Za-z])")
)


@dataclass(frozen=True, kw_only=True)
class RunOfLogs:
    """The logs of one run, by `name` in the folder, and their events; of several attempts, all of them."""

    name: str
    paths: tuple[Path, ...]
    events: Recording


def runs_of(paths: Sequence[Path], spellings: Spellings, folder: Path) -> Iterator[RunOfLogs]:
    """The runs that wrote these files of a folder, one after the other. Raises OSError."""
    several = len({_job(path) for path in paths} - {""}) > 1
    jobs = _split(paths, _job) if several else [list(paths)]
    read = [run for job in jobs for run in _of_job(job, spellings, folder)]
    for chain in _chains(read):
        if len(chain) == 1:
            yield chain[0]
        else:
            yield _run([path for run in chain for path in run.paths], spellings, folder)


def _of_job(paths: Sequence[Path], spellings: Spellings, folder: Path) -> Iterator[RunOfLogs]:
    try:
        yield _run(paths, spellings, folder)
        return
    except InputError as error:
        if error.problems[0].code != SEVERAL_RUNS:
            raise
    for split in _SPLITS:
        parts = split(paths, spellings)
        if len(parts) > 1:
            for part in parts:
                yield from _of_job(part, spellings, folder)
            return


def _run(paths: Sequence[Path], spellings: Spellings, folder: Path) -> RunOfLogs:
    return RunOfLogs(name=_name(paths, folder), paths=tuple(paths), events=read_files(paths, spellings))


def _name(paths: Sequence[Path], folder: Path) -> str:
    """What the files share, as seen from the folder: their one name, or how their paths begin."""
    names = [str(path.relative_to(folder)) for path in paths]
    if len(names) == 1:
        above, _, name = names[0].rpartition("/")
        return f"{above}/{name.partition('.')[0] or name}".lstrip("/")
    shared = "".join(letters[0] for letters in takewhile(lambda each: len(set(each)) == 1, zip(*names, strict=False)))
    inside = shared.rpartition("/")[0] or shared.rstrip("-_.0123456789") or shared
    return inside or folder.resolve().name


# --- what tells runs apart, where their logs are not those of one ---


def _split(paths: Sequence[Path], key: Callable[[Path], object]) -> list[list[Path]]:
    parts: dict[object, list[Path]] = {}
    for path in paths:
        parts.setdefault(key(path), []).append(path)
    return list(parts.values())


def _job(path: Path) -> str:
    """The job's number, by the name or the folders next to it; "" where there is none."""
    text = "/".join(path.parts[-3:])
    return next((match[1] for pattern in _JOBS if (match := pattern.search(text))), "")


def _by_folder(paths: Sequence[Path], _: Spellings) -> list[list[Path]]:
    depth = len(Path(os.path.commonpath([path.parent for path in paths])).parts)
    return _split(paths, lambda path: path.parent.parts[depth : depth + 1])


def _by_size(paths: Sequence[Path], spellings: Spellings) -> list[list[Path]]:
    """By the number of devices that each log names."""

    def devices(path: Path) -> int | None:
        found = (event.num_devices for event in read_files([path], spellings).others if isinstance(event, RunStarted))
        return next(found, None)

    return _split(paths, devices)


def _by_name(paths: Sequence[Path], _: Spellings) -> list[list[Path]]:
    """By the name without what says which rank wrote it."""

    def rankless(path: Path) -> str:
        return next((text for name in RANK_NAMES if (text := name.sub("", path.name)) != path.name), path.name)

    return _split(paths, rankless)


def _alone(paths: Sequence[Path], _: Spellings) -> list[list[Path]]:
    return [[path] for path in paths]


_SPLITS = (_by_folder, _by_size, _by_name, _alone)


# --- jobs that go on where another one ended ---


@dataclass(frozen=True, kw_only=True)
class _Stretch:
    """What tells whether a run goes on where one of another job ended; `jobs` has "" where a file names none."""

    jobs: frozenset[str]
    planned: frozenset[int | None]
    timed: bool
    begun: float
    ended: float
    first: int
    last: int

    @classmethod
    def of(cls, run: RunOfLogs) -> _Stretch | None:
        """That of a run; None without steps."""
        steps, times = run.events.all_steps.numbers, run.events.times
        started = [event for event in run.events.others if isinstance(event, RunStarted)]
        if not steps:
            return None
        return cls(
            jobs=frozenset(map(_job, run.paths)),
            planned=frozenset(event.planned_steps for event in started),
            timed=all(event.facts.get("clock") == "log" for event in started),
            begun=_first_time(run),
            ended=float(times[-1]),
            first=min(steps),
            last=max(steps),
        )

    def goes_on_in(self, after: _Stretch) -> bool:
        """Whether a run of another job takes up the steps where this one ended, and after it."""
        if not self.first < after.first <= self.last + 1 or after.last <= self.last or self.planned != after.planned:
            return False
        jobs = self.jobs | after.jobs
        if len(jobs) < 2 or "" in jobs:
            return False
        return not (self.timed and after.timed and self.ended > after.begun)


def _chains(runs: Sequence[RunOfLogs]) -> list[list[RunOfLogs]]:
    """The runs, and those together of which each continues the steps of the one before: attempts in several jobs."""
    stretches = [_Stretch.of(run) for run in runs]
    chains: list[list[int]] = []
    ends: list[_Stretch | None] = []  # of the chains
    for number in sorted(range(len(runs)), key=lambda n: _first_time(runs[n])):
        after = stretches[number]
        goes_on = (n for n, end in enumerate(ends) if end and after and end.goes_on_in(after))
        if (place := next(goes_on, None)) is None:
            chains.append([number])
            ends.append(after)
        else:
            chains[place].append(number)
            ends[place] = after
    return [[runs[number] for number in chain] for chain in sorted(chains)]


def _first_time(run: RunOfLogs) -> float:
    times = run.events.times
    return float(times.min()) if len(times) else 0.0
