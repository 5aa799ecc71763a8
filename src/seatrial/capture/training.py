"""The trainings that a script started, each as a configuration: its command, its variables, and their lines."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from seatrial.capture import Captured
from seatrial.capture.record import Call
from seatrial.capture.sandbox import BASELINE
from seatrial.command import MASK, is_secret, masked_words, secret_words
from seatrial.source.programs import starts_training

# Set by schedulers and launchers for a process of a job, not by the script.
_OF_JOBS = re.compile(r"(SLURM|SLURMD|OMPI|PMI|PMIX|PMI2)_\w+|BASH_FUNC_.*")
_RANKS = frozenset(
    {"RANK", "NODE_RANK", "LOCAL_RANK", "GROUP_RANK", "MACHINE_RANK", "WORKER_ID", "CUDA_VISIBLE_DEVICES"}
)
# A variable without a default. Those of awk and of the shell itself are no matter of a script's caller.
_USED = re.compile(r"\$(?:\{(?P<braced>[A-Z][A-Z0-9_]{2,})\}|(?P<bare>[A-Z][A-Z0-9_]{2,})\b)", re.ASCII)
_NAMED = re.compile(r"(?<![\w${])[A-Z][A-Z0-9_]{2,}\b", re.ASCII)  # not used: set, read, looped over, passed on
_OF_SHELLS = frozenset({
    "BASH_SOURCE", "BASHPID", "BASH_VERSION", "COLUMNS", "EUID", "FUNCNAME", "HOSTTYPE", "LINENO", "LINES", "MACHTYPE",
    "OPTARG", "OPTIND", "OSTYPE", "PIPESTATUS", "PPID", "RANDOM", "REPLY", "SECONDS", "UID", "BASH_REMATCH",
    "FILENAME", "FNR", "OFS", "ORS", "IFS",
})  # fmt: skip
_MOST_NAMES = 8
_MIN_SECRET = 16  # letters of a secret that is looked for in other texts: shorter ones may be words
_RANK_OPTION = re.compile(r"--?(node|machine|local)[-_]rank(=.*)?")
_ASSIGNS = (
    r"(?:^|[\s;&|(])(?:(?:export|declare|typeset|local|readonly)(?:\s+-\w+)*\s+)?NAME="
    r"|(?:-e|--env|-x)[\s=]*NAME="
)


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training command behind its wrappers, with the place (file:line) of each word and of each variable.

    Neither words nor variables have the values of secrets; `hidden` are those that might stand in another text.
    """

    name: str
    argv: Sequence[str]
    at: Sequence[str]
    environment: Mapping[str, str]
    variables_at: Mapping[str, str]
    secrets: Sequence[str]
    hidden: Sequence[str] = field(repr=False)
    files: Mapping[str, str]  # that list machines, as the script left them
    call: Call


def trainings(captured: Captured) -> list[Training]:
    """The different trainings that a script started: one that only differs in its rank is the same."""
    by_number = {call.number: call for call in captured.calls}
    different: dict[tuple[Any, ...], Call] = {}
    for call in captured.calls:
        if call.kind in ("start", "wrapper") and not call.before and starts_training(call.argv):
            different.setdefault(_key(call), call)
    found = [_training(captured, call, by_number) for call in different.values()]
    return [_named(each, found) for each in found]


def _key(call: Call) -> tuple[Any, ...]:
    words, before = [], ""
    for word in call.argv:
        words.append("" if _RANK_OPTION.fullmatch(before) and "=" not in before else _RANK_OPTION.sub("", word))
        before = word
    return tuple(words), tuple(sorted((k, v) for k, v in _own(call).items() if k not in _RANKS))


def _own(call: Call) -> dict[str, str]:
    """The variables of a call that the script itself has set."""
    return {
        name: value for name, value in call.environment.items() if name not in BASELINE and not _OF_JOBS.fullmatch(name)
    }


def _training(captured: Captured, call: Call, by_number: Mapping[str, Call]) -> Training:
    chain = [call]
    while (above := by_number.get(chain[-1].parent)) and above not in chain:
        chain.append(above)
    words: list[str] = []
    at: list[str] = []
    for each in reversed(chain):
        own = each.before or each.argv
        place = _place(captured, each, chain)
        words += own
        at += _places(captured, own, place)
    variables = _own(call)
    files = {path: text for each in reversed(chain) for path, text in each.files.items()}
    secret = {name: value for each in chain for name, value in _own(each).items() if is_secret(name)}
    in_words = [(name, value) for _, name, value in secret_words(words) if value]
    hidden = _telling([*secret.values(), *(value for _, value in in_words)])
    shown = _variables(variables, hidden)
    secrets = sorted({name for name in variables if is_secret(name)} | {name for name, _ in in_words})
    return Training(
        name="", argv=_without(words, hidden), at=at, environment=shown, secrets=secrets, hidden=hidden, files=files,
        call=call,
        variables_at={name: _assigned(captured, name) or _place(captured, call, chain) for name in shown},
    )  # fmt: skip


def _telling(values: Iterable[str]) -> list[str]:
    """Of the values of secrets, longest first, those to look for in other texts: a short one may be a word."""
    found = {value for value in values if len(value) >= _MIN_SECRET and not value.startswith("/")}
    return sorted(found, key=len, reverse=True)


def _without(words: Sequence[str], hidden: Sequence[str]) -> list[str]:
    """The words of a command without secrets: those that a name shows, and the values that are hidden."""
    pattern = re.compile("|".join(map(re.escape, hidden)) or "(?!)")
    return [pattern.sub(MASK, word) for word in masked_words(words)]


def _variables(variables: Mapping[str, str], hidden: Sequence[str]) -> dict[str, str]:
    """The variables that are no secrets, without any in their values."""
    return {name: _without([value], hidden)[0] for name, value in variables.items() if not is_secret(name)}


