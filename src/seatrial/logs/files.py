"""The log files of one run, one per node or rank or attempt, as one record."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, pairwise
from pathlib import Path

from seatrial.errors import InputError
from seatrial.events import FIRST_CLOCK, IN_ORDER, Event, Fault, RunEnded, RunStarted
from seatrial.logs.alignment import (
    Shift,
    after_steps,
    begun_at,
    clock_of,
    clocked,
    head_of,
    marked,
    moved,
    shifts,
    zone_apart,
    zone_of,
)  # fmt: skip
from seatrial.logs.clock import last_written
from seatrial.logs.fault_table import KINDS
from seatrial.logs.lines import read_lines
from seatrial.logs.one_file import Spellings, named, read_file
from seatrial.parallel import map_files
from seatrial.recording import Recording, Steps, merge

# Which process wrote a file, by its name or its folder's; the first that fits.
RANK_NAMES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"global_?rank[-_.]?(\d+)",
        r"(?<![a-z])(?:rank|proc(?:ess)?|worker|task|trainer)[-_.]?(\d+)",
        r"(?:^|/)(\d+)/std(?:out|err)[^/]*$",  # torchrun's folders
        r"(?<![a-z])(?:node|host)[-_.]?(?:rank[-_.]?)?(\d+)",
    )
)
# The host whose kernel a file is of, by its name: dmesg-node7.log, node7.kern.log.
_KERNEL_LOG = re.compile(
    r"^(?:dmesg|kern(?:el)?|syslog)[-_.](?P<host>[a-z][\w-]*?)(?:\.(?:log|txt|out))*$"
    r"|^(?P<host2>[a-z][\w-]*?)[-_.](?:dmesg|kern(?:el)?|syslog)(?:\.(?:log|txt|out))*$",
    re.IGNORECASE,
)
MOST_NAMED = 5  # of several runs
SEVERAL_RUNS = "several-runs"  # the code of the error
FEWEST_LOSSES, SAME_LOSS = 3, 1e-4  # steps whose losses are compared; what counts as the same, relative
BEGUN_TOGETHER = 5.0  # seconds within which all ranks of a run say that it begins
# What tells the two streams of one process apart: torchrun's 0/stdout.log and 0/stderr.log, Slurm's 3.out and 3.err.
STREAM = re.compile(r"[-_.]?std(?:out|err)(?![a-z])|\.(?:log|out|err|txt)(?=\.|$)", re.IGNORECASE)
EMPTY, NO_STEPS = "empty", "no steps"  # what is wrong with a log, as `RunStarted.facts` say


@dataclass(frozen=True, kw_only=True)
class _Log:
    """What one file holds: the events, and between which steps and times they lie.

    `zone` is by how much its times are ahead of UTC, and `begun` its first one, as its head says itself.
    """

    path: Path
    events: Recording
    process: int
    steps: tuple[int, int] | None
    times: tuple[float, float] | None  # None: the log tells no times
    zone: float
    begun: float | None

    @property
    def is_timed(self) -> bool:
        """True if its events are by a clock, and not by seconds that were added up, or by none."""
        times = (own.values("wall_time") for own in self.events.steps.values())
        by_others = any(event.wall_time >= FIRST_CLOCK for event in self.events.others)
        return by_others or any((own >= FIRST_CLOCK).any() for own in times)


def read_files(paths: Sequence[Path], spellings: Spellings) -> Recording:
    """The events of all files, by time. Raises OSError, and InputError for logs of several runs.

    Lines that name a rank are that rank's; the others belong to the process that the file's name says, or else to the
    file's place. Files that follow on each other, in their times or in their steps, are attempts of one process.
    """
    numbers = _processes(paths)
    by_name = _ranks(paths)
    written = last_written(paths) if paths else 0.0

    def read(how: Spellings) -> list[_Log]:
        work = partial(_read, how=replace(how, in_columns=True), written=written, several=len(paths) > 1)
        return map_files(work, list(zip(paths, numbers, by_name, strict=True)), paths)

    # Beside a log that is known, the words of others are no steps, even if they could be.
    is_doubtful = len(paths) > 1 and spellings.guessed and not spellings.confirmed
    logs = read(replace(spellings, guessed=False) if is_doubtful else spellings)
    if is_doubtful and not any(log.steps for log in logs) and "-" not in map(str, paths):
        logs = read(spellings)
    following = [] if _named(paths) else _in_succession([log for log in logs if log.steps])
    if not _named(paths):
        _refuse_several(following or [log for log in logs if log.steps], in_succession=bool(following))
    if not following:
        logs = _on_one_clock(logs)
        return merge([*(log.events for log in logs), _without_steps(logs)])
    others = [log for log in logs if not any(log is other for other in following)]
    return merge([_as_one(following), *(log.events for log in others)])


def _on_one_clock(logs: Sequence[_Log]) -> list[_Log]:
    """The logs of several processes by one clock; their faults say where it could not be found.

    Logs that share no step follow on each other, or only some report steps: their clocks are left as they are, but for
    zones. A log whose clock nothing is known of has an `order` of its own in the facts of its faults, and an "unknown"
    one where it tells no times.
    """
    if len(logs) < 2:
        return list(logs)
    logs = [replace(log, events=after_steps(log.events)) for log in logs]
    logs = [_moved(log, Shift(log.zone)) if log.is_timed else log for log in logs]
    steps: dict[int, list[Steps]] = {}
    for log in logs:
        if log.steps:
            steps.setdefault(log.process, []).append(log.events.all_steps)
    known = shifts({process: clock_of(own) for process, own in steps.items()})
    references = [log.begun for log in logs if log.process in known or (log.steps and len(steps) == 1)]
    return [_by_clock(log, known, references) for log in logs]


def _by_clock(log: _Log, known: Mapping[int, Shift], references: Sequence[float | None]) -> _Log:
    if log.process in known:
        on_their_clock = _moved(log, known[log.process])
        return replace(on_their_clock, events=clocked(on_their_clock.events)) if log.steps else on_their_clock
    if log.steps or not any(isinstance(event, Fault) for event in log.events.others):
        return log
    if not log.is_timed:
        return replace(log, events=marked(log.events, "unknown"))
    shift = Shift(zone_apart(log.begun, references) or 0.0)
    return replace(log, events=marked(moved(log.events, shift), "own"))


def _moved(log: _Log, shift: Shift) -> _Log:
    if shift == Shift():
        return log
    times = None if log.times is None else (shift.apply(log.times[0]), shift.apply(log.times[1]))
    return replace(log, events=moved(log.events, shift), times=times)


def _named(paths: Sequence[Path]) -> list[int] | None:
    """The process of each file by its name; None unless every name says so, and each something else.

    Only the two streams of a process may have one number.
    """
    found = {_place(path): _rank(path) for path in paths}
    if None in found.values() or len(set(found.values())) < len(found):
        return None
    return [number for path in paths if (number := found[_place(path)]) is not None]


def _place(path: Path) -> str:
    """The name and folders of a file, but for which of the streams of its process it holds."""
    return STREAM.sub("", "/".join(path.parts))


def _rank(
    path: Path, names: Sequence[re.Pattern[str]] = RANK_NAMES, of_all: Collection[str] = frozenset()
) -> int | None:
    """The process of a file by its name, or by that of a folder that is not one of all files."""
    text = "/".join(part for part in path.parts[-3:] if part not in of_all)
    return next((int(match[1]) for pattern in names if (match := pattern.search(text))), None)


def _of_name(path: Path, rank: int | None, events: Recording) -> Recording:
    """The events, with the rank or the host that the file is named after in those faults that name no place."""
    found = _KERNEL_LOG.match(path.name)
    host = (found["host"] or found["host2"]) if found else ""
    others = [_placed(event, rank, host) if isinstance(event, Fault) else event for event in events.others]
    return Recording(others, events.places, events.steps)


def _placed(fault: Fault, rank: int | None, host: str) -> Fault:
    """A fault by the name of its file; a rank is the reporter of what happened to others."""
    if host and not fault.where:
        fault = replace(fault, where=host, facts={**fault.facts, "host": host})
    if rank is not None and KINDS[fault.fault].of_others:
        return replace(fault, facts={"reporter": rank, **fault.facts})
    if rank is not None and not fault.where and "rank" not in fault.facts:
        return replace(fault, where=f"rank {rank}", facts={**fault.facts, "rank": rank})
    return fault


def _ranks(paths: Sequence[Path]) -> list[int | None]:
    """The rank of each file by its name, where no two processes have the same; a launcher's log among them has none."""
    shared = set.intersection(*(set(path.parts[:-1]) for path in paths)) if paths else set()
    ranks = {_place(path): _rank(path, RANK_NAMES[:-1], of_all=shared) for path in paths}
    known = [rank for rank in ranks.values() if rank is not None]
    distinct = len(set(known)) == len(known)
    return [ranks[_place(path)] if distinct else None for path in paths]


