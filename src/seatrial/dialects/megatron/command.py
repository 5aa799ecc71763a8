"""A Megatron command → its arguments, each with its entry, its launcher and variables; what is wrong is reported."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from seatrial.command import is_secret
from seatrial.dialects import jobs
from seatrial.dialects.containers import around
from seatrial.dialects.megatron.arguments import ARGUMENTS, LAUNCHER, flag, several, strategy
from seatrial.dialects.megatron.launchers import program, take_launcher, take_world
from seatrial.dialects.megatron.script import NETWORK, SCRIPTS, VARIABLES, arguments
from seatrial.dialects.megatron.settings import ALL, OURS, SET_BY_LAUNCHERS, TORCHRUN, Settings, groups, misspelt
from seatrial.dialects.table.entries import Entry, Request
from seatrial.dialects.table.overrides import Override
from seatrial.dialects.table.suggestions import did_you_mean, distance
from seatrial.dialects.table.versions import Versions, versions
from seatrial.errors import InputError, Severity
from seatrial.source import Node
from seatrial.source.programs import is_gpt_module

_WRITTEN = tuple(f"--{name}" for name in ALL)
_MANY = 3  # arguments from which their spelling can be told
_LONG_NAME = 8  # letters; a shorter name with two others may well be another
_HYPHENS = "-\u2010\u2011\u2012\u2013\u2014\u2212"
_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*(?:\[[@*]\])?\})")  # that stayed as it is written
_LOOKALIKES = {
    **dict.fromkeys(_HYPHENS[1:], "a hyphen"), **dict.fromkeys("\u00a0\u2009\u202f", "a space"),
    **dict.fromkeys("\u2018\u2019\u201c\u201d", "a quote"),
}  # fmt: skip


def settings(request: Request) -> Settings:
    """The settings of a command and its overrides. Raises InputError where it does not start Megatron."""
    members = request.document.root.members
    argv = members["argv"].items
    outside = around(argv)
    place = next((i for i in range(outside.behind, len(argv)) if _is_program(argv, i)), None)
    if place is None:
        why = "the command does not start pretrain_gpt.py, train_llama3.sh or train_llama2.sh"
        at, fix = members["argv"].mark, "give a command that starts one of them"
        raise InputError.single("unknown-program", request.document.file, why, fix, at)
    name = program(argv[place])
    script = name if name in SCRIPTS else ""
    options = VARIABLES if script else {f"{TORCHRUN}{option}": key for option, key in LAUNCHER.items()}
    found = Settings(
        keys={**ALL, **options, **OURS}, file=request.document.file, mark=argv[place].mark, script=script,
        around=outside, engine=request.engine, job=jobs.requested(argv[:place]),
    )  # fmt: skip
    stated = {name: Entry.of(name, node) for name, node in members["environment"].members.items()}
    if script:
        stated |= _assignments(found, argv[place + 1 :])
        _take_variables(found, stated | _overrides(found, request.overrides))
        return found
    take_launcher(found, argv[:place], request.document)
    _look_at_underscores(found, argv[place + 1 :])
    for option, values in groups(argv[place + 1 :]):
        _take_argument(found, option, values)
    for name, entry in _overrides(found, request.overrides).items():
        found.take(name, entry)
        if found.values.get(name) is False:
            del found.values[name], found.entries[name]
    take_world(found, stated)
    _take_environment(found, stated)
    found.report_ignored()
    found.report_versions()
    return found


def _is_program(argv: Sequence[Node], place: int) -> bool:
    words = [str(word.value) for word in argv[: place + 1]]
    return is_gpt_module(words, place) or program(argv[place]) in ("pretrain_gpt.py", *SCRIPTS)


# --- words as argparse takes them -------------------------------------------------------------------------------------


def _take_argument(found: Settings, option: Node | None, values: Sequence[Node]) -> None:
    """Takes one argument with its values; words that are left over are stray."""
    if option is None:
        _stray(found, values)
        return
    written, equals, value = str(option.value).removeprefix("--").partition("=")
    name = _meant_by(found, written)
    key = ALL.get(name) if str(option.value).startswith("--") else None
    known = found.version(name) if str(option.value).startswith("--") else None
    if key is None and known is None and _is_of_a_fork(found, str(option.value).partition("=")[0]):
        found.of_forks.add(name)
        known = Versions(values="*", since="", gone="")
    if key is None and known is None:
        _unknown_argument(found, option)
        return
    if name in found.entries:
        why = f"it is given here and at {found.entries[name].key_mark}; only the last one counts"
        found.report(option, f"--{name}", "given-twice", why, "keep one of the two", "warning")
    is_flag = key.read is flag if key else known is not None and not known.values
    is_several = key.read in (several, strategy) if key else known is not None and known.values in ("*", "?")
    taken = 0 if equals or is_flag else len(values) if is_several else 1
    if taken > len(values):
        found.report(option, f"--{name}", "missing-value", "its value is missing", "write it after the argument")
        return
    texts = [value] if equals else [str(word.value) for word in values[:taken]]
    given: Any = texts if is_several else f"={value}" if is_flag and equals else next(iter(texts), None)
    mark = values[0].mark if taken else option.mark
    found.take(name, Entry(key=f"--{written}", value=given, text=" ".join(texts), mark=mark, key_mark=option.mark))
    _stray(found, values[taken:], option, has_value=bool(taken))


def _look_at_underscores(found: Settings, words: Sequence[Node]) -> None:
    """Notes whether all arguments of several words are spelled with underscores, as those of some forks are."""
    names = [str(word.value)[2:].partition("=")[0] for word in words if str(word.value).startswith("--")]
    several = [name for name in names if "-" in name or "_" in name]
    if len(several) < _MANY or any("-" in name or name in ALL for name in several):
        return
    found.has_underscores = True
    first = next(word for word in words if str(word.value).startswith("--") and "_" in str(word.value))
    why = f"all arguments are spelled with underscores, which {found.SYSTEM} itself refuses; they are read as its own"
    fix = "no change is needed for a fork that has them so; otherwise write them with hyphens"
    found.report(first, str(first.value).partition("=")[0], "underscores", why, fix, "warning")


def _meant_by(found: Settings, written: str) -> str:
    """The argument that is meant by a name as it is written."""
    name = written.replace("_", "-")
    return name if found.has_underscores and (name in ALL or name in versions("megatron")) else written


def _is_sound(word: str) -> bool:
    """True if a word has the form of an argument."""
    return re.fullmatch(r"--[A-Za-z][\w-]*", word) is not None


def _is_of_a_fork(found: Settings, word: str) -> bool:
    """True if an argument may be one that only the training program itself has, and Megatron-LM does not."""
    return found.engine == found.ENGINE and _is_sound(word) and not _is_misspelt(word)


def _is_misspelt(word: str) -> bool:
    """True if a name is a known argument with a typing error or two, and not one that an author chose."""
    name = word.lower().replace("_", "-").strip("-")
    most = 1 if len(name) < _LONG_NAME else 2
    known = (*ALL, *versions("megatron"))
    return any(abs(len(each) - len(name)) <= most and distance(name, each) <= most for each in known)


def _stray(found: Settings, words: Sequence[Node], option: Node | None = None, *, has_value: bool = False) -> None:
    """A finding about words that no argument takes, behind one that has taken what it takes."""
    if words and _VARIABLE.fullmatch(str(words[0].value)):
        why = "which arguments it holds is not known: this text assigns it nowhere"
        fix = "assign it here, or let a sandbox run the script: seatrial capture"
        found.report(words[0], str(words[0].value), "unknown-variable", why, fix)
    elif words and not str(words[0].value)[:1].isascii():
        _unknown_argument(found, words[0])
    elif words:
        before = f"{option.value} before it takes {'one value' if has_value else 'none'}" if option else ""
        why = f"{before or 'no argument precedes it'}, and pretrain_gpt.py takes no positional arguments"
        fix = "remove it, or add the argument that it belongs to"
        fix += '; values with blanks need quotes, and arrays of them "${ARGS[@]}"' if option and has_value else ""
        found.report(words[0], str(words[0].value), "stray-word", why, fix)


def _unknown_argument(found: Settings, node: Node) -> None:
    word = str(node.value)
    is_argument = word.startswith("--")
    name = word.partition("=")[0] if is_argument else word
    odd = next((character for character in name if character in _LOOKALIKES), None)
    why = "pretrain_gpt.py has no such argument" if is_argument else "arguments begin with two hyphens"
    why = f"U+{ord(odd):04X} only looks like {_LOOKALIKES[odd]}" if odd else why
    fix = did_you_mean(f"--{name.lstrip(_HYPHENS)}", _WRITTEN)
    if not odd and _is_sound(name) and not _is_misspelt(name):
        why = "no pretrain_gpt.py that is known here has such an argument"
        fix += f"; if this one has it, run it with --engine {found.ENGINE}"
    found.report(node, name, "unknown-argument", why, fix)


# --- overrides --------------------------------------------------------------------------------------------------------


def _overrides(found: Settings, overrides: Sequence[Override]) -> dict[str, Entry]:
    """The settings that are overridden, by name; those that only an override can say are kept at once."""
    entries = {}
    for override in overrides:
        entry = Entry(key=override.key, value=override.text, text=override.text)
        name = _meant(found.script, override.key)
        if name in OURS:
            found.take(name, entry)
        elif name:
            entries[name] = entry
        else:
            known = [*VARIABLES, *ARGUMENTS] if found.script else [*ALL, *LAUNCHER]
            known = [*VARIABLES, *known] if override.key.isupper() else known
            why, fix = "the command has no setting of this name", did_you_mean(entry.key, known)
            found.problems.append(entry.problem("error", "unknown-override", why, fix))
    return entries


def _meant(script: str, key: str) -> str:
    """The name of a setting as overrides give it: `TP`, `train-iters`, `--train_iters`, `nnodes`; else nothing."""
    name = key.removeprefix("--").replace("_", "-")
    if key in OURS:
        return key
    if script:
        return key.upper() if key.upper() in VARIABLES else ""
    option = name.replace("-", "_")
    return name if name in ALL or name in versions("megatron") else f"{TORCHRUN}{option}" if option in LAUNCHER else ""


def _take_environment(found: Settings, stated: Mapping[str, Entry]) -> None:
    """The variables that the processes get, without the script's own."""
    for name, entry in stated.items():
        if is_secret(name):
            why = "it looks like a secret, so it is neither stored nor passed on"
            found.problems.append(entry.key_problem("info", "secret", why, "put it into a file, and name that"))
        elif name not in SET_BY_LAUNCHERS:
            found.environment[name] = entry.text
    for name, fix in misspelt([name for name in found.environment if name not in NETWORK], NETWORK):
        why = "it reaches every process as it is, but looks misspelt"
        found.problems.append(stated[name].key_problem("warning", "misspelt-variable", why, fix))


