"""JSON or YAML text → a tree in which every key and every value knows where it was written.

Values are those of JSON (RFC 8259) or of YAML 1.2's core schema, so `3e-4` is a number and `yes` is a string. Nothing
here recurses, and size, depth and number of values are limited, aliases counted as often as they are used: no text can
make this slow or make it crash. Whatever is wrong with a text ends in an InputError that names the place.
"""

from __future__ import annotations

import json
import math
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seatrial.errors import InputError, Mark, Problem

MAX_BYTES = 10_000_000
MAX_DEPTH = 64
MAX_VALUES = 20_000
MAX_DIGITS = 1000  # Python itself refuses to read a whole number of more than 4300

Scalar = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True)
class Node:
    """A value and its place. `text` is a scalar as it was written; `key_mark` is where the key before it stands."""

    value: dict[str, Node] | list[Node] | Scalar
    mark: Mark
    text: str = ""
    key_mark: Mark | None = None

    @property
    def members(self) -> dict[str, Node]:
        """The members of a mapping; of anything else, none."""
        return self.value if isinstance(self.value, dict) else {}

    def plain(self) -> Any:
        """The value without its places, as `json.loads` would give it."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        return [node.plain() for node in self.value] if isinstance(self.value, list) else self.value


@dataclass(frozen=True, kw_only=True)
class Document:
    """What a file holds, and what is wrong with it although it can be read: keys that appear twice."""

    file: str
    root: Node
    problems: tuple[Problem, ...] = ()


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


def read(path: Path) -> Document:
    """The tree of a file: JSON if its name ends in .json or its text begins with `{`, else YAML. Raises InputError."""
    text = _read_text(path)
    suffix = path.suffix.lower()
    is_json = suffix == ".json" or (suffix not in (".yaml", ".yml") and text.lstrip().startswith("{"))
    return parse(text, file=str(path), is_json=is_json)


def parse(text: str, *, file: str, is_json: bool) -> Document:
    """The tree of a text; `file` is the name that its marks carry. Raises InputError."""
    builder = _Builder(_Places(text, file))
    if text.strip():
        (_read_json if is_json else _read_yaml)(text, builder)
    if builder.root is None:
        raise builder.places.error(0, "empty", "there is nothing in it", "write a configuration into it")
    return Document(file=file, root=builder.root, problems=tuple(builder.problems))


# --- files and places -------------------------------------------------------------------------------------------------


def _read_text(path: Path) -> str:
    """A file's text as UTF-8. Raises InputError, with the place of the first byte that is none."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            kind = "a folder" if path.is_dir() else "not a regular file"
            raise InputError.single("unreadable", str(path), f"this is {kind}", "name a configuration file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        fix = "check the path; `seatrial init` lists examples to start from"
        raise InputError.single("unreadable", str(path), "there is no such file", fix) from None
    except (OSError, ValueError) as error:
        why = f"the file cannot be read: {getattr(error, 'strerror', None) or error}"
        raise InputError.single("unreadable", str(path), why, "check its path and permissions") from None
    if len(content) > MAX_BYTES:
        why = f"the file is larger than {MAX_BYTES // 10**6} MB, which no configuration is"
        raise InputError.single("too-large", str(path), why, "name a configuration file, not data")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8")
        why = f"byte 0x{content[error.start]:02x} is not UTF-8"
        places = _Places(before, str(path))
        raise places.error(len(before), "not-utf-8", why, "save the file as UTF-8") from None


class _Places:
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


# --- the tree ---------------------------------------------------------------------------------------------------------


@dataclass
class _Open:
    """A mapping or a list whose end has not come yet; in a mapping, `key` waits for its value."""

    value: dict[str, Node] | list[Node]
    mark: Mark
    anchor: str | None
    key: tuple[str, Mark] | None = None


class _Builder:
    """Takes scalars, beginnings and ends in the order of the text; keeps the limits and finds keys that come twice."""

    def __init__(self, places: _Places) -> None:
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
        self._open[-1].key = (self._character_text(key, mark), mark)

    def scalar(self, value: Scalar, text: str, mark: Mark, anchor: str | None = None) -> None:
        if isinstance(value, str):
            self._character_text(value, mark)
        self._add(Node(value=value, text=text, mark=mark), anchor)

    def begin(self, empty: dict[str, Node] | list[Node], mark: Mark, anchor: str | None = None) -> None:
        self._open.append(_Open(empty, mark, anchor))
        self._limit(len(self._open), mark)

    def end(self) -> None:
        ended = self._open.pop()
        self._add(Node(value=ended.value, mark=ended.mark), ended.anchor)

    def alias(self, name: str, mark: Mark) -> None:
        if name not in self._anchors:
            raise self.places.error(mark, "bad-yaml", f"*{name} stands before &{name}", "define it first")
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
        if key in parent.value:
            self.problems.append(self._duplicate(key, key_mark, parent.value[key].key_mark))
        parent.value[key] = replace(node, key_mark=key_mark)

    def _duplicate(self, key: str, second: Mark, first: Mark | None) -> Problem:
        path = ".".join([parent.key[0] for parent in self._open if parent.key] + [key])
        return Problem(
            severity="error", code="duplicate-key", path=path, mark=second,
            why=f"the key stands here and at {first}, and most readers keep only the last one in silence",
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


# --- JSON -------------------------------------------------------------------------------------------------------------

# A string that never ends is one token too: tried again from each of its quotes, it would cost its length squared.
_JSON_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[{}\[\]:,]|[^\s{}\[\]:,"]+', re.DOTALL)


def _read_json(text: str, builder: _Builder) -> None:
    """Two looks at one text: `json.loads` says whether it is JSON, the tokens say where everything stands."""
    places = builder.places
    tokens = _json_tokens(text, places)
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise _json_mistake(text, error, places) from None
    for offset, token in tokens:
        mark = places.mark(offset)
        if token in "{[":
            builder.begin({} if token == "{" else [], mark)
        elif token in "}]":
            builder.end()
        elif token not in ":,":
            value = json.loads(token)
            if builder.expects_key:
                builder.key(value, mark)
            else:
                builder.scalar(value, value if isinstance(value, str) else token, mark)


def _json_tokens(text: str, places: _Places) -> list[tuple[int, str]]:
    """The tokens with their offsets, of broken JSON too; what `json.loads` is too patient with ends here."""
    tokens: list[tuple[int, str]] = []
    depth = 0
    for match in _JSON_TOKEN.finditer(text):
        offset, token = match.start(), match.group()
        depth += (token in "{[") - (token in "}]")
        if depth > MAX_DEPTH or len(tokens) > 4 * MAX_VALUES:
            why = f"values are nested more than {MAX_DEPTH} deep" if depth > MAX_DEPTH else "there are too many values"
            code = "too-deep" if depth > MAX_DEPTH else "too-large"
            raise places.error(offset, code, why, "name a configuration file, not data")
        if token in ("NaN", "Infinity", "-Infinity"):
            raise places.error(offset, "bad-json", f"{token} is not JSON", "write a number, or null")
        if token[0] != '"' and len(token) > MAX_DIGITS:
            raise places.error(offset, "bad-json", f"{len(token)} characters are no number or word", "shorten it")
        tokens.append((offset, token))
    return tokens


def _json_mistake(text: str, error: json.JSONDecodeError, places: _Places) -> InputError:
    """What was probably meant, at the place where it went wrong."""
    offset, rest = error.pos, text[error.pos : error.pos + 200]
    before = text[:offset].rstrip()
    trailing = re.match(r",\s*[}\]]", rest)

    def at(place: int, why: str, fix: str) -> InputError:
        return places.error(place, "bad-json", why, fix)

    if text.startswith("\ufeff"):
        return at(0, "the file begins with a byte order mark, which JSON forbids", "save it as UTF-8 without BOM")
    if error.msg.startswith("Invalid control character"):
        name = "tab" if rest.startswith("\t") else "line break" if rest[:1] in "\r\n" else "control character"
        return at(offset, f"a {name} stands inside a string", 'close the string with ", or write \\t, \\n or \\u00XX')
    if error.msg.startswith("Unterminated string"):
        return at(offset, "the string that begins here never ends", 'close it with "')
    if error.msg.startswith("Invalid \\"):
        return at(offset, "a \\ inside a string begins an escape, and this is none", "write \\\\ for a backslash")
    if trailing or (before.endswith(",") and rest[:1] in ("}", "]")):
        comma = offset if trailing else len(before) - 1
        return at(comma, "a comma stands before a closing bracket", "remove the comma")
    if rest.startswith(("//", "/*", "#")):
        return at(offset, "JSON has no comments", "remove it, or keep it as a key that begins with _")
    if rest.startswith("'"):
        return at(offset, "JSON strings stand in double quotes", "write \" instead of '")
    if not rest:
        return at(offset, "the text ends too early: a bracket or a value is missing", "complete it")
    if error.msg.startswith("Extra data"):
        return at(offset, "the document was complete before this", "remove what follows, or a bracket too many")
    if error.msg.startswith("Expecting ',' delimiter"):
        return at(offset, "a comma or a closing bracket is missing before this", "add it")
    if error.msg.startswith("Expecting ':' delimiter"):
        return at(offset, "a colon is missing between a key and its value", "add it")
    if error.msg.startswith("Expecting property name"):
        return at(offset, "a key in double quotes was expected here", 'write "key": value')
    return at(offset, "a value was expected here", "write a string in double quotes, a number, true, false or null")


# --- YAML -------------------------------------------------------------------------------------------------------------

_YAML_CORE: tuple[tuple[str, re.Pattern[str], Callable[[str], Scalar]], ...] = (
    ("null", re.compile(r"|~|null|Null|NULL"), lambda text: None),
    ("bool", re.compile(r"true|True|TRUE|false|False|FALSE"), lambda text: text.lower() == "true"),
    ("int", re.compile(r"[-+]?[0-9]+"), int),
    ("int", re.compile(r"0o[0-7]+"), lambda text: int(text, 8)),
    ("int", re.compile(r"0x[0-9a-fA-F]+"), lambda text: int(text, 16)),
    ("float", re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
    ("float", re.compile(r"[-+]?\.(inf|Inf|INF)"), lambda text: -math.inf if text[0] == "-" else math.inf),
    ("float", re.compile(r"\.(nan|NaN|NAN)"), lambda text: math.nan),
)
_YAML_TAG = "tag:yaml.org,2002:"


def _read_yaml(text: str, builder: _Builder) -> None:
    """One document of YAML, from the parser's events: its composer and constructors, which recurse, never run."""
    import yaml  # late: JSON, the common case, does not pay for it

    places = builder.places
    documents = 0
    try:
        event: Any
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            mark = Mark(file=places.file, line=event.start_mark.line + 1, column=event.start_mark.column + 1)
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise places.error(mark, "bad-yaml", "a second document begins here", "keep one to a file")
            elif isinstance(event, yaml.CollectionEndEvent):
                builder.end()
            elif isinstance(event, yaml.ScalarEvent) and builder.expects_key:
                if event.value == "<<" and event.implicit[0]:
                    raise places.error(mark, "bad-yaml", "YAML 1.2 has no merge key (<<)", "write the keys out")
                builder.key(event.value, mark)
            elif isinstance(event, yaml.NodeEvent) and builder.expects_key:
                raise places.error(mark, "bad-yaml", "a key must be a word or a string", "write a plain key")
            elif isinstance(event, yaml.AliasEvent):
                builder.alias(str(event.anchor), mark)
            elif isinstance(event, yaml.ScalarEvent):
                builder.scalar(_yaml_value(event, mark, places), event.value, mark, event.anchor)
            elif isinstance(event, yaml.CollectionStartEvent):
                is_mapping = isinstance(event, yaml.MappingStartEvent)
                _yaml_tag(event, ("map",) if is_mapping else ("seq",), mark, places)
                builder.begin({} if is_mapping else [], mark, event.anchor)
    except yaml.YAMLError as error:
        raise _yaml_mistake(text, error, places) from None


def core_scalar(text: str, tag: str | None = None) -> Scalar:
    """The value of a plain scalar by YAML 1.2's core schema; what fits no type is text.

    Raises ValueError for a number of too many digits, and where the text cannot be of the type that `tag` asks for.
    """
    for name, pattern, convert in _YAML_CORE:
        if tag in (None, name) and pattern.fullmatch(text):
            if len(text) > MAX_DIGITS:
                raise ValueError(f"{len(text)} digits are too many for a number")
            return convert(text)
    if tag is not None:
        raise ValueError(f"this is marked as {tag}, but cannot be read as one")
    return text


def _yaml_value(event: Any, mark: Mark, places: _Places) -> Scalar:
    """A scalar's value; quoted, or under !!str, it is text whatever it looks like."""
    text: str = event.value
    tag = _yaml_tag(event, ("str", *(name for name, _, _ in _YAML_CORE)), mark, places)
    if tag == "str" or (tag is None and not event.implicit[0]):
        return text
    try:
        return core_scalar(text, tag)
    except ValueError as error:
        raise places.error(mark, "bad-yaml", str(error), "correct the value") from None


def _yaml_tag(event: Any, known: tuple[str, ...], mark: Mark, places: _Places) -> str | None:
    """The name of an explicit tag. Raises InputError for one that is not of the core schema, as !!python/object."""
    if event.tag is None:
        return None
    name: str = "str" if event.tag == "!" else event.tag.removeprefix(_YAML_TAG)
    if name not in known:
        why = f"the tag {event.tag} asks for something other than plain data"
        raise places.error(mark, "bad-yaml", why, "remove the tag")
    return name


def _yaml_mistake(text: str, error: Any, places: _Places) -> InputError:
    """The parser's own words; they are precise, but for tabs and control characters."""
    if getattr(error, "problem_mark", None) is None:
        offset = getattr(error, "position", 0)
        return places.error(offset, "bad-yaml", "a control character stands here", "remove it")
    mark = Mark(file=places.file, line=error.problem_mark.line + 1, column=error.problem_mark.column + 1)
    line = (text.splitlines() or [""])[min(mark.line, len(text.splitlines())) - 1]
    if "\t" in line[: mark.column]:
        return places.error(mark, "bad-yaml", "a tab stands where YAML allows only spaces", "indent with spaces")
    why = ": ".join(part for part in (error.context, error.problem) if part)
    return places.error(mark, "bad-yaml", why, "correct the YAML at this place")