def _processes(paths: Sequence[Path]) -> list[int]:
    """A number for each file: its process by its name, if all of them or at least some say a rank; else its place."""
    if len(paths) > 1 and (named := _named(paths)):
        return named
    ranks = _ranks(paths)
    if all(rank is None for rank in ranks):
        return list(range(len(paths)))
    others = count(max(rank for rank in ranks if rank is not None) + 1)
    return [next(others) if rank is None else rank for rank in ranks]


def _read(path: Path, process: int, rank: int | None, how: Spellings, written: float, several: bool) -> _Log:
    events = _of_name(path, rank, Recording.of(read_file(path, how, process=process, written=written)))
    starts = (event for event in events.others if isinstance(event, RunStarted))
    timed = any(event.facts.get("clock") == "log" for event in starts)
    found = events.all_steps
    numbers, times = found.number_column, found.values("wall_time")
    head = head_of(path) if several else ()
    return _Log(
        path=path,
        events=events,
        process=process,
        steps=(int(numbers.min()), int(numbers.max())) if found else None,
        times=(float(times[0]), float(times[-1])) if found and timed else None,
        zone=zone_of(head),
        begun=begun_at(head),
    )


def _without_steps(logs: Sequence[_Log]) -> list[RunStarted]:
    """The beginnings of the processes that should have reported steps, by their logs, and have not.

    A log is one of these if it is named like one that has steps, but for the numbers, and its process has none in the
    other stream either. Where most are empty, or few report steps, the program prints on these few only.
    """
    examples = {_numberless(log.path): log for log in logs if log.steps}
    by_process: dict[str, list[_Log]] = {}
    for log in logs:
        by_process.setdefault(_place(log.path), []).append(log)
    ranks = [own for own in by_process.values() if any(_numberless(log.path) in examples for log in own)]
    silent = [own for own in ranks if not any(log.steps for log in own)]
    empty = [own for own in silent if all(map(_is_empty, own))]
    num_reporting = len(ranks) - len(silent)
    if num_reporting < 2 or num_reporting <= len(silent):
        silent = empty if 2 * len(empty) <= len(ranks) else []
    return [_began_in_vain(own, examples, EMPTY if own in empty else NO_STEPS) for own in silent]


