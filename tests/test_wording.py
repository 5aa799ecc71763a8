"""One notion, one word: nothing that a person reads has a word that the glossary has retired."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
OTHER_MEANINGS = re.compile(r"progress bars?|error bars?|bar charts?", re.IGNORECASE)
OF_PROGRESS_BARS = {"lightning.py", "progress_bars.py", "transformers.py"}  # these read them


def retired() -> list[str]:
    """Words of the third column of the glossary's tables, and its list of phrases."""
    text = GLOSSARY.read_text(encoding="utf-8")
    columns = re.findall(r"^\| [^|]+ \| [^|]+ \| ([^|]+) \|$", text, re.MULTILINE)
    phrases = re.search(r"These were retired as well: (.*?)\.$", text, re.MULTILINE | re.DOTALL)
    assert phrases
    listed = [word for column in (*columns, phrases[1]) for word in re.split(r",\s+", column.strip())]
    return [re.sub(r"\s+", " ", word) for word in listed if word and word != "not" and not word.startswith("---")]


def texts() -> Iterator[tuple[Path, str]]:
    for pattern in ("*.md", "docs/**/*.md", "src/**/*.py", "src/**/*.html", "src/**/*.js", "tools/*.py", "bench/*.md"):
        for path in sorted(ROOT.glob(pattern)):
            if path != GLOSSARY and not path.name.endswith(".min.js"):
                text = path.read_text(encoding="utf-8")
                yield path, re.sub(r"\b_?bars?\b", "", text) if path.name in OF_PROGRESS_BARS else text


def test_the_glossary_retires_words() -> None:
    assert {"bar", "foreign", "anew"} <= set(retired())


@pytest.mark.parametrize("word", retired())
def test_a_retired_word_is_not_used(word: str) -> None:
    found = re.compile(r"\b" + r"\s+".join(map(re.escape, word.split())) + r"\b", re.IGNORECASE)
    places = []
    for path, text in texts():
        for match in found.finditer(OTHER_MEANINGS.sub(lambda other: " " * len(other[0]), text)):
            line = text.count("\n", 0, match.start()) + 1
            places.append(f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[line - 1].strip()[:100]}")
    assert places == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("src/**/*.py")), ids=lambda path: path.stem)
def test_a_module_says_what_it_does(path: Path) -> None:
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    assert not re.match(r'"""(What|Whether)\b', first), first
