"""`seatrial serve` on 5,000 runs, of which 30 go on: the time of the first page, of a live update, memory and CPU time.

Goals: the first page in 300 ms of server time, a live update in 1 s. The last pixel is measured in Chromium, if it is
there: from the moment before an event is written to the moment when the text on the page has changed.
"""

from __future__ import annotations

import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

import record
from tests.helpers import browsing, many_runs
from tests.helpers.many_runs import LiveRun

RUNS, GOING, PAGES, UPDATES, QUIET_SECONDS = 5000, 30, 40, 40, 30.0
SERVE = [sys.executable, "-c", "from seatrial.cli import main; main()", "serve", "--port", "0"]


@contextmanager
def started(runs: Path, data: Path) -> Iterator[tuple[str, psutil.Process, float]]:
    """(address, process, time of the start) of a server with its index in `data`."""
    began = time.monotonic()
    environment = {**os.environ, "XDG_DATA_HOME": str(data)}
    process = subprocess.Popen([*SERVE, str(runs)], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        address = next(line.strip() for line in process.stdout if line.startswith("http://"))
        yield address, psutil.Process(process.pid), began
    finally:
        process.terminate()
        process.wait()


def page(address: str, path: str = "") -> tuple[float, str]:
    """(seconds, text) of a page."""
    began = time.perf_counter()
    with urllib.request.urlopen(address + path, timeout=60) as answer:
        text = answer.read().decode()
    return time.perf_counter() - began, text


def start(runs: Path, data: Path) -> dict[str, Any]:
    """From the start of the process to its first page, to all runs, and to the end of the first look at all folders."""
    found: dict[str, Any] = {"pages_meanwhile_seconds": []}
    with started(runs, data) as (address, _, began):
        found["first_answer_seconds"] = None
        while "reading the folders" in (text := _timed(address, began, found)) or f"<b>{RUNS:,}</b>" not in text:
            if f"<b>{RUNS:,}</b>" in text:
                found.setdefault("all_runs_seconds", round(time.monotonic() - began, 3))
            time.sleep(0.5)
        found.setdefault("all_runs_seconds", round(time.monotonic() - began, 3))
        found["checked_seconds"] = round(time.monotonic() - began, 3)
        time.sleep(2)  # the index is written
    return found


def _timed(address: str, began: float, found: dict[str, Any]) -> str:
    seconds, text = page(address)
    found["pages_meanwhile_seconds"].append(round(seconds, 4))
    found["first_answer_seconds"] = found["first_answer_seconds"] or round(time.monotonic() - began, 3)
    return text


def pages(address: str, process: psutil.Process) -> dict[str, Any]:
    """The times of pages of all runs, one by one, each asked for PAGES times; and the server's own CPU time for each.

    On a busy machine, the first has other programs' time in it; the second has that of live updates meanwhile.
    """
    groups = re.findall(r'<th scope="row"><a href="/(configurations/\w+)"', page(address, "configurations")[1])
    run = re.findall(r'href="/(runs/\w+)"', page(address, "?outcome=pass")[1])[0]
    filtered = "?outcome=fail&sort=step&q=8b"
    paths = {"runs": "", "filtered": filtered, "configurations": "configurations", "configuration": groups[-1]}
    found: dict[str, Any] = {"cpu": {}}
    for name, path in paths.items():
        before = sum(process.cpu_times()[:2])
        found[name] = [round(page(address, path)[0], 4) for _ in range(PAGES)]
        found["cpu"][name] = round((sum(process.cpu_times()[:2]) - before) / PAGES, 4)
    return found | {"report": [round(page(address, run)[0], 4) for _ in range(10)]}


class Others(threading.Thread):
    """Runs that go on: each does a step a second."""

    def __init__(self, runs: Path) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self._runs = [
            LiveRun(runs / f"going-{n}", n % 6, nodes=[f"node{k}" for k in range(1 + n % 4)]) for n in range(GOING - 1)
        ]

    def run(self) -> None:
        while not self.ended.wait(0.0):
            for run in self._runs:
                run.step(seconds=28.0)
                self.ended.wait(1 / len(self._runs))


def updates(address: str, probe: LiveRun) -> list[float]:
    """Seconds from before a step is written until its message has come."""
    parts = re.fullmatch(r"http://(.+):(\d+)/", address)
    assert parts is not None
    host, port = parts.groups()
    found = []
    with socket.create_connection((host, int(port)), timeout=30) as stream:
        stream.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = ""
        for _ in range(UPDATES):
            time.sleep(random.uniform(0.2, 1.2))
            began = time.perf_counter()
            words = f'"steps":"{probe.step(seconds=28.0) + 1:,} of 777"'
            while words not in received:
                received = received[-100_000:] + stream.recv(1 << 20).decode()
            found.append(round(time.perf_counter() - began, 4))
    return found


WATCH = """
window.seen = {};
const cell = document.querySelector(`tr[data-run="${arguments[0]}"] [data-cell=steps]`);
new MutationObserver(() => requestAnimationFrame(() => { window.seen[cell.textContent] ??= Date.now() / 1000; }))
  .observe(cell, {childList: true, characterData: true, subtree: true});
"""


def updates_in_a_browser(address: str, probe: LiveRun, folder: Path) -> list[float]:
    """As `updates`, until the text on the page has changed and is drawn."""
    from seatrial.serve.table import key_of

    browser, found = browsing.Browser(folder / "profile"), []
    try:
        browser.open(address)
        browser.wait("return document.getElementById('linked').textContent === 'live'", seconds=30)
        browser.run(WATCH, key_of(str(probe.directory)))
        for _ in range(UPDATES // 2):
            time.sleep(random.uniform(0.2, 1.2))
            began = time.time()
            words = f"{probe.step(seconds=28.0) + 1:,} of 777"
            found.append(round(browser.wait("return window.seen[arguments[0]]", words, seconds=30) - began, 4))
    finally:
        browser.quit()
    return found


def family(process: psutil.Process) -> dict[str, psutil.Process]:
    """The server and its children: the scanner was started first."""
    children = [each for each in process.children() if "spawn_main" in " ".join(each.cmdline())]
    names = ["scanner", *(f"worker {n}" for n in range(1, len(children)))]
    return {"server": process} | dict(zip(names, sorted(children, key=lambda each: each.create_time()), strict=False))


def costs(process: psutil.Process) -> dict[str, Any]:
    """Resident memory, and the CPU time of a second while nothing but live updates goes on."""
    before = {name: sum(each.cpu_times()[:2]) for name, each in family(process).items()}
    time.sleep(QUIET_SECONDS)
    return {
        name: {
            "memory_bytes": each.memory_info().rss,
            "cpu_seconds_per_second": round((sum(each.cpu_times()[:2]) - before[name]) / QUIET_SECONDS, 4),
        }
        for name, each in family(process).items()
    }


def main() -> None:
    random.seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = many_runs.write(folder / "runs", RUNS)
        measured: dict[str, Any] = {
            "runs": RUNS,
            "going": GOING,
            "goals": {"first_page_seconds": 0.3, "update_seconds": 1.0},
        }
        measured["cold_start"] = start(runs, folder / "data")
        measured["warm_start"] = start(runs, folder / "data")
        others, probe = Others(runs), LiveRun(runs / "probe", 0, planned=777)
        with started(runs, folder / "data") as (address, process, _):
            while f"<b>{RUNS + GOING:,}</b> runs" not in page(address)[1]:
                time.sleep(0.2)
            others.start()
            measured["pages_seconds"] = pages(address, process)
            measured["update_seconds"] = updates(address, probe)
            if browsing.CHROMIUM and browsing.DRIVER:
                measured["update_in_a_browser_seconds"] = updates_in_a_browser(address, probe, folder)
            measured["processes"] = costs(process)
            others.ended.set()
            others.join()
    print(record.write("serve", measured))
    for key in ("pages_seconds", "update_seconds", "update_in_a_browser_seconds"):
        values = measured.get(key, {})
        for label, own in (values if isinstance(values, dict) else {"": values}).items():
            if label == "cpu":
                print(f"{key} {label}: {own}")
                continue
            print(f"{key} {label}: median {statistics.median(own):.3f}, largest {max(own):.3f}")
    print(json.dumps({name: measured[name] for name in ("cold_start", "warm_start", "processes")}, indent=1))


if __name__ == "__main__":
    main()
