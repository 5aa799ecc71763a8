"""`seatrial serve`: the server with its scanner, from the first line that it prints to Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from multiprocessing.connection import Connection
from pathlib import Path

import uvicorn

from seatrial.console import Say, inert
from seatrial.errors import InputError, reason_of
from seatrial.history.index import default_path
from seatrial.serve import children
from seatrial.serve.scanner import scan
from seatrial.serve.site import Site

TOKEN_BYTES = 24
FEWEST_CHARACTERS = 16  # of a token that a person chose
RESTART_SECONDS = 5.0  # after the scanner was killed


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Which folders are served, where, and to whom; port 0 is any that is free."""

    roots: tuple[Path, ...]
    host: str
    port: int
    token_file: Path | None


def serve(asked: Serving, say: Say) -> None:
    """Serves until SIGINT or SIGTERM. Raises InputError for folders, addresses and tokens that cannot be used."""
    roots = _roots(asked.roots)
    token = _token(asked)
    listening = _listen(asked.host, asked.port)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    say(f"serving {', '.join(inert(str(root)) for root in roots)}")
    say(f"http://{shown}:{port}/{f'?token={token}' if token else ''}")
    if token is None:
        say("for this machine only; Ctrl-C ends it")
    site = Site(roots, token=token)
    config = uvicorn.Config(
        site.app, log_level="warning", access_log=False, server_header=False, ws="none", lifespan="on",
        timeout_graceful_shutdown=2, proxy_headers=False,
    )  # fmt: skip
    with listening:
        asyncio.run(_Server(config, site, roots).serve(sockets=[listening]))


class _Server(uvicorn.Server):
    """uvicorn's, which ends in order on a signal: listeners are let go, and processes are ended."""

    def __init__(self, config: uvicorn.Config, site: Site, roots: Sequence[Path]) -> None:
        super().__init__(config)
        self._site, self._roots = site, roots
        self._ended = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        loop = asyncio.get_running_loop()
        self._follower = threading.Thread(target=self._follow, args=(loop,))
        self._follower.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._ended.set()
        self._site.hub.close()
        await super().shutdown(sockets)
        await asyncio.to_thread(self._follower.join)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Without raising them once more when all is over, as uvicorn does: the exit code is 0."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _stop(self) -> None:
        self._site.hub.close()
        self.should_exit = True

    def _follow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hands on what the scanner says; in a thread. The scanner ends with its pipe."""
        while not self._ended.is_set():
            process, pipe = children.start(scan, tuple(self._roots), default_path())
            with suppress(EOFError, OSError, RuntimeError):  # it was killed, or the loop is over
                self._take_all(pipe, loop)
            children.end(process, pipe)
            self._ended.wait(RESTART_SECONDS)

    def _take_all(self, pipe: Connection, loop: asyncio.AbstractEventLoop) -> None:
        while not self._ended.is_set():
            if pipe.poll(0.2):
                loop.call_soon_threadsafe(self._site.take, json.loads(pipe.recv_bytes()))


def _roots(given: Sequence[Path]) -> tuple[Path, ...]:
    """The folders, without those that lie in another one."""
    found: list[Path] = []
    for path in given:
        if not path.is_dir():
            why = f"{path} is not a folder" if path.exists() else f"there is no folder {path}"
            raise InputError.single("no-root", str(path), why, "name the folder that holds the run directories")
        found.append(path.resolve())
    return tuple(root for root in dict.fromkeys(found) if not any(other in root.parents for other in found))


def _token(asked: Serving) -> str | None:
    """The token of the file, or a new one; None for this machine alone."""
    if asked.token_file is not None:
        try:
            text = asked.token_file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            why, fix = f"it cannot be read: {reason_of(error)}", "name a file with the token in it"
            raise InputError.single("token-file", str(asked.token_file), why, fix) from error
        if len(text) < FEWEST_CHARACTERS or not text.isascii() or not text.isprintable() or " " in text:
            why = f"its token is not one word of {FEWEST_CHARACTERS} ASCII characters or more"
            fix = "make one: python -c 'import secrets; print(secrets.token_urlsafe())' > FILE"
            raise InputError.single("token-file", str(asked.token_file), why, fix)
        return text
    return None if _is_loopback(asked.host) else secrets.token_urlsafe(TOKEN_BYTES)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises InputError where that is not possible."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind(address)
            made.listen(128)
        except BaseException:
            made.close()
            raise
    except (OSError, UnicodeError, OverflowError) as error:
        why = f"{host}:{port} cannot be served: {reason_of(error)}"
        fix = (
            "name another port; 0 takes any that is free"
            if not isinstance(error, socket.gaierror)
            else "name an address of this machine"
        )
        raise InputError.single(
            "serve-address", "--port" if not isinstance(error, socket.gaierror) else "--host", why, fix
        ) from error
    return made
