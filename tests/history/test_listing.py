"""The output of `seatrial history`, and how a run is found by its name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from seatrial.errors import InputError
from seatrial.history.index import Index
from seatrial.history.listing import list_runs, locate, run_id
from tests.helpers import run_directory
from tests.helpers.command_line import seatrial
from tests.helpers.history_runs import make, one_node


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    make(root / "good", spec=one_node(name="first"))
    make(root / "dead", last=12)
    run_directory.write(root / "rehearsed")
    (root / "broken").mkdir()
    (root / "broken" / "plan.json").write_text("{")
    return root


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return tmp_path / "data" / "index"


def listed(root: Path, index: Path, **filters: object) -> list[str]:
    found = json.loads(list_runs(root, output="json", path=index, **filters))
    return sorted(Path(run["directory"]).name for run in found["runs"])


def test_every_run_is_listed_whatever_became_of_it(root: Path, index: Path) -> None:
    assert listed(root, index) == ["broken", "dead", "good", "rehearsed"]
    text = list_runs(root, path=index)
    lines = text.splitlines()
    assert lines[0].split()[:4] == ["id", "date", "outcome", "directory"]
    assert len({line.index("outcome") for line in lines[:1]} | {len(lines[0].split("outcome")[0])}) == 1
    assert "broken: plan.json is not JSON" in text
    assert "llama3.1-70b (rehearsal)" in text


def test_filters(root: Path, index: Path) -> None:
    assert listed(root, index, outcome="died") == ["dead"]
    assert listed(root, index, outcome="PASS") == ["good", "rehearsed"]
    assert listed(root, index, device="mi300") == ["dead", "good"]
    assert listed(root, index, model="LLAMA3.1", outcome="pass", device="cpu") == ["rehearsed"]
    assert listed(root, index, model="qwen") == []
    assert len(listed(root, index, limit=2)) == 2
    assert len(listed(root, index, limit=0)) == 4
    assert "2 more: --limit 0 shows all" in list_runs(root, limit=2, path=index)


def test_what_is_gone_is_told_once(root: Path, index: Path) -> None:
    list_runs(root, path=index)
    shutil.rmtree(root / "good")
    assert "gone since the last listing" in list_runs(root, path=index)
    assert "gone since the last listing" not in list_runs(root, path=index)


@pytest.mark.parametrize(("given", "says"), [
    ({"outcome": "great"}, "there is no 'great'"), ({"limit": -1}, "no number of runs"),
])  # fmt: skip
def test_wrong_options_are_named(root: Path, index: Path, given: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        list_runs(root, path=index, **given)


def test_a_root_that_is_not_there_is_named(tmp_path: Path, index: Path) -> None:
    with pytest.raises(InputError, match="no folder"):
        list_runs(tmp_path / "nowhere", path=index)


def test_a_run_is_found_by_path_folder_name_and_id(root: Path, index: Path) -> None:
    list_runs(root, path=index)
    good = (root / "good").resolve()
    with Index(index) as opened:
        row = next(row for row in opened.rows() if row["directory"] == str(good))
    for text in (str(good), "good", "first", run_id(row), run_id(row)[:5].upper()):
        assert locate(text, path=index).resolve() == good


@pytest.mark.parametrize("text", ["", "nothing", "x" * 5000, "%", "*", "first/", run_id({"directory": "/nowhere"})])
def test_a_run_that_is_nowhere_is_one_message(root: Path, index: Path, text: str) -> None:
    list_runs(root, path=index)
    with pytest.raises(InputError, match="no run of this name"):
        locate(text, path=index)


def test_a_name_of_several_runs_asks_which(root: Path, index: Path) -> None:
    make(root / "again", spec=one_node(name="first"))
    list_runs(root, path=index)
    with pytest.raises(InputError, match="2 runs have this name"):
        locate("first", path=index)


def test_what_is_no_run_directory_is_not_taken_for_one(root: Path, index: Path) -> None:
    with pytest.raises(InputError, match="not a run directory"):
        locate(str(root), path=index)
    with pytest.raises(InputError, match="is a file"):
        locate(str(root / "good" / "plan.json"), path=index)


def test_hostile_names_stay_text(tmp_path: Path, index: Path) -> None:
    hostile = "\x1b]0;owned\x07\x1b[2J\u202ename\nline"
    make(tmp_path / "runs" / f"x{hostile}", spec=one_node(name=hostile, model=one_node().model))
    text = list_runs(tmp_path / "runs", path=index)
    assert len(text.splitlines()) == 2
    assert not {"\x1b", "\x07", "\u202e"} & set(text)


def test_without_runs_it_says_so_and_how_to_make_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    here = tmp_path / "here"
    for made in (here, here / "runs"):
        made.mkdir()
        done = seatrial("history", cwd=here)
        assert (done.returncode, done.stderr) == (0, "")
        assert "no runs" in done.stdout
        assert "seatrial run tiny-text.json" in done.stdout
        assert sorted(here.iterdir()) == ([made] if made != here else [])
        assert json.loads(seatrial("history", "--format", "json", cwd=here).stdout)["runs"] == []
    assert "that fit" in seatrial("history", "--model", "x", cwd=here).stdout
    (here / "runs").rmdir()
    (here / "runs").write_text("a file")
    assert seatrial("history", cwd=here).returncode == 2
