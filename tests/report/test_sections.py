"""The sections of a report beside the verdict: attempts, reported figures, unevenness, first causes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from seatrial import events
from seatrial.report import html, markdown, text
from seatrial.report.gather import RunReport, gather
from seatrial.report.section import Section
from seatrial.report.sections import sections
from seatrial.spec import RunSpec
from tests.helpers import run_directory, streams


def found(report: RunReport) -> dict[str, Section]:
    return {section.key: section for section in sections(report)}


def from_other_trainer(folder: Path, **options: float | int | None) -> RunReport:
    asked = run_directory.asked_for()
    logs = ["/data/run/node0.log", "/data/run/node1.log"]
    return gather(
        run_directory.write_judged(
            folder / "run", lambda spec: run_directory.from_other_trainer(spec, **options), asked=asked, sources=logs
        )
    )


def test_what_the_log_says_stands_beside_what_follows_from_it(tmp_path: Path) -> None:
    section = found(from_other_trainer(tmp_path, off=0.01))["reported"]
    rows = {row[0]: row[1:] for row in section.rows}
    assert rows["Tokens/s per device"][2] == "+1.0%"
    assert rows["Model TFLOP/s per device"][2] == "+1.0%"
    own = "as the log does (its own figures are off by 0.00%)"
    assert section.notes == (f"FLOPs are counted non-causal, 481.43 GFLOP per token, {own}.",)


@pytest.mark.parametrize(
    ("convention", "said"), [("causal", "; the log counts non-causal ("), (None, ", as the log does (")]
)
def test_how_the_convention_was_recognised(tmp_path: Path, convention: str | None, said: str) -> None:
    run = run_directory.write_judged(
        tmp_path / "run", run_directory.from_other_trainer, asked=run_directory.asked_for(), convention=convention
    )
    assert said in found(gather(run))["reported"].notes[0]


def test_without_a_configuration_no_flops_are_counted(tmp_path: Path) -> None:
    report = gather(run_directory.write_judged(tmp_path / "run", run_directory.from_other_trainer))
    section = found(report)["reported"]
    assert section.notes == ("FLOPs were not counted: that needs a configuration.",)
    assert (section.rows[-1][0], section.rows[-1][2]) == ("Model TFLOP/s per device", "")


def test_logs_are_listed_with_their_processes(tmp_path: Path) -> None:
    run = run_directory.write_judged(
        tmp_path / "run",
        run_directory.from_other_trainer,
        sources=["logs/node0.log", "logs/node1.log", "logs/other.log"],
    )
    section = found(gather(run))["sources"]
    assert [row[:2] for row in section.rows] == [
        ("logs/node0.log", "rank 0"), ("logs/node1.log", "rank 1"), ("logs/other.log", ""),
    ]  # fmt: skip
    assert section.notes == ("Family: maxtext; judged without a configuration.",)


def test_a_straggler_is_named(tmp_path: Path) -> None:
    section = found(from_other_trainer(tmp_path, slow_rank=1))["evenness"]
    (told,) = [row[1] for row in section.rows if row[0] == "Straggler"]
    assert told.startswith("rank 1 on local1: ")
    assert "Straggler" not in {row[0] for row in found(from_other_trainer(tmp_path / "even"))["evenness"].rows}


def test_attempts_and_which_of_them_the_speed_is_from(tmp_path: Path) -> None:
    def story(spec: RunSpec) -> list[list[events.Event]]:
        again = [streams.started(spec, at=200), *streams.steps(spec, first=5, at=210), streams.ended()]
        return [[streams.started(spec), *streams.steps(spec, last=9), *again]]

    asked = run_directory.asked_for(topology=streams.make_spec().topology)
    section = found(gather(run_directory.write(tmp_path / "run", story, asked=asked, rehearsing=False)))["attempts"]
    assert section.rows == (("1", "0–9", "10"), ("2", "5–29", "25"))
    assert section.strong == {1}
    assert section.notes == ("Speed is taken from attempt 2.",)
    assert "attempts" not in found(from_other_trainer(tmp_path))


def test_the_first_cause_is_marked_and_its_victims_follow(tmp_path: Path) -> None:
    report = gather(run_directory.write(tmp_path / "run", run_directory.killed, rehearsing=False))
    section = found(report)["faults"]
    assert section.first
    assert section.title == "Faults in order of time"
    assert [index for index in range(len(section.rows)) if index in section.strong] == [0]
    assert section.rows[0][:3] == ("+21.4 s", "process died", "rank 1 on local1")
    assert any(note.startswith("Root cause: rank 1 on local1") for note in section.notes)
    assert any("rank 0 on local0" in note for note in section.notes)


def test_what_a_run_survived_is_no_cause(tmp_path: Path) -> None:
    def story(spec: RunSpec) -> list[list[events.Event]]:
        (trainer, *rest) = run_directory.from_other_trainer(spec)
        warned = replace(
            streams.fault("collective_timeout", "rank 0", "it took long", process=0), wall_time=trainer[9].wall_time
        )
        return [[*trainer[:10], warned, *trainer[10:]], *rest]

    report = gather(run_directory.write_judged(tmp_path / "run", story, asked=run_directory.asked_for()))
    section = found(report)["faults"]
    assert not section.first
    assert section.title == "Faults that did not end the run"
    assert section.rows[0][1].endswith("(survived)")


def test_places_leave_out_what_all_logs_share(tmp_path: Path) -> None:
    def story(spec: RunSpec) -> list[list[events.Event]]:
        (trainer, *_) = run_directory.from_other_trainer(spec)
        fault = streams.fault("device_oom", "rank 1", "out of memory", process=0)
        return [[*trainer[:10], replace(fault, line=7, facts={"source": "/data/run/b/node1.log"})]]

    run = run_directory.write_judged(
        tmp_path / "run", story, asked=run_directory.asked_for(),
        sources=["/data/run/a/node0.log", "/data/run/b/node1.log"],
    )  # fmt: skip
    assert found(gather(run))["faults"].rows[0][3] == "b/node1.log:7"
    alone = replace(gather(run), sources=("/data/run/b/node1.log",))
    assert found(alone)["faults"].rows[0][3] == "line 7"


def test_every_format_tells_of_every_section_once(tmp_path: Path) -> None:
    report = from_other_trainer(tmp_path, slow_rank=1)
    for section in sections(report):
        assert section.title in html.render(report)
        assert (section.title in markdown.render(report)) != section.in_evidence
        assert (section.title.lower() in text.render(report, color=False)) != section.in_evidence
