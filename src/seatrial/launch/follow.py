"""Following a running job on any number of nodes: who is to blame, who is overdue, when it is over.

A node is reached through the `Node` protocol; everything else is the same on this machine and on a cluster. What the
agents report is judged by pure functions; `follow` is the loop that asks and acts.
"""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from seatrial import estimate, hardware
from seatrial.events import Fault
from seatrial.launch.agent import blame
from seatrial.spec import RunSpec

Status = dict[str, Any]  # an agent's status.json

POLL_SECONDS = 0.2
DOUBT_SECONDS = 6.0  # of a host that speaks once a second
ASIDE_SECONDS = 600.0  # that an evaluation or a save may take
BROKEN_SECONDS = 5.0  # for processes to end by themselves of which one has died
GONE_SECONDS = 20.0  # for an agent that was pressed to end what it has started, and itself
SAVE_SECONDS = 60.0  # that a process which is told to end may take to save
LAUNCHER = -1
EXIT_SPEC_WRONG = 2  # the trainer's code for a spec that it cannot run
EXIT_UNSTARTABLE = (125, 126, 127)  # 125: docker and podman could not make the container


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


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """How long each phase may take. A step is overdue after `step_seconds`, or `step_medians` medians if longer.

    A process that is told to end has `grace_seconds`, and its agent a few more; then it is pressed. Without its peers
    it cannot save: of a run that is broken, it is pressed soon.
    """

    start_seconds: float = 60.0
    lost_seconds: float = 20.0  # a host of which nothing is heard, while nothing goes on elsewhere either
    first_step_seconds: float = 600.0  # compilation included
    step_seconds: float = 58.0  # so that a hang is told a minute after the last step at the latest
    step_medians: float = 10.0
    shutdown_seconds: float = 30.0
    grace_seconds: float = 5.0
    lease_seconds: float = 15.0  # that what runs on this machine outlives a launcher which was killed

    def stop_seconds(self, ending: Ending) -> float:
        """Until the processes of a run that ends so are pressed."""
        return self.grace_seconds + 10 if ending.reason == "interrupted" else BROKEN_SECONDS


def deadlines_for(spec: RunSpec) -> Deadlines:
    """The deadlines of a run: one that evaluates or saves is not hung, and one that is told to end may save first.

    A step that is slow by what is expected of the run is not hung either, nor are steps that go unlogged.
    """
    every, usual = max(1, spec.logging.interval_steps), Deadlines()
    speed = estimate.speed(spec, hardware.find(spec.topology.device))
    slow = max((speed.step_seconds[1] if speed else 0.0, *_bars(spec))) * every
    saves, evaluates = spec.checkpoint.enabled, spec.evaluation.interval_steps or spec.evaluation.interval_fraction
    blocks = evaluates or (saves and not spec.checkpoint.asynchronous)
    return replace(
        usual,
        first_step_seconds=max(usual.first_step_seconds, usual.step_medians * slow),
        step_seconds=max(usual.step_seconds, usual.step_medians * slow) + (ASIDE_SECONDS if blocks else 0),
        step_medians=usual.step_medians * every,
        shutdown_seconds=usual.shutdown_seconds + (ASIDE_SECONDS if evaluates or saves else 0),
        grace_seconds=SAVE_SECONDS if saves else usual.grace_seconds,
    )


def _bars(spec: RunSpec) -> Iterator[float]:
    """Seconds of a step with which a run just meets its bars."""
    for bar in spec.expectations:
        if bar.metric == "step_seconds":
            yield bar.value
        if bar.metric == "tokens_per_second_per_device":
            yield spec.tokens_per_step / spec.topology.num_devices / bar.value


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Why a run is over: a reason as `events.RunEnded` names it, the exit code behind it, and the evidence."""

    reason: str
    exit_code: int | None = None
    faults: tuple[Fault, ...] = ()


@dataclass
class Progress:
    """What the launcher has seen so far: the agents' statuses by host, and the pace of the steps."""

    planned_steps: int
    num_hosts: int = 1
    started: float = field(default_factory=time.monotonic)
    statuses: dict[str, Status] = field(default_factory=dict)
    processes: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # (host, status) in rank order
    last_step: int | None = None
    step_seen: float = 0.0  # when last_step came, monotonic
    intervals: list[float] = field(default_factory=list)
    first_exit: tuple[int, float] | None = None  # (rank, when it was seen, monotonic) of the first that ended
    ending: Ending | None = None  # known as soon as the processes are being stopped

    def see(self, statuses: dict[str, Status], now: float) -> None:
        """Takes in what the agents report at the monotonic time `now`."""
        self.statuses = statuses
        pairs = [(host, process) for host, status in statuses.items() for process in status["processes"]]
        self.processes = sorted(pairs, key=lambda pair: pair[1]["rank"])
        steps = [p["last_step"] for _, p in self.processes if p["last_step"] is not None]
        newest = max(steps, default=None)
        if newest is not None and (self.last_step is None or newest > self.last_step):
            if self.last_step is not None:
                self.intervals.append((now - self.step_seen) / (newest - self.last_step))
                del self.intervals[:-100]
            self.last_step, self.step_seen = newest, now
        exited = [p["rank"] for _, p in self.processes if p["state"] == "exited"]
        if exited and self.first_exit is None:
            self.first_exit = exited[0], now

    @property
    def median_seconds(self) -> float:
        """Of a step, as seen from here; 0 before there are two."""
        return statistics.median(self.intervals) if self.intervals else 0.0


