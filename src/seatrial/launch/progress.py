"""The launcher's view of a run: the agents' statuses, the progress of the steps, and the end of the run."""

from __future__ import annotations

import json
import statistics
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

from seatrial.events import Fault

Status = dict[str, Any]  # an agent's status.json

CLOCKS_SECONDS = 3.0  # by which clocks seem to differ that agree: statuses come late
RECENT = 20  # statuses of a host by which its clock is known
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


def status_of(text: str | bytes) -> Status:
    """An agent's status.json. Raises ValueError for one that no agent wrote, or only in part."""
    try:
        status = json.loads(text)
    except RecursionError as error:
        raise ValueError("its brackets are nested too deep") from error
    if not _has(status, _AGENT) or not all(_has(process, _PROCESS) for process in status["processes"]):
        raise ValueError("it is not an agent's status")
    return dict(status)


def _has(data: Any, fields: Mapping[str, tuple[type, ...]]) -> bool:
    """True if plain data is an object with all of these keys, each of its types; a boolean is not a number."""
    return isinstance(data, dict) and all(
        isinstance(data.get(name, ...), types) and (bool in types or not isinstance(data[name], bool))
        for name, types in fields.items()
    )


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The ending of a run: a reason as `events.RunEnded` names it, the exit code behind it, and the evidence."""

    reason: str
    exit_code: int | None = None
    faults: tuple[Fault, ...] = ()
    left: tuple[str, ...] = ()  # hosts where something may go on, because they could not be asked to stop


@dataclass
class Progress:
    """The progress of a run, as the launcher sees it: the agents' statuses by host, and the pace of the steps."""

    planned_steps: int
    started: float = field(default_factory=time.monotonic)
    statuses: dict[str, Status] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)  # hosts without a status yet
    processes: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # (host, status) in rank order
    silent: dict[str, float] = field(default_factory=dict)  # seconds since the last sign of life, by host
    uncopied: dict[str, str] = field(default_factory=dict)  # why not all that a host wrote is here, by host
    unreached: dict[str, str] = field(default_factory=dict)  # why a host cannot be reached, by host
    last_step: int | None = None
    step_seen: float = 0.0  # when last_step came, monotonic
    intervals: list[float] = field(default_factory=list)
    first_exit: tuple[int, float] | None = None  # (rank, when it was seen, monotonic) of the first that ended
    heartbeats: dict[str, float] = field(default_factory=dict)  # the latest of each host, by its clock
    lateness: dict[str, deque[float]] = field(default_factory=dict)  # of recent ones when they were seen, by our clock
    ending: Ending | None = None  # known as soon as the processes are being stopped

    def see(self, statuses: Mapping[str, Status | None], now: float) -> None:
        """Takes in the agents' statuses at the monotonic time `now`."""
        self.statuses = {host: status for host, status in statuses.items() if status is not None}
        for host, status in self.statuses.items():
            self._see_clock(host, status.get("heartbeat"), time.time())
        self.missing = [host for host, status in statuses.items() if status is None]
        pairs = [(host, process) for host, status in self.statuses.items() for process in status["processes"]]
        self.processes = sorted(pairs, key=lambda pair: pair[1]["rank"])
        newest = max((p["last_step"] for _, p in self.processes if p["last_step"] is not None), default=None)
        if newest is not None:
            self._see_step(newest, now)
        exited = [p["rank"] for _, p in self.processes if p["state"] == "exited"]
        if exited and self.first_exit is None:
            self.first_exit = exited[0], now

    def _see_step(self, newest: int, now: float) -> None:
        if self.last_step is None or newest > self.last_step:
            if self.last_step is not None:
                self.intervals = [*self.intervals[-99:], (now - self.step_seen) / (newest - self.last_step)]
            self.last_step, self.step_seen = newest, now

    def _see_clock(self, host: str, heartbeat: float | None, wall_now: float) -> None:
        before = self.heartbeats.get(host)
        if heartbeat is None or heartbeat == before:
            return
        self.heartbeats[host], late = heartbeat, wall_now - heartbeat
        if before is not None or late < 0:  # the first may be from long ago
            self.lateness.setdefault(host, deque(maxlen=RECENT)).append(late)

    def clocks(self) -> dict[str, float]:
        """The seconds to add to a time by each host's clock for the same by ours.

        Hosts that agree with most get the same, so that what they say of the order of events stays as it is.
        """
        late = {host: min(seen) for host, seen in self.lateness.items()}
        usual = statistics.median_low(late.values()) if late else 0.0
        own = {host: late.get(host, usual) for host in self.statuses}
        return {host: it if abs(it - usual) > CLOCKS_SECONDS else usual for host, it in own.items()}

    @property
    def median_seconds(self) -> float:
        """Of a step, as seen from here; 0 before there are two."""
        return statistics.median(self.intervals) if self.intervals else 0.0
