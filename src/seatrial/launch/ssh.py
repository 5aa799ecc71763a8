"""Running a plan on hosts that SSH reaches: agents started there by themselves, their files brought here as they grow.

Whatever a node writes is copied, byte by byte from where the copy ends, to the same place in the run directory here.
So everything that reads a run directory finds it as if the run had been here, and a connection that is lost and made
again loses no line and doubles none. The agents need nobody: who starts them may leave, and come back (`attach`).
"""

from __future__ import annotations

import getpass
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from seatrial.cluster import Cluster, Host
from seatrial.dialects import cluster_of
from seatrial.errors import InputError, LaunchError
from seatrial.launch.follow import Following
from seatrial.launch.job import Job
from seatrial.launch.launcher import launch, supervise
from seatrial.launch.progress import Ending
from seatrial.launch.session import ANSWER_SECONDS, RELAY, RemoteNode, Session
from seatrial.launch.transports import TRANSPORTS, Unreachable
from seatrial.launch.where import Where
from seatrial.node import of_the_agent
from seatrial.plan import DEFAULT_PORT, Plan, Site
from seatrial.runs.files import read_object, write_json
from seatrial.runs.mirror import PLACES
from seatrial.spec import RunSpec

UNDO_SECONDS = 10.0

KNOWS_ITS_HOSTS = True


def site(where: Where, spec: RunSpec | None, run_dir: Path) -> Site:
    """The hosts of a cluster file. Raises InputError for one that cannot be used, and where it is not named."""
    if where.cluster is None:
        why = "it needs to know its hosts"
        raise InputError.single("no-cluster", "--cluster", why, "give --cluster FILE (CVS's cluster file will do)")
    cluster, problems = cluster_of(where.cluster)
    if cluster is None:
        raise InputError(problems)
    cluster = cluster.without(where.exclude)
    base = where.directory or PurePosixPath("/var/tmp") / f"seatrial-{cluster.user or getpass.getuser()}"
    return Site(cluster=cluster, root=base / run_dir.name, python=where.python, runtime=where.container)


def restarts(where: Where) -> bool:
    """Never."""
    return False


def without(where: Where, hosts: tuple[str, ...]) -> Where:
    """The same without some hosts."""
    return replace(where, exclude=(*where.exclude, *hosts))


def run(plan: Plan, run_dir: Path, following: Following, *, where: Where, site: Site | None, attempt: int) -> Ending:
    """Runs a plan's processes on the hosts of a cluster, and returns when none of them is left."""
    assert site is not None
    run_dir = run_dir.resolve()
    session, root = Session(site.cluster, transport=where.ssh), site.root
    ranks = {host: [process.rank for process in processes] for host, processes in plan.hosts.items()}
    write_json(run_dir / PLACES, places(site, ranks, where.ssh), below=run_dir)

    def begin(jobs: Sequence[tuple[str, Job]]) -> list[RemoteNode]:
        given = {"root": str(root), "files": {**of_the_agent(), **plan.files}, "attempt": attempt, "port": None}
        asked = [(host, {**given, "job": job}) for host, (_, job) in zip(ranks, jobs, strict=True)]
        if len(asked) > 1:
            asked[0][1]["port"] = plan.spec.distributed.coordinator_port or DEFAULT_PORT
        answers = session.ask(asked, "begin", source=RELAY, seconds=ANSWER_SECONDS)
        if failed := [str(answer) for answer in answers if isinstance(answer, Unreachable)]:
            # None is to wait for the others. Where it has not begun there may be another run of this name.
            begun = [host for host, answer in zip(ranks, answers, strict=True) if not isinstance(answer, Unreachable)]
            orders = [(host, {"root": str(root), "host": host.name, "stop": "now"}) for host in begun]
            session.ask(orders, "order", source=RELAY, seconds=UNDO_SECONDS)
            raise LaunchError("\n".join(failed))
        return session.listen(ranks, root, run_dir)

    try:
        return launch(plan, run_dir, begin=begin, root=root, directory=root, following=following)
    finally:
        session.close()


# --- coming back ------------------------------------------------------------------------------------------------------


def places(site: Site, ranks: Mapping[Host, Sequence[int]], transport: str) -> dict[str, Any]:
    """What somebody who comes back needs in order to find the run."""
    return {
        "v": 1,
        "root": str(site.root),
        "transport": transport,
        "user": site.cluster.user,
        "key_file": site.cluster.key_file,
        "hosts": [{**vars(host), "ranks": list(own)} for host, own in ranks.items()],
    }


class Found(NamedTuple):
    """A run that was started before, and the way to it."""

    cluster: Cluster
    root: PurePosixPath
    transport: str
    ranks: dict[Host, list[int]]


def find(run_dir: Path) -> Found:
    """Where a run directory's processes are. Raises InputError where it is none of a run over SSH."""
    try:
        told = read_object(run_dir / PLACES)
        if told["transport"] not in TRANSPORTS:
            raise ValueError(f"no transport is called {told['transport']!r}")
        ranks = {Host(**{k: v for k, v in host.items() if k != "ranks"}): host["ranks"] for host in told["hosts"]}
        cluster = Cluster(hosts=tuple(ranks), transport="ssh", user=told["user"], key_file=told["key_file"])
        return Found(cluster, PurePosixPath(told["root"]), told["transport"], ranks)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = str(error) if isinstance(error, (OSError, ValueError)) else type(error).__name__
        why = f"it is not the directory of a run over SSH ({PLACES} cannot be read: {reason})"
        raise InputError.single("no-run", str(run_dir), why, "name the directory that the run printed") from error


def attach(run_dir: Path, following: Following, *, name: str, planned_steps: int) -> Ending:
    """Follows a run again that somebody else has started, and returns when nothing of it is left."""
    run_dir, found = run_dir.resolve(), find(run_dir)
    session = Session(found.cluster, transport=found.transport)
    try:
        return supervise(
            lambda: session.listen(found.ranks, found.root, run_dir), run_dir, following,
            name=name, planned_steps=planned_steps, root=found.root, detached=True,
        )  # fmt: skip
    finally:
        session.close()


def stop(run_dir: Path, *, now: bool) -> None:
    """Tells all agents of a run to stop their processes. Raises LaunchError for hosts that cannot be told."""
    found = find(run_dir)
    session = Session(found.cluster, transport=found.transport)
    given = {"root": str(found.root), "stop": "now" if now else "in_order"}
    try:
        session.call([(host, {**given, "host": host.name}) for host in found.ranks], "order")
    finally:
        session.close()
