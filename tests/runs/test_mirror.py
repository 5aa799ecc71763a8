"""Copies of what hosts write, and the messages where they cannot be made."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from seatrial.runs.mirror import Mirror, shortage


def test_a_copy_goes_on_where_it_ends_and_nowhere_else(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path)
    mirror.append("nodes/a/rank0.log", 0, b"one ")
    mirror.append("nodes/a/rank0.log", 4, b"two")
    with pytest.raises(ValueError, match="does not continue where its copy ends"):
        mirror.append("nodes/a/rank0.log", 4, b"three")
    mirror.append("events-0.jsonl", 0, b"{}")
    assert mirror.sizes("a", [0]) == {"nodes/a/rank0.log": 7, "events-0.jsonl": 2}
    assert mirror.sizes("b", [1]) == {}
    mirror.append("nodes/a/rank0.log", 0, b"cut off there")
    assert (tmp_path / "nodes/a/rank0.log").read_bytes() == b"cut off there"


def test_a_run_directory_that_was_removed_is_not_made_again(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path / "run")
    assert not mirror.room()
    for write in (lambda: mirror.append("nodes/a/rank0.log", 0, b"x"), lambda: mirror.replace("nodes/a/x.json", "{}")):
        with pytest.raises(FileNotFoundError) as caught:
            write()
        assert shortage(caught.value, mirror.run_dir) == f"{mirror.run_dir} has been removed: put it back"
    assert not mirror.run_dir.exists()
    mirror.run_dir.mkdir()
    assert mirror.room()
    assert list(mirror.run_dir.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "free: make room there"),
        (errno.EDQUOT, "free: remove some of your files there, or have the quota raised"),
        (errno.EROFS, "Read-only file system: mount it for writing again"),
        (errno.EMFILE, "Too many open files: raise the limit (`ulimit -n`)"),
        (errno.EIO, "Input/output error: check its disk (dmesg)"),
    ],
)
def test_what_keeps_a_file_from_being_written_is_said_with_the_fix(tmp_path: Path, number: int, said: str) -> None:
    told = shortage(OSError(number, os.strerror(number), str(tmp_path / "file")), tmp_path)
    assert told.startswith(f"{tmp_path / 'file'}: {os.strerror(number)}")
    assert said in told


def test_a_disk_that_is_full_behind_no_file_is_still_said(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb", buffering=0) as full, pytest.raises(OSError, match="No space") as caught:
        full.write(b"x")
    assert shortage(caught.value, tmp_path).startswith(f"{tmp_path}: No space left on device, ")
    assert shortage(OSError(errno.EIO, "Input/output error"), tmp_path) == "[Errno 5] Input/output error"
