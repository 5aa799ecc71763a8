"""The place of a run, as the command line gives it: hosts, containers, Slurm, Kubernetes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, kw_only=True)
class Where:
    """The place of a run, as the command line gives it."""

    on: str = "local"
    cluster: Path | None = None
    python: str = "python3"
    container: str | None = None  # docker, podman or pyxis
    directory: PurePosixPath | None = None  # of all runs, on the hosts
    ssh: str = "asyncssh"
    slurm: tuple[str, ...] = ()  # KEY=VALUE
    kubernetes: tuple[str, ...] = ()  # KEY=VALUE
    queue_deadline: str | None = None
    exclude: tuple[str, ...] = ()  # hosts
    preflight: bool = True  # check the hosts before anything is started there


HERE = Where()
