"""An NxDT file's values by key: overrides applied, interpolations resolved, old spellings made new, coerced.

As in Hydra, overrides come before interpolation: trainer.max_steps=100 moves `${trainer.max_steps}` too.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from seatrial import source
from seatrial.dialects import placeholders
from seatrial.dialects.nxdt.interpolation import Interpolation, Path
from seatrial.dialects.nxdt.readers import fits
from seatrial.dialects.table import coerce
from seatrial.dialects.table.entries import Entry, Request
from seatrial.dialects.table.keys import Key
from seatrial.dialects.table.overrides import Override, did_you_mean, resolve
from seatrial.errors import InputError, Mark, Problem, Severity
from seatrial.source import Node
from seatrial.spec import NEEDS, Action

ALLOW_ENV = "allow_env"  # allow_env=NAME,NAME: the variables that ${oc.env:NAME} may read
MISSING = "???"  # OmegaConf's word for a value that has to be given
_COMMAND_LINE = Mark(file="command line", line=1, column=1)  # never shown: findings about overrides have no place

# Older spellings, and others of the same thing, by the beginning of the key; the first that fits.
_SAME = (
    ("data.alignment_strategy.", "model_alignment_strategy."),
    ("async_exec_max_inflight_requests", "aync_exec_max_inflight_requests"),
)
_LAST = {"dpo.max_dpo_prompt_length": "dpo.max_prompt_length", "orpo.max_dpo_prompt_length": "orpo.max_prompt_length"}


def canonical(name: str) -> str:
    """A key's name in the newest spelling."""
    for old, new in _SAME:
        if name.startswith(old):
            name = new + name[len(old) :]
    return next((name[: -len(old)] + new for old, new in _LAST.items() if name.endswith(f".{old}")), name)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`values` and `entries` by the key's newest name; what is wrong, or still open, is in `entries` only."""

    action: Action
    file: str
    entries: dict[str, Entry]
    sections: Mapping[str, Node]  # the mappings of the file, by path
    values: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a key; where the file does not give it, the default."""
        return self.values.get(name, default)

    def has(self, prefix: str) -> bool:
        """Whether the file has a key, or any key of a section."""
        inside = f"{prefix}."
        return (
            prefix in self.entries or prefix in self.sections or any(name.startswith(inside) for name in self.entries)
        )

    def add(self, name: str, severity: Severity, code: str, why: str, fix: str) -> None:
        """A finding about a key; where the file does not have it, about the nearest section around it."""
        entry = self.entries.get(name)
        if entry is not None:
            self.problems.append(entry.problem(severity, code, why, fix))
            return
        around = name
        while around and around not in self.sections:
            around = around.rpartition(".")[0]
        node = self.sections[around]
        mark = None if node.mark is _COMMAND_LINE else node.key_mark or node.mark
        self.problems.append(Problem(severity=severity, code=code, path=name, why=why, fix=fix, mark=mark))

    def missing(self, name: str, why: str = "the run needs it, and nothing gives it") -> None:
        """An error about a key that is not there, or null; none where something else is wrong with it."""
        if name not in self.entries or (name in self.values and self.values[name] is None):
            self.add(name, "error", "missing-key", why, f"add it, or give {name}=… on the command line")


def gather(request: Request, keys: Mapping[str, Key]) -> Settings:
    """Reads a file by the table of keys."""
    problems = list(request.document.problems)
    root, allowed = _override(request.document.root, request.overrides, keys, problems)
    interpolation = Interpolation(root, {name: os.environ.get(name) for name in allowed})
    root = interpolation.resolve()
    problems += [replace(p, mark=None) if p.mark is _COMMAND_LINE else p for p in interpolation.problems]
    groups = {name[:at] for name in keys for at, character in enumerate(name) if character == "."}
    sections: dict[str, Node] = {"": root}
    settings = Settings(
        action=request.action, file=request.document.file, entries={}, sections=sections, problems=problems
    )
    for entry in _entries(root, keys, groups, sections, problems):
        _take(settings, entry)
    broken = {".".join(path) for path in interpolation.broken}
    for name, entry in settings.entries.items():
        if not any(path == entry.key or path.startswith(f"{entry.key}.") for path in broken):
            _read(settings, name, entry, keys[name])
    for name, key in keys.items():
        if key.required:
            settings.missing(name)
    return settings


def _override(
    root: Node, overrides: Sequence[Override], keys: Mapping[str, Key], problems: list[Problem]
) -> tuple[Node, set[str]]:
    """The tree with the overrides in it, and the variables that may be read."""
    allowed: set[str] = set()
    given = {".".join(path): path for path, node in source.walk(root) if path and not isinstance(node.value, dict)}
    for override in overrides:
        key = override.key.lstrip("+")
        if key == ALLOW_ENV:
            allowed |= {name.strip() for name in override.text.split(",")}
            continue
        wanted = replace(override, key="model.model_config" if key == "model" else key)
        try:
            name = resolve(wanted, given=given, possible=keys, open_=())
            leaf = _leaf(override)
        except InputError as error:
            problems.extend(error.problems)
            continue
        same = {canonical(known): path for known, path in given.items()}
        path = given.get(name) or same.get(canonical(name)) or tuple(name.split("."))
        root = _put(root, path, leaf)
    return root, allowed


def _leaf(override: Override) -> Node:
    """An override's value, read as YAML, as Hydra nearly does."""
    if override.text[:1] in ("[", "{"):
        root = source.parse(override.text, file=f"the value of {override.key}", is_json=False).root
        return replace(root, mark=_COMMAND_LINE, text=override.text)
    try:
        return Node(value=source.core_scalar(override.text), text=override.text, mark=_COMMAND_LINE)
    except ValueError:
        return Node(value=override.text, text=override.text, mark=_COMMAND_LINE)


