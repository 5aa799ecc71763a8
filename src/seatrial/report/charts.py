"""Makes the data of a run's charts: thinned curves, what stays in their frames, targets, marks, histogram, evaluations.

Plain data that JSON can carry; a value that is missing or not finite is a gap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seatrial.estimate import hardware
from seatrial.estimate.hardware import GIB
from seatrial.events import Eval, Step
from seatrial.metrics import Performance, Ranges
from seatrial.report.figures import slower_by
from seatrial.report.gather import RunReport
from seatrial.report.steps import counted_seconds, left_out, step_rate, within
from seatrial.spec import METRICS
from seatrial.verdict import show

MAX_POINTS = 8000  # far more than the pixels of a chart; a longer run is thinned, extremes kept
NARROW, WIDE = 0.1, 0.25  # of the median: charts of speed show at least so much, and of the warm-up no more
NEIGHBOURS = 9  # of a step: what their median does not show is an outlier
MOST_NOISE = 6.0  # times the median distance from it
MOST_BINS = 60
MOST_MARKS = 4  # of one kind; more are in the tables
FEWEST_FOR_BINS = 10  # steps
REACH = 2.0  # times the width of a histogram: a target further away is only named

RATE, TFLOPS = "tokens_per_second_per_device", "tflops_per_second_per_device"
SPEEDS = {"seconds": "step_seconds", "rate": RATE, "tflops": TFLOPS}  # curve → metric
Values = NDArray[np.float64]


class Curve(NamedTuple):
    """A chart over the steps: its title and unit, how a step's value is read.

    `keeps_ends`: a thinned curve keeps its extremes; `clips`: outliers may leave its frame.
    """

    title: str
    unit: str
    read: Callable[[Step], float | None]
    keeps_ends: bool = True
    clips: bool = True


def chart_data(report: RunReport) -> dict[str, Any]:
    """Everything that the charts of a run's page draw."""
    targets = _targets(report)
    data = curve_data(report.steps, report.performance)
    for name, curve in data["curves"].items():
        curve["targets"] = targets.get(name, [])
    return {
        **data,
        "marks": list(_marks(report)),
        "evals": _evals(report),
        "histogram": _histogram(report, targets.get("seconds", [])),
    }


def curve_data(steps: Sequence[Step], performance: Performance | None, most: int = MAX_POINTS) -> dict[str, Any]:
    """The curves of a run, of about `most` points at most, and the steps that its speed is not taken from.

    `starts` are the places of the points where a bucket of a thinned run begins; `medians` has that of each bucket, for
    a smooth line that extremes do not bend.
    """
    times = performance.step_times if performance else None
    unused: Ranges = left_out(times) if times else ()
    curves = curves_of(steps, performance)
    values = {name: _values(steps, curve.read) for name, curve in curves.items()}
    values = {name: found for name, found in values.items() if np.isfinite(found).any()}
    kept, starts = thinned(len(steps), [found for name, found in values.items() if curves[name].keeps_ends], most)
    size = math.ceil(len(steps) / len(starts)) if starts else 1
    first, last = (times.first_step, times.last_step) if times else (0, math.inf)
    steady = np.array([first <= s.step <= last and not within(s.step, unused) for s in steps], dtype=bool)
    medians = _medians(performance)
    return {
        "steps": [steps[index].step for index in kept],
        "thinned": len(kept) < len(steps),
        "starts": starts if size > 1 else [],
        "left_out": unused,
        "curves": {
            name: {
                "title": curves[name].title,
                "unit": curves[name].unit,
                "values": _numbers(found[kept]),
                "medians": _numbers(_bucket_medians(found, size)) if size > 1 else [],
                "frame": frame(found, steady, medians.get(name)) if curves[name].clips else None,
                "median": _number(medians.get(name)),
            }
            for name, found in values.items()
        },
    }


def curves_of(steps: Sequence[Step], performance: Performance | None) -> dict[str, Curve]:
    """The curves of a run's steps, by name, in the order of the page."""

    def rate(step: Step) -> float | None:
        found = step_rate(step, performance)
        return step.reported.get(RATE) if found is None else found

    def memory(step: Step) -> float | None:
        found = step.reported.get("memory_bytes" if in_bytes else "memory_fraction")
        return None if found is None else found / GIB if in_bytes else 100 * found

    in_bytes = any("memory_bytes" in step.reported for step in steps)
    curves = {
        "loss": Curve("Loss", "", lambda step: step.loss),
        "seconds": Curve("Step time", "s", lambda step: step.seconds),
        "grad_norm": Curve("Gradient norm", "", lambda step: step.grad_norm),
        "rate": Curve("Tokens/s per device", "", rate),
        "tflops": Curve("TFLOP/s per device", "", lambda step: step.reported.get(TFLOPS)),
        "learning_rate": Curve("Learning rate", "", lambda step: step.learning_rate, keeps_ends=False, clips=False),
        "memory": Curve("Device memory", "GiB" if in_bytes else "%", memory, clips=False),
    }
    if any(rate(step) is not None for step in steps):
        del curves["tflops"]  # the same in other units
    return curves


