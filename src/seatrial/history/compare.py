"""Two runs, or several a side → what is faster, by how much and how surely; whether they learnt the same; what else
differs.

Speeds are compared only between runs that do the same work: the same model, sequence length, precision and FLOPs
convention. Which way is better comes from `spec.METRICS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal

from seatrial.errors import InputError
from seatrial.history.between import Spread, mean_log, ratio_between, spread_of
from seatrial.history.differences import Setting, differences
from seatrial.history.loaded import LoadedRun
from seatrial.history.within import ratio_within, side_of
from seatrial.metrics import Estimate
from seatrial.metrics.interval import Ratio, at_level, ratio_of_intervals, relative_rounding
from seatrial.spec import METRICS
from seatrial.spec.presets import architecture

Judgement = Literal["better", "worse", "no_clear_difference", "inconclusive", "not_compared"]

# What the times of the steps decide; a rate falls as they rise.
_OF_STEP_TIMES = ("step_seconds", "tokens_per_second_per_device", "tflops_per_second_per_device", "mfu")
# The speed that two runs are compared by: the first that can be; what was measured before what a log only says.
SPEEDS = ("tokens_per_second_per_device", "tflops_per_second_per_device", "step_seconds")
PARTED = (1e-3, 5e-2)  # of the larger loss
# Of a hundred comparisons of the same speed, at most one may find B slower, and one faster. Of these two a tenth is
# kept for what is approximate about the intervals: how far steps resemble each other is estimated, times are skewed.
FALSE_ALARMS = 0.02
LEVEL = 1 - 0.9 * FALSE_ALARMS
FOUND = 0.03  # a difference of speed that a comparison should be able to tell

Runs = LoadedRun | Sequence[LoadedRun]


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Something that must be the same for speeds to mean the same, and the metrics that it takes the meaning from."""

    name: str
    read: Callable[[LoadedRun], Any]
    spoils: Set[str]


def _model(run: LoadedRun) -> Any:
    return architecture(run.spec.model) if run.spec else None


def _precision(run: LoadedRun) -> Any:
    return (run.spec.precision.compute_dtype, run.spec.precision.quantization) if run.spec else None


def _policy(run: LoadedRun) -> Any:
    times = run.metrics.performance.step_times
    return times.policy if times else None


IDENTITIES = (
    Identity(name="model", read=_model, spoils={"step_seconds", "tokens_per_second_per_device"}),
    Identity(
        name="sequence length",
        read=lambda run: run.spec.batch.sequence_length if run.spec else None,
        spoils={"step_seconds", "tokens_per_second_per_device"},
    ),
    Identity(name="precision", read=_precision, spoils={"mfu"}),
    Identity(
        name="FLOPs convention",
        read=lambda run: run.metrics.performance.convention or None,
        spoils={"tflops_per_second_per_device", "mfu"},
    ),
    Identity(name="policy of which steps count", read=_policy, spoils=set(_OF_STEP_TIMES)),
)


@dataclass(frozen=True, kw_only=True)
class Change:
    """One metric on both sides. `change` is b ÷ a − 1 with its interval at LEVEL; None where it cannot be compared:
    `why`.

    `a` and `b` are the geometric means of several runs, with the lowest and the highest, or a run's own with its 95%
    interval.
    """

    metric: str
    a: Estimate | None
    b: Estimate | None
    change: float | None
    low: float | None
    high: float | None
    judgement: Judgement
    why: str = ""

    @property
    def is_measured(self) -> bool:
        """True if both values follow from the times of steps, and are not a log's own figures."""
        return all(estimate is not None and not estimate.origin for estimate in (self.a, self.b))

    @property
    def speed(self) -> Ratio | None:
        """b's speed as a multiple of a's, whichever way the metric counts."""
        if self.change is None or self.low is None or self.high is None:
            return None
        ratio = Ratio(value=1 + self.change, low=1 + self.low, high=1 + self.high)
        return ratio if METRICS[self.metric].better == "higher" else ratio.inverse


