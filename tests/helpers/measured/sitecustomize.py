"""Measures what a process covers of the source; Python imports this file at its start where it is on the module path.

`tests.helpers.coverage.measured` puts it there. SEATRIAL_COVERAGE is the folder that takes one file a process,
SEATRIAL_MEASURED has the files and folders of the source to measure.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import slipcover
from slipcover.importer import FileMatcher, ImportManager

ROOT = Path(__file__).parents[3]


def _measure(folder: Path, paths: Sequence[str]) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["slipcover"]
    sources, omitted = [ROOT / "src/seatrial" / path for path in paths], [str(ROOT / path) for path in settings["omit"]]
    counts = slipcover.Slipcover(branch=settings["branch"], exclude_also=settings["exclude-also"])
    ImportManager(counts, FileMatcher(sources, omitted)).__enter__()
    process = os.getpid()

    @atexit.register
    def _write() -> None:
        if os.getpid() == process and counts.code_lines:
            os.chdir(ROOT)  # the names of files are relative to it
            path = folder / f"{process}-{os.urandom(4).hex()}"
            path.write_text(json.dumps(counts.get_coverage()))
            path.rename(path.with_suffix(".json"))  # one that is killed meanwhile leaves no half


if "seatrial" not in sys.modules:
    _measure(Path(os.environ["SEATRIAL_COVERAGE"]), os.environ["SEATRIAL_MEASURED"].split())
