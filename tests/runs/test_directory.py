"""The directory of a run before it is a run's."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.errors import InputError
from seatrial.runs.directory import claim, reserved
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


def test_what_nothing_has_come_into_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyError), reserved(make_spec()):
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "runs").write_text("a file")
    with reserved(make_spec()) as path, pytest.raises(InputError, match="cannot be created"):
        claim(path)
