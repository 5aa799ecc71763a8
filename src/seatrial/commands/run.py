"""From a configuration to a verdict: read → plan → launch → follow → judge → report, with retries.

Every stage writes its files into the run directory, so that each can be redone from them; the decisions themselves are
made elsewhere, by functions without side effects.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import util
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from seatrial.command import Secret
from seatrial.commands.check import ConfigArguments, read_valid, spec_of
from seatrial.commands.judge import judge_and_report
from seatrial.commands.preflight import check_before_run
from seatrial.commands.retries import archive_attempt, beginning, decide_retry, mark_decided, mark_undecided
from seatrial.console import Say, heard_or_not, inert
from seatrial.dialects.data_files import has_data
from seatrial.engines import engine as engine_called
from seatrial.errors import InputError, LaunchError
from seatrial.launch.deadlines import Deadlines
from seatrial.launch.display import dispensable, watched
from seatrial.launch.local import free_port, this_machine
from seatrial.launch.targets import Target, checked, target, with_requests
from seatrial.launch.where import HERE, Where
from seatrial.plan import Plan, PlanRequest, Site, choose_remat, collapsed, collapsed_to_fit, make_plan, resumed
from seatrial.publish.live import LiveRun, served
from seatrial.runs.directory import claim, reserved, short_path, write_inputs
from seatrial.runs.status import write_status
from seatrial.shrink.rehearsal import Rehearsal, rehearse
from seatrial.spec import Action, Resolved, RunSpec
from seatrial.xla_flags import given_in

if TYPE_CHECKING:
    from seatrial.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A run as it is asked for; `retries` counts further attempts after infrastructure failures.

    `text`: a rehearsal learns from real text. `say` takes the lines of its progress in the place of the terminal.
    `metrics_port` is where its figures are served meanwhile, as [HOST:]PORT.
    """

    config: ConfigArguments
    where: Where = HERE
    engine: str = "native"
    rehearse: bool = False
    collapse: bool = False
    text: bool = False
    out: Path | None = None
    retries: int = 0
    deadlines: Deadlines | None = None
    say: Say | None = None
    metrics_port: str | None = None

    def __post_init__(self) -> None:
        if self.rehearse and self.collapse:
            why, fix = "a rehearsal shrinks the mesh as well", "give --rehearse or --collapse"
            raise InputError.single("two-ways", "--collapse", why, fix)
        if self.text and not (self.rehearse and self.engine == "native"):
            why, fix = "it is for rehearsals with Seatrial's own trainer", "add --rehearse, or omit it"
            raise InputError.single("text", "--text", why, fix)
        if self.retries < 0:
            raise InputError.single("retries", "--retries", f"{self.retries} is no number of retries", "give 0 or more")

    def tell(self, line: str) -> None:
        """Prints a line of the run's progress, or gives it to `say`."""
        if self.say is None:
            with dispensable():
                print(line, flush=True)
        else:
            self.say(line)


class Ended(NamedTuple):
    """A run that is over: its directory, its verdict, and its report as text."""

    directory: Path
    verdict: Verdict
    text: str


def run(request: RunRequest) -> Verdict:
    """Runs a configuration to its verdict, live on the terminal; the report is in the run directory. Raises as
    `run_to_end` does."""
    ended = run_to_end(request)
    with heard_or_not():
        print(ended.text, flush=True)
    return ended.verdict


def run_to_end(request: RunRequest) -> Ended:
    """Runs a configuration to its verdict.

    Raises LaunchError where nothing can be started, InputError where the configuration has errors, or the engine, the
    run directory or the port for metrics cannot be used.
    """
    with served(request.metrics_port, request.tell) as live:
        return _run_to_end(request, live)


def _run_to_end(request: RunRequest, live: LiveRun) -> Ended:
    action: Action = "rehearse" if request.rehearse else "run"
    resolved = read_valid(request.config, action=action, engine=request.engine, say=request.say)
    where = with_requests(checked(request.where), spec_of(resolved), rehearsing=request.rehearse)
    there = target(where.on)
    with nullcontext(request.out) if request.out else reserved(spec_of(resolved)) as path:
        return _in_directory(request, live, resolved, path.resolve(), where=where, there=there)


