"""A step's compiled program beside the estimate, for people and for scripts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from seatrial.console import UNLIMITED, inert, table
from seatrial.estimate import memory
from seatrial.estimate.compiled import Compiled
from seatrial.estimate.hardware import GIB
from seatrial.report.expected import show_size
from seatrial.spec import RunSpec

_NUMBERS = ("times", "in the program", "bytes per device", "compiled", "estimated")
_TEMPORARY = ("gradients", "activations", "working")  # parts of the estimate that are temporary in the program


def as_dict(found: Compiled, spec: RunSpec) -> dict[str, Any]:
    """The compiled program and the estimate as plain data."""
    estimated = memory.per_device(spec, memory.OWN)
    return {
        **dataclasses.asdict(found),
        "total_bytes": found.total_bytes,
        "estimated_bytes": estimated.total_bytes,
        "estimated_bytes_by_use": estimated.parts,
        "process_memory_bytes": memory.available_bytes(spec, memory.OWN),
    }


def render(found: Compiled, spec: RunSpec) -> str:
    """The program in text: memory beside the estimate, collectives, kernels, notes."""
    title = f"# Compiled for {found.target}"
    by = ", ".join(f"{name} {version}" for name, version in found.versions.items() if name != "jaxlib")
    how = f"with {by}; {found.seconds:.0f} s, {found.process_bytes / GIB:.1f} GiB of this machine's memory"
    sections = [f"{title}\n\n{inert(how)}", _memory(found, spec)]
    if found.program.collectives:
        rows = [
            (each.kind, ", ".join(each.axes), "yes" if each.is_asynchronous else "no", f"{each.times:,}",
             f"{each.instructions:,}", show_size(each.bytes))
            for each in found.program.collectives
        ]  # fmt: skip
        head = ("collectives of a step", "over", "asynchronous", "times", "in the program", "bytes per device")
        sections.append(_table(rows, head))
    kernels = [(each.kind, f"{each.times:,}", f"{each.instructions:,}") for each in found.program.kernels]
    if kernels:
        sections.append(_table(kernels, ("kernels of a step", "times", "in the program")))
    return "\n\n".join([*sections, *(f"note: {inert(each)}" for each in _notes(found))])


def _memory(found: Compiled, spec: RunSpec) -> str:
    """The memory of each device by use, compiled and estimated."""
    estimated = memory.per_device(spec, memory.OWN)
    of, held = estimated.parts, found.parts
    gradients, temporary = found.held["gradients_bytes"], sum(of[name] for name in _TEMPORARY)
    summed = f"of these, gradients added up {show_size(gradients)}" if gradients <= found.temporaries_bytes else ""
    rows = [
        ("parameters", held["parameters"], of["parameters"], "arguments"),
        ("optimizer", held["optimizer"], of["optimizer"], "arguments"),
        ("batch, counters, scales", held["batch"], 0.0, "arguments"),
        ("temporaries", held["temporaries"], temporary, summed),
        ("results", held["results"], 0.0, f"of {show_size(found.outputs_bytes)}, {show_size(found.aliased_bytes)} take "
         "the place of arguments"),
        ("all of it", found.total_bytes, estimated.total_bytes, _share(found, spec, estimated.total_bytes)),
    ]  # fmt: skip
    head = ("memory per device", "compiled", "estimated", "")
    shown = [(name, show_size(size), show_size(guess) if guess else "", why) for name, size, guess, why in rows]
    return _table(shown, head)


def _share(found: Compiled, spec: RunSpec, estimated: float) -> str:
    off = estimated / found.total_bytes - 1
    there = memory.available_bytes(spec, memory.OWN)
    share = f"{found.total_bytes / there:.0%} of the {show_size(there)} that a process gets; " if there else ""
    return f"{share}the estimate is {abs(off):.1%} too {'high' if off > 0 else 'low'}"


def _notes(found: Compiled) -> Iterator[str]:
    yield from found.notes
    if found.program.unknown_loops:
        yield f"{found.program.unknown_loops} loops have no known number of turns, and are counted as one turn each"
    if any("no library" in each.kind for each in found.program.kernels):
        yield "products that no library computes are made by XLA itself; those of large matrices are slower so"
    yield "beside it, a GPU needs some gigabytes for its runtime and for the buffers of collectives"


def _table(rows: Sequence[tuple[str, ...]], head: tuple[str, ...]) -> str:
    numbers = [number for number, name in enumerate(head) if name in _NUMBERS]
    return table(rows, head=head, right=numbers, indent=0, columns=UNLIMITED)
