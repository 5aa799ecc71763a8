"""The keys of a MaxText configuration, wherever they are given, as MaxText reads them; and all that is wrong with them.

Files come first, then variables `M_<KEY>`, then the command's words, then Seatrial's own command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, Literal

from seatrial.dialects import jobs
from seatrial.dialects.containers import Around, around
from seatrial.dialects.maxtext import command as maxtext_command
from seatrial.dialects.maxtext.command import BASE
from seatrial.dialects.maxtext.environment import Variables, is_of_a_process, sort_variables
from seatrial.dialects.maxtext.keys import DEFAULTS, KEYS, OURS
from seatrial.dialects.maxtext.other_names import OF_OTHERS, REMOVED, RENAMED
from seatrial.dialects.maxtext.values import nothing
from seatrial.dialects.table import coerce
from seatrial.dialects.table import settings as table_settings
from seatrial.dialects.table.entries import NO_CHANGE, Entry, Request
from seatrial.dialects.table.keys import Key
from seatrial.errors import InputError, Mark, Problem
from seatrial.source import Node

Layer = Literal["file", "environment", "command"]
Given = Iterator[tuple[Layer, str, Entry]]

# Text that a shell, OmegaConf or a person was to replace.
_UNFILLED = re.compile(r"\$\{?[A-Za-z_]|\$\(|`|<[A-Za-z][\w -]*>")
_OPTIONS = {"model": "model_name"}  # what --model says
_MAY_BE_UNFILLED = {"run_name"}
_MODEL_IS_USED = "no change is needed: the model's name is used instead"


@dataclass(kw_only=True)
class Settings(table_settings.Settings):
    """The keys, and what is around them: variables, the trainer's name, the container of the command."""

    SYSTEM, VERSIONS, ENGINE = "MaxText", "maxtext", "maxtext"
    UNKNOWN = "MaxText has no such key, and refuses the configuration"

    layers: dict[str, Layer] = field(default_factory=dict)
    variables: Variables = field(default_factory=Variables)
    trainer: str = ""
    around: Around = field(default_factory=Around)
    job: Mapping[str, Entry] = field(default_factory=dict)  # the nodes and devices requested of Slurm, by spec path
    known_unfilled: set[str] = field(default_factory=set)  # keys with a variable that the shell text does not set
    of_fork: set[str] = field(default_factory=set)  # keys of its base.yml that no MaxText has which is known here

    def put(self, layer: Layer, name: str, entry: Entry) -> None:
        """Puts an entry, under its key's present name, in the place of what said the same before it."""
        if name in RENAMED:
            why, fix = f"MaxText calls it {RENAMED[name]} now", f"write {RENAMED[name]}"
            self.problems.append(entry.key_problem("warning", "renamed-key", why, fix))
            name = RENAMED[name]
        if self.layers.get(name) == "environment" and layer == "command":
            why = f"the variable M_{name.upper()} sets it too, and MaxText refuses a key that is set in both places"
            self.problems.append(entry.problem("error", "set-twice", why, "keep one of the two"))
        self.entries[name], self.layers[name] = entry, layer

    def is_filled(self, name: str, key: Key, entry: Entry) -> bool:
        """True if a value is there to be read; text with a placeholder in it may be one."""
        if not isinstance(entry.value, str) or not _UNFILLED.search(entry.value):
            return True
        why = f"{coerce.shown(entry.value)} is still to be filled in"
        try:
            key.read(entry.value)
        except ValueError:
            self.add(name, "error", "placeholder", why, f"fill it in, or give {name}=… on the command line")
            return False
        if name in self.known_unfilled:
            return True
        if name in _MAY_BE_UNFILLED:
            self.add(name, "info", "placeholder", why, _MODEL_IS_USED)
        elif key.to:
            why = f"{coerce.shown(entry.value)} looks like a placeholder; it is used as it is written"
            self.add(name, "warning", "placeholder", why, "write the value itself")
        return True

    def unknown(self, name: str, entry: Entry) -> Problem:
        """The finding for a key that the table does not have: removed ones have no effect, others are errors."""
        if name in REMOVED:
            known = self.version(name)
            since = f" since {known.gone}" if known and known.gone else ""
            why = f"MaxText no longer has it{since}, and refuses the configuration; it has no effect here"
            return entry.key_problem("warning", "removed-key", why, REMOVED[name])
        if name in self.of_fork:
            return entry.key_problem(*self.unknown_here(None))
        if name in OF_OTHERS:
            return entry.key_problem("error", "unknown-key", self.UNKNOWN, f"use {OF_OTHERS[name]}")
        return super().unknown(name, entry)

    def advice(self, name: str, key: Key, error: ValueError) -> str:
        """The fix for a value that a reader refused: the error's own, or MaxText's default."""
        default = key.shown or DEFAULTS.get(name)
        fix = "correct it" if default is None else f"correct it; MaxText's default is {coerce.shown(default)}"
        return getattr(error, "fix", fix)

    def is_quiet(self, key: Key, value: Any) -> bool:
        """True if a value is one of the quiet ones; nothing is as good as an empty text, and case does not count."""
        if key.disposition == "rejected":
            return value in key.quiet
        if nothing(value) or value == "":
            return None in key.quiet or "" in key.quiet
        return any(value == each or str(value).lower() == str(each).lower() for each in key.quiet)


