"""What is concluded from what the agents report: pure functions, the same for this machine and for a cluster."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Any

from seatrial.events import Fault
from seatrial.launch.deadlines import Deadlines
from seatrial.node.agent import blame

Status = dict[str, Any]  # an agent's status.json

DOUBT_SECONDS = 6.0  # of a host that speaks once a second
LAUNCHER = -1
EXIT_SPEC_WRONG = 2  # the trainer's code for a spec that it cannot run
EXIT_UNSTARTABLE = (125, 126, 127)  # 125: docker and podman could not make the container
_NUMBER = (int, float)
# What is relied on of an agent's status, and of each process in it; other keys may be there or not.
_AGENT: Mapping[str, tuple[type, ...]] = {
    "state": (str,), "stop_reason": (str, NoneType), "processes": (list,),
}  # fmt: skip
_PROCESS: Mapping[str, tuple[type, ...]] = {
    "rank": (int,), "state": (str,), "exit_code": (int, NoneType), "signal": (int, NoneType),
    "stopped": (bool,), "suspended": (bool,), "started": (*_NUMBER, NoneType), "ended": (*_NUMBER, NoneType),
    "last_step": (int, NoneType), "last_line": (str,), "lost_bytes": (int,), "sentence": (str, NoneType),
}  # fmt: skip
MONITORS = {"podman": "conmon", "docker": "containerd-shim or dockerd"}


def status_of(text: str | bytes) -> Status:
    """An agent's status.json. Raises ValueError for what no agent has written, or not all of."""
    try:
        status = json.loads(text)
    except RecursionError as error:
        raise ValueError("its brackets nest too deep") from error
    if not _has(status, _AGENT) or not all(_has(process, _PROCESS) for process in status["processes"]):
        raise ValueError("it is not an agent's status")
    return dict(status)


def _has(data: Any, fields: Mapping[str, tuple[type, ...]]) -> bool:
    """Whether plain data is an object with all of these keys, each of one of its types; a boolean is no number."""
    return isinstance(data, dict) and all(
        isinstance(data.get(name, ...), types) and (bool in types or not isinstance(data[name], bool))
        for name, types in fields.items()
    )


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Why a run is over: a reason as `events.RunEnded` names it, the exit code behind it, and the evidence."""

    reason: str
    exit_code: int | None = None
    faults: tuple[Fault, ...] = ()
    left: tuple[str, ...] = ()  # hosts where something may go on, because they could not be told to end


@dataclass
class Progress:
    """What the launcher has seen so far: the agents' statuses by host, and the pace of the steps."""

    planned_steps: int
    started: float = field(default_factory=time.monotonic)
    statuses: dict[str, Status] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)  # hosts without a status yet
    processes: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # (host, status) in rank order
    silent: dict[str, float] = field(default_factory=dict)  # seconds since something was heard, by host
    uncopied: dict[str, str] = field(default_factory=dict)  # why not all that a host wrote is here, by host
    last_step: int | None = None
    step_seen: float = 0.0  # when last_step came, monotonic
    intervals: list[float] = field(default_factory=list)
    first_exit: tuple[int, float] | None = None  # (rank, when it was seen, monotonic) of the first that ended
    ending: Ending | None = None  # known as soon as the processes are being stopped

    def see(self, statuses: Mapping[str, Status | None], now: float) -> None:
        """Takes in what the agents report at the monotonic time `now`."""
        self.statuses = {host: status for host, status in statuses.items() if status is not None}
        self.missing = [host for host, status in statuses.items() if status is None]
        pairs = [(host, process) for host, status in self.statuses.items() for process in status["processes"]]
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
    if progress.missing or not progress.processes:
        where = f" on {', '.join(progress.missing)}" if progress.statuses else ""
        late = _late(f"no agent has reported{where}", now - progress.started, deadlines.start_seconds)
        if late or not progress.processes:
            return late
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
        return _stood_still(_died(culprit, progress.last_step), suspended(progress), "suspended by a signal")
    if not progress.statuses or progress.missing:
        return None
    if any(status["state"] != "ended" for status in progress.statuses.values()):
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