@dataclass(frozen=True, kw_only=True)
class Losses:
    """The losses at the steps that both runs report.

    Differences are relative to the larger of the two. `parted` gives for each bound of PARTED the first step at which
    they differ by more, None where they never do; a loss that is not finite in only one of them differs by everything.
    """

    num_steps: int
    only_a: int
    only_b: int
    parted: Mapping[float, int | None]
    largest: float | None
    largest_step: int | None
    last_step: int | None
    last_a: float | None
    last_b: float | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The answer. `obstacles` say what makes the two different work, `unknown` names what may.

    Losses and settings are those of the first run of each side. `spread` is the noise between runs, None where it is
    not known.
    """

    runs_a: tuple[LoadedRun, ...]
    runs_b: tuple[LoadedRun, ...]
    sentence: str
    speed: Change | None
    changes: tuple[Change, ...]
    losses: Losses
    obstacles: tuple[str, ...]
    unknown: tuple[str, ...]
    settings: tuple[Setting, ...]
    spread: Spread | None

    @property
    def a(self) -> LoadedRun:
        return self.runs_a[0]

    @property
    def b(self) -> LoadedRun:
        return self.runs_b[0]


def compare(a: Runs, b: Runs, *, anyway: bool = False, others: Sequence[Sequence[float]] = ()) -> Comparison:
    """b compared with a, of one run or several each. Raises InputError where they are different work, unless `anyway`.

    `others` are the step times of further runs, grouped by configuration, which tell how far runs differ.
    """
    runs_a, runs_b = ((side,) if isinstance(side, LoadedRun) else tuple(side) for side in (a, b))
    runs = (*runs_a, *runs_b)
    obstacles, unknown, spoilt = _obstacles(runs)
    if obstacles and not anyway:
        raise InputError.single(
            "not-comparable",
            ", ".join(run.directory for run in runs),
            f"their speeds do not mean the same: {'; '.join(obstacles)}",
            "compare runs of the same work, or add --anyway to compare what still can be",
        )
    changes = tuple(_change(metric, runs_a, runs_b, others, spoilt.get(metric, "")) for metric in METRICS)
    by_name = {change.metric: change for change in changes}
    compared = [by_name[metric] for metric in SPEEDS if by_name[metric].change is not None]
    speed = next((change for change in compared if change.is_measured), compared[0] if compared else None)
    spread = _spread(speed.metric, runs_a, runs_b, others) if speed else None
    return Comparison(
        runs_a=runs_a,
        runs_b=runs_b,
        sentence=_sentence(speed, changes, " in these two runs" if spread is None else ""),
        speed=speed,
        changes=changes,
        losses=compare_losses(runs_a[0].losses, _numbered_as(runs_a[0], runs_b[0])),
        obstacles=obstacles,
        unknown=unknown,
        settings=differences(runs_a[0], runs_b[0]),
        spread=spread,
    )


def _numbered_as(a: LoadedRun, b: LoadedRun) -> Mapping[int, float]:
    """The losses of `b` by the step numbers of `a`: some trainers count their steps from 0, others from 1."""
    ahead = b.metrics.completion.counted_from - a.metrics.completion.counted_from
    return {step - ahead: loss for step, loss in b.losses.items()}


def _obstacles(runs: Sequence[LoadedRun]) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, str]]:
    """(what differs from the first run, what is not known to be the same, metric → why it means nothing)."""
    obstacles, unknown, spoilt = dict[str, None](), dict[str, None](), dict[str, str]()
    for identity in IDENTITIES:
        one, *others = (identity.read(run) for run in runs)
        for other in others:
            if one is None or other is None:
                unknown[identity.name] = None
            elif one != other:
                obstacles[f"another {identity.name}{_both(one, other)}"] = None
                spoilt |= dict.fromkeys(identity.spoils, f"another {identity.name}")
    work = {(run.metrics.performance.tokens_per_step, run.metrics.performance.num_devices) for run in runs}
    if any(None in each for each in work):
        unknown["batch per device"] = None
    if len(work) > 1:
        spoilt.setdefault("step_seconds", "another batch, or another number of devices")
    return tuple(obstacles), tuple(unknown), spoilt


def _both(one: Any, other: Any) -> str:
    if isinstance(one, dict):
        return f" ({', '.join(key for key in one if one[key] != other[key])})"
    if isinstance(one, tuple):
        one, other = (" ".join(str(part) for part in value if part) for value in (one, other))
    return f" ({one}, {other})"


def _change(
    metric: str, a: Sequence[LoadedRun], b: Sequence[LoadedRun], others: Sequence[Sequence[float]], spoilt: str
) -> Change:
    missing = [next(filter(None, (_missing(metric, run) for run in side)), "") for side in (a, b)]
    one, other = (_of_side(metric, side) for side in (a, b))
    if spoilt or any(missing) or one is None or other is None:
        nothing = {"change": None, "low": None, "high": None}
        why = spoilt or _which(*missing)
        return Change(metric=metric, a=one, b=other, judgement="not_compared", why=why, **nothing)
    ratio = _ratio(metric, a, b, _spread(metric, a, b, others))
    return Change(
        metric=metric,
        a=one,
        b=other,
        change=ratio.value - 1,
        low=ratio.low - 1,
        high=ratio.high - 1,
        judgement=_judgement(metric, ratio),
    )


def _of_side(metric: str, runs: Sequence[LoadedRun]) -> Estimate | None:
    """A run's own figure, or the geometric mean of several with the lowest and the highest."""
    found = [estimate for run in runs if (estimate := run.metrics.performance.estimates.get(metric))]
    if len(found) < len(runs) or len(runs) == 1 or min(estimate.value for estimate in found) <= 0:
        return found[0] if found else None
    values = [estimate.value for estimate in found]
    origin = next((estimate.origin for estimate in found if estimate.origin), "")
    return Estimate(value=math.exp(mean_log(values)), low=min(values), high=max(values), origin=origin)


