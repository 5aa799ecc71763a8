"""The connections to the hosts of a run: requests to all at once, and their files kept up to date here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from seatrial.cluster import Cluster, Host
from seatrial.launch.follow import Node
from seatrial.launch.progress import Status, status_of
from seatrial.launch.transports import TRANSPORTS, Channel, Flood, Transport, Unreachable
from seatrial.node import relay
from seatrial.runs.mirror import Mirror, shortage

ANSWER_SECONDS = 60.0
MAX_ANSWER = 1 << 20  # bytes
MAX_HEAD, MAX_CONTENT = 1 << 12, 1 << 24  # bytes of a frame: the line that begins it, and what it announces
MAX_WORDS = 300
ATTEND_SECONDS = 0.2
ROUNDS = 3  # of the event loop, after which all that had come before has been read and handled
TROUBLE_SECONDS = 15.0  # of connections that cannot be made, before that is reported
STALE_SECONDS = 15.0  # after which a silent relay is dropped; it sends something once a second
KEEP_SECONDS = 5.0  # from one copy of a status to the next, while the state in it is the same
RETRY_SECONDS = 2.0
COPY_AGAIN_SECONDS = 2.0, 30.0  # after copies could not be written: at first, and when that does not help
RELAY = Path(relay.__file__).read_text(encoding="utf-8")
_FILES = re.compile(r"nodes/(?P<host>[\w.:-]+)/[\w.-]+\.(log|jsonl?)|events-(?P<rank>\d+)\.jsonl")
T = TypeVar("T")
Answer = dict[str, Any] | Unreachable  # what a host answered, or why it did not


class Clock:
    """The time up to which everything that the hosts sent has been handled.

    It stands still while this process has no time to read: no host is to blame for that.
    """

    def __init__(self) -> None:
        self.now = time.monotonic()


class RemoteNode(Node):
    """A host with an agent, as it last reported. Its fields are written by the thread that listens."""

    def __init__(self, host: Host, ranks: Sequence[int], clock: Clock, mirror: Mirror) -> None:
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
        self._mirror = mirror
        self._failed: set[str] = set()  # names of what could not be copied over this connection
        self._resuming = False  # a new connection is to send what is missing here
        self._uncopied = ""
        self._unreached: tuple[str, float] | None = None  # the last reason, and since when there has been one

    @property
    def name(self) -> str:
        return self.host.name

    def status(self) -> Status | None:
        return self._status

    def agent_ended(self) -> bool:
        return self.has_all()

    def behind(self) -> bool:
        return self._more or self._resuming

    def has_all(self) -> bool:
        """True if the agent has ended and all that it wrote is here."""
        return self._agent_lives is False and not (self._more or self._resuming)

    def uncopied(self) -> str:
        return self._uncopied

    def unreached(self) -> str:
        why, since = self._unreached or ("", math.inf)
        return why if self._clock.now - since > TROUBLE_SECONDS else ""

    def unreachable(self, error: Unreachable | None) -> None:
        """Takes in that a connection could not be made, or with None that one is there."""
        if error is None or error.may_come:
            self._unreached = None
        else:
            since = self._unreached[1] if self._unreached else time.monotonic()
            self._unreached = str(error), since

    def now(self) -> float:
        return self._clock.now

    def silent_seconds(self) -> float:
        return max(0.0, self._clock.now - self.heard)

    def stop(self, *, now: bool) -> None:
        self.orders.append("now" if now else "in_order")
        self._loop.call_soon_threadsafe(self.ordered.set)

    def take(self, frame: dict[str, Any]) -> None:
        """Takes in the head of a frame."""
        self.heard = time.monotonic()
        if "alive" in frame:
            self._agent_lives, self._more, self._resuming = frame["agent"], frame["more"], False
            if not self._more and not self._failed:
                self._uncopied = ""

    def report(self, name: str, text: bytes) -> None:
        """The agent's status.json, which may be half written where the disk there is full; of some, a copy is kept."""
        with contextlib.suppress(ValueError):
            before, self._status = self._status, status_of(text)
            same = before is not None and before.get("state") == self._status.get("state")
            if not same or time.monotonic() - self._kept > KEEP_SECONDS or name in self._failed:
                self._kept = time.monotonic()
                with self._copying(name):
                    self._mirror.replace(name, text.decode())
                    self._failed.discard(name)

    def copy(self, name: str, offset: int, content: bytes) -> None:
        """A piece of a file. What follows one that could not be written waits for the next connection."""
        if name not in self._failed:
            with self._copying(name):
                self._mirror.append(name, offset, content)

    def connecting(self) -> dict[str, int]:
        """The size of each copied file, from where a new connection is to go on."""
        self._resuming, self._failed = bool(self._uncopied), set()
        sizes: dict[str, int] = {}
        with self._copying(""):
            sizes = self._mirror.sizes(self.name, list(self.ranks))
        return sizes

    def lacks(self) -> bool:
        """True if something could not be written that only a new connection sends again."""
        return bool(self._failed)

    def copy_again(self) -> None:
        """Drops the connection for one that begins where the copies end."""
        if self.connected:
            self._resuming = True
            self.connected[1].cancel()

    @contextlib.contextmanager
    def _copying(self, name: str) -> Iterator[None]:
        """A copy that cannot be written breaks no connection: the host's reports of the run still arrive."""
        try:
            yield
        except OSError as error:
            self._failed.add(name)
            error.filename = error.filename or str(self._mirror.run_dir / name)  # the writer does not name it
            self._uncopied = shortage(error, self._mirror.run_dir)

    def leave_if_stale(self) -> None:
        """Drops a connection that has been silent for too long."""
        if self.connected and self._clock.now - self.connected[0].heard > STALE_SECONDS:
            self.connected[1].cancel()