def _values(steps: Sequence[Step], read: Callable[[Step], float | None]) -> Values:
    """NaN where there is none; what is not finite stays so."""
    return np.array([math.nan if (value := read(step)) is None else value for step in steps], dtype=np.float64)


def _number(value: float | None) -> float | None:
    """A number to draw: six digits of it, which no screen can tell from all of them."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


def _numbers(values: Values) -> list[float | None]:
    """Numbers to draw."""
    return [_number(value) for value in values.tolist()]


def _medians(performance: Performance | None) -> dict[str, float]:
    """Curve → the run's own figure, where it has one."""
    estimates = performance.estimates if performance else {}
    return {curve: estimates[metric].value for curve, metric in SPEEDS.items() if metric in estimates}


# --- which steps are drawn, and which part of their axis --------------------------------------------------------------


def thinned(count: int, curves: Sequence[Values], most: int = MAX_POINTS) -> tuple[list[int], list[int]]:
    """(the places of about `most` steps at most, the places in that list where a bucket begins).

    Of each bucket the first is kept, and of every curve the lowest, the highest, and the first that is not finite: so
    that neither a spike nor a gap is lost.
    """
    if count <= most:
        return list(range(count)), list(range(count))
    size = math.ceil((1 + 3 * len(curves)) * count / most)
    firsts = range(0, count, size)
    kept = {count - 1, *firsts}
    for values in curves:
        finite = np.isfinite(values)
        low, high = (np.where(finite, values, end) for end in (math.inf, -math.inf))
        for start in firsts:
            bucket = slice(start, start + size)
            if finite[bucket].any():
                kept |= {start + int(low[bucket].argmin()), start + int(high[bucket].argmax())}
            if not finite[bucket].all():
                kept.add(start + int(finite[bucket].argmin()))
    ordered = sorted(kept)
    place = {step: index for index, step in enumerate(ordered)}
    return ordered, [place[start] for start in firsts]


def _bucket_medians(values: Values, size: int) -> Values:
    """The median of each bucket, for a smooth line that extremes do not bend."""
    parts = [values[start : start + size] for start in range(0, len(values), size)]
    finite = [part[np.isfinite(part)] for part in parts]
    return np.array([float(np.median(part)) if len(part) else math.nan for part in finite])


def frame(values: Values, steady: NDArray[np.bool_], median: float | None) -> tuple[float, float] | None:
    """The part of its axis that a chart shows with outliers clipped; None without a finite value.

    Of a speed, all steady steps, and a warm-up that is not far off. Of another curve, what the medians of neighbouring
    steps come to, with some room: a fall that lasts is no outlier, a spike is.
    """
    finite = np.isfinite(values)
    if not finite.any():
        return None
    if median is not None:
        near = (values <= (1 + WIDE) * median) & (values >= median / (1 + WIDE))
        shown = values[finite & (steady | near)]
        ends = [*shown.tolist(), median * (1 - NARROW), median * (1 + NARROW)]
        return min(ends), max(ends)
    return _without_spikes(values[finite])


def _without_spikes(values: Values) -> tuple[float, float]:
    """The lowest and the highest value that the steps around it have as well, more or less."""
    if len(values) <= NEIGHBOURS:
        return float(values.min()), float(values.max())
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(values, NEIGHBOURS), axis=1)
    half = NEIGHBOURS // 2
    around = np.concatenate([np.full(half, smooth[0]), smooth, np.full(half, smooth[-1])])
    away = np.abs(values - around)
    usual = values[away <= max(MOST_NOISE * float(np.median(away)), NARROW * float(np.ptp(smooth)))]
    low, high = float(min(usual.min(), smooth.min())), float(max(usual.max(), smooth.max()))
    # At its ends a curve may fall faster than nine steps show: what goes on from the frame is none apart from it.
    ends = [*values[: half + 1].tolist(), *values[-half - 1 :].tolist()]
    near = [value for value in ends if 2 * low - high <= value <= 2 * high - low]
    return min([low, *near]), max([high, *near])


# --- targets and marks ----------------------------------------------------------------------------------------------


