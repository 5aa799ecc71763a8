"""A Megatron-LM command, as torchrun starts it or as the variables of ROCm's Llama scripts → RunSpec, and back.

The command is read, never run; Megatron's defaults hold for what it does not say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from seatrial.dialects.megatron import build as megatron_build
from seatrial.dialects.megatron import findings as megatron_findings
from seatrial.dialects.megatron import write as megatron_write
from seatrial.dialects.megatron.arguments import ARGUMENTS, DEFAULTS, LAUNCHER, flag
from seatrial.dialects.megatron.rest import REST
from seatrial.dialects.megatron.script import VARIABLES
from seatrial.dialects.megatron.settings import Settings, settings
from seatrial.dialects.table.entries import Request
from seatrial.dialects.table.keys import Key
from seatrial.dialects.table.written import Written
from seatrial.spec import Origin, Resolved, RunSpec

NAME = megatron_build.NAME
KEYS: Mapping[str, Key] = {**ARGUMENTS, **LAUNCHER, **VARIABLES, **REST}


def read(request: Request) -> Resolved:
    """The spec that a command describes. Raises InputError where it starts nothing of Megatron."""
    stated = settings(request)
    megatron_findings.before(stated)
    spec = megatron_build.build(stated, request.document.file)
    if spec is not None:
        megatron_findings.after(stated, spec)
        spec = None if stated.is_broken else spec
    return Resolved(spec=spec, origins=_origins(stated), problems=tuple(stated.problems))


def write(spec: RunSpec, style: Literal["arguments", "environment"] = "arguments") -> Written:
    """The spec as a command: torchrun with pretrain_gpt.py's arguments, or the variables of one of ROCm's scripts."""
    return megatron_write.write(spec, style, read)


# What Megatron derives, each with how.
_DERIVED = {
    "parallelism.within_node.data": "devices ÷ (tensor × context × pipeline), in Megatron's order of ranks",
    "parallelism.across_nodes.data": "devices ÷ (tensor × context × pipeline), in Megatron's order of ranks",
    "batch.global_batch_size": "micro batch × data-parallel replicas",
    "model.ffn_dim": "from the hidden size",
    "model.head_dim": "hidden size ÷ heads",
    "model.num_kv_heads": "one for each head",
    "optimizer.decay_steps": "the run's steps",
}


def _origins(s: Settings) -> dict[str, Origin]:
    """Where each value came from: the command, the script, or Megatron's defaults; what is derived has a note."""
    origins = {path: Origin(kind="derived", note=note) for path, note in _DERIVED.items()} | dict(s.around.origins)
    for name in DEFAULTS:
        for path in ARGUMENTS[name].to.split(","):
            origins.setdefault(path, Origin(kind="default", key=f"--{name}", note="Megatron-LM's default"))
    for name, key in ARGUMENTS.items():
        for path in key.to.split(",") if key.to and key.read is flag else ():
            origins.setdefault(path, Origin(kind="default", key=f"--{name}", note="it is not given"))
    for name in s.values:
        found = ARGUMENTS.get(name) or VARIABLES.get(name) or LAUNCHER.get(name.removeprefix("torchrun."))
        entry = s.entries.get(name)
        for path in found.to.split(",") if found and found.to else ():
            if entry is not None:
                origins[path] = entry.origin()
            elif s.script and name != "num-distributed-optimizer-instances":
                origins[path] = Origin(kind="default", key=s.decided_by.get(name) or f"--{name}", note=f"{s.script}'s")
    if "model" in s.entries:
        origins = {path: origin for path, origin in origins.items() if not path.startswith("model.")}
        origins["model"] = s.entries["model"].origin()
    if "topology.device" in s.entries:
        origins["topology.device"] = s.entries["topology.device"].origin()
    if s.script and "topology.devices_per_node" not in origins:
        note = f"the script asks torch; {megatron_build.ASSUMED_DEVICES} are assumed"
        origins["topology.devices_per_node"] = Origin(kind="default", key="HIP_VISIBLE_DEVICES", note=note)
    return origins
