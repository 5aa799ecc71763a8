"""Ways to a host: each opens a program there and gives its input and output. A table, with one row a transport."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seatrial.cluster import Cluster, Host
from seatrial.errors import LaunchError
from seatrial.launch import relay

if TYPE_CHECKING:
    import asyncssh

CONNECT_SECONDS = 15.0
KEEPALIVE_SECONDS, KEEPALIVES = 5, 3  # a host that is silent for this long is not there
THROTTLED_TRIES = 6  # a daemon that is asked by many at once closes some connections before it says a word
PROGRAM = ("python3", "-I", "-c", relay.BOOT)


@dataclass(frozen=True)
class Channel:
    """A program on a host: what it reads and writes, and how to let it go."""

    reader: Any  # asyncio.StreamReader or asyncssh.SSHReader[bytes]
    errors: Any  # what it, or ssh itself, complains of
    writer: Any
    close: Callable[[], Awaitable[None]]


class Unreachable(LaunchError):
    """A host that cannot be used: why, and what to do about it."""

    def __init__(self, host: Host, why: str, fix: str) -> None:
        super().__init__(f"{host.name}: {why}: {fix}")
        self.host, self.why, self.fix = host, why, fix


Open = Callable[[Host], Awaitable[Channel]]


class AsyncSsh:
    """Connections by asyncssh, one a host, which is opened again when it has been lost."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._connections: dict[str, asyncssh.SSHClientConnection] = {}
        self._slots = asyncio.Semaphore(64)  # logins at the same time

    async def open(self, host: Host) -> Channel:
        """Raises Unreachable."""
        import asyncssh

        connection = self._connections.get(host.name)
        if connection is None or connection.is_closed():
            connection = self._connections[host.name] = await self._connect(host)
        try:
            process = await connection.create_process(shlex.join(PROGRAM), encoding=None)
        except (asyncssh.Error, OSError) as error:
            why = f"nothing can be started there ({error})"
            raise Unreachable(host, why, "look whether a command can be run there by `ssh`") from None

        async def close() -> None:
            process.close()

        return Channel(process.stdout, process.stderr, process.stdin, close)

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
        for attempt in range(THROTTLED_TRIES):
            try:
                async with self._slots:
                    return await asyncssh.connect(
                        host.name, host.port, connect_timeout=CONNECT_SECONDS, login_timeout=CONNECT_SECONDS, **options
                    )
            except asyncssh.HostKeyNotVerifiable:
                raise _key_trouble(host) from None
            except asyncssh.PermissionDenied:
                key = self._cluster.key_file or "SSH's own keys"
                why = f"it refuses {self._cluster.user or 'this user'} with {key}"
                fix = "put the public key into authorized_keys there, or name another user or key_file"
                raise Unreachable(host, why, fix) from None
            except (asyncssh.KeyImportError, FileNotFoundError, PermissionError) as error:
                why = f"the key {self._cluster.key_file} cannot be used ({error})"
                raise Unreachable(host, why, "name another key_file") from None
            except ConnectionRefusedError:
                why = f"nobody listens on port {host.port}"
                raise Unreachable(host, why, "is its SSH daemon running?") from None
            except (asyncssh.ConnectionLost, ConnectionResetError, BrokenPipeError):
                await asyncio.sleep(0.5 * 2**attempt)  # throttled (MaxStartups): it passes
            except (asyncssh.Error, OSError, TimeoutError) as error:
                what = str(error) or f"no answer within {CONNECT_SECONDS:.0f} s"
                raise Unreachable(host, f"it cannot be reached ({what})", "is it up, and is the name right?") from None
        why = "its SSH daemon closes connections before they begin"
        raise Unreachable(host, why, "raise MaxStartups in its sshd_config, or look into its log")


class SystemSsh:
    """Connections by the system's `ssh`, with all that its configuration says; slower, but what people have tried."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._slots = asyncio.Semaphore(16)

    async def open(self, host: Host) -> Channel:
        """Raises Unreachable."""
        options = {
            "BatchMode": "yes", "StrictHostKeyChecking": "yes", "ConnectTimeout": f"{CONNECT_SECONDS:.0f}",
            "ServerAliveInterval": str(KEEPALIVE_SECONDS), "ServerAliveCountMax": str(KEEPALIVES),
        }  # fmt: skip
        argv = ["ssh", "-T", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
        argv += ["-i", self._cluster.key_file] if self._cluster.key_file else []
        argv += ["-l", self._cluster.user] if self._cluster.user else []
        argv += ["-p", str(host.port), "--", host.name, shlex.join(PROGRAM)]
        async with self._slots:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )

        async def close() -> None:
            if process.returncode is None:
                process.terminate()
            await process.wait()

        return Channel(process.stdout, process.stderr, process.stdin, close)

    async def close(self) -> None:
        return


TRANSPORTS: Mapping[str, Callable[[Cluster], AsyncSsh | SystemSsh]] = {"asyncssh": AsyncSsh, "system": SystemSsh}


def _key_trouble(host: Host) -> Unreachable:
    """Whether a host's key is not known at all, or another than the one that is."""
    import asyncssh

    known = Path.home() / ".ssh" / "known_hosts"
    try:
        keys = asyncssh.read_known_hosts(str(known)).match(host.name, host.address, host.port)[0]
    except (OSError, ValueError):
        keys = ()
    if keys:
        fix = (
            f"if it was installed anew, remove the old one with `ssh-keygen -R {host.name}` and log in once by hand; "
            "if not, somebody else answers in its name"
        )
        return Unreachable(host, f"its host key is not the one in {known}", fix)
    fix = f"log in once by hand (`ssh {host.name}`) and compare it"
    return Unreachable(host, f"its host key is not in {known}", fix)