def _targets(report: RunReport) -> dict[str, list[dict[str, Any]]]:
    """Curve → the lines of the verdict's targets on it, with their texts; each speed in the units of the curve."""
    found: dict[str, list[dict[str, Any]]] = {}
    performance = report.performance
    for check in report.checks:
        bound = check.bound
        if check.axis != "performance" or check.status == "not_applicable" or check.name not in METRICS:
            continue
        if performance is None or not isinstance(bound, (int, float)) or not 0 < bound < math.inf:
            continue
        kind = METRICS[check.name]
        text = f"target {'≥' if kind.better == 'higher' else '≤'} {show(bound, kind.unit)}"
        for curve, value in _places(check.name, bound, performance):
            found.setdefault(curve, []).append({"value": _number(value), "text": text})
    return found


def _places(metric: str, bound: float, performance: Performance) -> Iterator[tuple[str, float]]:
    """(curve, value on it) of a target: a speed on each curve of speed, as the run's own figures convert it."""
    if metric == "memory_fraction":
        device = hardware.find(performance.device)
        reported = performance.estimates.get(metric)
        in_bytes = reported is not None and "bytes" in reported.origin
        if not in_bytes:
            yield "memory", 100 * bound
        elif device:
            yield "memory", bound * device.memory_bytes / GIB
        return
    own = performance.estimates.get(metric)
    for curve, of_curve in SPEEDS.items():
        there = performance.estimates.get(of_curve)
        if metric == of_curve:
            yield curve, bound
        elif own and there and own.value > 0:
            same_way = METRICS[metric].better == METRICS[of_curve].better
            yield curve, there.value * (bound / own.value if same_way else own.value / bound)


def _marks(report: RunReport) -> Iterator[dict[str, Any]]:
    """Steps from which something is different: on which curves ([]: all), where, why, and how it is drawn."""
    if report.metrics is None:
        return
    numerics, performance = report.metrics.numerics, report.metrics.performance
    if numerics.first_bad_step is not None:
        text = f"not finite from step {numerics.first_bad_step}"
        yield {"curves": ["loss"], "step": numerics.first_bad_step, "text": text, "tone": "fail"}
    for shift in performance.shifts[:MOST_MARKS]:
        text = f"{slower_by(shift.change)} from step {shift.step}"
        tone = "inconclusive" if shift.change > 0 else "muted"
        yield {"curves": list(SPEEDS), "step": shift.step, "text": text, "tone": tone}
    for count, attempt in enumerate(report.attempts[1 : 1 + MOST_MARKS], 2):
        if attempt:
            yield {"curves": [], "step": attempt[0].step, "text": f"attempt {count}", "tone": "muted"}


# --- evaluations and histogram --------------------------------------------------------------------------------------


def _evals(report: RunReport) -> dict[str, Any] | None:
    """The losses of the evaluations, with their target."""
    found: dict[int, Eval] = {each.step: each for each in report.evals if each.loss is not None}
    losses = np.array([each.loss for each in found.values()], dtype=np.float64)
    if not np.isfinite(losses).any():
        return None
    target = report.metrics.completion.target_eval_loss if report.metrics else None
    if target is None and report.spec:
        target = report.spec.evaluation.target_loss
    kept, _ = thinned(len(found), [losses])
    steps = list(found)
    return {
        "steps": [steps[index] for index in kept],
        "values": _numbers(losses[kept]),
        "targets": [{"value": _number(target), "text": f"target ≤ {show(target)}"}] if target is not None else [],
    }


def _histogram(report: RunReport, targets: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """A histogram of the step times that the median is of; None of few, or of equal ones."""
    times = report.performance.step_times if report.performance else None
    seconds = np.array(counted_seconds(report.attempts, report.performance))
    if times is None or len(seconds) < FEWEST_FOR_BINS or float(np.ptp(seconds)) <= 0:
        return None
    # Outliers do not squeeze the others into one bin: they are counted apart.
    quarters = np.percentile(seconds, [25, 75])
    reach = max(4 * float(np.ptp(quarters)), 0.02 * times.median)
    inside = seconds[np.abs(seconds - times.median) <= reach]
    most = min(MOST_BINS, max(5, len(inside) // 3))
    edges = np.histogram_bin_edges(inside, bins="fd")
    if len(edges) - 1 > most or len(edges) < 6:
        edges = np.histogram_bin_edges(inside, bins=max(5, min(most, len(edges) - 1)))
    counts, _ = np.histogram(inside, bins=edges)
    width = float(edges[-1] - edges[0])
    near = [t for t in targets if t["value"] and edges[0] - REACH * width < t["value"] < edges[-1] + REACH * width]
    return {
        "edges": _numbers(edges),
        "counts": counts.tolist(),
        "beyond": len(seconds) - len(inside),
        "median": _number(times.median),
        "low": _number(times.p5),
        "high": _number(times.p95),
        "targets": near,
        "far": [t["text"] for t in targets if t not in near],
    }
