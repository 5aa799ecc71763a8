"""`seatrial train`: this process becomes the trainer's."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Never

from seatrial.command import revealed
from seatrial.commands.check import read_valid, spec_of
from seatrial.commands.run import RunRequest, plan_run
from seatrial.console import note
from seatrial.errors import LaunchError
from seatrial.runs.directory import claim, new_directory, write_inputs
from seatrial.runs.files import write_text
from seatrial.spec import RunSpec

SHARED_FILES_SECONDS = 60.0
_FROM_LAUNCHERS = {
    "nodes": ("NNODES",),
    "rank": ("NODE_RANK",),
    "address": ("MASTER_ADDR", "JAX_COORDINATOR_IP"),
    "port": ("MASTER_PORT", "JAX_COORDINATOR_PORT"),
}


def train_here(request: RunRequest) -> Never:
    """Runs one trainer process in the foreground, without launcher or verdict.

    A run over several nodes needs what launchers export: NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT (or the CVS
    spelling JAX_COORDINATOR_IP and JAX_COORDINATOR_PORT), and `out` on a file system that all nodes share. Raises
    LaunchError where these, or the devices, are missing.
    """
    resolved = read_valid(request.config, action="train")
    spec = spec_of(resolved)
    rank, coordinator = _rank_and_coordinator(spec, os.environ)
    if coordinator and request.out is None:
        raise LaunchError("a run over several nodes needs a run directory that all of them share: give --out DIR")
    run_dir = (request.out or new_directory(spec)).resolve()
    plan = plan_run(request, spec, run_dir, nodes_here=1, coordinator=coordinator or "")
    command = plan.processes[rank].command
    if rank == 0:
        claim(run_dir)
        write_inputs(resolved, request.config.config, plan, run_dir)
        for relative, text in command.files.items():
            write_text(run_dir / relative, text, below=run_dir)
    else:
        _await_files([run_dir / relative for relative in command.files])
    note(plan.notes)
    os.execve(command.argv[0], command.argv, {**os.environ, **revealed(command.environment)})


def _rank_and_coordinator(spec: RunSpec, environ: Mapping[str, str]) -> tuple[int, str | None]:
    """(rank, host:port of rank 0) from what launchers export; rank 0 without a coordinator for a single node."""
    nodes = spec.topology.num_nodes
    if nodes == 1:
        return 0, None
    found = {}
    for what, spellings in _FROM_LAUNCHERS.items():
        names = [name for name in spellings if environ.get(name)]
        if not names:
            raise LaunchError(
                f"a run over {nodes} nodes needs {' or '.join(spellings)} in the environment of each of its processes; "
                "to run them all on this machine, use `seatrial run`"
            )
        found[what] = environ[names[0]]
    if found["nodes"] != str(nodes) or found["rank"] not in map(str, range(nodes)):
        raise LaunchError(f"the launcher says rank {found['rank']} of {found['nodes']}, the run has {nodes} nodes")
    return int(found["rank"]), f"{found['address']}:{found['port']}"


def _await_files(paths: Sequence[Path]) -> None:
    """Waits for what rank 0 writes. Raises LaunchError where it does not come."""
    deadline = time.monotonic() + SHARED_FILES_SECONDS
    while missing := [path for path in paths if not path.exists()]:
        if time.monotonic() > deadline:
            raise LaunchError(f"rank 0 has not written {missing[0]}: is that file system shared by all nodes?")
        time.sleep(0.1)
