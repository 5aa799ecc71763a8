"""Real processes in tests: waiting for what they do, and proving that none of them is left."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
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
