"""Keys of an engine that no field of the spec holds, as text in `execution.engine_keys`, and back.

MaxText's have their own names, Megatron's arguments begin with two hyphens, and variables of its scripts are in capital
letters: so each engine finds its own.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from seatrial.source import core_scalar
from seatrial.spec import RunSpec

_PLAIN = re.compile(r"[A-Za-z0-9_./-][A-Za-z0-9_./ -]*")
_SWITCHES = ("yes", "no", "on", "off", "y", "n")  # of YAML 1.1


def as_text(value: Any) -> str:
    """A value as YAML reads it from a command line: a text as it is, where nothing else could be meant, else JSON."""
    if isinstance(value, str):
        return value if _reads_as_itself(value) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)


def _reads_as_itself(text: str) -> bool:
    if not _PLAIN.fullmatch(text) or text != text.strip() or text.startswith("-"):
        return False
    try:
        return isinstance(core_scalar(text), str) and text.lower() not in _SWITCHES
    except ValueError:
        return True


def value_of(text: str) -> Any:
    """The value that a text stands for on MaxText's command line."""
    try:
        return json.loads(text) if text[:1] in ("[", "{", '"') else core_scalar(text)
    except ValueError:
        return text


def maxtext_keys(spec: RunSpec) -> dict[str, Any]:
    """MaxText's keys, with their values."""
    keys = spec.execution.engine_keys.items()
    return {name: value_of(text) for name, text in keys if owner(name) == "maxtext"}


def owner(name: str) -> str:
    """The engine whose key it is."""
    return "megatron" if is_argument(name) or is_variable(name) else "maxtext"


def is_argument(name: str) -> bool:
    """True if it is one of Megatron's arguments; its text is its values, as a shell would read them."""
    return name.startswith("--")


def is_variable(name: str) -> bool:
    """True if it is a variable of Megatron's scripts."""
    return name.isupper()


def words(keys: Mapping[str, str]) -> list[list[str]]:
    """Megatron's arguments among some keys, each with its values."""
    return [[name, *shlex.split(text)] for name, text in keys.items() if is_argument(name)]
