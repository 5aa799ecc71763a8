"""Chooses the steps that count for a run's speed: one rule per policy, which names the steps that it omits.

Speed is never taken from a single step or from a mean by default: the first steps compile and fill caches, and a mean
belongs to whatever interrupted the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from seatrial.events import Checkpoint, Eval, Event
from seatrial.metrics.dependence import Values
from seatrial.metrics.interval import Statistic, estimate
from seatrial.metrics.numbering import lines_apart
from seatrial.metrics.record import Ranges, Record, ranges, show_ranges
from seatrial.metrics.shifts import find_shifts
from seatrial.recording import Steps

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
Flags = NDArray[np.bool_]


class Policy(NamedTuple):
    """A way to choose the steps: its rule in words, its choice (None: ours), and the figure it takes from them."""

    rule: str
    choose: Callable[[Values], Places] | None
    statistic: Statistic


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
    "dgxc": Policy(
        "the mean of iterations 35–44 (NVIDIA DGXC Benchmarking)",
        lambda steps: np.flatnonzero((steps >= 35) & (steps <= 44)), "mean",
    ),
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


@dataclass(frozen=True)
class Lines:
    """Steps and the time of each, in a unit that is of no matter here: it is proportional to seconds."""

    steps: Steps
    times: Values

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def numbers(self) -> list[int]:
        return self.steps.numbers

    @property
    def ranges(self) -> Ranges:
        return ranges(self.steps.numbers)

    def some(self, which: slice | Flags | Places) -> Lines:
        return Lines(self.steps.some(which), self.times[which])

    def split(self, keep: Flags) -> tuple[Lines, Lines]:
        """Those to keep, and the others."""
        return self.some(keep), self.some(~keep)


class Window(NamedTuple):
    """The chosen steps with their times, and how they were chosen.

    `undisturbed` are all steps that nothing but a warm-up sets apart. `impossible`: "12 of 40", where so many steps
    cannot have been done in their time that the times are not to be believed.
    """

    chosen: Lines
    undisturbed: Lines
    summary: StepTimes
    impossible: str


def measure_window(
    events: Sequence[Event],
    main: Record,
    *,
    planned_steps: int | None,
    times_of: Callable[[Steps], Values],
    are_impossible: Callable[[Steps, Values], Flags],
    policy: str,
) -> Window | None:
    """The steps that the policy takes of the attempt that stands for the run; None where none has a time.

    Raises KeyError for an unknown policy.
    """
    rule, choose, statistic = POLICIES[policy]
    every = [Lines(attempt, times_of(attempt)) for attempt in main.attempts]
    attempts = [lines.some(np.isfinite(lines.times)) for lines in every]
    planned = [(start.planned_steps if start else None) or planned_steps for start in main.starts]
    number = _attempt(main, attempts, planned)
    if number is None:
        return None
    lines = attempts[number]
    stride = lines_apart(lines.numbers)
    sorted_out = _sort_out(lines, are_impossible)
    choice = _choose_by_rule(lines, rule, choose) if choose else _choose_steady(events, sorted_out, stride)
    if choice is None:
        return None
    of = f" of attempt {number + 1} of {len(attempts)}" if len(attempts) > 1 else ""
    num_steps = len(lines if choose else sorted_out.counted)
    means = f" Each line of the log is the mean of {stride} steps." if stride > 1 else ""
    return Window(
        chosen=choice.kept,
        undisturbed=choice.undisturbed,
        summary=_summary(
            choice, statistic, policy=policy, rule=choice.rule.format(of=of) + means, attempt=number + 1, stride=stride
        ),
        impossible="" if sorted_out.believable else f"{len(sorted_out.impossible)} of {num_steps}",
    )


class _SortedOut(NamedTuple):
    """The steps of an attempt: those that count, and of these the ones that were done and the impossible ones."""

    counted: Lines
    not_counted: Lines
    done: Lines
    impossible: Lines
    believable: bool


def _sort_out(lines: Lines, are_impossible: Callable[[Steps, Values], Flags]) -> _SortedOut:
    sizes = lines.steps.reported("global_batch_size")
    counts = (lines.steps.phases == "") & ~(sizes < sizes[-1])  # the batch grows up to that of the last one
    counted, not_counted = lines.split(counts if counts.any() else ~counts)
    half = len(counted) // 2
    least = float(np.median(counted.times[half:])) / DISPATCHED
    too_fast = are_impossible(counted.steps, counted.times)
    too_fast[: min(EARLY_STEPS, half)] |= counted.times[: min(EARLY_STEPS, half)] < least
    done, impossible = counted.split(~too_fast)
    few = max(FEW_IMPOSSIBLE, FEW_IMPOSSIBLE_SHARE * len(counted))
    believable = bool(too_fast[EARLY_STEPS:].sum() <= few) and 2 * len(impossible) <= len(counted)
    return _SortedOut(counted, not_counted, done if believable else counted, impossible, believable)


class _Choice(NamedTuple):
    """The steps that a policy chooses, and its rule in words, with `{of}` where the attempt is named."""

    kept: Lines
    undisturbed: Lines
    rule: str
    warmup: Ranges
    disturbed: Ranges = ()
    not_counted: Ranges = ()
    impossible: Ranges = ()
    steady: bool = True


def _choose_steady(events: Sequence[Event], sorted_out: _SortedOut, stride: int) -> _Choice:
    """Our own policy: the steps after the warm-up that no evaluation or checkpoint has stretched."""
    done = sorted_out.done
    is_clear = _undisturbed(events, done.numbers, stride)
    if 2 * is_clear.sum() < len(done):
        is_clear[:] = True
    clear, disturbed = done.split(is_clear)
    warmup, steady = _warmup(clear.times)
    choice = _Choice(
        kept=clear.some(slice(warmup, None)),
        undisturbed=clear,
        rule="",
        warmup=clear.some(slice(warmup)).ranges,
        disturbed=disturbed.ranges,
        not_counted=sorted_out.not_counted.ranges,
        impossible=sorted_out.impossible.ranges if sorted_out.believable else (),
        steady=steady,
    )
    return choice._replace(rule=_rule(choice, warmup))


def _rule(choice: _Choice, warmup: int) -> str:
    first, last = choice.kept.numbers[0], choice.kept.numbers[-1]
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


def _choose_by_rule(lines: Lines, rule: str, choose: Callable[[Values], Places]) -> _Choice | None:
    """The choice of another tool's policy: all steps that its rule names, whatever happened in them; None: no steps."""
    kept = lines.some(choose(np.array(lines.numbers)))
    if not kept:
        return None
    return _Choice(
        kept=kept,
        undisturbed=kept,
        rule=f"{rule[0].upper()}{rule[1:]}: {show_ranges(kept.ranges)}{{of}}.",
        warmup=ranges(step for step in lines.numbers if step < kept.numbers[0]),
    )


