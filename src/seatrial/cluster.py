"""The machines that a run gets: hosts in rank order and what each offers. Pure data; reading files is the dialects'."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from seatrial.errors import InputError

Transport = Literal["local", "ssh", "slurm", "kubernetes"]
MAX_HOSTS = 100_000  # more than any cluster has; a typing error in a range costs nothing

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?:/([1-9][0-9]{0,8}))?)?")


def host_words(text: str) -> list[str]:
    """The words of a list of hosts in one text, node[01-03,07],login: commas separate them, except in brackets."""
    return [word.strip() for word in re.split(r",(?![^\[\]]*\])", text)]


def hosts_of(word: str) -> list[str]:
    """The hosts of a name with ranges, in the order written: node[07,01-03], rack[1-2]n[01-16], n[0-14/2].

    Raises ValueError with what is wrong and how to write it.
    """
    pieces = re.split(r"\[([^\[\]]*)\]", word)  # text, ranges, text, ranges, …, text
    if any(bracket in text for text in pieces[::2] for bracket in "[]"):
        raise ValueError(f"{word[:60]!r} has a bracket too many or too few: write node[01-03,07]")
    if len(pieces) == 1:
        return [word]
    ranges = [[part.strip() for part in piece.split(",")] for piece in pieces[1::2]]
    if math.prod(sum(len(_range(part)[0]) for part in parts) for parts in ranges) > MAX_HOSTS:  # before any is made
        raise ValueError(f"{word[:60]!r} names more than {MAX_HOSTS} hosts: correct the range")
    columns = [[piece] for piece in pieces]
    columns[1::2] = [[number for part in parts for number in _numbers(part)] for parts in ranges]
    return ["".join(parts) for parts in itertools.product(*columns)]


def _numbers(part: str) -> list[str]:
    """The numbers of a range, all with at least the digits of the first, as Slurm writes them: 08, 09, …, 100."""
    numbers, digits = _range(part)
    return [str(number).zfill(digits) for number in numbers]


def _range(part: str) -> tuple[range, int]:
    """A range and the number of digits of its first number. Raises ValueError."""
    match = _RANGE.fullmatch(part)
    if match is None:
        raise ValueError(f"{part[:60]!r} is not a range of numbers: write node[01-03,07]")
    first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if last < first:
        raise ValueError(f"{part[:60]!r} names no hosts: a range goes up, as in node[01-03,07]")
    return range(first, last + 1, step), len(match[1])


@dataclass(frozen=True, kw_only=True)
class Host:
    """`name` is what the host is reached by and called in reports; `address` is what the other hosts connect to."""

    name: str
    address: str
    devices: int | None = None  # None: not known before somebody looks
    port: int | None = None  # of its SSH daemon; None: what SSH's configuration says, or 22


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Hosts in rank order (the first one coordinates) and how they are reached.

    Under Slurm there may be no hosts: then it allots them. `key_file` is a path; the key itself is never read here.
    """

    hosts: tuple[Host, ...]
    transport: Transport = "local"
    user: str | None = None  # None: whoever starts the run
    key_file: str | None = None  # None: what SSH takes by itself

    @classmethod
    def on_this_machine(cls, num_hosts: int = 1) -> Cluster:
        """`num_hosts` stand-ins for nodes, all of them this machine."""
        return cls(hosts=tuple(Host(name=f"local{i}", address="127.0.0.1") for i in range(num_hosts)))

    def without(self, excluded: Collection[str]) -> Cluster:
        """The hosts that are left without some names or ranges. Raises InputError for a name that is none of them,
        and if none is left."""
        known = {name for host in self.hosts for name in (host.name, host.address)}
        try:
            names = {name for text in excluded for word in host_words(text) for name in hosts_of(word)}
        except ValueError as error:
            raise InputError.single("bad-value", "--exclude", str(error), "give names or ranges of hosts") from None
        if unknown := sorted(names - known):
            why = f"there is no host {unknown[0]} in the cluster file"
            raise InputError.single("unknown-host", "--exclude", why, "give a name as it stands there")
        left = tuple(host for host in self.hosts if not {host.name, host.address} & names)
        if not left:
            raise InputError.single("no-hosts", "--exclude", "no host is left", "exclude fewer")
        return replace(self, hosts=left)
