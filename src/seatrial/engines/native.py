"""Seatrial's own trainer as commands: `python -m seatrial.train`, one process per node."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from seatrial.command import Command, Secret, is_secret
from seatrial.spec import RunSpec, to_dict

SPEC_FILE = "launch/trainer-spec.json"
STEP_PATTERN = r"^completed step: (\d+)"  # MaxText's line, which the trainer prints

# XLA:CPU takes its temporary buffers from malloc in every step; as glibc comes, each is mapped and unmapped again, and
# the page faults cost 29 % of the step. Measured; performance is all that this changes.
CPU_MALLOC = ":".join(
    f"glibc.malloc.{name}={value}"
    for name, value in (("mmap_threshold", 1 << 36), ("trim_threshold", 1 << 36), ("arena_max", 1))
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
    """What one process computes on: virtual CPU devices, or the accelerators that `environment` lets it see."""

    cpu_devices: int | None = None
    xla_flags: Mapping[str, str] = dataclasses.field(default_factory=dict)  # unless the configuration says otherwise
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


def commands(
    spec: RunSpec,
    placements: Sequence[Placement],
    *,
    run_dir: PurePath,
    python: str | None = None,
    coordinator: str | None = None,
    unknown_flags: Sequence[str] = (),
) -> list[Command]:
    """One command per process, in rank order; `run_dir` and `python` (by default this one) are where they run.

    `coordinator` is host:port of rank 0, needed for more than one. XLA ends a process that is given a flag it does not
    know, so `unknown_flags` are left out.
    """
    # The trainer reads neither container nor environment from the file; there, they would only show their secrets.
    content = dataclasses.replace(spec, execution=dataclasses.replace(spec.execution, environment={}), container=None)
    files = {SPEC_FILE: json.dumps(to_dict(content), indent=1) + "\n"}
    flags = {name: value for name, value in spec.execution.xla_flags.items() if name not in unknown_flags}
    return [
        Command(
            # -P: a file that lies in the user's folder must not take the place of a module.
            argv=(
                *(
                    python or sys.executable,
                    "-P",
                    "-m",
                    "seatrial.train",
                    str(run_dir / SPEC_FILE),
                    "--out",
                    str(run_dir),
                ),
                *("--process-id", str(rank), "--num-processes", str(len(placements))),
                *(("--coordinator", coordinator) if coordinator else ()),
                *(("--cpu-devices", str(placement.cpu_devices)) if placement.cpu_devices else ()),
            ),
            environment=environment(spec, placement, {**placement.xla_flags, **flags}),
            files=files,
        )
        for rank, placement in enumerate(placements)
    ]


def environment(spec: RunSpec, placement: Placement, xla_flags: Mapping[str, str]) -> dict[str, str | Secret]:
    """The variables of one process: the configuration's own, then what makes the run the one that was planned."""
    variables = guarded(spec.execution.environment)
    variables["PYTHONUNBUFFERED"] = "1"
    variables["XLA_FLAGS"] = " ".join(f"--{name}={value}" for name, value in xla_flags.items())
    if placement.cpu_devices:
        variables["JAX_PLATFORMS"] = "cpu"
        variables.setdefault("GLIBC_TUNABLES", CPU_MALLOC)
    return variables | dict(placement.environment)


def guarded(variables: Mapping[str, str]) -> dict[str, str | Secret]:
    """The variables with those made secret whose names say that they are."""
    return {name: Secret(value) if is_secret(name) else value for name, value in variables.items()}
