"""Serves the figures of a run that goes on to Prometheus: `seatrial run --metrics-port [HOST:]PORT`.

They come from what the launcher sees: the agents' statuses, and the events of the first process. Speeds are computed as
in the report, from the median of the last steps.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from seatrial.console import Say
from seatrial.errors import InputError
from seatrial.events import RunStarted, Step, Tail
from seatrial.launch.display import QUIET_SECONDS
from seatrial.launch.follow import Following
from seatrial.launch.progress import Progress
from seatrial.publish import require_package
from seatrial.publish.gauges import Gauges, Sample, labels_of, of_a_judged
from seatrial.publish.last_steps import LastSteps
from seatrial.report.gather import RunReport, clean
from seatrial.spec import RunSpec

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

LOOPBACK = "127.0.0.1"
OPTION = "--metrics-port"
FIRST_INTERVAL_SECONDS = 15.0  # of a scraper that came once
LONGEST_WAIT_SECONDS = 30.0  # for it to fetch the outcome
# Gauge → column of STEPS.
_OF_A_STEP = {
    "seatrial_loss": "loss",
    "seatrial_step_seconds": "seconds",
    "seatrial_tokens_per_second": "tokens_per_second_total",
    "seatrial_tokens_per_second_per_device": "tokens_per_second_per_device",
    "seatrial_tflops_per_second_per_device": "tflops_per_second_per_device",
    "seatrial_mfu_ratio": "mfu",
}


class _Attempt:
    """The figures of one attempt: fed by the launcher's thread, read by those of the server."""

    def __init__(self, run_dir: Path, spec: RunSpec) -> None:
        self._run, self._spec = clean(run_dir.name), spec
        self._tail, self._steps = Tail(run_dir / "events-0.jsonl"), LastSteps(spec)
        self._started = time.time()

    def see(self, progress: Progress) -> list[Sample]:
        """Takes in the new events; the figures as they are now."""
        for event in self._tail.read():
            self._steps.see(event)
            if isinstance(event, RunStarted):
                self._started = event.wall_time
        return list(self._samples(progress))

    def _samples(self, progress: Progress) -> Iterator[Sample]:
        labels = labels_of(self._run, self._spec, self._steps.performance.device)
        hosts, planned = progress.statuses, self._steps.planned or 0
        alive = [
            host
            for host, status in hosts.items()
            if status["state"] != "ended" and progress.silent.get(host, 0) <= QUIET_SECONDS
        ]
        last = self._steps.typical
        if last is None and progress.last_step is not None:  # without events, as the agents saw it
            last = Step(step=progress.last_step, seconds=progress.median_seconds or None)
        done = 0 if last is None else last.step + 1
        yield Sample("seatrial_step", labels, done)
        yield Sample("seatrial_planned_steps", labels, planned)
        yield Sample("seatrial_nodes", labels, len(hosts) + len(progress.missing))
        yield Sample("seatrial_nodes_alive", labels, len(alive))
        yield Sample("seatrial_started_timestamp_seconds", labels, self._started)
        yield Sample("seatrial_outcome", labels | {"outcome": "running"}, 1)
        if last is None:
            return
        figures = self._steps.figures(last)
        yield from (Sample(name, labels, figures[of]) for name, of in _OF_A_STEP.items() if figures[of] is not None)
        if last.seconds:
            yield Sample("seatrial_eta_seconds", labels, last.seconds * max(0, planned - done))


class LiveRun:
    """The figures of a run, through all its attempts."""

    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._scraped: list[float] = []  # when, the last two times
        self._is_over = False
        self._fetched = threading.Event()  # a scraper has the whole outcome

    def follow(self, following: Following, run_dir: Path, spec: RunSpec) -> Following:
        """A copy of `following` for one attempt, which also updates these figures."""
        attempt = _Attempt(run_dir, spec)

        def on_progress(progress: Progress) -> None:
            following.on_progress(progress)
            self._samples = attempt.see(progress)

        return following._replace(on_progress=on_progress)

    def end(self, report: RunReport, tell: Say) -> None:
        """The figures of a run that is over; whoever has fetched them before may fetch them once more."""
        self._fetched.clear()
        self._samples, self._is_over = list(of_a_judged(report, report.directory)), True
        if not self._scraped:
            return
        interval = self._scraped[-1] - self._scraped[0] or FIRST_INTERVAL_SECONDS
        tell("waiting until the outcome is scraped; Ctrl-C ends that")
        with suppress(KeyboardInterrupt):
            self._fetched.wait(min(2 * interval, LONGEST_WAIT_SECONDS))

    def samples(self) -> list[Sample]:
        """The figures for a scrape."""
        self._scraped = [*self._scraped, time.monotonic()][-2:]
        return self._samples

    def answering(self, application: WSGIApplication) -> WSGIApplication:
        """That application, which also notes when an answer with the outcome has been sent.

        Not when it is asked for: the end of the run would cut off an answer that is still on its way.
        """

        def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
            with_the_outcome = self._is_over
            yield from application(environ, start_response)
            if with_the_outcome:  # the server asks for more once it has sent all
                self._fetched.set()

        return answer


class _Unserved(LiveRun):
    """Keeps nothing, where nobody asks."""

    def follow(self, following: Following, run_dir: Path, spec: RunSpec) -> Following:
        return following

    def end(self, report: RunReport, tell: Say) -> None:
        """Nobody waits for it."""


@contextmanager
def served(at: str | None, tell: Say) -> Iterator[LiveRun]:
    """The figures of a run, served at [HOST:]PORT while the context lasts, or not at all.

    Raises InputError for what is no address, an address that cannot be used, and without prometheus_client.
    """
    if at is None:
        yield _Unserved()
        return
    host, port = address(at)
    require_package(OPTION, "prometheus_client", "publish-prometheus")
    from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server

    live, registry = LiveRun(), CollectorRegistry()
    registry.register(Gauges(live.samples))
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
        server.set_app(live.answering(make_wsgi_app(registry)))
    except (OSError, UnicodeError) as error:  # the latter for a host with no word between two dots
        why = f"{host}:{port} cannot be served: {getattr(error, 'strerror', None) or error}"
        raise InputError.single("metrics-port", OPTION, why, "name another port; 0 takes any that is free") from error
    try:
        shown = f"[{host}]" if ":" in host else host
        tell(f"metrics: http://{shown}:{server.server_port}/metrics")
        yield live
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def address(text: str) -> tuple[str, int]:
    """Host and port of [HOST:]PORT. Raises InputError for anything else."""
    match = re.fullmatch(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[\w.-]+):)?(?P<port>\d{1,5})", text, re.ASCII)
    if match is None or int(match["port"]) > 65535:
        why, fix = f"{text!r} is no port", "give a number up to 65535, or HOST:PORT to serve other machines as well"
        raise InputError.single("metrics-port", OPTION, why, fix)
    return (match["host"] or LOOPBACK).strip("[]"), int(match["port"])
