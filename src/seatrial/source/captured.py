"""The file that `seatrial capture` writes: a command and its variables, with the lines of the script they are from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from seatrial.errors import Mark, Problem
from seatrial.source.tree import Document, Node


def is_captured(root: Node) -> bool:
    """True if a file was written by `seatrial capture`."""
    return {"captured", "environment", "argv", "origins"} <= root.members.keys()


def placed(document: Document) -> Document:
    """The document with the places in the script, and a note for each assumption under which it was captured."""
    root, about = document.root, document.root.members["captured"].members
    places = root.members["origins"].members
    environment, argv = root.members["environment"], root.members["argv"]
    at = places["argv"].items if "argv" in places else []
    words = argv.items
    marks = [_mark(node) for node in at] if len(at) == len(words) else [word.mark for word in words]
    by_name: Mapping[str, Node] = places["environment"].members if "environment" in places else {}
    variables = {
        name: replace(node, mark=mark, key_mark=mark)
        for name, node in environment.members.items()
        for mark in [_mark(by_name[name]) if name in by_name else node.mark]
    }
    members = {
        "environment": replace(environment, value=variables),
        "argv": replace(argv, value=[replace(word, mark=mark) for word, mark in zip(words, marks, strict=True)]),
        **{name: node for name, node in root.members.items() if name == "files"},
    }
    notes = [
        Problem(
            severity="info", code="assumed", path="capture", why=str(node.value), mark=node.mark,
            fix="where it is otherwise on the cluster, capture the script there, or override what follows from it",
        )
        for node in (about["assumed"].items if "assumed" in about else ())
    ]  # fmt: skip
    folder = str(about["folder"].value) if "folder" in about else ""
    root = replace(root, value=members)
    return replace(document, root=root, problems=(*document.problems, *notes), folder=folder)


def _mark(node: Node) -> Mark:
    """The place that a text `file:line` names."""
    file, _, line = str(node.value).rpartition(":")
    return Mark(file=file, line=int(line), column=1) if file and line.isdecimal() and len(line) < 9 else node.mark
