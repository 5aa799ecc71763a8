"""Markdown as GitHub shows it."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser

from markdown_it import MarkdownIt

GITHUB = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
# What GitHub and GitLab make of text nodes, after Markdown: mentions, issues, requests, URLs, commits.
LIVE = re.compile(r"@\w|[#!$%~&^](?=[\w\"{])|://|\bwww\.|\bGH-\d|\b[0-9a-f]{7,40}\b", re.IGNORECASE)


class Shown(HTMLParser):
    """Rendered Markdown as a reader sees it: the elements, and the text outside of code."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: Counter[str] = Counter()
        self.attributes: set[str] = set()
        self.text: list[str] = []
        self.code: list[str] = []
        self.comments = 0
        self.cells: list[int] = []  # of each table
        self._open: list[str] = []
        self.feed(GITHUB.render(source))
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        if tag == "table":
            self.cells.append(0)
        elif tag in ("td", "th"):
            self.cells[-1] += 1
        self.attributes |= {name for name, _ in attributes}
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_comment(self, data: str) -> None:
        self.comments += 1

    def handle_data(self, data: str) -> None:
        (self.code if "pre" in self._open else self.text).append(data)
