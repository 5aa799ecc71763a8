"""The guides that need a cluster, executed where there is one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.cluster.nodes import SEARCH_PATH
from tests.helpers.cluster.person import nothing_is_left
from tests.helpers.cluster.slurm import Slurm
from tests.helpers.guides import ROOT, SECONDS, environment, follow
from tests.helpers.processes import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(SECONDS + 120)]
GUIDES = ROOT / "docs" / "guides"


def installed_for_nodes(home: Path) -> None:
    """`~/seatrial/bin/python` of the guide: a Python that has Seatrial and its trainer."""
    python = home / "seatrial" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT / "src"}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)


def test_the_guide_to_slurm_does_what_it_shows(make_slurm: Callable[..., Slurm]) -> None:
    slurm = make_slurm(2, containers=False)
    folder = slurm.cluster.shared / "guide"
    folder.mkdir()
    seen = environment(slurm.cluster.shared)
    installed_for_nodes(Path(seen["HOME"]))
    path = f"{seen['PATH'].partition(os.pathsep)[0]}{os.pathsep}{SEARCH_PATH}"
    follow(GUIDES / "on-slurm.md", folder, {**seen, **slurm.environment, "PATH": path})
    wait_until(lambda: nothing_is_left(slurm.cluster), 30)
