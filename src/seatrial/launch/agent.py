"""The supervisor on each node: one file, standard library only, Python 3.8 or newer, so that it can travel alone.

    python agent.py JOB.json        (or the job on stdin:  python agent.py -)

The job: {"v": 1, "run", "directory", "processes": [{"rank", "argv", "environment", "stdin", "cwd", "log", "after"}],
"step_pattern", "first_step" (as the logs number it), "grace_seconds", "lease_seconds", "lease_file",
"signals_reach_all", "observe_seconds"}. Each process is started in a session of its own, and the agent is the only
writer of its log; when all have ended, the commands in "after" are run. `directory/status.json` is replaced atomically
on every change and at least once a second. The agent stops everything when a process fails, when told to (SIGTERM,
SIGINT, or a file `directory/stop`), and when nobody has touched the lease file for `lease_seconds`. A signal that tells
it is passed on, unless it reaches all without that. With "observe_seconds", `observer.py`, which lies beside it,
watches the node meanwhile. It ends when nothing that it started is left: with 0 if every process ended with 0, else
with 1.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import dataclasses
import json
import os
import re
import resource
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Deque, Iterable

VERSION = 1
PEER_LOST = 75  # a trainer's exit code for "a step failed", most often because a peer was lost: a symptom
SETTLE_SECONDS = 2.0  # how long a symptom waits for its cause to show
SIMULTANEOUS_SECONDS = 0.05  # deaths closer than this cannot be ordered by time
HEARTBEAT_SECONDS = 1.0
STATUS_SECONDS = 0.2  # shortest interval between two writes that only report another step
TICK_SECONDS = 0.1
OBSERVER_SECONDS = 3.0  # in which what watches the node writes its last lines
UNKILLABLE_SECONDS = 4.0  # after SIGKILL: what still lives then is stuck in the kernel
READ_BYTES = 1 << 16
AFTER_SECONDS = 30.0
PIPE_BYTES = 1 << 20  # no pipe holds more
LINE_BYTES = 1 << 16  # of a longer line, the rest is logged but not looked at
EVIDENCE_CHARACTERS = 500
NO_EVIDENCE = re.compile(rb"\s*$|\*+$|\[Compiling |\[Gloo\] Rank \d+ is |WARNING: All log messages before")  # a line
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

REPORTED = (
    *("pid", "state", "exit_code", "signal", "stopped", "started", "ended"),
    *("log_bytes", "lost_bytes", "last_output", "last_step", "last_step_at"),
)
REPORTED_BY_AGENT = ("state", "started", "stop_reason", "left_behind", "survivors")
MEANINGS = {
    "SIGKILL": " (killed from outside, or out of memory)",
    "SIGABRT": " (it aborted itself)",
    "SIGSEGV": " (invalid memory access)",
    "SIGBUS": " (memory that could not be had)",
}


def blame(exits: Iterable[dict[str, Any]], now: float) -> dict[str, Any] | None:
    """The exit that started it all, or None while that cannot be said yet.

    `exits` are the failures that nobody asked for, each a dict with "exit_code", "signal" and "ended"; `now` and
    "ended" are seconds of the same clock. Failing first is what counts; of deaths at the same moment, one by a signal.
    A symptom (PEER_LOST) is only blamed when no other failure has shown within SETTLE_SECONDS.
    """
    exits = sorted(exits, key=lambda e: e["ended"])
    causes = [e for e in exits if e["exit_code"] != PEER_LOST]
    if not exits or (not causes and now - exits[0]["ended"] < SETTLE_SECONDS):
        return None
    candidates = causes or exits
    together = [e for e in candidates if e["ended"] - candidates[0]["ended"] <= SIMULTANEOUS_SECONDS]
    return min(together, key=lambda e: (e["signal"] is None, e["ended"]))


def describe_exit(exit_code: int | None, signal_number: int | None) -> str:
    """How a process ended, as a sentence without subject; 128 + n is how shells and containers report a signal."""
    number, how = signal_number, "was ended by"
    if number is None and exit_code is not None and 128 < exit_code <= 128 + 64:
        number, how = exit_code - 128, "ended as if by"
    if number is None:
        return "ended with exit code %s" % exit_code
    name = {s.value: s.name for s in signal.Signals}.get(number, "signal")
    return "%s %s (%d)%s" % (how, name, number, MEANINGS.get(name, ""))


def _prctl(option: int, value: int) -> bool:
    """Linux's prctl; False where there is none."""
    try:
        return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)
    except (AttributeError, OSError):
        return False


