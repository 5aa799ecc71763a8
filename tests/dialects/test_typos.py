"""One wrong character in a key: the right one is suggested, for at least 95 % of them, in every dialect.

All keys of the tables are asked of the function that suggests; a sample is written into shipped files and given as
overrides, and read as `seatrial check` reads them.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from seatrial import dialects, source
from seatrial.dialects.table.suggestions import did_you_mean, reset
from seatrial.errors import InputError, Problem
from tests.helpers.seeds import ROOT

NAMES = sorted({dialect.name for dialect in dialects.DIALECTS})
SHARE = 0.95
OPEN = {"environment", "env_dict", "env_vars", "env", "volume_dict", "volumes", "xla_flags"}  # the user's own names
LETTERS = string.ascii_lowercase + string.digits + "_"


@cache
def keys_of(name: str) -> tuple[str, ...]:
    """Every key and every section that a dialect knows, by its path."""
    dialect = next(dialect for dialect in dialects.DIALECTS if dialect.name == name)
    paths = [path for path in dialect.load().KEYS if "*" not in path and not OPEN & set(path.split(".")[:-1])]
    parts = [path.split(".") for path in paths]
    return tuple(dict.fromkeys((*paths, *(".".join(names[:end]) for names in parts for end in range(1, len(names))))))


def last(path: str) -> str:
    return path.rpartition(".")[2]


def typos(word: str, rng: random.Random, each: int) -> Iterator[str]:
    """So many deletions, insertions, substitutions and swaps of neighbours, none of which leaves the word as it is."""
    letters = LETTERS.upper() if word.isupper() else LETTERS
    for place in rng.sample(range(len(word)), min(each, len(word))):
        yield word[:place] + word[place + 1 :]
        yield word[:place] + rng.choice(letters) + word[place:]
        yield word[:place] + rng.choice(letters.replace(word[place], "")) + word[place + 1 :]
        if word[place : place + 1] != word[place + 1 : place + 2] and place + 1 < len(word):
            yield word[:place] + word[place + 1] + word[place] + word[place + 2 :]


def is_right(fix: str, key: str) -> bool:
    """True if the first key that is suggested is the right one."""
    said = fix.removeprefix("did you mean ").partition("?")[0].split(" or ")[0].lstrip("-")
    return said == key or key.endswith(f".{said}") or said.endswith(f".{key}")


@pytest.mark.parametrize("name", NAMES)
def test_every_key_is_found_in_spite_of_a_wrong_character(name: str) -> None:
    rng, keys = random.Random(7), keys_of(name)
    taken = {last(key) for key in keys}
    wrong: list[str] = []
    asked = 0
    reset()
    for key in keys:
        parent = key.rpartition(".")[0]
        for typo in typos(last(key), rng, each=2):
            if not typo or typo in taken:
                continue
            asked += 1
            fix = did_you_mean(typo, keys, path=parent)
            if not is_right(fix, key):
                wrong.append(f"{key}: {typo}: {fix}")
    assert len(wrong) <= (1 - SHARE) * asked, f"{len(wrong)} of {asked}\n" + "\n".join(wrong)


# --- read for real ----------------------------------------------------------------------------------------------------


def keys_in(path: Path, known: tuple[str, ...]) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """(offset, name, arguments) of every key that stands in a file, if its dialect knows one of this name.

    The arguments select the cell of a CVS file in which the key stands: the others are not read.
    """
    text, root = path.read_text(encoding="utf-8"), source.read(path).root
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    names = {last(key) for key in known}
    for keys, node in source.walk(root):
        if OPEN & set(keys[:-1]) and "argv" not in root.members:
            continue
        cell = keys[1:4] if keys[0:1] == ("model_params",) else ()
        selected = tuple(f"{name}={value}" for name, value in zip(("topology", "model", "gpu"), cell, strict=False))
        written = [(keys[-1], node.key_mark)] if node.key_mark and keys else []
        if keys[:1] == ("argv",) and isinstance(node.value, str):
            written.append((node.value.partition("=")[0].lstrip("-"), node.mark))
        for word, mark in written:
            if word not in names or mark is None:
                continue
            offset = starts[mark.line - 1] + mark.column - 1
            offset += text[offset] in "\"'"
            offset += 2 * text.startswith("--", offset)
            if text.startswith(word, offset):
                yield offset, word, selected


def found(path: Path, *arguments: str) -> list[Problem]:
    """Everything that reading a configuration finds."""
    try:
        return list(dialects.load(path, arguments, action="plan").problems)
    except InputError as error:
        return list(error.problems)


def name_of(path: Path) -> str | None:
    root = source.read(path).root
    return next((dialect.name for dialect in dialects.DIALECTS if dialect.recognise(root)), None)


CONFIGS = {path: name for path in sorted(ROOT.glob("configs/*/*")) if (name := name_of(path))}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_typo_in_a_file_is_told_with_the_right_key(path: Path, tmp_path: Path) -> None:
    rng, known = random.Random(path.name), keys_of(CONFIGS[path])
    places = list(keys_in(path, known))
    assert places
    text, copy, taken = path.read_text(encoding="utf-8"), tmp_path / path.name, {last(key) for key in known}
    wrong: list[str] = []
    asked = 0
    for offset, word, selected in rng.sample(places, min(12, len(places))):
        typo = rng.choice([typo for typo in typos(word, rng, each=1) if typo[:1] not in "_" and typo not in taken])
        copy.write_text(text[:offset] + typo + text[offset + len(word) :], encoding="utf-8")
        asked += 1
        told = [problem for problem in found(copy, *selected) if "did you mean" in problem.fix]
        if not any(is_right(problem.fix, word) for problem in told):
            wrong.append(f"{word}: {typo}: " + "; ".join(f"{problem.path}: {problem.fix}" for problem in told))
    assert len(wrong) <= (1 - SHARE) * asked, f"{len(wrong)} of {asked}\n" + "\n".join(wrong)


@pytest.mark.parametrize("name", NAMES)
def test_a_typo_in_an_override_is_told_with_the_right_key(name: str) -> None:
    rng, known = random.Random(name), keys_of(name)
    path = next((path for path in CONFIGS if CONFIGS[path] == name), None)
    assert path, "no file of this dialect is shipped"
    known = [key for key in known if "." not in key or key.partition(".")[0] in source.read(path).root.members]
    first = next((selected for _, _, selected in keys_in(path, keys_of(name)) if len(selected) == 3), ())
    taken = {last(key) for key in known}
    wrong: list[str] = []
    asked = 0
    for key in rng.sample(known, min(40, len(known))):
        typo = rng.choice([typo for typo in typos(last(key), rng, each=2) if typo.strip("-") and typo not in taken])
        parent = key.rpartition(".")[0]
        asked += 1
        given = f"{parent}.{typo}" if parent else typo
        told = [problem for problem in found(path, *first, f"{given}=1") if "did you mean" in problem.fix]
        if not any(is_right(problem.fix, key) for problem in told):
            wrong.append(f"{key}: {given}: " + "; ".join(f"{problem.path}: {problem.fix}" for problem in told))
    assert len(wrong) <= (1 - SHARE) * asked, f"{len(wrong)} of {asked}\n" + "\n".join(wrong)
