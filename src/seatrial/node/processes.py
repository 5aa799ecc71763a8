"""One process that the agent starts: its pipe, its log and its state; and what /proc has about others."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import dataclasses
import os
import re
import signal
import subprocess
import time
from typing import Any

LINE_BYTES = 1 << 16  # the rest of a longer line is logged but not searched
EVIDENCE_CHARACTERS = 500
NO_EVIDENCE = re.compile(rb"\s*$|\*+$|\[Compiling |\[Gloo\] Rank \d+ is |WARNING: All log messages before")  # a line
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

REPORTED = (
    *("pid", "state", "exit_code", "signal", "stopped", "started", "ended", "contained", "paused", "outlived"),
    *("memory_kills", "log_bytes", "lost_bytes", "last_output", "last_step", "last_step_at"),
)
MEANINGS = {
    "SIGKILL": " (killed from outside, or out of memory)",
    "SIGABRT": " (it aborted itself)",
    "SIGSEGV": " (invalid memory access)",
    "SIGBUS": " (memory that could not be had)",
}


def describe_exit(exit_code: int | None, signal_number: int | None) -> str:
    """The end of a process, as a sentence without subject; shells and containers report a signal as 128 + n."""
    number, how = signal_number, "was ended by"
    if number is None and exit_code is not None and 128 < exit_code <= 128 + 64:
        number, how = exit_code - 128, "ended as if by"
    if number is None:
        return "ended with exit code %s" % exit_code
    name = {s.value: s.name for s in signal.Signals}.get(number, "signal")
    return "%s %s (%d)%s" % (how, name, number, MEANINGS.get(name, ""))


def prctl(option: int, value: int) -> bool:
    """Linux's prctl; False where there is none."""
    try:
        return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)
    except (AttributeError, OSError):
        return False


def look_up(pid: int | None) -> tuple[bytes, int, bytes]:
    """(state letter, parent, name) of a process, from /proc; (b"", 0, b"") where there is none."""
    try:
        with open("/proc/%s/stat" % pid, "rb") as stat:
            start, _, rest = stat.read().rpartition(b")")
        state, parent = rest.split()[:2]
        return state, int(parent), start.partition(b"(")[2]
    except (OSError, ValueError):
        return b"", 0, b""


