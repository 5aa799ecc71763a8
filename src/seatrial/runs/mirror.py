"""The copies here of what the hosts of a run write, and messages for what cannot be written here.

A copy that fails does not affect the run, which goes on on its hosts: it is made when there is room again.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from seatrial.runs.files import append_to, write_text

PLACES = "launch/places.json"  # of a run directory: where the hosts are whose files are copied
ROOM_BYTES = 1 << 18  # that must be writable before copying resumes
GIB = 1 << 30
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
FIXES: Mapping[int, str] = {  # of what cannot be written
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "remove some of your files there, or have the quota raised",
    errno.EROFS: "mount it for writing again",
    **dict.fromkeys((errno.EACCES, errno.EPERM), "give yourself the right to write there"),
    errno.EIO: "check its disk (dmesg)",
    errno.ESTALE: "mount it again",
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit (`ulimit -n`) and restart"),
    errno.ENOENT: "put it back",
}


def shortage(error: OSError, folder: Path) -> str:
    """The reason that something below a folder cannot be written: where, how much room is left, and how to fix it."""
    if error.filename is None and error.errno not in NO_ROOM:  # of no file: a terminal's, perhaps
        return str(error)
    if error.errno == errno.ENOENT and not folder.exists():
        return f"{folder} has been removed: {FIXES[errno.ENOENT]}"
    why = f"{error.filename or folder}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        why += f", {_room(folder)} free"
    fix = FIXES.get(error.errno or 0, "")
    return f"{why}: {fix}" if fix else why


def _room(folder: Path) -> str:
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return "unknown how much is"
    return f"{free / GIB:.1f} GiB" if free >= GIB else f"{free >> 10:,} KiB"


class Mirror:
    """The files of a run directory that are written on its hosts. All but `room` raise OSError."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir

    def append(self, name: str, offset: int, content: bytes) -> None:
        """Continues a copy where it ends. Raises ValueError if `offset` is elsewhere."""
        path = self.run_dir / name
        self._require_folder()
        with append_to(path, below=self.run_dir) as file:
            if offset == 0:
                file.truncate(0)
            if file.seek(0, os.SEEK_END) != offset:
                raise ValueError(f"{name} does not continue where its copy ends")
            file.write(content)

    def replace(self, name: str, text: str) -> None:
        """Puts a copy in the place of the one before."""
        self._require_folder()
        write_text(self.run_dir / name, text, below=self.run_dir)

    def sizes(self, host: str, ranks: list[int]) -> dict[str, int]:
        """The bytes that are copied here of what a host writes, by name."""
        own = self.run_dir / "nodes" / host
        events = [self.run_dir / f"events-{rank}.jsonl" for rank in ranks]
        found = [path for path in (*own.glob("*.log"), *own.glob("*.jsonl"), *events) if path.exists()]
        return {str(path.relative_to(self.run_dir)): path.stat().st_size for path in found}

    def room(self) -> bool:
        """True if something can be written again."""
        try:
            with tempfile.TemporaryFile(dir=self.run_dir, buffering=0) as file:
                file.write(bytes(ROOM_BYTES))
                os.fsync(file.fileno())  # a full network file system fails only here
        except OSError:
            return False
        return True

    def _require_folder(self) -> None:
        """Whoever has removed the run directory does not want half of it back."""
        if not self.run_dir.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.run_dir))
