"""A step's compiled program, as far as it says what a run needs: memory, collectives, kernels.

`train.compile` makes it, in a process of its own; here is its form, and the targets that it can be made for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seatrial.estimate.hlo import Collective, Kernel, Program

# Devices that XLA can compile for where there is none → their description, in `train/targets/`. AMD's runtime has no
# compiler that does without a device.
TARGETS = {"h100-sxm": "h100.textproto", "h200": "h200.textproto", "b200": "b200.textproto"}
CPU = "cpu"


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """Bytes are of each device. `held`: of parameters, optimizer and gradients, as the step's arrays lie.

    `seconds` and `process_bytes`: the time and memory that compiling took.
    """

    target: str
    versions: Mapping[str, str]
    arguments_bytes: int
    outputs_bytes: int
    aliased_bytes: int
    temporaries_bytes: int
    held: Mapping[str, int]
    program: Program
    notes: tuple[str, ...]
    seconds: float
    process_bytes: int

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by what they hold."""
        parameters, optimizer = self.held["parameters_bytes"], self.held["optimizer_bytes"]
        return {
            "parameters": parameters,
            "optimizer": optimizer,
            "batch": self.arguments_bytes - parameters - optimizer,
            "temporaries": self.temporaries_bytes,
            "results": self.outputs_bytes - self.aliased_bytes,
        }

    @property
    def total_bytes(self) -> int:
        """What the step needs at once: results that take an argument's place are not counted twice."""
        return self.arguments_bytes + self.outputs_bytes - self.aliased_bytes + self.temporaries_bytes


def from_dict(found: Mapping[str, Any], target: str, versions: Mapping[str, str]) -> Compiled:
    """What `train.compile` wrote. Raises KeyError, TypeError or AttributeError for anything else."""
    program = found["program"]
    return Compiled(
        target=target,
        versions=versions,
        **found["memory"],
        held=found["held"],
        program=Program(
            collectives=tuple(Collective(**{**row, "axes": tuple(row["axes"])}) for row in program["collectives"]),
            kernels=tuple(Kernel(**row) for row in program["kernels"]),
            unknown_loops=program["unknown_loops"],
        ),
        notes=tuple(found["notes"]),
        seconds=found["seconds"],
        process_bytes=found["process_bytes"],
    )
