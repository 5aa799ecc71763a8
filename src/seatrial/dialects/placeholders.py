"""Placeholders of CVS configurations: `<changeme>` for their users, `{user-id}` and the like for their readers to fill.

CVS looks for `<changeme>` anywhere in a value, in any case; keys that begin with `_` are notes (`_comments_…`), and
`_example_nnodes` holds an example for `nnodes`. Placeholders in braces stand in keys too (volumes).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from seatrial.source import Node, walk

_BRACES = re.compile(r"(?<!\$)\{([A-Za-z][\w-]*)\}")
EXAMPLE = "_example_"


def is_note(path: tuple[str, ...]) -> bool:
    """True if a key only explains others."""
    return any(part.startswith("_") for part in path)


def given(node: Node) -> dict[str, Node]:
    """The members of a mapping that are no notes."""
    return {name: child for name, child in node.members.items() if not is_note((name,))}


def flat(node: Node | None, is_open: Callable[[str], bool], name: str = "") -> Iterator[tuple[str, Node]]:
    """(path, node) of everything that is no note, going down only into the mappings whose paths are open."""
    for part, child in given(node).items() if node else ():
        below = f"{name}.{part}" if name else part
        if isinstance(child.value, dict) and is_open(below):
            yield from flat(child, is_open, below)
        else:
            yield below, child


def is_unfilled(value: Any) -> bool:
    """True if a value is still `<changeme>`, or holds it."""
    if isinstance(value, (list, tuple)):
        return any(is_unfilled(item) for item in value)
    return isinstance(value, str) and "<changeme>" in value.lower()


def stands_for_itself(text: str) -> bool:
    """True if a text means itself in a CVS file: no placeholder, nothing left to be filled in."""
    return not is_unfilled(text) and not _BRACES.search(text)


def unfilled(root: Node) -> Iterator[tuple[tuple[str, ...], Node]]:
    """Every value of a tree that is still to be filled in, and every key (its value's path, marked at the key)."""
    for path, node in walk(root):
        if is_note(path):
            continue
        if is_unfilled(node.value) and not isinstance(node.value, list):
            yield path, node
        if path and is_unfilled(path[-1]) and node.key_mark is not None:
            yield path, Node(value=path[-1], text=path[-1], mark=node.key_mark)


def values_for(user: str, home: Path) -> dict[str, str]:
    """The values of the placeholders in braces, by name; those of the last two are CVS's defaults."""
    return {"user-id": user, "user": user, "home": str(home), "home-mount-dir": "home", "node-dir-name": "root"}


def fill(value: Any, values: Mapping[str, str]) -> tuple[Any, list[str]]:
    """A value with its placeholders in braces replaced, and the names of the unknown ones."""
    if isinstance(value, list):
        filled = [fill(item, values) for item in value]
        return [item for item, _ in filled], [name for _, names in filled for name in names]
    if not isinstance(value, str):
        return value, []
    unknown = [name for name in _BRACES.findall(value) if name not in values]
    return _BRACES.sub(lambda match: values.get(match[1], match[0]), value), unknown
