"""An NxDT file's values by key: overrides applied, interpolations resolved, old spellings made new, coerced.

As in Hydra, overrides come before interpolation: trainer.max_steps=100 moves `${trainer.max_steps}` too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from seatrial import source
from seatrial.command import is_secret
from seatrial.dialects import placeholders
from seatrial.dialects.nxdt.interpolation import Interpolation, escaped
from seatrial.dialects.table import coerce
from seatrial.dialects.table import settings as table_settings
from seatrial.dialects.table.entries import Entry, Request, is_within
from seatrial.dialects.table.keys import Key
from seatrial.dialects.table.overrides import COMMAND_LINE, Override, put, resolve, value_node
from seatrial.dialects.table.suggestions import likeness, suggestions
from seatrial.dialects.table.versions import Versions
from seatrial.errors import InputError, Mark, Problem
from seatrial.source import Node
from seatrial.spec import NEEDS, Origin
from seatrial.spec.presets import MODELS

ALLOW_ENV = "allow_env"  # allow_env=NAME,NAME: the variables that ${oc.env:NAME} may read
COMPILE_CACHE = "compiler_cache_url"
# What identifies the config.json of a Hugging Face model, or overrides it; a spec has the model itself.
OF_CONFIG = ("model.model_config", "model.rope_theta", "model.max_position_embeddings")
MISSING = "???"  # OmegaConf's word for a value that has to be given
# Sections to which users add keys of their own, for a data module or a model of their own; not what is in the second.
OWN, NOT_OWN = ("data", "model"), ("model.optim",)
ALIKE = 0.8  # how much of a user's own key has to be like a known one to be taken for that
# What is wrong with an interpolation alone, and with nothing else of the file.
UNRESOLVED = ("unknown-reference", "unknown-resolver", "environment-refused", "unknown-variable", "bad-interpolation")

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


@dataclass(kw_only=True)
class Settings(table_settings.Settings):
    """`values` and `entries` by the key's newest name; what is wrong, or still open, is in `entries` only."""

    SYSTEM, VERSIONS = "NxDT", "nxdt"
    UNKNOWN = "NxDT configurations have no such key"
    REJECTED = ""  # grouped by their reasons, in `findings.refused`

    nodes: dict[str, Node] = field(default_factory=dict)  # the mappings of the file, by path
    own: dict[str, Entry] = field(default_factory=dict)  # keys that are the user's own
    unresolved: set[str] = field(default_factory=set)  # keys whose interpolations have no value, as they may

    def has(self, prefix: str) -> bool:
        """True if the file has a key, or any key of a section, or an empty section."""
        return prefix in self.nodes or super().has(prefix)

    def place(self, name: str) -> tuple[str, Mark | None]:
        """The nearest section around a key."""
        around = name
        while around and around not in self.nodes:
            around = around.rpartition(".")[0]
        node = self.nodes[around]
        return name, None if node.mark is COMMAND_LINE else node.key_mark or node.mark

    def origin(self, name: str, note: str = "") -> Origin:
        """The origin of a key's value; for an interpolation, with that value as the note."""
        is_open = name in self.values and "${" in self.entries[name].text
        return super().origin(name, note or (f"= {self.values[name]}" if is_open else ""))

    def version(self, name: str) -> Versions | None:
        """The versions that have a key as it is written, which may be under an older name."""
        return super().version(self.entries[name].key if name in self.entries else name)

    def kept(self) -> dict[str, Any]:
        """The keys of the file that the spec does not hold, as they are to be written; secrets are left out."""
        found = dict(self.own)
        for name, value in self.values.items():
            key = self.keys[name]
            is_lost = key.disposition in ("ignored", "equivalent") or (name == COMPILE_CACHE and value is None)
            is_lost |= name in OF_CONFIG and self.get("model_source") == "hf" and self.get(OF_CONFIG[0]) not in MODELS
            if is_lost and key.effective is None:
                found[name] = self.entries[name]
        return {
            name: _public(entry.value) if name in self.unresolved else escaped(_public(entry.value))
            for name, entry in found.items()
            if not is_secret(name)
        }

    def is_filled(self, name: str, key: Key, entry: Entry) -> bool:
        """True if a value is there; text that is still to be filled in may be one, OmegaConf's ??? is not."""
        if placeholders.is_unfilled(entry.value) or entry.value == MISSING:
            needs = NEEDS[self.action]
            is_needed = needs.cluster and needs.device and key.disposition == "done"
            why = f"it is still {coerce.shown(entry.value).strip(chr(39))}"
            fix = f"fill it in, or give {name}=… on the command line"
            self.add(name, "error" if is_needed else "warning", "placeholder", why, fix)
        return bool(entry.value != MISSING)


