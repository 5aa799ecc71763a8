"""The supervisor of a run's processes on one node.

    python agent.py JOB.json        (or the job on stdin:  python agent.py -)

The job: {"v": 1, "run", "directory", "processes": [{"rank", "argv", "environment", "stdin", "cwd", "log", "wake",
"after"}], "step_pattern", "first_step" (as the logs number it), "grace_seconds", "lease_seconds", "lease_file",
"signals_reach_all", "observe_seconds"}. Each process is started in a session of its own, and the agent is the only
writer of its log; before it is asked to stop, the commands in "wake" are run; when all have ended, those in "after".
`directory/status.json` is replaced atomically on every change and at least once a second. The agent stops everything
when a process fails, when asked to (SIGTERM, SIGINT, or a file `directory/stop`), and when nobody has touched the lease
file for `lease_seconds`. Such a signal is passed on, unless it reaches all processes anyway. With "observe_seconds",
`observer.py` watches the node meanwhile. The agent ends when nothing that it started is left: with 0 if
every process ended with 0, else with 1.
"""

from __future__ import annotations

import collections
import contextlib
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
from typing import TYPE_CHECKING, Any, Deque, Iterable

if TYPE_CHECKING or __package__:
    from seatrial.node import processes
else:  # on a node, where its modules lie beside it
    sys.dont_write_bytecode = True  # what lies in the run's folder is the run's
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import processes

VERSION = 1
ENGINE_FAILED = (125, 126, 127)  # exit codes of docker and podman that may be their own
PEER_LOST = 75  # a trainer's exit code for "a step failed", most often because a peer was lost: a symptom
SETTLE_SECONDS = 2.0  # how long a symptom waits for its cause to show
SIMULTANEOUS_SECONDS = 0.05  # deaths closer than this cannot be ordered by time
HEARTBEAT_SECONDS = 1.0
STATUS_SECONDS = 0.2  # shortest interval between two writes that only report another step
TICK_SECONDS = 0.1
OBSERVER_SECONDS = 3.0  # in which the observer writes its last lines
UNKILLABLE_SECONDS = 4.0  # after SIGKILL; a process that still lives then is stuck in the kernel
READ_BYTES = 1 << 16
AFTER_SECONDS = 30.0
WAKE_SECONDS = 5.0
PIPE_BYTES = 1 << 20  # no pipe holds more
REPORTED = ("state", "started", "stop_reason", "left_behind", "survivors")


