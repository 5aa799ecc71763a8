"""The process of a run that wrote a log, or the host of a kernel log, by the names of the file and its folders."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import count
from pathlib import Path

# Which process wrote a file, by its name or its folder's; the first that fits.
RANK_NAMES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"global_?rank[-_.]?(\d+)",
        r"(?<![a-z])(?:rank|proc(?:ess)?|worker|task|trainer)[-_.]?(\d+)",
        r"(?:^|/)(\d+)/std(?:out|err)[^/]*$",  # torchrun's folders
        r"(?<![a-z])(?:node|host)[-_.]?(?:rank[-_.]?)?(\d+)",
    )
)
# What tells the two streams of one process apart: torchrun's 0/stdout.log and 0/stderr.log, Slurm's 3.out and 3.err.
STREAM = re.compile(r"[-_.]?std(?:out|err)(?![a-z])|\.(?:log|out|err|txt)(?=\.|$)", re.IGNORECASE)
# dmesg-node7.log, node7.kern.log.
_KERNEL_LOG = re.compile(
    r"^(?:dmesg|kern(?:el)?|syslog)[-_.](?P<host>[a-z][\w-]*?)(?:\.(?:log|txt|out))*$"
    r"|^(?P<host2>[a-z][\w-]*?)[-_.](?:dmesg|kern(?:el)?|syslog)(?:\.(?:log|txt|out))*$",
    re.IGNORECASE,
)


def end_of(path: Path, without: Collection[str] = ()) -> str:
    """A file's name and the two folders next to it, which may say what wrote it."""
    return "/".join(part for part in path.parts[-3:] if part not in without)


def rank_of(path: Path) -> int | None:
    """The process of a file by its name, or its folder's."""
    return _rank(end_of(path), RANK_NAMES)


def _rank(text: str, names: Sequence[re.Pattern[str]]) -> int | None:
    return next((int(match[1]) for name in names if (match := name.search(text))), None)


def streamless(path: Path) -> str:
    """The name and folders of a file, but for which of the streams of its process it holds."""
    return STREAM.sub("", "/".join(path.parts))


def numberless(path: Path) -> str:
    """The end of a path without its numbers: what the logs of all processes share."""
    return re.sub(r"\d+", "#", end_of(path))


def host_of_kernel_log(path: Path) -> str:
    """The host whose kernel a file is of; "" for any other file."""
    found = _KERNEL_LOG.match(path.name)
    return (found["host"] or found["host2"]) if found else ""


def all_named(paths: Sequence[Path]) -> list[int] | None:
    """The process of each file by its name; None unless every name says so, and each something else.

    Only the two streams of a process may have one number.
    """
    found = {streamless(path): rank_of(path) for path in paths}
    if None in found.values() or len(set(found.values())) < len(found):
        return None
    return [number for path in paths if (number := found[streamless(path)]) is not None]


def ranks_of(paths: Sequence[Path]) -> list[int | None]:
    """The rank of each file by its name, where no two processes have the same; a launcher's log among them has none."""
    shared = set.intersection(*(set(path.parts[:-1]) for path in paths)) if paths else set()
    ranks = {streamless(path): _rank(end_of(path, without=shared), RANK_NAMES[:-1]) for path in paths}
    known = [rank for rank in ranks.values() if rank is not None]
    distinct = len(set(known)) == len(known)
    return [ranks[streamless(path)] if distinct else None for path in paths]


def processes_of(paths: Sequence[Path]) -> list[int]:
    """A number for each file: its process by its name, if all of them or at least some say a rank; else its place."""
    if len(paths) > 1 and (named := all_named(paths)):
        return named
    ranks = ranks_of(paths)
    others = count(max((rank for rank in ranks if rank is not None), default=-1) + 1)
    return [next(others) if rank is None else rank for rank in ranks]
