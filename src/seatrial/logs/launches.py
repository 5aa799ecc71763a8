"""Several launches in one log, as `nohup … >> log` makes them: where the last one begins.

A line after a failure does not tell by itself whether it is of the next launch or of another rank or node of the same
one, which fails a little later. These do: what a job prints once, at its start; the entry of one rank of one host in
torchelastic's summaries, with another pid; and the program's source, which is the same for all of its processes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_KEPT = 4096  # places in the source, workers; of one log
FIRST = "first"  # nothing of a launch stands before it
ONCE = "once"  # other ranks may have said something before, or have failed
# What one process of a job prints.
_BANNERS = (
    (FIRST, re.compile(r"^nohup: ignoring input\b")),
    (FIRST, re.compile(r"\[runner\.py:\d+:main\] cmd = ")),  # deepspeed/launcher/runner.py, on the first node
    (ONCE, re.compile(r"^ ?using world size: \d+,")),  # megatron/training/arguments.py, rank 0
    (ONCE, re.compile(r"\btcp_utils\.cc:\d+\] The server starts to listen on ")),  # of Paddle's first rank
)
# Each process of Paddle says so of its device, with the number of its thread.
_DEVICE = re.compile(
    r"\b[IWE]\d\d(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)\.\d+ +(?P<thread>\d+) "
    r"\w+\.cc:\d+\] Please NOTE: device: (?P<device>\d+),"
)
WORDS = (
    "nohup: ignoring input", "runner.py::main] cmd", "world size:", "starts to listen", "please note: device",
    "failed (exitcode", "will restart worker group", "setting omp_num_threads",
)  # fmt: skip
# torchrun says that a worker failed, and where it does not start all of them again, that it failed itself.
_WORKER_FAILED = re.compile(r"\bfailed \(exitcode: -?\d+\) local_rank: |\bwill restart worker group\b")
_AGENT_STARTS = re.compile(r"(?:^|\] )Setting OMP_NUM_THREADS environment variable for each process\b")
STARTS_APART = 60  # seconds between two launches; processes on two hosts start together
_FRAME = re.compile(r' +File "(?P<file>[^"]+)", line (?P<line>\d{1,9})(?:, in (?P<function>\S+))?\s*$')
_OF_A_LIBRARY = re.compile(r"^<|[/\\](?:site-packages|dist-packages|bin|lib(?:64)?[/\\]python[\d.]*)[/\\]")
_CALL = re.compile(r"\s*[A-Za-z_][\w.]*\(.*\)\s*$")
_BROKEN = {"SyntaxError", "IndentationError", "TabError"}  # of a source that no process can run
_PID = re.compile(r"\(pid: (\d+)\)")

Worker = tuple[str, str]  # host and rank


@dataclass(slots=True)
class Frames:
    """The frames of a traceback, as far as they have come."""

    since: int  # the line that it begins with
    modules: dict[str, int] = field(default_factory=dict)  # by file of the program, the line that its own code is at
    last: str = ""  # the file of the last frame
    names_function: bool = True  # the last frame does; that of an error of syntax does not
    in_functions: bool = False  # one of the program's functions was called
    called: tuple[str, int] | None = None  # the outermost place in the program, whose text comes next


@dataclass(slots=True)
class _Call:
    """The lines at which one call of a program's own code has stood; at another line, the source was edited."""

    at: int
    before: set[int] = field(default_factory=set)
    until: int = 0

    def move(self, at: int, until: int) -> bool:
        """Takes where it stands now; True if that tells of another launch."""
        if at in self.before:
            self.until = -1  # two calls that read alike
        moved = at != self.at and self.until >= 0
        if moved:
            self.before.add(self.at)
            self.at, self.until = at, until
        return moved


@dataclass(slots=True)
class _Log:
    """The evidence of launches in one log, so far."""

    failed: int = 0  # the line of the last fatal fault
    begun: int = 0  # the line of the last launch that a banner begins
    until: int = 0  # the last line before the last launch
    restarts: bool = False  # torchrun may start its workers again, which belong to the same launch
    said: set[int] = field(default_factory=set)  # banners
    devices: dict[str, tuple[str, int]] = field(default_factory=dict)  # the thread and the time that named it last
    calls: dict[tuple[str, str], _Call] = field(default_factory=dict)
    reached: dict[str, int] = field(default_factory=dict)  # by file, the last line of its own code that was run
    broken: dict[str, int] = field(default_factory=dict)  # by file, the line beyond which none of it can be run
    workers: dict[Worker, tuple[str, int]] = field(default_factory=dict)  # the pid, and where its summary ended
    summary: dict[Worker, str] = field(default_factory=dict)  # the entries of the last one


