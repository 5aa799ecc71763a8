"""Copies of what hosts write, and what is said where they cannot be made."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from seatrial.runs.mirror import Copies, shortage


def test_a_copy_goes_on_where_it_ends_and_nowhere_else(tmp_path: Path) -> None:
    copies = Copies(tmp_path)
    copies.append("nodes/a/rank0.log", 0, b"one ")
    copies.append("nodes/a/rank0.log", 4, b"two")
    with pytest.raises(ValueError, match="does not go on where its copy ends"):
        copies.append("nodes/a/rank0.log", 4, b"three")
    copies.append("events-0.jsonl", 0, b"{}")
    assert copies.sizes("a", [0]) == {"nodes/a/rank0.log": 7, "events-0.jsonl": 2}
    assert copies.sizes("b", [1]) == {}
    copies.append("nodes/a/rank0.log", 0, b"cut off there")
    assert (tmp_path / "nodes/a/rank0.log").read_bytes() == b"cut off there"


def test_a_run_directory_that_was_removed_is_not_made_again(tmp_path: Path) -> None:
    copies = Copies(tmp_path / "run")
    assert not copies.room()
    for write in (lambda: copies.append("nodes/a/rank0.log", 0, b"x"), lambda: copies.replace("nodes/a/x.json", "{}")):
        with pytest.raises(FileNotFoundError) as caught:
            write()
        assert shortage(caught.value, copies.run_dir) == f"{copies.run_dir} has been removed: put it back"
    assert not copies.run_dir.exists()
    copies.run_dir.mkdir()
    assert copies.room()
    assert list(copies.run_dir.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "free: make room there"),
        (errno.EDQUOT, "free: remove files of yours there, or have the quota raised"),
        (errno.EROFS, "Read-only file system: mount it for writing again"),
        (errno.EMFILE, "Too many open files: raise the limit (`ulimit -n`)"),
        (errno.EIO, "Input/output error: look at its disk (dmesg)"),
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
