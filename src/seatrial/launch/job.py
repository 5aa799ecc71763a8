"""The job that an agent reads: the processes of one host, and how they are to be run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from seatrial.cluster import Host
from seatrial.command import Secret, revealed, shown
from seatrial.node import agent
from seatrial.plan import Plan, Process

LEASE = "launch/lease"
OBSERVE_SECONDS = 5.0  # between two samples of a node's devices

Job = dict[str, Any]


class Terms(NamedTuple):
    """The settings that all agents of a run share."""

    root: PurePath  # the run directory on the nodes
    directory: PurePath  # where the processes are started
    grace_seconds: float
    lease_seconds: float | None


def agent_job(plan: Plan, host: Host, processes: Sequence[Process], at: Terms, *, masked: bool) -> Job:
    """The agent's job for one host; `masked` shows secrets as ***, for the copy that is kept."""
    return {
        "v": agent.VERSION,
        "run": plan.spec.name,
        "directory": str(at.root / "nodes" / host.name),
        "processes": [
            {
                "rank": process.rank,
                "argv": list(process.command.argv),
                "environment": (shown if masked else revealed)(process.command.environment),
                "stdin": process.command.stdin and (str if masked else Secret.reveal)(process.command.stdin),
                "wake": [list(argv) for argv in process.command.wake],
                "after": [list(argv) for argv in process.command.after],
                "cwd": str(at.directory),
                "log": str(at.root / process.log),
            }
            for process in processes
        ],
        "step_pattern": plan.step_pattern,
        "first_step": plan.first_step,
        "grace_seconds": at.grace_seconds,
        "lease_seconds": at.lease_seconds,
        "lease_file": str(at.root / LEASE),
        "observe_seconds": OBSERVE_SECONDS,
    }
