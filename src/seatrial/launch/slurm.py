"""The target `slurm`: submits a job, waits for it, and follows it through the run directory that all nodes share.

Its hosts are not known before it runs. So the plan has stand-ins for them, which `slurm_node.py` fills in on every
node; from then on it is a run like any other: an agent on each node, and files that are read here.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath

from seatrial.cluster import Cluster, Host
from seatrial.errors import InputError, LaunchError
from seatrial.launch.follow import Following, Node
from seatrial.launch.hidden import variables_of, without_secrets
from seatrial.launch.job import Job, Terms, agent_job
from seatrial.launch.launcher import Begun, launch, supervise
from seatrial.launch.progress import Ending, Progress, Status, status_of
from seatrial.launch.record import read_record
from seatrial.launch.scheduler_options import seconds_of
from seatrial.launch.slurm_job import IMAGE, NONCE, Script, options, outside, plain, recipe_log, render, submission
from seatrial.launch.slurm_queue import Watch, cancel, look, meaning
from seatrial.launch.where import Where
from seatrial.node import UNDER_SLURM, of_the_agent, slurm_node, text_of
from seatrial.plan import Plan, Site, by_host
from seatrial.runs.files import read_object, read_text, touch, write_json, write_text
from seatrial.spec import RunSpec

KNOWS_ITS_HOSTS = False
RECORD = "launch/slurm/job.json"
SCRIPT = "launch/slurm/job.sh"
PLAN = "launch/slurm/plan.json"  # as it was before there were hosts
SUBMIT_SECONDS = 120.0
LOST_SECONDS = 60.0  # a network file system may show what others have written that late
IMPORT_SECONDS = 3600.0  # pyxis fetches an image before anything of ours runs: 10 to 20 GB of a registry, unpacked


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """The file RECORD, from when a job is submitted."""

    job: int
    nodes: int
    options: dict[str, str]
    log: str | None  # the path of a link to the first process's log
    v: int = 1


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A run's request to Slurm: options by name, as in `slurm_job.OPTIONS`, and how long it may wait."""

    options: Mapping[str, str]
    queue_seconds: float | None = None

    @property
    def requeues(self) -> bool:
        return self.options.get("requeue") == "yes"


def wished(where: Where) -> Wish:
    """The request in the KEY=VALUE words and the duration. Raises InputError for what Slurm cannot be asked."""
    seconds = seconds_of(where.queue_deadline, "--queue-deadline") if where.queue_deadline else None
    return Wish(options=options(where.slurm), queue_seconds=seconds)


def site(where: Where, spec: RunSpec | None, run_dir: Path) -> Site:
    """The site of a job before there is one: stand-ins for its hosts, in rank order.

    Raises InputError for a run directory that Slurm would read as more than a path.
    """
    asked = wished(where).options.get("nodes")
    nodes = int(asked or (spec.topology.num_nodes if spec else 1))
    hosts = (Host(name=slurm_node.HOST % n, address=slurm_node.ADDRESS % n) for n in range(nodes))
    root = PurePosixPath(plain(run_dir.resolve(), "the run directory"))
    cluster = Cluster(hosts=tuple(hosts), transport="slurm")
    return Site(cluster=cluster, root=root, python=where.python, runtime=where.container)


def restarts(where: Where) -> bool:
    """True if a job that Slurm has requeued starts the processes again."""
    return wished(where).requeues


def without(where: Where, hosts: tuple[str, ...], run_dir: Path) -> Where:
    """The same without some hosts."""
    given = wished(where).options
    excluded = ",".join([*filter(None, [given.get("exclude")]), *hosts])
    return replace(where, slurm=(*where.slurm, f"exclude={excluded}"))


class SlurmNode(Node):
    """A host of a job, known by its number until it is allotted; read through the run directory."""

    def __init__(self, number: int, run_dir: Path, watch: Watch) -> None:
        self.number = number
        self._run_dir, self._watch = run_dir, watch
        self._host: str | None = None
        self._restarts = 0
        self._status: Status | None = None
        self._heard = time.monotonic()

    @property
    def name(self) -> str:
        return self._host or slurm_node.HOST % self.number

    def status(self) -> Status | None:
        job = self._watch.job
        if job and job.restarts > self._restarts:  # what was there is over
            self._host = self._status = None
        if self._host is None:
            place = _place(self._run_dir, self.number)
            if place is None or (job and job.restarts > place.restarts):
                return None
            self._host, self._restarts, self._heard = place.host, place.restarts, time.monotonic()
        with suppress(OSError, ValueError):  # not there yet, or half written
            status = status_of(read_text(self._run_dir / "nodes" / self._host / "status.json"))
            if status != self._status:
                self._status, self._heard = status, time.monotonic()
        return self._status

    def agent_ended(self) -> bool:
        return self._watch.over() or (self._status is not None and self._status["state"] == "ended")

    def silent_seconds(self) -> float:
        ended = self._status is None or self._status["state"] == "ended"
        return 0.0 if ended else time.monotonic() - self._heard

    def stop(self, *, now: bool) -> None:
        status = self._status
        if now and status and all(p["state"] in ("exited", "unstartable") for p in status["processes"]):
            return  # the agent still clears away containers, and its job has failed, not been cancelled
        # Slurm's own signal would reach agent and processes alike, and a second one means: at once.
        if self._host is not None and not now:
            with suppress(OSError):
                touch(self._run_dir / "nodes" / self._host / "stop", below=self._run_dir)
                return
        self._watch.cancel()


