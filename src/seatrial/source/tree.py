"""The tree that a text becomes, and its builder, which keeps the limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from seatrial.errors import InputError, Mark, Problem

MAX_DEPTH = 64
MAX_VALUES = 3_000
MAX_KEY = 1000  # characters; a path may be a key, in a mapping of volumes
MAX_DIGITS = 300  # what is longer is no float, and Python itself refuses to read more than 4300

Scalar = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True)
class Node:
    """A value and its place. `text` is a scalar as it was written; `key_mark` is where the key before it stands."""

    value: dict[str, Node] | list[Node] | Scalar
    mark: Mark
    text: str = ""
    key_mark: Mark | None = None

    @classmethod
    def of(cls, value: Any, mark: Mark) -> Node:
        """The node of a plain value, all of it at one place."""
        if isinstance(value, dict):
            return cls(value={key: cls.of(item, mark) for key, item in value.items()}, mark=mark)
        return cls(value=[cls.of(item, mark) for item in value] if isinstance(value, list) else value, mark=mark)

    @property
    def members(self) -> dict[str, Node]:
        """The members of a mapping; of anything else, none."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> list[Node]:
        """The items of a list; of anything else, none."""
        return self.value if isinstance(self.value, list) else []

    def plain(self) -> Any:
        """The value without its places, as `json.loads` would give it."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        return [node.plain() for node in self.value] if isinstance(self.value, list) else self.value


@dataclass(frozen=True, kw_only=True)
class Document:
    """The content of a file, and what is wrong with it although it can be read: keys that appear twice.

    `folder` is where a captured command was started, "" where that is not known.
    """

    file: str
    root: Node
    problems: tuple[Problem, ...] = ()
    folder: str = ""


def walk(node: Node) -> Iterator[tuple[tuple[str, ...], Node]]:
    """Every value with the keys that lead to it, in the order of the text; the items of a list are called 0, 1, …"""
    waiting: list[tuple[tuple[str, ...], Node]] = [((), node)]
    while waiting:
        path, node = waiting.pop()
        yield path, node
        if isinstance(node.value, dict):
            waiting += [((*path, key), child) for key, child in reversed(node.value.items())]
        elif isinstance(node.value, list):
            waiting += [((*path, str(i)), child) for i, child in reversed(list(enumerate(node.value)))]


class Places:
    """Offsets in a text → marks; quick when they are asked for in the order of the text."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self._text = text
        self._line, self._start, self._known = 1, 0, 0  # a line, the offset where it begins, an offset in it

    def mark(self, offset: int) -> Mark:
        if offset < self._start:
            self._line, self._start, self._known = 1, 0, 0
        self._line += self._text.count("\n", self._known, offset)
        self._start = max(self._start, self._text.rfind("\n", self._known, offset) + 1)
        self._known = offset
        return Mark(file=self.file, line=self._line, column=offset - self._start + 1)

    def error(self, place: int | Mark, code: str, why: str, fix: str) -> InputError:
        mark = place if isinstance(place, Mark) else self.mark(place)
        return InputError.single(code, self.file, why, fix, mark)


@dataclass
class _Open:
    """A mapping or a list whose end has not come yet; in a mapping, `key` waits for its value.

    `merged` are the members of the mappings that `<<` names, which one's own go before.
    """

    value: dict[str, Node] | list[Node]
    mark: Mark
    anchor: str | None
    key: tuple[str, Mark] | None = None
    is_merging: bool = False
    merged: dict[str, Node] = field(default_factory=dict)


class Builder:
    """Takes scalars, beginnings and ends in the order of the text; keeps the limits and finds keys that come twice."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.root: Node | None = None
        self.problems: list[Problem] = []
        self._open: list[_Open] = []
        self._anchors: dict[str, Node] = {}
        self._count = 0

    @property
    def expects_key(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1].value, dict) and self._open[-1].key is None

    def key(self, key: str, mark: Mark) -> None:
        if len(key) > MAX_KEY:
            why = f"this key has {len(key)} characters"
            raise self.places.error(mark, "too-large", why, f"give it a name of at most {MAX_KEY}")
        self._open[-1].key = (self._character_text(key, mark), mark)

    def merge_key(self, mark: Mark) -> None:
        self._open[-1].key, self._open[-1].is_merging = ("<<", mark), True

    def scalar(self, value: Scalar, text: str, mark: Mark, anchor: str | None = None) -> None:
        if isinstance(value, str):
            self._character_text(value, mark)
        self._add(Node(value=value, text=text, mark=mark), anchor)

    def begin(self, empty: dict[str, Node] | list[Node], mark: Mark, anchor: str | None = None) -> None:
        self._open.append(_Open(empty, mark, anchor))
        self._limit(len(self._open), mark)

    def end(self) -> None:
        ended = self._open.pop()
        value = ended.merged | ended.value if ended.merged and isinstance(ended.value, dict) else ended.value
        self._add(Node(value=value, mark=ended.mark), ended.anchor)

    def alias(self, name: str, mark: Mark) -> None:
        if name not in self._anchors:
            is_open = any(parent.anchor == name for parent in self._open)
            why = f"&{name} would hold itself" if is_open else f"no &{name} stands before this for *{name} to repeat"
            fix = "write the value out" if is_open else "define it first, or put the text in quotes"
            raise self.places.error(mark, "bad-yaml", why, fix)
        node = self._anchors[name]
        for path, _ in walk(node):
            self._count += 1
            self._limit(len(self._open) + len(path), mark)
        self._add(replace(node, mark=mark), None)

    def _add(self, node: Node, anchor: str | None) -> None:
        self._count += 1
        self._limit(len(self._open), node.mark)
        if anchor is not None:
            self._anchors[anchor] = node
        if not self._open:
            self.root = node
            return
        parent = self._open[-1]
        if isinstance(parent.value, list):
            parent.value.append(node)
            return
        assert parent.key is not None  # the readers give a key before every value of a mapping
        (key, key_mark), parent.key = parent.key, None
        if parent.is_merging:
            parent.is_merging = False
            members: dict[str, Node] = {}
            for mapping in node.value if isinstance(node.value, list) else [node]:
                if not isinstance(mapping.value, dict):
                    raise self.places.error(node.mark, "bad-yaml", "<< merges mappings only", "name one, as <<: *name")
                members = mapping.value | members
            parent.merged |= members
            return
        if key in parent.value:
            self.problems.append(self._duplicate(key, key_mark, parent.value[key].key_mark))
        parent.value[key] = replace(node, key_mark=key_mark)

    def _duplicate(self, key: str, second: Mark, first: Mark | None) -> Problem:
        path = ".".join([parent.key[0] for parent in self._open if parent.key] + [key])
        return Problem(
            severity="error", code="duplicate-key", path=path, mark=second,
            why=f"the key stands here and at {first}, and most readers silently keep only the last one",
            fix="keep one of the two",
        )  # fmt: skip

    def _limit(self, depth: int, mark: Mark) -> None:
        if depth > MAX_DEPTH:
            why = f"values are nested more than {MAX_DEPTH} deep"
            raise self.places.error(mark, "too-deep", why, "name a configuration file, not data")
        if self._count > MAX_VALUES:
            why = f"there are more than {MAX_VALUES} values (aliases count as often as they are used)"
            raise self.places.error(mark, "too-large", why, "name a configuration file, not data")

    def _character_text(self, text: str, mark: Mark) -> str:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            why = "half of a surrogate pair is not a character"
            raise self.places.error(mark, "not-utf-8", why, "write the character itself") from None
        return text
