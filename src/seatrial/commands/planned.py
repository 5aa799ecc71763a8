"""The run that would be started: what was asked for, the estimates, the plan, its files; `seatrial plan` shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seatrial.commands.check import read_valid, spec_of
from seatrial.commands.device_profile import profile_for, unused
from seatrial.commands.run import RunRequest, plan_run
from seatrial.console import warn
from seatrial.errors import LaunchError, Problem
from seatrial.launch.targets import checked, scripts, target, with_requests
from seatrial.plan import Plan
from seatrial.report.expected import expected
from seatrial.runs.directory import new_directory, resolved_as_dict
from seatrial.spec import Action, Resolved, RunSpec


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run as it would be; nothing of it is started, and no file is written.

    `asked` is what the configuration asks for, with the origin of each value. `plan` is what would run: the spec after
    the changes of a rehearsal, and for each process its rank, host and command; None where this machine lacks
    what the run asks for, and `missing` says what that is. `files` are those that would be written for it, by their
    paths in the run directory. `expected` holds the estimates of memory (bytes per device), step time (seconds, lowest
    and highest) and speed, and under `time` the parts of a step; None for what needs a device that is known.
    """

    asked: Resolved
    plan: Plan | None
    missing: str
    files: Mapping[str, str]
    expected: Mapping[str, Any]

    @property
    def spec(self) -> RunSpec:
        """The spec that would run, or where none can, the one that is asked for."""
        return self.plan.spec if self.plan else spec_of(self.asked)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The findings on the configuration; none of them is an error."""
        return self.asked.problems

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain data; secrets are masked."""
        made = self.plan and {**self.plan.as_dict(), "files": dict(self.files)}
        shown = {"asked": resolved_as_dict(self.asked), "expected": dict(self.expected), "plan": made}
        return {"v": 1, **shown, **({"missing": self.missing} if self.missing else {})}


def planned(request: RunRequest) -> PlannedRun:
    """The run as it would be started. Raises InputError where the configuration has errors."""
    resolved = read_valid(request.config, action=action_of(request), engine=request.engine, say=request.say)
    spec, where = spec_of(resolved), request.where
    run_dir = new_directory(spec).resolve()
    try:
        where = with_requests(checked(where), spec, rehearsing=request.rehearse)
        site = target(where.on).site(where, spec, run_dir)
        plan, missing = plan_run(request, spec, run_dir, site=site, on=where.on), ""
    except LaunchError as error:
        plan, missing = None, str(error)
    warn(unused(spec), request.say)
    reckoned = expected(spec, request.engine, profile_for(spec))
    files = {**plan.files, **scripts(where, plan, run_dir)} if plan else {}
    return PlannedRun(asked=resolved, plan=plan, missing=missing, files=files, expected=reckoned)


def action_of(request: RunRequest) -> Action:
    return "rehearse" if request.rehearse else "plan"
