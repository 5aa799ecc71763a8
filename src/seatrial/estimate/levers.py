"""Single changes to a run or its device, and the step time that each would give: what the time depends on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from seatrial.estimate import hardware, memory
from seatrial.estimate.layouts import rows, show_row, with_row
from seatrial.estimate.time_model import predict
from seatrial.estimate.time_profile import Profile, Rate
from seatrial.spec import RunSpec

LEAST = 0.005  # of a step: what changes less is not shown
LESS = ("none", "minimal_with_context", "selective")  # rows that recompute little


@dataclass(frozen=True, kw_only=True)
class Lever:
    """A change, the step time with it, and whether its memory fits. A step with twice the tokens counts as half."""

    change: str
    step_seconds: float
    fits: bool


def levers(spec: RunSpec, engine: str, profile: Profile) -> list[Lever]:
    """The changes that matter, that which saves most first."""
    decided = memory.decided(spec, engine)
    now = predict(decided, engine, profile)
    if now is None:
        return []
    available = memory.available_bytes(spec, engine)
    found = []
    for change, changed in _of_run(decided, engine):
        if time := predict(changed, engine, profile):
            seconds = time.step_seconds * spec.tokens_per_step / changed.tokens_per_step
            fits = available is None or memory.per_device(changed, engine).total_bytes <= available
            found.append(Lever(change=change, step_seconds=seconds, fits=fits))
    for change, other in _of_device(profile):
        if time := predict(decided, engine, other):
            found.append(Lever(change=change, step_seconds=time.step_seconds, fits=True))
    matters = [each for each in found if abs(each.step_seconds / now.step_seconds - 1) >= LEAST]
    return sorted(matters, key=lambda each: (not each.fits, each.step_seconds))


def _of_run(spec: RunSpec, engine: str) -> Iterator[tuple[str, RunSpec]]:
    batch, execution = spec.batch, spec.execution
    for row in rows(engine):
        changed = with_row(execution, row)
        if row[0] in LESS and changed != execution:
            yield f"remat {show_row(changed)} instead of {show_row(execution)}", replace(spec, execution=changed)
    if spec.accumulation_steps % 2 == 0:
        micro = 2 * batch.micro_batch_size
        yield f"micro-batches of {micro}", replace(spec, batch=replace(batch, micro_batch_size=micro))
    yield "twice the global batch", replace(spec, batch=replace(batch, global_batch_size=2 * batch.global_batch_size))
    device = hardware.find(spec.topology.device)
    if spec.precision.quantization is None and device and "fp8" in device.peak_flops:
        precision = replace(spec.precision, quantization="te_fp8_currentscaling")
        yield "matrix products in fp8", replace(spec, precision=precision)


def _of_device(profile: Profile) -> Iterator[tuple[str, Profile]]:
    fast, slow = profile.fast, profile.slow
    yield "a network twice as fast", replace(profile, slow=replace(slow, bytes_per_second=2 * slow.bytes_per_second))
    twice = replace(fast, bytes_per_second=2 * fast.bytes_per_second)
    yield "links between neighbours twice as fast", replace(profile, fast=twice)
    yield "memory twice as fast", replace(
        profile, memory_bytes_per_second=2 * profile.memory_bytes_per_second,
        optimizer_bytes_per_second=2 * profile.optimizer_bytes_per_second,
    )  # fmt: skip
    yield "matrix products 10% faster", replace(profile, products={k: _faster(v) for k, v in profile.products.items()})


def _faster(rate: Rate) -> Rate:
    return replace(rate, flops_per_second=1.1 * rate.flops_per_second)