def _began_in_vain(own: Sequence[_Log], examples: Mapping[str, _Log], what: str) -> RunStarted:
    """The beginning of a process that its logs say nothing of, as that of one whose log is named alike."""
    log = next(log for log in own if _numberless(log.path) in examples)
    like = next(e for e in examples[_numberless(log.path)].events.others if isinstance(e, RunStarted))
    facts = {"family": like.facts["family"], "source": named(log.path), "clock": like.facts["clock"], "log": what}
    return RunStarted(process=log.process, wall_time=like.wall_time, monotonic_time=like.wall_time, facts=facts)


def _numberless(path: Path) -> str:
    return re.sub(r"\d+", "#", "/".join(path.parts[-3:]))


def _is_empty(log: _Log) -> bool:
    return not log.events and str(log.path) != "-" and not any(line.strip() for line in read_lines(log.path))


def _in_succession(logs: Sequence[_Log]) -> list[_Log]:
    """The logs in the order of their attempts, if that is what they are; else none."""
    if len(logs) < 2:
        return []
    stretches = [log.times for log in logs]
    if not all(stretches):  # by the steps: of two ranks that print, both print the same ones
        stretches = [log.steps for log in logs]
    ordered = sorted(zip(stretches, logs, strict=True), key=lambda pair: pair[0] or (0, 0))
    apart = all(
        b[0] > a[1] if log.times else b[0] > a[0] and b[1] > a[1] for (a, log), (b, _) in pairwise(ordered) if a and b
    )
    return [log for _, log in ordered] if apart else []


def _refuse_several(logs: Sequence[_Log], *, in_succession: bool) -> None:
    """Raises InputError for logs that cannot be of one run; ranks are as large as each other, and see the same loss."""
    differing = _of_several(logs, in_succession=in_succession)
    if not differing:
        return
    together = len({log.path.parent for log in logs}) == 1
    named = [f"{log.path.name if together else log.path} ({what})" for log, what in zip(logs, differing, strict=True)]
    more = f" and {len(logs) - MOST_NAMED} more" if len(logs) > MOST_NAMED else ""
    raise InputError.single(
        SEVERAL_RUNS,
        str(logs[0].path.parent),
        f"these are logs of several runs, not of one: {', '.join(named[:MOST_NAMED])}{more}",
        f"judge each by itself: `seatrial judge {logs[0].path}`; ranks of one run say so in their names: rank0.log, …",
    )


