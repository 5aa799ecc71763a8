"""The target `kubernetes`: submits a JobSet, waits for its pods, and follows their agents by `kubectl exec`.

In every pod an agent starts by itself, so nothing depends on a launcher being there when pods come. What the pods write
is copied here as over SSH; each stays until its files have been copied, or for as long as `keep` says.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from seatrial.cluster import Cluster, Host
from seatrial.engines import coordinator_port
from seatrial.errors import LaunchError
from seatrial.launch.deadlines import deadlines_for
from seatrial.launch.follow import Following
from seatrial.launch.hidden import variables_of, without_secrets
from seatrial.launch.job import Job
from seatrial.launch.kubernetes.kubectl import SUBMIT_SECONDS, Kubectl, PodExec
from seatrial.launch.kubernetes.manifest import (
    GROUP,
    RUNS,
    Manifest,
    about,
    as_yaml,
    belongings,
    gpus_of,
    host_name,
    jobset,
    name_of,
)
from seatrial.launch.kubernetes.options import Wish, options
from seatrial.launch.kubernetes.watch import NODES, Watch
from seatrial.launch.launcher import Begun, launch, supervise
from seatrial.launch.progress import Ending
from seatrial.launch.record import read_record
from seatrial.launch.session import Clock, RemoteNode, Session, unanswered
from seatrial.launch.where import Where
from seatrial.node import of_the_agent
from seatrial.plan import Plan, Site
from seatrial.runs.files import read_object, write_json, write_text
from seatrial.runs.mirror import Mirror
from seatrial.spec import RunSpec

KNOWS_ITS_HOSTS = False
RECORD = "launch/kubernetes/jobset.json"
SCRIPT = "launch/kubernetes/jobset.yaml"
START_SECONDS = 180.0  # for the agent of a pod that runs: it may have to wait for the first pod's name
LOST_SECONDS = 45.0  # the API server is between us and a pod, and is restarted now and then
RELEASE_SECONDS = 30.0
MAX_FILES = 1_000_000  # bytes of a ConfigMap
NO_GPUS = "no GPUs are requested: the configuration names no known device; --kubernetes gpu=RESOURCE"
_LETTERS = string.ascii_lowercase + string.digits


@dataclass(frozen=True, kw_only=True)
class PlacedPod:
    """A pod by its host name, with the ranks that run there."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """The file RECORD, from when a JobSet is there."""

    v: int = 1
    name: str
    uid: str
    context: str | None
    namespace: str | None
    queued: bool
    root: str
    python: str
    pods: tuple[PlacedPod, ...]

    @property
    def kubectl(self) -> Kubectl:
        return Kubectl(context=self.context, namespace=self.namespace)

    @property
    def cluster(self) -> Cluster:
        return Cluster(hosts=tuple(Host(name=pod.name, address=pod.name) for pod in self.pods), transport="kubernetes")


def wished(where: Where) -> Wish:
    """The request in the KEY=VALUE words and the duration. Raises InputError for what Kubernetes cannot be asked."""
    return options(where.kubernetes, where.queue_deadline)


def site(where: Where, spec: RunSpec | None, run_dir: Path) -> Site:
    """The pods that there will be: they have names before there are any, of the run's name and a unique suffix."""
    wish = wished(where)
    count = int(wish.get("nodes") or (spec.topology.num_nodes if spec else 1))
    name = name_of(spec.name if spec else "run", "".join(secrets.choice(_LETTERS) for _ in range(5)))
    hosts = (host_name(name, index) for index in range(count))
    cluster = Cluster(hosts=tuple(Host(name=host, address=f"{host}.{name}") for host in hosts), transport="kubernetes")
    unknown = [] if spec is None or gpus_of(spec, wish, rehearsing=False) else [NO_GPUS]
    return Site(
        cluster=cluster, root=RUNS / name, python=where.python, runtime="kubernetes", image=wish.get("image"),
        about=lambda container: [*about(container, wish), *unknown],
    )  # fmt: skip


def restarts(where: Where) -> bool:
    """Never: a JobSet of ours ends with its first failure, and `--retries` submits another."""
    return False


