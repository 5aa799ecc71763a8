"""`seatrial init`: the examples are all there, and nothing is ever overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.dialects.examples import copy_example, examples, list_examples
from seatrial.errors import InputError
from tests.helpers.seeds import ROOT


def test_every_shipped_configuration_is_an_example() -> None:
    shipped = [path for path in ROOT.glob("configs/*/*") if not path.stem.endswith("_threshold")]
    assert sorted(examples().values()) == sorted(shipped)
    assert all(f"  {name} " in list_examples() for name in examples())


@pytest.mark.parametrize("name", sorted(examples()))
def test_an_example_is_copied_byte_by_byte(name: str, tmp_path: Path) -> None:
    said = copy_example(name, tmp_path)
    original = examples()[name]
    copies = sorted(tmp_path.iterdir())
    for copy in copies:
        assert copy.read_bytes() == original.with_name(copy.name).read_bytes()
    beside = original.with_name(f"{original.stem}_threshold{original.suffix}")
    assert [copy.name for copy in copies] == [original.name, *([beside.name] if beside.exists() else [])]
    assert original.name in said


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    mine = tmp_path / "tiny-text.json"
    mine.write_text("mine")
    with pytest.raises(InputError) as caught:
        copy_example("tiny-text", tmp_path)
    assert caught.value.problems[0].code == "file-exists"
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("name", ["tiny-txt", "../native/tiny-text", "", "/etc/passwd"])
def test_an_unknown_name_is_an_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        copy_example(name, tmp_path)
    assert caught.value.problems[0].code == "unknown-example"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        copy_example("tiny-text", tmp_path / "missing")
    assert caught.value.problems[0].code == "unwritable"


def test_every_example_has_a_description() -> None:
    for line in list_examples().splitlines()[2:]:
        name, dialect, *description = line.split()
        assert len(description) > 3, name
        assert (ROOT / "configs" / dialect).is_dir()
