"""A Megatron command → the arguments that it states, by name, each with its entry; everything wrong with them noted."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from seatrial.command import is_secret
from seatrial.dialects.containers import Around, around
from seatrial.dialects.megatron.arguments import (
    ARGUMENTS,
    DEFAULTS,
    LAUNCHER,
    flag,
    from_zero,
    not_negative,
    several,
    share,
    strategy,
    window,
)
from seatrial.dialects.megatron.rest import REST
from seatrial.dialects.megatron.script import NETWORK, SCRIPTS, VARIABLES, arguments, switch
from seatrial.dialects.table import coerce
from seatrial.dialects.table.coerce import Reader
from seatrial.dialects.table.entries import Entry, Request
from seatrial.dialects.table.keys import Key
from seatrial.dialects.table.overrides import Override
from seatrial.dialects.table.suggestions import did_you_mean, distance
from seatrial.errors import InputError, Mark, Problem, Severity
from seatrial.source import Node

NAMED = "give one of the values that are named here"
ALL: Mapping[str, Key] = {**ARGUMENTS, **REST}
_WRITTEN, _OPTIONS = tuple(f"--{name}" for name in ALL), tuple(f"--{name}" for name in LAUNCHER)
_MOST_LOOKS = 200  # variables whose spelling is looked at
OURS = ("model", "topology.device")  # what only an override says: --model and --gpu

_NUMBER = re.compile(r"-\d+(\.\d*)?([eE][-+]?\d+)?|-\.\d+")
_LOOKALIKES = {
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "a hyphen"),
    **dict.fromkeys("\u00a0\u2009\u202f", "a blank"),
    **dict.fromkeys("\u2018\u2019\u201c\u201d", "a quote"),
}  # fmt: skip
# Names that the launcher sets for its processes; like secrets, they are not handed on.
_LAUNCHERS = frozenset(("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "NNODES"))


@dataclass
class Settings:
    """What a command states. `values`: argument (or, of torchrun, `torchrun.` and its option) → its value."""

    file: str
    mark: Mark  # of the command
    script: str = ""  # train_llama3.sh, where that is what is started
    values: dict[str, Any] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)  # of the script, as stated
    decided_by: dict[str, str] = field(default_factory=dict)  # argument → the variable that it comes from
    environment: dict[str, str] = field(default_factory=dict)
    around: Around = field(default_factory=Around)
    problems: list[Problem] = field(default_factory=list)
    is_broken: bool = False  # a value that decides something is wrong

    def __getitem__(self, name: str) -> Any:
        """An argument's value, or Megatron's default for it."""
        return self.values.get(name, DEFAULTS.get(name))

    def given(self, name: str) -> bool:
        """Whether an argument is there; of a flag, whether it is on."""
        return self.values.get(name) not in (None, False)

    def find(self, name: str, severity: Severity, code: str, why: str, fix: str) -> None:
        """A finding about an argument; about the command, where it is not there."""
        entry = self.entries.get(name)
        if entry is not None:
            self.problems.append(entry.problem(severity, code, why, fix))
        else:
            path = self.script or (name if name in OURS else f"--{name}")
            problem = Problem(severity=severity, code=code, path=path, why=why, fix=fix, mark=self.mark)
            self.problems.append(problem)
        self.is_broken = self.is_broken or severity == "error"

    def read(self, key: Key, entry: Entry, name: str) -> Any:
        """The value of an entry, or None where it is wrong."""
        try:
            value = key.read(entry.value)
        except ValueError as error:
            self.problems.append(entry.problem("error", "bad-value", str(error), _FITS.get(key.read, NAMED)))
            self.is_broken = True
            return None
        if key.disposition == "rejected" and not any(same(value, quiet) for quiet in key.quiet) and value is not False:
            self.problems.append(entry.problem("error", "not-supported", key.why, f"remove {name}"))
            self.is_broken = True
        return value


# What a reader takes, as advice; those that are not here name it where they refuse.
_FITS: Mapping[Reader, str] = {
    coerce.count: "give a whole number from 1 on", coerce.whole: "give a whole number", coerce.port: "give a port",
    coerce.positive: "give a number above 0", coerce.decimal: "give a number",
    from_zero: "give a whole number from 0 on", share: "give a number from 0 to 1",
    not_negative: "give a number from 0 on", switch: "give 0 or 1", window: "give two whole numbers, as 1023,0",
    flag: "write it alone to turn it on, and leave it out to turn it off",
}  # fmt: skip


def same(a: Any, b: Any) -> bool:
    """Whether two values are the same, as numbers where they are numbers."""
    try:
        return float(a) == float(b)
    except (TypeError, ValueError):
        return bool(a == b)


def settings(request: Request) -> Settings:
    """What a command and its overrides state. Raises InputError where it starts nothing of Megatron."""
    members = request.document.root.members
    argv = _items(members["argv"])
    words = [str(node.value) for node in argv]
    outside = around(argv)
    inside = range(outside.behind, len(words))
    program = next((i for i in inside if _is_program(words[i], words[i - 1] if i else "")), None)
    if program is None:
        why = "no word of the command is pretrain_gpt.py, train_llama3.sh or train_llama2.sh"
        at = members["argv"].mark
        raise InputError.single("unknown-program", request.document.file, why, "give the command that starts one", at)
    name = words[program].rpartition("/")[2]
    found = Settings(
        file=request.document.file, mark=argv[program].mark, script=name if name in SCRIPTS else "", around=outside
    )
    found.problems += (*request.document.problems, *outside.problems)
    stated = {name: Entry.of(name, node) for name, node in members["environment"].members.items()}
    if found.script:
        _take_variables(found, stated, argv[program + 1 :], request.overrides)
        return found
    _take_launcher(found, argv[:program], stated)
    _take_arguments(found, argv[program + 1 :])
    for override in request.overrides:
        _override_argument(found, override)
    _take_environment(found, stated)
    _without_effect(found)
    return found


def _items(node: Node) -> list[Node]:
    return node.value if isinstance(node.value, list) else []


def _is_program(word: str, before: str) -> bool:
    name = word.rpartition("/")[2]
    return name == "pretrain_gpt.py" or name in SCRIPTS or (before == "-m" and word.endswith("pretrain_gpt"))


# --- arguments --------------------------------------------------------------------------------------------------------


def _is_value(word: str) -> bool:
    """Whether argparse takes a word for a value, and not for an argument."""
    return not word.startswith("-") or bool(_NUMBER.fullmatch(word)) or word == "-"


def _take_arguments(found: Settings, words: Sequence[Node]) -> None:
    place = 0
    while place < len(words):
        node, text = words[place], str(words[place].value)
        place += 1
        if not text.startswith("--"):
            place = _stray(found, node, text, words, place)
            continue
        name, equals, value = text[2:].partition("=")
        behind = place
        while behind < len(words) and _is_value(str(words[behind].value)):
            behind += 1
        values = [value] if equals else [str(word.value) for word in words[place:behind]]
        key = ALL.get(name)
        if key is None:
            why = "pretrain_gpt.py has no such argument"
            _wrong(found, node, f"--{name}", "unknown-argument", _odd(name) or why, _nearest(name, _WRITTEN))
            place = behind
            continue
        if name in found.entries:
            first = found.entries[name].key_mark
            why = f"it is given here and at {first}, and only the last one counts"
            found.problems.append(
                Problem(severity="warning", code="given-twice", path=f"--{name}", why=why, fix="keep one of the two",
                        mark=node.mark)
            )  # fmt: skip
        mark = words[place].mark if not equals and values else node.mark
        if key.read in (several, strategy):
            entry = Entry(key=f"--{name}", value=values, text=" ".join(values), mark=mark, key_mark=node.mark)
            place = place if equals else behind
        elif key.read is flag:
            given = value if equals else None
            entry = Entry(key=f"--{name}", value=f"={given}" if equals else None, text=value, mark=node.mark)
        elif values:
            entry = Entry(key=f"--{name}", value=values[0], text=values[0], mark=mark, key_mark=node.mark)
            place += not equals
        else:
            _wrong(found, node, f"--{name}", "missing-value", "its value is missing", "write it behind the argument")
            continue
        _keep(found, name, key, replace(entry, key_mark=node.mark))


def _stray(found: Settings, node: Node, text: str, words: Sequence[Node], place: int) -> int:
    """Notes a word that no argument takes; the place behind it, and behind those that go with it."""
    if text.startswith("-") or not text[:1].isascii():
        why = _odd(text) or "arguments begin with two hyphens"
        _wrong(found, node, text, "unknown-argument", why, _nearest(text.lstrip("-\u2013\u2014\u2212"), _WRITTEN))
    else:
        why = "no argument stands before it, and pretrain_gpt.py takes no words of their own"
        _wrong(found, node, text, "stray-word", why, "remove it, or write the argument that it belongs to")
    while place < len(words) and _is_value(str(words[place].value)):
        place += 1
    return place


def _nearest(name: str, known: Collection[str]) -> str:
    return did_you_mean(f"--{name}", known)


def _odd(text: str) -> str:
    """What to say of a character that only looks like a hyphen, a quote or a blank; nothing, where there is none."""
    found = next((character for character in text if character in _LOOKALIKES), None)
    return f"U+{ord(found):04X} only looks like {_LOOKALIKES[found]}" if found else ""


def _keep(found: Settings, name: str, key: Key, entry: Entry) -> None:
    value = found.read(key, entry, entry.key)
    found.entries[name] = entry
    found.values[name] = value


def _wrong(found: Settings, node: Node, path: str, code: str, why: str, fix: str) -> None:
    found.problems.append(Problem(severity="error", code=code, path=path, why=why, fix=fix, mark=node.mark))
    found.is_broken = True


def _override_argument(found: Settings, override: Override) -> None:
    """`train-iters=5`, `--train_iters=5`, or one of torchrun's options."""
    entry = Entry(key=override.key, value=override.text, text=override.text)
    name = override.key.removeprefix("--").replace("_", "-")
    option = name.replace("-", "_")
    if override.key in OURS:
        found.values[override.key], found.entries[override.key] = override.text, entry
    elif name in ALL:
        _keep(found, name, ALL[name], entry)
        if ALL[name].read is flag and found.values[name] is False:
            del found.values[name], found.entries[name]
    elif option in LAUNCHER:
        _keep(found, f"torchrun.{option}", LAUNCHER[option], entry)
    else:
        known = [*ARGUMENTS, *LAUNCHER, *REST]
        _unknown_override(found, entry, [*VARIABLES, *known] if override.key.isupper() else known)