def without(where: Where, hosts: tuple[str, ...], run_dir: Path) -> Where:
    """The same without the nodes on which some pods of the last attempt were."""
    try:
        nodes = read_object(run_dir / NODES)
    except (OSError, ValueError):
        nodes = {}
    known = [node for host in hosts if isinstance(node := nodes.get(host), str)]
    if not known:
        return where
    excluded = dict.fromkeys([*filter(None, [wished(where).get("exclude")]), *known])
    return replace(where, kubernetes=(*where.kubernetes, f"exclude={','.join(excluded)}"))


def manifest_of(plan: Plan, wish: Wish, python: str) -> Manifest:
    """The parts of a plan's JobSet."""
    assert plan.container is not None
    name = plan.processes[0].host.name.removesuffix(f"-{GROUP}-0-0")
    rehearsing = bool(plan.rehearsal and not plan.rehearsal.collapsed)
    return Manifest(
        name=name,
        run=plan.spec.name,
        pods=len(plan.hosts),
        container=plan.container,
        root=RUNS / name,
        wish=wish,
        gpus=gpus_of(plan.spec, wish, rehearsing=rehearsing),
        python=python,
        secrets=tuple(variables_of(plan).values()),
        grace_seconds=deadlines_for(plan.spec).grace_seconds,
    )


def script_of(plan: Plan, where: Where) -> str:
    """The JobSet as it is submitted."""
    return as_yaml(jobset(manifest_of(plan, wished(where), where.python)))


class PodNode(RemoteNode):
    """A pod with an agent; before it runs, nobody expects to hear of it."""

    def __init__(self, host: Host, ranks: Sequence[int], clock: Clock, mirror: Mirror, *, watch: Watch) -> None:
        super().__init__(host, ranks, clock, mirror)
        self._watch = watch

    def agent_ended(self) -> bool:
        if self.status() is None and self._watch.is_deleted:  # whatever is in it will never be heard of
            return True
        return self.has_all() or self._watch.pod_is_over(self.name)

    def behind(self) -> bool:
        return super().behind() and not self._watch.pod_is_over(self.name)

    def silent_seconds(self) -> float:
        return 0.0 if self.status() is None else super().silent_seconds()

    def stop(self, *, now: bool) -> None:
        if self.status() is None:  # nothing has begun that could save
            self._watch.cancel()
        else:
            super().stop(now=now)


def run(plan: Plan, run_dir: Path, following: Following, *, where: Where, site: Site | None, attempt: int) -> Ending:
    """Runs a plan's processes as a JobSet, and returns when they are over. Raises LaunchError where it is refused."""
    assert site is not None
    run_dir, wish, root = run_dir.resolve(), wished(where), site.root
    with closing(_Followers(run_dir, following)) as followers:

        def begin(jobs: Sequence[tuple[str, Job]]) -> Begun:
            record = _submit(plan, run_dir, jobs, wish=wish, python=where.python)
            following.say(f"JobSet {record.name} is submitted; to stop it: seatrial stop {run_dir}")
            return followers.listen(record, deadline_seconds=wish.queue_seconds)

        ending = launch(plan, run_dir, begin=begin, root=root, directory=root, following=_patient(following))
        followers.release()
        return ending


def _submit(plan: Plan, run_dir: Path, jobs: Sequence[tuple[str, Job]], *, wish: Wish, python: str) -> Submitted:
    """Creates the JobSet and what its pods need, or nothing; and leaves a record. Raises LaunchError."""
    made, variables = manifest_of(plan, wish, python), variables_of(plan)
    given: dict[str, Any] = {
        "jobs": [without_secrets(job, own, variables) for (_, job), own in zip(jobs, plan.hosts.values(), strict=True)],
        "files": {**of_the_agent(), **plan.files},
        "port": coordinator_port(plan.spec) if made.pods > 1 else None,
        "coordinator": plan.processes[0].host.address if made.pods > 1 else None,
        "keep_seconds": wish.seconds("keep"),
    }
    text = as_yaml(jobset(made))
    write_text(run_dir / SCRIPT, text)
    kubectl = Kubectl(context=wish.get("context"), namespace=wish.get("namespace"))
    metadata = kubectl.create(text)["metadata"]
    kubectl = replace(kubectl, namespace=metadata.get("namespace") or kubectl.namespace)
    try:
        hidden = {name: value for value, name in variables.items()}
        kept = as_yaml(belongings(made, given, hidden, {"uid": metadata["uid"]}))
        if len(kept) > MAX_FILES:
            raise LaunchError(f"what the pods need is {len(kept):,} bytes, and a ConfigMap may have {MAX_FILES:,}")
        kubectl.do("create", "--filename=-", given=kept, seconds=SUBMIT_SECONDS)
        pods = tuple(
            PlacedPod(name=host.name, ranks=tuple(process.rank for process in own)) for host, own in plan.hosts.items()
        )
        record = Submitted(
            name=made.name, uid=metadata["uid"], context=kubectl.context, namespace=kubectl.namespace,
            queued=wish.get("queue") is not None, root=str(made.root), python=python, pods=pods,
        )  # fmt: skip
        write_json(run_dir / RECORD, asdict(record))
    except BaseException:  # nobody would find it again
        with suppress(LaunchError):
            kubectl.delete(made.name)
        raise
    return record


