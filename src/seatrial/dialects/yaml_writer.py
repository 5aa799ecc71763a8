"""Plain data → YAML in block style that reads back as just that data, by YAML 1.2's core schema and by YAML 1.1's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

# Text that needs no quotes in any reader: it begins like a word or a path, and is none of the words below.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./+@-]*(:[A-Za-z0-9_./+@-]+)*")
_SPECIAL = re.compile(r"~|null|true|false|yes|no|on|off|y|n", re.IGNORECASE)
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")
MAX_FLOW = 100  # columns, up to which a list or a mapping of scalars stands in one line


def scalar(value: Any) -> str:
    """A scalar; text in quotes wherever it could be read as something else."""
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and not _SPECIAL.fullmatch(value):
            return value
        quoted = json.dumps(value, ensure_ascii=False)
        return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted)
    if isinstance(value, float):
        text = repr(value)  # YAML 1.1 sees a number only where there is a point
        return text if "." in text or "e" not in text else text.replace("e", ".0e")
    return json.dumps(value)


def dump(data: Mapping[str, Any]) -> str:
    """A mapping of scalars, lists and mappings."""
    return "".join(f"{line}\n" for line in _mapping(data, 0)) or "{}\n"


def _flow(value: Any) -> str | None:
    """A value in one line: a scalar, or a short list or mapping of nothing but scalars."""
    if not isinstance(value, (Mapping, list, tuple)):
        return scalar(value)
    if isinstance(value, Mapping):
        if any(isinstance(child, (Mapping, list, tuple)) for child in value.values()):
            return None if value else "{}"
        text = "{" + ", ".join(f"{scalar(key)}: {scalar(child)}" for key, child in value.items()) + "}"
    else:
        children = [_flow(child) for child in value]
        if any(child is None for child in children) or any(isinstance(child, Mapping) for child in value):
            return None if value else "[]"
        text = "[" + ", ".join(child or "" for child in children) + "]"
    return text if len(text) <= MAX_FLOW else None


def _mapping(data: Mapping[str, Any], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for key, value in data.items():
        short = _flow(value)
        if short is not None:
            yield f"{indent}{scalar(key)}: {short}"
        else:
            yield f"{indent}{scalar(key)}:"
            yield from _block(value, depth + 1)


def _block(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from _mapping(value, depth)
        return
    indent = "  " * depth
    for child in value:
        short = _flow(child)
        if short is not None:
            yield f"{indent}- {short}"
            continue
        lines = list(_block(child, depth + 1))
        yield f"{indent}- {lines[0].lstrip()}"
        yield from lines[1:]
