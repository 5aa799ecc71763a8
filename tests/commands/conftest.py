"""Run directories whose processes can be found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.processes import processes_with, wait_until


@pytest.fixture(autouse=True)
def history(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index of runs of each test's own: those of an earlier test would tell how far runs differ."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))


@pytest.fixture
def run_dir(tmp_path: Path, mark: str) -> Iterator[Path]:
    """A run directory, not made yet, whose name every process of the run carries; none of them may be left."""
    path = tmp_path / mark
    yield path
    wait_until(lambda: not processes_with(mark), 5)