def blame(exits: Iterable[dict[str, Any]], now: float) -> dict[str, Any] | None:
    """The exit that caused the others, or None while that is not known yet.

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


class Agent:
    """Everything that one node runs for one job."""

    def __init__(self, job: dict[str, Any]) -> None:
        if job.get("v") != VERSION:
            raise SystemExit("agent: this agent reads jobs of version %d, not %r" % (VERSION, job.get("v")))
        self.job = job
        self.directory = job["directory"]
        self.grace_seconds = job.get("grace_seconds", 5)
        pattern = re.compile(job["step_pattern"].encode(), re.MULTILINE) if job.get("step_pattern") else None
        self.processes = [processes.Process(p, pattern, first_step=job.get("first_step", 0)) for p in job["processes"]]
        self.selector = selectors.DefaultSelector()
        self.deaths: Deque[tuple[processes.Process, Any, float, float]] = collections.deque()
        self.requests: Deque[str] = collections.deque()
        self.stop_reason: str | None = None
        self.first_exit: processes.Process | None = None
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
        self.subreaper = processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)
        # RDMA pins its buffers; without the right to raise it, the limit stays.
        with contextlib.suppress(OSError, ValueError):
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
        """Starts the observer; the run goes on without one that cannot start."""
        seconds, path = self.job.get("observe_seconds"), os.path.join(os.path.dirname(__file__) or ".", "observer.py")
        given = {"path": os.path.join(self.directory, "observed.jsonl"), "interval_seconds": seconds}
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            if seconds and os.path.exists(path):
                self.observer = processes.popen([sys.executable, "-I", path], stdout=subprocess.DEVNULL)
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
            # Again if it fails: podman then notices that its monitor, and with it the container, is gone.
            _run(argv, AFTER_SECONDS) or _run(argv, AFTER_SECONDS)

    def _wake(self) -> None:
        """Resumes processes that were paused: they could neither react to a signal, nor be removed."""
        for process in self.processes:
            if process.died is None and any(_run(argv, WAKE_SECONDS) for argv in process.job.get("wake", ())):
                process.paused = True

    def _on_signal(self, number: int, _frame: Any) -> None:
        self.requests.append(signal.Signals(number).name)

    def _wait(self, process: processes.Process, pid: int) -> None:
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

    def _read(self, process: processes.Process) -> bool:
        """Takes one chunk of a process's output; False when there is none at the moment, or no more."""
        try:
            chunk = os.read(process.pipe.fileno(), READ_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self.selector.unregister(process.pipe)
            self.stepped |= process.close()
            return False
        self.stepped |= process.take(chunk)
        return True

    def _drain(self, process: processes.Process) -> None:
        # Bounded, because a descendant may go on writing; what a dead process has left fits into the pipe.
        for _ in range(PIPE_BYTES // READ_BYTES):
            if process.pipe is None or not self._read(process):
                return

    def _bury(self, process: processes.Process, result: Any, monotonic: float, wall: float) -> None:
        os.waitpid(result.si_pid, 0)
        self._drain(process)
        process.stopped = self.stopping_since is not None and monotonic >= self.stopping_since
        process.end(result, monotonic, wall)
        if process.contained and process.exit_code in ENGINE_FAILED:  # of what goes on, its monitor has lost hold
            process.outlived = bool(self._below(b"conmon", *(p.pid for p in self.processes)))
        self.changed = True

    def _reap_orphans(self) -> None:
        ours = {p.pid for p in self.processes if p.state == "running"}
        while True:
            try:
                result = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if result is None or result.si_pid in ours:  # its waiter reports it
                return
            os.waitpid(result.si_pid, 0)
            if self.observer and result.si_pid == self.observer.pid:
                self.observer = None

    def _decide(self, now: float) -> None:
        """Starts to stop if there is a reason, and kills when the grace is over."""
        if self._accuse(now):
            self._stop("process_failed", now)
        if os.path.exists(os.path.join(self.directory, "stop")):
            self._stop("stop_file", now)
        if self._lease_expired(now):
            self._stop("lease_expired", now)
        while self.requests:
            if self.stopping_since is not None:  # asked to stop while stopping: now
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
            self._wake()
            self.stop_reason, self.stopping_since, self.state = reason, time.monotonic(), "stopping"
            self.changed = True
            if not (reason.startswith("SIG") and self.job.get("signals_reach_all")):
                self._signal_all(signal.SIGTERM)
            self._signal_all(signal.SIGCONT)  # a stopped process would not notice

    def _below(self, *apart: Any) -> list[int]:
        return processes.descendants(os.getpid(), self.observer and self.observer.pid, *apart)

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
        status = {name: getattr(self, name) for name in REPORTED}
        status.update(v=VERSION, run=self.job.get("run"), host=socket.gethostname(), agent_pid=os.getpid())
        status.update(heartbeat=time.time(), first_exit=self.first_exit.status() if self.first_exit else None)
        status["processes"] = [process.status() for process in self.processes]
        path, text, self.written_at = os.path.join(self.directory, "status.json"), json.dumps(status), time.monotonic()
        # A full disk has no room for another file, but the old one can be overwritten. Else the next turn retries.
        for name, mode in ((path + ".new", "w"), (path, "r+")):
            with contextlib.suppress(OSError), open(name, mode, encoding="utf-8") as file:
                file.write(text)
                file.truncate()
                os.replace(name, path)
                self.changed = self.stepped = False
                return


def _run(argv: list[str], seconds: float) -> bool:
    """Runs a command; whether it succeeded."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds).returncode == 0
    return False


def main(arguments: list[str]) -> int:
    """Reads the job named on the command line and supervises it."""
    if len(arguments) != 1:
        raise SystemExit("usage: agent.py JOB.json  (- reads the job from stdin)")
    with sys.stdin if arguments[0] == "-" else open(arguments[0], encoding="utf-8") as file:
        job = json.load(file)
    return Agent(job).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
