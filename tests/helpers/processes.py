"""Real processes in tests: waiting for what they do, and proving that none of them is left."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import pytest


def wait_until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """The first true value of a condition; fails the test if there is none in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    pytest.fail(f"still not so after {seconds} s")


def processes_with(mark: str) -> list[int]:
    """The pids of living processes that carry a mark in their command line."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and any(mark in word for word in process.cmdline()):
                found.append(process.pid)
    return found


def wait_for(processes: Sequence[subprocess.Popen[Any]], idle_seconds: float = 90.0) -> list[int]:
    """The exit codes of processes that need each other; fails the test where one fails or none computes any more.

    How long they take is up to the machine: as long as they compute, they are waited for.
    """
    seconds, since = dict.fromkeys(range(len(processes)), 0.0), time.monotonic()
    while None in (codes := [process.poll() for process in processes]):
        for number, process in enumerate(processes):
            with contextlib.suppress(psutil.Error):
                times = psutil.Process(process.pid).cpu_times()
                if times.user + times.system > seconds[number] + 0.5:
                    seconds[number], since = times.user + times.system, time.monotonic()
        if any(codes) or time.monotonic() > since + idle_seconds:
            for process in processes:
                process.kill()
                process.wait()
            idle, total = time.monotonic() - since, sum(seconds.values())
            pytest.fail(f"exit codes {codes}, {total:.0f} s of computing, the last of them {idle:.0f} s ago")
        time.sleep(0.05)
    return [process.wait() for process in processes]
