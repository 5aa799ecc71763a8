"""Advice on an unknown key: the ones that may be meant, from the known keys and from what they are called elsewhere.

Searched in this order, the first that finds something decides: the same name in another place or case; the name that
another trainer has for it; one wrong character; one wrong character of another trainer's name; what looks alike.
Mistakes are characters to insert, omit, replace or swap with their neighbour (optimal string alignment).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import cache, lru_cache
from importlib.resources import files

NOTHING = "remove it, or correct its name"
MOST = 3  # suggestions at once
LONGEST = 128  # characters of a key that is looked for
CLOSE_LOOKS = 200  # searches for what looks alike; a file with more unknown keys than that is of another kind
ALIKE = 0.599  # share of characters that stay where one name is made into the other: 3 of 5 do


def did_you_mean(key: str, known: Collection[str], *, path: str = "", otherwise: str = NOTHING) -> str:
    """Advice on an unknown key: the known ones that it may have meant, as paths; `path` is where it stands."""
    found = suggestions(key, known, path=path)
    return f"did you mean {' or '.join(found)}?" if found else otherwise


def suggestions(key: str, known: Collection[str], *, path: str = "") -> list[str]:
    """The known keys that an unknown one may have meant, the likeliest first."""
    full = f"{path}.{key}" if path else key
    if not known or len(full) > LONGEST:
        return []
    return list(_search(full, _index(tuple(known)))[:MOST])


def likeness(key: str, suggestion: str) -> float:
    """The share of two keys' last names that is the same: 1 for all, 0 for nothing."""
    a, b = _plain(_name(key)), _plain(_name(suggestion))
    return 1 - distance(a, b) / max(len(a), len(b), 1)


def reset() -> None:
    """Forgets what was looked for, so that the next file gets its CLOSE_LOOKS."""
    _search.cache_clear()
    _index.cache_clear()


def distance(a: str, b: str) -> int:
    """The number of mistakes that make one text into another."""
    from rapidfuzz.distance import OSA  # late: only what is misspelt needs it

    return OSA.distance(a, b)


def _plain(text: str) -> str:
    """A name as it is compared: without case, and `-` as `_`."""
    return text.lower().replace("-", "_").strip("_")


def _name(path: str) -> str:
    return path.rpartition(".")[2]


class _Vocabulary:
    """Words, and for each the things that it stands for; found exactly, by one wrong character, or by their looks."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self.things: dict[str, list[str]] = {}
        for word, thing in pairs:
            self.things.setdefault(word, []).append(thing)
        self._words = list(self.things)
        self._looks_left = CLOSE_LOOKS

    def near(self, word: str) -> list[str]:
        """The words that differ from one in a character at most."""
        from rapidfuzz import process
        from rapidfuzz.distance import OSA

        found = process.extract(word, self._words, scorer=OSA.distance, score_cutoff=1, limit=None)
        return [near for near, *_ in found if len(word) + len(near) > 2]

    def alike(self, word: str) -> list[str]:
        """The words that look most like one."""
        from rapidfuzz import process
        from rapidfuzz.distance import OSA

        self._looks_left -= 1
        if self._looks_left < 0:
            return []
        found = process.extract(word, self._words, scorer=OSA.normalized_similarity, score_cutoff=ALIKE, limit=MOST)
        return [near for near, *_ in found]


def _sections(paths: Iterable[str]) -> Iterator[str]:
    """The sections above some paths."""
    for path in paths:
        while path := path.rpartition(".")[0]:
            yield path


class _Index:
    """The known keys and their sections by their last names, by their whole paths, and by their names elsewhere."""

    def __init__(self, known: tuple[str, ...]) -> None:
        known = tuple(dict.fromkeys((*known, *_sections(known))))
        self.order = {path: place for place, path in enumerate(known)}
        self.names = _Vocabulary((_plain(_name(path)), path) for path in known)
        self.paths = _Vocabulary((_plain(path), path) for path in known if "." in path)

    def meaning(self, rows: Iterable[tuple[str, ...]]) -> list[str]:
        """The known keys that a row of synonyms names: the first row that names any."""
        for row in rows:
            found: dict[str, None] = {}
            for spelling in row:
                for path in self.names.things.get(_name(spelling), ()):
                    if f".{_plain(path)}".endswith(f".{spelling}"):
                        found[path] = None
            if found:
                return list(found)
        return []


@lru_cache(maxsize=16)
def _index(known: tuple[str, ...]) -> _Index:
    return _Index(known)


@cache
def synonyms() -> tuple[tuple[str, ...], ...]:
    """The rows of `synonyms.txt`, each with its names; a line that begins with a blank goes on with the one above."""
    text = files("seatrial.dialects.table").joinpath("synonyms.txt").read_text(encoding="utf-8")
    lines = re.sub(r"\n +", " ", text).splitlines()
    return tuple(tuple(line.split()) for line in lines if line and not line.startswith("#"))


@cache
def _elsewhere() -> tuple[_Vocabulary, tuple[tuple[str, ...], ...]]:
    """The names of the table of synonyms, each for the numbers of its rows; and the rows."""
    rows = tuple(tuple(map(_plain, row)) for row in synonyms())
    return _Vocabulary((spelling, str(number)) for number, row in enumerate(rows) for spelling in row), rows


@lru_cache(maxsize=1024)
def _search(full: str, index: _Index) -> tuple[str, ...]:
    plain, name = _plain(full), _plain(_name(full))
    same = index.names.things.get(name, [])
    words, rows = _elsewhere()
    if not same:
        ends = (plain.split(".", cut)[-1] for cut in range(plain.count(".") + 1))
        numbers = next((words.things[end] for end in ends if end in words.things), [])
        if meant := index.meaning(rows[int(number)] for number in numbers):
            return tuple(meant)
    near = [path for word in index.paths.near(plain) for path in index.paths.things[word]]
    if not same:
        near += [path for word in index.names.near(name) for path in index.names.things[word]]
    if same or near:
        return _ranked(full, {*same, *near}, index)
    numbers = sorted({number for word in words.near(name) for number in words.things[word]}, key=int)
    if meant := index.meaning(rows[int(number)] for number in numbers):
        return tuple(meant)
    return tuple(dict.fromkeys(path for word in index.names.alike(name) for path in index.names.things[word]))


def _ranked(full: str, paths: Collection[str], index: _Index) -> tuple[str, ...]:
    """Of some paths those that are nearest: by their last name, where being in another place counts as one mistake."""
    parent, _, name = full.rpartition(".")

    def mistakes(path: str) -> int:
        elsewhere = bool(parent) and _plain(path.rpartition(".")[0]) != _plain(parent)
        return min(distance(_plain(full), _plain(path)), distance(_plain(name), _plain(_name(path))) + elsewhere)

    ranked = sorted(paths, key=lambda path: (mistakes(path), distance(full, path), index.order[path]))
    if distance(full, ranked[0]) <= 1:
        return (ranked[0],)
    return tuple(path for path in ranked if mistakes(path) == mistakes(ranked[0]))