def _patient(following: Following) -> Following:
    """The same with longer deadlines, for agents that are heard through the API server."""
    return following.patient(start_seconds=START_SECONDS, lost_seconds=LOST_SECONDS)


class _Followers:
    """The watch of a JobSet, and the connections to its pods."""

    def __init__(self, run_dir: Path, following: Following) -> None:
        self._run_dir, self._say = run_dir, following.say
        self._watch: Watch | None = None
        self._session: Session | None = None
        self._nodes: list[RemoteNode] = []
        self._record: Submitted | None = None

    def close(self) -> None:
        if self._watch:
            self._watch.close()
        if self._session:
            self._session.close()

    def listen(self, record: Submitted, *, deadline_seconds: float | None = None) -> Begun:
        """Keeps the pods' files here up to date from now on, as soon as they run."""
        watch = self._watch = Watch(
            record.kubectl, record.name, record.uid, [pod.name for pod in record.pods], run_dir=self._run_dir,
            queued=record.queued, deadline_seconds=deadline_seconds, say=self._say,
        )  # fmt: skip
        self._record, self._session = record, _session(record, watch)
        ranks = {host: pod.ranks for host, pod in zip(record.cluster.hosts, record.pods, strict=True)}
        self._nodes = self._session.listen(
            ranks, PurePosixPath(record.root), self._run_dir, partial(PodNode, watch=watch)
        )
        return self._nodes, watch

    def release(self) -> None:
        """Lets pods end whose files are all here; where there are others, all are deleted."""
        assert self._watch is not None
        assert self._session is not None
        assert self._record is not None
        if all(node.has_all() for node in self._nodes):
            asked = [(host, {"root": self._record.root, "host": host.name}) for host in self._record.cluster.hosts]
            if not unanswered(self._session.ask(asked, "release", seconds=RELEASE_SECONDS)):
                return
        self._watch.cancel()


def _session(record: Submitted, watch: Watch) -> Session:
    return Session(
        record.cluster,
        transport=lambda cluster: PodExec(cluster, record.kubectl, watch.pod_of, record.python),
    )


def attach(run_dir: Path, following: Following, *, name: str, planned_steps: int) -> Ending:
    """Follows a JobSet again that somebody else has submitted, and returns when nothing of it is left."""
    run_dir, record = run_dir.resolve(), find(run_dir)
    with closing(_Followers(run_dir, following)) as followers:
        ending = supervise(
            lambda: followers.listen(record), run_dir, _patient(following), name=name, planned_steps=planned_steps,
            root=PurePosixPath(record.root), detached=True,
        )  # fmt: skip
        followers.release()
        return ending


def stop(run_dir: Path, *, now: bool) -> None:
    """Asks the agents of a JobSet to stop; one that has not all of its pods yet is deleted."""
    run_dir, record = run_dir.resolve(), find(run_dir)
    hosts = record.cluster.hosts
    watch = Watch(record.kubectl, record.name, record.uid, [host.name for host in hosts], run_dir=run_dir)
    watch.close()
    if watch.seen is None:
        raise LaunchError(f"no answer about JobSet {record.name}: check `kubectl get pods`, then retry")
    if not all(watch.pod_of(host.name) for host in hosts):
        record.kubectl.delete(record.name)
        return
    with closing(_session(record, watch)) as session:
        if failed := session.stop(hosts, record.root, now=now):
            raise LaunchError(failed)


def find(run_dir: Path) -> Submitted:
    """The JobSet of a run directory. Raises InputError where it has none."""
    return read_record(run_dir, RECORD, Submitted, "on Kubernetes")
