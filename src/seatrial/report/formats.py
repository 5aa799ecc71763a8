"""The formats of a report: each is a module with `render(report) -> str`, and a row of this table."""

from __future__ import annotations

from collections.abc import Callable

from seatrial.report import csv, github, html, json, junit, markdown, text
from seatrial.report.gather import RunReport

FORMATS: dict[str, Callable[[RunReport], str]] = {
    "html": html.render,
    "text": text.render,
    "markdown": markdown.render,
    "junit": junit.render,
    "csv": csv.render,
    "json": json.render,
    "github": github.render,
}