def unanswered(answers: Iterable[Answer]) -> str:
    """A line for each host that gave no answer."""
    return "\n".join(str(answer) for answer in answers if isinstance(answer, Unreachable))


class Session:
    """The connections of a run, in a thread of their own: neither the terminal nor a slow host delays the others."""

    def __init__(self, cluster: Cluster, *, transport: str | Callable[[Cluster], Transport] = "asyncssh") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._tasks: list[asyncio.Task[None]] = []
        self._nodes: list[RemoteNode] = []
        self._clock = Clock()
        self._copied, self._copy_pause = 0.0, COPY_AGAIN_SECONDS[0]

        async def make() -> Transport:
            self._tasks.append(asyncio.create_task(self._attend()))
            return (TRANSPORTS[transport] if isinstance(transport, str) else transport)(cluster)

        self._transport = self._wait(make())

    def ask(
        self,
        asked: Sequence[tuple[Host, dict[str, Any]]],
        verb: str,
        *,
        source: str = RELAY,
        seconds: float = ANSWER_SECONDS,
    ) -> list[Answer]:
        """The answer of each host to a program sent there, or why there is none; all at once."""

        async def everywhere() -> list[Answer]:
            each = (self._answer(host, verb, given, source, seconds) for host, given in asked)
            return await asyncio.gather(*each)

        return self._wait(everywhere())

    def stop(self, hosts: Iterable[Host], root: str, *, now: bool, seconds: float = ANSWER_SECONDS) -> str:
        """Asks the agents of a run to stop their processes; a line for each host that could not be asked."""
        given = {"root": root, "stop": "now" if now else "in_order"}
        return unanswered(self.ask([(host, {**given, "host": host.name}) for host in hosts], "order", seconds=seconds))

    def listen(
        self,
        ranks: Mapping[Host, Sequence[int]],
        root: PurePosixPath,
        run_dir: Path,
        make: Callable[[Host, Sequence[int], Clock, Mirror], RemoteNode] = RemoteNode,
    ) -> list[RemoteNode]:
        """Keeps the hosts' files here up to date from now on, through any number of lost connections.

        Returns when each host has been tried once: no host is silent before that.
        """

        self._mirror = Mirror(run_dir)

        async def start() -> list[RemoteNode]:
            self._nodes = [make(host, own, self._clock, self._mirror) for host, own in ranks.items()]
            self._tasks += [asyncio.create_task(self._listen(node, root)) for node in self._nodes]
            for node in self._nodes:
                await node.tried.wait()
            for node in self._nodes:
                node.heard = time.monotonic()
            return self._nodes

        return self._wait(start())

    def close(self) -> None:
        """Closes the connections; what runs on the hosts goes on."""

        async def finish() -> None:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._transport.close()

        self._wait(finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        if not self._thread.is_alive():
            self._loop.close()

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _answer(self, host: Host, verb: str, given: dict[str, Any], source: str, seconds: float) -> Answer:
        try:
            async with asyncio.timeout(seconds):
                channel = await self._begin(host, verb, given, source)
                sent = time.time()
                try:
                    line = await channel.read_until(b"\n", MAX_ANSWER)
                finally:
                    await channel.close()
            answer = json.loads(line)
        except TimeoutError:
            return Unreachable(host, f"no answer within {seconds:.0f} s", "log in and see what blocks it")
        except Unreachable as error:
            return error
        except EOFError:
            return self._transport.trouble("odd" if channel.unread else "mute", host, channel.unread)
        except Flood:
            return self._transport.trouble("flood", host)
        except (ValueError, RecursionError):
            return self._transport.trouble("odd", host, line[:MAX_WORDS].decode("utf-8", "replace"))
        if not isinstance(answer, dict):
            return self._transport.trouble("odd", host, str(answer)[:MAX_WORDS])
        if "error" in answer:
            return Unreachable(host, str(answer["error"])[:MAX_WORDS], "fix it there, then retry")
        return {**answer, "sent": sent, "received": time.time()}

    async def _begin(self, host: Host, verb: str, given: dict[str, Any], source: str) -> Channel:
        """A program that has answered with its mark; what the login shell printed before does no harm."""
        mark = secrets.token_hex(16)
        call = {"mark": mark, "source": source, "verb": verb, "given": given}
        return await self._transport.open(host, json.dumps(call).encode() + b"\n", f"\n{mark}\n".encode())

    async def _attend(self) -> None:
        """Moves the clock, which is late where this process is, and drops connections that are silent by it."""
        while True:
            come = time.monotonic()
            for _ in range(ROUNDS):
                await asyncio.sleep(0)
            self._clock.now = come
            for node in self._nodes:
                node.leave_if_stale()
            self._copy_again(come)
            await asyncio.sleep(ATTEND_SECONDS)

    def _copy_again(self, now: float) -> None:
        """Resumes copies that could not be written once there is room, and less often each time that it fails."""
        lacking = [node for node in self._nodes if node.lacks()]
        if not any(node.uncopied() for node in self._nodes):
            self._copy_pause, self._copied = COPY_AGAIN_SECONDS[0], now
        elif lacking and now - self._copied > self._copy_pause:
            self._copied = now
            if self._mirror.room():
                self._copy_pause = min(2 * self._copy_pause, COPY_AGAIN_SECONDS[1])
                for node in lacking:
                    node.copy_again()

    async def _listen(self, node: RemoteNode, root: PurePosixPath) -> None:
        while True:
            offsets = node.connecting()
            given = {"root": str(root), "host": node.name, "ranks": list(node.ranks), "offsets": offsets}
            # However a connection ends, the next one continues where the copy ends. `silent_seconds` grows
            # meanwhile, and whoever follows decides what that means.
            with contextlib.suppress(Unreachable, Flood, OSError, EOFError, ValueError, LookupError, TypeError):
                try:
                    async with asyncio.timeout(ANSWER_SECONDS):
                        channel = await self._begin(node.host, "send", given, RELAY)
                    node.unreachable(None)
                except Unreachable as error:
                    node.unreachable(error)
                    raise
                finally:
                    node.tried.set()
                taking = asyncio.create_task(_take_frames(node, channel))
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


async def _take_frames(node: RemoteNode, channel: Channel) -> None:
    """Copies what is sent. Raises EOFError at its end, ValueError for what makes no sense."""
    while True:
        frame = json.loads(await channel.read_until(b"\n", MAX_HEAD))
        size = frame.get("size", 0)
        if size > MAX_CONTENT:
            raise Flood
        content = await channel.read_exactly(size)
        node.take(frame)
        if "file" in frame:
            _take_file(node, frame["file"], frame["offset"], content)


def _take_file(node: RemoteNode, name: str, offset: int, content: bytes) -> None:
    match = _FILES.fullmatch(name)
    own = match and (match["host"] == node.name if match["host"] else int(match["rank"]) in node.ranks)
    if not own:
        raise ValueError(f"{node.name} sends a file that is not its own")
    if name.endswith("/status.json"):
        node.report(name, content)
    else:
        node.copy(name, offset, content)


async def _give_orders(node: RemoteNode, channel: Channel) -> None:
    """Sends the agent its orders; in every new connection again, because one may be lost with the old."""
    given = 0
    with contextlib.suppress(EOFError):
        while True:
            for order in node.orders[given:]:
                await channel.write(json.dumps({"stop": order}).encode() + b"\n")
                given += 1
            node.ordered.clear()
            if given == len(node.orders):
                await node.ordered.wait()
