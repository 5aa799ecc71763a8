"""Follows a running job on any number of nodes until it is over, the same on this machine and on a cluster."""

from __future__ import annotations

import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Protocol

from seatrial.errors import LaunchError
from seatrial.launch.deadlines import Deadlines
from seatrial.launch.ending import DOUBT_SECONDS, judge, with_stopped
from seatrial.launch.progress import Ending, Progress, Status

POLL_SECONDS = 0.2
COPY_SECONDS = 20.0  # in which there may be room here again for the rest of what a run that is over has written
GONE_SECONDS = 20.0  # for an agent that was pressed to end what it has started, and itself


class Node(ABC):
    """One host with an agent. The defaults are for one whose files are in the run directory from the start."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The host's name."""

    @abstractmethod
    def status(self) -> Status | None:
        """The agent's latest status, None while there is none."""

    @abstractmethod
    def agent_ended(self) -> bool:
        """True if the agent is gone, and everything that it wrote is here."""

    @abstractmethod
    def stop(self, *, now: bool) -> None:
        """Asks the agent to stop everything; `now` leaves the processes no time."""

    def behind(self) -> bool:
        """True if what the host has written is still on its way here."""
        return False

    def uncopied(self) -> str:
        """The reason that the host's files cannot be copied here; "" where they can, or need not be."""
        return ""

    def unreached(self) -> str:
        """The reason that the host cannot be reached, with the fix; "" where it can, or has not been tried for long."""
        return ""

    def now(self) -> float:
        """The monotonic time up to which everything from the host has been handled: late where this process is."""
        return time.monotonic()

    def silent_seconds(self) -> float:
        """Seconds for which the host had been silent at `now()`; 0 where it is this machine."""
        return 0.0


class Queue(Protocol):
    """Allots the hosts: the run may wait for them, or lose them."""

    def waiting(self) -> bool:
        """True if there are no hosts at the moment."""

    def refused(self) -> Ending | None:
        """The ending of the run if there will be no hosts; else None."""

    def final(self, ending: Ending) -> bool:
        """True if the run is over with this ending, and does not go on elsewhere."""

    def explained(self, ending: Ending) -> Ending:
        """The ending with what the queue knows of it."""


class Following(NamedTuple):
    """The deadlines of a run that is followed, and the callbacks for its progress and for messages."""

    deadlines: Deadlines
    on_progress: Callable[[Progress], None]
    say: Callable[[str], None]

    def patient(self, *, start_seconds: float, lost_seconds: float) -> Following:
        """The same with deadlines that are at least so long."""
        start = max(self.deadlines.start_seconds, start_seconds)
        lost = max(self.deadlines.lost_seconds, lost_seconds)
        return self._replace(deadlines=replace(self.deadlines, start_seconds=start, lost_seconds=lost))


class Interrupts:
    """Counts requests to stop: Ctrl-C, termination, a closed terminal. Only the main thread can.

    What is detached goes on without a terminal: then a closed one sets `left`, and only ends this process. Other
    processes request a stop by a file.
    """

    def __init__(self, *, detached: bool = False, stop_file: Path | None = None) -> None:
        self.count, self.left, self._detached, self._stop_file = 0, False, detached, stop_file

    def look(self) -> None:
        """Counts the stop file, once."""
        if self._stop_file and self._stop_file.exists():
            self.count, self._stop_file = self.count + 1, None

    @contextmanager
    def caught(self) -> Iterator[Interrupts]:
        def note(number: int, frame: object) -> None:
            if number == signal.SIGHUP and self._detached:
                self.left = True
            else:
                self.count += 1

        if threading.current_thread() is not threading.main_thread():  # only that one may take signals
            yield self
            return
        noted = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # under nohup, a closed terminal is no request
            noted.append(signal.SIGHUP)
        before = {number: signal.signal(number, note) for number in noted}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def follow(
    nodes: Sequence[Node],
    *,
    planned_steps: int,
    deadlines: Deadlines,
    interrupts: Interrupts,
    on_progress: Callable[[Progress], None],
    queue: Queue | None = None,
) -> Ending:
    """Follows a job to its end, stops what has to be stopped, and returns how it ended.

    `on_progress` is called a few times a second. An interrupt ends the run in order, a second one at once. Raises
    LaunchError when no host has been heard for too long: the run goes on.
    """
    job = _Followed(nodes, Progress(planned_steps=planned_steps), deadlines, interrupts, queue)
    while True:
        job.observe()
        if job.progress.ending is None:
            job.decide()
        on_progress(job.progress)
        if job.progress.ending is None:
            job.require_contact()
        elif job.is_over():
            return job.result()
        else:
            job.press()
        time.sleep(POLL_SECONDS)


