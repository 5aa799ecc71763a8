"""The runs of which a folder holds the logs: told apart by their jobs, and by what the logs of one run share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise, takewhile
from pathlib import Path

from seatrial.errors import InputError, reason_of, some
from seatrial.events import FIRST_CLOCK, Event
from seatrial.logs.file_names import RANK_NAMES, end_of, rank_of
from seatrial.logs.files import MOST_NAMED, SEVERAL_RUNS, losses_of, read_files, starts_of
from seatrial.logs.folders import FolderFiles, is_metrics
from seatrial.logs.lines import read_blocks
from seatrial.logs.one_file import Spellings, is_of_steps, source_name
from seatrial.logs.repeats import Course, Group, alike, course_of, groups_of, told_apart
from seatrial.recording import Recording, merge

# The job that wrote a file, by its name or its folder's: Slurm's default, names that say so, and bare numbers.
_JOBS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (r"(?<![a-z])(?:slurm|job(?:[-_.]?id)?)[-_.]?(\d+)", r"(?<![\dA-Za-z.])(\d{5,})(?![\dA-Za-z])")
)
STAMPS_APART = 60  # seconds between the names that the ranks of one run give their logs
# What a process printed, as W&B keeps it: wandb/run-20260301_101010-4zq1x7bn/files/output.log.
_OUTPUT_KEPT = re.compile(r"(?:^|/)(?:offline-)?run-[^/]+/files/output\.log$")
_METRICS, _COPY = "metrics", "W&B's copy of the output"
MOST_TRIED = 8  # logs of a group, to find one that reports steps


@dataclass(frozen=True, kw_only=True)
class RunOfLogs:
    """The logs of one run, by `name` in the folder, and their events; of several attempts, all of them."""

    name: str
    paths: tuple[Path, ...]
    events: Recording


@dataclass(frozen=True, kw_only=True)
class FolderOfLogs:
    """The runs of a folder. Each file that is read for none of them has its reason: `passed_over`, or `unread` where it
    could not be. `told_apart` are sentences on how runs were.
    """

    runs: tuple[RunOfLogs, ...]
    passed_over: Mapping[Path, str]
    unread: Mapping[Path, str]
    told_apart: tuple[str, ...]


def runs_of(found: FolderFiles, spellings: Spellings, folder: Path) -> FolderOfLogs:
    """The runs that wrote these files of a folder. Raises InputError for a pattern that takes too long."""
    reader = _FolderReader(replace(spellings, earlier=found.earlier), folder)
    copies = reader.copies_of_output(found.logs)
    copied = {path for copy in copies for path in copy.paths}
    runs = reader.of_logs([path for path in found.logs if path not in copied])
    if copies and not any(run.events.steps for run in runs):  # they are all that there is of the output
        copies, runs = [], reader.of_logs(found.logs)
    runs = reader.with_metrics(runs, [*copies, *reader.of_metrics(found.metrics)])
    return FolderOfLogs(
        runs=tuple(runs),
        passed_over={**found.passed_over, **reader.passed_over},
        unread={**found.unread, **reader.unread},
        told_apart=tuple(reader.told_apart),
    )


class _FolderReader:
    """Reads the runs of a folder, and keeps what there is to say of files and runs."""

    def __init__(self, spellings: Spellings, folder: Path) -> None:
        self._spellings = spellings
        self._folder = folder
        self.passed_over: dict[Path, str] = {}
        self.unread: dict[Path, str] = {}
        self.told_apart: list[str] = []

    def run(self, paths: Sequence[Path]) -> RunOfLogs:
        events = read_files(paths, self._spellings)
        pieces = [piece for path in paths for piece in (*self._spellings.earlier.get(path, ()), path)]
        return RunOfLogs(name=_name(paths, self._folder), paths=tuple(pieces), events=events)

    def of_logs(self, paths: Sequence[Path]) -> list[RunOfLogs]:
        """The runs of the logs of a folder."""
        jobs = _jobs_of(paths)
        several = len({*jobs.values()} - {""}) > 1
        parts = _split(paths, jobs.__getitem__) if several else [list(paths)] if paths else []
        chains = _chains([run for part in parts for run in self.of_job(part)])
        joined = [chain[0] if len(chain) == 1 else self.run([p for r in chain for p in r.paths]) for chain in chains]
        return [run for each in joined for run in self.with_unknown(each)]

    def copies_of_output(self, paths: Sequence[Path]) -> list[RunOfLogs]:
        """The runs of those logs in which W&B keeps what a process printed, where they have losses."""
        copies = []
        for path in paths:
            if _OUTPUT_KEPT.search(path.as_posix()):
                with suppress(OSError):  # which is said where it is read as a log
                    copies.append(self.run([path]))
        return [copy for copy in copies if losses_of(copy.events)]

    def of_job(self, paths: Sequence[Path]) -> Iterator[RunOfLogs]:
        """The runs of which these may be the logs; those that cannot be read are left out, and kept as `unread`."""
        try:
            yield from self._of_job(paths)
        except OSError:
            broken = {path: why for path in paths if (why := _why_unreadable(path, self._spellings))}
            if not broken:
                raise
            for path, why in broken.items():
                self.unread |= dict.fromkeys((path, *self._spellings.earlier.get(path, ())), why)
            if rest := [path for path in paths if path not in broken]:
                yield from self.of_job(rest)

    def _of_job(self, paths: Sequence[Path]) -> list[RunOfLogs]:
        """As one run if they can be, else split. Raises OSError."""
        repeats = self._repeats(paths)
        if repeats:
            return [run for part in repeats for run in self._of_job(part)]
        try:
            return [self.run(paths)]
        except InputError as error:
            if error.problems[0].code != SEVERAL_RUNS:
                raise
        for split in _SPLITS:
            parts = split(paths, self._spellings)
            if len(parts) > 1:
                return [run for part in parts for run in self._of_job(part)]
        return []

    def _repeats(self, paths: Sequence[Path]) -> list[list[Path]]:
        """The logs by the repeats of a run that they are of; nothing where they are of one, or where others decide."""
        groups = groups_of(paths, self._folder)
        if len(groups) < 2:
            return []
        runs, why = told_apart(groups, [self._course(group) for group in groups])
        if len(runs) < 2:
            return []
        names = some([str(run[0].paths[0].relative_to(self._folder)) for run in runs], MOST_NAMED)
        self.told_apart.append(f"{names} are of {len(runs)} runs: {why}")
        return [[path for group in run for path in group.paths] for run in runs]

    def _course(self, group: Group) -> Course:
        """That of the first log that reports steps."""
        course = course_of(Recording.of(()))
        for path in group.paths[:MOST_TRIED]:
            course = course_of(read_files([path], replace(self._spellings, guessed=False)))
            if course.steps:
                break
        return course

    def with_unknown(self, run: RunOfLogs) -> Iterator[RunOfLogs]:
        """The run, and those of a trainer that nobody knows whose logs lie among its own: their spelling is guessed."""
        unknown = list(self._unknown(run)) if run.events.steps and self._spellings.guessed else []
        others = {path for each in unknown for path in each.paths}
        yield replace(run, paths=tuple(path for path in run.paths if path not in others))
        yield from unknown

    def _unknown(self, run: RunOfLogs) -> Iterator[RunOfLogs]:
        sources = {started.facts.get("source") for started in starts_of(run.events)}
        pieces = {piece for earlier in self._spellings.earlier.values() for piece in earlier}
        for path in run.paths:
            if source_name(path) in sources or path in pieces or rank_of(path) is not None:
                continue
            alone = self.run([path])
            if alone.events.steps:
                if alike(losses_of(alone.events), losses_of(run.events)):
                    self.passed_over[path] = f"its steps are those of {run.name}, by a guess"
                else:
                    yield alone

    def with_metrics(self, runs: Sequence[RunOfLogs], more: Sequence[RunOfLogs]) -> list[RunOfLogs]:
        """The runs, with those of which there are metrics files, or copies of the output, alone.

        A run's own log counts before these.
        """
        found = [(run, losses_of(run.events)) for run in more]
        found.sort(key=lambda each: -len(each[1]))  # the first of several about one run has the most steps
        counted = [(run, losses_of(run.events)) for run in runs]
        for metrics, losses in found:
            path = metrics.paths[0]
            same = next((n for n, (_, others) in enumerate(counted) if alike(losses, others)), None)
            near = [n for n, (run, others) in enumerate(counted) if not others and _is_near(run, path)]
            if same is not None:
                name = counted[same][0].name
                what = f"the log of {name} counts, whose losses it has" if same < len(runs) else f"{name} has all of it"
                self.passed_over[path] = f"{_METRICS if is_metrics(path) else _COPY}: {what}"
            elif len(near) == 1:
                run = _with_steps(counted[near[0]][0], metrics)
                counted[near[0]] = run, losses
                inside = path.relative_to(self._folder)
                self.told_apart.append(f"the steps of {run.name} are those of {inside}: its log has none")
            else:
                counted.append((metrics, losses))
        return [run for run, _ in counted]

    def of_metrics(self, paths: Sequence[Path]) -> list[RunOfLogs]:
        """The runs of metrics files; those that have no steps, or cannot be read, are kept with the reason."""
        return [run for path in paths if (run := self._of_metrics(path))]

    def _of_metrics(self, path: Path) -> RunOfLogs | None:
        """The run of one metrics file, if it has steps."""
        try:
            run = self.run([path]) if is_of_steps(path) else None
        except OSError as error:
            self.unread[path] = reason_of(error)
            return None
        if run is None or not run.events.steps:
            self.passed_over[path] = "no metrics of steps in it"
            return None
        return run


def _why_unreadable(path: Path, spellings: Spellings) -> str:
    """The reason why a log, or a piece of it if it was rotated, cannot be read; "" if it can be."""
    pieces = (*spellings.earlier.get(path, ()), path)
    for piece in pieces:
        try:
            for _ in read_blocks(piece):
                pass
        except OSError as error:
            return f"{reason_of(error)} in {piece.name}" if len(pieces) > 1 else reason_of(error)
    return ""


def _with_steps(run: RunOfLogs, metrics: RunOfLogs) -> RunOfLogs:
    """A run whose log has no steps, with those of its metrics; those that have no time come before all of the log."""
    first = _first_time(run)
    steps: Sequence[Event] = metrics.events
    if first >= FIRST_CLOCK > _first_time(metrics):
        steps = [replace(event, wall_time=first, monotonic_time=first) for event in metrics.events]
    return replace(run, paths=(*run.paths, *metrics.paths), events=merge([steps, run.events]))


def _is_near(run: RunOfLogs, path: Path) -> bool:
    """True if a metrics file lies in the folder of a run's log, or below."""
    return any(path.is_relative_to(log.parent) for log in run.paths)


