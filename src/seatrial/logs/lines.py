"""Text → clean lines: files in pieces of bounded size, terminal codes taken out, launchers' prefixes read."""

from __future__ import annotations

import codecs
import errno
import gzip
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader, RawIOBase, TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from seatrial.console import ESCAPE_SEQUENCES
from seatrial.logs.docker_logs import unwrapping
from seatrial.logs.numbers import CUT

CHUNK = 1 << 16  # characters
LONGEST = 1 << 16  # characters of a line; of a longer one, the first and the last half of so many
ARCHIVE, COMPRESSED = "an archive: unpack it", "compressed, but not with gzip: unpack it"
_GZIP = b"\x1f\x8b"
_NO_TEXT = (  # where the bytes stand, which they are, and what they say
    (257, b"ustar", ARCHIVE),  # tar, inside of gzip as well
    (0, b"PK\x03\x04", ARCHIVE),  # zip
    (0, b"\x28\xb5\x2f\xfd", COMPRESSED),  # zstd
    (0, b"\xfd7zXZ\0", COMPRESSED),
    (0, b"BZh", COMPRESSED),  # bzip2
    (0, b"\x04\x22\x4d\x18", COMPRESSED),  # lz4
)
_HEAD = 512  # bytes


# What launchers put before a line, any number of them. A group that is named gives the rank or the host.
_PREFIX = re.compile(
    r"""\s*(?:
      (?P<task>\d{1,9}):[ ]                                                     # srun -l
    | \[default(?P<local>\d{1,9})\]:                                            # torchrun --tee
    | \[(?:rank|RANK[ ])(?P<rank>\d{1,9})\]:                                    # torch
    | \[trainer\d{1,9}\|(?P<trainer>\d{1,9})\]:                                     # torchrun, by role
    | \[\d+,(?P<mpi>\d{1,9})\]<std(?:out|err|diag)>:[ ]?                         # mpirun --tag-output
    | [\w-]{1,20}\.[\w.-]{1,60}/(?P<replica>\d{1,9})[ ]                         # NeMo-Run, torchx: i.pretrain/0
    | \((?P<actor>[\w.:<>-]{1,80})[ ]pid=\d+(?:,[ ]ip=(?P<ip>[\d.]+))?\)(?:[ ]\[repeated[^\]]*\])?   # Ray
    | (?:[A-Z]+[ ]*)?\[\d{8}[ ]\d\d:\d\d:\d\d\]\[rank-(?P<primus>\d{1,9})/(?P<world>\d{1,9})\]                # Primus
        \[\w+[ ]*\][ ]*\[-*[\w./-]+:\d+\][ ]*:
    | \[(?:pod|container)/(?P<pod>[\w./-]+)\][ ]                            # kubectl logs --prefix
    | (?P<pdsh>localhost|\d{1,3}(?:\.\d{1,3}){3}):[ ]                       # pdsh, of DeepSpeed; see `hosts_of`
    | \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3,9}(?:Z|[+-]\d\d:\d\d)[ ]         # kubectl logs --timestamps
        (?:std(?:out|err)[ ][FP][ ])?                                     # of containerd, CRI-O, podman: their files
    )""",
    re.VERBOSE,
)
# The innermost, most global of them says which rank it is.
_RANKS = ("rank", "primus", "trainer", "replica", "mpi", "task")
_HOSTS = ("ip", "pod", "pdsh")
# Any word may stand before a colon, so that a name is that of a host only where the log says so: `pdsh -S -w a,b date`.
_PDSH = re.compile(r"\bpdsh (?:-[a-zA-Z]+ (?:\d+ )?){0,8}?-w (?P<hosts>[\w.,@-]{1,20000})(?= )")
ECHO = "^[["
_ECHO = re.compile(r"\^\[\[(?:[A-DFH]|[1-6]~)")  # arrows, Home, End; Delete, Page Up and so on
_MAY_BEGIN_PREFIX = frozenset("0123456789[( I")


@dataclass(frozen=True, slots=True)
class Prefix:
    """The prefix of a line: its length, the rank that it names and its place, the number of ranks, and the host."""

    length: int = 0
    rank: int | None = None
    rank_span: tuple[int, int] | None = None
    num_ranks: int | None = None
    host: str | None = None


NO_PREFIX = Prefix()


