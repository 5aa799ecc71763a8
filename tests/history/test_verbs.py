"""`seatrial history` and `seatrial compare` as a person runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.history.runs import make


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with three runs: the second is 20 % slower than the others."""
    for seed, (name, times) in enumerate({"a": 1.0, "slow": 1.2, "same": 1.0}.items()):
        make(tmp_path / "runs" / name, seed=seed, times=times)
    return tmp_path


def seatrial(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_DATA_HOME": str(folder / "data")}
    command = [sys.executable, "-m", "seatrial", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    return done


def test_history_and_compare_by_name(folder: Path) -> None:
    listed = seatrial(folder, "history")
    assert listed.returncode == 0
    assert [name for name in ("runs/a", "runs/slow", "runs/same") if name in listed.stdout] == [
        "runs/a",
        "runs/slow",
        "runs/same",
    ]
    assert (folder / "data" / "seatrial" / "history.sqlite").is_file()
    for b, code in (("slow", 1), ("same", 0)):
        assert seatrial(folder, "compare", "a", b, "--fail-if-slower", "3%").returncode == code
    assert seatrial(folder, "compare", "runs/a", "runs/slow").returncode == 0


@pytest.mark.parametrize("arguments", [
    ("compare", "runs/a", "nowhere"), ("compare", "runs", "runs/a"),
    ("compare", "runs/a", "runs/same", "--fail-if-slower", "3"),
    ("history", "--root", "nowhere"), ("history", "--outcome", "great"),
])  # fmt: skip
def test_wrong_input_is_code_2_for_people_and_for_scripts(folder: Path, arguments: tuple[str, ...]) -> None:
    told = seatrial(folder, *arguments)
    assert told.returncode == 2
    assert "fix:" in told.stderr
    machine = seatrial(folder, *arguments, "--format", "json")
    assert machine.returncode == 2
    assert len(json.loads(machine.stdout)["problems"]) == 1
