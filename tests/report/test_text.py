"""The report for a terminal, against what it looked like when somebody last read it."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from rich.cells import cell_len

from seatrial.report import text
from seatrial.report.gather import gather
from tests.helpers import attacks, run_directory
from tests.helpers.report_stories import STORIES

GOLDEN = Path(__file__).parents[1] / "golden" / "report"


@pytest.mark.parametrize("name", STORIES)
def test_golden_text(tmp_path: Path, name: str) -> None:
    shown = text.render(
        gather(run_directory.write(tmp_path / name, STORIES[name], rehearsing=False)), color=False, columns=100
    )
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("SEATRIAL_GOLDEN"):
        path.write_text(shown + "\n", encoding="utf-8")
    assert shown + "\n" == path.read_text(encoding="utf-8")


def test_a_rehearsal_says_what_it_changed(tmp_path: Path) -> None:
    lines = text.render(gather(run_directory.write(tmp_path / "run")), color=False).splitlines()
    assert lines[0] == "PASS  mi300x_distributed_llama3_1_70b"
    assert lines[1].startswith("llama3.1-70b · rehearsal · 2 processes")
    assert "Not judged: a rehearsal's speed says nothing about the cluster." in " ".join(" ".join(lines).split())
    (layers,) = [line for line in lines if line.startswith("  model.num_layers")]
    assert "80 → 2" in layers
    assert not any("1T tokens" in line for line in lines)


def test_colour_is_only_for_terminals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = gather(run_directory.write(tmp_path / "run"))
    plain = text.render(report, color=False)
    assert "\x1b" not in plain
    assert text.render(report) == plain  # under pytest, stdout is no terminal
    coloured = text.render(report, color=True)
    assert "\x1b[1;32mPASS\x1b[0m" in coloured


def test_nothing_in_it_steers_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202e</script>"
    run = run_directory.write(
        tmp_path / "run",
        run_directory.killed,
        asked=run_directory.asked_for(name=f"run{evil}"),
        logs={"1": f"a line {evil}\n"},
    )
    shown = text.render(gather(run), color=False)
    assert [character for character in shown if ord(character) < 32 and character != "\n"] == []
    assert "\u202e" not in shown


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize("rehearsing", [True, False])
def test_it_fits_a_terminal(tmp_path: Path, name: str, rehearsing: bool) -> None:
    report = gather(run_directory.write(tmp_path / name, STORIES[name], rehearsing=rehearsing))
    assert max(map(len, text.render(report, color=False, columns=80).splitlines())) <= 80


@settings(max_examples=100)
@given(raw=attacks.text)
def test_no_text_steers_the_terminal(raw: str) -> None:
    shown = text.render(attacks.poisoned(raw), color=False, columns=80)
    hidden = [c for c in shown if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    assert hidden == []
    assert max(min(len(line), cell_len(line)) for line in shown.splitlines()) <= 80  # a wide character is two columns


def test_a_run_that_wrote_nothing(tmp_path: Path) -> None:
    shown = text.render(gather(tmp_path), color=False)
    assert shown.startswith("NOT JUDGED")
    assert "not shown: verdict.json is not there" in shown
