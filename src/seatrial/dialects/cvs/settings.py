"""A CVS configuration's keys and their coerced values, overrides applied; everything wrong with them, collected.

Names are those of the dialect's table: `config.nnodes`, but `dtype` and `result_dict.…` for what stands in a cell.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from seatrial.dialects import placeholders
from seatrial.dialects.cvs.cells import Cell
from seatrial.dialects.cvs.table import Table
from seatrial.dialects.table import coerce
from seatrial.dialects.table.entries import Entry, Request
from seatrial.dialects.table.overrides import Override, did_you_mean, resolve
from seatrial.errors import InputError, Mark, Problem, Severity
from seatrial.source import Node
from seatrial.spec import NEEDS, Action


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`values` and `entries` by name; a value that is missing, unfilled or wrong is in `entries` at most."""

    table: Table
    cell: Cell | None
    entries: dict[str, Entry]
    known: dict[str, str]  # what placeholders in braces stand for
    values: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def section(self, name: str) -> dict[str, Entry]:
        """The user's own keys in a section, filled in as their values are; those that have rows of their own aside."""
        return {
            placeholders.fill(key.removeprefix(f"{name}."), self.known)[0]: self.entries[key]
            for key in self.values
            if key.startswith(f"{name}.") and key not in self.table.keys
        }

    def is_wrong(self, name: str) -> bool:
        """Whether a value is there and cannot be used."""
        return name in self.entries and name not in self.values

    def path(self, name: str) -> str:
        """A name as the path from the root of the file."""
        return name if name.startswith("config.") or self.cell is None else f"{self.cell.path}.{name}"

    def name(self, path: str) -> str:
        """The inverse of `path`."""
        return path if self.cell is None else path.removeprefix(f"{self.cell.path}.")


def gather(request: Request, cell: Cell | None, overrides: list[Override], table: Table) -> Settings:
    """Reads `config` and the cell by the table."""
    root = request.document.root
    entries = dict(_flatten(root.members.get("config"), "config", "config", table))
    if cell is not None:
        entries |= _flatten(cell.node, "", cell.path, table)
    known = placeholders.values_for(request.user, request.home)
    settings = Settings(table=table, cell=cell, entries=entries, known=known)
    _override(settings, overrides)
    _report_unfilled(settings, root, request.action)
    for name, entry in list(entries.items()):
        _read(settings, name, entry)
    for name, key in table.keys.items():
        if key.required and name not in entries and (cell is not None or name.startswith("config.")):
            settings.problems.append(_missing(settings, root, name))
    return settings


def _flatten(node: Node | None, name: str, key: str, table: Table) -> Iterator[tuple[str, Entry]]:
    """(name, entry) of every key, going down only where the table knows a group or a section."""
    for part, child in node.members.items() if node else ():
        if part.startswith("_"):
            continue
        below = f"{name}.{part}" if name else part
        if isinstance(child.value, dict) and (below in table.groups or below in table.sections):
            yield from _flatten(child, below, f"{key}.{part}", table)
        else:
            yield below, Entry.of(f"{key}.{part}", child)


def _override(settings: Settings, overrides: list[Override]) -> None:
    """Puts each override in the place of what it names; keys of the table may be added to what the file has."""
    given = [entry.key for entry in settings.entries.values()]
    possible = [settings.path(name) for name in settings.table.keys if settings.cell or name.startswith("config.")]
    sections = [settings.path(name) for name in settings.table.sections]
    for override in overrides:
        try:
            path = resolve(override, given=given, possible=possible, open_=sections)
        except InputError as error:
            settings.problems.extend(error.problems)
            continue
        settings.entries[settings.name(path)] = Entry(key=path, value=_list_or_text(override.text), text=override.text)


def _list_or_text(text: str) -> Any:
    try:
        return json.loads(text) if text.startswith("[") else text
    except ValueError:
        return text


