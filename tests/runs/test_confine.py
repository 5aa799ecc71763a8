"""A process that reads for others opens nothing that lies outside of the folders of runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from pathlib import Path
from seatrial.runs.files import confine, read_text
confine([Path(sys.argv[1])])
for name in sys.argv[2:]:
    try:
        print(read_text(Path(name)))
    except OSError as error:
        print(type(error).__name__, error)
"""


def test_no_link_leads_out(tmp_path: Path) -> None:
    inside, outside = tmp_path / "runs", tmp_path / "runs-of-others"
    (inside / "a" / "b").mkdir(parents=True)
    outside.mkdir()
    (inside / "a" / "file").write_text("inside")
    (outside / "file").write_text("secret")
    (inside / "link").symlink_to(inside / "a" / "file")
    (inside / "out").symlink_to(outside / "file")
    (inside / "a" / "folder").symlink_to(outside)
    (tmp_path / "way-in").symlink_to(inside)
    paths = [
        "runs/a/file", "runs/link", "way-in/a/file", "runs/a/b/../file", "runs/out", "runs/a/folder/file",
        "runs/../runs-of-others/file", "runs-of-others/file", "runs/nothing",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "way-in", *paths], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    lines = done.stdout.splitlines()
    assert lines[:4] == ["inside"] * 4
    assert all(line.startswith("NotAFile") and "leads out of the folders of runs" in line for line in lines[4:8])
    assert lines[8].startswith("FileNotFoundError")
