"""Every family of logs has case folders, and each of these is read as it should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.logs import FAMILIES
from tests.helpers import log_cases

CASES = [folder for family in FAMILIES for folder in log_cases.folders(family)]


@pytest.mark.parametrize("folder", CASES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_golden_cases(folder: Path) -> None:
    log_cases.check(folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_cases(family: str) -> None:
    assert log_cases.folders(family)