class Launches:
    """Reads what tells launches apart in any number of logs, and where in each of them the last one begins."""

    def __init__(self) -> None:
        self._logs: dict[str, _Log] = {}
        self.count = 0  # of launches that were told from the one before

    @property
    def ends(self) -> Mapping[str, int]:
        """By log, the last line before its last launch; none of a log of one launch."""
        found = {
            source: max([log.until, *(call.until for call in log.calls.values())]) for source, log in self._logs.items()
        }
        return {source: until for source, until in found.items() if until > 0}

    def fail(self, source: str, line: int) -> None:
        """A fatal fault stands on this line."""
        self._log(source).failed = line

    def hear(self, source: str, text: str, line: int) -> None:
        """Takes a line with one of `WORDS`."""
        log = self._log(source)
        if device := _DEVICE.search(text):
            if _is_another(log, device) and log.failed > log.begun:
                self._begin(log, line)
            return
        if _WORKER_FAILED.search(text):
            log.restarts = True
        elif _AGENT_STARTS.search(text):
            log.restarts = False
        for number, (means, banner) in enumerate(_BANNERS):
            if banner.search(text):
                is_first = means == FIRST or (number in log.said and not log.restarts)
                log.restarts = False
                if log.failed > log.begun and is_first:
                    self._begin(log, line)
                log.said.add(number)

    def trace(self, source: str, frames: Frames, text: str) -> None:
        """Takes an indented line of a traceback."""
        found = _FRAME.match(text)
        log = self._log(source)
        if found is None:
            if frames.called and _CALL.match(text):
                file, at = frames.called
                key = file, text.strip()
                if key in log.calls:
                    self.count += log.calls[key].move(at, frames.since - 1)
                elif len(log.calls) < MAX_KEPT:
                    log.calls[key] = _Call(at)
            frames.called = None
            return
        file, at, function = found["file"], int(found["line"]), found["function"]
        frames.last, frames.names_function, frames.called = file, function is not None, None
        if _OF_A_LIBRARY.search(file) or function is None:
            return
        if function != "<module>":
            frames.in_functions = True
            return
        frames.called = None if frames.modules or frames.in_functions else (file, at)
        frames.modules[file] = at
        if at > log.broken.get(file, at):
            del log.broken[file]
            self._begin(log, frames.since)
        if len(log.reached) < MAX_KEPT:
            log.reached[file] = max(at, log.reached.get(file, 0))

    def raised(self, source: str, frames: Frames, name: str) -> None:
        """A traceback has come to the exception of this name."""
        is_broken = name in _BROKEN and not (frames.names_function or frames.in_functions or frames.last[:1] == "<")
        if not is_broken:
            return
        log = self._log(source)
        own = {} if _OF_A_LIBRARY.search(frames.last) else {frames.last: 0}
        for file, at in {**frames.modules, **own}.items():
            if log.reached.pop(file, 0) > at:
                self._begin(log, frames.since)
            if len(log.broken) < MAX_KEPT:
                log.broken[file] = at

    def summarise(self, source: str, worker: Worker, text: str) -> None:
        """Takes the line of an exit code in the entry that a summary has for this worker."""
        log = self._log(source)
        if (pid := _PID.search(text)) is None or len(log.workers) >= MAX_KEPT:
            return
        log.restarts = False
        before = log.workers.get(worker)
        if before and before[0] != pid[1]:
            self._begin(log, before[1] + 1)
        log.summary[worker] = pid[1]

    def end_summary(self, source: str, line: int) -> None:
        """A summary ends on this line."""
        log = self._log(source)
        log.workers |= {worker: (pid, line) for worker, pid in log.summary.items()}
        log.summary = {}

    def _begin(self, log: _Log, line: int) -> None:
        """A launch begins on this line, behind a failure."""
        if line > log.until + 1:
            log.begun, log.until = line, line - 1
            self.count += 1

    def _log(self, source: str) -> _Log:
        return self._logs.setdefault(source, _Log())


def _is_another(log: _Log, found: re.Match[str]) -> bool:
    """True if another process has this device than before, much later, in the log of a process with one device."""
    day, hour, minute, second = (int(found[name]) for name in ("day", "hour", "minute", "second"))
    device, thread, now = found["device"], found["thread"], ((day * 24 + hour) * 60 + minute) * 60 + second
    before = log.devices.get(device)
    if before is None and len(log.devices) < 2:
        log.devices[device] = thread, now
    if before is None or len(log.devices) > 1:
        return False
    log.devices[device] = thread, now
    return before[0] != thread and abs(now - before[1]) >= STARTS_APART