def gather(request: Request, keys: Mapping[str, Key]) -> Settings:
    """Reads a file by the table of keys."""
    settings = Settings(keys=keys, action=request.action, file=request.document.file)
    problems = settings.problems
    problems += request.document.problems
    root, allowed = _override(request.document.root, request.overrides, keys, problems)
    interpolation = Interpolation(root, {name: os.environ.get(name) for name in allowed})
    root = interpolation.resolve()
    settings.nodes[""] = root
    entries: dict[str, Entry] = {}
    for entry in _entries(settings, root):
        _keep(settings, entries, entry)
    _take(settings, entries, interpolation)
    for name, key in keys.items():
        if key.required:
            settings.missing(name)
    settings.report_versions()
    return settings


def _take(settings: Settings, entries: Mapping[str, Entry], interpolation: Interpolation) -> None:
    """Reads the entries; interpolations without a value are problems, but for those of keys that nothing reads."""
    broken = {".".join(path) for path in interpolation.broken}
    unread = {path for path in broken if not _is_read(settings, path)}
    is_needed = broken != unread
    settings.problems += [
        replace(p, mark=None) if p.mark is COMMAND_LINE else p
        for p in interpolation.problems
        if is_needed or p.path not in unread or p.code not in UNRESOLVED
    ]
    for name, entry in entries.items():
        below = {path for path in broken if is_within(path, entry.key)}
        if not below:
            settings.take(name, entry)
            continue
        settings.entries[name] = entry
        if below <= unread:
            settings.values[name] = entry.text
            settings.unresolved.add(name)
    settings.unresolved |= {name for name in settings.own if any(is_within(path, name) for path in unread)}


def _public(value: Any) -> Any:
    """A value without what is a secret by its name."""
    if isinstance(value, dict):
        return {name: _public(child) for name, child in value.items() if not is_secret(str(name))}
    return [_public(child) for child in value] if isinstance(value, list) else value


def _is_read(settings: Settings, path: str) -> bool:
    """True if anything depends on the value at a path of the file: not on that of an ignored key, or a user's own."""
    parts = path.split(".")
    for end in range(1, len(parts) + 1):
        name = canonical(".".join(parts[:end]))
        key = settings.keys.get(name)
        if key or name in settings.own:
            return key is not None and (key.disposition != "ignored" or key.effective is not None)
    return True


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
            name = resolve(wanted, given=given, possible=keys, open_=OWN)
            leaf = value_node(override, is_json=False)
        except InputError as error:
            problems.extend(error.problems)
            continue
        same = {canonical(known): path for known, path in given.items()}
        path = given.get(name) or same.get(canonical(name)) or tuple(name.split("."))
        root = put(root, path, leaf)
    return root, allowed


def _entries(settings: Settings, root: Node) -> Iterator[Entry]:
    """Every value that stands at a key of the table, in the order of the file; what stands elsewhere is a problem."""
    groups = {name[:at] for name in settings.keys for at, character in enumerate(name) if character == "."}
    waiting = [(key, node) for key, node in reversed(root.members.items())]
    while waiting:
        name, node = waiting.pop()
        if name in settings.keys:
            entry = Entry.of(name, node)
            yield replace(entry, mark=None) if node.mark is COMMAND_LINE else entry
        elif name in groups and isinstance(node.value, dict):
            settings.nodes[name] = settings.nodes[canonical(name + ".")[:-1]] = node
            waiting += [(f"{name}.{key}", child) for key, child in reversed(node.value.items())]
        elif name in groups:
            settings.nodes[name] = node
            if node.value is not None:
                why = f"{coerce.shown(node.plain())} is given where a mapping is expected"
                fix = "write key: value below it"
                settings.problems.append(Entry.of(name, node).problem("error", "bad-value", why, fix))
        elif not name.rpartition(".")[2].startswith("_"):
            _unknown(settings, name, Entry.of(name, node))


def _unknown(settings: Settings, name: str, entry: Entry) -> None:
    """Takes a key without a row for the user's own where there may be one; what looks like a known key is reported."""
    is_own = name.startswith(tuple(f"{section}." for section in OWN))
    if not is_own or name.startswith(tuple(f"{section}." for section in NOT_OWN)):
        settings.problems.append(settings.unknown(name, entry))
        return
    known = tuple(settings.keys)
    meant = [path for path in suggestions(name, known) if likeness(name, path) >= ALIKE]
    if not meant:
        settings.own[name] = entry
        return
    is_typo = any(likeness(name, path) < 1 for path in meant)
    why = "NxDT has no such key here, so it is read by nothing but code of your own"
    fix = f"did you mean {' or '.join(meant)}?"
    settings.problems.append(entry.key_problem("error" if is_typo else "warning", "unknown-key", why, fix))


def _keep(settings: Settings, entries: dict[str, Entry], entry: Entry) -> None:
    """Keeps an entry under its newest name; two spellings of one key are an error unless one is an override."""
    name = canonical(entry.key)
    other = entries.get(name)
    if other is None or other.is_override or entry.is_override:
        entries[name] = other if other is not None and other.is_override else entry
        return
    where = f" ({other.mark})" if other.mark else ""
    why = f"it is another spelling of {other.key}{where}, which is given too"
    settings.problems.append(entry.key_problem("error", "duplicate-key", why, "keep one of the two"))
