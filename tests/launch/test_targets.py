"""The targets of a run: the options that each accepts, and those that it has no use for."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from seatrial.errors import InputError
from seatrial.launch.targets import TARGETS, checked, on_hosts, target
from seatrial.launch.where import Where


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_says_what_it_knows_beforehand(name: str) -> None:
    there = target(name)
    assert (name == "ssh") == there.KNOWS_ITS_HOSTS
    assert checked(Where(on=name)) == Where(on=name)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"on": "ssh2"}, "^on: there is no 'ssh2'.*plan.json"),
        ({"cluster": Path("a")}, "--cluster.*give --on ssh"),
        ({"on": "slurm", "cluster": Path("a")}, "Slurm allots the hosts.*nodelist"),
        ({"on": "slurm", "exclude": ("a",)}, "Slurm allots the hosts.*exclude=HOST"),
        ({"on": "ssh", "slurm": ("time=1",)}, "--slurm.*give --on slurm"),
        ({"queue_deadline": "1m"}, "--queue-deadline.*give --on slurm or kubernetes"),
        ({"kubernetes": ("queue=ml",)}, "--kubernetes.*give --on kubernetes"),
        ({"on": "kubernetes", "cluster": Path("a")}, "Kubernetes allots the nodes.*node-selector"),
        ({"on": "kubernetes", "exclude": ("a",)}, "Kubernetes allots the nodes.*exclude=NODE"),
        ({"on": "kubernetes", "container": "podman"}, "pods are containers anyhow"),
        ({"on": "kubernetes", "directory": PurePosixPath("/runs")}, "--directory.*give --on ssh"),
        ({"container": "podman"}, "--container.*give --on ssh or slurm"),
        ({"on": "ssh", "container": "pyxis"}, "pyxis is Slurm's"),
        ({"on": "ssh", "directory": PurePosixPath("runs")}, "--directory.*'runs' is not an absolute path.*from / on"),
        ({"on": "ssh", "directory": PurePosixPath("")}, "--directory.*from / on"),
        ({"on": "ssh", "directory": PurePosixPath("~/x")}, "--directory.*from / on"),
        ({"python": "python3.12"}, "--python.*give --on ssh or slurm or kubernetes"),
    ],
)
def test_an_option_without_effect_is_the_users_error(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as told:
        checked(Where(**given))
    (problem,) = told.value.problems
    assert re.search(says, f"{problem.path}: {problem.why}: {problem.fix}")


def test_hosts_are_left_out_in_the_way_of_the_target(tmp_path: Path) -> None:
    assert target("ssh").without(Where(on="ssh", exclude=("a",)), ("b",), tmp_path).exclude == ("a", "b")
    slurm = Where(on="slurm", slurm=("time=5", "exclude=a"))
    assert target("slurm").without(slurm, ("b",), tmp_path).slurm[-1] == "exclude=a,b"
    kubernetes = Where(on="kubernetes", kubernetes=("exclude=gpu-1",))
    assert target("kubernetes").without(kubernetes, ("it-node-0-1",), tmp_path) == kubernetes  # it ran nowhere
    (tmp_path / "launch/kubernetes").mkdir(parents=True)
    (tmp_path / "launch/kubernetes/nodes.json").write_text('{"it-node-0-0": "gpu-6", "it-node-0-1": "gpu-7"}')
    excluded = target("kubernetes").without(kubernetes, ("it-node-0-1",), tmp_path)
    assert excluded.kubernetes[-1] == "exclude=gpu-1,gpu-7"
    assert on_hosts(Where()).on == "ssh"
    assert on_hosts(Where(on="slurm")).on == "slurm"
