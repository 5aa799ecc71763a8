"""Secrets on their way to hosts that others allot: taken out of what is written down, and named by variables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from seatrial.command import Secret
from seatrial.launch.job import Job
from seatrial.plan import Plan, Process

VARIABLE = "SEATRIAL_SECRET_{}"


def variables_of(plan: Plan) -> dict[str, str]:
    """The variables by which a plan's secrets reach its hosts: value → name."""
    values = dict.fromkeys(value for process in plan.starts for _, _, value in _secrets(process))
    return {value: VARIABLE.format(number) for number, value in enumerate(values)}


def without_secrets(job: Job, processes: Sequence[Process], variables: Mapping[str, str]) -> dict[str, Any]:
    """An agent's job without its secrets; in their place, `secrets` says which variable goes where."""
    stripped, table = json.loads(json.dumps(job)), []
    for place, process in enumerate(processes):
        for where, name, value in _secrets(process):
            table.append((place, where, name, variables[value]))
            if where == "stdin":
                stripped["processes"][place]["stdin"] = None
            else:
                del stripped["processes"][place]["environment"][name]
    return {**stripped, "secrets": table}


def _secrets(process: Process) -> list[tuple[str, str, str]]:
    """The secrets of a process: (environment or stdin, name, value)."""
    given = [("environment", name, value) for name, value in process.command.environment.items()]
    found = [*given, ("stdin", "", process.command.stdin)]
    return [(where, name, value.reveal()) for where, name, value in found if isinstance(value, Secret)]