def _of_several(logs: Sequence[_Log], *, in_succession: bool) -> list[str]:
    """What each of these logs says that makes them several runs' logs; nothing where they can be of one."""
    restarts = [in_succession and _starts_over(a, b) for a, b in pairwise(logs)]
    grows = all(a.steps and b.steps and b.steps > a.steps for a, b in pairwise(logs))
    resumed = in_succession and grows and not any(restarts)
    sizes = [_size(log) for log in logs]
    if not resumed and any(len({size[name] for size in sizes if name in size}) > 1 for name in _SIZES):
        return [", ".join(f"{value:,} {name}" for name, value in size.items()) or "of unknown size" for size in sizes]
    if any(restarts):
        return ["the first", *("starts over after a completed one" if new else "goes on" for new in restarts)]
    begun = [when for log in logs if (when := _begun(log)) is not None]
    if not in_succession and len(begun) == len(logs) > 1 and max(begun) - min(begun) > BEGUN_TOGETHER:
        return [f"began {when - min(begun):,.6g} s after the first" for when in begun]
    strangers = len(logs) > 1 and all(_losses_differ(logs[0], log) for log in logs[1:])
    if not in_succession and (strangers or _ranks_clash(logs)):
        return [f"losses {' '.join(f'{loss:.4g}' for loss in list(_losses(log).values())[:3])} …" for log in logs]
    return []


def _begun(log: _Log) -> float | None:
    """When the training began, by the log's own word; one that was several times did so last."""
    said = [e.facts.get("run_start_seconds") for e in log.events if isinstance(e, RunStarted)]
    return next((float(when) for when in reversed(said) if isinstance(when, (int, float))), None)


def _ranks_clash(logs: Sequence[_Log]) -> bool:
    """True if two logs are named after the same rank, and agree on no loss."""
    first: dict[int | None, _Log] = {}
    return any(
        _losses_differ(first.setdefault(rank, log), log) for log in logs if (rank := _rank(log.path)) is not None
    )


def _starts_over(log: _Log, after: _Log) -> bool:
    """True if a log does steps again that the one before it had done, and completed."""
    return log.steps is not None and after.steps is not None and _completed(log) and after.steps[0] <= log.steps[1]


_SIZES = ("devices", "tokens per step")


def _size(log: _Log) -> dict[str, int]:
    started = next((event for event in log.events.others if isinstance(event, RunStarted)), None)
    found = (started.num_devices, started.tokens_per_step) if started else (None, None)
    return {name: value for name, value in zip(_SIZES, found, strict=True) if value}


def _completed(log: _Log) -> bool:
    ends = [event for event in log.events.others if isinstance(event, RunEnded)]
    return bool(ends) and ends[-1].reason in IN_ORDER


def _losses(log: _Log) -> dict[int, float]:
    steps = log.events.all_steps
    losses = zip(steps.numbers, steps.values("loss").tolist(), strict=True)
    return {step: loss for step, loss in losses if math.isfinite(loss)}


def _losses_differ(log: _Log, other: _Log) -> bool:
    """True if two logs agree on no loss of those steps that both have."""
    here, there = _losses(log), _losses(other)
    common = here.keys() & there.keys()
    return len(common) >= FEWEST_LOSSES and not any(
        math.isclose(here[step], there[step], rel_tol=SAME_LOSS) for step in common
    )


def _as_one(logs: Sequence[_Log]) -> Iterator[Event]:
    """The logs one after the other, all of the first one's process, on one clock."""
    own = set(logs[0].events.by_process())
    offset = latest = 0.0
    attempt = 0
    for log in logs:
        if log.times is None:
            offset = latest
        for event in log.events:
            process = event.process if event.process in own and len(own) > 1 else min(own)
            wall = event.wall_time + offset
            latest = max(latest, wall)
            moved = replace(event, process=process, wall_time=wall, monotonic_time=wall)
            if isinstance(moved, RunStarted):
                attempt += 1
                moved = replace(moved, attempt=attempt)
            yield moved
