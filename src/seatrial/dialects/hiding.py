"""Findings without the values of secrets, which the readers of values and keys quote as they quote all others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from seatrial.command import MASK, is_secret, masked, secret_words, secrets_in
from seatrial.dialects import placeholders
from seatrial.errors import Problem
from seatrial.source import MAX_BYTES, Document, walk

MIN_LENGTH = 6  # of a value that is looked for in findings about other keys: what is shorter stands in many words
_RUN = re.compile(r"\w{3,}")


def secrets(document: Document, arguments: Sequence[str] = ()) -> frozenset[str]:
    """The values under names of secrets, of a file, of the command in it and of the words behind it."""
    argv = document.root.members.get("argv")
    words = [str(item.value) for item in argv.items] if argv else []
    named = (node for path, node in walk(document.root) if any(map(is_secret, path)))
    scalars = (node for node in named if not isinstance(node.value, (dict, list)))
    found = {text for node in scalars for text in (node.text, str(node.value))}
    found |= {value for given in (words, arguments) for _, _, value in secret_words(given)}
    return frozenset(value for value in found if value and not placeholders.is_unfilled(value))


def of_text(path: Path) -> frozenset[str]:
    """Those of a file that cannot be read as a tree, and a shell text's variables, which are put into other words."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return frozenset()
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return frozenset()
    return frozenset(value for value in secrets_in(text) if value and not placeholders.is_unfilled(value))


def without(problems: Iterable[Problem], hidden: frozenset[str]) -> tuple[Problem, ...]:
    """The findings with `***` for each of some values; in those about a secret itself, for any part of one."""
    if not hidden:
        return tuple(problems)
    wholes = sorted((value for value in hidden if len(value) >= MIN_LENGTH), key=len, reverse=True)
    whole = re.compile("|".join(re.escape(form) for value in wholes for form in (value, repr(value)[1:-1])) or "(?!)")
    return tuple(_without(problem, hidden, whole) for problem in problems)


def _without(problem: Problem, hidden: frozenset[str], whole: re.Pattern[str]) -> Problem:
    def shown(text: str) -> str:
        text = whole.sub(MASK, text)
        if is_secret(problem.path):
            return _RUN.sub(lambda run: MASK if any(run[0] in value for value in hidden) else run[0], text)
        return text

    path = masked(whole.sub(MASK, problem.path))
    return replace(problem, path=path, why=shown(problem.why), fix=shown(problem.fix))
