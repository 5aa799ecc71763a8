"""The versions of a system that have each of its keys: `versions.txt` of its dialect, made by tools/key_versions.py.

A version is a release (0.14) or a day (2025-07-27). A line is a key with how its values are given on a command line
(`=` one, `*` several, `?` perhaps one, else none), the first version that has it and the first that no longer has it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from seatrial.errors import some

_NAMES = 3  # keys that a finding names for each end of the range


@dataclass(frozen=True, kw_only=True)
class Versions:
    """The versions of a key: `since` and `gone` are empty for those of all times. `values` as in the file."""

    values: str
    since: str
    gone: str


@cache
def versions(dialect: str) -> Mapping[str, Versions]:
    """The table of a dialect, by key."""
    text = files("seatrial.dialects").joinpath(dialect, "versions.txt").read_text(encoding="utf-8")
    found = {}
    for line in text.splitlines()[1:]:
        written, since, gone = line.split()
        name = written.rstrip("=*?")
        found[name] = Versions(values=written[len(name) :], since=since.strip("-"), gone=gone.strip("-"))
    return found


def in_order(version: str) -> tuple[int, ...]:
    """A version as something that sorts: releases, then days."""
    return tuple(map(int, re.findall(r"\d+", version)))


def contradiction(known: Mapping[str, Versions], keys: Mapping[str, str], release: str) -> str:
    """The reason that no version has all of some keys: some are gone before others come; "" if one may have them.

    `keys` are the names in `known` with what the user wrote; `release` stands before a version: `core 0.14`.
    """
    named = {written: known[name] for name, written in keys.items() if name in known}
    since = max((each.since for each in named.values() if each.since), key=in_order, default="")
    gone = min((each.gone for each in named.values() if each.gone), key=in_order, default="")
    if not (since and gone) or in_order(since) < in_order(gone):
        return ""
    new = [name for name, each in named.items() if each.since == since]
    old = [name for name, each in named.items() if each.gone == gone]
    return f"{some(new, _NAMES)}: not before {release}{since}; {some(old, _NAMES)}: gone since {release}{gone}"
