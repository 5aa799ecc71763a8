"""Processes that render a report or a comparison each, so that a long one holds up nobody, and may be stopped."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from seatrial.errors import InputError, reason_of
from seatrial.history.compare import compare
from seatrial.history.comparison_page import render as render_comparison
from seatrial.history.earlier import require_no_copies, step_seconds_among
from seatrial.history.loaded import load
from seatrial.history.summary import IndexRow
from seatrial.report import html
from seatrial.report.gather import gather
from seatrial.runs.files import confine
from seatrial.serve import children
from seatrial.serve.scanner import limit_memory

WORKERS = 2
MEMORY_BYTES = 8 << 30  # the record of 2,048 ranks needs about one
MOST_SECONDS = 120.0
TOO_LONG = f"it takes longer than {MOST_SECONDS:.0f} s, or more memory than {MEMORY_BYTES >> 30} GiB"

Answer = dict[str, Any]  # "page" and its "policy", or "why" and "fix"


def report(directory: str) -> str:
    """The report of a run, from its data: a report.html that lies there may be anybody's, and is not looked at."""
    return html.render(gather(Path(directory)))


def comparison(a: str, b: str, rows: Sequence[IndexRow], anyway: bool) -> str:
    """The comparison of b with a; `rows` are other runs of their configurations."""
    named = [Path(a), Path(b)]
    if not anyway:
        require_no_copies(named)
    one, other = map(load, named)
    return render_comparison(compare(one, other, anyway=anyway, others=step_seconds_among(rows, named)), None)


JOBS: Mapping[str, Callable[..., str]] = {"report": report, "comparison": comparison}


def work(roots: Sequence[Path], pipe: Connection) -> None:
    """Answers one job after the other, until the other end of the pipe is closed."""
    limit_memory(MEMORY_BYTES)
    confine(roots)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            name, arguments = json.loads(pipe.recv_bytes())
            pipe.send_bytes(json.dumps(_answer(name, arguments)).encode())


def _answer(name: str, arguments: Sequence[Any]) -> Answer:
    try:
        page = JOBS[name](*arguments)
    except InputError as error:
        problem = error.problems[0]
        return {"why": problem.why, "fix": problem.fix, "code": problem.code}
    except MemoryError:
        return {"why": TOO_LONG, "fix": ""}
    except Exception as error:  # of a damaged run; the worker goes on
        return {"why": f"its files cannot be read: {reason_of(error)}", "fix": ""}
    return {"page": page, "policy": html.policy_of(page)}


class _Worker:
    """A process that is started when it is first needed, and again after it was killed."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = tuple(roots)
        self._running: tuple[Any, Connection] | None = None

    def call(self, name: str, arguments: Sequence[Any]) -> Answer:
        if self._running is None or not self._running[0].is_alive():
            self.end()
            self._running = children.start(work, self._roots)
        pipe = self._running[1]
        with suppress(OSError, EOFError):  # it was killed, as for its memory
            pipe.send_bytes(json.dumps([name, arguments]).encode())
            if pipe.poll(MOST_SECONDS):
                answer: Answer = json.loads(pipe.recv_bytes())
                return answer
        self.end()
        return {"why": TOO_LONG, "fix": ""}

    def end(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            children.end(*running)


class Workers:
    """The workers of a server. `call` may be used by several threads at once."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._all = [_Worker(roots) for _ in range(WORKERS)]
        self._free: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self._all:
            self._free.put(worker)

    def call(self, name: str, *arguments: Any) -> Answer:
        """The answer to one of JOBS; waits until a worker is free."""
        worker = self._free.get()
        try:
            return worker.call(name, arguments)
        finally:
            self._free.put(worker)

    def end(self) -> None:
        """Kills them."""
        for worker in self._all:
            worker.end()