def _put(node: Node, path: Path, leaf: Node) -> Node:
    """The tree with a value in another's place, or added; sections that are missing are made."""
    if not path:
        return replace(leaf, key_mark=node.key_mark)
    if isinstance(node.value, list):
        items = [_put(item, path[1:], leaf) if str(at) == path[0] else item for at, item in enumerate(node.value)]
        return replace(node, value=items)
    child = node.members.get(path[0], Node(value={}, mark=_COMMAND_LINE))
    return replace(node, value={**node.members, path[0]: _put(child, path[1:], leaf)})


def _entries(
    root: Node, keys: Mapping[str, Key], groups: Collection[str], sections: dict[str, Node], problems: list[Problem]
) -> Iterator[Entry]:
    """Every value that stands at a key of the table, in the order of the file; what stands elsewhere is a problem."""
    waiting = [(key, node) for key, node in reversed(root.members.items())]
    while waiting:
        name, node = waiting.pop()
        if name in keys:
            entry = Entry.of(name, node)
            yield replace(entry, mark=None) if node.mark is _COMMAND_LINE else entry
        elif name in groups and isinstance(node.value, dict):
            sections[name] = sections[canonical(name + ".")[:-1]] = node
            waiting += [(f"{name}.{key}", child) for key, child in reversed(node.value.items())]
        elif name in groups:
            sections[name] = node
            if node.value is not None:
                why = f"{coerce.shown(node.plain())} stands here, where a mapping belongs"
                problems.append(Entry.of(name, node).problem("error", "bad-value", why, "write key: value below it"))
        elif not name.rpartition(".")[2].startswith("_"):
            why = "NxDT configurations have no such key"
            problems.append(Entry.of(name, node).key_problem("error", "unknown-key", why, did_you_mean(name, keys)))


def _take(settings: Settings, entry: Entry) -> None:
    """Keeps an entry under its newest name; two spellings of one key are an error unless one is an override."""
    name = canonical(entry.key)
    other = settings.entries.get(name)
    if other is None or other.is_override or entry.is_override:
        settings.entries[name] = other if other is not None and other.is_override else entry
        return
    where = f" ({other.mark})" if other.mark else ""
    settings.problems.append(
        entry.key_problem(
            "error", "duplicate-key", f"it is another spelling of {other.key}{where}, which is given too",
            "keep one of the two",
        )
    )  # fmt: skip


def _read(settings: Settings, name: str, entry: Entry, key: Key) -> None:
    """One value by its row of the table, or what is wrong with it."""
    if placeholders.is_unfilled(entry.value) or entry.value == MISSING:
        needs = NEEDS[settings.action]
        is_needed = needs.cluster and needs.device and key.disposition == "done"
        severity: Severity = "error" if is_needed else "warning"
        why = f"it is still {coerce.shown(entry.value).strip(chr(39))}"
        settings.problems.append(entry.problem(severity, "placeholder", why, f"fill it in, or give {name}=…"))
        if entry.value == MISSING:
            return
    try:
        settings.values[name] = key.read(entry.value)
    except ValueError as error:
        settings.problems.append(entry.problem("error", "bad-value", str(error), fits(key.read)))
