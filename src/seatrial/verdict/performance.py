"""Was it as fast as the configuration expects?"""

from __future__ import annotations

from seatrial.metrics import Estimate, Performance
from seatrial.spec import METRICS, Expectation, RunSpec
from seatrial.verdict.check import Axis, Check, Status, show

AXIS: Axis = "performance"
MIN_STEPS = 10
MIN_TIMED = 0.5  # of the steps
MAX_SPREAD = 0.05


def judge_performance(performance: Performance, spec: RunSpec, *, rehearsal: bool, tolerance: float) -> list[Check]:
    """A check per expectation; one that says so where nothing is expected, or where speed means nothing."""
    if rehearsal:
        sentence = "Not judged: a rehearsal's speed says nothing about the cluster."
        expected = tuple(
            f"expected of the cluster: {METRICS[e.metric].title} {show(e.value, METRICS[e.metric].unit)}"
            for e in spec.expectations
        )
        return [Check(name="speed", axis=AXIS, status="not_applicable", sentence=sentence, evidence=expected)]
    if not spec.expectations:
        sentence = "Recorded, not judged: the configuration expects no speed."
        return [Check(name="speed", axis=AXIS, status="not_applicable", sentence=sentence)]
    return [_expectation(performance, expectation, tolerance) for expectation in spec.expectations]


def _expectation(performance: Performance, expectation: Expectation, tolerance: float) -> Check:
    kind = METRICS[expectation.metric]
    allowed = tolerance if expectation.tolerance is None else expectation.tolerance
    higher = kind.better == "higher"
    bound = expectation.value * (1 - allowed if higher else 1 + allowed)
    estimate = performance.estimates.get(expectation.metric)
    figure = show(expectation.value, kind.unit if kind.unit == "fraction" else "")
    side, sign = ("at least", "−") if higher else ("at most", "+")
    asked = f"{side} {show(bound, kind.unit)} ({figure} {sign} {allowed:.0%})"
    doubts: tuple[str, ...] = ()
    if estimate is None:
        # An expectation that nothing can be held against is not met.
        status: Status = "fail"
        reason = performance.unavailable.get(expectation.metric, "the record does not give it")
        sentence = f"Not measured: {reason}. Expected is {asked}."
    else:
        doubts = _doubts(performance, expectation.metric, estimate, bound)
        met = estimate.value >= bound if higher else estimate.value <= bound
        status = "inconclusive" if doubts else "pass" if met else "fail"
        sentence = f"{show(estimate.value, kind.unit)}; expected is {asked}."
    times = performance.step_times
    return Check(
        name=expectation.metric,
        axis=AXIS,
        status=status,
        sentence=sentence,
        measured=estimate.value if estimate else None,
        bound=bound,
        unit=kind.unit,
        window=times.rule if times else "",
        evidence=doubts + _circumstances(performance, expectation.metric, estimate),
    )


def _doubts(performance: Performance, metric: str, estimate: Estimate, bound: float) -> tuple[str, ...]:
    """Why the measurement decides nothing; empty if it does."""
    times = performance.step_times
    if times is None or metric == "memory_fraction":  # not a matter of time
        return ()
    doubts = []
    if times.n < MIN_STEPS:
        doubts.append(f"only {times.n} steps count; {MIN_STEPS} are needed")
    if performance.num_timed < MIN_TIMED * performance.num_steps:
        doubts.append(f"only {performance.num_timed} of {performance.num_steps} steps have a time")
    # The interval assumes that the steps are alike; where they are not, the bound has to lie well outside of it.
    margin = estimate.high - estimate.low
    if estimate.low - margin <= bound <= estimate.high + margin:
        if times.spread > MAX_SPREAD:
            doubts.append(f"the step times vary by {times.spread:.1%}; up to {MAX_SPREAD:.0%} is steady")
        if not times.steady:
            doubts.append("the step time never became steady")
    if estimate.low < bound < estimate.high:
        doubts.append("the bound lies within the 95% interval of the measurement")
    return tuple(doubts)


def _circumstances(performance: Performance, metric: str, estimate: Estimate | None) -> tuple[str, ...]:
    """What a figure means nothing without."""
    if estimate is None:
        return ()
    unit, lines = METRICS[metric].unit, []
    if estimate.low != estimate.high:
        lines.append(f"95% interval {show(estimate.low, unit)} to {show(estimate.high, unit)}")
    if metric in ("tflops_per_second_per_device", "mfu") and performance.flops_per_token:
        lines.append(f"FLOPs counted {performance.convention}: {performance.flops_per_token / 1e9:.2f} GFLOP per token")
    if metric == "mfu" and performance.peak:
        peak = performance.peak
        lines.append(f"peak {peak.flops_per_second / 1e12:.0f} TFLOP/s {peak.format} of {peak.device}: {peak.source}")
    return tuple(lines)
