"""The page of the rules is the one that their table makes."""

from __future__ import annotations

import os
from pathlib import Path

from tools.check_page import rules_page

from seatrial.check import RULES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "check.md"


def test_golden_page_of_the_rules() -> None:
    if os.environ.get("SEATRIAL_GOLDEN"):
        PAGE.write_text(rules_page(), encoding="utf-8")
    assert rules_page() == PAGE.read_text(encoding="utf-8")


def test_every_rule_has_a_line_with_a_code() -> None:
    rows = [line.split(" | ") for line in rules_page().splitlines() if line.startswith("| ")][2:]
    assert len(rows) == len(RULES)
    for name, codes, what in rows:
        assert name.removeprefix("| ")
        assert codes.startswith("`")
        assert what.removesuffix("|").strip()[-1:] in ("", ".")