def overdue(progress: Progress, deadlines: Deadlines, now: float) -> str | None:
    """What should have happened by the monotonic time `now`, as a sentence; None while all is in time."""
    if not progress.processes:
        return _late("no agent has reported", now - progress.started, deadlines.start_seconds)
    if progress.first_exit is not None:
        rank, seen = progress.first_exit
        waited = now - max(seen, progress.step_seen)
        return _late(f"not all processes have ended after rank {rank} ended", waited, deadlines.shutdown_seconds)
    if progress.last_step is None:
        return _late("no first step (compilation included)", now - progress.started, deadlines.first_step_seconds)
    waited = now - progress.step_seen
    if progress.last_step >= progress.planned_steps - 1:
        return _late("not all processes have ended after the last step", waited, deadlines.shutdown_seconds)
    limit = max(deadlines.step_seconds, deadlines.step_medians * progress.median_seconds)
    return _late(f"no step after step {progress.last_step}", waited, limit)


def _late(what: str, seconds: float, limit: float) -> str | None:
    return f"{what} for {seconds:.0f} s; the limit is {limit:.0f} s" if seconds > limit else None


def conclude(progress: Progress, wall_now: float) -> Ending | None:
    """How the run ended by what its processes did, or None while they go on or the cause cannot be named yet."""
    failed = [
        {**process, "host": host}
        for host, process in progress.processes
        if process["state"] in ("exited", "unstartable") and not process["stopped"] and process["exit_code"] != 0
    ]
    culprit = blame(failed, wall_now)
    if culprit:
        return _died(culprit)
    ended = [status for status in progress.statuses.values() if status["state"] == "ended"]
    if len(ended) < max(progress.num_hosts, len(progress.statuses)):  # of some, nothing may have been heard yet
        return None
    if any(process["stopped"] for _, process in progress.processes):
        return _stopped_by_an_agent(progress)
    return None if failed else Ending(reason="completed", exit_code=0)


def _stopped_by_an_agent(progress: Progress) -> Ending:
    faults = tuple(
        Fault(
            process=LAUNCHER,
            fault="peer_stopped",
            where=f"agent on {host}",
            text=f"the agent on {host} stopped its processes: {status['stop_reason']}",
        )
        for host, status in progress.statuses.items()
        if status["stop_reason"]
    )
    return Ending(reason="interrupted", faults=faults)


def _died(process: dict[str, Any]) -> Ending:
    where = f"rank {process['rank']} on {process['host']}"
    last = f"; its last line: {process['last_line']}" if process["last_line"] else ""
    code = process["exit_code"] if process["signal"] is None else 128 + process["signal"]
    could_not_run = code in (EXIT_SPEC_WRONG, *EXIT_UNSTARTABLE)
    fault = Fault(
        process=LAUNCHER,
        fault="start_failed" if could_not_run else "process_died",
        where=where,
        text=f"{where} {process['sentence']}{last}",
        facts={"exit_code": code},
    )
    return Ending(reason="could_not_run" if could_not_run else "died", exit_code=code, faults=(fault,))


def _agent_lost(host: str) -> Ending:
    text = f"the agent on {host} ended before its processes did; see nodes/{host}/agent.log"
    return Ending(
        reason="died", faults=(Fault(process=LAUNCHER, fault="process_died", where=f"agent on {host}", text=text),)
    )


def _stuck(progress: Progress, text: str) -> Ending:
    suspended = [f"rank {p['rank']} on {host}" for host, p in progress.processes if p["suspended"]]
    evidence = f"; suspended by a signal: {', '.join(suspended)}" if suspended else ""
    if not progress.processes:
        fault = Fault(process=LAUNCHER, fault="start_failed", text=text)
        return Ending(reason="could_not_run", faults=(fault,))
    where = ", ".join(suspended) or "all ranks"
    fault = Fault(process=LAUNCHER, fault="no_progress", where=where, text=text + evidence)
    return Ending(reason="no_progress", faults=(fault,))


class Following(NamedTuple):
    """What whoever follows a run is given: its deadlines, who sees its progress, and who is told of other things."""

    deadlines: Deadlines
    on_progress: Callable[[Progress], None]
    say: Callable[[str], None]


