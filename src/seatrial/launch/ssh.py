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
import re
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
from seatrial.launch.channels import TRANSPORTS, Channel, Unreachable
from seatrial.launch.drive import Job, accompany, drive
from seatrial.launch.files import of_the_agent, write_json, write_text
from seatrial.launch.follow import Ending, Following, Status
from seatrial.launch.targets import Where
from seatrial.plan import Plan, Site
from seatrial.spec import RunSpec

ANSWER_SECONDS = 60.0
MAX_ANSWER = 1 << 20  # bytes, with what a login shell says before it
LINE_COSTS = 1 << 10  # as many bytes does a line count for, because each is tried
MAX_WORDS = 300
RETRY_SECONDS = 2.0
PLACES = "launch/places.json"
_FILES = re.compile(r"nodes/(?P<host>[\w.:-]+)/[\w.-]+\.(log|jsonl?)|events-\d+\.jsonl")
_RELAY = Path(relay.__file__).read_text(encoding="utf-8")
T = TypeVar("T")


class RemoteNode:
    """A host with an agent, as it was last heard of. Its fields are written by the thread that listens."""

    def __init__(self, host: Host, ranks: Sequence[int]) -> None:
        self.host, self.ranks = host, ranks
        self.orders: list[str] = []
        self.heard = time.monotonic()
        self._status: Status | None = None
        self._agent_lives: bool | None = None

    @property
    def name(self) -> str:
        return self.host.name

    def status(self) -> Status | None:
        return self._status

    def agent_ended(self) -> bool:
        return self._agent_lives is False

    def silent_seconds(self) -> float:
        return time.monotonic() - self.heard

    def stop(self, *, now: bool) -> None:
        self.orders.append("now" if now else "in_order")

    def take(self, frame: dict[str, Any]) -> None:
        """A frame that is no file's."""
        self.heard = time.monotonic()
        if "alive" in frame:
            self._agent_lives = frame["agent"]

    def report(self, text: bytes) -> None:
        """The agent's status.json."""
        self._status = dict(json.loads(text))


class Session:
    """The connections of a run, in a thread of their own: neither the terminal nor a slow host holds up the others."""

    def __init__(self, cluster: Cluster, *, transport: str = "asyncssh") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._tasks: list[asyncio.Task[None]] = []

        async def make() -> Any:
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

    def listen(self, host: Host, ranks: Sequence[int], root: PurePosixPath, run_dir: Path) -> RemoteNode:
        """Keeps a host's files here up to date from now on, through any number of lost connections."""
        node = RemoteNode(host, ranks)

        async def start() -> None:
            self._tasks.append(asyncio.create_task(self._listen(node, root, run_dir)))

        self._wait(start())
        return node

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
        import asyncssh

        try:
            async with asyncio.timeout(seconds):
                channel = await self._begin(host, verb, given, source)
                sent = time.time()
                try:
                    answer = await _object(host, channel)
                finally:
                    await channel.close()
        except TimeoutError:
            return Unreachable(host, f"no answer within {seconds:.0f} s", "log in and look what holds it up")
        except Unreachable as error:
            return error
        except (OSError, EOFError, asyncssh.Error) as error:
            return Unreachable(host, f"the connection was lost ({error})", "look whether it is up, and try again")
        if "error" in answer:
            return Unreachable(host, str(answer["error"])[:MAX_WORDS], "look there, and try again")
        return {**answer, "sent": sent, "received": time.time()}

    async def _begin(self, host: Host, verb: str, given: dict[str, Any], source: str) -> Channel:
        channel: Channel = await self._ways.open(host)
        channel.writer.write(json.dumps({"source": source, "verb": verb, "given": given}).encode() + b"\n")
        await channel.writer.drain()
        return channel

    async def _listen(self, node: RemoteNode, root: PurePosixPath, run_dir: Path) -> None:
        while True:
            offsets = {
                str(path.relative_to(run_dir)): path.stat().st_size
                for pattern in (f"nodes/{node.name}/*.log", f"nodes/{node.name}/*.jsonl", "events-*.jsonl")
                for path in run_dir.glob(pattern)
            }
            given = {"root": str(root), "host": node.name, "ranks": list(node.ranks), "offsets": offsets}
            try:
                channel = await self._begin(node.host, "tell", given, _RELAY)
                try:
                    async with asyncio.TaskGroup() as both:
                        orders = both.create_task(_give_orders(node, channel))
                        await _take_frames(node, channel, run_dir)
                        orders.cancel()
                finally:
                    await channel.close()
            except* (Unreachable, OSError, EOFError):
                pass  # `silent_seconds` grows meanwhile, and whoever follows decides what that means
            await asyncio.sleep(RETRY_SECONDS)


