"""Chooses the steps that count for a run's speed: one rule per policy, which names the steps that it omits.

Speed is never taken from a single step or from a mean by default: the first steps compile and fill caches, and a mean
belongs to whatever interrupted the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from seatrial.events import Checkpoint, Eval, Event, Step
from seatrial.metrics.dependence import Values
from seatrial.metrics.interval import Statistic, estimate
from seatrial.metrics.record import Ranges, Record, ranges, show_ranges
from seatrial.metrics.shifts import find_shifts

WARMUP_STEPS = 3  # MaxText's first two are artefacts of asynchronous dispatch, the third still fills caches
ROLLING_STEPS = 5
COMPILING = -0.5  # a change by which steps that still compile become faster: then `HELD` is twice as long
HELD = 15  # steps on one level: what compiles or tunes itself at the start is done sooner
STEADY_WITHIN = 0.03
ENOUGH_STEPS = 10  # for an attempt to stand for the run's speed
IQR_PER_SIGMA = 1.349  # of a normal distribution
EARLY_STEPS = 10  # among which a step may have been dispatched without having been done
DISPATCHED = 5.0  # times faster than the median of the second half
FEW_IMPOSSIBLE = 3
FEW_IMPOSSIBLE_SHARE = 0.05

Places = NDArray[np.intp]


class Policy(NamedTuple):
    """A way to choose the steps: its rule in words, its choice (None: ours), and the figure it takes from them."""

    rule: str
    choose: Callable[[Values], Places] | None
    statistic: Statistic


def _between(first: int, last: int) -> Callable[[Values], Places]:
    return lambda steps: np.flatnonzero((steps >= first) & (steps <= last))


def _last(steps: Values) -> Places:
    return np.arange(len(steps))[-1:]


POLICIES: dict[str, Policy] = {
    "steady": Policy("the median of the steady steps", None, "median"),
    "cvs-jax": Policy(
        "the median of all steps after step 5 (CVS for JAX compares each of them with the target)",
        lambda steps: np.flatnonzero(steps > 5), "median",
    ),
    "cvs-megatron": Policy(
        "the mean of all lines but the first two and the last (train_llama2.sh and train_llama3.sh)",
        lambda steps: np.arange(len(steps))[2:-1], "mean",
    ),
    "dgxc": Policy("the mean of iterations 35–44 (NVIDIA DGXC Benchmarking)", _between(35, 44), "mean"),
    "last-10": Policy(
        "the mean of the last ten lines (CloudAI, Megatron-Bridge)", lambda steps: np.arange(len(steps))[-10:], "mean"
    ),
    "last": Policy("the last line", _last, "median"),
    "recipe-2025-01": Policy("the last line (NVIDIA's recipe for MaxText, January 2025)", _last, "median"),
}  # fmt: skip
DEFAULT_POLICY = "steady"


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """The times of the chosen steps in seconds; `rule` says in a sentence which steps these are.

    `value` is the figure of the policy, a median but for those that take a mean, `low` and `high` its 95% interval.
    `mean` gives the harmonic mean of a throughput. `mad` is the plain median absolute deviation, `cv` the standard
    deviation over the mean. `spread` is what `cv` would be without outliers, by the interquartile range: two speeds in
    turn have one, though their MAD may be 0. `steady`: warm-up ended by itself. Left out are the steps of `warmup`,
    those `disturbed` by an evaluation or a checkpoint, those `not_counted` (profiled, or with a batch that still
    grows), and the `impossible` ones, which were dispatched, not done. `n` counts lines, each of which is the mean of
    `steps_per_line` steps.
    """

    policy: str
    rule: str
    attempt: int
    first_step: int
    last_step: int
    steps_per_line: int
    warmup: Ranges
    disturbed: Ranges
    not_counted: Ranges
    impossible: Ranges
    steady: bool
    n: int
    value: float
    low: float
    high: float
    median: float
    mean: float
    mad: float
    p5: float
    p95: float
    cv: float | None
    spread: float


class Timed(NamedTuple):
    """A step and its time. What it is in is of no matter here, as long as it is proportional to seconds."""

    step: Step
    time: float


class Window(NamedTuple):
    """The chosen steps with their times, how they were chosen, and how many of all are beyond what is possible.

    `undisturbed` are all steps that nothing but a warm-up sets apart.
    """

    chosen: tuple[Timed, ...]
    undisturbed: tuple[Timed, ...]
    summary: StepTimes
    num_impossible: int
    num_of_attempt: int
    believable: bool

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(timed.step for timed in self.chosen)

    @property
    def times(self) -> Values:
        return np.array([timed.time for timed in self.chosen])


def measure_window(
    events: Sequence[Event],
    main: Record,
    *,
    planned_steps: int | None,
    time_of: Callable[[Step], float | None],
    is_impossible: Callable[[Step, float], bool],
    policy: str,
) -> Window | None:
    """The steps that the policy takes of the attempt that stands for the run; None where none has a time.

    Raises KeyError for an unknown policy.
    """
    rule, choose, statistic = POLICIES[policy]
    attempts = [[Timed(s, time) for s in attempt if (time := time_of(s)) is not None] for attempt in main.attempts]
    planned = [(start.planned_steps if start else None) or planned_steps for start in main.starts]
    number = _attempt(main, attempts, planned)
    if number is None:
        return None
    lines = attempts[number]
    stride = lines_apart([timed.step.step for timed in lines])
    sorted_out = _sort_out(lines, is_impossible)
    choice = _choose_by_rule(lines, rule, choose) if choose else _choose_steady(events, sorted_out, stride)
    if choice is None:
        return None
    of = f" of attempt {number + 1} of {len(attempts)}" if len(attempts) > 1 else ""
    means = f" Each line of the log is the mean of {stride} steps." if stride > 1 else ""
    return Window(
        chosen=tuple(choice.kept),
        undisturbed=tuple(choice.undisturbed),
        summary=_summary(
            choice, statistic, policy=policy, rule=choice.rule.format(of=of) + means, attempt=number + 1, stride=stride
        ),
        num_impossible=len(sorted_out.impossible),
        num_of_attempt=len(sorted_out.counted if choose is None else lines),
        believable=sorted_out.believable,
    )


class _SortedOut(NamedTuple):
    """The steps of an attempt: those that count, and of these the ones that were done and the impossible ones."""

    counted: list[Timed]
    not_counted: list[Timed]
    done: list[Timed]
    impossible: list[Timed]
    believable: bool


def _sort_out(lines: list[Timed], is_impossible: Callable[[Step, float], bool]) -> _SortedOut:
    counted, not_counted = _split(lines, [not timed.step.phase and not _grows(timed, lines) for timed in lines])
    if not counted:
        counted, not_counted = lines, []
    flags = _impossible(counted, is_impossible)
    done, impossible = _split(counted, [not flag for flag in flags])
    few = max(FEW_IMPOSSIBLE, FEW_IMPOSSIBLE_SHARE * len(counted))
    believable = sum(flags[EARLY_STEPS:]) <= few and 2 * len(impossible) <= len(counted)
    return _SortedOut(counted, not_counted, done if believable else counted, impossible, believable)


class _Choice(NamedTuple):
    """What a policy takes, and its rule in words, with `{of}` where the attempt is named."""

    kept: Sequence[Timed]
    undisturbed: Sequence[Timed]
    rule: str
    warmup: Ranges
    disturbed: Ranges = ()
    not_counted: Ranges = ()
    impossible: Ranges = ()
    steady: bool = True


def _choose_steady(events: Sequence[Event], sorted_out: _SortedOut, stride: int) -> _Choice:
    """Our own policy: the steps after the warm-up that no evaluation or checkpoint has stretched."""
    done = sorted_out.done
    clear, disturbed = _split(done, _undisturbed(events, [timed.step.step for timed in done], stride))
    if 2 * len(clear) < len(done):
        clear, disturbed = done, []
    warmup, steady = _warmup(np.array([timed.time for timed in clear]))
    choice = _Choice(
        kept=clear[warmup:],
        undisturbed=clear,
        rule="",
        warmup=_ranges(clear[:warmup]),
        disturbed=_ranges(disturbed),
        not_counted=_ranges(sorted_out.not_counted),
        impossible=_ranges(sorted_out.impossible) if sorted_out.believable else (),
        steady=steady,
    )
    return choice._replace(rule=_rule(choice, warmup))


def _rule(choice: _Choice, warmup: int) -> str:
    first, last = choice.kept[0].step.step, choice.kept[-1].step.step
    steps = f"Steps {first}–{last}" if last > first else f"Step {first}"
    sentence = (
        f"{steps}{{of}}. Left out: the first {warmup} as warm-up (at least {WARMUP_STEPS}, until the median of "
        f"{ROLLING_STEPS} is within {STEADY_WITHIN:.0%}, or one MAD, of the final one; never more than half)"
    )
    for left_out, why in (
        (choice.disturbed, "because of an evaluation or a checkpoint"),
        (choice.not_counted, "where a profiler ran or the batch still grew"),
        (choice.impossible, "dispatched, but not done in that time"),
    ):
        sentence += f"; {show_ranges(left_out)}, {why}" if left_out else ""
    return sentence + ("." if choice.steady else ". The step time never became steady.")


def _choose_by_rule(lines: list[Timed], rule: str, choose: Callable[[Values], Places]) -> _Choice | None:
    """What a policy of another tool takes: all that its rule says, whatever happened in these steps."""
    kept = [lines[place] for place in choose(np.array([timed.step.step for timed in lines]))]
    if not kept:
        return None
    return _Choice(
        kept=kept,
        undisturbed=kept,
        rule=f"{rule[0].upper()}{rule[1:]}: {show_ranges(_ranges(kept))}{{of}}.",
        warmup=_ranges([timed for timed in lines if timed.step.step < kept[0].step.step]),
    )


def _summary(choice: _Choice, statistic: Statistic, *, policy: str, rule: str, attempt: int, stride: int) -> StepTimes:
    times = np.array([timed.time for timed in choice.kept])
    found = estimate(times, statistic)
    median = float(np.median(times))
    return StepTimes(
        policy=policy,
        rule=rule,
        attempt=attempt,
        first_step=choice.kept[0].step.step,
        last_step=choice.kept[-1].step.step,
        steps_per_line=stride,
        warmup=choice.warmup,
        disturbed=choice.disturbed,
        not_counted=choice.not_counted,
        impossible=choice.impossible,
        steady=choice.steady,
        n=len(times),
        value=found.value,
        low=found.low,
        high=found.high,
        median=median,
        mean=float(np.mean(times)),
        mad=float(np.median(np.abs(times - median))),
        p5=float(np.percentile(times, 5)),
        p95=float(np.percentile(times, 95)),
        cv=float(np.std(times, ddof=1) / np.mean(times)) if len(times) > 1 else None,
        spread=float(np.subtract(*np.percentile(times, [75, 25]))) / IQR_PER_SIGMA / median,
    )


def lines_apart(steps: Sequence[int]) -> int:
    """How many steps a line of the log stands for: the usual gap between two of them."""
    gaps = [after - before for before, after in pairwise(steps) if after > before]
    return median_low(gaps) if gaps else 1


def _attempt(main: Record, attempts: Sequence[Sequence[Timed]], planned: Sequence[int | None]) -> int | None:
    """The last complete attempt with enough steps, else the last with enough, the last complete one, the last."""

    def is_complete(number: int) -> bool:
        goal = planned[number]
        steps = [step.step for step in main.attempts[number]]
        return goal is not None and steps[-1] >= goal - lines_apart(steps)

    timed = [number for number, attempt in enumerate(attempts) if attempt]
    enough = [number for number in timed if len(attempts[number]) >= ENOUGH_STEPS]
    complete = [number for number in timed if is_complete(number)]
    choices = ([number for number in enough if number in complete], enough, complete, timed)
    return next((choice[-1] for choice in choices if choice), None)


def _split(lines: Sequence[Timed], keep: Sequence[bool]) -> tuple[list[Timed], list[Timed]]:
    kept = [timed for timed, flag in zip(lines, keep, strict=True) if flag]
    return kept, [timed for timed, flag in zip(lines, keep, strict=True) if not flag]


def _ranges(lines: Sequence[Timed]) -> Ranges:
    return ranges(timed.step.step for timed in lines)


def _grows(timed: Timed, lines: Sequence[Timed]) -> bool:
    """True if the batch of a step is smaller than that of the last one, by the log's own word."""
    size, final = (line.step.reported.get("global_batch_size") for line in (timed, lines[-1]))
    return size is not None and final is not None and size < final