def _unknown_override(found: Settings, entry: Entry, known: Collection[str]) -> None:
    why = "the command has no setting of this name"
    found.problems.append(entry.problem("error", "unknown-override", why, did_you_mean(entry.key, known)))
    found.is_broken = True


# --- launchers --------------------------------------------------------------------------------------------------------

_SRUN = {
    "-N": "nnodes", "--nodes": "nnodes", "--ntasks-per-node": "nproc_per_node", "--gpus-per-node": "nproc_per_node",
}  # fmt: skip


def _take_launcher(found: Settings, words: Sequence[Node], stated: Mapping[str, Entry]) -> None:
    """The options of torchrun before the program; without it, those of srun that say how many processes there are."""
    texts = [str(word.value) for word in words]
    start = next(
        (i + 1 for i, text in enumerate(texts)
         if text.rpartition("/")[2] == "torchrun" or text in ("torch.distributed.launch", "torch.distributed.run")),
        None,
    )  # fmt: skip
    if start is None:
        for i, text in enumerate(texts):
            name, equals, value = text.partition("=")
            if name in _SRUN and "srun" in texts and (equals or i + 1 < len(texts)):
                node = words[i] if equals else words[i + 1]
                _keep_option(found, _SRUN[name], name, value if equals else texts[i + 1], node)
        return
    place = start
    while place < len(texts):
        text, node = texts[place], words[place]
        place += 1
        if not text.startswith("-"):
            continue  # an interpreter, a wrapper
        name, equals, value = text.lstrip("-").partition("=")
        option = "module" if text == "-m" else name.replace("-", "_")
        if option not in LAUNCHER:
            why, fix = "torchrun has no such option", _nearest(option, _OPTIONS)
            if name in ALL:
                why, fix = f"{why}: it is one of pretrain_gpt.py", "write it behind the program"
            _wrong(found, node, text.partition("=")[0], "unknown-argument", why, fix)
            place += place < len(texts) and _is_value(texts[place]) and not equals
        elif LAUNCHER[option].read is not flag:
            if not equals and place < len(texts):
                value, node, place = texts[place], words[place], place + 1
            _keep_option(found, option, f"--{name}", value, node)


