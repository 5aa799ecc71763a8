"""YAML from the events of PyYAML's parser, by YAML 1.2's core schema; composer and constructors never run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from seatrial.errors import InputError, Mark
from seatrial.source.tree import MAX_DIGITS, Builder, Places, Scalar

_CORE: tuple[tuple[str, re.Pattern[str], Callable[[str], Scalar]], ...] = (
    ("null", re.compile(r"|~|null|Null|NULL"), lambda text: None),
    ("bool", re.compile(r"true|True|TRUE|false|False|FALSE"), lambda text: text.lower() == "true"),
    ("int", re.compile(r"[-+]?[0-9]+"), int),
    ("int", re.compile(r"0o[0-7]+"), lambda text: int(text, 8)),
    ("int", re.compile(r"0x[0-9a-fA-F]+"), lambda text: int(text, 16)),
    ("float", re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
    ("float", re.compile(r"[-+]?\.(inf|Inf|INF)"), lambda text: -math.inf if text[0] == "-" else math.inf),
    ("float", re.compile(r"\.(nan|NaN|NAN)"), lambda text: math.nan),
)
_OCTAL = re.compile(r"[-+]?0[0-7]{1,20}")  # in YAML 1.1, which NeMo's and MaxText's readers follow
_TAG = "tag:yaml.org,2002:"

# The parser's words; whether the mistake lies where it began to read, or where it stopped; why, and what to do.
_MISTAKES = (
    ("quoted scalar: found unexpected end of stream", True, "the quote that begins here never ends", "close it"),
    ("flow mapping: did not find", True, "the { that begins here is not closed, or lacks a comma", "close it with }"),
    ("flow sequence: did not find", True, "the [ that begins here is not closed, or lacks a comma", "close it with ]"),
    ("could not find expected ':'", True, "no colon with a blank after it stands behind this", "write key: value"),
    ("character that cannot start any token", False, "no plain value begins with this character",
     "put the value in quotes"),
    ("mapping values are not allowed", False, "no key can stand here: a value began before it, on this line or above",
     "indent it like the keys that it belongs to, or put a value with a colon in quotes"),
    ("expected '-' indicator", False, "a list goes on here without -", "begin the item with -, or indent this less"),
    ("expected <document start>", False, "the document was complete before this",
     "remove it, or write everything as key: value"),
    ("expected node content", False, "a value was expected here", "write one, or put it in quotes"),
    ("unknown escape character", False, "a \\ inside double quotes begins an escape, and this is none",
     "write \\\\ for a backslash, or use single quotes"),
)  # fmt: skip


def read_yaml(text: str, builder: Builder) -> None:
    """One document of YAML, from the parser's events: its composer and constructors, which recurse, never run."""
    import yaml  # late: JSON, the common case, does not pay for it

    documents = 0
    try:
        event: Any
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            mark = _mark(event.start_mark, builder.places)
            documents += isinstance(event, yaml.DocumentStartEvent)
            if documents > 1:
                raise builder.places.error(mark, "bad-yaml", "a second document begins here", "keep one to a file")
            if isinstance(event, yaml.CollectionEndEvent):
                builder.end()
            elif isinstance(event, yaml.NodeEvent):
                (_key if builder.expects_key else _node)(event, mark, text, builder)
    except yaml.YAMLError as error:
        raise _mistake(text, error, builder.places) from None


def _key(event: Any, mark: Mark, text: str, builder: Builder) -> None:
    """Takes what stands in the place of a key. Raises InputError for anything but a scalar."""
    if getattr(event, "value", None) is None:
        why, fix = "a key must be a word or a string", "write a plain key"
        if text[getattr(event.start_mark, "index", 0) - 1 :].startswith("{{"):
            why, fix = "{{ … }} is a template's, and nothing fills it in here", "write the value itself"
        raise builder.places.error(mark, "bad-yaml", why, fix)
    if event.value == "<<" and event.implicit[0]:  # of YAML 1.1, and of whatever else reads these files
        builder.merge_key(mark)
    else:
        builder.key(event.value, mark)