@dataclass
class _Followed:
    """A job that is running, then stopping (from when `progress.ending` is set), then over.

    `now` is the hosts' time: it stands still while none of them is heard, because then the connection is cut and
    nothing is overdue. Nor is anything while the run waits in a queue.
    """

    nodes: Sequence[Node]
    progress: Progress
    deadlines: Deadlines
    interrupts: Interrupts
    queue: Queue | None
    now: float = field(default_factory=time.monotonic)
    observed_at: float = field(default_factory=time.monotonic)
    unheard_seconds: float = 0.0  # since any host was heard
    cut_seconds: float = 0.0  # of all the time, those in which none was
    gone: list[str] = field(default_factory=list)  # hosts whose agents have ended
    refused: Ending | None = None  # by the queue
    stopping_since: float = 0.0
    copied_at: float = 0.0
    is_pressed: bool = False

    def observe(self) -> None:
        """Takes in what the hosts report, how long each has been silent, and whether the run waits for hosts."""
        self.interrupts.look()
        if self.interrupts.left:
            raise SystemExit(128 + signal.SIGHUP)
        progress, nodes = self.progress, self.nodes
        self.gone = [node.name for node in nodes if node.agent_ended()]  # asked before the status is read
        statuses = {node.name: node.status() for node in nodes}
        progress.silent = {node.name: node.silent_seconds() for node in nodes}
        progress.uncopied = {node.name: why for node in nodes if (why := node.uncopied())}
        progress.unreached = {node.name: why for node in nodes if (why := node.unreached())}
        before, self.observed_at = self.observed_at, min((node.now() for node in nodes), default=time.monotonic())
        self.unheard_seconds = min(progress.silent.values(), default=0.0)
        if self.unheard_seconds > DOUBT_SECONDS:
            self.cut_seconds += self.observed_at - before
        self.now = self.observed_at - self.cut_seconds
        progress.see(statuses, self.now)
        self.refused = self.queue.refused() if self.queue else None
        if self.queue and self.queue.waiting():  # for the first time, or once more
            progress.started, progress.first_exit, progress.last_step = self.now, None, None

    def decide(self) -> None:
        """From running to stopping, where there is a reason to end."""
        interrupts = self.interrupts.count
        ending = judge(self.progress, self.gone, self.progress.silent, interrupts, self.deadlines, self.now)
        if ending and self.queue and not interrupts and not self.queue.final(ending):
            ending = None
        self.progress.ending = ending = self.refused or ending
        if ending:
            self.stopping_since = self.now
            if ending.reason != "completed":
                self._stop(now=False)

    def require_contact(self) -> None:
        """Raises LaunchError when no host has been heard for too long."""
        if self.unheard_seconds > self.deadlines.deaf_seconds:
            why = f"all hosts have been silent for {self.unheard_seconds:.0f} s: the run may go on there"
            raise LaunchError(f"{why}; follow it again with `seatrial attach DIR` when they can be reached")

    def is_over(self) -> bool:
        """True if every agent has ended or is out of reach, with its files copied; or it has taken too long."""
        in_order, stopping_seconds = self.interrupts.count < 2, self.now - self.stopping_since
        if in_order and any(node.behind() for node in self.nodes):
            self.copied_at = self.now
        waits_for_room = bool(self.progress.uncopied) and in_order and stopping_seconds < COPY_SECONDS
        limit = self.deadlines.lost_seconds
        out_of_reach = {host for host, seconds in self.progress.silent.items() if seconds > limit}
        if len(out_of_reach.union(self.gone)) == len(self.nodes) and not waits_for_room:
            return True
        return self.now - max(self.stopping_since, self.copied_at) > self._patience + GONE_SECONDS

    def press(self) -> None:
        """Stops at once, one time, what has had time to stop by itself."""
        overdue = self.interrupts.count > 1 or self.now - self.stopping_since > self._patience
        if overdue and not self.is_pressed:
            self.is_pressed = True
            self._stop(now=True)

    def result(self) -> Ending:
        """The ending of the run, with the hosts where something may still run."""
        assert self.progress.ending is not None
        ended = {host for host, status in self.progress.statuses.items() if status["state"] == "ended"}
        left = tuple(node.name for node in self.nodes if node.name not in ended.union(self.gone))
        return with_stopped(replace(self.progress.ending, left=left), self.progress)

    @property
    def _patience(self) -> float:
        assert self.progress.ending is not None
        return self.deadlines.stop_seconds(self.progress.ending.reason)

    def _stop(self, *, now: bool) -> None:
        for node in self.nodes:
            node.stop(now=now)
