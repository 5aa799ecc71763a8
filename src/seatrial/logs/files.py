"""The log files of one run, one per node or rank or attempt, as one record."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

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
from seatrial.logs.file_names import (
    all_named,
    host_of_kernel_log,
    numberless,
    processes_of,
    rank_of,
    ranks_of,
    streamless,
)
from seatrial.logs.lines import is_read_once, read_lines
from seatrial.logs.one_file import Spellings, read_file, source_name
from seatrial.parallel import map_files
from seatrial.recording import Recording, Steps, merge

MOST_NAMED = 5  # of several runs
SEVERAL_RUNS = "several-runs"  # the code of the error
FEWEST_LOSSES, SAME_LOSS = 3, 1e-4  # steps whose losses are compared; what counts as the same, relative
BEGUN_TOGETHER = 5.0  # seconds within which all ranks of a run say that it begins
EMPTY, NO_STEPS = "empty", "no steps"  # what is wrong with a log, as `RunStarted.facts` say


@dataclass(frozen=True, kw_only=True)
class _Log:
    """The content of one file: the events, and between which steps and times they lie.

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
        return bool((self.events.times >= FIRST_CLOCK).any())


def read_files(paths: Sequence[Path], spellings: Spellings) -> Recording:
    """The events of all files, by time. Raises OSError, and InputError for logs of several runs.

    Lines that name a rank are that rank's; the others belong to the process that the file's name says, or else to the
    file's place. Files that follow on each other, in their times or in their steps, are attempts of one process.
    """
    written = last_written(paths) if paths else 0.0

    def read(how: Spellings) -> list[_Log]:
        work = partial(_read, how=replace(how, in_columns=True), written=written, several=len(paths) > 1)
        return map_files(work, list(zip(paths, processes_of(paths), ranks_of(paths), strict=True)), paths)

    # Beside a log that is known, the words of others are no steps, even if they could be.
    is_doubtful = len(paths) > 1 and spellings.guessed and not spellings.confirmed
    logs = read(replace(spellings, guessed=False) if is_doubtful else spellings)
    if is_doubtful and not any(log.steps for log in logs) and not any(map(is_read_once, paths)):
        logs = read(spellings)
    reporting = [log for log in logs if log.steps]
    following, named = _in_succession(reporting), all_named(paths) is not None
    _refuse_several(following or reporting, in_succession=bool(following), named=named)
    if following and not named:
        return merge([_as_one(following), *(log.events for log in logs if not log.steps)])
    logs = _on_one_clock(logs)
    return merge([*(log.events for log in logs), _without_steps(logs)])


def starts_of(events: Recording) -> list[RunStarted]:
    """The beginnings of the attempts of a run, of each of its processes."""
    return [event for event in events.others if isinstance(event, RunStarted)]


def is_completed(events: Recording) -> bool:
    """True if a run ended in order."""
    ends = [event for event in events.others if isinstance(event, RunEnded)]
    return bool(ends) and ends[-1].reason in IN_ORDER


def losses_of(events: Recording) -> dict[int, float]:
    """The losses by step, those that are no numbers included."""
    steps = events.all_steps
    known = steps.some(np.flatnonzero(steps.has("loss")))
    return dict(zip(known.numbers, known.values("loss").tolist(), strict=True))


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
    times = None if log.times is None else (shift.apply(log.times[0]), shift.apply(log.times[1]))
    return replace(log, events=moved(log.events, shift), times=times)


def _of_name(path: Path, rank: int | None, events: Recording) -> Recording:
    """The events, with the rank or the host that the file is named after in those faults that name no place."""
    host = host_of_kernel_log(path)
    return events.changed(lambda _, event: _placed(event, rank, host) if isinstance(event, Fault) else event)


def _placed(fault: Fault, rank: int | None, host: str) -> Fault:
    """A fault by the name of its file; a rank is the reporter of what happened to others."""
    if host and not fault.where:
        fault = replace(fault, where=host, facts={**fault.facts, "host": host})
    if rank is not None and KINDS[fault.fault].of_others:
        return replace(fault, facts={"reporter": rank, **fault.facts})
    if rank is not None and not fault.where and "rank" not in fault.facts:
        return replace(fault, where=f"rank {rank}", facts={**fault.facts, "rank": rank})
    return fault


