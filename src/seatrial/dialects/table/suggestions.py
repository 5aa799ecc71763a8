"""Which key was meant: advice on an unknown one, from the keys that there are and from what they are called elsewhere.

Searched in this order, the first that finds something decides: the same name in another place or case; the name that
another trainer has for it; one wrong character; one wrong character of another trainer's name; what looks alike. Each
is a look-up but the last, so that thousands of unknown keys cost little.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import cache, lru_cache

from seatrial.dialects.table.synonyms import ROWS

NOTHING = "remove it, or correct its name"
MOST = 3  # suggestions at once
LONGEST = 128  # characters of a key that is looked for
ALIKE = 0.6  # share of characters that stay where one name is made into the other
CLOSE_LOOKS = 200  # searches for what looks alike; a file with more unknown keys than that is of another kind
_ALIKE_PAIRS = 0.45  # share of pairs of neighbours that both have: what is less is not looked at closely


def did_you_mean(key: str, known: Collection[str], *, path: str = "") -> str:
    """Advice on an unknown key: the known ones that it may have meant, as paths; `path` is where it stands."""
    found = suggestions(key, known, path=path)
    return f"did you mean {' or '.join(found)}?" if found else NOTHING


def suggestions(key: str, known: Collection[str], *, path: str = "") -> list[str]:
    """The known keys that an unknown one may have meant, the likeliest first."""
    full = f"{path}.{key}" if path else key
    if not known or len(full) > LONGEST:
        return []
    return list(_search(full, _index(tuple(known)))[:MOST])


def start_anew() -> None:
    """Forgets what was looked for, so that the next file gets its CLOSE_LOOKS."""
    _search.cache_clear()
    _index.cache_clear()


def distance(a: str, b: str) -> int:
    """Characters to insert, leave out, replace or swap with their neighbour (optimal string alignment).

    Bit-parallel, a column of the table in one integer: H. Hyyrö, A Bit-Vector Algorithm for Computing Levenshtein and
    Damerau Edit Distances, Nordic Journal of Computing 10 (2003).
    """
    if not a or not b:
        return len(a) + len(b)
    places: dict[str, int] = {}
    for position, character in enumerate(a):
        places[character] = places.get(character, 0) | 1 << position
    everything, last = (1 << len(a)) - 1, 1 << (len(a) - 1)
    higher, lower, diagonal, before, total = everything, 0, 0, 0, len(a)
    for character in b:
        here = places.get(character, 0)
        swapped = ((~diagonal & here) << 1) & before
        diagonal = ((((here & higher) + higher) ^ higher) | here | lower | swapped) & everything
        up, down = lower | (everything & ~(diagonal | higher)), diagonal & higher
        total += bool(up & last) - bool(down & last)
        up, down = (up << 1 | 1) & everything, (down << 1) & everything
        higher, lower = down | (everything & ~(diagonal | up)), up & diagonal
        before = here
    return total


def _plain(text: str) -> str:
    """A name as it is compared: without case, and `-` as `_`."""
    return text.lower().replace("-", "_").strip("_")


def _name(path: str) -> str:
    return path.rpartition(".")[2]


def _shorter(text: str) -> Iterator[str]:
    """The text, and each text that is made of it by leaving out one character."""
    yield text
    for position in range(len(text)):
        yield text[:position] + text[position + 1 :]


class _Vocabulary:
    """Words, and for each the things that it stands for; found exactly, by one wrong character, or by their looks."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self.things: dict[str, list[str]] = {}
        for word, thing in pairs:
            self.things.setdefault(word, []).append(thing)
        self._near: dict[str, list[str]] = {}
        for word in self.things:
            for shorter in set(_shorter(word)):
                self._near.setdefault(shorter, []).append(word)
        self._looks_left = CLOSE_LOOKS
        self._bits: dict[str, int] = {}
        sets = [_pairs(word, self._bits, grow=True) for word in self.things]
        self._sets, self._counts = [each for each, _ in sets], [count for _, count in sets]

    def near(self, word: str) -> list[str]:
        """The words that differ from one in a character at most."""
        found = {near for shorter in _shorter(word) for near in self._near.get(shorter, ())}
        return [near for near in found if distance(word, near) <= 1 and len(word) + len(near) > 2]

    def alike(self, word: str) -> list[str]:
        """The words that look most like one."""
        if self._looks_left <= 0:
            return []
        self._looks_left -= 1
        pairs, count = _pairs(word, self._bits)
        shared = [(pairs & others).bit_count() for others in self._sets]
        shares = [2 * both / (count + others) for both, others in zip(shared, self._counts, strict=True)]
        if max(shares) < _ALIKE_PAIRS:
            return []
        best = sorted(zip(shares, self.things, strict=True), reverse=True)[:MOST]
        return [
            other for share, other in best
            if share >= _ALIKE_PAIRS and distance(word, other) <= (1 - ALIKE) * max(len(word), len(other))
        ]  # fmt: skip


def _pairs(word: str, bits: dict[str, int], *, grow: bool = False) -> tuple[int, int]:
    """The pairs of neighbours in a word, as a set of bits and as a number; `grow` gives new pairs a bit."""
    around = f"_{word}_"
    pairs = {around[n : n + 2] for n in range(len(around) - 1)}
    if grow:
        for pair in sorted(pairs):
            bits.setdefault(pair, 1 << len(bits))
    return sum(bits.get(pair, 0) for pair in pairs), len(pairs)


def _sections(paths: Iterable[str]) -> Iterator[str]:
    """What stands above some paths."""
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
def _elsewhere() -> tuple[_Vocabulary, tuple[tuple[str, ...], ...]]:
    """The names of the table of synonyms, each for the numbers of its rows; and the rows."""
    rows = tuple(tuple(_plain(spelling) for spelling in row.split()) for row in ROWS)
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
