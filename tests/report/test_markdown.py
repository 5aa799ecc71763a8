"""The report for a pull request: it says the same, and text from outside is nothing but text."""

from __future__ import annotations

import html
import os
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings

from seatrial.report import markdown
from seatrial.report.gather import Tail, clean, gather
from tests.helpers import attacks, run_directory
from tests.helpers.run_directory import Story
from tests.helpers.shown_markdown import LIVE, Shown

GOLDEN = Path(__file__).parents[1] / "golden" / "report"
STORIES: dict[str, Story] = {
    "sound": run_directory.sound,
    "killed": run_directory.killed,
    "diverged": run_directory.diverged,
    "slow": run_directory.slow,
}
OURS = {
    "h2", "p", "strong", "sub", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "ul", "li",
    "pre", "code",
}  # fmt: skip


OWN_BEGINNING = re.compile(r"[#*<|]|- |Note: |Left out: |Not shown: |```|$")


@pytest.mark.parametrize("name", STORIES)
def test_golden_markdown(tmp_path: Path, name: str) -> None:
    shown = markdown.render(gather(run_directory.write(tmp_path / name, STORIES[name], rehearsing=False)))
    path = GOLDEN / f"{name}.md"
    if os.environ.get("SEATRIAL_GOLDEN"):
        path.write_text(shown + "\n", encoding="utf-8")
    assert shown + "\n" == path.read_text(encoding="utf-8")


def test_it_says_what_the_verdict_says() -> None:
    killed = attacks.killed()
    assert killed.verdict is not None
    shown = Shown(markdown.render(killed))
    said = " ".join("".join(shown.text).replace(markdown.JOINER, "").split())
    checks = [check for axis in killed.verdict.axes.values() for check in axis.checks]
    wanted = [killed.verdict.headline, "DIED", "Exit code 4", *(check.sentence for check in checks)]
    assert [text for text in wanted if text not in said] == []
    assert all(line in said for check in checks for line in check.evidence)
    assert shown.tags["table"] >= 2
    assert killed.tails[0].lines[-1] in "".join(shown.code)


@cache
def ordinary_comment() -> Shown:
    return Shown(markdown.render(attacks.killed()))


@settings(max_examples=100)
@given(raw=attacks.text)
def test_hostile_text_stays_text(raw: str) -> None:
    source = markdown.render(attacks.poisoned(raw))
    ordinary, found = ordinary_comment(), Shown(source)
    assert set(found.tags) <= OURS
    assert found.attributes <= {"style", "class"}  # of markdown-it's own: alignment and the language of code
    assert found.comments == 0
    assert found.tags["h2"] == 1
    for table in (0, 1):  # of checks and of figures: cell by cell the same
        assert found.cells[table] == ordinary.cells[table]
    live = LIVE.search("\n".join(found.text))
    assert live is None, live
    fenced = False  # no line of the source begins with anything but ours: no command, no other block
    for line in source.splitlines():
        fenced ^= line.startswith("```")
        assert fenced or re.match(r"[#*<|]|- |Note: |Left out: |Not shown: |```|$", line), line


@settings(max_examples=150)
@given(raw=attacks.text)
def test_inert_text_shows_what_it_was(raw: str) -> None:
    """In a table's cell, in a paragraph, and where HTML alone is read."""
    evil = clean(raw)
    wanted = " ".join(evil.split())
    safe = markdown.inert(evil, 10_000)
    assert html.unescape(safe).replace(markdown.JOINER, "") == wanted
    cell = Shown(markdown.table(("a", "b"), [(safe, "next")]))
    assert (cell.tags["tr"], cell.tags["td"]) == (2, 2)
    assert wanted in "".join(cell.text).replace(markdown.JOINER, "")
    assert wanted in "".join(Shown(f"Before: {safe}").text).replace(markdown.JOINER, "")


def test_no_log_gets_out_of_its_fence() -> None:
    killed = attacks.killed()
    lines = ("```", "````", "</pre></details>", "~~~", "`````x", "@someone")
    shown = Shown(markdown.render(replace(killed, tails=(Tail(log="a", lines=lines),))))
    assert "".join(shown.code) == "\n".join(lines) + "\n"


def test_a_comment_holds_it_however_much_there_is() -> None:
    killed = attacks.killed()
    assert killed.verdict is not None
    axis = killed.verdict.axes["completion"]
    many = replace(axis, checks=tuple(replace(axis.checks[0], evidence=("x<" * 400,) * 20) for _ in range(20)))
    big = replace(killed, verdict=replace(killed.verdict, axes={**killed.verdict.axes, "completion": many}))
    said = markdown.render(big)
    assert len(said) <= markdown.MAX_CHARACTERS
    assert "too long for a comment" in said
    assert killed.verdict.headline[:30] in said


def test_a_run_that_wrote_nothing(tmp_path: Path) -> None:
    said = markdown.render(gather(tmp_path))
    assert said.startswith("## ? NOT JUDGED")
    assert "verdict.json is not there" in said
