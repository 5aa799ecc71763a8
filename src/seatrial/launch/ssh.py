"""Running a plan on hosts that SSH reaches: agents started there by themselves, their files brought here as they grow.

Whatever a node writes is copied, byte by byte from where the copy ends, to the same place in the run directory here.
So everything that reads a run directory finds it as if the run had been here, and a connection that is lost and made
again loses no line and doubles none. The agents need nobody: who starts them may leave, and come back (`attach`).
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

from seatrial.cluster import Cluster, Host
from seatrial.dialects import cluster_of
from seatrial.errors import InputError, LaunchError
from seatrial.launch import relay
from seatrial.launch.channels import TRANSPORTS, Channel, Flood, Unreachable, Ways
from seatrial.launch.conclude import Ending, Status
from seatrial.launch.drive import Job, accompany, drive
from seatrial.launch.files import of_the_agent, write_json, write_text
from seatrial.launch.follow import Following
from seatrial.launch.targets import Where
from seatrial.plan import DEFAULT_PORT, Plan, Site
from seatrial.spec import RunSpec

ANSWER_SECONDS = 60.0
MAX_ANSWER = 1 << 20  # bytes
MAX_HEAD, MAX_CONTENT = 1 << 12, 1 << 24  # bytes of a frame: the line that begins it, and what it announces
MAX_WORDS = 300
ATTEND_SECONDS = 0.2
ROUNDS = 3  # of the event loop, after which all that had come before is taken in: it is read, handed over, and seen to
STALE_SECONDS = 15.0  # after which a relay that says nothing is left; it is alive once a second
KEEP_SECONDS = 5.0  # from one copy of a status to the next, while the state in it is the same
UNDO_SECONDS = 10.0
RETRY_SECONDS = 2.0
PLACES = "launch/places.json"
_FILES = re.compile(r"nodes/(?P<host>[\w.:-]+)/[\w.-]+\.(log|jsonl?)|events-(?P<rank>\d+)\.jsonl")
_RELAY = Path(relay.__file__).read_text(encoding="utf-8")
T = TypeVar("T")


class Clock:
    """The time up to which all that the hosts have said has been taken in.

    It stands still while this process has no time to listen: no host is to blame for that.
    """

    def __init__(self) -> None:
        self.now = time.monotonic()


class RemoteNode:
    """A host with an agent, as it was last heard of. Its fields are written by the thread that listens."""

    def __init__(self, host: Host, ranks: Sequence[int], clock: Clock) -> None:
        self.host, self.ranks = host, ranks
        self.orders: list[str] = []
        self.ordered = asyncio.Event()
        self.tried = asyncio.Event()  # whether it can be reached
        self.heard = time.monotonic()
        self.connected: tuple[Channel, asyncio.Task[None]] | None = None
        self._loop, self._clock = asyncio.get_running_loop(), clock
        self._kept = 0.0
        self._status: Status | None = None
        self._agent_lives: bool | None = None
        self._more = False

    @property
    def name(self) -> str:
        return self.host.name

    def status(self) -> Status | None:
        return self._status

    def agent_ended(self) -> bool:
        return self._agent_lives is False and not self._more

    def behind(self) -> bool:
        return self._more

    def now(self) -> float:
        return self._clock.now

    def silent_seconds(self) -> float:
        return max(0.0, self._clock.now - self.heard)

    def stop(self, *, now: bool) -> None:
        self.orders.append("now" if now else "in_order")
        self._loop.call_soon_threadsafe(self.ordered.set)

    def take(self, frame: dict[str, Any]) -> None:
        """A frame that is no file's."""
        self.heard = time.monotonic()
        if "alive" in frame:
            self._agent_lives, self._more = frame["agent"], frame["more"]

    def report(self, text: bytes, copy: Path) -> None:
        """The agent's status.json, which may be half written where the disk there is full; of some, a copy is kept."""
        with contextlib.suppress(ValueError):
            before, self._status = self._status, dict(json.loads(text))
            same = before is not None and before.get("state") == self._status.get("state")
            if not same or time.monotonic() - self._kept > KEEP_SECONDS:
                self._kept = time.monotonic()
                write_text(copy, text.decode())

    def leave_if_stale(self) -> None:
        """Gives up a connection of which nothing has come for too long."""
        if self.connected and self._clock.now - self.connected[0].heard > STALE_SECONDS:
            self.connected[1].cancel()


