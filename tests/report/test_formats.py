"""The table of formats: what the command line offers is what there is, and each of them writes what it says."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest
from click.testing import CliRunner

from seatrial.cli import app
from seatrial.report import scaling_formats
from seatrial.report.formats import FORMATS
from seatrial.report.gather import gather
from tests.helpers import run_directory
from tests.helpers.permissions import nobody
from tests.helpers.report_stories import STORIES
from tests.helpers.scaling_runs import recipe, run


def invoke(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["report", *map(str, arguments)])
    return result.exit_code, result.stdout


def test_the_command_line_offers_all_of_them() -> None:
    (offered,) = [option.type for option in app.commands["report"].params if option.name == "output"]
    assert isinstance(offered, click.Choice)
    assert list(offered.choices) == list(FORMATS)
    assert set(scaling_formats.FORMATS) < set(FORMATS)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_of_every_run(tmp_path: Path, name: str) -> None:
    for story in STORIES:
        report = gather(run_directory.write(tmp_path / story, STORIES[story]))
        assert FORMATS[name](report).strip()
    assert FORMATS[name](gather(tmp_path)).strip()  # a folder that holds no run


def test_one_run(tmp_path: Path) -> None:
    folder = run_directory.write(tmp_path / "run")
    code, said = invoke(folder)
    assert (code, said) == (0, f"report: {folder / 'report.html'}\n")
    assert (folder / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert invoke(folder, "--format", "text")[1].startswith("PASS")
    assert invoke(folder, "--format", "markdown")[1].startswith("## ✓ PASS")
    assert ElementTree.fromstring(invoke(folder, "--format", "junit")[1]).tag == "testsuites"
    assert len(list(csv.reader(io.StringIO(invoke(folder, "--format", "csv")[1])))) == 31
    assert json.loads(invoke(folder, "--format", "json")[1])["verdict"]["outcome"] == "pass"


def test_several_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for devices in (64, 128):
        run(tmp_path, recipe(devices), 7.0)
    names = ("run-64", "run-128")
    assert invoke(*names) == (0, "report: scaling.html\n")
    assert (tmp_path / "scaling.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert invoke(*names, "--format", "text")[1].startswith("Weak scaling")
    assert json.loads(invoke(*names, "--format", "json")[1])["kind"] == "weak"
    assert len(list(csv.reader(io.StringIO(invoke(*names, "--format", "csv")[1])))) == 3


def test_logs_are_to_be_judged_first(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("step 1\n")
    for path, why in ((log, "it is a file, and no run directory"), (tmp_path, "it is no run directory")):
        result = CliRunner().invoke(app, ["report", str(path)])
        (problem,) = result.exception.problems
        assert (problem.why, problem.fix.partition("first: ")[2]) == (why, f"seatrial judge {path} --out DIRECTORY")
    (problem,) = CliRunner().invoke(app, ["report", str(tmp_path / "x")]).exception.problems
    assert problem.why == "there is no such directory"


def test_a_run_that_was_not_judged_where_nothing_can_be_written_says_so(tmp_path: Path) -> None:
    folder = run_directory.write(tmp_path / "run")
    for name in ("verdict.json", "metrics.json"):
        (folder / name).unlink()
    for path in (tmp_path, *tmp_path.parents):
        path.chmod(path.stat().st_mode | 0o055)
    with nobody():
        result = CliRunner().invoke(app, ["report", str(folder), "--format", "text"])
    (problem,) = result.exception.problems
    assert problem.why == "it was not judged yet, and nothing can be written there: Permission denied"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run-64", "run-128", "--format", "junit"), "junit is a format for one run"),
        (("run-64", "./run-64", "--format", "text"), "a run directory is named twice"),
        (("run-64", "run-64-copy", "--format", "text"), "are copies of one run"),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for devices in (64, 128):
        run(tmp_path, recipe(devices), 7.0)
    shutil.copytree("run-64", "run-64-copy")
    result = CliRunner().invoke(app, ["report", *arguments])
    assert said in str(result.exception)
