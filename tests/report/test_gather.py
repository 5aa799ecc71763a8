"""Reading a run directory: all of it, any part of it, and text that should not be let through."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seatrial.report.gather import LINE_CHARACTERS, TAIL_LINES, clean, gather, show_value
from tests.report import run_directory

PIECES = ("spec.json", "plan.json", "metrics.json", "verdict.json")


def test_a_whole_run(tmp_path: Path) -> None:
    report = gather(run_directory.write(tmp_path / "run"))
    assert report.missing == ()
    assert report.name == "mi300x_distributed_llama3_1_70b"
    assert report.rehearsal
    assert report.verdict is not None
    assert report.verdict.outcome == "pass"
    assert report.tails == ()  # nothing went wrong
    assert [step.step for step in report.steps] == list(range(30))
    assert [start.process for start in report.started] == list(range(len(report.processes)))
    changed = {change.path: (change.original, change.rehearsed) for change in report.changes}
    assert changed["model.num_layers"] == ("80", "2")
    value = next(value for value in report.values if value.path == "model.name")
    assert (value.value, value.kind) == ("llama3.1-70b", "file")
    assert value.place == f"{run_directory.CONFIG}:10:21"
    assert (value.key, value.written) == ("single_node.model.name", '"0"')
    assert {value.kind for value in report.values} == {"file", "override", "derived", "default"}


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("damage", ["gone", "empty", "torn", "another type", "another schema"])
def test_any_piece_may_be_damaged(tmp_path: Path, piece: str, damage: str) -> None:
    path = run_directory.write(tmp_path / "run") / piece
    whole = path.read_text(encoding="utf-8")
    if damage == "gone":
        path.unlink()
    else:
        texts = {"empty": "", "torn": whole[: len(whole) // 2], "another type": "[1]", "another schema": '{"spec": 1}'}
        path.write_text(texts[damage], encoding="utf-8")
    report = gather(path.parent)
    assert any(piece in line for line in report.missing), report.missing
    assert len(report.steps) == 30


def test_a_run_that_wrote_nothing(tmp_path: Path) -> None:
    report = gather(tmp_path)
    assert report.verdict is None
    assert report.steps == ()
    assert len(report.missing) == len(PIECES) + 1


def test_no_run_at_all(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no run directory"):
        gather(tmp_path / "nowhere")


def test_a_broken_run_shows_the_culprits_log_first(tmp_path: Path) -> None:
    report = gather(run_directory.write(tmp_path / "run", run_directory.killed))
    assert [tail.log for tail in report.tails] == ["nodes/local1/rank1.log", "nodes/local0/rank0.log"]


def test_a_tail_is_short_and_clean(tmp_path: Path) -> None:
    lines = [f"line {n}" for n in range(9000)] + ["\x1b[31mred\x1b[0m\tand\x1b]0;title\x07 more", "x" * 1_000_000]
    log = "\n".join(lines)
    report = gather(run_directory.write(tmp_path / "run", run_directory.killed, logs={"1": log}))
    tail = report.tails[0].lines
    assert len(tail) <= TAIL_LINES
    assert max(len(line) for line in tail) < LINE_CHARACTERS + 40
    assert tail[-1].startswith("x" * LINE_CHARACTERS)

    report = gather(run_directory.write(tmp_path / "again", run_directory.killed, logs={"1": "\n".join(lines[:-1])}))
    assert report.tails[0].lines[-1] == "red    and more"
    assert report.tails[0].lines[0] == f"line {9000 - TAIL_LINES + 1}"


def test_a_log_outside_of_the_run_directory_is_not_read(tmp_path: Path) -> None:
    run = run_directory.write(tmp_path / "run", run_directory.killed)
    (tmp_path / "secret").write_text("token\n", encoding="utf-8")
    plan = json.loads((run / "plan.json").read_text(encoding="utf-8"))
    plan["processes"][1]["log"] = "../secret"
    (run / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    assert [tail.log for tail in gather(run).tails] == ["nodes/local0/rank0.log"]


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain, ünïcode, 日本", "plain, ünïcode, 日本"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\rb\nc\x00d", "a\\rb\\nc\\x00d"),
        ("\u202etxt.exe", "\\u202etxt.exe"),
        ("\x9b31mred", "\\x9b31mred"),
        ("\x1b", "\\x1b"),
    ],
)
def test_text_is_made_inert(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned


def test_values_as_a_person_writes_them() -> None:
    values = (None, True, False, 8, 3e-4, "bf16", ("a", "b"), {"k": "v"})
    shown = ["not set", "yes", "no", "8", "0.0003", "bf16", '["a", "b"]', '{"k": "v"}']
    assert [show_value(value) for value in values] == shown
