"""The table of targets, each a module that starts a plan in one kind of place, follows it, and finds it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from seatrial.command import RUNTIMES
from seatrial.errors import InputError
from seatrial.launch.follow import Following
from seatrial.launch.progress import Ending
from seatrial.launch.where import Where
from seatrial.plan import Plan, Site
from seatrial.spec import RunSpec

TARGETS: Mapping[str, str] = {  # name → module
    "local": "seatrial.launch.local",
    "ssh": "seatrial.launch.ssh",
    "slurm": "seatrial.launch.slurm",
    "kubernetes": "seatrial.launch.kubernetes.target",
}


class Target(Protocol):
    """A target's module; the package's docstring tells how to write one."""

    KNOWS_ITS_HOSTS: bool  # before the run begins, so that preflight can check them

    def site(self, where: Where, spec: RunSpec | None, run_dir: Path) -> Site | None:
        """The hosts of a run, or of any; None where they are this machine. Raises InputError for unusable ones."""

    def restarts(self, where: Where) -> bool:
        """True if it may restart the processes by itself, by the plan's `restart`."""

    def without(self, where: Where, hosts: tuple[str, ...], run_dir: Path) -> Where:
        """The same without some hosts of the attempt whose files are in the run directory."""

    def run(
        self, plan: Plan, run_dir: Path, following: Following, *, where: Where, site: Site | None, attempt: int
    ) -> Ending:
        """Runs a plan's processes, and returns when none of them is left; `attempt` counts from 1.

        Raises LaunchError where they cannot be started.
        """

    def attach(self, run_dir: Path, following: Following, *, name: str, planned_steps: int) -> Ending:
        """Follows a run again that somebody else has started, and returns when nothing of it is left."""

    def stop(self, run_dir: Path, *, now: bool) -> None:
        """Asks a run's processes to stop. Raises LaunchError where they cannot be asked."""


def target(name: str) -> Target:
    """A target's module. Raises InputError where there is none of the name."""
    if name not in TARGETS:
        known = f"it is one of {', '.join(TARGETS)}; a plan.json with another is damaged, or of another version"
        raise InputError.single("unknown-on", "on", f"there is no {name!r} to run on", known)
    return cast(Target, import_module(TARGETS[name]))


# Options that only some targets have; and what to give to another instead, where there is something.
_ONLY_FOR: Mapping[str, tuple[str, ...]] = {
    "cluster": ("ssh",), "exclude": ("ssh",), "directory": ("ssh",), "ssh": ("ssh",),
    "slurm": ("slurm",), "kubernetes": ("kubernetes",), "queue_deadline": ("slurm", "kubernetes"),
    "python": ("ssh", "slurm", "kubernetes"), "container": ("ssh", "slurm"),
}  # fmt: skip
_INSTEAD: Mapping[tuple[str, str], tuple[str, str]] = {
    ("cluster", "slurm"): ("Slurm allots the hosts", "omit it; --slurm nodelist=HOSTS asks for certain ones"),
    ("cluster", "kubernetes"): ("Kubernetes allots the nodes", "omit it; --kubernetes node-selector=LABEL=VALUE"),
    ("exclude", "kubernetes"): ("Kubernetes allots the nodes", "exclude nodes: --kubernetes exclude=NODE,NODE"),
    ("container", "kubernetes"): ("pods are containers anyhow", "omit it; the image is the configuration's"),
    ("exclude", "slurm"): ("Slurm allots the hosts", "let Slurm exclude them: --slurm exclude=HOST,HOST"),
}
# What options may say, other than `on`.
_WORDS: Mapping[str, tuple[str, ...]] = {"container": (*RUNTIMES, "pyxis"), "ssh": ("asyncssh", "system")}


def checked(where: Where) -> Where:
    """The same. Raises InputError for an option that its target does not have."""
    target(where.on)
    for name, known in _WORDS.items():
        if (given := getattr(where, name)) is not None and given not in known:
            why, fix = f"there is no {given!r}", f"one of: {', '.join(known)}"
            raise InputError.single("unknown-option", f"--{name}", why, fix)
    for field in fields(where):
        given, known = getattr(where, field.name), _ONLY_FOR.get(field.name, tuple(TARGETS))
        if given == field.default or where.on in known:
            continue
        option = "--" + field.name.replace("_", "-")
        usual = f"--on {where.on} does not use it", f"give --on {' or '.join(known)}, or omit it"
        raise InputError.single("option-target", option, *_INSTEAD.get((field.name, where.on), usual))
    if where.container == "pyxis" and where.on != "slurm":
        raise InputError.single("option-target", "--container", "pyxis is Slurm's", "give docker or podman")
    if where.directory is not None and not where.directory.is_absolute():
        why = f"{str(where.directory)!r} is not an absolute path, and the hosts have no current folder"
        raise InputError.single("relative-directory", "--directory", why, "give it from / on: /scratch/me/runs")
    return where


def with_requests(where: Where, spec: RunSpec, *, rehearsing: bool) -> Where:
    """The same, with what the configuration requests of Slurm before what the command line does, which wins."""
    if where.on != "slurm":
        return where
    from seatrial.launch import slurm_job

    return replace(where, slurm=(*slurm_job.requested(spec, rehearsing=rehearsing), *where.slurm))


def scripts(where: Where, plan: Plan, run_dir: Path) -> dict[str, str]:
    """The scripts that a target hands to another program to start a plan: path in the run directory → text."""
    if where.on == "slurm":
        from seatrial.launch import slurm, slurm_job

        wish = slurm.wished(where)
        script = slurm.script_of(plan, run_dir.resolve(), wish=wish, nonce="chosen at submission")
        return {slurm.SCRIPT: slurm_job.render(script)}
    if where.on == "kubernetes":
        from seatrial.launch.kubernetes import target as kubernetes

        return {kubernetes.SCRIPT: kubernetes.script_of(plan, where)}
    return {}


def on_hosts(where: Where) -> Where:
    """The same with --on ssh as the default, for a cluster file."""
    return replace(where, on="ssh") if where.on == "local" else where