def _in_directory(
    request: RunRequest, live: LiveRun, resolved: Resolved, run_dir: Path, *, where: Where, there: Target
) -> Ended:
    """Runs a configuration, with retries, in a directory that is not claimed yet."""
    for attempt in count(1):
        with beginning(run_dir):
            plan, site = _prepare(request, resolved, run_dir, where=where, there=there, attempt=attempt)
            with watched(run_dir, plan.spec, plan.engine, request.deadlines, request.say) as display:
                following = live.follow(display, run_dir, plan.spec)
                there.run(plan, run_dir, following, where=where, site=site, attempt=attempt)
        report, verdict, text = judge_and_report(run_dir)
        if attempt > request.retries or verdict.outcome == "pass":
            break
        decision = decide_retry(report, verdict, run_dir, plan, site)
        request.tell(f"attempt {attempt} of {1 + request.retries} is over; {inert(decision.reason)}")
        if not decision.retry:
            break
        where = there.without(where, decision.exclude, run_dir) if decision.exclude else where
        archive_attempt(run_dir, plan.spec, attempt)
    mark_decided(run_dir)
    live.end(report, request.tell)
    return Ended(run_dir, verdict, text)


def _prepare(
    request: RunRequest, resolved: Resolved, run_dir: Path, *, where: Where, there: Target, attempt: int
) -> tuple[Plan, Site | None]:
    """Everything of an attempt before its start: the plan, the run directory, and the preflight of its hosts."""
    spec = spec_of(resolved)
    site = there.site(where, spec, run_dir)
    trained = resumed(spec) if attempt > 1 else spec
    plan = plan_run(
        request, trained, run_dir, site=site, on=where.on, attempt=attempt, restarts=there.restarts(where),
        coordinator=f"127.0.0.1:{free_port()}",
    )  # fmt: skip
    if attempt == 1:
        claim(run_dir)
        write_status(run_dir, plan.spec, "starting")
    write_inputs(resolved, request.config.config, plan, run_dir)
    if attempt <= request.retries:
        mark_undecided(run_dir)
    request.tell(f"run directory: {short_path(run_dir)}")
    for each in plan.notes:
        request.tell(f"note: {inert(each)}")
    if site is not None and there.KNOWS_ITS_HOSTS and where.preflight:
        check_before_run(plan, site, run_dir, transport=where.ssh, say=request.say)
    return plan, site


def plan_run(request: RunRequest, spec: RunSpec, run_dir: Path, *, site: Site | None = None, **options: Any) -> Plan:
    """The plan of a run as requested, on this machine or at a site; `options` are further fields of PlanRequest."""
    engine = engine_called(request.engine)
    needs_jax = engine.NEEDS_JAX_HERE and site is None
    machine = this_machine(for_jax=needs_jax)
    if needs_jax:
        require_trainer()
    rehearsal: Rehearsal | None = None
    if request.collapse:  # what fits is decided for the devices here
        shrink = collapsed_to_fit if site is None else collapsed
        rehearsal, notes = shrink(spec, machine, request.engine)[:2]
    else:
        spec, notes = choose_remat(spec, machine, request.engine)
    if request.rehearse:
        rehearsal = rehearse(
            spec,
            cores=machine.cores,
            memory_bytes=machine.memory_bytes,
            has_data=has_data(spec),
            hosts=len(site.cluster.hosts) if site else None,
            fixed=engine.FIXED,
            on_text=request.text,
        )
    return make_plan(
        PlanRequest(
            spec=spec,
            run_dir=run_dir,
            machine=machine,
            engine=request.engine,
            site=site,
            rehearsal=rehearsal,
            secrets=_secrets(spec),
            shell={**os.environ, "XLA_FLAGS": given_in(os.environ)},
            remat_notes=notes,
            **options,
        )
    )


def require_trainer() -> None:
    """Raises LaunchError where jax is not installed."""
    if util.find_spec("jax") is None:
        raise LaunchError("the trainer needs jax, which is not installed: pip install 'seatrial[train]'")


def _secrets(spec: RunSpec) -> dict[str, Secret]:
    """Variables that the configuration names a file of; none where the file cannot be read here."""
    if spec.hf_token_file is None:
        return {}
    try:
        token = Path(spec.hf_token_file).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, ValueError, RuntimeError):
        return {}
    return {"HF_TOKEN": Secret(token)} if token else {}