def _keep_option(found: Settings, option: str, written: str, value: str, node: Node) -> None:
    entry = Entry(key=written, value=value, text=value, mark=node.mark, key_mark=node.mark)
    _keep(found, f"torchrun.{option}", LAUNCHER[option], entry)


def _take_environment(found: Settings, stated: Mapping[str, Entry]) -> None:
    looks = 0
    for name, entry in stated.items():
        if is_secret(name):
            found.problems.append(
                replace(entry, text="").key_problem(
                    "info", "secret", "it looks like a secret, so it is neither kept nor handed on",
                    "let a file hold it, and name that",
                )
            )  # fmt: skip
        elif name not in _LAUNCHERS:
            found.environment[name] = entry.text
            looks += name not in NETWORK
            if name not in NETWORK and looks <= _MOST_LOOKS and _is_misspelt(name, NETWORK):
                why, fix = "it reaches every process as it is, but looks misspelt", did_you_mean(name, NETWORK)
                found.problems.append(entry.key_problem("warning", "misspelt-variable", why, fix))


def _without_effect(found: Settings) -> None:
    """One finding for all arguments that have no effect for the same reason."""
    reasons: dict[str, list[Entry]] = {}
    for name, entry in found.entries.items():
        key = ALL.get(name) or VARIABLES.get(name)
        value = found.values[name]
        if key and key.disposition == "ignored" and value is not None and not any(same(value, q) for q in key.quiet):
            reasons.setdefault(key.why, []).append(entry)
    for why, entries in reasons.items():
        rest = f" (nor have {', '.join(entry.key for entry in entries[1:])})" if entries[1:] else ""
        found.problems.append(
            entries[0].key_problem("info", "no-effect", f"it has no effect{rest}: {why}", "nothing to do")
        )