def _died(process: dict[str, Any], last_step: int | None) -> Ending:
    where = f"rank {process['rank']} on {process['host']}"
    last = f"; its last line: {process['last_line']}" if process["last_line"] else ""
    code = process["exit_code"] if process["signal"] is None else 128 + process["signal"]
    began = last_step is not None or process.get("outlived", False)
    could_not_run = code in (EXIT_SPEC_WRONG, *EXIT_UNSTARTABLE) and not began
    kind, text = "start_failed" if could_not_run else "process_died", f"{where} {process['sentence']}"
    if began and (process.get("outlived") or (process.get("contained") and code == EXIT_UNSTARTABLE[0])):
        kind, text = "monitor_lost", _monitor_lost(process, where, last_step)
    facts = {"exit_code": code, "rank": process["rank"]}
    fault = Fault(process=LAUNCHER, fault=kind, where=where, text=f"{text}{last}", facts=facts)
    return Ending(reason="could_not_run" if could_not_run else "died", exit_code=code, faults=(fault,))


def _monitor_lost(process: dict[str, Any], where: str, last_step: int | None) -> str:
    """What became of a container whose engine has lost it."""
    engine = process["contained"]
    when = "before the first step" if last_step is None else f"after step {last_step}"
    fate = "was still alive and was stopped" if process["outlived"] else "has died, or nothing is known of it"
    return (
        f"{engine} lost the container of {where} {when}: its monitor ({MONITORS.get(engine, 'of the engine')}) was "
        f"killed or died, and `{engine} run` {process['sentence']}; the training in it {fate}"
    )


def suspended(progress: Progress) -> list[str]:
    """The ranks that a signal has suspended, and their hosts."""
    return [f"rank {p['rank']} on {host}" for host, p in progress.processes if p["suspended"]]


def _stood_still(ending: Ending, held: list[str], how: str) -> Ending:
    """The ending of a run whose others died, or took no step, because somebody held some of its ranks."""
    if not held or ending.reason not in ("died", "no_progress"):
        return ending
    where = ", ".join(held)
    fault = Fault(process=LAUNCHER, fault="no_progress", where=where, text=f"{where} took no further step: {how}")
    victims = tuple(replace(fault, fault="peer_stopped") for fault in ending.faults)
    return Ending(reason="no_progress", faults=(fault, *victims), left=ending.left)


def _agent_lost(host: str) -> Ending:
    text = f"the agent on {host} ended before its processes did; see nodes/{host}/agent.log"
    return Ending(
        reason="died", faults=(Fault(process=LAUNCHER, fault="process_died", where=f"agent on {host}", text=text),)
    )


def _stuck(progress: Progress, text: str) -> Ending:
    held = suspended(progress)
    evidence = f"; suspended by a signal: {', '.join(held)}" if held else ""
    if progress.missing or not progress.processes:
        hosts = ", ".join(progress.missing) if progress.statuses else ""
        fault = Fault(process=LAUNCHER, fault="start_failed", where=hosts, text=text)
        return Ending(reason="could_not_run", faults=(fault,))
    where = ", ".join(held) or "all ranks"
    fault = Fault(process=LAUNCHER, fault="no_progress", where=where, text=text + evidence)
    return Ending(reason="no_progress", faults=(fault,))


def judge(
    progress: Progress,
    gone: list[str],
    silent: Mapping[str, float],
    interrupts: int,
    deadlines: Deadlines,
    now: float,
) -> Ending | None:
    """How the run has ended, by all that is known at the monotonic time `now`; None while it goes on.

    `gone` are the hosts whose agents have ended, `silent` the seconds for which nothing was heard of each host.
    """
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


def with_stopped(ending: Ending, progress: Progress) -> Ending:
    """The ending with the peers that went down with the culprit, so that nobody takes them for the cause.

    That a container was paused is known only now.
    """
    paused = [f"rank {p['rank']} on {host}" for host, p in progress.processes if p.get("paused")]
    ending = _stood_still(ending, paused, "its container was paused")
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
    return replace(ending, faults=ending.faults + peers)
