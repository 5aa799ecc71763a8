"""The copy of a script's folder that a sandbox gets, how much is written there, and its removal.

A script may write and run what it finds, as nobody, and hidden files are none of its business: so it gets a copy. An
overlay would need the owner's rights on every file, and shows what is hidden. All of it bears whatever a script leaves
behind: links, folders that nobody may enter, and paths that are longer than any call takes.
"""

from __future__ import annotations

import itertools
import os
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from seatrial.errors import InputError

MAX_BYTES = 512 * 2**20  # of a script's folder and its record, which lie on this machine's disk
MAX_COPIED_FILE = 2**20
MAX_COPIED = 20_000  # files of the project
MAX_MADE = 5000  # files and folders that a script makes: tens of thousands take long to remove
MAX_DEPTH = 200  # of the folders that a script makes: thousands take long to remove
_PREFIX = "seatrial-capture-"  # of our own folders, which a project may hold where it is /tmp
_SECONDS_TO_END = 5.0


@contextmanager
def temporary() -> Iterator[Path]:
    """A folder for one run, removed behind it: again and again while processes that are being ended write into it."""
    own = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        own.chmod(0o755)
        yield own
    finally:
        # rm is the fastest, follows no link and bears any depth; what it may not enter is left to us.
        subprocess.run(["rm", "-rf", "--one-file-system", "--", own], stderr=subprocess.DEVNULL, check=False)
        until = time.monotonic() + _SECONDS_TO_END
        while own.exists() and time.monotonic() < until:
            with suppress(OSError):
                _remove(own)
            time.sleep(0.01)


def _remove(own: Path) -> None:
    """Removes a folder level by level, each folder's own moved to the top before it goes: a path is never long.

    No link is followed, and folders that even their owner may not enter are opened first.
    """
    numbers = itertools.count()
    with _opened(str(own)) as top:
        while names := os.listdir(top):  # noqa: PTH208
            for name in names:
                if not _unlinked(name, top):
                    with _opened(name, top) as folder:
                        for below in os.listdir(folder):  # noqa: PTH208
                            if not _unlinked(below, folder):
                                with _opened(below, folder):  # or it could not be moved
                                    os.rename(below, f"{next(numbers)}.moved", src_dir_fd=folder, dst_dir_fd=top)
                    os.rmdir(name, dir_fd=top)
    own.rmdir()


def _unlinked(name: str, folder: int) -> bool:
    """Removes what is no folder; of a folder, False."""
    if stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
        return False
    os.unlink(name, dir_fd=folder)
    return True


@contextmanager
def _opened(name: str, folder: int | None = None) -> Iterator[int]:
    """The descriptor of a folder that is no link, whose owner may do everything."""
    place = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        os.chmod(f"/proc/self/fd/{place}", 0o700)  # noqa: PTH101
        number = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_DIRECTORY)
    finally:
        os.close(place)
    try:
        yield number
    finally:
        os.close(number)


def copy(project: Path, to: Path, script: Path, owner: int | None = None) -> None:
    """Copies a folder without hidden files but the script; what is large is empty, and links out of it are left out.

    `owner`: the number of the user and group that get it. Raises InputError for too many files.
    """
    top, count = os.path.realpath(project), 0
    wanted = {str(path) for path in (script, *script.parents)}
    waiting = [(str(project), str(to))]
    while waiting:
        here, there = waiting.pop()
        Path(there).mkdir(parents=True, exist_ok=True)
        if owner is not None:
            os.chown(there, owner, owner)
        for entry in _entries(here):
            if entry.name.startswith(".") and entry.path not in wanted:
                continue
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith(_PREFIX):
                    waiting.append((entry.path, f"{there}/{entry.name}"))
                continue
            count += 1
            if count > MAX_COPIED:
                why = f"{project} has more than {MAX_COPIED} files"
                fix = "name a smaller folder that has all that it needs: --folder"
                raise InputError.single("too-large", "capture", why, fix)
            with suppress(OSError):
                if not entry.is_symlink() or _is_inside(entry.path, top):
                    _copy_file(entry, f"{there}/{entry.name}", owner)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """The entries of a folder; none of one that cannot be read."""
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def _is_inside(path: str, top: str) -> bool:
    """True if a link leads to a file of the project that is not hidden."""
    real = Path(os.path.relpath(os.path.realpath(path), top))
    return not any(part.startswith(".") for part in real.parts)


def _copy_file(entry: os.DirEntry[str], there: str, owner: int | None) -> None:
    about = entry.stat()
    if not stat.S_ISREG(about.st_mode):
        return
    content = Path(entry.path).read_bytes() if about.st_size <= MAX_COPIED_FILE else b""
    number = os.open(there, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(number, "wb") as file:  # noqa: PTH123
        file.write(content)
        os.fchmod(number, 0o755 if about.st_mode & 0o111 else 0o644)
        if owner is not None:
            os.fchown(number, owner, owner)


def count(scratch: Path) -> int:
    """The number of files and folders."""
    return sum(1 for _ in _walk(scratch))


def is_full(scratch: Path, most: int) -> bool:
    """True if a script has written more into its folder than any launch script would: bytes, depth, or `most` files."""
    used = 0
    for number, (entry, depth) in enumerate(_walk(scratch)):
        with suppress(OSError):
            used += entry.stat(follow_symlinks=False).st_blocks * 512
        if number >= most or used > MAX_BYTES or depth > MAX_DEPTH:
            return True
    return False


def _walk(scratch: Path) -> Iterator[tuple[os.DirEntry[str], int]]:
    """The files and folders below a folder, each with how many folders it is in."""
    waiting = [(str(scratch), 0)]
    while waiting:
        folder, depth = waiting.pop()
        with suppress(OSError), os.scandir(folder) as found:
            for entry in found:
                yield entry, depth
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((entry.path, depth + 1))
