"""The directory of a run before it is a run's."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.errors import InputError
from seatrial.runs.directory import claim, is_run, reserved
from tests.helpers.streams import make_spec

FIX = "name a folder that does not exist yet"


def test_runs_that_begin_in_the_same_second_have_directories_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: "20260101-120000")
    spec = make_spec()
    with reserved(spec) as first, reserved(spec) as second:
        assert (first.name, second.name) == ("tiny-20260101-120000", "tiny-20260101-120000-2")
        claim(second)
    assert not first.exists()  # nothing has come into it
    assert (second / "launch").is_dir()
    with reserved(spec) as third:
        claim(third)
        for fix in (f"{FIX}, or remove this one", FIX):  # a run may go on where there is a plan
            with pytest.raises(InputError, match="is not empty") as caught:
                claim(third)
            assert caught.value.problems[0].fix == fix
            (third / "plan.json").write_text("{}")


def test_a_run_directory_is_known_by_its_plan_or_by_two_files_of_a_run(tmp_path: Path) -> None:
    def made(*names: str) -> Path:
        folder = tmp_path / "-".join(names)
        folder.mkdir()
        for name in names:
            (folder / name).write_text("{}")
        return folder

    for names in (("plan.json",), ("judged.json",), ("spec.json", "events-0.jsonl"), ("metrics.json", "verdict.json")):
        assert is_run(made(*names)), names
    for names in (("spec.json", "train.log"), ("metrics.json",), ("status.json", "rank0.log"), ("events-0.jsonl",)):
        assert not is_run(made(*names)), names  # any program may call a file so


def test_what_nothing_has_come_into_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyError), reserved(make_spec()):
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "runs").write_text("a file")
    with reserved(make_spec()) as path, pytest.raises(InputError, match="cannot be created"):
        claim(path)
