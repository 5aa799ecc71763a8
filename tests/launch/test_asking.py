"""The answers of `plan` and `preflight`, without any host, to what cannot be done: the place and the fix."""

from __future__ import annotations

import json
import sys
from pathlib import Path, PurePosixPath

import pytest

from seatrial.cluster import Cluster, Host
from seatrial.commands.preflight import not_asked
from seatrial.plan import Site
from tests.helpers.command_line import seatrial
from tests.helpers.seeds import ROOT

TINY = ROOT / "configs" / "native" / "eight-devices.yaml"
ON_SSH = ("--on", "ssh", "--cluster", "cluster.yaml")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text("hosts: [a, b]\n")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "code", "fix"),
    [
        (("topology.num_nodes=4", "across_nodes.data=4", "global_batch_size=64", *ON_SSH), "too-few-hosts", "fewer"),
        (("--engine", "megatron", "--rehearse"), "rehearsal-engine", "--engine native"),
        (("--engine", "megatron", "--rehearse", *ON_SSH), "rehearsal-engine", "--engine native"),
        (("--container", "docker", *ON_SSH), "no-image", "omit --container"),
        (("--directory", "runs", *ON_SSH), "relative-directory", "from / on"),
        (("--engine", "foo", *ON_SSH), "unknown-engine", "native, maxtext, megatron"),
    ],
)
def test_what_cannot_run_anywhere_is_no_plan(arguments: tuple[str, ...], code: str, fix: str, here: Path) -> None:
    done = seatrial("plan", TINY, *arguments, "--format", "json", cwd=here)
    (problem,) = (each for each in json.loads(done.stdout)["problems"] if each["severity"] == "error")
    assert (done.returncode, problem["code"]) == (2, code)
    assert fix in problem["fix"]


@pytest.mark.parametrize(
    ("arguments", "code", "fix"),
    [
        (("--engine", "foo", "--cluster", "cluster.yaml"), "unknown-engine", "native, maxtext, megatron"),
        (("--directory", "~/x", "--cluster", "cluster.yaml"), "relative-directory", "from / on"),
        (("--on", "slurm"), "slurm-hosts", "--on slurm --rehearse"),
        (("--on", "slurm", "--cluster", "cluster.yaml"), "slurm-hosts", "--on ssh --cluster FILE"),
    ],
)
def test_what_cannot_be_looked_at_is_said(arguments: tuple[str, ...], code: str, fix: str, here: Path) -> None:
    done = seatrial("preflight", *arguments, "--format", "json", cwd=here)
    (problem,) = json.loads(done.stdout)["problems"]
    assert (done.returncode, problem["code"]) == (2, code)
    assert fix in problem["fix"]


@pytest.mark.parametrize("has_jax", [True, False])
@pytest.mark.parametrize(
    "verb",
    [
        ("plan", TINY), ("plan", TINY, "--rehearse"), ("plan", TINY, "--collapse"),
        ("plan", TINY, "topology.device=h100", "topology.num_nodes=4"), ("plan", TINY, "--explain", "steps"),
        ("run", TINY, "--out", "run"), ("run", TINY, "--out", "run", *ON_SSH), ("preflight",),
    ],
)  # fmt: skip
def test_an_unknown_engine_is_refused_before_anything_else(
    verb: tuple[str, ...], has_jax: bool, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_jax:
        monkeypatch.setitem(sys.modules, "jax", None)  # type: ignore[arg-type]  # as if it were not installed
    done = seatrial(*verb, "--engine", "maxtxt", "--format=json" if verb[0] != "run" else "--retries=0", cwd=here)
    assert done.returncode == 2
    for told in ("unknown-engine", "maxtxt", "did you mean maxtext?", "native, maxtext, megatron"):
        assert told in done.stdout + done.stderr
    assert not (here / "run").exists()


def test_a_plan_under_slurm_has_the_script(here: Path) -> None:
    asked = ("--on", "slurm", "--slurm", "partition=zzz")
    text = seatrial("plan", TINY, *asked, "--all", cwd=here).stdout
    assert "# File launch/slurm/job.sh" in text
    assert "#SBATCH --partition=zzz" in text
    files = json.loads(seatrial("plan", TINY, *asked, "--format", "json", cwd=here).stdout)["plan"]["files"]
    assert "#SBATCH --partition=zzz" in files["launch/slurm/job.sh"]


@pytest.mark.parametrize(("runtime", "where"), [(None, "on the hosts"), ("docker", "in the image")])
def test_what_was_not_asked_is_said(runtime: str | None, where: str) -> None:
    site = Site(
        cluster=Cluster(hosts=(Host(name="a", address="a"),), transport="ssh"), root=PurePosixPath("/"), runtime=runtime
    )
    assert not_asked(None, site, "maxtext")[1:] == [f"whether MaxText is installed {where}"]
    (skipped,) = not_asked(None, site, "native")
    assert "without a configuration" in skipped