def run(plan: Plan, run_dir: Path, following: Following, *, where: Where, site: Site | None, attempt: int) -> Ending:
    """Runs a plan's processes as a job, and returns when it is over. Raises LaunchError where Slurm refuses the job."""
    run_dir, wish = run_dir.resolve(), wished(where)
    with ExitStack() as open_until_the_end:

        def begin(jobs: Sequence[tuple[str, Job]]) -> Begun:
            at = Terms(run_dir, run_dir, following.deadlines.grace_seconds, None)
            again = [agent_job(plan, host, own, at, masked=False) for host, own in by_host(plan.restart).items()]
            record = _submit(plan, run_dir, [job for _, job in jobs], again, wish=wish)
            number = record.job
            following.say(f"job {number} is submitted; to stop it: seatrial stop {run_dir}, or scancel {number}")
            watch = Watch(
                number, run_dir=run_dir, requeues=wish.requeues,
                deadline_seconds=wish.queue_seconds, say=following.say,
            )  # fmt: skip
            return _nodes(record, run_dir, open_until_the_end.enter_context(closing(watch)))

        patient = _patient(following, run_dir, imports=plan.container is not None)
        return launch(plan, run_dir, begin=begin, root=run_dir, directory=run_dir, following=patient)


def _submit(plan: Plan, run_dir: Path, jobs: Sequence[Job], again: Sequence[Job], *, wish: Wish) -> Submitted:
    """Hands a plan to Slurm, and leaves a record of its job. Raises LaunchError where Slurm refuses it."""
    hidden: dict[str, str] = {}
    script = _lay_out(plan, run_dir, jobs, again, wish=wish, hidden=hidden)
    number = _sbatch(run_dir / SCRIPT, script, hidden)
    results = wish.options.get("results")
    link = str(Path(results).resolve() / recipe_log(plan.spec, plan.engine, number)) if results else None
    record = Submitted(job=number, nodes=len(jobs), options=dict(wish.options), log=link)
    try:
        write_json(run_dir / RECORD, asdict(record))
    except OSError:  # nobody would find it again
        cancel(number)
        raise
    return record


def _nodes(record: Submitted, run_dir: Path, watch: Watch) -> Begun:
    return [SlurmNode(number, run_dir, watch) for number in range(record.nodes)], watch


def attach(run_dir: Path, following: Following, *, name: str, planned_steps: int) -> Ending:
    """Follows a job again that somebody else has submitted, and returns when nothing of it is left."""
    run_dir, record = run_dir.resolve(), find(run_dir)
    requeues = Wish(options=record.options).requeues
    with closing(Watch(record.job, run_dir=run_dir, requeues=requeues, say=following.say)) as watch:
        return supervise(
            lambda: _nodes(record, run_dir, watch), run_dir, _patient(following, run_dir, imports=_imports(run_dir)),
            name=name, planned_steps=planned_steps, root=run_dir, detached=True,
        )  # fmt: skip


def stop(run_dir: Path, *, now: bool) -> None:
    """Asks the agents of a job to stop; a job that has none yet, or is to stop now, is cancelled."""
    record = find(run_dir)
    places = [_place(run_dir, n) for n in range(record.nodes)]
    if now or not all(places) or meaning(look(record.job)).phase == "waiting":
        cancel(record.job)
        return
    for place in filter(None, places):
        touch(run_dir / "nodes" / place.host / "stop", below=run_dir)


def find(run_dir: Path) -> Submitted:
    """The job of a run directory. Raises InputError where it has none."""
    return read_record(run_dir, RECORD, Submitted, "under Slurm")


def _imports(run_dir: Path) -> bool:
    """True if pyxis starts the agents of a submitted job in an image."""
    with suppress(OSError):
        return IMAGE in read_text(run_dir / SCRIPT)
    return False


