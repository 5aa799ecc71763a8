"""The measured step time beside the expected one, and what of the record explains the difference best.

Only what the metrics show is named. Which causes there are, the table `CAUSES` says: each reads from the metrics how
much of a step it can explain. Communication and computing cannot be told apart by step times alone: they are named only
where the record has a figure for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from seatrial.check.mesh import mesh_is_sound
from seatrial.estimate import hardware, memory, time_profile
from seatrial.estimate.time_model import StepTime, predict
from seatrial.metrics import Performance
from seatrial.spec import RunSpec
from seatrial.verdict.check import show_beside

LEAST = 0.01  # of a step: what costs less is no cause
NEARLY_FULL = 0.97  # of the memory: allocators begin to retry
EXPLAINS = 0.25  # of the gap is what the likeliest cause has to explain


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A possible cause of lost time: its kind, the seconds of a step that it explains, and the evidence."""

    kind: str
    seconds: float
    evidence: str


def beside_expected(performance: Performance, spec: RunSpec | None) -> tuple[str, ...]:
    """Lines: the measured step beside the expected one, and where it is slower, the likeliest cause; none without an
    expectation."""
    time, times = _expected(performance, spec), performance.estimates.get("step_seconds")
    if time is None or times is None or spec is None:
        return ()
    measured, (low, high) = times.value, time.interval
    beside = show_beside(measured, time.step_seconds, low, high, unit="s")
    change = measured / time.step_seconds - 1
    how = "slower than" if measured > high else "faster than" if measured < low else "within"
    line = (
        f"measured {beside[0]}, expected {beside[1]} on {spec.topology.num_devices} {time.profile.device} "
        f"({change:+.0%}): {how} {beside[2]} to {beside[3]}, {time.profile.certainty}"
    )
    if measured <= high:
        return (line,)
    return (line, _likeliest(performance, time, measured - time.step_seconds))


def _expected(performance: Performance, spec: RunSpec | None) -> StepTime | None:
    """The time of a step of what was run; None where devices, mesh or formats are not known."""
    device = hardware.find(performance.device or (spec.topology.device if spec else None))
    profile = time_profile.published(device)
    if (
        spec is None
        or profile is None
        or performance.num_devices != spec.topology.num_devices
        or not mesh_is_sound(spec)
    ):
        return None
    return predict(spec, memory.usual_engine(spec), profile)


def _likeliest(performance: Performance, time: StepTime, gap: float) -> str:
    """The cause that explains most of the gap, of those for which the record has evidence."""
    found = sorted((cause for each in CAUSES for cause in each(performance, time)), key=lambda each: -each.seconds)
    found = [cause for cause in found if cause.seconds >= LEAST * time.step_seconds]
    if found and found[0].seconds >= EXPLAINS * gap:
        best = found[0]
        return f"likeliest gap: {best.kind}, {min(best.seconds / gap, 1):.0%} of it: {best.evidence}"
    moved = sum(seconds for name, seconds in time.seconds.items() if name.startswith("communication"))
    hidden = sum(time.hidden_seconds.values())
    others = f"; beside that, {found[0].kind}: {found[0].evidence}" if found else ""
    if moved + hidden < gap / 2:
        return (
            f"likeliest gap: compute, by exclusion: no rank, no wait for data and no slower steps stand out, and all "
            f"communication, if nothing hid it, would be {(moved + hidden) / gap:.0%} of it{others}"
        )
    return (
        f"likeliest gap: compute or communication, which step times do not tell apart: without overlap, communication "
        f"would take {hidden / gap:.0%} of the gap{others}"
    )


# --- causes -----------------------------------------------------------------------------------------------------------


def _data(performance: Performance, time: StepTime) -> Iterator[Cause]:
    waited = performance.data_seconds
    if waited:
        yield Cause(kind="data", seconds=waited, evidence=f"a step waits {waited:.3g} s for its batch")


def _stragglers(performance: Performance, time: StepTime) -> Iterator[Cause]:
    """The slowest rank sets the pace of all: without it, the step would be as short as the others'."""
    measured = performance.estimates["step_seconds"].value
    for slow in performance.stragglers[:1]:
        seconds = measured * slow.slower_by / (1 + slow.slower_by)
        yield Cause(kind="stragglers", seconds=seconds, evidence=f"{slow.who} is {slow.slower_by:.1%} slower")


def _levels(performance: Performance, time: StepTime) -> Iterator[Cause]:
    """A run that was faster before: what it lost since is no property of its layout."""
    slower = [shift for shift in performance.shifts if shift.change > 0]
    if slower and performance.step_times is not None:
        last = slower[-1]
        lost = last.after_seconds - min(shift.before_seconds for shift in slower)
        yield Cause(kind="a change of speed", seconds=lost, evidence=f"slower from step {last.step} on")


def _memory(performance: Performance, time: StepTime) -> Iterator[Cause]:
    used = performance.estimates.get("memory_fraction")
    if used is not None and used.value >= NEARLY_FULL:
        gap = performance.estimates["step_seconds"].value - time.step_seconds
        evidence = f"{used.value:.0%} of the devices' memory are in use, where allocators free and try again"
        yield Cause(kind="memory", seconds=gap / 2, evidence=evidence)


CAUSES: tuple[Callable[[Performance, StepTime], Iterator[Cause]], ...] = (_data, _stragglers, _levels, _memory)
