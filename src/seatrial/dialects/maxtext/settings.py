"""What a MaxText configuration says, wherever it says it, as MaxText would take it; and all that is wrong with it.

Files come first, then variables `M_<KEY>`, then the command's words, then Seatrial's own command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from seatrial.command import is_secret
from seatrial.dialects.containers import Around, around
from seatrial.dialects.maxtext import command as maxtext_command
from seatrial.dialects.maxtext.environment import Variables, sort_variables
from seatrial.dialects.maxtext.keys import DEFAULTS, KEYS, OURS
from seatrial.dialects.maxtext.other_names import OF_OTHERS, REMOVED, RENAMED
from seatrial.dialects.maxtext.values import Unlisted
from seatrial.dialects.table import coerce
from seatrial.dialects.table.entries import Entry, Request
from seatrial.dialects.table.keys import Key
from seatrial.dialects.table.overrides import did_you_mean
from seatrial.errors import InputError, Problem, Severity
from seatrial.source import Node
from seatrial.spec import Origin

Layer = Literal["file", "environment", "command"]

# Text that a shell, OmegaConf or a person was to replace.
_UNFILLED = re.compile(r"\$\{?[A-Za-z_]|\$\(|`|<[A-Za-z][\w -]*>")
_NAMES = tuple(KEYS)
_OPTIONS = {"model": "model_name"}  # what --model says
_KINDLY = {"run_name"}  # what may stay unfilled
_SHOWN = {"attention": "autoselected", "mlp_activations": '["silu","linear"]'}  # defaults, as MaxText writes them


@dataclass(kw_only=True)
class Settings:
    """`values` and `entries` by key; a value that is missing or wrong is in `entries` at most."""

    entries: dict[str, Entry] = field(default_factory=dict)
    layers: dict[str, Layer] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    variables: Variables = field(default_factory=Variables)
    trainer: str = ""
    around: Around = field(default_factory=Around)
    problems: list[Problem] = field(default_factory=list)

    def get(self, name: str) -> Any:
        """The value of a key, or MaxText's default."""
        return self.values[name] if name in self.values else DEFAULTS[name]

    def origin(self, name: str, note: str = "") -> Origin:
        """Where the value of a key came from."""
        if name in self.values:
            return self.entries[name].origin(note)
        return Origin(kind="default", key=name, note=f"MaxText's default{f'; {note}' if note else ''}")

    def wrong(self, *names: str) -> bool:
        """Whether a value of some keys is there and cannot be used."""
        return any(name in self.entries and name not in self.values for name in names)

    def find(self, name: str, severity: Severity, code: str, why: str, fix: str) -> None:
        """Keeps a finding about a key, at its place if it has one."""
        entry = self.entries.get(name)
        if entry is not None:
            self.problems.append(entry.problem(severity, code, why, fix))
        else:
            self.problems.append(Problem(severity=severity, code=code, path=name, why=why, fix=fix))


def gather(request: Request) -> Settings:
    """Everything that is said, read by the table."""
    settings = Settings()
    root = request.document.root
    given: list[tuple[Layer, str, Entry]] = []
    chain = maxtext_command.Chain(folder=Path(request.document.file).parent)
    words = maxtext_command.Words()
    if "argv" in root.members:
        argv = root.members["argv"].value
        argv = argv if isinstance(argv, list) else []
        settings.around = around(argv)
        words = maxtext_command.split(argv[settings.around.behind :])
        settings.trainer = words.trainer
        settings.variables = sort_variables(root.members.get("environment"))
        settings.problems.extend((*settings.around.problems, *words.problems))
        if words.config is not None:
            chain.follow(str(words.config.value), words.config, key="(configuration file)")
        else:
            chain.ends_in_base = True
    else:
        base = root.members.get("base_config")
        if base is not None and isinstance(base.value, str):
            chain.follow(base.value, base, key="base_config")
        chain.files.append(list(maxtext_command.entries(root)))
    settings.problems[:0] = [*_soften(request.document.problems), *chain.problems]
    given += [("file", name, entry) for file in chain.files for name, entry in file]
    given += [("environment", name, entry) for name, entry in settings.variables.keys]
    is_ours = request.document.file == maxtext_command.COMMAND_LINE
    given += _from_words(settings, words.assignments, is_ours=is_ours)
    for override in request.overrides:
        try:
            name = _OPTIONS.get(override.key, override.key)
            entry = replace(maxtext_command.value_of(name, override.text), mark=None)
        except InputError as error:
            settings.problems.extend(error.problems)
            continue
        given.append(("command", name, entry))
    settings.problems.extend(settings.variables.problems)
    for layer, name, entry in given:
        _take(settings, layer, name, entry)
    told = {problem.path for problem in request.document.problems if problem.code == "unknown-variable"}
    for name, entry in settings.entries.items():
        _read(settings, name, entry, is_told=name in told)
    if "argv" in root.members:
        _say_defaults(settings, root, words)
    return settings


def _soften(problems: Iterable[Problem]) -> list[Problem]:
    """What a shell text leaves open is no more than worth a word where nothing depends on it."""
    return [
        replace(problem, severity="info", fix="nothing to do: the model's name stands in for it")
        if problem.code == "unknown-variable" and problem.path in _KINDLY
        else problem
        for problem in problems
    ]