def _values(metric: str, runs: Sequence[LoadedRun]) -> list[float]:
    return [run.metrics.performance.estimates[metric].value for run in runs]


def _spread(
    metric: str, a: Sequence[LoadedRun], b: Sequence[LoadedRun], others: Sequence[Sequence[float]]
) -> Spread | None:
    """The noise between runs by those of both sides and the others; a rate differs by as much as the step times do."""
    of_times = all(_of_times(metric, run) for run in (*a, *b))
    return spread_of([_values(metric, a), _values(metric, b), *(others if of_times else ())])


def _ratio(metric: str, a: Sequence[LoadedRun], b: Sequence[LoadedRun], spread: Spread | None) -> Ratio:
    """b ÷ a: by the noise between runs where both sides have several, else by that within them as well.

    That between several runs has what rounding does in it, unless all were rounded to the same.
    """
    between = ratio_between(_values(metric, a), _values(metric, b), spread, LEVEL) if spread else None
    if between is None or min(len(a), len(b)) == 1:
        within = _within(metric, a, b)
        between = within.widened(between) if between else within
    if not all(_of_times(metric, run) for run in (*a, *b)):
        return between
    rounding = sum(max(relative_rounding(run.steady_seconds) for run in side) for side in (a, b))
    return between.rounded(rounding) if min(len(a), len(b)) == 1 else between.no_surer_than(rounding)


def _within(metric: str, a: Sequence[LoadedRun], b: Sequence[LoadedRun]) -> Ratio:
    """b ÷ a by the noise within the runs: by their step times, or else by the intervals that their metrics have."""
    if not all(len(run.steady_seconds) and _of_times(metric, run) for run in (*a, *b)):
        found = [[run.metrics.performance.estimates[metric] for run in side] for side in (a, b)]
        return ratio_of_intervals(*(side_of([at_level(each, LEVEL) for each in side]) for side in found))
    of_times = ratio_within([run.steady_seconds for run in a], [run.steady_seconds for run in b], LEVEL)
    ratio = of_times.inverse if METRICS[metric].better == "higher" else of_times
    one, other = (math.exp(mean_log(_values(metric, side))) for side in (a, b))
    return ratio.about(other / one)