def _name(paths: Sequence[Path], folder: Path) -> str:
    """The name of a run by its files' paths from the folder: that of the only file, or how their paths begin."""
    names = [str(path.relative_to(folder)) for path in paths]
    if len(names) == 1:
        above, _, name = names[0].rpartition("/")
        return f"{above}/{name.partition('.')[0] or name}".lstrip("/")
    shared = "".join(letters[0] for letters in takewhile(lambda each: len(set(each)) == 1, zip(*names, strict=False)))
    inside = shared.rpartition("/")[0] or shared.rstrip("-_.0123456789") or shared.rstrip("-_.")
    return inside or folder.resolve().name


# --- what tells runs apart, where their logs are not those of one ---


def _split(paths: Sequence[Path], key: Callable[[Path], object]) -> list[list[Path]]:
    parts: dict[object, list[Path]] = {}
    for path in paths:
        parts.setdefault(key(path), []).append(path)
    return list(parts.values())


def _job(path: Path) -> str:
    """The job's number, by the name or the folders next to it; "" where there is none."""
    return next((match[1] for pattern in _JOBS if (match := pattern.search(end_of(path)))), "")


def _jobs_of(paths: Sequence[Path]) -> dict[Path, str]:
    """The job of each file. Ranks that each put the time into the name of their own log are of one job."""
    jobs = {path: _job(path) for path in paths}
    ranks: dict[str, set[int | None]] = {}
    for path, job in jobs.items():
        ranks.setdefault(job, set()).add(rank_of(path))
    begun = sorted((time, job) for job in ranks if (time := _time_of(job)) is not None)
    shared: dict[str, str] = {}
    for (time, job), (later, other) in pairwise(begun):
        first = shared.get(job, job)
        if later - time <= STAMPS_APART and None not in ranks[first] | ranks[other] and not ranks[first] & ranks[other]:
            shared[other] = first
            ranks[first] |= ranks[other]
    return {path: shared.get(job, job) for path, job in jobs.items()}