def _node(event: Any, mark: Mark, text: str, builder: Builder) -> None:
    """Takes a value, or the beginning of a mapping or a list."""
    kind = type(event).__name__
    if kind == "AliasEvent":
        builder.alias(str(event.anchor), mark)
    elif kind == "ScalarEvent":
        builder.scalar(_value(event, mark, builder.places), event.value, mark, event.anchor)
    else:
        _tag(event, ("map",) if kind == "MappingStartEvent" else ("seq",), mark, builder.places)
        builder.begin({} if kind == "MappingStartEvent" else [], mark, event.anchor)


def core_scalar(text: str, tag: str | None = None) -> Scalar:
    """The value of a plain scalar by YAML 1.2's core schema; what fits no type is text.

    Raises ValueError for a number of too many digits, and where the text cannot be of the type that `tag` asks for.
    """
    for name, pattern, convert in _CORE:
        if tag in (None, name) and pattern.fullmatch(text):
            if len(text) > MAX_DIGITS:
                raise ValueError(f"{len(text)} digits are too many for a number")
            return convert(text)
    if tag is not None:
        raise ValueError(f"this is marked as {tag}, but cannot be read as one")
    return text


def _value(event: Any, mark: Mark, places: Places) -> Scalar:
    """A scalar's value; quoted, or under !!str, it is text whatever it looks like."""
    text: str = event.value
    tag = _tag(event, ("str", *(name for name, _, _ in _CORE)), mark, places)
    if tag == "str" or (tag is None and not event.implicit[0]):
        return text
    if _OCTAL.fullmatch(text):
        why = f"YAML 1.2 reads {text} as {int(text)}, and PyYAML as {int(text, 8)}"
        raise places.error(mark, "bad-yaml", why, "write it without the zero, or in quotes if it is text")
    try:
        return core_scalar(text, tag)
    except ValueError as error:
        raise places.error(mark, "bad-yaml", str(error), "correct the value") from None


def _tag(event: Any, known: tuple[str, ...], mark: Mark, places: Places) -> str | None:
    """The name of an explicit tag. Raises InputError for one that is not of the core schema, as !!python/object."""
    if event.tag is None:
        return None
    name: str = "str" if event.tag == "!" else event.tag.removeprefix(_TAG)
    if name not in known:
        why = f"the tag {event.tag} is not one of plain data"
        raise places.error(mark, "bad-yaml", why, "remove the tag")
    return name


def _mistake(text: str, error: Any, places: Places) -> InputError:
    """The error for broken YAML: the mistake that it probably is, else the parser's own words, which are precise."""
    if getattr(error, "problem_mark", None) is None:
        offset = getattr(error, "position", 0)
        return places.error(offset, "bad-yaml", "a control character stands here", "remove it")
    said = ": ".join(part for part in (error.context, error.problem) if part)
    lines = text.split("\n")
    line, column = lines[min(error.problem_mark.line, len(lines) - 1)], error.problem_mark.column
    at_its_beginning = False
    if " tab " in said or re.match(r" *\t", line):
        why, fix = "a tab stands where YAML allows only spaces", "indent with spaces"
    elif "flow sequence: did not find" in said and re.match(r"\S\[", line[column - 1 : column + 1]):
        why, fix = "a [ inside a value begins a list of its own", "put the whole value in quotes, as 'node[01-03]'"
    elif row := next((row for row in _MISTAKES if row[0] in said), None):
        _, at_its_beginning, why, fix = row
    elif "did not find expected key" not in said:
        why, fix = said, "correct the YAML at this place"
    elif line[:column].strip():
        why, fix = "the value before this was complete", "remove the rest, or put the whole value in quotes"
    elif line[column:].startswith("- "):
        why, fix = "an item of a list stands among keys", "indent it below its key"
    else:
        why, fix = "this line is indented like none of the keys above it", "indent it like the keys that it belongs to"
    mark = error.context_mark if at_its_beginning else error.problem_mark
    return places.error(_mark(mark, places), "bad-yaml", why, fix)


def _mark(mark: Any, places: Places) -> Mark:
    """The parser's mark, which counts from 0, as ours."""
    return Mark(file=places.file, line=mark.line + 1, column=mark.column + 1)
