"""Reading a run directory: all of it, any part of it, and text that should not be let through."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from seatrial import events
from seatrial.commands.judge import judge_run
from seatrial.commands.report import report_run
from seatrial.publish import Destination, publish
from seatrial.publish.publication import publication_of
from seatrial.report.formats import FORMATS
from seatrial.report.gather import LINE_CHARACTERS, TAIL_LINES, TEXT_CHARACTERS, clean, gather, show_value
from seatrial.spec import RunSpec
from tests.helpers import run_directory, streams

PIECES = ("spec.json", "plan.json", "metrics.json", "verdict.json")


def test_a_whole_run(tmp_path: Path) -> None:
    report = gather(run_directory.write(tmp_path / "run"))
    assert report.missing == ()
    assert report.name == "mi300x_distributed_llama3_1_70b"
    assert report.rehearsal == "rehearsal"
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


def test_a_collapsed_run_is_called_by_its_name(tmp_path: Path) -> None:
    run_dir = run_directory.write(tmp_path / "run")
    plan = json.loads((run_dir / "plan.json").read_text(encoding="utf-8"))
    plan["rehearsal"]["collapsed"] = True
    (run_dir / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    report, verdict = judge_run(run_dir)
    text = FORMATS["text"](report)
    assert verdict.headline.endswith("Speed was not judged: this was a collapsed run.")
    assert gather(run_dir).rehearsal == "collapsed run"
    assert "the collapsed run changed" in text
    report_run(run_dir, "html")
    assert "rehears" not in (text + (run_dir / "report.html").read_text(encoding="utf-8")).lower()


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


def test_logs_held_against_a_configuration_need_no_plan(tmp_path: Path) -> None:
    asked = run_directory.asked_for()
    run = run_directory.write_judged(
        tmp_path / "run", run_directory.from_other_trainer, asked=asked, sources=["logs/node0.log", "logs/node1.log"]
    )
    report = gather(run)
    assert report.missing == ()
    assert report.spec == asked
    assert report.name == asked.name
    assert report.sources == ("logs/node0.log", "logs/node1.log")
    assert (report.family, report.against) == ("maxtext", "configs/llama.yml")
    assert [len(attempt) for attempt in report.attempts] == [30]
    assert {value.kind for value in report.values} == {"file", "override", "derived", "default"}


def test_a_log_without_a_configuration_is_called_by_its_file(tmp_path: Path) -> None:
    report = gather(run_directory.write_judged(tmp_path / "run", run_directory.from_other_trainer))
    assert report.missing == ()
    assert (report.spec, report.values, report.against) == (None, (), "")
    assert report.name == "node0.log"
    assert report.verdict is not None


def test_a_counted_clock_is_no_date(tmp_path: Path) -> None:
    def story(spec: RunSpec) -> list[list[events.Event]]:
        start = replace(streams.started(spec), wall_time=0.0, facts={"family": "maxtext", "clock": "counted"})
        return [[start, *(replace(step, wall_time=float(step.step)) for step in streams.steps(spec))]]

    report = gather(run_directory.write_judged(tmp_path / "run", story))
    assert report.started_at is None
    assert gather(run_directory.write(tmp_path / "own")).started_at == streams.START


@pytest.mark.parametrize("unit", [1e3, 1e9, 1e200])
def test_times_that_no_calendar_has_are_no_date(tmp_path: Path, unit: float) -> None:
    def story(spec: RunSpec) -> list[list[events.Event]]:
        return [[replace(each, wall_time=unit * each.wall_time) for each in next(iter(run_directory.sound(spec)))]]

    run_dir = run_directory.write(tmp_path / "run", story)
    report = gather(run_dir)
    assert report.started_at is None
    for write in FORMATS.values():
        assert write(report)
    assert "timestamp=" not in publish([publication_of(report, run_dir)], "junit", Destination())


@pytest.mark.parametrize("damage", ["", "[]", '{"v": 1}', '{"v": 1, "sources": 5, "family": 6, "against": 7}'])
def test_a_damaged_word_on_what_was_judged(tmp_path: Path, damage: str) -> None:
    run = run_directory.write_judged(tmp_path / "run", run_directory.from_other_trainer)
    (run / "judged.json").write_text(damage, encoding="utf-8")
    report = gather(run)
    assert report.verdict is not None
    assert report.sources == ()
    assert len(report.steps) == 30


def test_no_text_is_longer_than_a_reader_can_bear(tmp_path: Path) -> None:
    def story(spec: RunSpec) -> list[list[events.Event]]:
        trainer, *_ = run_directory.killed(spec)
        return [trainer, [streams.fault("process_died", "rank 0", "x" * 3_000_000), streams.ended("died", -1)]]

    report = gather(run_directory.write(tmp_path / "run", story))
    assert report.metrics is not None
    (fault,) = report.metrics.completion.faults
    assert fault.text == "x" * TEXT_CHARACTERS + "… (3,000,000 characters)"


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
