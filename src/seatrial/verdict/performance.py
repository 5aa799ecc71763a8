"""Judges whether the run met its targets and its figures agree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from seatrial.errors import some
from seatrial.estimate.hardware import TERA
from seatrial.metrics import Estimate, Performance, StepTimes, Straggler, show_ranges, work_of_a_step
from seatrial.metrics.drift import DRIFTS_BY
from seatrial.metrics.shifts import SHORTEST
from seatrial.spec import METRICS, Expectation, RunSpec
from seatrial.verdict.check import Axis, Check, Status, allowed, show, show_beside
from seatrial.verdict.gap import beside_expected

AXIS: Axis = "performance"
MIN_STEPS = 10
LEAST_DRIFT = 0.005  # of the first third's median, where a target has no tolerance
MIN_TIMED = 0.5  # of the steps
MAX_SPREAD = 0.05
SLOW_AGAIN = 0.05  # of the steps
CONTRADICTS = 0.02  # of a step time: two targets that ask for times further apart contradict each other
SHOWN = 8  # keys that an engine did not get
MOST_SHIFTS = 3

# How figures agree, the worst first → the status of the check.
_AGREEMENT: dict[str, Status] = {"contradiction": "fail", "doubt": "inconclusive", "agree": "pass"}
_WORST_FIRST = tuple(_AGREEMENT)


def judge_performance(
    performance: Performance, spec: RunSpec | None, *, rehearsal: str, dropped: Sequence[str], tolerance: float
) -> list[Check]:
    """A check that the figures agree, and one per target; one that says so where no speed is judged."""
    targets = spec.expectations if spec else ()
    if rehearsal:
        on_cluster = (f"target on the cluster: {METRICS[e.metric].title} {_shown(e)}" for e in targets)
        return [_not_judged(f"Not judged: a {rehearsal}'s speed says nothing about the cluster.", on_cluster)]
    agreement = _figures_agree(performance)
    if spec is not None and targets:
        checks = [_target(performance, target, spec, tolerance, dropped) for target in targets]
        first = next((n for n, target in enumerate(targets) if target.metric != "memory_fraction"), None)
        if first is not None:
            evidence = (*checks[first].evidence, *beside_expected(performance, spec))
            checks[first] = replace(checks[first], evidence=evidence)
        return [*agreement, *checks]
    why = "no performance target is set" if spec else "there is no configuration to compare it with"
    course = (*beside_expected(performance, spec), *_course(performance, DRIFTS_BY))
    return [*agreement, _not_judged(f"Recorded, not judged: {why}.", course)]


def _not_judged(sentence: str, evidence: Iterable[str]) -> Check:
    return Check(name="speed", axis=AXIS, status="not_applicable", sentence=sentence, evidence=tuple(evidence))


def _shown(target: Expectation) -> str:
    return show(target.value, METRICS[target.metric].unit)


def _figures_agree(performance: Performance) -> list[Check]:
    """The check of the log's figures against each other and the configuration; none if no figures can be compared."""
    found = sorted(performance.identities, key=lambda identity: identity.agreement == "agree")
    if not found:
        return []
    worst = min(found, key=lambda identity: _WORST_FIRST.index(identity.agreement))
    first = None if worst.agreement == "agree" else worst
    sound = "The log's figures agree with each other" + (" and the configuration." if performance.convention else ".")
    return [
        Check(
            name="figures agree",
            axis="numerics",
            status=_AGREEMENT[worst.agreement],
            sentence=first.sentence if first else sound,
            measured=first.found if first else None,
            bound=first.expected if first else None,
            evidence=tuple(f"{each.name}: {each.sentence}" for each in found if each is not first),
        )
    ]


def _target(
    performance: Performance, target: Expectation, spec: RunSpec, tolerance: float, dropped: Sequence[str]
) -> Check:
    kind = METRICS[target.metric]
    margin = allowed(target, tolerance)
    higher = kind.better == "higher"
    bound = target.value * (1 - margin if higher else 1 + margin)
    estimate = performance.estimates.get(target.metric)
    figure = f"{100 * target.value:.4g}%" if kind.unit == "fraction" else show(target.value)
    measured, least = show_beside(estimate.value if estimate else None, bound, unit=kind.unit)
    asked = f"{'≥' if higher else '≤'} {least} ({figure} with {margin:.0%} tolerance)"
    doubts: tuple[str, ...] = ()
    if estimate is None:
        # A target that nothing can be compared with is not met.
        status: Status = "fail"
        reason = performance.unavailable.get(target.metric, "the record does not give it")
        sentence = f"Not measured: {reason}; target {asked}."
    else:
        doubts = (*_not_got(dropped), *_doubts(performance, target.metric, estimate, bound))
        status = "inconclusive" if doubts else "pass" if _meets(target.metric, estimate.value, bound) else "fail"
        sentence = f"{measured}; target {asked}."
    return Check(
        name=target.metric,
        axis=AXIS,
        status=status,
        sentence=sentence,
        measured=estimate.value if estimate else None,
        bound=bound,
        unit=kind.unit,
        window=performance.window,
        evidence=doubts
        + _circumstances(performance, target.metric, estimate, margin)
        + _contradicting_targets(performance, target, spec),
    )


