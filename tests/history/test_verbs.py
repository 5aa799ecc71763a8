"""`seatrial history` and `seatrial compare` as a person runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.command_line import seatrial
from tests.helpers.history_runs import make


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with three runs: the second is 20 % slower than the others."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for seed, (name, times) in enumerate({"a": 1.0, "slow": 1.2, "same": 1.0}.items()):
        make(tmp_path / "runs" / name, seed=seed, times=times)
    return tmp_path


def test_history_and_compare_by_name(folder: Path) -> None:
    listed = seatrial("history", cwd=folder)
    assert listed.returncode == 0
    assert [name for name in ("runs/a", "runs/slow", "runs/same") if name in listed.stdout] == [
        "runs/a",
        "runs/slow",
        "runs/same",
    ]
    assert (folder / "data" / "seatrial" / "history.sqlite").is_file()
    for b, code in (("slow", 1), ("same", 0)):
        assert seatrial("compare", "a", b, "--fail-if-slower", "3%", cwd=folder).returncode == code
    assert seatrial("compare", "runs/a", "runs/slow", cwd=folder).returncode == 0


@pytest.mark.parametrize("arguments", [
    ("compare", "runs/a", "nowhere"), ("compare", "runs", "runs/a"),
    ("compare", "runs/a", "runs/same", "--fail-if-slower", "3"),
    ("history", "--root", "nowhere"), ("history", "--outcome", "great"),
])  # fmt: skip
def test_wrong_input_is_code_2_for_people_and_for_scripts(folder: Path, arguments: tuple[str, ...]) -> None:
    told = seatrial(*arguments, cwd=folder)
    assert told.returncode == 2
    assert "fix:" in told.stderr
    machine = seatrial(*arguments, "--format", "json", cwd=folder)
    assert machine.returncode == 2
    assert len(json.loads(machine.stdout)["problems"]) == 1
