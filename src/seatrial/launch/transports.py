"""Transports to a host: each starts a program there and carries what it prints and reads."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import shlex
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seatrial.cluster import Cluster, Host
from seatrial.errors import LaunchError
from seatrial.node import relay

if TYPE_CHECKING:
    import asyncssh

CONNECT_SECONDS = 15.0
KEEPALIVE_SECONDS, KEEPALIVES = 5, 3  # a host that is silent for this long is gone
THROTTLED_TRIES = 6  # a busy daemon closes some connections before they begin
PROGRAM = ("python3", "-I", "-c", relay.BOOT)
MAX_BEFORE = 1 << 20  # bytes that a login shell may print before the program's mark
MAX_SHOWN = 300
FAILED = 255  # the system's ssh's exit code for its own failures
COMPLAINT_SECONDS = 1.0  # by then the error output has come

_CHECK_PYTHON = "check that python3, 3.8 or newer, is installed there, and that `ssh` can log in"
# What keeps a host from being used: (why, fix).
TROUBLES: Mapping[str, tuple[str, str]] = {
    "unknown": ("its host key is not in {known}", "log in once by hand (`{by_hand}`) and verify the key"),
    "changed": (
        "its host key is not the one in {known}",
        "if the host was reinstalled, remove the old key with `ssh-keygen -R {entry}` and log in once by hand; if not, "
        "another machine may be answering in its name",
    ),
    "refused": (
        "it refuses {user} with {key}",
        "add the public key to authorized_keys there, or name another user or key_file",
    ),
    "key": ("the key {key} cannot be used ({said})", "name another key_file"),
    "locked": (
        "the key {key} has a passphrase, and no ssh-agent holds it",
        "add it to an agent (`ssh-add {key}`; SSH_AUTH_SOCK names the agent), or name another key_file",
    ),
    "silent": ("nobody listens on port {port}", "check that its SSH daemon is running"),
    "throttled": (
        "its SSH daemon closes connections before they begin",
        "raise MaxStartups in its sshd_config, or read its log",
    ),
    "absent": ("it cannot be reached ({said})", "check that it is up, and that its name is right"),
    "mute": ("its python3 printed nothing", _CHECK_PYTHON),
    "complains": ("its python3 printed nothing but {said!r}", _CHECK_PYTHON),
    "odd": (
        "its output is no answer ({said!r})",
        "check what its login shell prints, and that python3 is 3.8 or newer",
    ),
    "flood": ("it printed more than {limit} MiB that are no answer", "check what its shell prints"),
    "closed": ("no program can be started there ({said})", "check that `ssh` can run a command there"),
    "lost": ("the connection was lost ({said})", "check that it is up, then retry"),
}
# What the system's ssh prints → the trouble; the first that matches.
_COMPLAINTS = (
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED", "changed"),
    (r"host key is known|Host key verification failed", "unknown"),
    (r"Permission denied \(|Too many authentication failures", "refused"),
    (r"connect to host .* port (\d+): Connection refused", "silent"),
    (r"connect to host .*?: (.*)|Could not resolve hostname (.*)|(.* timed out.*)", "absent"),
    (r"Connection (?:closed|reset)|kex_exchange_identification", "throttled"),
)


USUAL_PORT = 22
# Where OpenSSH looks for the keys of hosts, unless its configuration says otherwise.
KNOWN_HOSTS = (".ssh/known_hosts", ".ssh/known_hosts2", "/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")


class Unreachable(LaunchError):
    """A host that cannot be used: why, and how to fix it. It `may_come` where nobody expects it to be there yet."""

    def __init__(self, host: Host, why: str, fix: str, *, may_come: bool = False) -> None:
        super().__init__(f"{host.name}: {why}: {fix}")
        self.host, self.why, self.fix, self.may_come = host, why, fix, may_come


class Flood(LaunchError):
    """A host sent more than is read."""


class Channel:
    """A program on a host: its output, input and error output, and how to close it. A lost one raises EOFError."""

    def __init__(self, stdout: Any, stdin: Any, stderr: Any, close: Callable[[], Awaitable[None]]) -> None:
        self._stdout, self._stdin, self._stderr = stdout, stdin, stderr  # streams of asyncio, or of asyncssh
        self._unread = bytearray()
        self.heard = time.monotonic()  # when the last output came
        self.close = close

    @property
    def unread(self) -> str:
        """The beginning of the output that has not been taken yet."""
        return self._unread[:MAX_SHOWN].decode("utf-8", "replace")

    async def read_until(self, mark: bytes, limit: int) -> bytes:
        """The output before a mark, which is taken as well. Raises Flood where the mark does not come in time."""
        searched = 0
        while (at := self._unread.find(mark, searched)) < 0:
            if len(self._unread) > limit:
                raise Flood
            searched = max(0, len(self._unread) - len(mark))
            await self._receive()
        return self._take(at + len(mark))[:at]

    async def read_exactly(self, size: int) -> bytes:
        while len(self._unread) < size:
            await self._receive()
        return self._take(size)

    async def write(self, text: bytes) -> None:
        with _lost():
            self._stdin.write(text)
            await self._stdin.drain()

    async def error_output(self) -> str:
        """The error output of the program, its shell or ssh itself."""
        said = bytearray()
        with contextlib.suppress(EOFError, TimeoutError):
            async with asyncio.timeout(COMPLAINT_SECONDS):
                while chunk := await self._stderr.read(1 << 16):
                    said = (said + chunk)[-(1 << 16) :]
        return said.decode("utf-8", "replace").strip()

    async def _receive(self) -> None:
        with _lost():
            chunk = await self._stdout.read(1 << 16)
        if not chunk:
            raise EOFError
        self._unread += chunk
        self.heard = time.monotonic()

    def _take(self, size: int) -> bytes:
        taken = bytes(self._unread[:size])
        del self._unread[:size]
        return taken


@contextlib.contextmanager
def _lost() -> Iterator[None]:
    """Makes every error of a broken connection an EOFError."""
    try:
        yield
    except Exception as error:
        raise EOFError(str(error)) from error


async def _begun(channel: Channel, call: bytes, mark: bytes) -> tuple[str, str] | None:
    """Sends a program its call; None once it has answered with the mark, else the trouble and its details."""
    with contextlib.suppress(EOFError):  # it ends without reading: its output tells why
        await channel.write(call)
    try:
        await channel.read_until(mark, MAX_BEFORE)
    except Flood:
        return "flood", ""
    except EOFError as error:
        if str(error):
            return "lost", str(error)
        if channel.unread:
            return "odd", channel.unread
        said = await channel.error_output()
        return ("complains", said) if said else ("mute", "")
    return None


class Transport(ABC):
    """The base of all transports: the cluster, and the messages about a host that cannot be used."""

    def __init__(self, cluster: Cluster, *, logins: int, known: str) -> None:
        self._cluster = cluster
        self._known = known  # where the keys of hosts are
        self._slots = asyncio.Semaphore(logins)  # at the same time

    @abstractmethod
    async def open(self, host: Host, call: bytes, mark: bytes) -> Channel:
        """PROGRAM on a host, which has its call and has answered with the mark. Raises Unreachable."""

    async def close(self) -> None:
        """Closes all connections; where each is a process of its own, there is none to close."""
        return

    def trouble(self, kind: str, host: Host, said: str = "") -> Unreachable:
        """A row of TROUBLES, filled in."""
        user, key, port = self._cluster.user, self._cluster.key_file, host.port or USUAL_PORT
        by_hand = ["ssh", *(("-p", str(port)) if port != USUAL_PORT else ()), *(("-i", key) if key else ())]
        filled = {
            "by_hand": shlex.join([*by_hand, f"{user}@{host.name}" if user else host.name]),
            "port": said or port, "known": self._known, "said": said[-MAX_SHOWN:], "limit": MAX_BEFORE >> 20,
            "entry": host.name if port == USUAL_PORT else shlex.quote(f"[{host.name}]:{port}"),
            "user": user or "this user", "key": key or "SSH's own keys",
        }  # fmt: skip
        why, fix = TROUBLES[kind]
        return Unreachable(host, why.format(**filled), fix.format(**filled))


class AsyncSsh(Transport):
    """Connections by asyncssh, one per host, which is reopened when it has been lost."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, logins=64, known=str(Path.home() / ".ssh" / "known_hosts"))
        self._connections: dict[str, asyncssh.SSHClientConnection] = {}

    async def open(self, host: Host, call: bytes, mark: bytes) -> Channel:
        import asyncssh

        connection = self._connections.get(host.name)
        if connection is None or connection.is_closed():
            connection = self._connections[host.name] = await self._connect(host)
        try:
            process = await connection.create_process(shlex.join(PROGRAM), encoding=None)
        except (asyncssh.Error, OSError) as error:
            raise self.trouble("closed", host, str(error)) from None

        async def close() -> None:
            process.close()

        channel = Channel(process.stdout, process.stdin, process.stderr, close)
        try:
            wrong = await _begun(channel, call, mark)
        except BaseException:
            await close()
            raise
        if wrong is None:
            return channel
        await close()
        raise self.trouble(wrong[0], host, wrong[1])

    async def close(self) -> None:
        for connection in self._connections.values():
            connection.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.gather(*(connection.wait_closed() for connection in self._connections.values()))

    async def _connect(self, host: Host) -> asyncssh.SSHClientConnection:
        import asyncssh

        options: dict[str, Any] = {"keepalive_interval": KEEPALIVE_SECONDS, "keepalive_count_max": KEEPALIVES}
        if self._cluster.user:
            options["username"] = self._cluster.user
        if self._cluster.key_file:
            options["client_keys"] = [self._cluster.key_file]
        if host.port:
            options["port"] = host.port  # else what the configuration says
        port = host.port
        for attempt in range(THROTTLED_TRIES):
            try:
                configured = asyncssh.SSHClientConnectionOptions(host=host.name, config=(), **options)
                port, known = configured.port, configured.known_hosts
                if known == [] and (files := _known_hosts()):
                    options["known_hosts"] = files
                async with self._slots:
                    return await asyncssh.connect(
                        host.name, connect_timeout=CONNECT_SECONDS, login_timeout=CONNECT_SECONDS, **options
                    )
            except (asyncssh.KeyImportError, FileNotFoundError, PermissionError) as error:
                options |= await self._key_of_agent(host, error)
            except (asyncssh.ConnectionLost, ConnectionResetError, BrokenPipeError):
                await asyncio.sleep(0.5 * 2**attempt)  # throttled (MaxStartups): it passes
            except (asyncssh.Error, OSError, TimeoutError) as error:
                raise self._refusal(replace(host, port=port), error) from None
        raise self.trouble("throttled", host)

    async def _key_of_agent(self, host: Host, error: Exception) -> dict[str, Any]:
        """Options that use a key which an agent holds, for one that cannot be read. Raises Unreachable."""
        if not str(error).startswith("Passphrase"):
            raise self.trouble("key", host, str(error)) from None
        held = await _held_by_agent(self._cluster.key_file or "")
        if held is None:
            raise self.trouble("locked", host) from None
        return {"ignore_encrypted": True, "agent_identities": [held]}

    def _refusal(self, host: Host, error: Exception) -> Unreachable:
        """The error for a connection that could not be made."""
        import asyncssh

        if isinstance(error, asyncssh.HostKeyNotVerifiable):
            return self.trouble("changed" if self._is_known(host) else "unknown", host)
        if isinstance(error, asyncssh.PermissionDenied):
            return self.trouble("refused", host)
        if isinstance(error, ConnectionRefusedError):
            return self.trouble("silent", host)
        return self.trouble("absent", host, str(error) or f"no answer within {CONNECT_SECONDS:.0f} s")

    def _is_known(self, host: Host) -> bool:
        import asyncssh

        try:
            port = host.port if host.port != USUAL_PORT else None
            return bool(asyncssh.read_known_hosts(_known_hosts()).match(host.name, host.address, port)[0])
        except (OSError, ValueError):
            return False