class Session:
    """The connections of a run, in a thread of their own: neither the terminal nor a slow host holds up the others."""

    def __init__(self, cluster: Cluster, *, transport: str = "asyncssh") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._tasks: list[asyncio.Task[None]] = []
        self._nodes: list[RemoteNode] = []
        self._clock = Clock()

        async def make() -> Ways:
            self._tasks.append(asyncio.create_task(self._attend()))
            return TRANSPORTS[transport](cluster)

        self._ways = self._wait(make())

    def call(self, asked: Sequence[tuple[Host, dict[str, Any]]], verb: str) -> list[dict[str, Any]]:
        """One answer of each host's relay. Raises LaunchError, with a line for each host that gave none."""
        answers = self.ask(asked, verb, source=_RELAY, seconds=ANSWER_SECONDS)
        failed = [str(answer) for answer in answers if isinstance(answer, Unreachable)]
        if failed:
            raise LaunchError("\n".join(failed))
        return [answer for answer in answers if not isinstance(answer, Unreachable)]

    def ask(
        self, asked: Sequence[tuple[Host, dict[str, Any]]], verb: str, *, source: str, seconds: float
    ) -> list[dict[str, Any] | Unreachable]:
        """The answer of each host to a program sent there, or why there is none; all are asked at once."""

        async def everywhere() -> list[dict[str, Any] | Unreachable]:
            each = (self._answer(host, verb, given, source, seconds) for host, given in asked)
            return await asyncio.gather(*each)

        return self._wait(everywhere())

    def listen(self, ranks: Mapping[Host, Sequence[int]], root: PurePosixPath, run_dir: Path) -> list[RemoteNode]:
        """Keeps the hosts' files here up to date from now on, through any number of lost connections.

        Returns when each host was tried once: no host is silent before it was asked.
        """

        async def start() -> list[RemoteNode]:
            self._nodes = [RemoteNode(host, own, self._clock) for host, own in ranks.items()]
            self._tasks += [asyncio.create_task(self._listen(node, root, run_dir)) for node in self._nodes]
            for node in self._nodes:
                await node.tried.wait()
            for node in self._nodes:
                node.heard = time.monotonic()
            return self._nodes

        return self._wait(start())

    def close(self) -> None:
        """Ends what listens, and the connections; what runs on the hosts goes on."""

        async def finish() -> None:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._ways.close()

        self._wait(finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        if not self._thread.is_alive():
            self._loop.close()

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _answer(
        self, host: Host, verb: str, given: dict[str, Any], source: str, seconds: float
    ) -> dict[str, Any] | Unreachable:
        try:
            async with asyncio.timeout(seconds):
                channel = await self._begin(host, verb, given, source)
                sent = time.time()
                try:
                    line = await channel.until(b"\n", MAX_ANSWER)
                finally:
                    await channel.close()
            answer = json.loads(line)
        except TimeoutError:
            return Unreachable(host, f"no answer within {seconds:.0f} s", "log in and look what holds it up")
        except Unreachable as error:
            return error
        except EOFError:
            return self._ways.trouble("odd" if channel.held else "mute", host, channel.held)
        except Flood:
            return self._ways.trouble("flood", host)
        except (ValueError, RecursionError):
            return self._ways.trouble("odd", host, line[:MAX_WORDS].decode("utf-8", "replace"))
        if not isinstance(answer, dict):
            return self._ways.trouble("odd", host, str(answer)[:MAX_WORDS])
        if "error" in answer:
            return Unreachable(host, str(answer["error"])[:MAX_WORDS], "see to it there, and try again")
        return {**answer, "sent": sent, "received": time.time()}

    async def _begin(self, host: Host, verb: str, given: dict[str, Any], source: str) -> Channel:
        """A program that has begun to speak; what the login shell has said before does no harm."""
        mark = secrets.token_hex(16)
        call = {"mark": mark, "source": source, "verb": verb, "given": given}
        return await self._ways.open(host, json.dumps(call).encode() + b"\n", f"\n{mark}\n".encode())

    async def _attend(self) -> None:
        """Moves the clock, which is late where this process is, and leaves hosts that say nothing by it."""
        while True:
            come = time.monotonic()
            for _ in range(ROUNDS):
                await asyncio.sleep(0)
            self._clock.now = come
            for node in self._nodes:
                node.leave_if_stale()
            await asyncio.sleep(ATTEND_SECONDS)

    async def _listen(self, node: RemoteNode, root: PurePosixPath, run_dir: Path) -> None:
        while True:
            own = run_dir / "nodes" / node.name
            events = [run_dir / f"events-{rank}.jsonl" for rank in node.ranks]
            copies = [path for path in (*own.glob("*.log"), *own.glob("*.jsonl"), *events) if path.exists()]
            offsets = {str(path.relative_to(run_dir)): path.stat().st_size for path in copies}
            given = {"root": str(root), "host": node.name, "ranks": list(node.ranks), "offsets": offsets}
            # Whatever becomes of a connection, the next one goes on where the copy ends. `silent_seconds` grows
            # meanwhile, and whoever follows decides what that means.
            with contextlib.suppress(Unreachable, Flood, OSError, EOFError, ValueError, LookupError, TypeError):
                try:
                    async with asyncio.timeout(ANSWER_SECONDS):
                        channel = await self._begin(node.host, "tell", given, _RELAY)
                finally:
                    node.tried.set()
                taking = asyncio.create_task(_take_frames(node, channel, run_dir))
                orders = asyncio.create_task(_give_orders(node, channel))
                node.connected = channel, taking
                try:
                    await asyncio.wait({taking})
                finally:
                    node.connected = None
                    taking.cancel()
                    orders.cancel()
                    await channel.close()
                if not taking.cancelled():
                    taking.result()
            await asyncio.sleep(RETRY_SECONDS)


async def _take_frames(node: RemoteNode, channel: Channel, run_dir: Path) -> None:
    """Copies what is told. Raises EOFError when that is over, ValueError where it makes no sense."""
    while True:
        frame = json.loads(await channel.until(b"\n", MAX_HEAD))
        size = frame.get("size", 0)
        if size > MAX_CONTENT:
            raise Flood
        content = await channel.exactly(size)
        node.take(frame)
        if "file" in frame:
            _take_file(node, frame["file"], frame["offset"], content, run_dir)


def _take_file(node: RemoteNode, name: str, offset: int, content: bytes, run_dir: Path) -> None:
    match = _FILES.fullmatch(name)
    own = match and (match["host"] == node.name if match["host"] else int(match["rank"]) in node.ranks)
    if not own:
        raise ValueError(f"{node.name} speaks of a file that is none of its own")
    path = run_dir / name
    if name.endswith("/status.json"):
        node.report(content, path)
        return
    if offset == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        if offset == 0:
            file.truncate(0)
        if file.seek(0, os.SEEK_END) != offset:
            raise ValueError(f"{node.name} does not go on where the copy of {name} ends")
        file.write(content)


async def _give_orders(node: RemoteNode, channel: Channel) -> None:
    """Tells the agent what it is to do; in every new connection again, because an order may be lost with the old."""
    given = 0
    with contextlib.suppress(EOFError):
        while True:
            for order in node.orders[given:]:
                await channel.say(json.dumps({"stop": order}).encode() + b"\n")
                given += 1
            node.ordered.clear()
            if given == len(node.orders):
                await node.ordered.wait()


# --- what a target has ------------------------------------------------------------------------------------------------

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
    write_json(run_dir / PLACES, places(site, ranks, where.ssh))

    def begin(jobs: Sequence[tuple[str, Job]]) -> list[RemoteNode]:
        given = {"root": str(root), "files": {**of_the_agent(), **plan.files}, "attempt": attempt, "port": None}
        asked = [(host, {**given, "job": job}) for host, (_, job) in zip(ranks, jobs, strict=True)]
        if len(asked) > 1:
            asked[0][1]["port"] = plan.spec.distributed.coordinator_port or DEFAULT_PORT
        answers = session.ask(asked, "begin", source=_RELAY, seconds=ANSWER_SECONDS)
        if failed := [str(answer) for answer in answers if isinstance(answer, Unreachable)]:
            # None is to wait for the others. Where it has not begun there may be another run of this name.
            begun = [host for host, answer in zip(ranks, answers, strict=True) if not isinstance(answer, Unreachable)]
            orders = [(host, {"root": str(root), "host": host.name, "stop": "now"}) for host in begun]
            session.ask(orders, "order", source=_RELAY, seconds=UNDO_SECONDS)
            raise LaunchError("\n".join(failed))
        return session.listen(ranks, root, run_dir)

    try:
        return drive(plan, run_dir, begin=begin, root=root, directory=root, following=following)
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
        told = json.loads((run_dir / PLACES).read_text(encoding="utf-8"))
        ranks = {Host(**{k: v for k, v in host.items() if k != "ranks"}): host["ranks"] for host in told["hosts"]}
        cluster = Cluster(hosts=tuple(ranks), transport="ssh", user=told["user"], key_file=told["key_file"])
        return Found(cluster, PurePosixPath(told["root"]), told["transport"], ranks)
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"it is not the directory of a run over SSH ({PLACES} cannot be read: {type(error).__name__})"
        raise InputError.single("no-run", str(run_dir), why, "name the directory that the run printed") from error


def attach(run_dir: Path, following: Following, *, name: str, planned_steps: int) -> Ending:
    """Follows a run again that somebody else has started, and returns when nothing of it is left."""
    run_dir, found = run_dir.resolve(), find(run_dir)
    session = Session(found.cluster, transport=found.transport)
    try:
        return accompany(
            lambda: session.listen(found.ranks, found.root, run_dir), run_dir, following,
            name=name, planned_steps=planned_steps, detached=True,
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
