"""The guides that need a cluster, executed where there is one."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers.cluster.image import IMAGE, MOUNTED
from tests.helpers.cluster.kubectl import written_for
from tests.helpers.cluster.nodes import SEARCH_PATH, Cluster
from tests.helpers.cluster.person import nothing_is_left, trainers
from tests.helpers.cluster.slurm import Slurm
from tests.helpers.guides import ROOT, SECONDS, environment, follow, steps
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


def test_the_guide_to_kubernetes_does_what_it_shows(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(2)
    folder = cluster.shared / "guide"
    folder.mkdir()
    seen = environment(cluster.shared)
    installed_for_nodes(Path(seen["HOME"]))
    programs = Path(seen["PATH"].partition(os.pathsep)[0])
    written_for(cluster.nodes, programs / "kubectl", cluster.shared / "pods")
    page = list(steps((GUIDES / "on-kubernetes.md").read_text(encoding="utf-8")))
    mounts = [[f"{seen['HOME']}/seatrial", "/opt/seatrial:ro"], *([path, f"{path}:ro"] for path in MOUNTED)]
    named = "container:\n  image: registry.example.org/ml/seatrial:cpu"
    ours = f"container: {{image: {IMAGE}, pull: never, volumes: {json.dumps(mounts)}}}"  # without Seatrial in it
    page = [replace(step, command=step.command.replace(named, ours)) if step.file else step for step in page]
    path = f"{programs}{os.pathsep}{SEARCH_PATH}"
    follow(GUIDES / "on-kubernetes.md", folder, {**seen, "PATH": path}, page)
    wait_until(lambda: not any(map(trainers, cluster.nodes)), 30)
