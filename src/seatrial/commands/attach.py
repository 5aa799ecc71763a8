"""`seatrial attach`: follow a run again that was started before."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seatrial.commands.judge import judge_and_report
from seatrial.console import heard_or_not
from seatrial.errors import InputError, LaunchError, reason_of
from seatrial.launch.display import watched
from seatrial.launch.targets import Target, target
from seatrial.runs.directory import short_path
from seatrial.runs.documents import Documents
from seatrial.runs.mirror import shortage
from seatrial.runs.status import STATUS_FILE, launcher_pid, read_status, starting_pid, state_of

if TYPE_CHECKING:
    from seatrial.verdict import Verdict


def attach(run_dir: Path) -> Verdict:
    """Follows a run on a cluster again, to its verdict. Raises InputError if somebody does so, or it is over."""
    has_status = (run_dir / STATUS_FILE).exists()
    status = read_status(run_dir) if has_status or starting_pid(run_dir) is None else {}
    if state_of(run_dir, status) == "ended":
        raise run_is_over(run_dir, status, f"read it: seatrial judge {short_path(run_dir)}")
    if pid := launcher_pid(status) if has_status else starting_pid(run_dir):
        raise InputError.single(
            "run-followed", str(run_dir), f"process {pid} follows it already", _let_go(run_dir, pid)
        )
    spec = Documents(run_dir).spec()
    assert spec is not None  # only of logs that were judged there is none, and they have no status
    there, engine = target_and_engine(run_dir)
    try:
        with watched(run_dir, spec, engine) as following:
            there.attach(run_dir, following, name=spec.name, planned_steps=spec.step_limit)
    except OSError as error:
        raise LaunchError(f"the run cannot be followed here: {shortage(error, run_dir)}") from error
    _, verdict, text = judge_and_report(run_dir)
    with heard_or_not():
        print(text, flush=True)
    return verdict


def _let_go(run_dir: Path, pid: int) -> str:
    """The advice on a run that another process follows; one on this machine lives no longer than that process."""
    watch = f"look there, or watch from here: seatrial logs -f {short_path(run_dir)}"
    with suppress(InputError):  # it may have no plan yet
        if plan_of(run_dir).get("on") == "local":
            return f"{watch}; it runs on this machine, and ends with that process"
    return f"{watch}; to follow it in its place, close that terminal (or: kill -HUP {pid}): Ctrl-C would end the run"


def run_is_over(run_dir: Path, status: dict[str, Any], fix: str) -> InputError:
    """The error of what only a run that goes on can do."""
    return InputError.single("run-over", str(run_dir), f"this run is over ({status.get('reason')})", fix)


def target_and_engine(run_dir: Path) -> tuple[Target, str]:
    """The target and the engine of a run. Raises InputError where its plan does not say."""
    plan = plan_of(run_dir)
    on, engine = plan.get("on"), plan.get("engine")
    if not isinstance(on, str) or not isinstance(engine, str):
        raise without_plan(run_dir, "does not say where it runs")
    return target(on), engine


def plan_of(run_dir: Path) -> dict[str, Any]:
    """The plan of a run. Raises InputError where it cannot be read."""
    try:
        return Documents(run_dir)["plan.json"]
    except (OSError, ValueError) as error:
        raise without_plan(run_dir, f"cannot be read ({reason_of(error)})") from error


def without_plan(run_dir: Path, what: str) -> InputError:
    """The error of a run whose plan is missing or damaged."""
    return InputError.single("no-run", str(run_dir), f"its plan.json {what}", "name the directory that a run printed")