def _summary(choice: _Choice, statistic: Statistic, *, policy: str, rule: str, attempt: int, stride: int) -> StepTimes:
    times, numbers = choice.kept.times, choice.kept.numbers
    found = estimate(times, statistic)
    median = float(np.median(times))
    return StepTimes(
        policy=policy,
        rule=rule,
        attempt=attempt,
        first_step=numbers[0],
        last_step=numbers[-1],
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


def _attempt(main: Record, attempts: Sequence[Lines], planned: Sequence[int | None]) -> int | None:
    """The last complete attempt with enough steps, else the last with enough, the last complete one, the last."""

    def is_complete(number: int) -> bool:
        goal = planned[number]
        steps = main.attempts[number].numbers
        return goal is not None and steps[-1] >= goal - lines_apart(steps)

    timed = [number for number, attempt in enumerate(attempts) if attempt]
    enough = [number for number in timed if len(attempts[number]) >= ENOUGH_STEPS]
    complete = [number for number in timed if is_complete(number)]
    choices = ([number for number in enough if number in complete], enough, complete, timed)
    return next((choice[-1] for choice in choices if choice), None)


def _undisturbed(events: Sequence[Event], steps: Sequence[int], stride: int) -> Flags:
    """True for lines without an evaluation or checkpoint in their time; it may be booked on its step or the next."""
    at = {event.step for event in events if isinstance(event, (Eval, Checkpoint))}
    booked = sorted(at | {step + 1 for step in at})
    clear = np.ones(len(steps), bool)
    for place, step in zip(np.searchsorted(np.array(steps), booked), booked, strict=True):
        if place < len(steps) and steps[place] - step < stride:
            clear[place] = False
    return clear


def mostly_disturbed(events: Sequence[Event], steps: Sequence[int]) -> bool:
    """True if an evaluation or a checkpoint lies in most of the stretches between these lines of a log."""
    return 2 * int(_undisturbed(events, steps, lines_apart(steps)).sum()) < len(steps)


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