def _known_hosts() -> list[str]:
    """The files that hold keys of hosts here, the user's before the system's."""
    files = (Path.home() / name for name in KNOWN_HOSTS)
    return [str(path) for path in files if os.access(path, os.R_OK)]


async def _held_by_agent(key_file: str) -> bytes | None:
    """The public part of a key that this machine's ssh-agent holds; None where it does not, or there is none."""
    import asyncssh

    public = None
    for path in (f"{key_file}.pub", key_file):  # OpenSSH's own format has the public part too
        with contextlib.suppress(OSError, ValueError):
            public = public or asyncssh.read_public_key(path).public_data
    with contextlib.suppress(asyncssh.Error, OSError, ValueError):
        async with asyncssh.connect_agent() as agent:
            held = {pair.public_data for pair in await agent.get_keys()}
        return public if public in held else None
    return None


class Piped(Transport):
    """Connections that are each a program of their own here, whose input and output are those of PROGRAM there."""

    @abstractmethod
    def argv(self, host: Host) -> list[str]:
        """The program and its arguments. Raises Unreachable where it is not worth starting."""

    @abstractmethod
    def complaint(self, kind: str, said: str, code: int | None) -> tuple[str, str]:
        """The trouble and its words, of what the program printed and its exit code."""

    async def open(self, host: Host, call: bytes, mark: bytes) -> Channel:
        for attempt in range(THROTTLED_TRIES):
            async with self._slots:
                process = await self._start(host)
                close = functools.partial(_ended, process)
                channel = Channel(process.stdout, process.stdin, process.stderr, close)
                try:
                    wrong = await _begun(channel, call, mark)
                    if wrong is None:
                        return channel
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(process.wait(), COMPLAINT_SECONDS)
                except BaseException:
                    await close()
                    raise
            await close()
            kind, said = self.complaint(*wrong, process.returncode)
            if kind != "throttled":
                raise self.trouble(kind, host, said)
            await asyncio.sleep(0.5 * 2**attempt)
        raise self.trouble("throttled", host)

    async def _start(self, host: Host) -> asyncio.subprocess.Process:
        argv = self.argv(host)
        # In a session of its own, where Ctrl-C does not reach it: the hosts have yet to be asked to stop.
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        )  # fmt: skip
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:  # it would be left behind
            with contextlib.suppress(OSError):
                await _ended(await starting)
            raise
        except OSError as error:
            raise self.trouble("closed", host, f"{argv[0]}: {error.strerror}") from None


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Ends a program that has not ended yet."""
    if process.returncode is None:
        # Popen.terminate would take the exit code of one that has just ended from asyncio, which warns.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
    await process.wait()


class SystemSsh(Piped):
    """Connections by the system's `ssh`, with all of its configuration; slower, but what people have tested."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, logins=16, known="known_hosts")

    def argv(self, host: Host) -> list[str]:
        options = {
            "BatchMode": "yes", "StrictHostKeyChecking": "yes", "ConnectTimeout": f"{CONNECT_SECONDS:.0f}",
            "ServerAliveInterval": str(KEEPALIVE_SECONDS), "ServerAliveCountMax": str(KEEPALIVES),
            "LogLevel": "ERROR",  # a daemon's banner is no error
        }  # fmt: skip
        argv = ["ssh", "-T", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
        argv += ["-i", self._cluster.key_file] if self._cluster.key_file else []
        argv += ["-l", self._cluster.user] if self._cluster.user else []
        argv += ["-p", str(host.port)] if host.port else []
        return [*argv, "--", host.name, shlex.join(PROGRAM)]

    def complaint(self, kind: str, said: str, code: int | None) -> tuple[str, str]:
        return _complaint(said) if code == FAILED and kind in ("mute", "complains") else (kind, said)


def _complaint(said: str) -> tuple[str, str]:
    """The trouble that the system's ssh reports, and its words."""
    for pattern, kind in _COMPLAINTS:
        if match := re.search(pattern, said):
            return kind, next(filter(None, match.groups()), "").strip()
    return "absent", (said.splitlines() or ["ssh gives no reason"])[-1]


TRANSPORTS: Mapping[str, Callable[[Cluster], Transport]] = {"asyncssh": AsyncSsh, "system": SystemSsh}