async def _take_frames(node: RemoteNode, channel: Channel, run_dir: Path) -> None:
    while (told := await _frame(channel)) is not None:
        frame, content = told
        node.take(frame)
        name = frame.get("file")
        if name is None:
            continue
        match = _FILES.fullmatch(name)
        if match is None or match["host"] not in (None, node.name):
            raise OSError(f"{node.name} speaks of a file that is none of its own")
        if name.endswith("/status.json"):
            node.report(content)
            write_text(run_dir / name, content.decode("utf-8", "replace"))
            continue
        path = run_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if path.exists() else "wb") as file:
            file.truncate(frame["offset"]) if frame["offset"] == 0 else None
            file.seek(frame["offset"])
            file.write(content)


async def _give_orders(node: RemoteNode, channel: Channel) -> None:
    while True:
        while node.orders:
            channel.writer.write(json.dumps({"stop": node.orders[0]}).encode() + b"\n")
            await channel.writer.drain()
            node.orders.pop(0)
        await asyncio.sleep(relay.TURN_SECONDS)


async def _object(host: Host, channel: Channel) -> dict[str, Any]:
    """The first line that is a JSON object; what a login shell prints before it does no harm. Raises Unreachable."""
    total, pending, first = 0, bytearray(), b""
    while total <= MAX_ANSWER:
        chunk: bytes = await channel.reader.read(1 << 16)
        if not chunk:
            break
        total += len(chunk)
        first = (first + chunk)[:MAX_WORDS] if len(first) < MAX_WORDS else first
        pending += chunk
        if b"\n" not in chunk:
            continue
        *lines, pending = pending.split(b"\n")
        total += LINE_COSTS * len(lines)
        for line in lines[: MAX_ANSWER // LINE_COSTS]:
            with contextlib.suppress(ValueError, RecursionError):
                if line.startswith(b"{") and isinstance(found := json.loads(line), dict):
                    return found
    if total > MAX_ANSWER:
        raise Unreachable(host, f"more than {MAX_ANSWER >> 20} MiB that are no answer", "look what its shell prints")
    if first:
        fix = "look what its login shell prints, and whether python3 is version 3.8 or newer"
        raise Unreachable(host, f"what it says is no answer ({first.decode('utf-8', 'replace')!r})", fix)
    said = (await channel.errors.read(1 << 16))[-MAX_WORDS:].decode("utf-8", "replace").strip()
    fix = "is python3 there, version 3.8 or newer, and can you log in by `ssh`?"
    raise Unreachable(host, f"it has said nothing but {said!r}" if said else "it has said nothing", fix)


async def _frame(channel: Channel) -> tuple[dict[str, Any], bytes] | None:
    """The next frame and the bytes that it announces; None at the end of the channel."""
    line = await channel.reader.readline()
    if not line.endswith(b"\n"):
        return None
    frame = dict(json.loads(line))
    return frame, await channel.reader.readexactly(frame["size"]) if frame.get("size") else b""


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
        given = {"root": str(root), "files": {**of_the_agent(), **plan.files}, "attempt": attempt}
        asked = zip(ranks, (job for _, job in jobs), strict=True)
        session.call([(host, {**given, "job": job}) for host, job in asked], "begin")
        return [session.listen(host, own, root, run_dir) for host, own in ranks.items()]

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
            lambda: [session.listen(host, own, found.root, run_dir) for host, own in found.ranks.items()],
            run_dir, following, name=name, planned_steps=planned_steps, detached=True,
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
