"""The files that paths, folders and globs name: against the standard library's glob, and where that would never end."""

from __future__ import annotations

import glob
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seatrial.records import DataError
from seatrial.records.paths import files_named, find_files, named

NAMES = st.sampled_from(["a", "b", ".c", "a.jsonl", "b[1].jsonl", "x.txt"])
TREES = st.lists(st.lists(NAMES, min_size=1, max_size=4), max_size=12)
PATTERNS = st.lists(st.sampled_from(["**", "*", "a.d", "[ab].*", "*.jsonl", "?", ".*"]), min_size=1, max_size=4)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(tree=TREES, pattern=PATTERNS)
def test_a_glob_names_the_files_that_the_standard_library_finds(
    tmp_path_factory: pytest.TempPathFactory, tree: list[list[str]], pattern: list[str]
) -> None:
    top = tmp_path_factory.mktemp("tree")
    for parts in tree:
        folder = top.joinpath(*(f"{part}.d" for part in parts[:-1]))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / parts[-1]).touch()
    text = str(Path(top, *pattern))
    theirs = {Path(name) for name in glob.glob(text, recursive=True)}  # noqa: PTH207
    assert {path for path in named(text) if path.is_file()} == {path for path in theirs if path.is_file()}


def test_a_file_that_exists_is_no_glob(tmp_path: Path) -> None:
    (tmp_path / "set[1]").mkdir()
    (tmp_path / "set1").mkdir()
    for name in ("set[1]/x.jsonl", "set[1]/what?.jsonl", "set[1]/whats.jsonl", "set1/y.jsonl"):
        (tmp_path / name).touch()
    for name in ("set[1]/x.jsonl", "set[1]/what?.jsonl"):
        assert files_named(str(tmp_path / name), folders=False) == [tmp_path / name]
    found = [tmp_path / "set[1]" / name for name in ("what?.jsonl", "whats.jsonl", "x.jsonl")]
    assert files_named(str(tmp_path / "set[1]"), folders=True) == found
    assert files_named(str(tmp_path / "set[1]" / "y.jsonl"), folders=False) == [tmp_path / "set1" / "y.jsonl"]


def test_a_circle_of_links_is_followed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight links to the folder itself: the standard library's glob would try 8^40 ways."""
    for name in "abcdefgh":
        (tmp_path / name).symlink_to(".")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x.jsonl").touch()
    (tmp_path / "x.jsonl").touch()
    files = [tmp_path / "outside" / "x.jsonl", tmp_path / "x.jsonl"]
    assert [path.resolve() for path in find_files([str(tmp_path / "**" / "*.jsonl")])] == files
    assert [path.resolve() for path in find_files([str(tmp_path / "**")])] == files
    assert not list(named(str(tmp_path / "**" / "*.parquet")))
    monkeypatch.chdir(tmp_path)
    assert len(find_files(["**/*.jsonl"])) == 2


def test_links_to_files_and_folders_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "x.jsonl").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link").symlink_to("../real")
    (tmp_path / "data" / "y.jsonl").symlink_to("../real/x.jsonl")
    found = find_files([str(tmp_path / "data" / "**" / "*.jsonl")])
    assert found == [tmp_path / "data" / "link" / "x.jsonl", tmp_path / "data" / "y.jsonl"]


def test_what_is_not_here_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to("nowhere")
    for pattern in ("no", "no/*.jsonl", "no/**/x", "dangling", "a\0b", "dangling/x"):
        assert files_named(str(tmp_path / pattern), folders=True) == []
        with pytest.raises(DataError, match=r"data.paths: no file matches .*; give a path, folder or glob"):
            find_files([str(tmp_path / pattern)])
    assert files_named("~nobody-of-this-name/x", folders=True) == []
    assert files_named("gs://bucket/x.jsonl", folders=True) == []


@pytest.mark.parametrize("name", ["here.jsonl", "her?.jsonl", "**/here.jsonl", "."])
@pytest.mark.parametrize(("kind", "why"), [
    ("fifo", "is a FIFO"), ("loop", r"cannot be read \(Too many levels of symbolic links\)"), ("device", "is a device"),
])  # fmt: skip
def test_what_is_no_file_is_not_opened(tmp_path: Path, name: str, kind: str, why: str) -> None:
    path = tmp_path / "here.jsonl"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("here.jsonl" if kind == "loop" else "/dev/zero")
    with pytest.raises(DataError, match=f"here.jsonl: {why};"):
        files_named(str(tmp_path / name), folders=True)


def test_a_folder_names_its_tables(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b.jsonl", "a.parquet", "README.md", "sub/c.jsonl"):
        (tmp_path / name).touch()
    assert files_named(str(tmp_path), folders=True) == [tmp_path / "a.parquet", tmp_path / "b.jsonl"]
    with pytest.raises(DataError, match=r"is a folder; name files, as .*/\*"):
        files_named(str(tmp_path), folders=False)
    (tmp_path / "sub" / "c.jsonl").rename(tmp_path / "sub" / "c.txt")
    with pytest.raises(DataError, match=r"sub: there is no file in it that ends in .jsonl, .*; name the folder that"):
        files_named(str(tmp_path / "sub"), folders=True)
    (tmp_path / "c.jsonl").symlink_to("nowhere")
    with pytest.raises(DataError, match=r"c.jsonl: is a link to nothing"):
        files_named(str(tmp_path), folders=True)