def _read(path: Path, process: int, rank: int | None, how: Spellings, written: float, several: bool) -> _Log:
    events = _of_name(path, rank, Recording.of(read_file(path, how, process=process, written=written)))
    timed = any(started.facts.get("clock") == "log" for started in starts_of(events))
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
    examples = {numberless(log.path): log for log in logs if log.steps}
    by_process: dict[str, list[_Log]] = {}
    for log in logs:
        by_process.setdefault(streamless(log.path), []).append(log)
    ranks = [own for own in by_process.values() if any(numberless(log.path) in examples for log in own)]
    silent = [own for own in ranks if not any(log.steps for log in own)]
    empty = [own for own in silent if all(map(_is_empty, own))]
    num_reporting = len(ranks) - len(silent)
    if num_reporting < 2 or num_reporting <= len(silent):
        silent = empty if 2 * len(empty) <= len(ranks) else []
    return [_began_in_vain(own, examples, EMPTY if own in empty else NO_STEPS) for own in silent]


def _began_in_vain(own: Sequence[_Log], examples: Mapping[str, _Log], what: str) -> RunStarted:
    """The beginning of a process that its logs say nothing of, as that of one whose log is named alike."""
    log = next(log for log in own if numberless(log.path) in examples)
    like = starts_of(examples[numberless(log.path)].events)[0]
    facts = {"family": like.facts["family"], "source": source_name(log.path), "clock": like.facts["clock"], "log": what}
    return RunStarted(process=log.process, wall_time=like.wall_time, monotonic_time=like.wall_time, facts=facts)


def _is_empty(log: _Log) -> bool:
    return not log.events and not is_read_once(log.path) and not any(line.strip() for line in read_lines(log.path))


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


def _refuse_several(logs: Sequence[_Log], *, in_succession: bool, named: bool) -> None:
    """Raises InputError for logs that cannot be of one run; ranks are as large as each other, and see the same loss.

    Where all are `named` as processes of one run, only what they say of its size counts: `node2.log` may as well be the
    log of a run on two nodes.
    """
    differing = _of_several(logs, in_succession=in_succession, named=named)
    if not differing:
        return
    together = len({log.path.parent for log in logs}) == 1
    told = [f"{log.path.name if together else log.path} ({what})" for log, what in zip(logs, differing, strict=True)]
    more = f" and {len(logs) - MOST_NAMED} more" if len(logs) > MOST_NAMED else ""
    raise InputError.single(
        SEVERAL_RUNS,
        str(logs[0].path.parent),
        f"these are logs of several runs, not of one: {', '.join(told[:MOST_NAMED])}{more}",
        f"judge each by itself: `seatrial judge {logs[0].path}`"
        + ("" if named else "; ranks of one run say so in their names: rank0.log, …"),
    )


def _of_several(logs: Sequence[_Log], *, in_succession: bool, named: bool) -> list[str]:
    """The evidence in each of these logs that they are of several runs; empty where they can be of one."""
    restarts = [in_succession and _starts_over(a, b) for a, b in pairwise(logs)]
    grows = all(a.steps and b.steps and b.steps > a.steps for a, b in pairwise(logs))
    resumed = in_succession and grows and not any(restarts)
    if not resumed and any(_sizes_differ(logs, name) for name in _SIZES):
        return [_first_size(log) for log in logs]
    if named:
        return []
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
    said = [started.facts.get("run_start_seconds") for started in starts_of(log.events)]
    return next((float(when) for when in reversed(said) if isinstance(when, (int, float))), None)


def _ranks_clash(logs: Sequence[_Log]) -> bool:
    """True if two logs are named after the same rank, and agree on no loss."""
    first: dict[int | None, _Log] = {}
    return any(
        _losses_differ(first.setdefault(rank, log), log) for log in logs if (rank := rank_of(log.path)) is not None
    )


def _starts_over(log: _Log, after: _Log) -> bool:
    """True if a log does steps again that the one before it had done, and completed."""
    does_again = log.steps is not None and after.steps is not None and after.steps[0] <= log.steps[1]
    return does_again and is_completed(log.events)


_SIZES = ("devices", "tokens per step")


def _sizes(log: _Log) -> list[dict[str, int]]:
    """The sizes that a log names, of each attempt."""
    found = [(started.num_devices, started.tokens_per_step) for started in starts_of(log.events)]
    return [{name: value for name, value in zip(_SIZES, sizes, strict=True) if value} for sizes in found]


def _first_size(log: _Log) -> str:
    size = next(iter(_sizes(log)), {})
    return ", ".join(f"{value:,} {name}" for name, value in size.items()) or "of unknown size"


def _sizes_differ(logs: Sequence[_Log], name: str) -> bool:
    """True if logs name several sizes, and none of them all, as one would of a run that went on at another size."""
    named = [{size[name] for size in _sizes(log) if name in size} for log in logs]
    return max(map(len, named), default=0) < len(set().union(*named))


def _losses(log: _Log) -> dict[int, float]:
    return {step: loss for step, loss in losses_of(log.events).items() if math.isfinite(loss)}


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
