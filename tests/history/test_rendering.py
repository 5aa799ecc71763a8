"""A comparison as it is shown."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from seatrial.errors import InputError
from seatrial.history import compare, compare_runs, judge_slowdown, load
from seatrial.history.formats import FORMATS
from seatrial.spec import Execution
from tests.helpers.history_runs import make, one_node

HOSTILE = "\x1b]0;owned\x07<script>alert(1)</script> | a | b `c` @team #1\n## not a heading"


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    a = make(tmp_path / "a", seed=1, versions={"jax": "0.10.2"})
    execution = Execution(remat="minimal", environment={"NOTE": HOSTILE})
    spec = one_node(execution=execution)
    b = make(tmp_path / "b", seed=2, times=1.1, spec=spec, versions={"jax": HOSTILE}, loss=lambda step: 5 - step / 100)
    return a, b


def test_as_text(pair: tuple[Path, Path]) -> None:
    text, code = compare_runs(str(pair[0]), str(pair[1]), limit=0.03)
    assert code == 1
    assert "B is slower than A by 9." in text
    assert any(line.split() == ["spec", "execution.remat", "full", "minimal"] for line in text.splitlines())
    assert "Loss: 30 steps in both; apart by more than 0.1% from step 0, apart by more than 5.0% from step 0" in text
    assert text.splitlines()[-1].startswith("Gate: FAIL: slow-down +9.")
    assert not {"\x1b", "\x07"} & set(text)
    assert not any(line.startswith("## not a heading") for line in text.splitlines())


def test_as_json(pair: tuple[Path, Path]) -> None:
    data = json.loads(compare_runs(str(pair[0]), str(pair[1]), limit=0.03, output="json")[0])
    assert data["speed"] == "tokens_per_second_per_device"
    assert data["gate"]["status"] == "fail"
    assert data["gate"]["exit_code"] == 1
    assert data["gate"]["low"] < data["gate"]["slowdown"] < data["gate"]["high"]
    change = next(change for change in data["changes"] if change["metric"] == "step_seconds")
    assert change["low"] < 0.1 < change["high"]
    assert {"section": "spec", "path": "execution.remat", "a": "full", "b": "minimal"} in data["differences"]
    assert data["losses"]["parted"] == {"0.001": 0, "0.05": 0}


def test_as_markdown(pair: tuple[Path, Path]) -> None:
    text, _ = compare_runs(str(pair[0]), str(pair[1]), limit=0.03, output="markdown")
    assert "<script>" not in text
    assert "@team" not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {5, 6}
    assert not any(line.startswith("## not a heading") for line in text.splitlines())


def test_without_a_gate_there_is_no_word_of_one(pair: tuple[Path, Path]) -> None:
    found = compare(load(pair[0]), load(pair[1]))
    assert "Gate" not in FORMATS["text"](found, None)
    assert json.loads(FORMATS["json"](found, None))["gate"] is None
    assert "Gate" in FORMATS["markdown"](found, judge_slowdown(found, 0.03))


def test_two_runs_that_went_exactly_alike(pair: tuple[Path, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(pair[0], tmp_path / "copy")
    text, code = compare_runs(str(pair[0]), str(copy), limit=0.03, anyway=True)
    assert code == 0
    assert "No clear difference: B is as fast as A, within [-0." in text
    assert "Loss: 30 steps in both; within 0.1% throughout" in text
    assert "Nothing else is known to differ." in text


def test_a_run_is_not_compared_with_itself(pair: tuple[Path, Path]) -> None:
    """A baseline that names the new run by mistake would pass any gate."""
    with pytest.raises(InputError, match="with itself"):
        compare_runs(str(pair[0]), f"{pair[1]}/../a", limit=0.03)
