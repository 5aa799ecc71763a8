"""Fixtures of all tests."""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.processes import processes_with

settings.register_profile("untimed", deadline=None)  # how busy the machine is must not fail a test
settings.load_profile("untimed")


@pytest.fixture
def mark() -> Iterator[str]:
    """A word that no other process has; whatever still carries it after the test is ended."""
    word = f"mark-{uuid.uuid4().hex}"
    yield word
    for pid in processes_with(word):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
