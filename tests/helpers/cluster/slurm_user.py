"""Somebody who starts runs under Slurm."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.helpers.cluster.nodes import SEARCH_PATH
from tests.helpers.cluster.person import Person
from tests.helpers.cluster.slurm import Slurm
from tests.helpers.processes import wait_until


class SlurmUser(Person):
    """Somebody who submits jobs from this machine, and keeps runs where the nodes see them."""

    def __init__(self, slurm: Slurm, folder: Path) -> None:
        super().__init__(slurm.cluster, folder)
        self.slurm = slurm
        self.out = slurm.cluster.shared / "run"
        self.variables |= {**slurm.environment, "PATH": SEARCH_PATH}

    def under_slurm(self, config: Path, *options: str | Path) -> list[str | Path]:
        return ["run", config, "--on", "slurm", "--python", sys.executable, "--out", self.out, *options]

    def job(self) -> str:
        path = self.out / "launch/slurm/job.json"
        return str(wait_until(lambda: path.exists() and json.loads(path.read_text())["job"], 60))

    def rehearsal(self, *options: str | Path, steps: int, nodes: int, **given: Any) -> list[str | Path]:
        return self.under_slurm(self.configuration(steps=steps, nodes=nodes, **given), "--rehearse", *options)

    def begin(self, *options: str, nodes: int = 3) -> subprocess.Popen[str]:
        """A run that has taken its first steps, and takes them until something happens to it."""
        run = self.start(*self.under_slurm(self.endless(nodes=nodes), *options))
        self.wait_for_steps(run, 2)
        return run
