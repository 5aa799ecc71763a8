from __future__ import annotations

from pathlib import Path

import pytest

from tests.logs import case_folders


@pytest.mark.parametrize("folder", case_folders.folders("maxtext"), ids=lambda path: path.name)
def test_cases(folder: Path) -> None:
    case_folders.check(folder)