def _missing(metric: str, run: LoadedRun) -> str:
    """The reason why a run's metric cannot be compared; "" if it can be."""
    estimate = run.metrics.performance.estimates.get(metric)
    if estimate is None:
        return run.metrics.performance.unavailable.get(metric, "not reported")
    fits = 0 < estimate.low <= estimate.value <= estimate.high < math.inf
    return "" if fits else "it has no interval that can be compared"


def _which(a: str, b: str) -> str:
    if a == b:
        return f"in both: {a}"
    return "; ".join(f"{name}: {why}" for name, why in (("A", a), ("B", b)) if why)


def _of_times(metric: str, run: LoadedRun) -> bool:
    """True if the metric is the median of the steady step times in other units, and not a log's own figure."""
    performance = run.metrics.performance
    own, step, times = performance.estimates[metric], performance.estimates.get("step_seconds"), performance.step_times
    return (
        metric in _OF_STEP_TIMES
        and step is not None
        and times is not None
        and not own.origin
        and not step.origin
        and math.isclose(step.value, times.median, rel_tol=1e-9)
    )


def _judgement(metric: str, ratio: Ratio) -> Judgement:
    """In the metric's own direction; inconclusive where the values may be the same, but also differ by FOUND."""
    if ratio.low <= 1 <= ratio.high:
        return "no_clear_difference" if ratio.low > 1 - FOUND and ratio.high < 1 + FOUND else "inconclusive"
    return "better" if (ratio.low > 1) == (METRICS[metric].better == "higher") else "worse"


def _sentence(speed: Change | None, changes: Sequence[Change], where: str) -> str:
    ratio = speed.speed if speed else None
    if speed is None or ratio is None:
        reasons = dict.fromkeys(change.why for change in changes if change.metric in SPEEDS)
        return f"The speeds cannot be compared: {'; '.join(reasons)}"
    title = METRICS[speed.metric].title + ("" if speed.is_measured else ", as the logs report it")
    span = f"[{ratio.low - 1:+.1%}, {ratio.high - 1:+.1%}]"
    if speed.judgement == "inconclusive":
        more = "; more steps or runs would tell"
        return f"Inconclusive: B's speed differs from A's by something within {span}{where} ({title}){more}."
    if speed.judgement == "no_clear_difference":
        return f"No clear difference: B is as fast as A, within {span}{where} ({title})."
    how, by = ("faster", ratio.value - 1) if ratio.value > 1 else ("slower", 1 - ratio.value)
    ends = (ratio.low - 1, ratio.high - 1) if ratio.value > 1 else (1 - ratio.high, 1 - ratio.low)
    return f"B is {how} than A by {by:.1%} [{ends[0]:.1%}, {ends[1]:.1%}]{where} ({title})."


def compare_losses(a: Mapping[int, float], b: Mapping[int, float]) -> Losses:
    """The losses of two runs by step."""
    shared = sorted(a.keys() & b.keys())
    apart = {step: _apart(a[step], b[step]) for step in shared}
    largest_step = max(shared, key=lambda step: apart[step], default=None)
    last = shared[-1] if shared else None
    return Losses(
        num_steps=len(shared),
        only_a=len(a) - len(shared),
        only_b=len(b) - len(shared),
        parted={bound: next((step for step in shared if apart[step] > bound), None) for bound in PARTED},
        largest=None if largest_step is None else apart[largest_step],
        largest_step=largest_step,
        last_step=last,
        last_a=None if last is None else a[last],
        last_b=None if last is None else b[last],
    )


def _apart(one: float, other: float) -> float:
    """The difference as a fraction of the larger; infinite where only one is a number."""
    if not (math.isfinite(one) and math.isfinite(other)):
        return 0.0 if one == other or (math.isnan(one) and math.isnan(other)) else math.inf
    return abs(one - other) / max(abs(one), abs(other), 1e-300)