class Interrupts:
    """Counts requests to stop: Ctrl-C, termination, a closed terminal. Only the main thread can.

    What is detached goes on without a terminal: then a closed one only ends this process, once `left` is looked at.
    """

    def __init__(self, *, detached: bool = False) -> None:
        self.count, self.left, self._detached = 0, False, detached

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
    waits in a `queue`, nothing is overdue.
    """
    progress, since, pressed = Progress(planned_steps=planned_steps, num_hosts=len(nodes)), 0.0, False
    copied = 0.0  # when something was on its way here last
    while True:
        if interrupts.left:
            raise SystemExit(128 + signal.SIGHUP)
        now = min((node.now() for node in nodes), default=time.monotonic())
        gone = [node.name for node in nodes if node.agent_ended()]  # asked before the status is read
        progress.see({node.name: status for node in nodes if (status := node.status())}, now)
        silent = {node.name: node.silent_seconds() for node in nodes}
        refused = queue.refused() if queue else None
        if queue and queue.waiting():  # for the first time, or once more
            progress.started, progress.first_exit, progress.last_step = now, None, None
        if progress.ending is None:
            ending = _judge(progress, gone, silent, interrupts.count, deadlines, now)
            goes_on = ending and queue and not interrupts.count and not queue.final(ending)
            progress.ending = refused or (None if goes_on else ending)
            if progress.ending is not None:
                since = now
                for node in nodes if progress.ending.reason != "completed" else ():
                    node.stop(now=False)
        on_progress(progress)
        if progress.ending is not None:
            out_of_reach = {host for host, seconds in silent.items() if seconds > deadlines.lost_seconds}
            patience = deadlines.stop_seconds(progress.ending)
            if interrupts.count < 2 and any(node.behind() for node in nodes):
                copied = now
            if len(out_of_reach.union(gone)) == len(nodes) or now - max(since, copied) > patience + GONE_SECONDS:
                return _with_stopped(progress.ending, progress)
            if not pressed and (interrupts.count > 1 or now - since > patience):
                pressed = True
                for node in nodes:
                    node.stop(now=True)
        time.sleep(POLL_SECONDS)


def _judge(
    progress: Progress,
    gone: list[str],
    silent: Mapping[str, float],
    interrupts: int,
    deadlines: Deadlines,
    now: float,
) -> Ending | None:
    if interrupts:
        return Ending(reason="interrupted")
    lost = _lost(progress, silent, deadlines, now)
    if ending := conclude(progress, time.time()):
        # Peers of a host that is gone die of it, perhaps before it can be called lost: then it is waited for.
        in_doubt = 0 < sum(seconds > DOUBT_SECONDS for seconds in silent.values()) < len(silent)
        if ending.reason != "died" or not in_doubt:
            return ending
        return _node_lost(lost, silent) if lost else None
    for host in gone:
        if host not in progress.statuses or progress.statuses[host]["state"] != "ended":
            return _agent_lost(host)
    if lost:
        return _node_lost(lost, silent)
    late = overdue(progress, deadlines, now)
    return _stuck(progress, late) if late else None


def _lost(progress: Progress, silent: Mapping[str, float], deadlines: Deadlines, now: float) -> list[str]:
    """The hosts that are gone: nothing is heard of them, and what the others do has stopped as well.

    As long as the others take steps, only the way from here is cut; if nothing is heard of any, then most likely too.
    """
    limit = max(deadlines.lost_seconds, 2 * progress.median_seconds)
    lost = [host for host, seconds in silent.items() if seconds > limit]
    if not lost or len(lost) == len(silent):
        return []
    return lost if now - progress.step_seen > limit else []  # what others did before may be told here late


def _node_lost(lost: list[str], silent: Mapping[str, float]) -> Ending:
    faults = tuple(
        Fault(
            process=LAUNCHER,
            fault="node_lost",
            where=host,
            text=f"nothing has been heard of {host} for {silent[host]:.0f} s, and the others take no step without it",
        )
        for host in lost
    )
    return Ending(reason="died", faults=faults)


def _with_stopped(ending: Ending, progress: Progress) -> Ending:
    """The ending with the peers that went down with the culprit, so that nobody takes them for the cause."""
    if ending.reason != "died":
        return ending
    blamed = {fault.where for fault in ending.faults}
    peers = tuple(
        Fault(
            process=LAUNCHER,
            fault="peer_stopped",
            where=where,
            text=f"{where} {process['sentence'] or 'did not end'}, because another process had died",
        )
        for host, process in progress.processes
        if (where := f"rank {process['rank']} on {host}") not in blamed
        and (process["stopped"] or process["exit_code"] != 0)
    )
    return Ending(reason=ending.reason, exit_code=ending.exit_code, faults=ending.faults + peers)
