"""One row a key: what a configuration may say in some spelling, and what becomes of it.

Each dialect is a table of these. Every key ends in one of four ways: `done` (its value goes to a path of the spec),
`equivalent` (it changes where or how fast something is computed, never what), `ignored` (it has no effect here, and
why) or `rejected` (it cannot be obeyed, and why).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from seatrial.dialects.table.coerce import Reader
from seatrial.spec import RunSpec

Effective = Callable[[RunSpec], Any]
Disposition = Literal["done", "equivalent", "ignored", "rejected"]


@dataclass(frozen=True, kw_only=True)
class Key:
    """`to` is a path in the spec, or several with a comma between them; without it `why` says why there is none.

    `meaning` says what the key means in its own system's terms, where the path does not. `quiet` are the values of
    which nobody would expect an effect; of a rejected key, those that are accepted. `effective` gives what the run
    really does, for a key that repeats a decision made elsewhere: it is worth a word only where the two differ.
    """

    read: Reader
    to: str = ""
    why: str = ""
    meaning: str = ""
    disposition: Disposition = "done"
    required: bool = False
    quiet: tuple[Any, ...] = ()
    effective: Effective | None = None
    needs_nodes: bool = False  # what is effective depends on the number of nodes


def to(path: str, read: Reader, meaning: str = "", *, required: bool = False) -> Key:
    """A key whose value goes to the spec."""
    return Key(read=read, to=path, meaning=meaning, required=required)


def equivalent(why: str, read: Reader, meaning: str = "", *, quiet: tuple[Any, ...] = ()) -> Key:
    """A key that is obeyed by construction: the result is the same whatever it says."""
    return Key(read=read, why=why, meaning=meaning, disposition="equivalent", quiet=quiet)


def ignored(why: str, read: Reader, meaning: str = "", *, quiet: tuple[Any, ...] = ()) -> Key:
    """A key without effect here."""
    return Key(read=read, why=why, meaning=meaning, disposition="ignored", quiet=quiet)


def rejected(why: str, read: Reader, meaning: str = "", *, quiet: tuple[Any, ...] = ()) -> Key:
    """A key that cannot be obeyed: any value but the quiet ones is an error."""
    return Key(read=read, why=why, meaning=meaning, disposition="rejected", quiet=quiet)


def repeats(why: str, read: Reader, effective: Effective, *, needs_nodes: bool = False) -> Key:
    """A key without effect that repeats what another one decides."""
    return Key(read=read, why=why, disposition="ignored", effective=effective, needs_nodes=needs_nodes)


def spelling(keys: Mapping[str, Key], path: str) -> tuple[str, ...]:
    """The keys of a table that say what a path of the spec is."""
    return tuple(name for name, key in keys.items() if path in (part.strip() for part in key.to.split(",")))
