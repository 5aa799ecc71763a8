"""A Megatron-LM command, as torchrun starts it or as the variables of ROCm's Llama scripts → RunSpec, and back.

The command is read, never run; Megatron's defaults hold for what it does not say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from seatrial.dialects.megatron import build as megatron_build
from seatrial.dialects.megatron import findings as megatron_findings
from seatrial.dialects.megatron import write as megatron_write
from seatrial.dialects.megatron.arguments import ARGUMENTS, LAUNCHER, OTHER_ARGUMENTS
from seatrial.dialects.megatron.command import settings
from seatrial.dialects.megatron.script import VARIABLES
from seatrial.dialects.megatron.settings import KEPT
from seatrial.dialects.table.entries import Request
from seatrial.dialects.table.keys import Key
from seatrial.dialects.table.written import Written, with_steps
from seatrial.spec import Resolved, RunSpec

NAME = megatron_build.NAME
# Arguments whose fields hold all of them that bears on speed and memory.
SAID = tuple(name for name in KEPT if not ARGUMENTS[name].to.startswith("precision."))
_OF_A_NODE = ("--node_rank", "--node-rank")  # no text can say it for all nodes
KEYS: Mapping[str, Key] = {**ARGUMENTS, **LAUNCHER, **VARIABLES, **OTHER_ARGUMENTS}


def read(request: Request) -> Resolved:
    """The spec that a command describes. Raises InputError where it starts nothing of Megatron."""
    stated = settings(request)
    megatron_findings.before(stated)
    spec = megatron_build.build(stated, request.document.file)
    if spec is not None:
        megatron_findings.after(stated, spec)
        spec = None if stated.has_errors else spec
    unset = {*_OF_A_NODE, *(p.path for p in stated.problems if p.code == "unknown-variable")}
    found = (p for p in request.document.problems if p.code != "unknown-variable" or p.path not in unset)
    problems = (*found, *stated.around.problems, *stated.problems)
    return Resolved(spec=spec, origins=stated.origins(), problems=problems)


def write(spec: RunSpec, style: Literal["arguments", "environment"] = "arguments") -> Written:
    """The spec as a command: torchrun with pretrain_gpt.py's arguments, or the variables of one of ROCm's scripts."""
    return megatron_write.write(with_steps(spec, "Megatron-LM"), style, read)
