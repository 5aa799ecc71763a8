"""Answers preflight's questions on a node. It changes nothing, apart from one small file where it is asked for one.

    facts   {"parts": {name: its arguments}, "seconds"}
            → {"clock", "took", "failed": {part: why}, part: what was found, …}
    meet    {"listen": port, "guests"} or {"connect": [address, port]}, with {"seconds", "files": [path]}
            → {"reached": true or why not, "seen": {path: bool}}
    erase   {"files": [path]}                                 → {}

Every part has a thread of its own and every program a time limit, so that a dead disk or a stuck driver delays only
itself: what has not answered in time is in "failed".
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING or __package__:
    from seatrial.node import inventory
else:  # on a node, with the modules that travel with it
    import inventory

MAX_TEXT = 400


def facts(given: dict[str, Any]) -> dict[str, Any]:
    clock, begun = time.time(), time.monotonic()
    found: dict[str, Any] = {}
    failed: dict[str, str] = {}

    def look(part: str, asked: Any) -> None:
        try:
            found[part] = inventory.PARTS[part](asked)
        except Exception as error:
            failed[part] = str(error)[:MAX_TEXT] or type(error).__name__

    threads = [threading.Thread(target=look, args=item, daemon=True) for item in given["parts"].items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, begun + given["seconds"] - time.monotonic()))
    for part in given["parts"]:
        if part not in found and part not in failed:
            failed[part] = "no answer within %.0f s" % given["seconds"]
    return {"clock": clock, "took": time.monotonic() - begun, "failed": failed, **found}


def meet(given: dict[str, Any]) -> dict[str, Any]:
    deadline = time.monotonic() + given["seconds"]
    reached: Any = True
    if "listen" in given:
        reached = listen(given["listen"], given["guests"], deadline)
    elif "connect" in given:
        reached = connect(given["connect"], deadline)
    seen = {}
    for path in given["files"]:
        while not os.path.exists(path) and time.monotonic() < deadline - given["seconds"] + 1:
            time.sleep(0.1)
        seen[path] = os.path.exists(path)
    return {"reached": reached, "seen": seen}


def listen(number_of_port: int, guests: int, deadline: float) -> Any:
    """Accepts connections until all guests have come."""
    try:
        with socket.create_server(("", number_of_port), backlog=512) as server:
            while guests and time.monotonic() < deadline:
                server.settimeout(max(0.01, deadline - time.monotonic()))
                with contextlib.suppress(socket.timeout):
                    server.accept()[0].close()
                    guests -= 1
    except OSError as error:
        return error.strerror or str(error)
    return True


def connect(where: list[Any], deadline: float) -> Any:
    """Tries until somebody listens."""
    while True:
        try:
            socket.create_connection((where[0], where[1]), timeout=max(0.1, deadline - time.monotonic())).close()
            return True
        except OSError as error:
            if time.monotonic() > deadline - 0.2:
                return error.strerror or str(error)
        time.sleep(0.2)


def erase(given: dict[str, Any]) -> dict[str, Any]:
    for path in given["files"]:
        if os.path.basename(path).startswith(inventory.NONCE):
            with contextlib.suppress(OSError):
                os.unlink(path)
    return {}


VERBS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"facts": facts, "meet": meet, "erase": erase}


def main(verb: str, given: dict[str, Any]) -> None:
    """Answers in one line, and ends without waiting for threads that still run."""
    try:
        answer = VERBS[verb](given)
    except OSError as error:
        answer = {"error": str(error)}
    view = memoryview(json.dumps(answer, default=vars).encode() + b"\n")
    while view:
        view = view[os.write(1, view) :]
    for process in inventory.RUNNING:
        inventory.end(process)
    os._exit(0)