def gather(request: Request) -> Settings:
    """Everything that is said, read by the table."""
    document = request.document
    root, found = document.root, document.problems
    unset = {problem.path for problem in found if problem.code == "unknown-variable"}
    settings = Settings(
        keys=KEYS, action=request.action, engine=request.engine, file=document.file, known_unfilled=unset
    )
    words = _command(settings, root) if "argv" in root.members else None
    folder = Path(document.file).parent
    if words:
        files, problems = maxtext_command.read_files(folder, words.config, "(configuration file)")
    else:
        files, problems = maxtext_command.read_files(folder, root.members.get("base_config"), "base_config")
        files.append(list(maxtext_command.entries(root)))
    settings.problems[:0] = [*(_soften(problem) for problem in found if not is_of_a_process(problem)), *problems]
    files = [list(_without_keys_of_fork(settings, file)) for file in files]
    given: list[tuple[Layer, str, Entry]] = [("file", name, entry) for file in files for name, entry in file]
    given += [("environment", name, entry) for name, entry in settings.variables.keys]
    if words:
        given += _from_words(settings, words, is_ours=document.file == maxtext_command.COMMAND_LINE)
    given += _overrides(settings, request)
    settings.problems += settings.variables.problems
    for layer, name, entry in given:
        settings.put(layer, name, entry)
    for name, entry in settings.entries.items():
        settings.take(name, entry)
    settings.report_versions()
    if words:
        _say_defaults(settings, root, words)
    return settings


def _without_keys_of_fork(settings: Settings, file: maxtext_command.File) -> maxtext_command.File:
    """A file without the defaults of keys that only this MaxText has: those of a base.yml that is its own."""
    own = {name: entry for name, entry in file if PurePath(entry.key_mark.file if entry.key_mark else "").name == BASE
           and settings.row(name) is None and settings.version(name) is None
           and name not in {*REMOVED, *RENAMED}}  # fmt: skip
    if own:
        settings.of_fork |= own.keys()
        first, *others = own
        also = f" (nor {table_settings.listed(others)})" if others else ""
        why = f"no MaxText that is known here has it{also}; this base.yml has, and its default has no effect here"
        settings.problems.append(own[first].key_problem("info", "key-of-fork", why, NO_CHANGE))
    return [(name, entry) for name, entry in file if name not in own]


def _command(settings: Settings, root: Node) -> maxtext_command.Words:
    """Takes a command apart: the container around it, its variables and its words."""
    argv = root.members["argv"].items
    settings.around, settings.job = around(argv), jobs.requested(argv)
    words = maxtext_command.split(argv[settings.around.behind :])
    settings.trainer = words.trainer
    settings.variables = sort_variables(root.members.get("environment"))
    settings.problems += (*settings.around.problems, *words.problems)
    return words


def _soften(problem: Problem) -> Problem:
    """A note instead of an error about what a shell text leaves open where nothing depends on it."""
    is_minor = problem.code == "unknown-variable" and problem.path in _MAY_BE_UNFILLED
    return replace(problem, severity="info", fix=_MODEL_IS_USED) if is_minor else problem


def _from_words(settings: Settings, words: maxtext_command.Words, *, is_ours: bool) -> Given:
    """The words `key=value` of a command; `is_ours`: it is Seatrial's own command line."""
    seen: set[str] = set()
    for name, word in words.assignments:
        try:
            entry = maxtext_command.entry_of(name, str(word.value).partition("=")[2], word)
        except InputError as error:
            settings.problems.extend(error.problems)
            continue
        if is_ours:
            entry = replace(entry, mark=None, key_mark=None)
        elif name in OURS:
            why = "MaxText has no such key, and refuses the command; it is Seatrial's own"
            fix = f"give it on Seatrial's command line, after the file: {name}={entry.text}"
            settings.problems.append(entry.problem("error", "wrong-place", why, fix))
            continue
        if name in seen:
            why = "it is given twice; MaxText silently uses the last one"
            settings.problems.append(entry.key_problem("warning", "duplicate-key", why, "keep one of the two"))
        seen.add(name)
        yield "command", name, entry


def _overrides(settings: Settings, request: Request) -> Given:
    for override in request.overrides:
        name = _OPTIONS.get(override.key, override.key)
        try:
            yield "command", name, replace(maxtext_command.entry_of(name, override.text), mark=None)
        except InputError as error:
            settings.problems.extend(error.problems)


def _say_defaults(settings: Settings, root: Node, words: maxtext_command.Words) -> None:
    """Adds a note about whose defaults hold for keys that are not given."""
    config = words.config
    mark: Mark | None = root.mark
    if not root.members["argv"].value:
        path, code = "(command)", "no-command"
        why = "there are only variables here, and no command that starts MaxText: its defaults hold for the rest"
    elif config is not None and Path(str(config.value)).name == BASE:
        path, code = str(config.value), "maxtext-defaults"
        mark = None if config.mark.file == maxtext_command.COMMAND_LINE else config.mark
        why = "MaxText's own file is not read; the defaults of MaxText 0.2.5 hold for keys that are not given"
    else:
        return
    settings.problems.append(Problem(severity="info", code=code, path=path, why=why, fix=NO_CHANGE, mark=mark))
