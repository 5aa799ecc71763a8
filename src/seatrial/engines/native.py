"""Seatrial's own trainer as commands: `python -m seatrial.train`, one process per node."""

from __future__ import annotations

import dataclasses
import json
import sys

from seatrial.command import Command, Secret, guarded
from seatrial.engines import Commands, Ground, Placement
from seatrial.spec import RunSpec, to_dict
from seatrial.xla_flags import as_text, flags_of

TITLE = "Seatrial's own trainer"
FIRST_STEP = 0
FAMILY = None
ON_CPU = True
FIXED = ()
NEEDS_JAX_HERE = True
SPEC_FILE = "launch/trainer-spec.json"
RESTART_FILE = "launch/trainer-spec-restart.json"
XLA_FLAGS, TUNABLES = "XLA_FLAGS", "GLIBC_TUNABLES"
STEP_PATTERN = r"^completed step: (\d+)"  # MaxText's line, which the trainer prints

# XLA:CPU takes its temporary buffer from malloc in every step. As glibc comes, it maps and unmaps each, page by page;
# here, the main thread's stays for the next step (see `train.startup.use_cpu`), in huge pages. Without tcache: that
# keeps what is cut off a buffer to align it, so that the next finds no room in the same place, and takes another, again
# and again. One arena for all threads would keep the buffers of virtual devices, too; but the threads of XLA's compiler
# wait for each other there, 2 to 4 seconds of 10, and its heap holds two to four times as much. Only performance is
# changed.
CPU_MALLOC = {
    "glibc.malloc.mmap_threshold": str(1 << 30), "glibc.malloc.trim_threshold": str(1 << 36),
    "glibc.malloc.hugetlb": "1", "glibc.malloc.tcache_count": "0",
}  # fmt: skip


def commands(spec: RunSpec, ground: Ground) -> Commands:
    """One trainer a node, with the spec in a file; its Python is this one, unless the ground has its own."""
    # The trainer reads neither container nor environment from the file; there, they would only show their secrets.
    content = dataclasses.replace(spec, execution=dataclasses.replace(spec.execution, environment={}), container=None)
    path = RESTART_FILE if ground.restarted else SPEC_FILE
    files = {path: json.dumps(to_dict(content), indent=1) + "\n"}
    # -P: a file that lies in the user's folder must not take the place of a module.
    trainer = (ground.python or sys.executable, "-P", "-m", "seatrial.train")
    each = [
        Command(
            argv=(
                *trainer,
                *(str(ground.run_dir / path), "--out", str(ground.run_dir)),
                *("--process-id", str(rank), "--num-processes", str(len(ground.placements))),
                *(("--coordinator", ground.coordinator) if ground.coordinator else ()),
                *(("--attempt", str(ground.attempt)) if ground.attempt > 1 else ()),
                *(("--cpu-devices", str(placement.cpu_devices)) if placement.cpu_devices else ()),
            ),
            environment=environment(spec, ground, placement),
            files=files,
        )
        for rank, placement in enumerate(ground.placements)
    ]
    return Commands(each=each)


def environment(spec: RunSpec, ground: Ground, placement: Placement) -> dict[str, str | Secret]:
    """The variables of one process: the configuration's own, then what makes the run the one that was planned.

    What the user's shell says of XLA and of malloc comes before it, variable by variable. Of the flags for XLA, the
    trainer takes those of its environment and then those of its spec, without what its jaxlib does not accept; they are
    said here only where the shell's are known, and not where they would replace those of another host or an image.
    """
    variables = guarded(spec.execution.environment)
    variables["PYTHONUNBUFFERED"] = "1"
    if ground.shell is not None:
        texts = ground.shell.get(XLA_FLAGS, ""), str(variables.get(XLA_FLAGS, ""))
        flags = {**flags_of(" ".join(texts)), **spec.execution.xla_flags}
        variables |= {XLA_FLAGS: as_text(flags)} if flags else {}
    if placement.cpu_devices:
        variables["JAX_PLATFORMS"] = "cpu"
        words = (word.partition("=") for word in (ground.shell or {}).get(TUNABLES, "").split(":"))
        tunables = CPU_MALLOC | {name: value for name, given, value in words if given}
        variables.setdefault(TUNABLES, ":".join(f"{name}={value}" for name, value in tunables.items()))
    return variables | dict(placement.environment)
