"""A CVS configuration's keys and their values, of one of its cells, overrides applied; everything wrong, collected.

Names are those of the dialect's table: `config.nnodes`, but `dtype` and `result_dict.…` for what stands in a cell.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from seatrial.dialects import placeholders
from seatrial.dialects.cvs.table import MAY_BE_EMPTY, Table
from seatrial.dialects.detection import installed_gpu
from seatrial.dialects.table import settings as table_settings
from seatrial.dialects.table.entries import Entry, Request
from seatrial.dialects.table.keys import Key
from seatrial.dialects.table.overrides import Override, resolve
from seatrial.dialects.table.suggestions import did_you_mean
from seatrial.errors import InputError, Mark, Problem, Severity
from seatrial.estimate import hardware
from seatrial.source import Node
from seatrial.spec import NEEDS, Origin

TOPOLOGIES = ("single_node", "multi_node")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One model on one GPU in one topology; the marks are those of their names."""

    topology: str
    model: str
    gpu: str
    node: Node
    model_mark: Mark | None
    gpu_mark: Mark | None

    @property
    def path(self) -> str:
        return f"model_params.{self.topology}.{self.model}.{self.gpu}"

    def __str__(self) -> str:
        return f"topology={self.topology} model={self.model} gpu={self.gpu}"


@dataclass(kw_only=True)
class Settings(table_settings.Settings):
    """Those of `config` and of one cell; a value that is missing, unfilled or wrong is in `entries` at most."""

    SYSTEM, VERSIONS = "CVS", "cvs"
    REJECTED = "cannot-be-obeyed"

    table: Table
    root: Node
    cell: Cell | None
    known: Mapping[str, str]  # what placeholders in braces stand for

    def is_override(self, name: str) -> bool:
        """True if a key's value is one of the command line."""
        return name in self.entries and self.entries[name].is_override

    def section(self, name: str) -> dict[str, Entry]:
        """The user's own keys in a section, filled in as their values are; those that have rows of their own aside."""
        return {
            placeholders.fill(key.removeprefix(f"{name}."), self.known)[0]: self.entries[key]
            for key in self.values
            if key.startswith(f"{name}.") and key not in self.keys
        }

    def path(self, name: str) -> str:
        """A name as the path from the root of the file."""
        return name if name.startswith("config.") or self.cell is None else f"{self.cell.path}.{name}"

    def name(self, path: str) -> str:
        """The inverse of `path`."""
        return path if self.cell is None else path.removeprefix(f"{self.cell.path}.")

    def place(self, name: str) -> tuple[str, Mark | None]:
        """(path, mark) of a finding about a key that is not given: in `config`, or in the cell."""
        parent = self.root.members.get("config") if name.startswith("config.") else self.cell and self.cell.node
        return self.path(name), (parent or self.root).mark

    def origin(self, name: str, note: str = "") -> Origin:
        """The origin of a key's value; CVS's defaults are those of a cell."""
        is_passed_on = name in self.entries and name not in self.table.defaults  # a key that only the engine reads
        if name in self.values or is_passed_on:
            return self.entries[name].origin(note)
        note = f"CVS's default{f'; {note}' if note else ''}"
        return Origin(kind="default", key=self.path(name), text=self.table.defaults[name], note=note)

    def unknown(self, name: str, entry: Entry) -> Problem:
        """The finding for a key that the table does not have, or for another value where a mapping belongs."""
        if self.table.is_open(name):
            return entry.problem("error", "bad-value", "a mapping belongs here", "write { … }")
        return entry.key_problem(
            "error", "unknown-key", f"{self.table.title} have no such key", did_you_mean(name, self.keys)
        )

    def is_filled(self, name: str, key: Key, entry: Entry) -> bool:
        """True if neither a name nor a value holds `<changeme>`, which is reported for the whole file, or braces."""
        if placeholders.is_unfilled(entry.value) or placeholders.is_unfilled(name):
            return False
        if entry.value == "" and name in MAY_BE_EMPTY:
            return False
        strange = placeholders.fill(entry.value, self.known)[1] + placeholders.fill(name, self.known)[1]
        if strange:
            known = ", ".join(f"{{{each}}}" for each in self.known)
            why = f"{{{strange[0]}}} is not a known placeholder; there is {known}"
            self.add(name, "error" if key.to else "warning", "unknown-placeholder", why, "write the value itself")
        return not strange

    def advice(self, name: str, key: Key, error: ValueError) -> str:
        """The fix for a value that a reader refused."""
        return f"correct it here, or give {name}=… on the command line"


def gather(request: Request, cell: Cell | None, overrides: list[Override], table: Table) -> Settings:
    """Reads `config` and the cell by the table."""
    root = request.document.root
    nodes = dict(placeholders.flat(root.members.get("config"), table.is_open, "config"))
    entries = {name: Entry.of(name, node) for name, node in nodes.items()}
    if cell is not None:
        nodes = dict(placeholders.flat(cell.node, table.is_open))
        entries |= {name: Entry.of(f"{cell.path}.{name}", node) for name, node in nodes.items()}
    settings = Settings(
        keys=table.keys, sections=table.sections, action=request.action, file=request.document.file, entries=entries,
        table=table, root=root, cell=cell, known=placeholders.values_for(request.user, request.home),
    )  # fmt: skip
    _override(settings, overrides)
    _report_unfilled(settings)
    for name, entry in list(entries.items()):
        settings.take(name, replace(entry, value=placeholders.fill(entry.value, settings.known)[0]))
    for name, key in table.keys.items():
        if key.required and (cell is not None or name.startswith("config.")):
            settings.missing(name)
    return settings


