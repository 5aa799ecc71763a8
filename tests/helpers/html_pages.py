"""Hostile runs, and what a page of HTML says."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

from seatrial import events
from seatrial.spec import RunSpec
from tests.helpers import run_directory, streams

HOSTILE = (
    "</script><script>window.owned = 1</script>",
    "<img src=x onerror='window.owned = 2'>",
    '" onmouseover="window.owned = 3',
    "{{ 7 * 191 }} {% raw %}",
    "<!--<script>",
    "javascript:window.owned=4",
    "\u2028\u2029]]>&lt;b&gt;",
    "\x1b]0;title\x07\x1b[31mred",
)


def hostile_run(run_dir: Path) -> Path:
    """A broken run in which every text that comes from outside is an attack."""
    everything = " ".join(HOSTILE)

    def story(spec: RunSpec) -> list[list[events.Event]]:
        trainer, *_ = run_directory.killed(spec)
        (started, *rest) = trainer
        assert isinstance(started, events.RunStarted)
        bad = {**started.facts, "attention": everything, "versions": {everything: everything}}
        fields = {**vars(started), "host": everything, "device_kind": everything, "facts": bad}
        fault = streams.fault("process_died", everything, everything, at=20)
        return [[events.RunStarted(**fields), *rest], [fault, streams.ended("died", -1, exit_code=1, at=21)]]

    problem = {
        "severity": "warning", "code": everything, "path": everything, "why": everything, "fix": everything,
        "file": everything, "line": 1, "column": 1,
    }  # fmt: skip
    asked = run_directory.asked_for(name=everything, log_dir=everything)
    log = "\n".join([*HOSTILE, "x" * 1_000_000, everything])
    run_directory.write(run_dir, story, asked=asked, logs={"0": log, "1": log}, problems=[problem])
    spec_file = run_dir / "spec.json"
    data = json.loads(spec_file.read_text(encoding="utf-8"))
    for origin in data["origins"].values():
        origin.update(key=everything, text=everything, note=everything)
    spec_file.write_text(json.dumps(data), encoding="utf-8")
    return run_dir


class Page(HTMLParser):
    """A parsed page: its elements with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in ("meta", "br", "input", "link"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self._open[-1] if self._open else "", []).append(data)
