"""Following a running job on any number of nodes: asking, acting, until it is over.

A node is reached through the `Node` protocol; everything else is the same on this machine and on a cluster.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

from seatrial.errors import LaunchError
from seatrial.launch.conclude import DOUBT_SECONDS, Ending, Progress, Status, judge, with_stopped
from seatrial.launch.deadlines import Deadlines

POLL_SECONDS = 0.2
COPY_SECONDS = 20.0  # in which there may be room here again for the rest of what a run that is over has written
GONE_SECONDS = 20.0  # for an agent that was pressed to end what it has started, and itself


class Node(Protocol):
    """One host with an agent."""

    @property
    def name(self) -> str: ...
    def status(self) -> Status | None:
        """The agent's latest status, None while there is none."""

    def agent_ended(self) -> bool:
        """Whether the agent is known to be gone, and all that it has written to be here."""

    def behind(self) -> bool:
        """Whether what the host has written is still on its way here."""

    def uncopied(self) -> str:
        """Why what the host has written cannot be copied here; nothing where it can, or need not be."""

    def now(self) -> float:
        """The monotonic time up to which all is known that the host has said: late where this process is."""

    def silent_seconds(self) -> float:
        """How long nothing has been heard of the host until then; 0 where it is this machine."""

    def stop(self, *, now: bool) -> None:
        """Tells the agent to stop everything; `now` leaves the processes no time."""


class Queue(Protocol):
    """Who allots the hosts, and may let the run wait for them or take them away."""

    def waiting(self) -> bool:
        """Whether there are no hosts at the moment."""

    def refused(self) -> Ending | None:
        """How the run ended, where there will be none."""

    def final(self, ending: Ending) -> bool:
        """Whether a run that ended so does not go on elsewhere."""

    def explained(self, ending: Ending) -> Ending:
        """The ending with what the queue knows of it."""


class Following(NamedTuple):
    """What whoever follows a run is given: its deadlines, who sees its progress, and who is told of other things."""

    deadlines: Deadlines
    on_progress: Callable[[Progress], None]
    say: Callable[[str], None]


class Interrupts:
    """Counts requests to stop: Ctrl-C, termination, a closed terminal. Only the main thread can.

    What is detached goes on without a terminal: then a closed one only ends this process, once `left` is looked at.
    A stop file is how others request it.
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

        noted = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # under nohup, a closed terminal means nothing
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
    """Follows a job to its end, stops what has to be stopped, and says how it ended.

    `on_progress` is called a few times a second. An interrupt ends the run in order, a second one at once. While a run
    waits in a `queue`, nothing is overdue; nor while nothing is heard of any host, for then the way to them is cut.
    Raises LaunchError when that lasts: the run goes on.
    """
    progress, since, pressed = Progress(planned_steps=planned_steps), 0.0, False
    copied = 0.0  # when something was on its way here last
    looked, deaf = time.monotonic(), 0.0  # the last look, and the seconds in which nobody was heard
    while True:
        interrupts.look()
        if interrupts.left:
            raise SystemExit(128 + signal.SIGHUP)
        gone = [node.name for node in nodes if node.agent_ended()]  # asked before the status is read
        statuses = {node.name: node.status() for node in nodes}
        progress.silent = silent = {node.name: node.silent_seconds() for node in nodes}
        progress.uncopied = {node.name: why for node in nodes if (why := node.uncopied())}
        looked, before = min((node.now() for node in nodes), default=time.monotonic()), looked
        unheard = min(silent.values(), default=0.0)
        if unheard > DOUBT_SECONDS:
            deaf += looked - before
        now = looked - deaf
        progress.see(statuses, now)
        refused = queue.refused() if queue else None
        if queue and queue.waiting():  # for the first time, or once more
            progress.started, progress.first_exit, progress.last_step = now, None, None
        if progress.ending is None:
            ending = judge(progress, gone, silent, interrupts.count, deadlines, now)
            goes_on = ending and queue and not interrupts.count and not queue.final(ending)
            progress.ending = refused or (None if goes_on else ending)
            if progress.ending is not None:
                since = now
                for node in nodes if progress.ending.reason != "completed" else ():
                    node.stop(now=False)
        on_progress(progress)
        if progress.ending is None and unheard > deadlines.deaf_seconds:
            why = f"nothing has been heard of any host for {unheard:.0f} s: the run may go on there"
            raise LaunchError(f"{why}; follow it again with `seatrial attach DIR` when they can be reached")
        if progress.ending is not None:
            out_of_reach = {host for host, seconds in silent.items() if seconds > deadlines.lost_seconds}
            patience = deadlines.stop_seconds(progress.ending.reason)
            if interrupts.count < 2 and any(node.behind() for node in nodes):
                copied = now
            waits_for_room = progress.uncopied and interrupts.count < 2 and now - since < COPY_SECONDS
            over = len(out_of_reach.union(gone)) == len(nodes) and not waits_for_room
            if over or now - max(since, copied) > patience + GONE_SECONDS:
                left = [host for host, status in statuses.items() if status is None or status["state"] != "ended"]
                ending = replace(progress.ending, left=tuple(host for host in left if host not in gone))
                return with_stopped(ending, progress)
            if not pressed and (interrupts.count > 1 or now - since > patience):
                pressed = True
                for node in nodes:
                    node.stop(now=True)
        time.sleep(POLL_SECONDS)
