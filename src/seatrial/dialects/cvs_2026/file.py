"""A CVS configuration of 2026 as flat entries by path: placeholders filled, overrides applied, one sweep chosen."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from seatrial.dialects import placeholders
from seatrial.dialects.cvs_2026.keys import find, groups
from seatrial.dialects.table import coerce
from seatrial.dialects.table.entries import Entry, Request
from seatrial.dialects.table.keys import Key
from seatrial.dialects.table.overrides import Override, did_you_mean, resolve
from seatrial.errors import InputError, Problem, Severity
from seatrial.source import Node, walk
from seatrial.spec import NEEDS

SELECTORS = ("sweep", "gpu", "model")
_PATHS = re.compile(r"\{(?:paths\.)?([a-z_]+)\}")
_WHOLE = ("sweep.combinations", "training.sweeps")  # read by the chosen one only


@dataclass(kw_only=True)
class File:
    """`entries` by path; what is unfilled, unknown or wrong is only among the problems. `selected`: by which sweep…"""

    request: Request
    table: Mapping[str, Key]
    entries: dict[str, Entry] = field(default_factory=dict)
    selected: dict[str, str] = field(default_factory=dict)
    changes: dict[str, Entry] = field(default_factory=dict)  # overrides of what a sweep says, by its names
    problems: list[Problem] = field(default_factory=list)

    def value(self, path: str) -> Any:
        """The value at a path, read by its row; None where there is none, or where it does not fit."""
        entry, row = self.entries.get(path), find(self.table, path)
        if entry is None or row is None:
            return None
        try:
            return row[1].read(entry.value)
        except ValueError as error:
            self.say(entry, "bad-value", str(error), f"give {path}=… a value that fits")
            del self.entries[path]
            return None

    def below(self, prefix: str) -> dict[str, Entry]:
        """The entries of a mapping whose keys are the user's own."""
        return {
            path.removeprefix(f"{prefix}."): entry
            for path, entry in self.entries.items()
            if path.startswith(f"{prefix}.")
        }

    def say(self, entry: Entry, code: str, why: str, fix: str) -> None:
        """An error about a value."""
        self.problems.append(entry.problem("error", code, why, fix))


def gather(request: Request, table: Mapping[str, Key], of_sweeps: Collection[str]) -> File:
    """Everything that the file and the overrides say; `of_sweeps` are the keys that a sweep may change."""
    file = File(request=request, table=table, problems=list(request.document.problems))
    root = request.document.root
    mappings, strange = groups(table), set[tuple[str, ...]]()
    for path, node in walk(root):
        dotted = ".".join(path)
        if not path or placeholders.is_note(path) or _inside_list(root, path):
            continue
        if any(path[:length] in strange for length in range(1, len(path))):
            continue
        row = find(table, dotted)
        if isinstance(node.value, dict) and (dotted in mappings or (row and row[0] != dotted)):
            continue
        if node.members:
            strange.add(path)  # said once, not of each key in it
        if not any(dotted.startswith(f"{whole}.") for whole in _WHOLE):
            file.entries[dotted] = Entry.of(dotted, node)
    _override(file, of_sweeps)
    known = _known(file)
    names = sorted({name for name in table if not name.endswith(".*")} | mappings)
    for name, entry in list(file.entries.items()):
        _take(file, name, entry, known, names)
    _tell(file)
    return file


def _inside_list(root: Node, path: tuple[str, ...]) -> bool:
    for part in path[:-1]:
        root = root.members.get(part, root)
        if isinstance(root.value, list):
            return True
    return False


def _override(file: File, open_names: Collection[str]) -> None:
    sections = [path.removesuffix(".*") for path in file.table if path.endswith(".*")]
    possible = [path for path in file.table if not path.endswith(".*")]
    for override in file.request.overrides:
        if override.key in SELECTORS:
            file.selected[override.key] = override.text
            continue
        if override.key in ("nnodes", "config.nnodes", "topology.num_nodes"):
            file.selected["nodes"] = override.text
            continue
        if override.key in open_names:
            file.changes[override.key] = Entry(key=override.key, value=override.text, text=override.text)
            continue
        try:
            path = resolve(override, given=list(file.entries), possible=possible, open_=sections)
        except InputError as error:
            file.problems.extend(error.problems)
            continue
        row = find(file.table, path)
        value = _items(override.text) if row and row[1].read is coerce.texts else override.text
        file.entries[path] = Entry(key=path, value=value, text=override.text)


