"""Measures the speed of a run: from the window that its policy chooses, beside the log's own figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from seatrial.estimate import flops
from seatrial.estimate.hardware import TERA
from seatrial.events import Event
from seatrial.metrics.dependence import Values
from seatrial.metrics.drift import Drift, Levels, Spikes, find_levels, find_slowdown, find_spikes
from seatrial.metrics.identities import Facts, Identity, above_zero, check_identities, reported
from seatrial.metrics.interval import LARGEST, Estimate, estimate, median_of_finite, only_finite, relative_rounding
from seatrial.metrics.record import Record, Records
from seatrial.metrics.setup import Peak, Setup, memory_fraction, setup_of
from seatrial.metrics.shifts import Shift, find_shifts
from seatrial.metrics.window import DEFAULT_POLICY, POLICIES, Flags, StepTimes, Window, measure_window, mostly_disturbed
from seatrial.recording import NO_STEPS, Steps, median
from seatrial.spec import RunSpec

TRILLION = 1e12
SECONDS_PER_DAY = 86_400
TOKENS, TFLOPS = "tokens_per_second_per_device", "tflops_per_second_per_device"
SPEEDS = ("step_seconds", TOKENS, TFLOPS, "mfu")
MOST_ROUNDING_TO_RECOGNISE = 0.005  # of FLOPs per token; conventions are as close as 1%
SLOWER_BY = 0.05  # a straggler
FEWEST_STEPS = 5
BEYOND_PEAK = "of the device's peak, so times, figures or configuration are wrong"
OF_THE_WHOLE_RUN = "as reported for the whole run, with warm-up, evaluations and checkpoints"


class Clock(NamedTuple):
    """The source of a step's time: its seconds, or `amount` over the rate that a log reports as `name`.

    The time is in seconds where the amount is known, else proportional to them. `origin` names the source of times that
    the log does not give itself; "" where it does.
    """

    name: str = ""
    amount: float | None = 1.0
    origin: str = ""

    @property
    def in_seconds(self) -> bool:
        return self.amount is not None

    def times_of(self, steps: Steps) -> Values:
        """The times of all steps; NaN where nothing tells."""
        values = steps.reported(self.name) if self.name else steps.values("seconds")
        known = np.where((values > 1 / LARGEST) & (values < LARGEST), values, math.nan)
        return (self.amount or 1.0) / known if self.name else known


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A process whose median step time is above the median of all of them by the fraction `slower_by`.

    `step_seconds` is None where the times are only known to be proportional to what the log reports; `origin` says what
    they are taken from: "" for the times that the log gives.
    """

    process: int
    host: str
    step_seconds: float | None
    slower_by: float
    origin: str = ""

    @property
    def who(self) -> str:
        """For a reader: "rank 3 on node-1"."""
        return f"rank {self.process}" + (f" on {self.host}" if self.host else "")


@dataclass(frozen=True, kw_only=True)
class Performance:
    """Speed in the chosen window; None, or missing, is what the record and the configuration do not give.

    `estimates` has the metrics of `spec.METRICS` by name, computed from the times of the steps or with an `origin` that
    says otherwise; `unavailable` says why any other of them is not there; `reported` has the log's own figures over the
    same steps, by the names of METRICS. `num_timed` of the `num_steps` of the record have a time, `num_counted` are in
    the window, which the sentence `window` describes. `convention` is the one that the FLOPs are counted by, "" without
    a configuration; `recognised` the one that the log's own figures follow. `tokens_per_step` is batch × sequence,
    `padding` the share of it that the log does not count as tokens, padding or masked. `identities` are what holds
    between the figures, and what does not. `shifts` are the steps from which the run was slower or faster than before.
    `data_seconds` is the median that a step in the window waited for its batch.
    """

    num_steps: int
    num_timed: int
    num_counted: int
    window: str
    step_times: StepTimes | None
    estimates: Mapping[str, Estimate]
    unavailable: Mapping[str, str]
    reported: Mapping[str, Estimate]
    tokens_per_step: int | None
    padding: float | None
    num_devices: int | None
    device: str
    convention: str
    recognised: flops.Recognised | None
    flops_per_token: float | None
    peak: Peak | None
    tokens_per_second_total: float | None
    sequences_per_second_total: float | None
    days_to_1t_tokens: float | None
    identities: tuple[Identity, ...]
    drift: Drift | None
    spikes: Spikes | None
    levels: Levels | None
    stragglers: tuple[Straggler, ...]
    shifts: tuple[Shift, ...] = ()
    data_seconds: float | None = None