def _override(settings: Settings, overrides: list[Override]) -> None:
    """Puts each override in the place of what it names; keys of the table may be added to what the file has."""
    given = [entry.key for entry in settings.entries.values()]
    possible = [settings.path(name) for name in settings.keys if settings.cell or name.startswith("config.")]
    sections = [settings.path(name) for name in settings.sections]
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


# --- <changeme> -------------------------------------------------------------------------------------------------------


def _report_unfilled(settings: Settings) -> None:
    """Every `<changeme>` of the file, once: an error only where the action needs the value."""
    names = {entry.key: name for name, entry in settings.entries.items()}
    overridden = {entry.key: entry for entry in settings.entries.values() if entry.is_override}
    places: list[tuple[tuple[str, ...], str, Mark | None]] = [
        (path, ".".join(path), node.mark)
        for path, node in placeholders.unfilled(settings.root)
        if ".".join(path) not in overridden
    ]
    places += [((key,), key, None) for key, entry in overridden.items() if placeholders.is_unfilled(entry.value)]
    for path, dotted, mark in places:
        name = names.get(dotted) or names.get(".".join(path[:-1]))  # else an item of a list
        severity, why = _need(settings, name)
        settings.problems.append(
            Problem(
                severity=severity, code="placeholder", path=dotted, mark=mark,
                why=f"it is still <changeme>{why}", fix=_how_to_fill(settings.root, path, name),
            )
        )  # fmt: skip


def _need(settings: Settings, name: str | None) -> tuple[Severity, str]:
    """The severity of an unfilled value, and the reason."""
    key = settings.row(name) if name else None
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
    if NEEDS[settings.action].cluster:
        return "error", ", and a run on the cluster needs it"
    return "warning", f"; to {settings.action} works without it"


def _how_to_fill(root: Node, path: tuple[str, ...], name: str | None) -> str:
    parent = root
    for part in path[:-1]:
        parent = parent.members.get(part, parent)
    example = parent.members.get(placeholders.EXAMPLE + path[-1])
    hint = f", for example {name or path[-1]}={example.text}" if example else ""
    return f"fill it in{f', or give {name}=… on the command line' if name else ''}{hint}"


# --- model_params.<topology>.<model>.<gpu> ---------------------------------------------------------------------------


def cells(root: Node) -> list[Cell]:
    """Every cell of a file, in its order. Raises InputError where the levels are not what they should be."""
    found = []
    params = root.members["model_params"]
    for topology, models in placeholders.given(params).items():
        if topology not in TOPOLOGIES:
            raise _malformed(f"model_params.{topology}", models.key_mark, f"only {' and '.join(TOPOLOGIES)} stand here")
        for model, gpus in placeholders.given(models).items():
            for gpu, node in placeholders.given(gpus).items():
                if not isinstance(node.value, dict):
                    path = f"model_params.{topology}.{model}.{gpu}"
                    raise _malformed(path, node.mark, "under a GPU's name stands a mapping of parameters")
                marks = {"model_mark": gpus.key_mark, "gpu_mark": node.key_mark}
                found.append(Cell(topology=topology, model=model, gpu=gpu, node=node, **marks))
    if not found:
        why = "there is no model_params.<topology>.<model>.<gpu> in it"
        raise _malformed("model_params", params.mark, why)
    return found


def _malformed(path: str, mark: Mark | None, why: str) -> InputError:
    return InputError.single("malformed", path, why, "compare with an example: `seatrial init`", mark)


def select(found: list[Cell], wanted: dict[str, str], mark: Mark) -> tuple[Cell | None, Problem | None]:
    """The one cell that has everything that is wanted (topology, model, gpu), and what there is to say about it.

    Where only GPUs are left to choose from, this machine is asked which it has; nothing is ever chosen without a word.
    """
    left = _having(found, wanted)
    if len(left) == 1:
        return left[0], None
    if not left:
        asked = " ".join(f"{kind}={name}" for kind, name in wanted.items())
        why = f"no cell of the file has {asked}; there is: {'; '.join(map(str, found))}"
        return None, _finding("error", "unknown-cell", why, f"choose one that is there, for example {found[0]}", mark)
    if len({(cell.topology, cell.model) for cell in left}) == 1 and (gpu := installed_gpu()):
        detected = _having(left, {"gpu": gpu})
        if len(detected) == 1:
            why = f"this machine has {gpu}, so {detected[0]} is read"
            return detected[0], _finding("info", "gpu-detected", why, f"give gpu={detected[0].gpu} to be sure", mark)
    why = f"{len(left)} cells could be meant: {'; '.join(map(str, left))}"
    return None, _finding("error", "ambiguous-cell", why, f"say which, for example {left[0]}", mark)


def _finding(severity: Severity, code: str, why: str, fix: str, mark: Mark) -> Problem:
    return Problem(severity=severity, code=code, path="model_params", why=why, fix=fix, mark=mark)


def _having(found: list[Cell], wanted: dict[str, str]) -> list[Cell]:
    return [cell for cell in found if all(_same(kind, getattr(cell, kind), name) for kind, name in wanted.items())]


def _same(kind: str, name: str, wanted: str) -> bool:
    if name.lower() == wanted.lower():
        return True
    device = hardware.find(wanted) if kind == "gpu" else None
    return device is not None and hardware.find(name) == device
