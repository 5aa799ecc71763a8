"""The target `ssh`: detached agents on the hosts of a cluster file, whose files are copied here as they grow.

Whatever a node writes is copied, byte by byte from where the copy ends, to the same place in the run directory here.
So every reader of a run directory finds it as if the run had been here, and a connection that is lost and made again
loses no line and doubles none. The agents need no launcher: it may leave, and come back (`attach`).
"""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath

from seatrial.cluster import Cluster, Host
from seatrial.dialects import cluster_of
from seatrial.engines import coordinator_port
from seatrial.errors import InputError, LaunchError
from seatrial.launch.follow import Following
from seatrial.launch.job import Job
from seatrial.launch.launcher import Begun, launch, supervise
from seatrial.launch.progress import Ending
from seatrial.launch.record import read_record
from seatrial.launch.session import Session, unanswered
from seatrial.launch.transports import TRANSPORTS, Unreachable
from seatrial.launch.where import Where
from seatrial.node import of_the_agent
from seatrial.plan import Plan, Site
from seatrial.runs.files import write_json
from seatrial.runs.mirror import PLACES
from seatrial.spec import RunSpec

UNDO_SECONDS = 10.0

KNOWS_ITS_HOSTS = True


def site(where: Where, spec: RunSpec | None, run_dir: Path) -> Site:
    """The hosts of a cluster file. Raises InputError for one that cannot be used, and where it is not named."""
    if where.cluster is None:
        why = "the hosts are not named"
        raise InputError.single("no-cluster", "--cluster", why, "give --cluster FILE (CVS's cluster file works)")
    cluster, problems = cluster_of(where.cluster)
    if cluster is None:
        raise InputError(problems)
    cluster = cluster.without(where.exclude)
    base = where.directory or PurePosixPath("/var/tmp") / f"seatrial-{cluster.user or getpass.getuser()}"
    return Site(cluster=cluster, root=base / run_dir.name, python=where.python, runtime=where.container)


def restarts(where: Where) -> bool:
    """Never."""
    return False


def without(where: Where, hosts: tuple[str, ...], run_dir: Path) -> Where:
    """The same without some hosts."""
    return replace(where, exclude=(*where.exclude, *hosts))


def run(plan: Plan, run_dir: Path, following: Following, *, where: Where, site: Site | None, attempt: int) -> Ending:
    """Runs a plan's processes on the hosts of a cluster, and returns when none of them is left."""
    assert site is not None
    run_dir, places = run_dir.resolve(), Places.of(plan, site, where.ssh)
    write_json(run_dir / PLACES, asdict(places), below=run_dir)
    with closing(Session(site.cluster, transport=where.ssh)) as session:

        def begin(jobs: Sequence[tuple[str, Job]]) -> Begun:
            _start_agents(session, plan, jobs, root=places.root, attempt=attempt)
            return places.listen(session, run_dir)

        return launch(plan, run_dir, begin=begin, root=site.root, directory=site.root, following=following)


def _start_agents(session: Session, plan: Plan, jobs: Sequence[tuple[str, Job]], *, root: str, attempt: int) -> None:
    """Starts the agents on all hosts, or on none. Raises LaunchError where one cannot be started."""
    given = {"root": root, "files": {**of_the_agent(), **plan.files}, "attempt": attempt, "port": None}
    asked = [(host, {**given, "job": job}) for host, (_, job) in zip(plan.hosts, jobs, strict=True)]
    if len(asked) > 1:
        asked[0][1]["port"] = coordinator_port(plan.spec)
    answers = session.ask(asked, "begin")
    if failed := unanswered(answers):
        # None must wait for the others. A host that has not begun may have another run of this name.
        begun = [host for host, answer in zip(plan.hosts, answers, strict=True) if not isinstance(answer, Unreachable)]
        session.stop(begun, root, now=True, seconds=UNDO_SECONDS)
        raise LaunchError(failed)


# --- coming back ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PlacedHost(Host):
    """A host with the ranks that run there."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Places:
    """The file PLACES: the hosts of a run and how to reach them, for commands that come back to it."""

    v: int = 1
    root: str
    transport: str
    user: str | None
    key_file: str | None
    hosts: tuple[PlacedHost, ...]

    def __post_init__(self) -> None:
        if self.transport not in TRANSPORTS:
            raise ValueError(f"no transport is called {self.transport!r}")

    @classmethod
    def of(cls, plan: Plan, site: Site, transport: str) -> Places:
        """Those of a plan."""
        hosts = tuple(
            PlacedHost(**vars(host), ranks=tuple(process.rank for process in processes))
            for host, processes in plan.hosts.items()
        )
        cluster = site.cluster
        return cls(root=str(site.root), transport=transport, user=cluster.user, key_file=cluster.key_file, hosts=hosts)

    @property
    def cluster(self) -> Cluster:
        return Cluster(hosts=self.hosts, transport="ssh", user=self.user, key_file=self.key_file)

    def listen(self, session: Session, run_dir: Path) -> Begun:
        """Keeps the hosts' files here up to date from now on."""
        return session.listen({host: host.ranks for host in self.hosts}, PurePosixPath(self.root), run_dir), None


def attach(run_dir: Path, following: Following, *, name: str, planned_steps: int) -> Ending:
    """Follows a run again that somebody else has started, and returns when nothing of it is left."""
    run_dir, places = run_dir.resolve(), read_record(run_dir, PLACES, Places, "over SSH")
    with closing(Session(places.cluster, transport=places.transport)) as session:
        return supervise(
            lambda: places.listen(session, run_dir), run_dir, following,
            name=name, planned_steps=planned_steps, root=PurePosixPath(places.root), detached=True,
        )  # fmt: skip


def stop(run_dir: Path, *, now: bool) -> None:
    """Asks all agents of a run to stop their processes. Raises LaunchError for hosts that cannot be asked."""
    places = read_record(run_dir, PLACES, Places, "over SSH")
    with closing(Session(places.cluster, transport=places.transport)) as session:
        if failed := session.stop(places.hosts, places.root, now=now):
            raise LaunchError(failed)