def days_to_train(*, tokens: float, tokens_per_second: float) -> float:
    """Days that so many tokens take at this throughput, without interruptions."""
    return tokens / tokens_per_second / SECONDS_PER_DAY


def time_to_train(performance: Performance, tokens: float) -> Estimate | None:
    """Days that so many tokens take at this run's throughput, with their interval; None without a throughput."""
    rate = performance.estimates.get(TOKENS)
    if rate is None or not performance.num_devices:
        return None
    value, high, low = (
        days_to_train(tokens=tokens, tokens_per_second=speed * performance.num_devices)
        for speed in (rate.value, rate.low, rate.high)
    )
    return Estimate(value=value, low=low, high=high, origin=rate.origin)


def measure_performance(
    events: Sequence[Event],
    spec: RunSpec | None,
    records: Records,
    *,
    planned_steps: int | None = None,
    convention: str | None = None,
    policy: str = DEFAULT_POLICY,
) -> Performance:
    """The speed of a run by the record that counts. Raises KeyError for an unknown FLOPs convention or policy."""
    main, setup = records.main, setup_of(records.main.started, spec)
    known = clocks(setup)
    timed = ((clock, int(np.isfinite(clock.times_of(main.steps)).sum())) for clock in known)
    clock, num_timed = next((found for found in timed if found[1]), (known[0], 0))
    window = measure_window(
        events, main, planned_steps=spec.steps if spec else planned_steps, policy=policy, times_of=clock.times_of,
        are_impossible=_beyond(setup.least_step_seconds if clock.in_seconds else 0.0, setup.peak),
    )  # fmt: skip
    steps = window.chosen.steps if window else NO_STEPS
    times = window.chosen.times if window else np.array([])
    counted = _counted_flops(steps, times, setup.tokens_per_device if clock.in_seconds else None)
    shifts, drift = _course(window)
    recognised = flops.recognise(counted, spec.model, spec.batch.sequence_length) if counted and spec else None
    convention = convention or (recognised.convention if recognised else flops.DEFAULT_CONVENTION)
    flops_per_token = setup.flops_per_token(convention)
    own_figures = _own_figures(steps, policy)
    if window:
        found = _speed(window, clock, own_figures, setup, flops_per_token)
    else:
        found = _of_the_whole_run(main.totals, setup, flops_per_token)
    found["memory_fraction"] = memory_fraction(records.all, setup.facts, setup.device)
    estimates = {name: value for name, value in found.items() if isinstance(value, Estimate)}
    rate = estimates.get(TOKENS)
    total = rate.value * setup.num_devices if rate and setup.num_devices else None
    memory = estimates.get("memory_fraction")
    is_own_time = window is not None and not clock.origin and not mostly_disturbed(events, steps.numbers)
    facts = Facts(
        steps=steps,
        all_steps=main.steps,
        seconds=times if is_own_time else None,
        setup=setup,
        memory_fraction=memory.value if memory else None,
        flops_per_token=counted,
    )
    return Performance(
        num_steps=len(main.steps),
        num_timed=num_timed,
        num_counted=len(steps),
        window=_told(window, clock) if window else "",
        step_times=window.summary if window and clock.in_seconds else None,
        estimates=estimates,
        unavailable={name: value for name, value in found.items() if isinstance(value, str)},
        reported=own_figures,
        tokens_per_step=setup.tokens_per_step,
        padding=_padding(steps, setup.tokens_per_step),
        num_devices=setup.num_devices,
        device=setup.device_name,
        convention=convention if spec else "",
        recognised=recognised,
        flops_per_token=flops_per_token,
        peak=setup.peak,
        tokens_per_second_total=total,
        sequences_per_second_total=total / spec.batch.sequence_length if total and spec else _samples(steps),
        days_to_1t_tokens=days_to_train(tokens=TRILLION, tokens_per_second=total) if total else None,
        identities=check_identities(facts),
        drift=drift,
        spikes=find_spikes(steps.numbers, times) if window else None,
        levels=find_levels(times),
        stragglers=find_stragglers(records.all, known, steps.numbers[0], steps.numbers[-1]) if steps else (),
        shifts=shifts,
        data_seconds=_waiting_for_data(steps),
    )