def _look_up(pid: int | None) -> tuple[bytes, int, bytes]:
    """(state letter, parent, name) of a process, from /proc; (b"", 0, b"") where there is none."""
    try:
        with open("/proc/%s/stat" % pid, "rb") as stat:
            start, _, rest = stat.read().rpartition(b")")
        state, parent = rest.split()[:2]
        return state, int(parent), start.partition(b"(")[2]
    except (OSError, ValueError):
        return b"", 0, b""


def _popen(argv: list[str], **options: Any) -> Any:
    """A process in a session of its own that never outlives the agent, which reaps it by itself: Popen must not."""
    parent = os.getpid()

    def die_with_the_agent() -> None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    options = {"stdin": subprocess.PIPE, "bufsize": 0, "start_new_session": True, **options}
    child = subprocess.Popen(argv, preexec_fn=die_with_the_agent, **options)
    child.returncode = 0
    return child


def _descendants(root: int, *apart: Any) -> list[int]:
    """Living processes below `root`, but for those `apart`, by number or name, and below them; orphans count."""
    children: dict[int, list[tuple[int, bytes]]] = collections.defaultdict(list)
    for pid in map(int, filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ())):
        state, parent, name = _look_up(pid)
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
    stopped: bool = False  # it ended after the agent had told it to
    log_bytes: int = 0
    lost_bytes: int = 0
    last_output: float | None = None
    last_step: int | None = None
    last_step_at: float | None = None
    last_line: bytes = b""
    partial: bytes = b""  # of the line that is being written
    first_step: int = 0  # as its log numbers it; here that is 0

    def start(self) -> None:
        """Starts the process; what cannot be started is recorded like a process that failed at once."""
        self.started, given = time.time(), (self.job.get("stdin") or "").encode()
        try:
            os.makedirs(os.path.dirname(self.job["log"]) or ".", exist_ok=True)
            self.log = os.open(self.job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            environment = {**os.environ, **self.job.get("environment", {})}
            child = _popen(
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
        """Writes a chunk of output to the log and looks for steps in its complete lines; True if there was one."""
        self.last_output = time.time()
        self._write(chunk)
        body, newline, rest = (self.partial + chunk).rpartition(b"\n")
        self.partial = rest[:LINE_BYTES]
        return bool(newline) and self._look(body)

    def finish(self) -> bool:
        """Looks at a last line that no newline ended; True if it named a step."""
        line, self.partial = self.partial, b""
        self.pipe.close()
        self.pipe = None
        return self._look(line)

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
        """What status.json says about it; clock times are seconds since the epoch."""
        line = (self.last_line if NO_EVIDENCE.match(self.partial) else self.partial)[:EVIDENCE_CHARACTERS]
        fields = {name: getattr(self, name) for name in REPORTED}
        fields.update(rank=self.job["rank"], log=self.job["log"], last_line=line.decode("utf-8", "replace"))
        # By SIGSTOP or a debugger: it lives, but does nothing.
        suspended = self.state == "running" and _look_up(self.pid)[0] in (b"T", b"t")
        ended = "could not be started" if self.state == "unstartable" else describe_exit(self.exit_code, self.signal)
        return {**fields, "suspended": suspended, "sentence": ended if self.died else None}


class Agent:
    """Everything that one node runs for one job."""

    def __init__(self, job: dict[str, Any]) -> None:
        if job.get("v") != VERSION:
            raise SystemExit("agent: this agent reads jobs of version %d, not %r" % (VERSION, job.get("v")))
        self.job = job
        self.directory = job["directory"]
        self.grace_seconds = job.get("grace_seconds", 5)
        pattern = re.compile(job["step_pattern"].encode(), re.MULTILINE) if job.get("step_pattern") else None
        self.processes = [Process(p, pattern, first_step=job.get("first_step", 0)) for p in job["processes"]]
        self.selector = selectors.DefaultSelector()
        self.deaths: Deque[tuple[Process, Any, float, float]] = collections.deque()
        self.requests: Deque[str] = collections.deque()
        self.stop_reason: str | None = None
        self.first_exit: Process | None = None
        self.stopping_since: float | None = None
        self.killing_since: float | None = None
        self.survivors: list[int] = []
        self.observer: Any = None
        self.left_behind = 0
        self.started, self.state = time.time(), "running"
        self.lease_mark: int | None = None
        self.lease_seen = time.monotonic()
        self.written_at, self.changed, self.stepped = 0.0, True, True

    def run(self) -> int:
        """Supervises until nothing is left; returns the agent's exit code."""
        os.makedirs(self.directory, exist_ok=True)
        self.subreaper = _prctl(PR_SET_CHILD_SUBREAPER, 1)
        with contextlib.suppress(OSError, ValueError):  # RDMA pins what it sends; who may not raise this keeps what is
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        # A lost session is no reason to stop: the lease is. (Not SIG_IGN, which the processes would inherit.)
        signal.signal(signal.SIGHUP, lambda number, frame: None)
        try:
            # Every fork comes before the first thread, and from the thread that lives on (PR_SET_PDEATHSIG).
            self._begin_observing()
            for process in self.processes:
                process.start()
            for process in self.processes:
                if process.pid is not None:
                    self.selector.register(process.pipe, selectors.EVENT_READ, process)
                    threading.Thread(target=self._wait, args=(process, process.pid), daemon=True).start()
            while not self._finished():
                self._turn()
            self._accuse(float("inf"))  # a symptom whose cause never showed
            self._reap_orphans()
        finally:
            self._signal_all(signal.SIGKILL)
            self._clear_away()
            self._end_observing()
            self.state = "ended"
            for process in self.processes:
                self._drain(process)
            self._write_status()
        return 0 if all(p.exit_code == 0 for p in self.processes) else 1

    def _begin_observing(self) -> None:
        """Starts what watches the node; the run does without it where that cannot be."""
        seconds, path = self.job.get("observe_seconds"), os.path.join(os.path.dirname(__file__) or ".", "observer.py")
        given = {"path": os.path.join(self.directory, "observed.jsonl"), "interval_seconds": seconds}
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            if seconds and os.path.exists(path):
                self.observer = _popen([sys.executable, "-I", path], stdout=subprocess.DEVNULL)
                self.observer.stdin.write(json.dumps(given).encode() + b"\n")

    def _end_observing(self) -> None:
        deadline, observer = time.monotonic() + OBSERVER_SECONDS, self.observer
        if observer:
            observer.stdin.close()
        while self.observer and time.monotonic() < deadline:
            time.sleep(0.01)
            self._reap_orphans()
        if self.observer:
            os.kill(observer.pid, signal.SIGKILL)

    def _clear_away(self) -> None:
        for argv in [argv for process in self.processes for argv in process.job.get("after", ())]:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=AFTER_SECONDS)

    def _on_signal(self, number: int, _frame: Any) -> None:
        self.requests.append(signal.Signals(number).name)

    def _wait(self, process: Process, pid: int) -> None:
        # One waiter a process, because the order of deaths is lost when several are reaped in one turn. WNOWAIT
        # leaves the pid taken until the main thread has noted the death, so that no signal can hit a stranger.
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        self.deaths.append((process, result, time.monotonic(), time.time()))

    def _turn(self) -> None:
        for key, _ in self.selector.select(TICK_SECONDS):
            self._read(key.data)
        while self.deaths:
            self._bury(*self.deaths.popleft())
        self._reap_orphans()
        self._decide(time.monotonic())
        age = time.monotonic() - self.written_at
        if self.changed or age >= HEARTBEAT_SECONDS or (self.stepped and age >= STATUS_SECONDS):
            self._write_status()

    def _read(self, process: Process) -> bool:
        """One chunk of a process's output; False when there is none at the moment, or never again."""
        try:
            chunk = os.read(process.pipe.fileno(), READ_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self.selector.unregister(process.pipe)
            self.stepped |= process.finish()
            return False
        self.stepped |= process.take(chunk)
        return True

    def _drain(self, process: Process) -> None:
        # Bounded, because a descendant may go on writing; what a dead process has left fits into the pipe.
        for _ in range(PIPE_BYTES // READ_BYTES):
            if process.pipe is None or not self._read(process):
                return

    def _bury(self, process: Process, result: Any, monotonic: float, wall: float) -> None:
        os.waitpid(result.si_pid, 0)
        self._drain(process)
        if result.si_code == os.CLD_EXITED:
            process.exit_code = result.si_status
        else:
            process.signal = result.si_status
        process.state, process.died, process.ended = "exited", monotonic, wall
        process.stopped = self.stopping_since is not None and monotonic >= self.stopping_since
        self.changed = True

    def _reap_orphans(self) -> None:
        ours = {p.pid for p in self.processes if p.state == "running"}
        while True:
            try:
                result = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if result is None or result.si_pid in ours:  # its waiter will tell
                return
            os.waitpid(result.si_pid, 0)
            if self.observer and result.si_pid == self.observer.pid:
                self.observer = None

    def _decide(self, now: float) -> None:
        """Starts to stop if there is a reason, and presses harder when the grace is over."""
        if self._accuse(now):
            self._stop("process_failed", now)
        if os.path.exists(os.path.join(self.directory, "stop")):
            self._stop("stop_file", now)
        if self._lease_expired(now):
            self._stop("lease_expired", now)
        while self.requests:
            if self.stopping_since is not None:  # asked to stop while stopping: at once
                self.killing_since = self.killing_since or now
            self._stop(self.requests.popleft(), now)
        if self.stopping_since is None and all(p.died for p in self.processes):
            self.left_behind = len(self._below())
            if self.left_behind:
                self._stop("left_behind", now)
        if self.stopping_since is not None and now - self.stopping_since >= self.grace_seconds:
            self.killing_since = self.killing_since or now
        if self.killing_since is not None:
            self._signal_all(signal.SIGKILL)

    def _accuse(self, now: float) -> bool:
        if self.first_exit is None:
            failed = [p for p in self.processes if p.died and not p.stopped and p.exit_code != 0]
            exits = [{**p.status(), "ended": p.died, "process": p} for p in failed]
            culprit = blame(exits, now)
            self.first_exit = culprit["process"] if culprit else None
        return self.first_exit is not None

    def _stop(self, reason: str, now: float) -> None:
        if self.stopping_since is None:
            self.stop_reason, self.stopping_since, self.state = reason, now, "stopping"
            self.changed = True
            if not (reason.startswith("SIG") and self.job.get("signals_reach_all")):
                self._signal_all(signal.SIGTERM)
            self._signal_all(signal.SIGCONT)  # a stopped process would not notice

    def _below(self, *apart: bytes) -> list[int]:
        return _descendants(os.getpid(), self.observer and self.observer.pid, *apart)

    def _signal_all(self, number: int) -> None:
        """Sends a signal to all that it has started, once: for a trainer, a second one means "at once"."""
        # `podman run` passes what it gets on into its container; so would conmon, and process 1 of the container.
        below = self._below() if number == signal.SIGKILL else self._below(b"conmon")
        targets: list[tuple[Any, int]] = [(os.kill, pid) for pid in below]
        if not self.subreaper:  # the group is all that names the descendants of a dead leader
            targets = [(os.killpg, p.pid) for p in self.processes if p.pid]
        for send, target in targets:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                send(target, number)

    def _lease_expired(self, now: float) -> bool:
        seconds = self.job.get("lease_seconds")
        if not seconds:
            return False
        try:
            mark = os.stat(self.job["lease_file"]).st_mtime_ns
        except OSError:
            mark = None
        if mark != self.lease_mark:  # only that it moved counts: the other machine's clock may be off
            self.lease_mark, self.lease_seen = mark, now
        return bool(now - self.lease_seen > seconds)

    def _finished(self) -> bool:
        stuck = self.killing_since is not None and time.monotonic() - self.killing_since > UNKILLABLE_SECONDS
        if not stuck and any(p.died is None for p in self.processes):
            return False
        self.survivors = self._below()
        return stuck or not self.survivors

    def _write_status(self) -> None:
        status = {name: getattr(self, name) for name in REPORTED_BY_AGENT}
        status.update(v=VERSION, run=self.job.get("run"), host=socket.gethostname(), agent_pid=os.getpid())
        status.update(heartbeat=time.time(), first_exit=self.first_exit.status() if self.first_exit else None)
        status["processes"] = [process.status() for process in self.processes]
        path, text, self.written_at = os.path.join(self.directory, "status.json"), json.dumps(status), time.monotonic()
        # A full disk has no room for another file, but what is there can be written over. Else the next turn tries.
        for name, mode in ((path + ".new", "w"), (path, "r+")):
            with contextlib.suppress(OSError), open(name, mode, encoding="utf-8") as file:
                file.write(text)
                file.truncate()
                os.replace(name, path)
                self.changed = self.stepped = False
                return


def main(arguments: list[str]) -> int:
    """Reads the job named on the command line and supervises it."""
    if len(arguments) != 1:
        raise SystemExit("usage: agent.py JOB.json  (- reads the job from stdin)")
    with sys.stdin if arguments[0] == "-" else open(arguments[0], encoding="utf-8") as file:
        job = json.load(file)
    return Agent(job).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
