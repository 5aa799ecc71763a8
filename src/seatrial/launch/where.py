"""Where a run is to be: what the command line says of hosts, containers and Slurm."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where a run is to be, as the command line says it."""

    on: str = "local"
    cluster: Path | None = None
    python: str = "python3"
    container: str | None = None  # docker, podman or pyxis
    directory: PurePosixPath | None = None  # of all runs, on the hosts
    ssh: str = "asyncssh"
    slurm: tuple[str, ...] = ()  # KEY=VALUE
    queue_deadline: str | None = None
    exclude: tuple[str, ...] = ()  # hosts that are left out
    preflight: bool = True  # look at the hosts before anything is started there


HERE = Where()