def _waiting_for_data(steps: Steps) -> float | None:
    waits = steps.values("data_seconds")
    waits = waits[waits >= 0]
    return float(np.median(waits)) if len(waits) else None


def _course(window: Window | None) -> tuple[tuple[Shift, ...], Drift | None]:
    """The shifts and the drift of the speed; that a warm-up gets faster is neither."""
    if window is None:
        return (), None
    everything = window.undisturbed
    found = find_shifts(everything.numbers, everything.times)
    start = len(everything) - len(window.chosen)
    shifts = tuple(shift for shift in found if shift.place > start or shift.change > 0)
    return shifts, find_slowdown(window.chosen.times, everything.times, found)


def clocks(setup: Setup) -> list[Clock]:
    """The possible sources of a step's time: seconds, or else the throughputs that a log may report."""
    batch = float(setup.spec.batch.global_batch_size) if setup.spec else None
    rates = (
        (TOKENS, setup.tokens_per_device, "tokens/s"),
        ("samples_per_second_total", batch, "samples/s"),
        ("steps_per_second", 1.0, "steps/s"),
        (TFLOPS, None, "TFLOP/s"),
        ("mfu", None, "MFU"),
    )
    return [
        Clock(),
        *(
            Clock(name, amount, f"from the reported {words}")
            for name, amount, words in sorted(rates, key=lambda rate: rate[1] is None)
        ),
    ]


def _beyond(least_seconds: float, peak: Peak | None) -> Callable[[Steps, Values], Flags]:
    """A test for steps that would have needed more than the device's peak: by their times, or the log's own TFLOP/s."""
    highest = peak.flops_per_second / TERA if peak else math.inf
    return lambda steps, times: (times < least_seconds) | (steps.reported(TFLOPS) > highest)


def _counted_flops(steps: Steps, seconds: Values, tokens_per_device: float | None) -> float | None:
    """FLOPs per token by the log's own TFLOP/s, over its tokens/s or else the configuration's tokens in its seconds."""
    rates, pace = reported(steps, TFLOPS), above_zero(reported(steps, TOKENS))
    if np.isnan(pace).all() and tokens_per_device:
        pace = tokens_per_device / seconds
    coarse = relative_rounding(rates) + relative_rounding(pace) > MOST_ROUNDING_TO_RECOGNISE
    return None if coarse else median_of_finite(rates * TERA / pace)


def _own_figures(steps: Steps, policy: str) -> dict[str, Estimate]:
    """The log's own figures over the window, by the names of METRICS."""
    columns = {"step_seconds": Clock().times_of(steps), **{name: reported(steps, name) for name in SPEEDS[1:]}}
    statistic = POLICIES[policy].statistic
    present = {name: only_finite(values) for name, values in columns.items()}
    return {name: estimate(values, statistic, "as reported") for name, values in present.items() if len(values)}


def _told(window: Window, clock: Clock) -> str:
    return window.summary.rule + (f" Speed is taken {clock.origin}." if clock.origin else "")


def _rate(amount: float, times: StepTimes, origin: str) -> Estimate:
    """The rate if each step does `amount`; the slowest step time gives the lowest rate."""
    return Estimate(value=amount / times.value, low=amount / times.high, high=amount / times.low, origin=origin)


def _speed(
    window: Window, clock: Clock, own: Mapping[str, Estimate], setup: Setup, flops_per_token: float | None
) -> dict[str, Estimate | str]:
    """Each metric of speed, or the reason why there is none: by the times, else as the log reports it."""
    times = window.summary
    if window.impossible:
        return dict.fromkeys(SPEEDS, f"{window.impossible} steps would have needed more than 100% {BEYOND_PEAK}")
    found: dict[str, Estimate | str] = {
        **dict.fromkeys(SPEEDS, "the log does not give it, nor what it could be computed from"),
        "mfu": _no_mfu(setup),
        **own,
    }
    if clock.in_seconds:
        found["step_seconds"] = Estimate(value=times.value, low=times.low, high=times.high, origin=clock.origin)
        amounts = work_of_a_step(setup.tokens_per_device, flops_per_token, setup.peak)
        found |= {metric: _rate(amount, times, clock.origin) for metric, amount in amounts.items()}
    mfu = found["mfu"]
    if isinstance(mfu, Estimate) and mfu.value > 1:
        return dict.fromkeys(SPEEDS, f"by these figures {mfu.value:.0%} {BEYOND_PEAK}")
    return found


