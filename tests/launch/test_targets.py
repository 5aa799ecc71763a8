"""Where a run is to be: what each target can be told, and what it has no use for."""

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
        ({"queue_deadline": "1m"}, "--queue-deadline.*give --on slurm"),
        ({"container": "podman"}, "--container.*give --on ssh or slurm"),
        ({"on": "ssh", "container": "pyxis"}, "pyxis is Slurm's"),
        ({"on": "ssh", "directory": PurePosixPath("runs")}, "--directory.*'runs' is not an absolute path.*from / on"),
        ({"on": "ssh", "directory": PurePosixPath("")}, "--directory.*from / on"),
        ({"on": "ssh", "directory": PurePosixPath("~/x")}, "--directory.*from / on"),
        ({"python": "python3.12"}, "--python.*give --on ssh or slurm"),
    ],
)
def test_an_option_without_effect_is_the_users_error(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as told:
        checked(Where(**given))
    (problem,) = told.value.problems
    assert re.search(says, f"{problem.path}: {problem.why}: {problem.fix}")


def test_hosts_are_left_out_in_the_way_of_the_target() -> None:
    assert target("ssh").without(Where(on="ssh", exclude=("a",)), ("b",)).exclude == ("a", "b")
    slurm = Where(on="slurm", slurm=("time=5", "exclude=a"))
    assert target("slurm").without(slurm, ("b",)).slurm[-1] == "exclude=a,b"
    assert on_hosts(Where()).on == "ssh"
    assert on_hosts(Where(on="slurm")).on == "slurm"