def _impossible(lines: Sequence[Timed], is_impossible: Callable[[Step, float], bool]) -> list[bool]:
    """Which steps were dispatched, but cannot have been done in their time."""
    half = len(lines) // 2
    least = float(np.median([timed.time for timed in lines[half:]])) / DISPATCHED if lines else 0.0
    return [
        is_impossible(timed.step, timed.time) or (place < min(EARLY_STEPS, half) and timed.time < least)
        for place, timed in enumerate(lines)
    ]


def _undisturbed(events: Sequence[Event], steps: Sequence[int], stride: int) -> list[bool]:
    """Which lines have no evaluation or checkpoint in their time: it may be booked on its own step or on the next."""
    at = {event.step for event in events if isinstance(event, (Eval, Checkpoint))}
    clear = [True] * len(steps)
    places = np.searchsorted(np.array(steps), sorted(at | {step + 1 for step in at}))
    for place, step in zip(places, sorted(at | {step + 1 for step in at}), strict=True):
        if place < len(steps) and steps[place] - step < stride:
            clear[place] = False
    return clear


def mostly_disturbed(events: Sequence[Event], steps: Sequence[Step]) -> bool:
    """True if an evaluation or a checkpoint lies in most of the stretches between these lines of a log."""
    numbers = [step.step for step in steps]
    return 2 * sum(_undisturbed(events, numbers, lines_apart(numbers))) < len(numbers)


def _warmup(times: Values) -> tuple[int, bool]:
    """(steps to leave out at the start, whether the rest is steady)."""
    most = len(times) // 2
    least = min(WARMUP_STEPS, most)
    final = np.median(times[most:])
    noise = np.median(np.abs(times[most:] - final))
    rolling = np.median(sliding_window_view(times, min(ROLLING_STEPS, len(times) - most)), axis=1)
    steady = np.flatnonzero(np.abs(rolling[least : most + 1] - final) <= max(STEADY_WITHIN * final, noise))
    end = least + int(steady[0]) if len(steady) else most
    if _held_until(times[least:], end - least):
        return least, False
    return end, bool(len(steady))


def _held_until(times: Values, end: int) -> bool:
    """True if a slow level held until about there and ended at once: a level shift, not a warm-up."""
    if end < HELD:
        return False
    return any(
        shift.change < 0
        and shift.place >= (HELD if shift.change > COMPILING else 2 * HELD)
        and abs(shift.place - end) <= ROLLING_STEPS
        for shift in find_shifts(range(len(times)), times)
    )
