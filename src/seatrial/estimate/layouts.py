"""The ways in which a run could be laid out on its devices: meshes, recomputation, micro-batches and formats, timed.

A layout changes how a step is computed, never what is learnt but for its number format: model, sequences and global
batch stay. The run's own layout is the first, whatever it is; the others divide evenly, as our own trainer asks, or
count the ends of the model as layers where the run does. Those that need more memory than a process gets are named with
what they would need.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from seatrial.estimate import hardware, memory
from seatrial.estimate.time_model import StepTime, predict
from seatrial.estimate.time_profile import Profile
from seatrial.spec import AXES, Execution, MeshShape, Parallelism, RunSpec, uneven_splits

# The rows of recomputation that are tried: what keeps all, what products give, some, nothing; and the parts of a layer
# that the row "selective" recomputes, which is all that Megatron-LM has between. MaxText's none recomputes in full.
Row = tuple[str, tuple[str, ...]]
ROWS: tuple[Row, ...] = (("none", ()), ("minimal_with_context", ()), ("save_qkv_proj", ()), ("full", ()))
OF_ENGINES: dict[str, tuple[Row, ...]] = {
    "maxtext": ROWS[1:],
    "megatron": (("none", ()), ("selective", ("core_attn",)), ("selective", ("mlp",)), ("full", ())),
}
MICRO_BATCHES = (1, 2, 4, 8)
CONTEXTS = (1, 2, 4, 8)
MOST_CHUNKS = 8  # of a stage; the run's own may have more
FP8 = "te_fp8_currentscaling"
INNERMOST_FIRST = ("tensor", "context", "fsdp", "data", "pipeline")  # what exchanges most stays closest


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A layout: its spec, its time, and the memory that it needs of each device; None: that a process has no limit.

    `is_own`: it is that of the configuration.
    """

    spec: RunSpec
    time: StepTime
    memory_bytes: float
    memory_parts: dict[str, float]
    available_bytes: float | None
    is_own: bool

    @property
    def fits(self) -> bool:
        return self.available_bytes is None or self.memory_bytes <= self.available_bytes


@dataclass(frozen=True, kw_only=True)
class Layouts:
    """All candidates, the fastest first; how many others do not divide, by what of them does not."""

    fitting: tuple[Candidate, ...]
    too_large: tuple[Candidate, ...]
    uneven: dict[str, int]


def layouts(spec: RunSpec, engine: str, profile: Profile, *, formats: Sequence[str | None] | None = None) -> Layouts:
    """Every layout of a run on its devices, timed by a profile. `formats`: quantizations to try; None: all that the
    device has."""
    found: list[Candidate] = []
    uneven: dict[str, int] = {}
    available, own = memory.available_bytes(spec, engine), memory.decided(_own(spec), engine)
    for shaped in _shaped(spec, uneven):
        for quantization in _formats(spec) if formats is None else formats:
            precision = replace(spec.precision, quantization=quantization)
            for execution in _executions(spec, engine):
                one = replace(shaped, precision=precision, execution=execution)
                if (timed := predict(one, engine, profile)) is None:
                    continue
                need = memory.per_device(one, engine)
                found.append(Candidate(
                    spec=one, time=timed, memory_bytes=need.total_bytes, memory_parts=need.parts,
                    available_bytes=available, is_own=one == own,
                ))  # fmt: skip
    found.sort(key=lambda each: each.time.step_seconds)
    return Layouts(
        fitting=tuple(each for each in found if each.fits),
        too_large=tuple(each for each in found if not each.fits),
        uneven=uneven,
    )


def fastest(spec: RunSpec, engine: str, profile: Profile) -> StepTime | None:
    """The time of the fastest layout that fits, in the run's own number format; None where none does."""
    timed: list[tuple[float, int, StepTime, RunSpec]] = []
    for shaped in _shaped(spec, {}):
        for execution in _executions(spec, engine):
            one = replace(shaped, execution=execution)
            if found := predict(one, engine, profile):
                timed.append((found.step_seconds, len(timed), found, one))
    available = memory.available_bytes(spec, engine)
    fitting = (
        found
        for _, _, found, one in sorted(timed)
        if available is None or memory.per_device(one, engine).total_bytes <= available
    )
    return next(fitting, None)


def rows(engine: str) -> tuple[Row, ...]:
    """The rows of recomputation that an engine can be told."""
    return OF_ENGINES.get(engine, ROWS)


def with_row(execution: Execution, row: Row) -> Execution:
    """The same choices with a row of recomputation."""
    remat, parts = row
    return replace(execution, remat=remat, remat_modules=parts, remat_kept=(), remat_offloaded=())


def _formats(spec: RunSpec) -> tuple[str | None, ...]:
    """The run's own format, and fp8 where its device has that and the run is in bfloat16."""
    own = spec.precision.quantization
    device = hardware.find(spec.topology.device)
    has_fp8 = device is not None and "fp8" in device.peak_flops and spec.precision.compute_dtype == "bfloat16"
    return (None, own or FP8) if has_fp8 or own else (None,)


def _executions(spec: RunSpec, engine: str) -> list[Execution]:
    """The run's own recomputation, and the rows that its engine has besides."""
    own = memory.decided(spec, engine).execution
    others = (with_row(spec.execution, row) for row in rows(engine))
    return [own, *(each for each in others if each != own)]