def memory_kills() -> int:
    """The number of processes of this cgroup that the kernel killed for lack of memory; 0 where it does not say."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as groups:
            own = [line.rstrip("\n").split(":", 2) for line in groups]
    except (OSError, ValueError):
        return 0
    counts = [0]
    for controllers, path in [(line[1], line[2]) for line in own if len(line) == 3]:
        base = {"": "/sys/fs/cgroup", "memory": "/sys/fs/cgroup/memory"}.get(controllers)
        # In a container its group is mounted as the root, though the kernel may call it by its place on the host.
        for folder in (base + path, base) if base else ():
            for name in ("memory.events", "memory.oom_control"):
                with contextlib.suppress(OSError, ValueError), open(folder + "/" + name, encoding="utf-8") as events:
                    counts += [int(line.split()[1]) for line in events if line.startswith("oom_kill ")]
    return max(counts)


def popen(argv: list[str], **options: Any) -> Any:
    """A process in a session of its own that never outlives the agent, which reaps it instead of Popen."""
    parent = os.getpid()

    def die_with_the_agent() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    options = {"stdin": subprocess.PIPE, "bufsize": 0, "start_new_session": True, **options}
    child = subprocess.Popen(argv, preexec_fn=die_with_the_agent, **options)
    child.returncode = 0
    return child


def descendants(root: int, *apart: Any) -> list[int]:
    """Living processes below `root`, except those `apart`, by number or name, and below them; orphans count."""
    children: dict[int, list[tuple[int, bytes]]] = collections.defaultdict(list)
    for pid in map(int, filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ())):
        state, parent, name = look_up(pid)
        if pid not in apart and name not in apart:
            children[parent].append((pid, state))
    found, stack = [], [root]
    while stack:
        for pid, state in children.pop(stack.pop(), ()):
            stack.append(pid)
            if state not in b"ZX":
                found.append(pid)
    return found


@dataclasses.dataclass
class Process:
    """One rank: its pipe, its log, and what is known about it."""

    job: dict[str, Any]
    step_pattern: re.Pattern[bytes] | None
    pid: int | None = None
    pipe: Any = None
    log: int | None = None
    state: str = "starting"  # → running → exited; or → unstartable
    exit_code: int | None = None
    signal: int | None = None
    started: float | None = None
    ended: float | None = None
    died: float | None = None  # when it ended, on the monotonic clock
    stopped: bool = False  # it ended after the agent had asked it to
    paused: bool = False  # somebody had paused its container
    outlived: bool = False  # its container engine failed, and what was in the container lives
    memory_kills: int = 0  # by the kernel, in its cgroup, while it ran; counted if it was killed
    memory_kills_before: int = 0
    log_bytes: int = 0
    lost_bytes: int = 0
    last_output: float | None = None
    last_step: int | None = None
    last_step_at: float | None = None
    last_line: bytes = b""
    partial: bytes = b""  # of the line that is being written
    first_step: int = 0  # the number of the first step in its log; here that is step 0

    @property
    def contained(self) -> str | None:
        """The engine of the container that it runs in, if it does."""
        return os.path.basename(self.job["argv"][0]) if self.job.get("after") else None

    def start(self) -> None:
        """Starts the process; what cannot be started is recorded like a process that failed at once."""
        self.started, given = time.time(), (self.job.get("stdin") or "").encode()
        self.memory_kills_before = memory_kills()
        try:
            os.makedirs(os.path.dirname(self.job["log"]) or ".", exist_ok=True)
            self.log = os.open(self.job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            environment = {**os.environ, **self.job.get("environment", {})}
            child = popen(
                self.job["argv"], env=environment, cwd=self.job.get("cwd"),
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        except (OSError, ValueError, TypeError, subprocess.SubprocessError) as error:
            self.state, self.exit_code, self.ended, self.died = "unstartable", 127, time.time(), time.monotonic()
            self.take(("could not start: %s\n" % error).encode("utf-8", "backslashreplace"))
            return
        self.pid, self.pipe, self.state = child.pid, child.stdout, "running"
        os.set_blocking(self.pipe.fileno(), False)
        with contextlib.suppress(BrokenPipeError), child.stdin:
            child.stdin.write(given)  # a pipe takes 64 KiB before anybody reads

    def take(self, chunk: bytes) -> bool:
        """Writes a chunk of output to the log and searches its complete lines for steps; True if there was one."""
        self.last_output = time.time()
        self._write(chunk)
        body, newline, rest = (self.partial + chunk).rpartition(b"\n")
        self.partial = rest[:LINE_BYTES]
        return bool(newline) and self._look(body)

    def close(self) -> bool:
        """Searches a last line that no newline ended; True if it named a step."""
        line, self.partial = self.partial, b""
        self.pipe.close()
        self.pipe = None
        return self._look(line)

    def end(self, result: Any, monotonic: float, wall: float) -> None:
        """Records how it ended, by waitid, and when by both clocks."""
        if result.si_code == os.CLD_EXITED:
            self.exit_code = result.si_status
        else:
            self.signal = result.si_status
        if signal.SIGKILL in (self.signal, (self.exit_code or 0) - 128) and not self.stopped:
            self.memory_kills = memory_kills() - self.memory_kills_before
        self.state, self.died, self.ended = "exited", monotonic, wall

    def _look(self, body: bytes) -> bool:
        telling = (line for line in reversed(body[-LINE_BYTES:].splitlines()) if not NO_EVIDENCE.match(line))
        self.last_line = next(telling, self.last_line)
        steps = [match.group(1) for match in self.step_pattern.finditer(body)] if self.step_pattern else []
        if steps:
            self.last_step, self.last_step_at = int(steps[-1]) - self.first_step, time.time()
        return bool(steps)

    def _write(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view and self.log is not None:
            try:
                written = os.write(self.log, view)
            except OSError:  # a full disk must not stop the training that fills it
                self.lost_bytes += len(view)
                return
            self.log_bytes += written
            view = view[written:]

    def status(self) -> dict[str, Any]:
        """Its entry in status.json; times are seconds since the epoch."""
        line = (self.last_line if NO_EVIDENCE.match(self.partial) else self.partial)[:EVIDENCE_CHARACTERS]
        fields = {name: getattr(self, name) for name in REPORTED}
        fields.update(rank=self.job["rank"], log=self.job["log"], last_line=line.decode("utf-8", "replace"))
        # By SIGSTOP or a debugger: it lives, but does nothing.
        suspended = self.state == "running" and look_up(self.pid)[0] in (b"T", b"t")
        ended = "could not be started" if self.state == "unstartable" else describe_exit(self.exit_code, self.signal)
        if self.memory_kills > 0:
            why = " (out of memory: kills by the kernel in its cgroup while it ran: %d)" % self.memory_kills
            ended = ended.replace(MEANINGS["SIGKILL"], why)
        return {**fields, "suspended": suspended, "sentence": ended if self.died else None}