def _no_mfu(setup: Setup) -> str:
    """The reason why there is no MFU, where the log does not report it either."""
    if not setup.device_name:
        return "the record does not name the device"
    if setup.device and setup.spec is None:
        return "without a configuration, FLOPs are not counted"
    return f"no peak is known for {setup.device_name!r}"


def _of_the_whole_run(
    totals: Mapping[str, float], setup: Setup, flops_per_token: float | None
) -> dict[str, Estimate | str]:
    """The speed that a log whose steps have no time reports at its end, of the whole run: no step can be left out."""
    found: dict[str, Estimate | str] = dict.fromkeys(SPEEDS, "no step has a time")
    rate = totals.get("steps_per_second", 0.0)
    if not 1 / LARGEST < rate < LARGEST:
        return found
    amounts = work_of_a_step(setup.tokens_per_device, flops_per_token, setup.peak)
    values = {"step_seconds": 1 / rate, **{metric: amount * rate for metric, amount in amounts.items()}}
    if values.get("mfu", 0.0) > 1:
        return dict.fromkeys(SPEEDS, f"by what the log reports of the whole run {values['mfu']:.0%} {BEYOND_PEAK}")
    return found | {metric: Estimate.exactly(value, OF_THE_WHOLE_RUN) for metric, value in values.items()}


def work_of_a_step(
    tokens_per_device: float | None, flops_per_token: float | None, peak: Peak | None
) -> dict[str, float]:
    """The work of a device in a step, by the metric that is this work per second; without what is not known."""
    tokens = tokens_per_device or 0.0
    work = tokens * (flops_per_token or 0.0)
    amounts = {TOKENS: tokens, TFLOPS: work / TERA, "mfu": work / (peak.flops_per_second if peak else math.inf)}
    return {metric: amount for metric, amount in amounts.items() if amount}


def _samples(steps: Steps) -> float | None:
    """Sequences that all devices together process in a second, by the log's own word."""
    return median_of_finite(above_zero(reported(steps, "samples_per_second_total")))


def _padding(steps: Steps, tokens_per_step: int | None) -> float | None:
    """The share of batch × sequence that the log does not count as tokens: padding, or all that is not in the loss."""
    counted = steps.values("tokens")[steps.has("tokens")]
    if not len(counted) or not tokens_per_step:
        return None
    return max(0.0, 1 - float(counted.sum()) / len(counted) / tokens_per_step)


def find_stragglers(
    records: Sequence[Record], clocks: Sequence[Clock], first_step: int, last_step: int
) -> tuple[Straggler, ...]:
    """The slow ones among the processes by the first of the clocks that two of them have, the slowest first.

    Only the steps between these count.
    """
    by_clock = ((clock, _medians(records, clock, first_step, last_step)) for clock in clocks)
    clock, medians = next((found for found in by_clock if len(found[1]) > 1), (None, {}))
    if clock is None:
        return ()
    # The lower one of two in the middle: of two processes, the slow one is the straggler.
    typical = sorted(time for time, _ in medians.values())[(len(medians) - 1) // 2]
    found = [
        Straggler(
            process=process,
            host=host,
            step_seconds=time if clock.in_seconds else None,
            slower_by=time / typical - 1,
            origin=clock.origin,
        )
        for process, (time, host) in medians.items()
        if time > typical * (1 + SLOWER_BY)
    ]
    return tuple(sorted(found, key=lambda straggler: -straggler.slower_by))


def _medians(records: Sequence[Record], clock: Clock, first_step: int, last_step: int) -> dict[int, tuple[float, str]]:
    """Process → (median step time, host), of those that give enough times."""
    medians = {}
    for record in records:
        times, steps = clock.times_of(record.steps), record.steps.values("step")
        known = times[(steps >= first_step) & (steps <= last_step) & (np.abs(times) < LARGEST) & (times > 0)]
        if len(known) >= FEWEST_STEPS:
            medians[record.process] = (median(known), record.host)
    return medians
