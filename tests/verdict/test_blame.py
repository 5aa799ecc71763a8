"""Whole folders of logs of failed runs: who is blamed, and that nobody else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import blame_cases
from tests.helpers.blame_cases import Case

CASES = blame_cases.cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_who_is_blamed(case: Case, tmp_path: Path) -> None:
    blame_cases.write(case, tmp_path)
    metrics, verdict = blame_cases.judged(tmp_path)
    found = metrics.completion.diagnosis
    assert found is not None, verdict.headline
    assert found.kind in case.kinds
    assert blame_cases.named(found) <= case.culprits
    assert bool(blame_cases.named(found)) == (bool(case.culprits) and "unnamed" not in case.label)
    assert not set(found.victims) & case.culprits
    assert ("before the first step" in verdict.headline) <= (case.label.get("steps") == "none")
