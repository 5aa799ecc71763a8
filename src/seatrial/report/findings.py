"""The formats of findings: each is a row of this table."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from seatrial.errors import Problem
from seatrial.report.problems import render_json, render_text


def _annotations(problems: Iterable[Problem]) -> str:
    """Workflow commands, errors first, and the line that counts them."""
    from seatrial.report.github import of_findings  # late: it knows verdicts too, which `check` has none of
    from seatrial.report.problems import ordered, summary

    found = ordered(problems)
    return "\n".join([*of_findings(found), summary(found)])


FORMATS: dict[str, Callable[[Iterable[Problem]], str]] = {
    "text": render_text,
    "json": render_json,
    "github": _annotations,
}