def _not_got(dropped: Sequence[str]) -> list[str]:
    """The keys without which this was not the run that the target is for."""
    return [f"the engine did not get {some(dropped, SHOWN)}, which may change speed and memory"] if dropped else []


def _doubts(performance: Performance, metric: str, estimate: Estimate, bound: float) -> tuple[str, ...]:
    """The reasons why the measurement decides nothing; empty if it decides."""
    times = performance.step_times
    if metric == "memory_fraction":  # not a matter of time
        return ()
    if not performance.num_timed:
        return (f"no step has a time of its own; {MIN_STEPS} are needed",)
    doubts = []
    if performance.num_counted < MIN_STEPS:
        counted = performance.num_counted
        doubts.append(f"only {counted} step{'s count' if counted != 1 else ' counts'}; {MIN_STEPS} are needed")
    if performance.num_timed < MIN_TIMED * performance.num_steps:
        doubts.append(f"only {performance.num_timed} of {performance.num_steps} steps have a time")
    doubts += _drifts_across(performance, metric, estimate, bound)
    if times is not None:
        # The interval assumes that the steps are alike; where they are not, the bound has to lie well outside of it.
        margin = estimate.high - estimate.low
        if estimate.low - margin <= bound <= estimate.high + margin:
            if times.spread > MAX_SPREAD:
                doubts.append(f"the step times vary by {times.spread:.1%}; up to {MAX_SPREAD:.0%} is steady")
            if not times.steady:
                doubts.append("the step time never became steady")
    if estimate.low < bound < estimate.high:
        doubts.append("the bound lies within the 95% interval of the measurement")
    if _hidden_by_the_median(performance, metric, estimate, bound):
        doubts.append("so many steps are slow that, with them, the mean is beyond the bound")
    doubts += _slow_ranks(performance, metric, estimate, bound)
    return tuple(doubts)


def _hidden_by_the_median(performance: Performance, metric: str, estimate: Estimate, bound: float) -> bool:
    """True if steps that are slow again and again, not once, are what the median does not show."""
    times, spikes = performance.step_times, performance.spikes
    often = spikes is not None and spikes.count > max(1, SLOW_AGAIN * performance.num_counted)
    if times is None or not (often or performance.levels):
        return False
    return _meets_unless_slower(metric, estimate.value, times.mean / times.value, bound)


def _slow_ranks(performance: Performance, metric: str, estimate: Estimate, bound: float) -> list[str]:
    """Ranks by whose own steps the bound is missed, where it is met by the rank that counts."""
    return [
        f"rank {straggler.process} is {straggler.slower_by:.1%} slower than the others, beyond the bound"
        for straggler in performance.stragglers
        if _meets_unless_slower(metric, estimate.value, 1 + straggler.slower_by, bound)
    ]


def _meets(metric: str, value: float, bound: float) -> bool:
    return value <= bound if METRICS[metric].better == "lower" else value >= bound


def _meets_unless_slower(metric: str, value: float, factor: float, bound: float) -> bool:
    """True if a bound that is met would be missed by steps that take so many times as long."""
    slower = value * factor if METRICS[metric].better == "lower" else value / factor
    return _meets(metric, value, bound) and not _meets(metric, slower, bound)


def _drifts_across(performance: Performance, metric: str, estimate: Estimate, bound: float) -> list[str]:
    """That a run was on the one side of the bound at first and on the other at last, by a drift or a shift."""
    times, kind = performance.step_times, METRICS[metric]
    ends = _ends(performance, times) if times else ()
    if times is None or not ends:
        return []
    values = [
        estimate.value * seconds / times.value if kind.unit == "s" else estimate.value * times.value / seconds
        for seconds, _ in ends
    ]
    beyond = [not _meets(metric, value, bound) for value in values]
    if beyond[0] == beyond[1]:
        return []
    slow = beyond.index(True)
    verb = ("was slower at first than", "ends slower than")[slow]
    return [f"the run {verb} the target: {show(values[slow], kind.unit)} {ends[slow][1]}"]


def _ends(performance: Performance, times: StepTimes) -> tuple[tuple[float, str], ...]:
    """The seconds of the window's beginning and of its end, and where that is; nothing of an even run.

    These are the first and the last level where the speed shifts, else the thirds.
    """
    within = times.first_step + SHORTEST * times.steps_per_line  # what comes sooner ended the warm-up
    shifts = [shift for shift in performance.shifts if shift.step >= within]
    if shifts:
        first, last = shifts[0], shifts[-1]
        return (first.before_seconds, f"before step {first.step}"), (last.after_seconds, f"from step {last.step}")
    drift = performance.drift
    if drift is None or not drift.in_window or not drift.exceeds(0.0):
        return ()
    return (drift.first_seconds, "in the first third"), (drift.last_seconds, "in the last third")


