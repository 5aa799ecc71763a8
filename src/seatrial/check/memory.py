"""Memory: the run fits into each device."""

from __future__ import annotations

from collections.abc import Iterator

from seatrial.check.environment import exported
from seatrial.check.finder import Finder
from seatrial.check.mesh import mesh_is_sound
from seatrial.errors import Problem
from seatrial.estimate import hardware, memory
from seatrial.estimate.memory import DOUBT
from seatrial.xla_flags import SHARE_VARIABLES

MOST = 0.95  # of a device's memory is what JAX may be given: the rest is for the runtime and its collectives


def memory_fits(finder: Finder) -> Iterator[Problem]:
    """The run fits into each device's memory; an error only where its state alone does not."""
    spec = finder.spec
    device = hardware.find(spec.topology.device)
    if device is None or not finder.needs.memory or not mesh_is_sound(spec):
        return
    need = memory.per_device(spec, finder.engine)
    compiled = finder.compiled if finder.engine == memory.OWN else None
    total = compiled.total_bytes if compiled else need.total_bytes
    share, variable = memory.share(spec, finder.engine)
    there, found = device.memory_bytes * share, f"{device.name} has {_gib(device.memory_bytes)}"
    if share < 1:
        found += f", of which {variable or 'JAX'} gives {'' if variable else 'a process '}{_gib(there)}"
    where = "parallelism.within_node.fsdp"
    if need.state_bytes > device.memory_bytes:
        certain = finder.blocking == "error" and not finder.is_assumed("topology.num_nodes")
        yield finder.at(
            where, "error" if certain else "warning", "out-of-memory",
            f"parameters, gradients and optimizer state alone take {_gib(need.state_bytes)} of each device"
            f"{finder.note('topology.num_nodes')}, and {found}",
            "split them over more devices (fsdp, tensor, pipeline, ZeRO-1), or keep them in bfloat16",
        )  # fmt: skip
    # Other trainers are counted by rules of thumb, our own by what the compiler says of it.
    elif total > (1 + (DOUBT if finder.engine != memory.OWN else 0)) * there:
        held = compiled.parts if compiled else need.parts
        largest = sorted(held.items(), key=lambda part: -part[1])[:3]
        parts = ", ".join(f"{name} {_gib(size)}" for name, size in largest)
        fix = "recompute more (remat), use a smaller micro batch, or split over more devices"
        if share < MOST and total <= MOST * device.memory_bytes:
            fix = f"export {variable or SHARE_VARIABLES[-1]}={MOST:g}, or {fix}"
        yield finder.at(
            where, "warning", "out-of-memory",
            f"each device needs {'' if compiled else 'about '}{_gib(total)}{finder.note('topology.num_nodes')} "
            f"({parts}){' by the compiled step' if compiled else ''}, and {found}",
            fix,
        )  # fmt: skip
    elif compiled:
        why = f"each device needs {_gib(total)} by the compiled step, and {found}"
        yield finder.at(where, "info", "compiled-memory", why, "")


def memory_fraction(finder: Finder) -> Iterator[Problem]:
    """The share of a device's memory for JAX is a fraction, and is given once."""
    if not memory.is_shared(finder.spec, finder.engine):
        return
    for part in ("execution", "container"):
        for name in SHARE_VARIABLES:
            text = exported(finder.spec, part).get(name)
            if text and memory.fraction(text) == 1.0 and text.strip() not in ("1", "1.0", "1."):
                yield finder.at(
                    f"{part}.environment.{name}", "error", "bad-variable",
                    f"{text!r} is not a share of a device's memory, and JAX ends a process for that",
                    "use 0.9, for example",
                )  # fmt: skip
    new, old = SHARE_VARIABLES
    if all(exported(finder.spec).get(name) for name in SHARE_VARIABLES):
        why = f"{new} sets the same, and JAX ends a process that is given both"
        yield finder.at(finder.variable(old), "error", "bad-variable", why, "remove it")


def _gib(size: float) -> str:
    return f"{size / hardware.GIB:,.0f} GiB" if size >= hardware.GIB else f"{size / 2**20:,.0f} MiB"
