"""One row per key: the values that it may have in a dialect, what they do, and how a run is written with it.

Each dialect is a table of these. There are four kinds of keys: `done` (its value goes to a path of the spec),
`equivalent` (it changes where or how fast something is computed, never what), `ignored` (it has no effect here, and
why) or `rejected` (it is not supported, and why).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any, Final, Literal

from seatrial.dialects.table.coerce import Reader
from seatrial.dialects.table.engine_keys import value_of
from seatrial.spec import RunSpec, flatten

FromSpec = Callable[[RunSpec], Any]
Disposition = Literal["done", "equivalent", "ignored", "rejected"]


class _Omitted:
    """Stands for a value that is not there, as None may be one."""

    def __repr__(self) -> str:
        return "OMIT"


OMIT: Final = _Omitted()


class _Path:
    """Stands for what a row writes: the value at its path, of which other keys have a say too when it is read."""

    def __call__(self, spec: RunSpec) -> Any:
        raise AssertionError("it is replaced where the row is made")


PATH: Final = _Path()


@dataclass(frozen=True, kw_only=True)
class Key:
    """`to` is a path in the spec, or several with a comma between them; without it `why` says why there is none.

    `meaning` says what the key means in its own system's terms, where the path does not. `quiet` are the values of
    which no effect is expected; of a rejected key, those that are accepted. `effective` gives what the run really
    does, for a key that repeats a decision made elsewhere: it is reported only where the two differ.

    `default` is what the key's own system assumes where it is not given; `shown` is how a file has that, where it is
    another word than the value. `write` gives the key's value for a spec, or OMIT; a row without it is written by
    others, or not at all. `as_is` says that no other key has a say in the value at the path, so that the row writes
    itself, or `otherwise` where it cannot hold the value.
    """

    read: Reader
    to: str = ""
    why: str = ""
    meaning: str = ""
    disposition: Disposition = "done"
    required: bool = False
    quiet: tuple[Any, ...] = ()
    effective: FromSpec | None = None
    needs_nodes: bool = False  # what is effective depends on the number of nodes
    default: Any = OMIT
    shown: str = ""
    write: FromSpec | None = None
    as_is: bool = False
    otherwise: Any = OMIT

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the spec that the value goes to."""
        return tuple(part.strip() for part in self.to.split(",")) if self.to else ()


def to(
    path: str, read: Reader, meaning: str = "", *, required: bool = False, default: Any = OMIT,
    write: FromSpec | None = None, only: FromSpec | None = None, as_is: bool = False, otherwise: Any = OMIT,
) -> Key:  # fmt: skip
    """A key whose value goes to the spec. `only`: the runs in which it is written, by default as its path has it."""
    written = attrgetter(path) if write is PATH or (only and not write) else write
    if only and written:
        written = _in_some_runs(written, only)
    return Key(
        read=read, to=path, meaning=meaning, required=required, default=default, write=written, as_is=as_is,
        otherwise=otherwise,
    )  # fmt: skip


def _in_some_runs(write: FromSpec, only: FromSpec) -> FromSpec:
    return lambda spec: write(spec) if only(spec) else OMIT


# A key whose value, once read, is the one at a path of the spec; `write` is for one that is written otherwise.
as_is = partial(to, as_is=True)


def _without_value(
    disposition: Disposition, why: str, read: Reader, meaning: str = "", *, quiet: tuple[Any, ...] = (),
    write: FromSpec | None = None,
) -> Key:  # fmt: skip
    """A key that no value of the spec is made of."""
    return Key(read=read, why=why, meaning=meaning, disposition=disposition, quiet=quiet, write=write)


equivalent = partial(_without_value, "equivalent")  # respected by construction: the result is the same whatever it says
ignored = partial(_without_value, "ignored")  # without effect here
rejected = partial(_without_value, "rejected")  # not supported: any value but the quiet ones is an error


def repeats(
    why: str, read: Reader, effective: FromSpec, *, needs_nodes: bool = False, write: FromSpec | None = None
) -> Key:
    """A key without effect that repeats what another one decides."""
    return replace(ignored(why, read, write=write), effective=effective, needs_nodes=needs_nodes)


def spelling(keys: Mapping[str, Key], path: str) -> tuple[str, ...]:
    """The keys of a table that say what a path of the spec is."""
    return tuple(name for name, key in keys.items() if path in key.paths)


def written_values(spec: RunSpec, keys: Mapping[str, Key]) -> Iterator[tuple[str, Any]]:
    """(key, value) of every row that is written for a spec; an `as_is` row may be left out where it cannot hold it."""
    leaves = flatten(spec)
    for name, key in keys.items():
        if key.write:
            value = key.write(spec)
        else:
            value = leaves.get(key.to, OMIT) if key.as_is else OMIT
            value = value if value is OMIT or _holds(key, value) else key.otherwise
        says_nothing = key.disposition == "ignored" or value is OMIT
        if says_nothing and name in spec.execution.engine_keys:
            value = value_of(spec.execution.engine_keys[name])
        if value is not OMIT:
            yield name, value


def _holds(key: Key, value: Any) -> bool:
    """True if a key reads a value as itself."""
    try:
        return bool(key.read(value) == value)
    except ValueError:
        return False
