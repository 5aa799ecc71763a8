"""Writes the reference page of the rules of `seatrial check` from their table."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator

from seatrial.check import RULES, Rule

_HEAD = """# What `seatrial check` checks

<!-- Made from the table of rules by `make golden`; edit the rules instead. -->

Besides what is wrong with single keys (unknown, misspelt, of the wrong type, still to be filled in), these rules look
at the run as a whole. Each finding has a code, for scripts (`--format json`), a place in the file, a reason and a fix.
An error ends with exit code 2; `--strict` treats warnings as errors, never notes. What only the cluster could not do
(memory, network) is an error in a check or a run, and a warning in a plan or a rehearsal.

The first records of files on this machine are read as well, as training would: `data` (error or warning) where it could
not, `long-records` (note or warning) where it would cut them, and `data-not-read` (note) where a library for it is not
installed; see [how to fine-tune](../howto/fine-tune.md).

| what holds of a sound configuration | codes where it does not | in detail |
| --- | --- | --- |
"""


def rules_page() -> str:
    """The page, as Markdown."""
    return _HEAD + "".join(
        f"| {name} | {', '.join(f'`{code}` ({how})' for code, how in _codes(rule).items())} | {_more(name, rule)} |\n"
        for name, rule in RULES
    )


def _more(name: str, rule: Rule) -> str:
    """The first line of a rule's docstring; "" where it only repeats the name."""
    line = (inspect.getdoc(rule) or "").partition("\n")[0]
    return "" if line.rstrip(".").lower() == name.lower() else line


def _codes(rule: Rule) -> dict[str, str]:
    """The codes of a rule's findings, and how severe each can be."""
    found: dict[str, set[str]] = {}
    for call in _findings(rule):
        code = call.args[2]
        assert isinstance(code, ast.Constant)
        found.setdefault(str(code.value), set()).update(_severities(call.args[1]))
    return {code: " or ".join(sorted(severities)) for code, severities in sorted(found.items())}


def _findings(rule: Rule) -> Iterator[ast.Call]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(rule)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "at":
            yield node


def _severities(node: ast.expr) -> set[str]:
    """The severities that an expression can stand for."""
    if isinstance(node, ast.Name):
        return {"error", "warning", "note"}
    words = {child.value for child in ast.walk(node) if isinstance(child, ast.Constant)} & {"error", "warning", "info"}
    return {"note" if word == "info" else str(word) for word in words} or {"error", "warning"}