def _items(text: str) -> list[str]:
    """The items of a list on the command line: `a,b`, or a list of JSON."""
    try:
        items = json.loads(text) if text.startswith("[") else text.split(",")
    except ValueError:
        items = text.split(",")
    return cast(list[str], items)


def _known(file: File) -> dict[str, str]:
    """What placeholders stand for: CVS's own, and the file's `paths`."""
    known = placeholders.values_for(file.request.user, file.request.home)
    for _ in range(3):  # a path may be made of another one
        for name, entry in file.below("paths").items():
            if isinstance(entry.value, str):
                known[name] = fill(entry.value, known)
    return known


def fill(text: str, known: Mapping[str, str]) -> str:
    """A text with {user-id}, {shared_fs} and {paths.x} replaced; what nobody knows stays."""
    text = _PATHS.sub(lambda match: known.get(match[1], match[0]), text)
    return str(placeholders.fill(text, known)[0])[:4096]


def _take(file: File, path: str, entry: Entry, known: Mapping[str, str], names: Collection[str]) -> None:
    row = find(file.table, path)
    if row is None:
        del file.entries[path]
        why = "CVS's configurations of 2026 have no such key"
        file.problems.append(entry.key_problem("error", "unknown-key", why, did_you_mean(path, names)))
        return
    if placeholders.is_unfilled(entry.value):
        del file.entries[path]
        needed = bool(row[1].to) and NEEDS[file.request.action].cluster
        why = "it is still <changeme>" + (", and a run on the cluster needs it" if needed else "")
        fix = f"fill it in, or give {path}=… on the command line"
        file.problems.append(entry.problem("error" if needed else "warning", "placeholder", why, fix))
        return
    value = entry.value
    if isinstance(value, str):
        value = fill(value, known)
    elif isinstance(value, list):
        value = [fill(item, known) if isinstance(item, str) else item for item in value]
    file.entries[path] = replace(entry, value=value, text=value if isinstance(value, str) else entry.text)


def _tell(file: File) -> None:
    """Once for each row without effect, where that may surprise; and values that do not fit."""
    told = set()
    for path in list(file.entries):
        entry, row = file.entries[path], find(file.table, path)
        if row is None or path in _WHOLE:
            continue
        value = file.value(path)
        if path not in file.entries or row[1].disposition != "ignored" or row[0] in told or value in (None, "", {}):
            continue
        if not any(value == quiet for quiet in row[1].quiet):
            told.add(row[0])
            file.problems.append(
                entry.problem("info", "no-effect", f"it has no effect here: {row[1].why}", "nothing to do")
            )


def choose(file: File, names: Sequence[str], what: str, entry: Entry | None) -> str | None:
    """The sweep that is meant: the only one, the one of the name given, or the only one with the text in its name."""
    wanted = file.selected.get("sweep")
    if wanted is None and len(names) == 1:
        return names[0]
    exact = [name for name in names if name == wanted]
    found = exact or [name for name in names if wanted is not None and wanted.lower() in name.lower()]
    if len(found) == 1:
        return found[0]
    place = entry or Entry(key=what, value=None, text="", mark=file.request.document.root.mark)
    shown = "; ".join(coerce.shown(name) for name in (found or names)[:12])
    why = (
        f"{len(names)} of them could be meant: {shown}"
        if wanted is None
        else f"{len(found)} have {coerce.shown(wanted)} in their name; there is {shown}"
    )
    file.say(
        place, "ambiguous-cell" if found or wanted is None else "unknown-cell", why, f"say which: sweep={names[0]}"
    )
    return None


def number_of_nodes(file: File, told: str | None) -> tuple[int, Entry | None]:
    """How many nodes there are: as overridden, as the file tells somewhere, or as many as one can go on with."""
    wanted = file.selected.get("nodes") or told
    if wanted is not None:
        try:
            return coerce.count(wanted), Entry(key="nnodes", value=wanted, text=wanted)
        except ValueError as error:
            file.problems.append(
                Problem(severity="error", code="bad-value", path="nnodes", why=str(error), fix="give nnodes=2")
            )
            return 1, None
    severity: Severity = "error" if NEEDS[file.request.action].cluster else "warning"
    why = "CVS counts the nodes of its cluster file; here they are said: 2 are assumed"
    file.problems.append(
        Problem(severity=severity, code="missing-key", path="nnodes", why=why, fix="give nnodes=… on the command line")
    )
    return 2, None


def overrides_for(pairs: Mapping[str, object]) -> list[Override]:
    """Values as they are handed on to another dialect's reader."""
    return [Override(key=key, text=coerce.text(value)) for key, value in pairs.items() if value is not None]
