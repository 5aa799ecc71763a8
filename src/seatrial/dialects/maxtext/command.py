"""The command that starts MaxText: its words, the files that it reads one before the other, and its variables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from seatrial import source
from seatrial.command import is_secret
from seatrial.dialects.table.entries import Entry
from seatrial.errors import InputError, Problem
from seatrial.source import Node
from seatrial.source.programs import is_program

BASE = "base.yml"
COMMAND_LINE = "command line"  # the name of a document that is made of words
MAX_FILES = 8  # that read each other
MAX_WORDS = 1000  # of a command: more than MaxText has keys
GROUPS = ("dpo", "lora")  # mappings whose keys are keys of their own: dpo.algo

_PLAIN = re.compile(r"[A-Za-z0-9_./+-]+")
_OTHER_PROGRAMS = re.compile(
    r"decode|train_rl|train_distill|train_compile|train_tokenizer|maxengine|microbenchmark|vllm"
)


@dataclass(frozen=True, kw_only=True)
class Words:
    """A command's words: the configuration file, `key=value` by key, in order, and which trainer is started."""

    config: Node | None = None
    assignments: tuple[tuple[str, Node], ...] = ()
    trainer: str = ""
    problems: tuple[Problem, ...] = ()


def _problem(path: str, node: Node, code: str, why: str, fix: str) -> Problem:
    return Problem(severity="error", code=code, path=path, why=why, fix=fix, mark=node.mark)


def split(words: Sequence[Node]) -> Words:
    """The words of a command, sorted by what they are for. Those before the program only start it."""
    texts = [str(word.value) for word in words]
    programs = [i for i in range(len(texts)) if is_program(texts, i)]
    programs = programs or [i for i, text in enumerate(texts) if text.endswith(".py")]
    modules = [i + 1 for i, text in enumerate(texts[:-1]) if text == "-m"]
    start = next(iter(programs + modules), None)
    arguments = words[0 if start is None else start + 1 :]
    problems = []
    if start is not None and _OTHER_PROGRAMS.search(texts[start]):
        why = f"{texts[start]} does not train in a way that is supported here"
        problems.append(
            _problem("(command)", words[start], "other-program", why, "give the command that starts train.py")
        )
    if len(arguments) > MAX_WORDS:
        why, fix = f"there are {len(arguments)} words, more than MaxText has keys", f"give no more than {MAX_WORDS}"
        problems.append(_problem("(command)", arguments[MAX_WORDS], "too-large", why, fix))
    if start is not None and not arguments:
        why = f"{texts[start]} is given neither a configuration file nor key=value, so there is nothing to train"
        fix = f"give the whole command: {' '.join(texts)} base.yml model_name=…"
        problems.append(_problem("(command)", words[start], "nothing-asked", why, fix))
    return _sorted(arguments[:MAX_WORDS], "" if start is None else texts[start], problems)


def _sorted(arguments: Sequence[Node], trainer: str, problems: list[Problem]) -> Words:
    """The words behind the program: the configuration file, and `key=value`."""
    config: Node | None = None
    assignments = []
    for word in arguments:
        text = str(word.value)
        name, equals, _ = text.removeprefix("--").partition("=")
        if equals and name.strip():
            assignments.append((name.strip(), word))
        elif text.endswith((".yml", ".yaml")) and config is None:
            config = word
        else:
            why = "MaxText expects a configuration file and then key=value, and this is neither"
            fix = "write it as key=value, without blanks around the equals sign"
            problems.append(_problem(text, word, "bad-override", why, fix))
    return Words(config=config, assignments=tuple(assignments), trainer=trainer, problems=tuple(problems))


def entry_of(key: str, text: str, node: Node | None = None) -> Entry:
    """A value from a command line as MaxText reads it, which is as YAML. Raises InputError where it is none."""
    mark = node.mark if node else None
    try:
        if is_secret(key):
            value: Any = text  # not read at all, and no finding shows what is wrong with it
        elif text == "" or _PLAIN.fullmatch(text):
            value = source.core_scalar(text) if text else ""
        else:
            read = source.parse(text, file=key, is_json=False).root
            value = read.value if isinstance(read.value, str) else read.plain()
            text = value if isinstance(value, str) else text
    except ValueError:
        value = text
    except InputError as error:
        problem = error.problems[0]
        why = f"MaxText reads values as YAML, and {problem.why}"
        fix = f"""put it in quotes of YAML's own, within those of the shell: '{key}="…"'"""
        raise InputError.single("bad-value", key, why, fix, mark) from None
    return Entry(key=key, value=value, text=text, mark=mark, key_mark=mark)


def entries(root: Node) -> Iterator[tuple[str, Entry]]:
    """(key, entry) of everything that a YAML file says; those of a group, with the group's name before them."""
    for name, child in root.members.items():
        if name in GROUPS and child.members:
            yield from ((f"{name}.{part}", Entry.of(f"{name}.{part}", below)) for part, below in child.members.items())
        else:
            yield name, Entry.of(name, child)


File = list[tuple[str, Entry]]


def read_files(folder: Path, word: Node | None, key: str) -> tuple[list[File], list[Problem]]:
    """The entries of the file that a word names and of those that it changes, the first one first; and problems.

    `folder` is where names are looked for first, `key` names the word in findings. MaxText's own `base.yml` is its
    defaults, if it is not here.
    """
    files: list[File] = []
    problems: list[Problem] = []
    seen: set[Path] = set()
    while word is not None and isinstance(word.value, str):
        name = word.value
        path = _find(folder, name)
        if path is None:
            if PurePosixPath(name).name != BASE:
                why = f"there is no file {name!r} here, and only MaxText's base.yml is known without one"
                fix = "give its path, put a copy of MaxText's file there, or copy its keys into this one"
                problems.append(_problem(key, word, "missing-base", why, fix))
            break
        real = path.resolve()
        if real in seen or len(seen) == MAX_FILES:
            why = f"{name} is read by a file that it reads itself" if real in seen else "too many files read each other"
            problems.append(_problem(key, word, "endless-base", why, "let a base_config name base.yml"))
            break
        seen.add(real)
        try:
            document = source.read(path)
        except InputError as error:
            problems.extend(error.problems)
            break
        problems.extend(document.problems)
        files.insert(0, list(entries(document.root)))
        folder, word, key = path.parent, document.root.members.get("base_config"), "base_config"
    return files, problems


def _find(folder: Path, name: str) -> Path | None:
    """The file of a name: beside the one that names it, from here, or, as MaxText has it, from base.yml's folder."""
    try:
        base = next((above for above in folder.absolute().parents if (above / BASE).is_file()), folder)
        return next((path for path in (folder / name, Path(name), base / name) if path.is_file()), None)
    except (OSError, ValueError):  # a name that no file can have
        return None