# --- ROCm's scripts ---------------------------------------------------------------------------------------------------


def _assignments(found: Settings, words: Sequence[Node]) -> dict[str, Entry]:
    """The variables behind a script's name."""
    entries: dict[str, Entry] = {}
    was_stray = False
    for word in words:
        name, equals, value = str(word.value).partition("=")
        is_stray = not equals or not name.isidentifier()
        if not is_stray:
            entries[name] = Entry(key=name, value=value, text=value, mark=word.mark, key_mark=word.mark)
        elif not was_stray:  # of several in a row, the first
            why = f"only KEY=VALUE may follow {found.script}"
            found.report(word, str(word.value), "stray-word", why, "write it as KEY=VALUE, without spaces")
        was_stray = is_stray
    return entries


def _take_variables(found: Settings, entries: Mapping[str, Entry]) -> None:
    """The variables of a script, those behind its name before those of the environment."""
    others = {name: entry for name, entry in entries.items() if name not in VARIABLES}
    for name, entry in entries.items():
        if name in VARIABLES and (entry.text or name == "DATA_PATH"):  # else empty is the same as absent
            found.take(name, entry)
    unknown = [name for name in others if not (name in SET_BY_LAUNCHERS or is_secret(name))]
    for name, fix in misspelt(unknown, VARIABLES):
        severity: Severity = "error" if len(name) > 2 else "warning"  # CC is not CP, but looks like it
        why = f"{found.script} has no such variable, and would use its default"
        found.problems.append(others[name].key_problem(severity, "unknown-variable", why, fix))
    passed = [name for name, entry in entries.items() if name in others or (name in NETWORK and entry.text)]
    _take_environment(found, {name: entries[name] for name in passed})
    found.report_ignored()
    _derive_arguments(found, entries)


def _derive_arguments(found: Settings, entries: Mapping[str, Entry]) -> None:
    """The arguments that a script's variables come to, each with the entry of the variable that decides it."""
    for argument, value, variable in list(arguments(found.script, found.values)):
        found.values[argument], found.decided_by[argument] = value, variable
        found.entries.pop(argument, None)
        if variable in entries:
            found.entries[argument] = entries[variable]