def _read(settings: Settings, name: str, entry: Entry) -> None:
    """One value by its row of the table: placeholders filled, coerced; or what is wrong with it."""
    table = settings.table
    key = table.find(name)
    if key is None:
        if name in table.groups or name in table.sections:
            finding = entry.problem("error", "bad-value", "a mapping belongs here", "write { … }")
        else:
            why = f"{table.title} have no such key"
            finding = entry.key_problem("error", "unknown-key", why, did_you_mean(name, table.keys))
        settings.problems.append(finding)
        return
    if placeholders.is_unfilled(entry.value) or placeholders.is_unfilled(name):
        return
    value, strange = placeholders.fill(entry.value, settings.known)
    strange += placeholders.fill(name, settings.known)[1]
    if strange:
        why = (
            f"nobody knows what {{{strange[0]}}} stands for; known are {', '.join(f'{{{n}}}' for n in settings.known)}"
        )
        severity: Severity = "error" if key.to else "warning"
        settings.problems.append(entry.problem(severity, "unknown-placeholder", why, "write the value itself"))
        return
    settings.entries[name] = replace(entry, value=value)
    try:
        settings.values[name] = key.read(value)
    except ValueError as error:
        settings.problems.append(
            entry.problem("error", "bad-value", str(error), f"correct it here, or give {name}=… on the command line")
        )
        return
    if key.disposition == "rejected" and settings.values[name] not in key.quiet:
        accepted = " or ".join(coerce.shown(value) for value in key.quiet)
        fix = f"make it {accepted}, or remove it" if accepted else "remove it"
        settings.problems.append(entry.problem("error", "cannot-be-obeyed", key.why, fix))


def _missing(settings: Settings, root: Node, name: str) -> Problem:
    parent = root.members.get("config") if name.startswith("config.") else settings.cell and settings.cell.node
    return Problem(
        severity="error", code="missing-key", path=settings.path(name), why="the run needs it, and nothing gives it",
        fix=f"add it to the file, or give {name}=… on the command line", mark=parent.mark if parent else root.mark,
    )  # fmt: skip


# --- <changeme> -------------------------------------------------------------------------------------------------------


def _report_unfilled(settings: Settings, root: Node, action: Action) -> None:
    """Every `<changeme>` of the file, once: an error only where the action needs the value."""
    names = {entry.key: name for name, entry in settings.entries.items()}
    overridden = {entry.key: entry for entry in settings.entries.values() if entry.is_override}
    places: list[tuple[tuple[str, ...], str, Mark | None]] = [
        (path, ".".join(path), node.mark)
        for path, node in placeholders.unfilled(root)
        if ".".join(path) not in overridden
    ]
    places += [((key,), key, None) for key, entry in overridden.items() if placeholders.is_unfilled(entry.value)]
    for path, dotted, mark in places:
        name = names.get(dotted) or names.get(".".join(path[:-1]))  # else an item of a list
        severity, why = _need(settings, name, action)
        settings.problems.append(
            Problem(
                severity=severity, code="placeholder", path=dotted, mark=mark,
                why=f"it is still <changeme>{why}", fix=_how_to_fill(root, path, name),
            )
        )  # fmt: skip


def _need(settings: Settings, name: str | None, action: Action) -> tuple[Severity, str]:
    """How much an unfilled value matters, and why."""
    key = settings.table.find(name) if name else None
    if name is None or key is None:
        return "warning", ", in a part of the file that is not selected"
    if name in settings.table.derived:
        source = settings.entries.get(settings.table.derived[name])
        if source is None or placeholders.is_unfilled(source.value):
            return "warning", f"; it will follow from {settings.table.derived[name]}"
        return "info", f"; it follows from {settings.table.derived[name]}: {source.text}"
    if not key.to:
        return "warning", f", but has no effect anyway: {key.why}"
    if key.required:
        return "error", ", and nothing can run without it"
    if key.to == "distributed.coordinator_host" and settings.cell and settings.cell.topology == "single_node":
        return "info", "; the one node of this run is its own coordinator"
    if NEEDS[action].cluster:
        return "error", ", and a run on the cluster needs it"
    return "warning", f"; to {action} works without it"


def _how_to_fill(root: Node, path: tuple[str, ...], name: str | None) -> str:
    parent = root
    for part in path[:-1]:
        parent = parent.members.get(part, parent)
    example = parent.members.get(placeholders.EXAMPLE + path[-1])
    hint = f", for example {name or path[-1]}={example.text}" if example else ""
    return f"fill it in{f', or give {name}=… on the command line' if name else ''}{hint}"
