"""`seatrial serve`: the server with its scanner, from the first line that it prints to Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

import uvicorn

from seatrial.console import Say, inert
from seatrial.errors import InputError, reason_of
from seatrial.history.index import default_path
from seatrial.serve import children
from seatrial.serve.scanner import scan
from seatrial.serve.site import Site

RESTART_SECONDS = 5.0  # after the scanner was killed


def serve(roots: Sequence[Path], host: str, port: int, *, token: str | None, say: Say) -> None:
    """Serves until SIGINT or SIGTERM; port 0 is any that is free. Raises InputError for an address that cannot be used.

    Without a token, only this machine may ask.
    """
    listening = _listen(host, port)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    lines = [f"serving {', '.join(inert(str(root)) for root in roots)}"]
    lines.append(f"http://{shown}:{port}/{f'?token={token}' if token else ''}")
    lines += [] if token else ["for this machine only; Ctrl-C ends it"]
    site = Site(roots, token=token, names=frozenset({shown}))
    config = uvicorn.Config(
        site.app, log_level="warning", access_log=False, server_header=False, ws="none", lifespan="on",
        timeout_graceful_shutdown=2, proxy_headers=False,
    )  # fmt: skip
    with listening:
        asyncio.run(_Server(config, site, roots, lambda: say("\n".join(lines))).serve(sockets=[listening]))


class _Server(uvicorn.Server):
    """uvicorn's, which ends in order on a signal: listeners are let go, and processes are ended."""

    def __init__(self, config: uvicorn.Config, site: Site, roots: Sequence[Path], on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._site, self._roots, self._on_ready = site, roots, on_ready
        self._ended = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        loop = asyncio.get_running_loop()
        self._follower = threading.Thread(target=self._follow, args=(loop,))
        self._follower.start()
        self._on_ready()

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
        option, fix = "--port", "name another port; 0 takes any that is free"
        if isinstance(error, socket.gaierror):
            option, fix = "--host", "name an address of this machine"
        raise InputError.single("serve-address", option, why, fix) from error
    return made
