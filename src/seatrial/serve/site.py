"""The server's application: addresses → pages, and what the scanner says → the table and those who listen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from seatrial.serve import views
from seatrial.serve.guard import Guard
from seatrial.serve.hub import Hub, encode
from seatrial.serve.pages import ASSETS, Pages, asset
from seatrial.serve.table import Table
from seatrial.serve.workers import Answer, Workers

PAUSE_SECONDS = 1.0  # between two messages that make readers load the page again
FOREVER = {"Cache-Control": "private, max-age=31536000, immutable"}
# A report runs our own script alone, whose hash its policy names, and that without any right of this server's pages.
SANDBOX = "sandbox allow-scripts allow-modals; frame-ancestors 'none'"


class Site:
    """The pages over the runs below some roots."""

    def __init__(self, roots: Sequence[Path], *, token: str | None, names: frozenset[str]) -> None:
        self.table, self.hub = Table(roots), Hub()
        self._workers = Workers(roots)
        self._pages = Pages(self.table, roots)
        self._ended: list[tuple[str, str]] = []
        self._is_late, self._said_at = False, 0.0
        self._limiter: anyio.CapacityLimiter | None = None
        self.app = Starlette(
            routes=[
                Route("/", self._runs),
                Route("/configurations", self._configurations),
                Route("/configurations/{key}", self._configuration),
                Route("/runs/{key}", self._run),
                Route("/compare", self._compare),
                Route("/events", self._events),
                Route("/static/{name}", self._static),
            ],
            middleware=[Middleware(Guard, token=token, names=names)],
            exception_handlers={404: self._not_found},
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._workers.end()

    # --- what the scanner says ---

    def take(self, message: Mapping[str, Any]) -> None:
        """Takes in a message of the scanner, and tells those who listen; in the event loop."""
        rows = self.table.rows if message["rows"] else {}
        going = {key for key, row in rows.items() if row["outcome"] == "running"}
        was_whole = self.table.is_whole
        update = self.table.apply(message)
        for key in update.rows & going:
            row = self.table.rows.get(key)
            if row is not None and row["outcome"] != "running":
                self._ended.append((views.name_of(row), views.title_of(str(row["outcome"]))))
        if update.live:
            runs = {key: views.live_of(self.table.live[key]) for key in update.live}
            self.hub.send("live", {"now": time.time(), "runs": runs})
        if (update.rows or self.table.is_whole != was_whole) and not self._is_late:
            self._is_late = True
            pause = max(0.0, self._said_at + PAUSE_SECONDS - time.monotonic())  # at once, if nothing was said lately
            asyncio.get_running_loop().call_later(pause, self._say_changed)

    def _say_changed(self) -> None:
        self._is_late, self._said_at = False, time.monotonic()
        self.hub.send("changed", {"ended": self._ended})
        self._ended = []

    # --- pages ---

    async def _runs(self, request: Request) -> Response:
        return HTMLResponse(self._pages.runs(request.query_params))

    async def _configurations(self, _: Request) -> Response:
        return HTMLResponse(self._pages.configurations())

    async def _configuration(self, request: Request) -> Response:
        page = self._pages.configuration(request.path_params["key"])
        return HTMLResponse(page) if page is not None else self._missing("There is no such configuration")

    async def _run(self, request: Request) -> Response:
        row = self.table.rows.get(request.path_params["key"])
        if row is None:
            return self._missing("There is no such run", "It may have been moved or removed.")
        answer = await self._ask("report", row["directory"])
        return self._rendered(answer, f"There is no report of {views.name_of(row)}")

    async def _compare(self, request: Request) -> Response:
        keys = list(dict.fromkeys(request.query_params.getlist("run")))
        if len(keys) != 2 or any(key not in self.table.rows for key in keys):
            why = "Two runs make a comparison" if len(keys) != 2 else "One of the runs is not there (any more)"
            return HTMLResponse(self._pages.message(why, "Choose two of the list."), 400)
        rows = self.table.rows
        one, other = sorted(keys, key=self.table.start)  # the earlier one is A
        anyway = request.query_params.get("anyway") == "1"
        answer = await self._ask(
            "comparison", rows[one]["directory"], rows[other]["directory"], self.table.alike(keys), anyway
        )
        more = None if anyway else ("Compare what can be compared", f"/compare?run={one}&run={other}&anyway=1")
        return self._rendered(answer, "These two cannot be compared", more)

    async def _ask(self, job: str, *arguments: Any) -> Answer:
        """The answer of a worker; the event loop goes on meanwhile."""
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(16)
        call: Callable[[], Answer] = partial(self._workers.call, job, *arguments)
        return await anyio.to_thread.run_sync(call, limiter=self._limiter)

    def _rendered(self, answer: Answer, otherwise: str, more: tuple[str, str] | None = None) -> Response:
        if "page" in answer:
            return HTMLResponse(answer["page"], headers={"Content-Security-Policy": f"{answer['policy']}; {SANDBOX}"})
        more = more if answer.get("code") in ("not-comparable", "same-run") else None
        fix = "" if more else answer["fix"]  # which names an option of the command line
        return HTMLResponse(self._pages.message(otherwise, answer["why"], fix, more), 422)

    def _missing(self, title: str, why: str = "") -> Response:
        return HTMLResponse(self._pages.message(title, why), 404)

    async def _not_found(self, _: Request, __: Exception) -> Response:
        return self._missing("There is no such page")

    async def _events(self, request: Request) -> Response:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        if request.method == "HEAD":
            return Response(media_type="text/event-stream", headers=headers)
        hello = encode("hello", {"now": time.time()})
        return StreamingResponse(self.hub.listen(hello), media_type="text/event-stream", headers=headers)

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in ASSETS:
            return PlainTextResponse("there is no such file\n", 404)
        return Response(asset(name), media_type=ASSETS[name][1], headers=FOREVER)
