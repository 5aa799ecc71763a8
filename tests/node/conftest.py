"""Real agents around real processes, each marked so that a test can prove that nothing is left of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.agents import Agent


@pytest.fixture
def start_agent(tmp_path: Path, mark: str) -> Iterator[Callable[..., Agent]]:
    """Starts an agent: `start_agent([program, …], key=value of the job …)`."""
    started: list[Agent] = []

    def start(programs: list[str], group: Path | None = None, **job: Any) -> Agent:
        started.append(Agent(tmp_path, mark, programs, job, group))
        return started[-1]

    yield start
    for agent in started:
        if agent.process.poll() is None:
            agent.process.kill()
            agent.process.wait()