def _place(captured: Captured, call: Call, chain: Sequence[Call]) -> str:
    """The line of a call; of one in a text (bash -c), that of the wrapper that has the text."""
    for each in chain[chain.index(call) :]:
        if each.file and each.line:
            return f"{_shown(captured, each.file, each.folder)}:{each.line}"
    return f"{captured.request.script}:1"


def _shown(captured: Captured, file: str, folder: str) -> str:
    """A script's path as a user would write it: from here, where it lies below."""
    path = Path(folder or "/") / file
    if not path.is_relative_to(captured.project):
        return file
    script = captured.request.script
    is_script = path.name == script.name and path.parent == script.absolute().parent
    return str(script) if is_script else _from_here(captured, path)


def _folder(captured: Captured, call: Call) -> str:
    """The folder in which a command was started, as a user would write it from here; "" for one outside the project."""
    if not Path(call.folder).is_relative_to(captured.project):
        return ""
    return _from_here(captured, Path(call.folder))


def _from_here(captured: Captured, path: Path) -> str:
    """A path of the project as the script's own is given: from here, or in full."""
    return str(path) if captured.request.script.is_absolute() else os.path.relpath(path)


def _places(captured: Captured, words: Sequence[str], start: str) -> Iterator[str]:
    """The line of each word: where an option is written once in the script, else where its command is."""
    lines = _lines(captured)
    place = start
    for word in words:
        if word.startswith("-"):
            found = lines.get(word.partition("=")[0], [])
            place = found[0] if len(found) == 1 else start
        yield place
        if not word.startswith("-"):
            place = start


def _lines(captured: Captured) -> dict[str, list[str]]:
    """The lines of each option in the script, as `file:line`."""
    found: dict[str, list[str]] = {}
    try:
        text = captured.request.script.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return found
    for number, line in enumerate(text.splitlines(), start=1):
        for match in re.finditer(r"(?<![\w-])--?[A-Za-z][\w-]*", line.partition(" #")[0]):
            found.setdefault(match[0], []).append(f"{captured.request.script}:{number}")
    return found


def _assigned(captured: Captured, name: str) -> str:
    """The line that gave a variable its value last."""
    pattern = re.compile(_ASSIGNS.replace("NAME", re.escape(name)))
    for step in reversed(captured.steps):
        if step.file and pattern.search(step.text):
            return f"{_shown(captured, step.file, step.folder)}:{step.line}"
    return ""


def _named(training: Training, others: Sequence[Training]) -> Training:
    """The training under a name: what tells it from the others."""
    mine = [*training.argv, *(f"{name}={value}" for name, value in training.environment.items())]
    theirs = [{*each.argv, *(f"{name}={value}" for name, value in each.environment.items())} for each in others]
    only = [
        f"{mine[at - 1]} {word}" if at and mine[at - 1].startswith("--") and "=" not in mine[at - 1] else word
        for at, word in enumerate(mine)
        if not all(word in each for each in theirs)
    ]
    return replace(training, name=", ".join(only[:3]))


def document(captured: Captured, training: Training) -> dict[str, Any]:
    """A training as the content of a configuration file, which `seatrial.source` reads. No secret's value is in it."""
    return {
        "captured": {
            "script": str(captured.request.script),
            "arguments": _without(captured.request.arguments, training.hidden),
            "folder": _folder(captured, training.call),
            "variables": _variables(captured.request.variables, training.hidden),
            "secrets": list(training.secrets),
            "assumed": list(assumed(captured)),
        },
        "environment": dict(training.environment),
        "argv": list(training.argv),
        **({"files": dict(training.files)} if training.files else {}),
        "origins": {"environment": dict(training.variables_at), "argv": list(training.at)},
    }


def _unset(captured: Captured) -> Iterator[tuple[str, str]]:
    """(name, place) of the variables that commands use and that nothing sets or names otherwise."""
    steps = {step.text: step for step in reversed(captured.steps) if step.file}  # of a loop's, the first
    named = {name for text in steps for name in _NAMED.findall(text)}
    known = {*BASELINE, *captured.request.variables, *_RANKS, *_OF_SHELLS, *named}
    for text, step in reversed(steps.items()):
        for match in _USED.finditer(text):
            name = match["braced"] or match["bare"]
            if name not in known and not _OF_JOBS.fullmatch(name):
                yield name, f"{_shown(captured, step.file, step.folder)}:{step.line}"


def assumed(captured: Captured) -> Iterator[str]:
    """The sandbox's assumptions, in words: answers about machines, variables that are not set, paths not here."""
    answers: dict[str, list[str]] = {}
    for call in captured.calls:
        if call.kind == "answer":
            answers.setdefault(call.argv[0], []).append(_place(captured, call, [call]))
    for name, places in answers.items():
        yield f"`{name}` was answered for a node of eight H100 at 10.0.0.1 ({', '.join(dict.fromkeys(places[:3]))})"
    unset = dict(_unset(captured))
    if unset:
        names, one = list(unset), len(unset) == 1
        shown = ", ".join(f"${name}" for name in names[:_MOST_NAMES])
        shown += f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        lines = ", ".join(dict.fromkeys(list(unset.values())[:3]))
        verbs = ("is", "was") if one else ("are", "were")
        yield f"{shown} {verbs[0]} not set, and {verbs[1]} empty ({lines}): NAME=value sets one"
    if captured.has_windows_lines:
        yield "lines end as on Windows, and were left so: last words have a carriage return, and sbatch refuses them"
    for each in captured.missing:
        yield f"{each.path} is not here, and was taken for {'an' if each.kind[0] in 'aeio' else 'a'} {each.kind}"
