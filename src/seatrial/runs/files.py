"""Files of a run directory, read and written without trusting whoever made the directory.

A run directory may come from somebody else: a file in it may be a FIFO, a device or endless, and a link in it may lead
to a file that matters. Reading takes regular files only and a bounded amount; writing replaces a file in one
step, so that nobody sees half of one, and never follows a link.
"""

from __future__ import annotations

import errno
import io
import json
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from seatrial.errors import InputError

MAX_BYTES = 256 << 20  # of a document; the plan of 16,384 processes is about 100 MB
MAX_LINE = 16 << 20  # characters; an event has some hundreds

_NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


_roots: tuple[bytes, ...] | None = None  # below which this process may read; None: everywhere


class NotAFile(OSError):
    """A FIFO, a device or a socket stands where a regular file is expected."""


def open_regular(path: Path) -> BinaryIO:
    """A regular file to read. Raises FileNotFoundError, NotAFile for anything that would block or never end, OSError.

    A link is followed: reading through it shows what its reader may see anyway; but see `confine`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)  # a FIFO would block
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotAFile(f"{path.name} is not a regular file")
        if _roots is not None and not _is_below(descriptor, _roots):
            raise NotAFile(f"{path.name} is a link that leads out of the folders of runs")
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def confine(roots: Iterable[Path]) -> None:
    """From now on, this process opens for reading only what really lies below one of the roots.

    For processes that read for others, who must not see through a link what only this process's user may.
    """
    global _roots
    _roots = tuple(os.path.realpath(os.fsencode(root)).rstrip(b"/") + b"/" for root in roots)


def _is_below(descriptor: int, roots: tuple[bytes, ...]) -> bool:
    """Asked of the open file itself, so that no link can be put in its place meanwhile."""
    try:
        return os.fsencode(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith(roots)
    except OSError:
        return False


def read_text(path: Path) -> str:
    """The text of a regular file; invalid UTF-8 is replaced. Raises OSError; ValueError for more than MAX_BYTES."""
    with open_regular(path) as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"{path.name} is larger than {MAX_BYTES >> 20} MiB, which Seatrial never writes")
    return content.decode("utf-8", "replace")


def exists(path: Path, *, as_file: bool = False) -> bool:
    """True if there is something at a path, or a file; no word is too long or too odd to be asked for."""
    try:
        return path.is_file() if as_file else path.exists()
    except (OSError, ValueError):
        return False


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises OSError; ValueError for anything else, with a reason that names the file."""
    try:
        data = json.loads(read_text(path))
    except RecursionError:
        raise ValueError(f"{path.name} nests its brackets too deep") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path.name} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return data


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a regular file with their ends. Raises OSError; ValueError for a line longer than MAX_LINE."""
    with io.TextIOWrapper(open_regular(path), encoding="utf-8", errors="replace") as lines:
        while line := lines.readline(MAX_LINE):
            if len(line) == MAX_LINE and not line.endswith("\n"):
                raise ValueError(f"{path.name} has a line of more than {MAX_LINE:,} characters")
            yield line


def write_text(path: Path, text: str, *, below: Path | None = None) -> None:
    """Puts a text in the place of a file, which may not be there yet; nor may its folder. As `replacing`."""
    with replacing(path, below=below) as file:
        file.write(text)


def write_named(path: Path, text: str) -> None:
    """Puts a text where a user said: in the place of a file, or of the one that a link leads to, as `replacing`.

    A pipe or a device gets it, and stays what it is. Not for files of a run directory, whose links nobody knows.
    """
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        kind = stat.S_IFREG
    if stat.S_ISREG(kind) or stat.S_ISDIR(kind):
        write_text(Path(os.path.realpath(path)) if path.is_symlink() else path, text)
    else:
        with path.open("w", encoding="utf-8") as file:
            file.write(text)


def write_json(path: Path, data: Any, *, below: Path | None = None) -> None:
    """Plain data as JSON. As `replacing`."""
    write_text(path, json.dumps(data, indent=1) + "\n", below=below)


def write_bytes(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Puts bytes in the place of a file, with at most these permissions. As `replacing`."""
    with _replacing(path, None, mode) as file:
        file.write(content)


@contextmanager
def replacing(path: Path, *, below: Path | None = None) -> Iterator[IO[str]]:
    """A text file that takes the place of `path` when all of it is written; until then `path` stays as it was.

    `below` is the run directory, if the file is not directly in it: no folder between the two may be a link. A link
    in the place of the file itself is replaced, and what it leads to is not touched. Raises InputError for a link in
    the place of a folder, and OSError, which names `path`.
    """
    with _replacing(path, below, 0o666) as file, io.TextIOWrapper(file, encoding="utf-8") as text:
        yield text


@contextmanager
def _replacing(path: Path, below: Path | None, mode: int) -> Iterator[BinaryIO]:
    folder = _open_folder(path.parent, below)
    unfinished = f".{path.name}.{secrets.token_hex(8)}.new"
    try:
        with os.fdopen(os.open(unfinished, os.O_WRONLY | _NEW, mode, dir_fd=folder), "wb") as file:
            yield file
        os.replace(unfinished, path.name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(unfinished, dir_fd=folder)
        if isinstance(error, OSError) and error.filename == unfinished:  # a name that nobody gave
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        os.close(folder)


def append_to(path: Path, *, below: Path | None = None) -> BinaryIO:
    """A file to add to, made if it is not there; `below` as for `replacing`. Raises InputError for a link, OSError."""
    folder = _open_folder(path.parent, below)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path.name, flags, 0o666, dir_fd=folder)
    except OSError as error:
        raise (_link(path) if error.errno == errno.ELOOP else error) from error
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotAFile(f"{path} is not a regular file")
    return os.fdopen(descriptor, "ab+")


def touch(path: Path, *, below: Path) -> None:
    """Makes an empty file, or sets the time of an existing one; makes no folder. Raises as `append_to` does."""
    if not path.parent.exists():
        raise FileNotFoundError(f"there is no {path.parent}")
    with append_to(path, below=below) as file:
        os.utime(file.fileno())


def _open_folder(path: Path, below: Path | None) -> int:
    """A descriptor of the folder, which is made if needed: what is done through it cannot be diverted."""
    if below is None:
        path.mkdir(parents=True, exist_ok=True)
        return os.open(path, _FOLDER)
    below.mkdir(parents=True, exist_ok=True)
    folder = os.open(below, _FOLDER)
    names = path.relative_to(below).parts if path.is_relative_to(below) else ("..",)
    if ".." in names:
        why, fix = f"a file of this run is outside {below}", "check the files in its launch folder"
        raise InputError.single("outside-run-directory", str(path), why, fix)
    for name in names:
        outer = folder
        try:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=outer)
            folder = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=outer)
        except OSError as error:
            raise (_link(path) if _is_link(name, outer) else error) from error
        finally:
            os.close(outer)
    return folder


def _is_link(name: str, folder: int) -> bool:
    with suppress(OSError):
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    return False


def _link(path: Path) -> InputError:
    why = "it is a link, and a run does not write through links"
    return InputError.single("link-in-run-directory", str(path), why, "check its target, then remove the link")
