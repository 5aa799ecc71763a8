"""Placeholders of a script, `DATA_PATH=<path and prefix>`: errors of syntax to bash, until variables fill them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

_PLACEHOLDER = re.compile(
    r"^(?P<head>[ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_]\w*)=)"
    r"(?P<value><[^<>\n]*>[\w./-]*(?:[ \t]+\([^()\n]*\))?)(?=[ \t]*(?:#[^\n]*|\\[ \t]*)?$)",
    re.MULTILINE | re.ASCII,
)


def filled(text: str, variables: Mapping[str, str]) -> str:
    """The script with the values of variables in place of their placeholders; lines stay where they are."""

    def value(match: re.Match[str]) -> str:
        name = match["name"]
        return match["head"] + (shlex.quote(variables[name]) if name in variables else match["value"])

    return _PLACEHOLDER.sub(value, text)


_IN_WORDS = re.compile(r"<[A-Z][A-Za-z]*(?:[ _/.-][\w./-]+)+>", re.ASCII)  # <PATH TO gpt2-vocab.json>


def in_words(text: str) -> list[tuple[int, str]]:
    """(line, placeholder) of each that stands in the words of a command, where no variable can fill it."""
    lines = enumerate(text.splitlines(), start=1)
    code = [(number, line) for number, line in lines if not line.lstrip().startswith("#") or line.startswith("#SBATCH")]
    return [(number, match[0]) for number, line in code for match in _IN_WORDS.finditer(line)]


def left(text: str, variables: Mapping[str, str]) -> Iterator[tuple[str, int, str]]:
    """(variable, line, placeholder) of each that no variable fills."""
    for match in _PLACEHOLDER.finditer(text):
        if match["name"] not in variables:
            yield match["name"], text.count("\n", 0, match.start()) + 1, match["value"]
