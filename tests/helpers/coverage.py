"""Processes of tests whose lines `make test` counts."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).with_name("measured")


def measured(*paths: str) -> dict[str, str]:
    """The variables of a process of which these files and folders of src/seatrial are measured, and of what it starts.

    Only for what a test in its own process cannot run: counting a file makes its import slow.
    """
    if "SEATRIAL_COVERAGE" not in os.environ:
        return dict(os.environ)
    path = os.pathsep.join(filter(None, (str(FOLDER), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "SEATRIAL_MEASURED": " ".join(paths)}
