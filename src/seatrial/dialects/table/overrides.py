"""`key=value` from the command line: which key of the file is meant, and what to say where that is not clear.

A key may be given in full (`config.nnodes`) or by any suffix of its path that only one key has (`nnodes`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from seatrial import source
from seatrial.dialects.table.suggestions import did_you_mean
from seatrial.errors import InputError, Mark, Problem
from seatrial.source import Node

COMMAND_LINE = Mark(file="command line", line=1, column=1)  # never shown: findings about overrides have no place


@dataclass(frozen=True, kw_only=True)
class Override:
    """One `key=value`, as given."""

    key: str
    text: str


def parse(arguments: Sequence[str]) -> list[Override]:
    """The overrides in the order given. Raises InputError with every argument that is none."""
    problems = []
    overrides = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key.strip("-").strip():
            overrides.append(Override(key=key.removeprefix("--").strip(), text=value))
        else:
            problems.append(
                Problem(
                    severity="error", code="bad-override", path=argument, why="this is not of the form key=value",
                    fix="write it as key=value, without spaces around the equals sign",
                )
            )  # fmt: skip
    if problems:
        raise InputError(problems)
    return overrides


def resolve(override: Override, *, given: Collection[str], possible: Collection[str], open_: Collection[str]) -> str:
    """The full path of the key that an override means.

    A full path means itself. Of suffixes, a key that the file has goes before one that it could have (`possible`), and
    that before a new one in a mapping whose keys are the user's own (`open_`). Raises InputError where no key, or more
    than one, is meant.
    """
    key = override.key
    if key in given or key in possible:
        return key
    paths = _ending_in(key, given) or _ending_in(key, possible) or _inside(key, open_)
    if len(paths) == 1:
        return paths[0]
    if paths:
        fix = f"give enough of the path to name one of them, for example {paths[0]}={override.text}"
        raise InputError.single("ambiguous-override", key, f"{len(paths)} keys end in it: {', '.join(paths)}", fix)
    below = [path for path in (*given, *possible) if f".{key}." in f".{path}"]
    if below:
        fix = f"give one of its keys, for example {below[0]}=…"
        raise InputError.single("unknown-override", key, "this is a section, not a value", fix)
    why, known = "no key of this kind of configuration has this name", list(dict.fromkeys([*given, *possible]))
    raise InputError.single("unknown-override", key, why, did_you_mean(key, known))


def value_node(override: Override, *, is_json: bool) -> Node:
    """An override's value as a file would hold it: a list or a mapping (JSON, or YAML), else a scalar."""
    if override.text[:1] in ("[", "{"):
        root = source.parse(override.text, file=f"the value of {override.key}", is_json=is_json).root
        return replace(root, mark=COMMAND_LINE, text=override.text)
    try:
        return Node(value=source.core_scalar(override.text), text=override.text, mark=COMMAND_LINE)
    except ValueError:
        return Node(value=override.text, text=override.text, mark=COMMAND_LINE)


def put(node: Node, path: tuple[str, ...], leaf: Node, *, scalar: str = "") -> Node:
    """The tree with a value in another's place, or added; sections that are missing are made.

    A text where a section belongs becomes the section's member `scalar`, where that is given.
    """
    if not path:
        return replace(leaf, key_mark=node.key_mark)
    if isinstance(node.value, list):
        items = [put(item, path[1:], leaf) if str(at) == path[0] else item for at, item in enumerate(node.value)]
        return replace(node, value=items)
    members = node.members or ({scalar: node} if scalar and isinstance(node.value, str) else {})
    child = members.get(path[0], Node(value={}, mark=COMMAND_LINE))
    return replace(node, value={**members, path[0]: put(child, path[1:], leaf, scalar=scalar)})


def _ending_in(key: str, paths: Collection[str]) -> list[str]:
    return [path for path in paths if path == key or path.endswith(f".{key}")]


def _inside(key: str, mappings: Collection[str]) -> list[str]:
    """The paths that a key can mean as a new one in one of some mappings (`env_dict.NCCL_DEBUG`)."""
    parts = key.split(".")
    cuts = range(1, len(parts))
    return [
        f"{mapping}.{'.'.join(parts[cut:])}" for cut in cuts for mapping in _ending_in(".".join(parts[:cut]), mappings)
    ]
