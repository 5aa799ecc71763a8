"""The table of peers: every mark has its source, and nothing is missing of Seatrial without a reason."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "peers.md"
TEXT = PAGE.read_text(encoding="utf-8")
TITLE, _, *ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("|")
]
FEATURES = {name: cells for name, *cells in ROWS if not name.startswith("**") and name != "Licence"}
SOURCE = re.compile(
    r"\[[✔◐]\]\(https://(github\.com/[\w.-]+/[\w.-]+/blob/[0-9a-f]{40}/|docs\.skypilot\.co/|nvidia\.github\.io/)\S+\)"
)


def test_the_peers_are_those_that_people_weigh() -> None:
    names = ["CloudAI", "llmb", "Primus", "NeMo-Run", "MaxText + xpk", "ReFrame", "SkyPilot", "Seatrial"]
    assert ["Feature", *names] == TITLE
    assert len(FEATURES) > 30
    assert {len(cells) for cells in FEATURES.values()} == {len(names)}


def test_every_mark_of_a_peer_has_its_source() -> None:
    cells = [(name, cell) for name, row in FEATURES.items() for cell in row[:-1]]
    assert [(name, cell) for name, cell in cells if cell != "–" and not SOURCE.fullmatch(cell)] == []
    assert re.search(r"as of \d+ \w+ 20\d\d", TEXT)


def test_what_seatrial_lacks_has_a_reason() -> None:
    for name, (*_, own) in FEATURES.items():
        mark, note = re.fullmatch(r"(?:\[(?=.+\]\())?([✔◐–])(?:\]\([^)]+\))?(?:\[\^(\w+)\])?", own).groups()
        assert mark == "✔" or note, name
        if note:
            reason = re.search(rf"^\[\^{note}\]: (.+)", TEXT, re.MULTILINE)
            assert reason, name
            assert mark != "–" or reason[1].startswith("Decided against"), name


def test_seatrials_own_marks_lead_to_a_page() -> None:
    links = [re.search(r"\(([^)#]+)", row[-1]) for row in FEATURES.values()]
    assert [link[1] for link in links if link and not (PAGE.parent / link[1]).exists()] == []
