"""OmegaConf's interpolations over a tree of nodes, so that every value keeps its place in the file.

`${a.b}` is the value of a key, `${.b}` and `${..b}` of one beside or above it; `${multiply:x,y}` and `${sum:x,y}` are
NeMo's; `${oc.env:NAME,default}` is read where its name was allowed. Every other resolver is refused: it would be code.
Why this is not OmegaConf itself: docs/decisions/0006-interpolation.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from seatrial import source
from seatrial.dialects.table.coerce import MAX_NUMBER, shown
from seatrial.dialects.table.entries import Entry
from seatrial.dialects.table.suggestions import did_you_mean
from seatrial.errors import Problem
from seatrial.source import Node

MAX_CHAIN = 32  # references to references, and expressions inside expressions
MAX_TEXT = 4096  # characters of a text that is put together
MAX_STEPS = 10_000  # values that are worked out, each once, or again where it could not be had
MAX_SUGGESTIONS = 10
MAX_COPIES = 10_000  # items of lists that are referred to, all references together

Path = tuple[str, ...]

_TOO_DEEP = "interpolation-too-deep"
_BEGIN = re.compile(r"(\\*)\$\{")
_INDEX = re.compile(r"\[([^\[\]]*)\]")
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {"multiply": lambda x, y: x * y, "sum": lambda x, y: x + y}


class _Wrong(Exception):
    """An error in an interpolation; `at` is the path of the wrong one, to which others may only refer."""

    def __init__(
        self, why: str, fix: str = "write the value itself", *, code: str = "bad-interpolation", at: Path | None = None
    ) -> None:
        super().__init__(why)
        self.code, self.why, self.fix, self.at = code, why, fix, at


def escape(text: str) -> str:
    """A text as it has to be written so that nothing in it is an interpolation."""
    return _BEGIN.sub(lambda match: match[1] * 2 + "\\${", text)


def escaped(value: Any) -> Any:
    """The same for every text in a value."""
    if isinstance(value, Mapping):
        return {key: escaped(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [escaped(child) for child in value]
    return escape(value) if isinstance(value, str) else value


class Interpolation:
    """Resolves a tree; `environment` holds the variables that may be read."""

    def __init__(self, root: Node, environment: Mapping[str, str | None]) -> None:
        self.problems: list[Problem] = []
        self.broken: set[Path] = set()  # whose values could not be had
        self._root = root
        self._environment = environment
        self._known: dict[Path, Any] = {}
        self._active: list[Path] = []
        self._steps = 0
        self._copies = 0
        self._unknown = 0

    def resolve(self) -> Node:
        """The tree with every interpolation replaced by its value; what cannot be had stays, and is a problem."""
        found = {path: node for path, node in source.walk(self._root) if _is_open(node)}
        values: dict[Path, Any] = {}
        for path, node in found.items():
            try:
                values[path] = self._value(path, node)
            except _Wrong as wrong:
                self.broken.add(path)
                if wrong.at in (None, path) or wrong.at not in found:
                    entry = Entry.of(".".join(path), node)
                    self.problems.append(entry.problem("error", wrong.code, wrong.why, wrong.fix))
        return _with(self._root, (), values)

    def _value(self, path: Path, node: Node) -> Any:
        if path in self._known:
            return self._known[path]
        if path in self._active:
            circle = self._active[self._active.index(path) :]
            steps = " → ".join(".".join(step) for step in (*circle, path))
            why = f"the interpolation leads back to itself: {_short(steps)}"
            raise _Wrong(why, "give one of these keys a value", code="interpolation-cycle", at=min(circle))
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise _Wrong("the interpolations of this file lead to each other too often", code=_TOO_DEEP)
        if len(self._active) >= MAX_CHAIN:
            raise _Wrong(f"more than {MAX_CHAIN} interpolations lead to each other", code=_TOO_DEEP)
        self._active.append(path)
        try:
            value = self._text(node.value, path, 0) if isinstance(node.value, str) else node.value
        except _Wrong as wrong:
            if wrong.code != _TOO_DEEP:
                wrong.at = wrong.at or path
            raise
        finally:
            self._active.pop()
        self._known[path] = value
        return value

    def _text(self, text: Any, path: Path, depth: int) -> Any:
        """A text's value: that of its one interpolation, or everything in it put together as text."""
        if depth > MAX_CHAIN:
            raise _Wrong(f"interpolations are nested more than {MAX_CHAIN} deep", code=_TOO_DEEP)
        _limit(text)
        parts = [self._body(part, path, depth) if is_open else part for part, is_open in _parts(text)]
        if len(parts) == 1 and "${" in text and text.startswith("${"):
            return parts[0]
        if any(isinstance(part, (list, dict)) for part in parts):
            raise _Wrong("a list cannot stand inside a text", "refer to a key with one value")
        made = "".join(str(part) for part in parts)
        _limit(made)
        return made

    def _body(self, body: str, path: Path, depth: int) -> Any:
        """The value of the text between `${` and `}`: a key, or a resolver and its arguments."""
        name, colon, rest = body.partition(":")
        if not colon or "${" in name:
            return self._reference(str(self._text(body.strip(), path, depth + 1)), path)
        arguments = [self._argument(argument, path, depth + 1) for argument in _arguments(rest)]
        name = name.strip()
        if name in _ARITHMETIC:
            return self._arithmetic(name, arguments)
        if name == "oc.env":
            return self._variable(arguments)
        known = ", ".join((*_ARITHMETIC, "oc.env"))
        why = f"{shown(name)} is a resolver that is not run here; known are {known}"
        raise _Wrong(why, code="unknown-resolver")

    def _argument(self, text: str, path: Path, depth: int) -> Any:
        text = text.strip()
        if "${" in text:
            return self._text(text, path, depth)
        if len(text) > 1 and text[0] in "'\"" and text[-1] == text[0]:
            return text[1:-1]
        try:
            return source.core_scalar(text)
        except ValueError as error:
            raise _Wrong(str(error), "correct the value") from None

    def _arithmetic(self, name: str, arguments: list[Any]) -> Any:
        numbers = [value for value in arguments if isinstance(value, (int, float)) and not isinstance(value, bool)]
        if len(arguments) != 2 or len(numbers) != 2:
            given = ", ".join(shown(value) for value in arguments)
            raise _Wrong(f"{name} takes two numbers, not {given}", f"write ${{{name}:2,3}}")
        if not all(abs(number) <= MAX_NUMBER for number in numbers):  # NaN is none of them
            raise _Wrong(f"a number of {name} is out of range")
        return _ARITHMETIC[name](*numbers)

    def _variable(self, arguments: list[Any]) -> Any:
        if not 1 <= len(arguments) <= 2 or not isinstance(arguments[0], str):
            raise _Wrong("oc.env takes the name of a variable", "write ${oc.env:NAME}")
        name = arguments[0]
        if name not in self._environment:
            why = f"it reads the environment variable {shown(name)}, which no file may do unasked"
            fix = f"give allow_env={name} on the command line to allow it, or the value itself"
            raise _Wrong(why, fix, code="environment-refused")
        value = self._environment[name]
        if value is None and len(arguments) == 1:
            raise _Wrong(f"the variable {shown(name)} is not set", f"export {name}=…", code="unknown-variable")
        return arguments[1] if value is None else value

    def _reference(self, key: str, path: Path) -> Any:
        """The value of another key, relative to the mapping that the interpolation stands in if it begins with dots."""
        dots = len(key) - len(key.lstrip("."))
        parts = tuple(_INDEX.sub(r".\1", key[dots:]).lstrip(".").split("."))
        container = path[: max(0, len(path) - dots)] if dots else ()
        target = (*container, *parts)
        node: Node | None = self._root if dots <= len(path) else None
        for part in target:
            node = _child(node, part) if node else None
        if node is None:
            self._unknown += 1
            near = self._unknown <= MAX_SUGGESTIONS
            known = [".".join(found) for found, _ in source.walk(self._root) if found] if near else []
            fix = did_you_mean(".".join(target), known) if known else "correct its name"
            raise _Wrong(f"there is no key {_short('.'.join(target))}", fix, code="unknown-reference")
        if isinstance(node.value, dict):
            raise _Wrong(f"{'.'.join(target)} is a mapping", "refer to a key with one value")
        if isinstance(node.value, list):
            self._copies += len(node.value)
            if self._copies > MAX_COPIES or any(isinstance(i.value, (dict, list)) or _is_open(i) for i in node.value):
                why = f"{'.'.join(target)} is a list with more in it than plain values"
                raise _Wrong(why, "write the list itself")
        return self._value(target, node)


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:197] + "…"