def _circumstances(
    performance: Performance, metric: str, estimate: Estimate | None, tolerance: float
) -> tuple[str, ...]:
    """The circumstances of a figure: its interval and origin, how FLOPs are counted, and the course of the run."""
    if estimate is None:
        return ()
    unit, lines = METRICS[metric].unit, []
    own = performance.reported.get(metric)
    if estimate.low != estimate.high:
        lines.append(f"95% interval {' to '.join(show_beside(estimate.low, estimate.high, unit=unit))}")
    if estimate.origin:
        lines.append(estimate.origin)
    if own is not None and own.value != estimate.value:
        lines.append(f"the log itself reports {show(own.value, unit)}")
    if metric in ("tflops_per_second_per_device", "mfu") and performance.flops_per_token:
        counted = f"FLOPs counted {performance.convention}: {performance.flops_per_token / 1e9:.2f} GFLOP per token"
        follows = performance.recognised is not None and performance.recognised.convention == performance.convention
        lines.append(counted + (", as the log does" if follows else ""))
    if metric == "mfu" and performance.peak:
        peak = performance.peak
        lines.append(f"peak {peak.flops_per_second / TERA:.0f} TFLOP/s {peak.format} of {peak.device}: {peak.source}")
    drifts_by = min(DRIFTS_BY, max(tolerance, LEAST_DRIFT))
    return (*lines, *(() if metric == "memory_fraction" else _course(performance, drifts_by)))


def _course(performance: Performance, drifts_by: float) -> tuple[str, ...]:
    """Details that the median hides: shifts, a drift by more than `drifts_by`, two levels, slow steps and ranks."""
    drift, spikes, levels = performance.drift, performance.spikes, performance.levels
    lines = [shifts_told(performance)] if performance.shifts else []
    if drift is not None and drift.exceeds(drifts_by):
        how = "slower" if drift.change > 0 else "faster"
        first, last = show_beside(drift.first_seconds, drift.last_seconds, unit="s")
        lines.append(
            f"the run became {how}: {first} in the first third, "
            f"{last} in the last{'' if drift.in_window else ', of all steps'} "
            f"({drift.change:+.1%}; Mann–Kendall p = {drift.p:.1g})"
        )
    if levels is not None and not performance.shifts:
        speeds = " and ".join(show_beside(levels.fast_seconds, levels.slow_seconds, unit="s"))
        lines.append(f"two speeds in turn: {speeds} ({levels.share_slow:.0%} of the steps)")
    if spikes is not None:
        lines.append(
            f"slow steps, up to {show(spikes.longest_seconds, 's')}: {show_ranges(spikes.steps)}; "
            f"they cost {spikes.share_lost:.1%} of the time"
        )
    return (*lines, *map(_straggler, performance.stragglers))


def shifts_told(performance: Performance) -> str:
    """The first few shifts for a reader: "slower by 9.6% from step 41 (0.500 s to 0.548 s)"."""
    told = []
    for shift in performance.shifts[:MOST_SHIFTS]:
        how = "slower" if shift.change > 0 else "faster"
        seconds = f" ({' to '.join(show_beside(shift.before_seconds, shift.after_seconds, unit='s'))})"
        in_seconds = performance.step_times is not None  # otherwise only the proportions are known
        told.append(f"{how} by {abs(shift.change):.1%} from step {shift.step}{seconds if in_seconds else ''}")
    more = len(performance.shifts) - MOST_SHIFTS
    return ", ".join([*told, *([f"and {more} more shifts"] if more > 0 else [])])


def _straggler(found: Straggler) -> str:
    seconds = "" if found.step_seconds is None else f": {show(found.step_seconds, 's')}"
    origin = f", {found.origin}" if found.origin else ""
    return f"{found.who} is {found.slower_by:.1%} slower than the others{seconds}{origin}"


def _contradicting_targets(performance: Performance, target: Expectation, spec: RunSpec) -> tuple[str, ...]:
    """Other targets of the configuration that imply another step time than this one."""
    seconds = _step_seconds(performance, target)
    lines = []
    for other in spec.expectations:
        implied = _step_seconds(performance, other)
        if other is not target and seconds and implied and abs(implied / seconds - 1) > CONTRADICTS:
            lines.append(
                f"the targets differ: {_shown(target)} is a step of {show(seconds, 's')}, {_shown(other)} one of "
                f"{show(implied, 's')}"
            )
    return tuple(lines)


def _step_seconds(performance: Performance, target: Expectation) -> float | None:
    """The step time that a target amounts to; None where it is none of speed, or takes what is not known."""
    if target.metric == "step_seconds":
        return target.value
    if not performance.tokens_per_step or not performance.num_devices or target.value <= 0:
        return None
    tokens = performance.tokens_per_step / performance.num_devices
    amount = work_of_a_step(tokens, performance.flops_per_token, performance.peak).get(target.metric)
    return amount / target.value if amount else None
