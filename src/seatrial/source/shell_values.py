"""Shell variables as a text assigns them, and words → the fields that a shell makes of them; nothing is executed."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from seatrial.source.shell_words import Fail, Part, Text, Variable, Word

MAX_EXPANDED = 250_000  # characters and pieces that the words and variables of one text may come to

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_NAME = re.compile(r"\$?\{?([A-Za-z_][A-Za-z0-9_]*)\}?")
_BLANKS = re.compile(r"([ \t\n]+)")
_BEFORE = "before"  # an operator of ours: the variable is not set in this text, and counts as empty
_BETWEEN = " \t\n:,;"  # the items of a list in a variable
_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}  # fmt: skip

Doubt = Literal["", "unknown", "hidden", "executable", "before"]


class Piece(NamedTuple):
    """Part of a value: its text, where it was written, and why a shell may see something else."""

    text: str
    offset: int
    doubt: Doubt = ""
    quoted: bool = False  # in the default of a variable: it is not cut at blanks


Field = tuple[Piece, ...]


def text_of(field: Iterable[Piece]) -> str:
    """A field as text."""
    return "".join(piece.text for piece in field)


@dataclass
class Value:
    """The value of a variable: one field, or the words of an array."""

    fields: tuple[Field, ...]
    offset: int  # of the variable's name
    exported: bool = False
    used: bool = False  # by an expansion in this text
    is_list: bool = False


def assignment(word: Word) -> tuple[str, bool] | None:
    """The name that a word assigns to, and whether it appends (`+=`); None if it is no assignment."""
    first = word.parts[0] if word.parts else None
    match = _ASSIGNMENT.match(first.text) if isinstance(first, Text) and not first.quoted else None
    return (match.group(1), bool(match.group(2))) if match else None


class Variables:
    """The variables of a text, in the order in which it assigns them."""

    def __init__(self, fail: Fail) -> None:
        self.known: dict[str, Value] = {}
        self.hidden: dict[str, Value] = {}  # those of the shells around this one, which it does not get
        self._fail = fail
        self._size = 0

    def evaluate(self, word: Word) -> tuple[str, Value]:
        """The name and the value of a word that is an assignment; it is not kept yet."""
        found = assignment(word)
        assert found is not None
        name, appends = found
        before = self.known.get(name) if appends else None
        first: tuple[Field, ...] = before.fields if before else ()
        self._count(sum(len(field) + 1 for field in first), word.offset)  # it is copied
        is_list = word.items is not None or bool(before and before.is_list)
        if word.items is not None:
            return name, Value(
                (*first, *(field for item in word.items for field in self.expand(item))), word.offset, is_list=True
            )
        head = word.parts[0]
        assert isinstance(head, Text)
        start = len(name) + 1 + appends
        parts = (Text(head.text[start:], head.offset + start), *word.parts[1:])
        is_in_itself = any(isinstance(part, Variable) and part.name == name for part in parts)
        if is_in_itself and name not in self.known:
            parts = (*self._without_before(name, parts),)
        value = self._unquoted(parts)
        return name, Value((((*first[0], *value) if first else value), *first[1:]), word.offset, is_list=is_list)

    def _without_before(self, name: str, parts: Sequence[Part]) -> Iterator[Part]:
        """The parts of the first value of a variable: as an item of a list, what it held before is nothing.

        So `XLA_FLAGS="$XLA_FLAGS --x"` adds a flag to those of the shell, if it has any.
        """
        written = [(text, part) for part in parts if (text := part.text if isinstance(part, Text) else part.written)]
        texts = ["", *(text for text, _ in written), ""]
        for before, (text, part), after in zip(texts, written, texts[2:], strict=False):
            is_item = before[-1:] in _BETWEEN and after[:1] in _BETWEEN and bool(before or after)  # "": the end
            if isinstance(part, Variable) and part.name == name and text in (f"${name}", f"${{{name}}}") and is_item:
                yield replace(part, operator=_BEFORE)
            else:
                yield part

    def keep(self, name: str, value: Value) -> None:
        """Keeps a value; a variable that was exported stays so."""
        before = self.known.get(name)
        if before is not None:
            value.exported, value.used = value.exported or before.exported, before.used
        self.known[name] = value

    def expand(self, word: Word) -> list[Field]:
        """A word as the fields that a shell makes of it: none, one or several."""
        fields: list[list[Piece]] = []
        is_open = False  # whether what comes next belongs to the last field
        for part in word.parts:
            is_cut = isinstance(part, Variable) and not part.quoted
            for index, value in enumerate(self._values(part)):
                is_open = (_split if is_cut else _whole)(value, fields, is_open and not index)
        return [tuple(p._replace(quoted=False) if p.quoted else p for p in pieces) for pieces in fields]

    def _unquoted(self, parts: Iterable[Part]) -> Field:
        """Parts as one field that may be cut where it is used."""
        return tuple(piece._replace(quoted=False) for piece in self._joined(parts))

    def _joined(self, parts: Iterable[Part]) -> Field:
        """Parts as one field: what an assignment gets."""
        pieces: list[Piece] = []
        for part in parts:
            for index, value in enumerate(self._values(part)):
                pieces += [Piece(" ", part.offset), *value] if index else value
        return tuple(pieces)

    def _values(self, part: Part) -> Sequence[Field]:
        """The value of a part: one field, or those of a list."""
        if isinstance(part, Text):
            return [(self._piece(part.text, part.offset)._replace(quoted=part.quoted),)]
        if isinstance(part, Variable):
            return self._held(part)
        number = self._arithmetic(part.written)
        if number is not None:
            return [(self._piece(number, part.offset),)]
        for name in _NAME.findall(part.written):
            self._use(name)
        return [(self._piece(part.written, part.offset, "executable"),)]

    def _held(self, part: Variable) -> Sequence[Field]:
        """The value of a variable, or what takes its place where it is not set."""
        known, kind = self._use(part.name), part.operator.lstrip(":")
        is_empty = known is None or not text_of(known.fields[0] if known.fields else ())
        is_set = known is not None and not (is_empty and ":" in part.operator)
        if kind == "+":
            return [self._joined(part.default) if is_set else ()]
        if known is not None and is_set:
            fields = known.fields if part.is_list else known.fields[:1]
            for field in fields:
                self._count(sum(len(piece.text) + 20 for piece in field), part.offset)
            return [self._in_one(fields, part.offset)] if part.is_joined else fields
        if kind in ("-", "="):
            value = self._joined(part.default)
            if kind == "=":
                self.keep(part.name, Value((self._unquoted(part.default),), part.offset))
            return [value]
        if kind == _BEFORE:
            return [(self._piece("", part.offset, "before"),)]
        if part.name in ("@", "*"):
            return []  # the arguments of the text itself: there are none
        if known is not None:
            return [()]
        if part.name in self.hidden:
            self.hidden[part.name].used = True
            return [(self._piece(part.written, part.offset, "hidden"),)]
        return [(self._piece(part.written, part.offset, "unknown"),)]

    def _in_one(self, fields: Sequence[Field], offset: int) -> Field:
        """The fields of a list as one, with the first character of IFS between them."""
        separator = self.known.get("IFS")
        between = Piece(text_of(separator.fields[0])[:1] if separator and separator.fields else " ", offset)
        return tuple(piece for field in fields for piece in (between, *field))[1:]

    def _use(self, name: str) -> Value | None:
        """The value of a variable, which counts as used from now on; None where it is not known."""
        value = self.known.get(name)
        if value is not None:
            value.used = True
        return value

    def _arithmetic(self, written: str) -> str | None:
        """The value of `$((…))` if it is plain arithmetic of whole numbers and known variables."""
        if not (written.startswith("$((") and written.endswith("))") and len(written) < 200):
            return None

        def number(match: re.Match[str]) -> str:
            value = self._use(match.group(1))
            return text_of(value.fields[0]) if value is not None and value.fields else "?"

        try:
            return str(_computed(ast.parse(_NAME.sub(number, written[3:-2]).strip(), mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return None

    def _piece(self, text: str, offset: int, doubt: Doubt = "") -> Piece:
        self._count(len(text) + 20, offset)  # a piece of one character costs as much as one of many
        return Piece(text, offset, doubt)

    def _count(self, size: int, offset: int) -> None:
        self._size += size
        if self._size > MAX_EXPANDED:
            why = f"its words and variables come to more than {MAX_EXPANDED} characters, far more than a command needs"
            raise self._fail(offset, "too-large", why, "shorten it")


def _whole(value: Field, fields: list[list[Piece]], is_open: bool) -> bool:
    """Adds a value to the last field if that is open, else as a new one; the last one is open then."""
    if not is_open:
        fields.append([])
    fields[-1] += value
    return True


def _split(value: Field, fields: list[list[Piece]], is_open: bool) -> bool:
    """Adds what an unquoted variable holds to the fields, cut at blanks; whether the last one is still open."""
    for piece in value:
        for text, offset in [(piece.text, piece.offset)] if piece.doubt or piece.quoted else _cut(piece):
            if text[:1] in ("", " ", "\t", "\n") and not piece.quoted:
                is_open = is_open and not text
                continue
            is_open = _whole((Piece(text, offset, piece.doubt),), fields, is_open)
    return is_open


def _cut(piece: Piece) -> Iterator[tuple[str, int]]:
    at = piece.offset
    for text in _BLANKS.split(piece.text):
        yield text, at
        at += len(text)


def _computed(node: ast.expr) -> int:
    """The value of an expression of whole numbers from 0 on. Raises ValueError for anything else."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        value = _ARITHMETIC[type(node.op)](_computed(node.left), _computed(node.right))
        if 0 <= value < 10**15:  # below 0, shells divide in another way than Python
            return value
    raise ValueError("this is not plain arithmetic")
