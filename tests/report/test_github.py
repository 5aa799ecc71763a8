"""Workflow commands, read as GitHub's runner reads them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.console import inert
from seatrial.errors import Mark, Problem
from seatrial.report import github
from seatrial.report.findings import FORMATS
from seatrial.report.gather import gather
from tests.helpers import run_directory
from tests.helpers.command_line import seatrial
from tests.helpers.report_stories import STORIES

ROOT = Path(__file__).parents[2]


def read(line: str) -> tuple[str, dict[str, str], str]:
    """(command, properties, data) as the runner's ActionCommand.TryParseV2 finds them."""
    line = line.strip()
    assert line.startswith("::")
    end = line.index("::", 2)
    name, _, properties = line[2:end].partition(" ")
    found = {}
    for each in properties.split(",") if properties else ():
        key, _, value = each.partition("=")
        for escaped, meant in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
            value = value.replace(escaped, meant)
        found[key] = value
    data = line[end + 2 :]
    for escaped, meant in (("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        data = data.replace(escaped, meant)
    return name, found, data


def begins_a_command(line: str) -> bool:
    return line.strip().startswith("::") or "##[" in line


HOSTILE = st.lists(
    st.sampled_from([*":%,=#[]\n\r\t\x1b\u2028 aA0é", "::error::", "%0A", "%25", "##[error]", "\r\n"])
).map("".join)


@given(HOSTILE, HOSTILE, HOSTILE, HOSTILE)
def test_no_text_ends_its_command_or_begins_another(path: str, why: str, fix: str, file: str) -> None:
    mark = Mark(file=file or "x", line=3, column=9)
    problem = Problem(severity="error", code="some-code", path=path, why=why, fix=fix, mark=mark)
    text = FORMATS["github"]([problem])
    command, count = re.split(r"[\n\r]", text)
    assert not begins_a_command(count)
    assert "##[" not in command
    name, properties, data = read(command)
    assert name == "error"
    assert properties.keys() == {"file", "line", "col", "title"}
    assert (properties["line"], properties["col"], properties["title"]) == ("3", "9", "some-code")
    expected = f"{path}: {why}" + (f"\nfix: {fix}" if fix else "")
    shown = "\n".join(inert(line) for line in expected.split("\n")).replace("##[", "# #[")
    assert data.rstrip() == shown.rstrip()  # the runner trims the line


def test_a_configuration_in_a_workflow(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("model: llama3-8b\nsteps: -1\nbatch: {global_batch_size: 8}\n")
    done = seatrial("check", "wrong.yaml", "--format", "github", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == ""
    *commands, count = done.stdout.splitlines()
    first = read(commands[0])
    assert first[0] == "error"
    assert first[1]["file"] == "wrong.yaml"
    assert first[1]["line"] == "2"
    assert re.match(r"\d+ errors?", count)


def test_several_configurations_are_one_list(tmp_path: Path) -> None:
    files = [ROOT / "configs" / "nxdt" / "llama3-8b-sft.yaml", ROOT / "configs" / "native" / "tiny-text.json"]
    done = seatrial("check", *files, "--format", "github", cwd=tmp_path)
    assert done.returncode == 0
    *commands, count = done.stdout.splitlines()
    assert [read(line)[0] for line in commands] == ["warning"] * 3 + ["notice"] * 4
    assert count == "OK: no errors, 3 warnings, 4 notes"


def test_wrong_input_is_annotated_where_annotations_were_asked_for(tmp_path: Path) -> None:
    done = seatrial("judge", "no.log", "--format=github", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "")
    assert read(done.stdout.splitlines()[0])[0] == "error"


@pytest.mark.parametrize("story", STORIES)
def test_a_verdict_names_what_did_not_pass(tmp_path: Path, story: str) -> None:
    report = gather(run_directory.write(tmp_path / story, STORIES[story]))
    *checks, outcome = map(read, github.render(report).splitlines())
    verdict = report.verdict
    wrong = [check for axis in verdict.axes.values() for check in axis.checks] if verdict else []
    wrong = [check for check in wrong if check.status in ("fail", "inconclusive")]
    assert [data for _, _, data in checks] == [inert(check.sentence) for check in wrong]
    assert (outcome[0] == "notice") is (verdict is not None and verdict.exit_code == 0)
