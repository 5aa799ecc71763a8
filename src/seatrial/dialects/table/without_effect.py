"""A dialect's keys that make no value of a run, from its `without_effect.txt`, by what becomes of them and why.

A line `disposition: why`, and indented below it the keys: `name`, `name:kind`, `name=value` or `name:kind=value`. The
value is the one of which no effect is expected; the kind says which values there may be, in the dialect's own words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.resources import files
from typing import Any

from seatrial.dialects.table.coerce import Reader
from seatrial.dialects.table.keys import Key

Choose = Callable[[str, str, Any], Reader]  # of (name, kind, value), each empty where it is not given


def rows(dialect: str, choose: Choose) -> Iterator[tuple[str, Key]]:
    """(name, row) of each key in the table of a dialect, whose readers `choose` knows."""
    disposition, why = "", ""
    text = files("seatrial.dialects").joinpath(dialect, "without_effect.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith(" "):
            yield from (_row(item, disposition, why, choose) for item in line.split())
        elif not line.startswith("#"):
            disposition, _, why = line.partition(": ")


def _row(item: str, disposition: Any, why: str, choose: Choose) -> tuple[str, Key]:
    named, equals, text = item.partition("=")
    name, _, kind = named.partition(":")
    value: Any = text
    with suppress(ValueError):
        value = None if text.lower() in ("none", "null") else json.loads(text)
    quiet = (value, tuple(value)) if isinstance(value, list) else (value,)
    return name, Key(read=choose(name, kind, value), why=why, disposition=disposition, quiet=quiet if equals else ())