def _patient(following: Following, run_dir: Path, *, imports: bool) -> Following:
    """The same with longer deadlines, for hosts that become known later and files on a network file system."""
    start = 2 * LOST_SECONDS + (IMPORT_SECONDS if imports else 0.0)
    patient = following.patient(start_seconds=start, lost_seconds=LOST_SECONDS)
    return patient._replace(on_progress=_Settled(run_dir, following.on_progress).see)


def _lay_out(
    plan: Plan, run_dir: Path, jobs: Sequence[Job], again: Sequence[Job], *, wish: Wish, hidden: dict[str, str]
) -> Script:
    """Writes what the job needs, and the script that starts it; secrets go into `hidden`, by variable."""
    variables = variables_of(plan)
    hidden |= {name: value for value, name in variables.items()}
    there = run_dir / "launch" / "slurm"
    there.mkdir(exist_ok=True)
    nonce = secrets.token_hex(16)
    write_text(run_dir / NONCE, nonce)
    shutil.copyfile(run_dir / "plan.json", run_dir / PLAN)
    for name, text in of_the_agent().items():
        write_text(run_dir / name, text)
    for name in UNDER_SLURM:
        write_text(run_dir / "launch" / f"{name}.py", text_of(name))
    for form, given, of_plan in ((slurm_node.JOB, jobs, plan.processes), (slurm_node.RESTART, again, plan.restart)):
        for number, (job, processes) in enumerate(zip(given, by_host(of_plan).values(), strict=True)):
            stripped = without_secrets(job, processes, variables)
            write_json(run_dir / (form % number), {**stripped, "signals_reach_all": True})
    script = script_of(plan, run_dir, wish=wish, nonce=nonce)
    write_text(run_dir / SCRIPT, render(script))
    return script


def script_of(plan: Plan, run_dir: Path, *, wish: Wish, nonce: str) -> Script:
    """The script that is submitted; by the nonce its nodes know that they see the run directory."""
    return Script(
        name=plan.spec.name,
        root=PurePosixPath(run_dir),
        nonce=nonce,
        nodes=len(plan.hosts),
        options=wish.options,
        container=plan.container,
        secrets=tuple(variables_of(plan).values()),
    )


def _sbatch(path: Path, script: Script, hidden: Mapping[str, str]) -> int:
    """Hands the script to Slurm; the job's number."""
    variables = {**outside(os.environ, script), **hidden}
    try:
        done = subprocess.run(
            submission(path, script), env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=SUBMIT_SECONDS, start_new_session=True,  # Ctrl-C would leave a job of which nobody knows the number
        )  # fmt: skip
    except FileNotFoundError:
        raise LaunchError("sbatch is not installed here: run this on a host that submits jobs to Slurm") from None
    except subprocess.TimeoutExpired:
        raise LaunchError(f"no answer from sbatch within {SUBMIT_SECONDS:.0f} s: check that slurmctld runs") from None
    number = done.stdout.strip().partition(";")[0]
    if done.returncode or not number.isdigit():
        why = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise LaunchError(f"Slurm rejected the job: {why}")
    return int(number)


class _Settled:
    """Puts the hosts of a job into plan.json once they are known, and a link to the log where the recipe has it."""

    def __init__(self, run_dir: Path, on_progress: Callable[[Progress], None]) -> None:
        self._run_dir, self._then = run_dir, on_progress
        self._hosts: list[str] = []

    def see(self, progress: Progress) -> None:
        place = _place(self._run_dir, 0) if progress.statuses else None
        if place and place.hosts != self._hosts:
            with suppress(OSError):  # on a full disk, later
                self._settle(place)
                self._hosts = place.hosts
        self._then(progress)

    def _settle(self, place: _Place) -> None:
        filled = slurm_node.with_hosts(read_object(self._run_dir / PLAN), place.hosts, place.address)
        write_json(self._run_dir / "plan.json", filled)
        record = find(self._run_dir)
        if record.log:
            _link(Path(record.log), self._run_dir / filled["processes"][0]["log"])


def _link(link: Path, log: Path) -> None:
    """Puts the link where a recipe has its log; only one to a host that the job had before is replaced."""
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_symlink() and link.readlink().parent.parent == log.parent.parent:
        link.unlink()
    if not os.path.lexists(link):
        link.symlink_to(log)


@dataclass(frozen=True, kw_only=True)
class _Place:
    """The place of a job's node, as the node itself writes it into its file PLACE."""

    host: str
    address: str
    restarts: int
    hosts: list[str]


def _place(run_dir: Path, number: int) -> _Place | None:
    """The place of the job's node with this number; None while its file is not there, or cannot be read just now."""
    try:
        return read_record(run_dir, slurm_node.PLACE % number, _Place, "under Slurm")
    except InputError:
        return None