def _limit(text: str) -> None:
    if len(text) > MAX_TEXT:
        why = f"a text with interpolations has more than {MAX_TEXT} characters"
        raise _Wrong(why, code="interpolation-too-large")


def _is_open(node: Node) -> bool:
    return isinstance(node.value, str) and "${" in node.value


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """The pieces of a text: literal ones, and the insides of interpolations (True). Raises _Wrong without a `}`."""
    place = 0
    while match := _BEGIN.search(text, place):
        slashes = match[1]
        literal = text[place : match.start()] + "\\" * (len(slashes) // 2)
        if len(slashes) % 2:
            yield literal + "${", False
            place = match.end()
            continue
        if literal:
            yield literal, False
        end = _closing(text, match.end())
        yield text[match.end() : end], True
        place = end + 1
    if text[place:]:
        yield text[place:], False


def _closing(text: str, start: int) -> int:
    """The offset of the brace that closes the one before `start`."""
    depth = 1
    for offset in range(start, len(text)):
        depth += (text[offset] == "{") - (text[offset] == "}")
        if depth == 0:
            return offset
    raise _Wrong("the interpolation that begins with ${ never ends", "close it with }, or \\${ it")


def _arguments(text: str) -> list[str]:
    """A resolver's arguments: the text at its commas, but for those inside braces."""
    depth, begin, found = 0, 0, []
    for offset, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if character == "," and depth == 0:
            found.append(text[begin:offset])
            begin = offset + 1
    return [*found, text[begin:]]


def _child(node: Node, part: str) -> Node | None:
    if isinstance(node.value, list):
        return node.value[int(part)] if part.isascii() and part.isdigit() and int(part) < len(node.value) else None
    return node.members.get(part)


def _with(node: Node, path: Path, values: Mapping[Path, Any]) -> Node:
    """The tree with other values in some places; no deeper than the file, whose depth is limited."""
    if path in values:
        return replace(node, value=values[path])
    if isinstance(node.value, dict):
        return replace(node, value={key: _with(child, (*path, key), values) for key, child in node.value.items()})
    if isinstance(node.value, list):
        return replace(node, value=[_with(child, (*path, str(i)), values) for i, child in enumerate(node.value)])
    return node