# --- ROCm's scripts ---------------------------------------------------------------------------------------------------


def _take_variables(
    found: Settings, stated: Mapping[str, Entry], words: Sequence[Node], overrides: Sequence[Override]
) -> None:
    """The variables of a script, those behind it before those of the environment, and the arguments they come to."""
    entries = dict(stated)
    for before, word in zip([None, *words], words, strict=False):
        name, equals, value = str(word.value).partition("=")
        if not equals or not name.isidentifier():
            if before is None or "=" in str(before.value)[1:]:  # of several in a row, the first
                why = f"{found.script} takes nothing but KEY=VALUE behind its name"
                _wrong(found, word, str(word.value), "stray-word", why, "write it as KEY=VALUE, without blanks")
            continue
        entries[name] = Entry(key=name, value=value, text=value, mark=word.mark, key_mark=word.mark)
    for override in overrides:
        entry = Entry(key=override.key, value=override.text, text=override.text)
        if override.key in OURS:
            found.values[override.key], found.entries[override.key] = override.text, entry
        elif override.key.upper() in VARIABLES:
            entries[override.key.upper()] = entry
        else:
            _unknown_override(found, entry, [*VARIABLES, *ARGUMENTS])
    rest: dict[str, Entry] = {}
    for name, entry in entries.items():
        key = VARIABLES.get(name)
        if key is None:
            rest[name] = entry
            if len(rest) <= _MOST_LOOKS and _is_misspelt(name) and not (name in _LAUNCHERS or is_secret(name)):
                severity: Severity = "error" if len(name) > 2 else "warning"  # CC is not CP, but looks like it
                why = f"{found.script} has no such variable, and would go on with its own default"
                fix = did_you_mean(name, list(VARIABLES))
                found.problems.append(entry.key_problem(severity, "unknown-variable", why, fix))
                found.is_broken = found.is_broken or severity == "error"
            continue
        if entry.text == "" and name != "DATA_PATH":
            continue  # as the scripts have it, empty is the same as absent
        value = found.read(key, entry, name)
        found.entries[name], found.values[name] = entry, value
        if key.to.startswith("execution.environment."):
            rest[name] = entry
        elif value is not None:
            found.variables[name] = value
    _take_environment(found, rest)
    _without_effect(found)
    for argument, value, variable in arguments(found.script, found.variables):
        found.values[argument], found.decided_by[argument] = value, variable
        found.entries.pop(argument, None)
        if variable in entries:
            found.entries[argument] = entries[variable]


def is_handed_on(name: str) -> bool:
    """Whether a variable is one that reaches the processes as it stands."""
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None and not (is_secret(name) or name in _LAUNCHERS)


def _is_misspelt(name: str, known: Collection[str] = VARIABLES) -> bool:
    """Whether a variable that nobody reads is one wrong character away from one that is read."""
    return name.upper() in known or any(distance(name, other) == 1 for other in known)