def _time_of(job: str) -> float | None:
    """The time that a number in a name is, to the second: 20260301101010, 1772359810; None where it is none."""
    if len(job) == 10 and job.startswith("1"):
        return float(job)
    try:
        return datetime.strptime(job, "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp() if len(job) == 14 else None
    except ValueError:
        return None


def _by_folder(paths: Sequence[Path], _: Spellings) -> list[list[Path]]:
    depth = len(Path(os.path.commonpath([path.parent for path in paths])).parts)
    return _split(paths, lambda path: path.parent.parts[depth : depth + 1])


def _by_size(paths: Sequence[Path], spellings: Spellings) -> list[list[Path]]:
    """By the number of devices that each log names."""

    def devices(path: Path) -> int | None:
        return next((started.num_devices for started in starts_of(read_files([path], spellings))), None)

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
    """The facts that tell whether a run continues one of another job; `jobs` has "" where a file names none."""

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
        numbers, times = run.events.all_steps.number_column, run.events.times
        started = starts_of(run.events)
        if not len(numbers):
            return None
        return cls(
            jobs=frozenset(map(_job, run.paths)),
            planned=frozenset(event.planned_steps for event in started),
            timed=all(event.facts.get("clock") == "log" for event in started),
            begun=float(times.min()),
            ended=float(times[-1]),
            first=int(numbers.min()),
            last=int(numbers.max()),
        )

    def goes_on_in(self, after: _Stretch) -> bool:
        """True if a run of another job takes up the steps where this one ended, and after it."""
        if not self.first < after.first <= self.last + 1 or after.last <= self.last or self.planned != after.planned:
            return False
        jobs = self.jobs | after.jobs
        if len(jobs) < 2 or "" in jobs:
            return False
        return not (self.timed and after.timed and self.ended > after.begun)


def _chains(runs: Sequence[RunOfLogs]) -> list[list[RunOfLogs]]:
    """The runs, and those together of which each continues the steps of the one before: attempts in several jobs."""
    if len(runs) < 2:
        return [[run] for run in runs]
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
