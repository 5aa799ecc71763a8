"""The index: it follows the directories, survives company, and refuses what is not its own."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from seatrial.errors import InputError
from seatrial.history.index import Index
from tests.helpers.history_runs import make


def names(index: Index, root: Path) -> set[str]:
    return {Path(str(row["directory"])).name for row in index.rows(root)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three runs, one of them deeper than the others."""
    root = tmp_path / "runs"
    for name in ("a", "b", "deeper/c"):
        make(root / name)
    return root


def test_it_follows_the_directories(root: Path, tmp_path: Path) -> None:
    with Index(tmp_path / "index") as index:
        changes = index.refresh(root)
        assert {Path(path).name for path in changes.read} == {"a", "b", "c"}
        assert names(index, root) == {"a", "b", "c"}
        again = index.refresh(root)
        assert (again.read, again.gone) == ((), ())
        shutil.rmtree(root / "a")
        (root / "b" / "verdict.json").unlink()
        make(root / "d")
        changes = index.refresh(root)
        assert ({Path(path).name for path in changes.read}, [Path(path).name for path in changes.gone]) == (
            {"d", "b"},
            ["a"],
        )
        outcomes = {Path(str(row["directory"])).name: row["outcome"] for row in index.rows(root)}
        assert outcomes == {"b": "not_judged", "c": "pass", "d": "pass"}


def test_it_can_be_made_anew_from_the_directories_alone(root: Path, tmp_path: Path) -> None:
    with Index(tmp_path / "one") as index:
        index.refresh(root)
        grown = index.rows(root)
        index.refresh(root, rebuild=True)
        assert index.rows(root) == grown
    with Index(tmp_path / "two") as index:
        index.refresh(root)
        assert index.rows(root) == grown


def test_a_row_that_was_read_wrongly_once_is_read_again(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "index"
    with Index(path) as index:
        index.refresh(root)
    database = sqlite3.connect(path)
    database.execute("UPDATE runs SET outcome = 'fail'")
    database.commit()
    database.close()
    with Index(path) as index:
        index.refresh(root, rebuild=True)
        assert {row["outcome"] for row in index.rows()} == {"pass"}


def test_roots_are_kept_apart(tmp_path: Path) -> None:
    make(tmp_path / "runs" / "a")
    make(tmp_path / "runs-of-others" / "b")
    with Index(tmp_path / "index") as index:
        index.refresh(tmp_path / "runs-of-others")
        changes = index.refresh(tmp_path / "runs")
        assert changes.gone == ()
        assert names(index, tmp_path / "runs") == {"a"}
        assert len(index.rows()) == 2


def test_a_run_directory_can_be_the_root(root: Path, tmp_path: Path) -> None:
    with Index(tmp_path / "index") as index:
        index.refresh(root / "a")
        assert names(index, root / "a") == {"a"}


def test_names_of_any_bytes_are_kept(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    make(root / "a")
    for name in (b"\xff\xfe", "ü'\"; DROP TABLE runs".encode(), b"new\nline", b"%_*"):
        shutil.copytree(root / "a", os.fsdecode(os.fsencode(root) + b"/" + name))
    with Index(tmp_path / "index") as index:
        index.refresh(root)
        assert len(index.rows(root)) == 5
        assert all(Path(str(row["directory"])).is_dir() for row in index.rows(root))
        again = index.refresh(root)
        assert (again.read, again.gone) == ((), ())


def test_links_are_not_followed(root: Path, tmp_path: Path) -> None:
    (root / "loop").symlink_to(root)
    with Index(tmp_path / "index") as index:
        index.refresh(root)
        assert len(index.rows(root)) == 3


def test_several_processes_at_once(root: Path, tmp_path: Path) -> None:
    """Each makes the index, reads the runs and writes them, five times over."""
    program = (
        "import sys; from pathlib import Path; from seatrial.history.index import Index\n"
        "for _ in range(5):\n"
        "    with Index(Path(sys.argv[1])) as index: index.refresh(Path(sys.argv[2]), rebuild=True)\n"
        "    assert len(index_rows) == 3 if (index_rows := Index(Path(sys.argv[1])).rows()) else False\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", program, str(tmp_path / "index"), str(root)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert errors == [""] * 4
    assert [process.returncode for process in processes] == [0] * 4


@pytest.mark.parametrize(
    "content", [b"no database at all, but long enough to look at" * 50, b"SQLite format 3\x00" + b"\xff" * 4096]
)
def test_a_file_that_is_no_index_is_left_alone(root: Path, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "index"
    path.write_bytes(content)
    with pytest.raises(InputError, match="the index of runs cannot be used") as caught:
        Index(path)
    assert len(caught.value.problems) == 1
    assert path.read_bytes() == content


def test_somebody_elses_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "index"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE runs (mine)")
    database.commit()
    database.close()
    before = path.read_bytes()
    with pytest.raises(InputError, match="another program"):
        Index(path)
    assert path.read_bytes() == before


def test_an_index_that_was_cut_off_is_one_message(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "index"
    with Index(path) as index:
        index.refresh(root)
    content = path.read_bytes()
    told = 0
    for kept in range(1, len(content), len(content) // 23):
        path.write_bytes(content[:kept])
        try:
            with Index(path) as index:
                index.refresh(root)
                assert len(index.rows()) == 3
        except InputError as error:
            told += len(error.problems) == 1
    assert told > 0


def test_an_index_of_another_version_is_made_anew(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "index"
    with Index(path) as index:
        index.refresh(root)
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.execute("ALTER TABLE runs ADD COLUMN later")
    database.commit()
    database.close()
    with Index(path) as index:
        assert index.rows() == []
        index.refresh(root)
        assert len(index.rows()) == 3


def test_where_no_file_can_be_made_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "index", tmp_path):
        with pytest.raises(InputError, match="cannot be used") as caught:
            Index(path)
        assert "XDG_DATA_HOME" in caught.value.problems[0].fix