def _shaped(spec: RunSpec, uneven: dict[str, int]) -> Iterator[RunSpec]:
    """The run on its own mesh, then on each other; `uneven` counts those that do not divide, by what does not."""
    own = _own(spec)
    yield own
    for parallelism, micro in _shapes(spec):
        shaped = replace(spec, parallelism=parallelism, batch=replace(spec.batch, micro_batch_size=micro))
        if shaped == own:
            continue
        if split := next(uneven_splits(shaped), None):
            uneven[split.name] = uneven.get(split.name, 0) + 1
        else:
            yield shaped


def _own(spec: RunSpec) -> RunSpec:
    """The run with the sizes of its mesh that are left open."""
    within = spec.parallelism.within_node.resolve(spec.topology.devices_per_node)
    across = spec.parallelism.across_nodes.resolve(spec.topology.num_nodes)
    return replace(spec, parallelism=replace(spec.parallelism, within_node=within, across_nodes=across))


def _shapes(spec: RunSpec) -> Iterator[tuple[Parallelism, int]]:
    """Meshes over the devices, and micro-batches that the global batch has on them."""
    per_node, batch = spec.topology.devices_per_node, spec.batch.global_batch_size
    micros = sorted({*MICRO_BATCHES, spec.batch.micro_batch_size})
    for tensor, context, stages, rest in _splits(spec):
        for fsdp, data, zero1 in _replicas(rest, per_node // math.gcd(per_node, tensor * context)):
            sizes = {"tensor": tensor, "context": context, "pipeline": stages, "fsdp": fsdp, "data": data}
            if (mesh := _placed(spec, sizes)) is None:
                continue
            strategy = spec.parallelism.context_strategy
            made = replace(mesh, zero1=zero1, sequence_parallel=tensor > 1, context_strategy=strategy)
            for micro in micros:
                if batch % (rest * micro) == 0:
                    passes = batch // (rest * micro)
                    yield from ((replace(made, **staged), micro) for staged in _staged(spec, stages, passes))


class _Staged(TypedDict):
    """The layers of a pipeline's stages."""

    virtual_pipeline: int
    counts_embedding: bool
    counts_head: bool


def _staged(spec: RunSpec, stages: int, passes: int) -> Iterator[_Staged]:
    """The ways to give the layers to stages: the ends of the model as layers, too, where the run has it so; in chunks,
    where micro-batches come in groups of the stages."""
    for embedding, head in _ends(spec) if stages > 1 else [(False, False)]:
        each, left = divmod(spec.model.num_layers + embedding + head, stages)
        if not left:
            most = MOST_CHUNKS if stages > 1 and passes % stages == 0 else 1
            for chunks in (number for number in _divisors(each) if number <= most):
                yield {"virtual_pipeline": chunks, "counts_embedding": embedding, "counts_head": head}


def _ends(spec: RunSpec) -> list[tuple[bool, bool]]:
    """The ends of the model that count as layers: neither, and those that do in the run."""
    own = spec.parallelism.counts_embedding, spec.parallelism.counts_head
    return [(False, False)] if own == (False, False) else [(False, False), own]


def _splits(spec: RunSpec) -> Iterator[tuple[int, int, int, int]]:
    """Sizes of tensor, context and pipeline, and the replicas that they leave, where the global batch has as many."""
    devices, model = spec.topology.num_devices, spec.model
    tensors = _divisors(math.gcd(spec.topology.devices_per_node, model.num_heads))
    contexts = sorted({*CONTEXTS, spec.mesh["context"]})
    stages = sorted({s for ends in _ends(spec) for s in _divisors(math.gcd(devices, model.num_layers + sum(ends)))})
    for each in itertools.product(tensors, contexts, stages):
        rest, left = divmod(devices, math.prod(each))
        if not left and rest and spec.batch.global_batch_size % rest == 0:
            yield (*each, rest)


def _replicas(rest: int, in_node: int) -> Iterator[tuple[int, int, bool]]:
    """(fsdp, data, ZeRO-1) of so many replicas."""
    yield rest, 1, False
    if rest > 1:
        yield 1, rest, False
        yield 1, rest, True
    inside = math.gcd(rest, in_node)
    if 1 < inside < rest:
        yield inside, rest // inside, False


def _placed(spec: RunSpec, sizes: dict[str, int]) -> Parallelism | None:
    """A mesh with its innermost axes within nodes; None where they do not divide."""
    room, nodes = spec.topology.devices_per_node, spec.topology.num_nodes
    within, across = {}, {}
    for axis in INNERMOST_FIRST:
        within[axis] = math.gcd(sizes[axis], room)
        across[axis], room = sizes[axis] // within[axis], room // within[axis]
    if room != 1 or math.prod(across.values()) != nodes:
        return None
    return Parallelism(within_node=MeshShape(**within), across_nodes=MeshShape(**across))


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def show(spec: RunSpec) -> str:
    """A layout in a few words: "fsdp 8 × tensor 2", "pipeline 4 (2 chunks) × data 2, ZeRO-1"."""
    chunks = {"pipeline": f" ({number} chunks)" if (number := spec.parallelism.virtual_pipeline) > 1 else ""}
    sizes = [f"{axis} {size}{chunks.get(axis, '')}" for axis in AXES if (size := spec.mesh[axis]) > 1]
    return " × ".join(sizes) + (", ZeRO-1" if spec.parallelism.zero1 else "") if sizes else "one device"


def show_row(execution: Execution) -> str:
    """A row of recomputation in a few words: "selective: mlp"."""
    parts = ", ".join(execution.remat_modules)
    return f"{execution.remat}: {parts}" if parts else execution.remat
