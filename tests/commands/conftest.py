"""Run directories whose processes can be found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.processes import processes_with, wait_until


@pytest.fixture
def run_dir(tmp_path: Path, mark: str) -> Iterator[Path]:
    """A run directory, not made yet, whose name every process of the run carries; none of them may be left."""
    path = tmp_path / mark
    yield path
    wait_until(lambda: not processes_with(mark), 5)
