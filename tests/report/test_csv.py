"""The steps for spreadsheets: numbers that stay numbers, text that stays text."""

from __future__ import annotations

import csv
import io
import math
import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings

from seatrial import events
from seatrial.report import csv as report_csv
from seatrial.report.gather import RunReport, gather
from seatrial.spec import RunSpec
from tests.helpers import attacks, run_directory, streams

FORMULA = tuple("=+-@\t\r")


def rows(report: RunReport) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(report_csv.render(report), newline=""), strict=True))


def test_every_step_with_what_follows_from_its_time(tmp_path: Path) -> None:
    report = gather(run_directory.write(tmp_path / "run", rehearsing=False))
    assert report.metrics is not None
    performance = report.metrics.performance
    found = rows(report)
    assert [int(row["step"]) for row in found] == list(range(30))
    for row, step in zip(found, report.steps, strict=True):
        assert (float(row["seconds"]), float(row["loss"])) == (step.seconds, step.loss)
        assert (float(row["grad_norm"]), float(row["learning_rate"])) == (step.grad_norm, step.learning_rate)
        per_device = float(row["tokens_per_second_per_device"])
        assert float(row["tokens_per_second_total"]) == pytest.approx(16 * per_device)
        assert per_device * float(row["seconds"]) * 16 == pytest.approx(48 * 8192)
        tflops = float(row["tflops_per_second_per_device"])
        assert tflops == pytest.approx(per_device * performance.flops_per_token / 1e12)
        assert float(row["mfu"]) == pytest.approx(tflops / 1307.4)
    times = performance.step_times
    assert times is not None
    assert [int(row["step"]) for row in found if row["in_window"] == "yes"] == list(range(times.first_step, 30))
    assert times.n == sum(row["in_window"] == "yes" for row in found)
    assert statistics.median(float(row["seconds"]) for row in found if row["in_window"] == "yes") == times.median


def test_a_repeated_step_is_there_once_an_attempt(tmp_path: Path) -> None:
    def story(spec: RunSpec) -> list[list[events.Event]]:
        again = [streams.started(spec, at=200), *streams.steps(spec, first=5, at=210)]
        return [[streams.started(spec), *streams.steps(spec, last=9), *again]]

    asked = run_directory.asked_for(topology=streams.make_spec().topology)
    found = rows(gather(run_directory.write(tmp_path / "run", story, asked=asked, rehearsing=False)))
    numbered = [(int(row["attempt"]), int(row["step"])) for row in found]
    assert numbered == [(1, step) for step in range(10)] + [(2, step) for step in range(5, 30)]
    assert {row["attempt"] for row in found if row["in_window"] == "yes"} == {"2"}


def test_what_is_not_finite_or_not_there(tmp_path: Path) -> None:
    found = rows(gather(run_directory.write(tmp_path / "run", run_directory.diverged)))
    assert (found[-1]["loss"], found[-1]["grad_norm"]) == ("nan", "inf")
    assert math.isnan(float(found[-1]["loss"]))
    bare = replace(
        gather(tmp_path / "run"), attempts=((events.Step(step=7), events.Step(step=8, loss=-math.inf, seconds=0.0)),)
    )
    assert [row["loss"] for row in rows(bare)] == ["", "-inf"]
    assert [row["tokens_per_second_total"] for row in rows(bare)] == ["", ""]
    assert report_csv.render(replace(bare, attempts=())) == ",".join(report_csv.COLUMNS)


def test_a_run_without_metrics_keeps_what_its_steps_say() -> None:
    killed = attacks.killed()
    found = rows(replace(killed, metrics=None))
    assert len(found) == 8
    assert {row["mfu"] for row in found} == {""}
    assert {row["in_window"] for row in found} == {"no"}


@settings(max_examples=150)
@given(raw=attacks.text)
@example(raw="-1")
def test_no_text_is_a_formula(raw: str) -> None:
    found = rows(attacks.poisoned(raw))
    assert len(found) == 8
    for row in found:
        assert None not in row  # no cell broke out of its row
        phase = row["phase"]
        if not re.fullmatch(r"-[0-9.]+([eE][-+]?[0-9]+)?", phase):  # a negative number evaluates to itself
            assert not phase.startswith(FORMULA)
            assert not phase.lstrip().startswith(FORMULA)
        numbers = [value for name, value in row.items() if name not in ("phase", "in_window") and value]
        assert all(math.isfinite(float(number)) for number in numbers)


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("=1+1", "'=1+1"),
        ("-x", "'-x"),
        ("-1", "-1"),
        ("-2.5e-3", "-2.5e-3"),
        ("-1+1", "'-1+1"),
        ("@a", "'@a"),
        ("a=b", "a=b"),
        (-1.5, "-1.5"),
        (None, ""),
        ("a,b", '"a,b"'),
    ],
)
def test_a_cell(cell: report_csv.Cell, written: str) -> None:
    assert report_csv.write(("column",), [(cell,)]).splitlines()[1:] == ([written] if written else ['""'])
