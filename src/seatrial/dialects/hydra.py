"""A command that starts a program with Hydra → the YAML file that it names, and the overrides behind it.

NxDT and NeMo are started so: `torchrun … training_orchestrator.py --config-path=conf --config-name=NAME key=value …`.
The file stands below the program's own folder, as Hydra looks for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from seatrial import source
from seatrial.errors import InputError
from seatrial.source import Document, Node
from seatrial.source.programs import is_program

_OPTIONS = {
    "--config-path": "path", "-cp": "path", "--config-dir": "folder", "-cd": "folder", "--config-name": "name",
    "-cn": "name",
}  # fmt: skip
# What a program's own code says where its command does not, as of 2026.
_DEFAULTS = {"training_orchestrator.py": {"path": "conf", "name": "megatron_gpt_config"}}
_SWEEPS = ("-m", "--multirun")
_OVERRIDE = re.compile(r"(\+{0,2}|~)([A-Za-z_][\w./@-]*)(?:=(.*))?", re.DOTALL)


def followed(document: Document, arguments: Sequence[str]) -> tuple[Document, Sequence[str]]:
    """The file that a command names and the overrides, its own before the given ones; of another text, the same.

    Raises InputError where the file is not here, or the command asks Hydra for what is not supported.
    """
    argv = document.root.members.get("argv")
    words = argv.items if argv else []
    texts = [str(word.value) for word in words]
    place = next((at for at in range(len(texts)) if is_program(texts, at) and texts[at].endswith(".py")), None)
    if place is None:
        return document, arguments
    behind, defaults = words[place + 1 :], _DEFAULTS.get(Path(texts[place]).name)
    if defaults is None and not any(str(word.value).partition("=")[0] in _OPTIONS for word in behind):
        return document, arguments
    options, own = _read(document, behind)
    named = {**(defaults or {}), **options}
    path = _find(document, texts[place], named, words[place])
    read = source.read(path)
    return replace(read, problems=(*document.problems, *read.problems)), [*own, *arguments]


def _read(document: Document, words: Sequence[Node]) -> tuple[dict[str, str], list[str]]:
    """Hydra's options by what they say, and its overrides. Raises InputError."""
    options: dict[str, str] = {}
    overrides: list[str] = []
    waiting = ""
    for word in words:
        text = str(word.value)
        name, equals, value = text.partition("=")
        if waiting:
            options[waiting], waiting = text, ""
        elif name in _OPTIONS and equals:
            options[_OPTIONS[name]] = value
        elif name in _OPTIONS:
            waiting = _OPTIONS[name]
        elif text in _SWEEPS:
            raise _refused(document, word, "Hydra would start several trainings", "start one of them: without it")
        else:
            overrides += _override(document, word)
    return options, overrides


def _override(document: Document, word: Node) -> Iterator[str]:
    """An override as this program takes it: added and replaced values are given alike. Raises InputError."""
    match = _OVERRIDE.fullmatch(str(word.value))
    if match is None:
        fix = "give overrides as key=value behind --config-name"
        raise _refused(document, word, "this is neither an option of Hydra's nor an override", fix)
    sign, key, value = match.groups()
    if key.startswith("hydra."):
        return
    if sign == "~" or value is None:
        raise _refused(document, word, "removing a key is not supported", "copy the file, and remove the key there")
    quoted = re.fullmatch(r"(['\"])(.*)\1", value, re.DOTALL)
    yield f"{key}={quoted[2] if quoted else value}"


def _find(document: Document, program: str, named: dict[str, str], at: Node) -> Path:
    """The file of a name. Raises InputError where it is not here."""
    name = named.get("name", "")
    if not name:
        why, fix = "nothing says which file Hydra reads", "add --config-name, or name the file itself"
        raise InputError.single("no-configuration", program, why, fix, at.mark)
    file = name if name.endswith((".yaml", ".yml")) else f"{name}.yaml"
    below = named.get("folder") or named.get("path", "")
    here, script = Path(document.file).parent, Path(at.mark.file).parent
    folders = dict.fromkeys([Path(document.folder), here / document.folder, here, script])
    tried = [folder / Path(program).parent / below / file for folder in folders]
    found = next((path for path in tried if path.is_file()), None)
    if found is None:
        why = f"it reads {below + '/' if below else ''}{file}, and there is no such file beside {program} here"
        raise InputError.single("unreadable", program, why, "name the YAML file itself, with its overrides", at.mark)
    return found


def _refused(document: Document, word: Node, why: str, fix: str) -> InputError:
    return InputError.single("not-supported", str(word.value) or document.file, why, fix, word.mark)
