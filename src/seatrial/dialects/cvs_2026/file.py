"""A CVS configuration of 2026 as flat entries by path: placeholders filled, overrides applied, one sweep chosen."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from seatrial.dialects import placeholders
from seatrial.dialects.table import coerce
from seatrial.dialects.table import settings as table_settings
from seatrial.dialects.table.entries import NO_CHANGE, Entry, Request
from seatrial.dialects.table.keys import Key
from seatrial.dialects.table.overrides import Override, resolve
from seatrial.dialects.table.suggestions import did_you_mean
from seatrial.errors import InputError, Mark, Problem
from seatrial.source import Node
from seatrial.spec import NEEDS

SELECTORS = {"sweep": "sweep", "gpu": "gpu", "model": "model",
             **dict.fromkeys(("nnodes", "config.nnodes", "topology.num_nodes"), "nodes")}  # fmt: skip
_PATHS = re.compile(r"\{(?:paths\.)?([a-z_]+)\}")
_WHOLE = ("sweep.combinations", "training.sweeps")  # read by the chosen one only


@dataclass(kw_only=True)
class File(table_settings.Settings):
    """`entries` by path; what is unfilled, unknown or wrong is only among the problems. `selected`: by which sweep…"""

    UNKNOWN = "CVS's configurations of 2026 have no such key"

    request: Request
    groups: Collection[str]  # mappings that have a row somewhere in them
    selected: dict[str, str] = field(default_factory=dict)
    changes: dict[str, Entry] = field(default_factory=dict)  # overrides of what a sweep says, by its names

    @property
    def root(self) -> Node:
        return self.request.document.root

    @property
    def start(self) -> Mark:
        """The beginning of the file, for what stands nowhere in it."""
        return Mark(file=self.file, line=1, column=1)

    def unknown(self, name: str, entry: Entry) -> Problem:
        """The finding for a key that the table does not have."""
        return entry.key_problem(
            "error", "unknown-key", self.UNKNOWN, did_you_mean(name, sorted({*self.keys, *self.groups}))
        )

    def is_filled(self, name: str, key: Key, entry: Entry) -> bool:
        """True if a value is none that is still to be filled in."""
        if placeholders.is_unfilled(entry.value):
            if name.rpartition(".")[2] == "nnodes" and "nodes" in self.selected:  # the command line says it
                return False
            needed = bool(key.to) and NEEDS[self.action].cluster
            why = "it is still <changeme>" + (", and a run on the cluster needs it" if needed else "")
            fix = f"fill it in, or give {name}=… on the command line"
            self.add(name, "error" if needed else "warning", "placeholder", why, fix)
            return False
        return True

    def advice(self, name: str, key: Key, error: ValueError) -> str:
        """The fix for a value that a reader refused."""
        return f"give {name}=… a value that fits"


def gather(request: Request, table: Mapping[str, Key], of_sweeps: Collection[str]) -> File:
    """Everything that the file and the overrides say; `of_sweeps` are the keys that a sweep may change."""
    parts = [name.split(".") for name in table]
    file = File(
        keys={name: key for name, key in table.items() if not name.endswith(".*")},
        sections={name.removesuffix(".*"): key for name, key in table.items() if name.endswith(".*")},
        groups={".".join(each[:length]) for each in parts for length in range(1, len(each))},
        action=request.action, file=request.document.file, request=request, problems=list(request.document.problems),
    )  # fmt: skip
    entries = {entry.key: entry for entry in _entries(file)}
    _override(file, entries, of_sweeps)
    known = _known(request, entries)
    for name, entry in entries.items():
        file.take(name, _filled(entry, known))
    file.entries = {name: file.entries[name] for name in file.values}
    _without_effect(file)
    return file


def _entries(file: File) -> Iterator[Entry]:
    """The entries of the file: scalars and lists, and mappings that no row knows, once each."""

    def is_open(path: str) -> bool:
        return path in file.groups or (path not in file.keys and file.row(path) is not None)

    wholes = tuple(f"{whole}." for whole in _WHOLE)
    for path, node in placeholders.flat(file.root, is_open):
        if not path.startswith(wholes):
            yield Entry.of(path, node)


def _override(file: File, entries: dict[str, Entry], of_sweeps: Collection[str]) -> None:
    for override in file.request.overrides:
        given = Entry(key=override.key, value=override.text, text=override.text)
        if override.key in SELECTORS:
            file.selected[SELECTORS[override.key]] = override.text
        elif override.key in of_sweeps:
            file.changes[override.key] = given
        else:
            try:
                path = resolve(override, given=list(entries), possible=file.keys, open_=file.sections)
            except InputError as error:
                file.problems.extend(error.problems)
                continue
            row = file.row(path)
            value = _items(override.text) if row and row.read is coerce.texts else override.text
            entries[path] = replace(given, key=path, value=value)


def _items(text: str) -> list[str]:
    """The items of a list on the command line: `a,b`, or a list of JSON."""
    try:
        items = json.loads(text) if text.startswith("[") else text.split(",")
    except ValueError:
        items = text.split(",")
    return cast(list[str], items)


def _known(request: Request, entries: Mapping[str, Entry]) -> dict[str, str]:
    """The values of the placeholders: CVS's own, and the file's `paths`."""
    known = placeholders.values_for(request.user, request.home)
    for _ in range(3):  # a path may be made of another one
        for name, entry in entries.items():
            if name.startswith("paths.") and isinstance(entry.value, str):
                known[name.removeprefix("paths.")] = _fill(entry.value, known)
    return known


def _filled(entry: Entry, known: Mapping[str, str]) -> Entry:
    """An entry with its placeholders filled; what is not known stays, and <changeme> is reported as it is."""
    if placeholders.is_unfilled(entry.value):
        return entry
    if isinstance(entry.value, list):
        return replace(entry, value=[_fill(item, known) if isinstance(item, str) else item for item in entry.value])
    if isinstance(entry.value, str):
        text = _fill(entry.value, known)
        return replace(entry, value=text, text=text)
    return entry


def _fill(text: str, known: Mapping[str, str]) -> str:
    """A text with {user-id}, {shared_fs} and {paths.x} replaced; what is not known stays."""
    text = _PATHS.sub(lambda match: known.get(match[1], match[0]), text)
    return str(placeholders.fill(text, known)[0])[:4096]


def _without_effect(file: File) -> None:
    """Adds, once for each row without effect, where that may surprise."""
    said: set[str] = set()
    for name, key in file.loud("ignored"):
        row = name if name in file.keys else next(each for each in file.sections if name.startswith(f"{each}."))
        if row not in said and name not in _WHOLE and file.values[name] not in (None, "", {}):
            said.add(row)
            file.add(name, "info", "no-effect", f"it has no effect here: {key.why}", NO_CHANGE)


# --- sweeps -----------------------------------------------------------------------------------------------------------


def check_keys(file: File, sweep: Node, path: str, known: Collection[str], what: str) -> None:
    """Adds an error for each key that a sweep does not have."""
    for name, child in placeholders.given(sweep).items():
        if name not in known:
            entry, why = Entry.of(f"{path}.{name}", child), f"{what} has no such key"
            file.problems.append(entry.key_problem("error", "unknown-key", why, did_you_mean(name, known)))


def choose(file: File, sweeps: Collection[str], listed: str, entry: Entry) -> str | None:
    """The sweep that is meant: the only one, the one of the name given, or the only one with the text in its name.

    Without a name, the sweeps in the list of the key `listed` count. `entry` is the place of all of them.
    """
    wanted = file.selected.get("sweep")
    enabled = [name for name in file.get(listed) or () if name in sweeps]
    names = list(sweeps) if wanted is not None else enabled or list(sweeps)
    if wanted is None and len(names) == 1:
        return names[0]
    exact = [name for name in names if name == wanted]
    found = exact or [name for name in names if wanted is not None and wanted.lower() in name.lower()]
    if len(found) == 1:
        return found[0]
    shown = "; ".join(coerce.shown(name) for name in (found or names)[:12])
    why = f"{len(found)} have {coerce.shown(wanted)} in their name; there is {shown}"
    why = f"{len(names)} of them could be meant: {shown}" if wanted is None else why
    code = "ambiguous-cell" if found or wanted is None else "unknown-cell"
    file.problems.append(entry.problem("error", code, why, f"say which: sweep={names[0]}"))
    return None


def number_of_nodes(file: File, stated: str | None) -> int:
    """The number of nodes: as overridden, else `stated`, else 2 with a finding; 1, with an error, if that is wrong."""
    wanted = file.selected.get("nodes") or stated
    if wanted is None:
        why = "CVS counts the nodes of its cluster file; here they are stated: 2 are assumed"
        severity, fix = "error" if NEEDS[file.action].cluster else "warning", "give nnodes=… on the command line"
        file.add("nnodes", cast(Any, severity), "missing-key", why, fix)
        return 2
    try:
        return coerce.count(wanted)
    except ValueError as error:
        file.add("nnodes", "error", "bad-value", str(error), "give nnodes=2")
        return 1


def overrides_for(pairs: Mapping[str, object]) -> list[Override]:
    """Values as they are handed on to another dialect's reader."""
    return [
        Override(key=key, text=json.dumps(value) if isinstance(value, (list, dict)) else coerce.text(value))
        for key, value in pairs.items()
        if value is not None
    ]