def is_read_once(path: Path) -> bool:
    """True for the standard input ("-"), a terminal, and a pipe, such as that of a shell's `<(…)`. Raises OSError."""
    return str(path) == "-" or path.is_fifo() or path.is_char_device()


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a file, as in `read_blocks`."""
    return chain.from_iterable(read_blocks(path))


@unwrapping
def read_blocks(path: Path) -> Iterator[list[str]]:
    """The lines of a file ("-": the standard input, as they come) without their ends, many at a time. Raises OSError.

    A carriage return ends a line too, and the next one begins with it: the same line of a terminal goes on. Never holds
    more than a chunk and a line; whatever is not UTF-8 is replaced. Where the file ends in a number without an end of
    line, the number may have been cut: `CUT` stands behind it.
    """
    if str(path) == "-":
        stream = _text(sys.stdin.buffer)
        yield from ([line[:-1] if line.endswith("\n") else _marked(line)] for line in stream)
        return
    rest = ""
    with _open(path) as file:
        while chunk := file.read(CHUNK):
            if "\r" in chunk:
                chunk += file.read(1) if chunk.endswith("\r") else ""
                chunk = chunk.replace("\r\n", "\n").replace("\r", "\n\r")
            *lines, last = chunk.split("\n")
            if lines:
                lines[0] = shortened(rest + lines[0])
                yield lines
                rest = last
            else:
                rest = shortened(rest + last)
    if rest:
        yield [_marked(shortened(rest))]


def _marked(last: str) -> str:
    """The last line, which has no end, with `CUT` behind a number."""
    return last + (CUT if last[-1].isdigit() or last[-1] == "." else "")


def read_whole(path: Path, most: int) -> str:
    """The text of a file as it is, up to so many characters. Raises OSError."""
    with _open(path) as file:
        return file.read(most)


def why_no_text(path: Path) -> str:
    """The reason why the content of a file is no text that can be read, by its first bytes; "" if it may be one."""
    try:
        with path.open("rb") as file:
            content = BufferedReader(_Unzipped(file)) if file.peek(2)[:2] == _GZIP else file
            head = content.read(_HEAD)
    except OSError:
        return ""  # whoever reads it says why it cannot be
    return next((why for place, magic, why in _NO_TEXT if head.startswith(magic, place)), "")


def _open(path: Path) -> TextIO:
    return _text(path.open("rb"))


def _text(stream: BinaryIO) -> TextIO:
    """The text of a stream, by its first bytes gzip or not, UTF-16 (as PowerShell writes it) or UTF-8."""
    file = stream if isinstance(stream, BufferedReader) else BufferedReader(cast("RawIOBase", stream))
    if file.peek(2)[:2] == _GZIP:
        file = BufferedReader(_Unzipped(file))
    is_wide = file.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    return TextIOWrapper(file, encoding="utf-16" if is_wide else "utf-8", errors="replace", newline="\n")


class _Unzipped(RawIOBase):
    """The content of a compressed file, as far as it is there: one that was cut just ends."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._unzipped = gzip.GzipFile(fileobj=file)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._unzipped.read1(len(buffer))
        except (EOFError, zlib.error):
            return 0
        except gzip.BadGzipFile as error:  # which says neither its number nor the file
            raise OSError(errno.EINVAL, str(error), self._file.name) from error
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def shortened(line: str) -> str:
    """A line of bearable length: the beginning and the end of one that is longer."""
    return line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 :]}"


def split_line(line: str) -> list[str]:
    """The line without its end, or the several that carriage returns (progress bars) make of it; as in `read_lines`."""
    first, *others = line.rstrip("\r\n").split("\r")
    return [*([shortened(first)] if first else []), *("\r" + shortened(piece) for piece in others if piece)]


def without_codes(line: str) -> str:
    """The line as a terminal would show it, without colours, cursor movements and titles."""
    return ESCAPE_SEQUENCES.sub("", line)


def without_echo(line: str) -> str:
    """The line without the keys that somebody pressed meanwhile, as a terminal shows them: `^[[B` for an arrow."""
    return _ECHO.sub("", line)


def codes_in(line: str) -> list[tuple[int, str]]:
    """The codes that `without_codes` takes out of a line, each with its place in what is left."""
    found, removed = [], 0
    for code in ESCAPE_SEQUENCES.finditer(line):
        found.append((code.start() - removed, code[0]))
        removed += len(code[0])
    return found


def all_without_codes(lines: Sequence[str]) -> Sequence[str]:
    """The same of many lines, in a part of the time."""
    text = "\n".join(lines)
    if "\x1b" not in text:
        return lines
    # A title may be of any characters, so that one without an end would take the next lines with it.
    # To split and to join takes two thirds of the time of `sub`.
    shown = [] if "\x1b]" in text else "".join(ESCAPE_SEQUENCES.split(text)).split("\n")
    return shown if len(shown) == len(lines) else list(map(without_codes, lines))


def hosts_of(line: str) -> frozenset[str]:
    """The hosts whose names stand before what they print, by a line with the command of pdsh that runs it there."""
    found = _PDSH.search(line)
    return frozenset(host.rpartition("@")[2] for host in found["hosts"].split(",") if host) if found else frozenset()


def read_prefix(line: str) -> Prefix:
    """The prefixes that launchers put before the line, however many, as one."""
    if line[:1] not in _MAY_BEGIN_PREFIX and not line[:1].isalpha():
        return NO_PREFIX
    end = 0
    found: dict[str, tuple[str, tuple[int, int]]] = {}
    while match := _PREFIX.match(line, end):
        end = match.end()
        found |= {name: (text, match.span(name)) for name, text in match.groupdict().items() if text is not None}
    if not end:
        return NO_PREFIX
    rank, span = next((found[name] for name in _RANKS if name in found), (None, None))
    return Prefix(
        length=end,
        rank=None if rank is None else int(rank),
        rank_span=span,
        num_ranks=int(found["world"][0]) if "world" in found else None,
        host=next((found[name][0] for name in _HOSTS if name in found), None),
    )