def _from_words(
    settings: Settings, assignments: Iterable[tuple[str, Node]], *, is_ours: bool
) -> list[tuple[Layer, str, Entry]]:
    given: list[tuple[Layer, str, Entry]] = []
    seen: dict[str, Node] = {}
    for name, word in assignments:
        try:
            entry = maxtext_command.value_of(name, str(word.value).partition("=")[2], word)
        except InputError as error:
            settings.problems.extend(error.problems)
            continue
        if is_ours:
            entry = replace(entry, mark=None, key_mark=None)
        elif name in OURS:
            why = "MaxText has no such key, and refuses the command; it is Seatrial's own"
            fix = f"give it on Seatrial's command line, behind the file: {name}={entry.text}"
            settings.problems.append(entry.problem("error", "wrong-place", why, fix))
            continue
        if name in seen:
            why = "it stands here a second time; MaxText takes the last one, in silence"
            settings.problems.append(entry.key_problem("warning", "duplicate-key", why, "keep one of the two"))
        seen[name] = word
        given.append(("command", name, entry))
    return given


def _take(settings: Settings, layer: Layer, name: str, entry: Entry) -> None:
    """Puts an entry in the place of what said the same before it."""
    name = _present_name(settings, name, entry)
    before = settings.layers.get(name)
    if before == "environment" and layer == "command":
        why = f"the variable M_{name.upper()} sets it too, and MaxText refuses a key that is set in both places"
        settings.problems.append(entry.problem("error", "set-twice", why, "keep one of the two"))
    settings.entries[name], settings.layers[name] = entry, layer


def _present_name(settings: Settings, name: str, entry: Entry) -> str:
    """What MaxText calls a key today."""
    if name not in RENAMED:
        return name
    why = f"MaxText calls it {RENAMED[name]} now"
    settings.problems.append(entry.key_problem("warning", "renamed-key", why, f"write {RENAMED[name]}"))
    return RENAMED[name]


def _read(settings: Settings, name: str, entry: Entry, *, is_told: bool) -> None:
    """One value by its row of the table; `is_told`: whether it has been said that something in it is unfilled."""
    key = KEYS.get(name)
    if key is None:
        settings.problems.append(_unknown(name, entry))
        return
    unfilled = isinstance(entry.value, str) and _UNFILLED.search(entry.value) is not None
    try:
        value = key.read(entry.value)
    except ValueError as error:
        settings.problems.append(_bad_value(name, entry, error, unfilled=unfilled))
        return
    if unfilled and not is_told and name in _KINDLY:
        why = f"{coerce.shown(entry.value)} is still to be filled in"
        fix = "nothing to do: the model's name stands in for it"
        settings.problems.append(entry.problem("info", "placeholder", why, fix))
    elif unfilled and not is_told and key.to:
        why = f"{coerce.shown(entry.value)} looks as if something were to be filled in; it stays as it is written"
        settings.problems.append(entry.problem("warning", "placeholder", why, "write the value itself"))
    if key.disposition == "rejected" and value not in key.quiet:
        shown = "it" if is_secret(name) else coerce.shown(entry.value)
        why = f"{shown} cannot be obeyed: {key.why}"
        settings.problems.append(entry.problem("error", "not-supported", why, _without(key)))
        return
    settings.values[name] = value


def _without(key: Key) -> str:
    quiet = [value for value in key.quiet if value is not None]
    shown = coerce.shown(quiet[0]) if quiet else ""
    return f"remove it, or leave it at {shown}" if shown and shown != "a list" else "remove it"


def _bad_value(name: str, entry: Entry, error: ValueError, *, unfilled: bool) -> Problem:
    if unfilled:
        fix = f"fill it in, or give {name}=… on the command line"
        return entry.problem("error", "placeholder", f"{coerce.shown(entry.value)} is still to be filled in", fix)
    default = _SHOWN.get(name, DEFAULTS.get(name))
    fix = f"correct it; MaxText's default is {coerce.shown(default)}" if default is not None else "correct it"
    return entry.problem("error", "bad-value", str(error), error.fix if isinstance(error, Unlisted) else fix)


def _unknown(name: str, entry: Entry) -> Problem:
    if name in REMOVED:
        why = "MaxText knows it no more, and refuses the configuration; it has no effect here"
        return entry.key_problem("warning", "removed-key", why, REMOVED[name])
    if name in OF_OTHERS:
        why = "MaxText has no such key, and refuses the configuration"
        return entry.key_problem("error", "unknown-key", why, f"use {OF_OTHERS[name]}")
    why = "MaxText has no such key, and refuses the configuration"
    return entry.key_problem("error", "unknown-key", why, did_you_mean(name, _NAMES))


def _say_defaults(settings: Settings, root: Node, words: maxtext_command.Words) -> None:
    """Once, whose defaults hold for what is not said."""
    if not root.members["argv"].value:
        why = "variables alone stand here, and no command that starts MaxText: its defaults are taken for the rest"
        place = Problem(
            severity="info", code="no-command", path="(command)", why=why, fix="nothing to do", mark=root.mark
        )
        settings.problems.append(place)
    elif words.config is not None and Path(str(words.config.value)).name == maxtext_command.BASE:
        why = "MaxText's own file is not read; the defaults of MaxText 0.2.5 hold for what is not said here"
        place = Problem(
            severity="info", code="maxtext-defaults", path=str(words.config.value), why=why, fix="nothing to do",
            mark=None if words.config.mark.file == maxtext_command.COMMAND_LINE else words.config.mark,
        )  # fmt: skip
        settings.problems.append(place)
