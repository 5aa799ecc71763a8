"""A run's ending, concluded from what its agents report: pure functions, the same for this machine and a cluster."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from seatrial.events import Fault
from seatrial.launch.deadlines import Deadlines
from seatrial.launch.progress import Ending, Progress
from seatrial.node.agent import blame

DOUBT_SECONDS = 6.0  # of a host that speaks once a second
LAUNCHER = -1
EXIT_SPEC_WRONG = 2  # the trainer's code for a spec that it cannot run
EXIT_UNSTARTABLE = (125, 126, 127)  # 125: docker and podman could not make the container
MONITORS = {"podman": "conmon", "docker": "containerd-shim or dockerd"}


def seen_fault(fault: str, where: str, text: str, facts: Mapping[str, Any] | None = None) -> Fault:
    """A fault that the launcher saw."""
    return Fault(process=LAUNCHER, fault=fault, where=where, text=text, facts=facts or {})


def with_victims(fault: Fault, others: Iterable[Fault]) -> tuple[Fault, ...]:
    """A fault that explains the others: what they report was done to its victims."""
    return (fault, *(replace(other, fault="peer_stopped") for other in others))


def overdue(progress: Progress, deadlines: Deadlines, now: float) -> str | None:
    """The event that is overdue at the monotonic time `now`, as a sentence; None if nothing is late."""
    if progress.missing or not progress.processes:
        where = f" on {', '.join(progress.missing)}" if progress.statuses else ""
        late = _late(f"no agent has reported{where}", now - progress.started, deadlines.start_seconds)
        if late or not progress.processes:
            return "; ".join([late, *list(progress.unreached.values())[:1]]) if late else None
    median = progress.median_seconds
    at_the_end = deadlines.at_the_end(median)
    if progress.first_exit is not None:
        rank, seen = progress.first_exit
        waited = now - max(seen, progress.step_seen)
        return _late(f"not all processes have ended after rank {rank} ended", waited, at_the_end)
    if progress.last_step is None:
        return _late("no first step (compilation included)", now - progress.started, deadlines.first_step_seconds)
    waited = now - progress.step_seen
    if progress.last_step >= progress.planned_steps - 1:
        return _late("not all processes have ended after the last step", waited, at_the_end)
    limit = deadlines.between_steps(median)
    if progress.last_step >= progress.planned_steps - deadlines.logged_steps:  # no further step is logged
        limit += at_the_end
    return _late(f"no step after step {progress.last_step}", waited, limit)


def _late(what: str, seconds: float, limit: float) -> str | None:
    return f"{what} for {seconds:.0f} s; the limit is {limit:.0f} s" if seconds > limit else None


def conclude(progress: Progress, wall_now: float) -> Ending | None:
    """The ending by what the processes did; None while they go on or the cause cannot be named yet."""
    clocks = progress.clocks()
    failed = [
        {**process, "host": host, "ended": process["ended"] + clocks[host]}
        for host, process in progress.processes
        if process["state"] in ("exited", "unstartable") and not process["stopped"] and process["exit_code"] != 0
    ]
    over = bool(progress.statuses) and not progress.missing
    over = over and all(status["state"] == "ended" for status in progress.statuses.values())
    culprit = blame(failed, math.inf if over else wall_now)
    if culprit:
        return _stood_still(_died(culprit, progress.last_step), suspended(progress), "suspended by a signal")
    if not over:
        return None
    if any(process["stopped"] for _, process in progress.processes):
        return _stopped_by_an_agent(progress)
    return None if failed else Ending(reason="completed", exit_code=0)


def _stopped_by_an_agent(progress: Progress) -> Ending:
    faults = tuple(
        seen_fault(
            "peer_stopped", f"agent on {host}", f"the agent on {host} stopped its processes: {status['stop_reason']}"
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
    if process.get("memory_kills", 0) > 0:
        kind = "host_oom"
    facts = {"exit_code": code, "rank": process["rank"]}
    fault = seen_fault(kind, where, f"{text}{last}", facts)
    return Ending(reason="could_not_run" if could_not_run else "died", exit_code=code, faults=(fault,))


def _monitor_lost(process: dict[str, Any], where: str, last_step: int | None) -> str:
    """A sentence on a container that its engine lost, and on the training in it."""
    engine = process["contained"]
    when = "before the first step" if last_step is None else f"after step {last_step}"
    fate = "was still alive and was stopped" if process["outlived"] else "has died, or its fate is unknown"
    return (
        f"{engine} lost the container of {where} {when}: its monitor ({MONITORS.get(engine, 'of the engine')}) was "
        f"killed or died, and `{engine} run` {process['sentence']}; the training in it {fate}"
    )


def suspended(progress: Progress) -> list[str]:
    """The ranks that a signal has suspended, and their hosts."""
    return [f"rank {p['rank']} on {host}" for host, p in progress.processes if p["suspended"]]


def _stood_still(ending: Ending, held: list[str], how: str) -> Ending:
    """The ending of a run that died, or took no step, because some of its ranks were held."""
    if not held or ending.reason not in ("died", "no_progress"):
        return ending
    where = ", ".join(held)
    fault = seen_fault("no_progress", where, f"{where} took no further step: {how}")
    return Ending(reason="no_progress", faults=with_victims(fault, ending.faults), left=ending.left)


def _agent_lost(host: str) -> Ending:
    text = f"the agent on {host} ended before its processes did; see nodes/{host}/agent.log"
    return Ending(reason="died", faults=(seen_fault("process_died", f"agent on {host}", text),))


def _stuck(progress: Progress, text: str) -> Ending:
    held = suspended(progress)
    evidence = f"; suspended by a signal: {', '.join(held)}" if held else ""
    if progress.missing or not progress.processes:
        hosts = ", ".join(progress.missing) if progress.statuses else ""
        return Ending(reason="could_not_run", faults=(seen_fault("start_failed", hosts, text),))
    where = ", ".join(held) or "all ranks"
    return Ending(reason="no_progress", faults=(seen_fault("no_progress", where, text + evidence),))


def judge(
    progress: Progress,
    gone: list[str],
    silent: Mapping[str, float],
    interrupts: int,
    deadlines: Deadlines,
    now: float,
) -> Ending | None:
    """The ending of the run, as far as is known at the monotonic time `now`; None while it goes on.

    `gone` are the hosts whose agents have ended, `silent` the seconds for which each host has been silent.
    """
    if interrupts:
        return Ending(reason="interrupted")
    lost = _lost(progress, silent, deadlines, now)
    if ending := conclude(progress, time.time()):
        # The peers of a lost host die of that, perhaps before it counts as lost: then its fate is awaited.
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
    """The hosts that are lost: they are silent, and the others have stopped taking steps as well.

    While the others take steps, only the connection from here is cut; if all are silent, most likely too.
    """
    limit = max(deadlines.lost_seconds, 2 * progress.median_seconds)
    lost = [host for host, seconds in silent.items() if seconds > limit]
    if not lost or len(lost) == len(silent):
        return []
    return lost if now - progress.step_seen > limit else []  # news of what the others did before may come late


def _node_lost(lost: list[str], silent: Mapping[str, float]) -> Ending:
    faults = tuple(
        seen_fault(
            "node_lost",
            host,
            f"nothing has been heard from {host} for {silent[host]:.0f} s, and the others take no step without it",
        )
        for host in lost
    )
    return Ending(reason="died", faults=faults)


def with_stopped(ending: Ending, progress: Progress) -> Ending:
    """The ending with the peers that were stopped with the culprit, so that they are not mistaken for the cause.

    Only now is it known which containers were paused.
    """
    paused = [f"rank {p['rank']} on {host}" for host, p in progress.processes if p.get("paused")]
    ending = _stood_still(ending, paused, "its container was paused")
    if ending.reason != "died":
        return ending
    blamed = {fault.where for fault in ending.faults}
    peers = tuple(
        seen_fault(
            "peer_stopped", where, f"{where} {process['sentence'] or 'did not end'}, because another process had died"
        )
        for host, process in progress.processes
        if (where := f"rank {process['rank']} on {host}") not in blamed
        and (process["stopped"] or process["exit_code"] != 0)
    )
    return replace(ending, faults=ending.faults + peers)
