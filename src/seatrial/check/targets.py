"""Targets: they can be reached, mean something, and do not contradict each other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from seatrial.check.finder import Finder
from seatrial.check.mesh import mesh_is_sound
from seatrial.errors import Problem
from seatrial.estimate import flops, hardware, time_profile
from seatrial.estimate.hardware import TERA
from seatrial.estimate.layouts import fastest
from seatrial.estimate.time_model import StepTime, predict
from seatrial.spec import METRICS, Expectation, RunSpec

# Two targets agree if they are no further apart than this: published pairs are rounded, and mix conventions.
AGREEMENT = 0.10
WEAK = 0.05  # of the peak: what tuned runs reach is tenfold
MOST_TOLERANCE = 0.5

# Targets that measure one thing, the plainest relation first: batch, FLOPs per token, peak.
_PAIRS = (
    ("tokens_per_second_per_device", "step_seconds"),
    ("tflops_per_second_per_device", "tokens_per_second_per_device"),
    ("tflops_per_second_per_device", "step_seconds"),
    ("tflops_per_second_per_device", "mfu"),
    ("tokens_per_second_per_device", "mfu"),
    ("step_seconds", "mfu"),
)


def _peak(spec: RunSpec) -> tuple[hardware.Device, float, str] | None:
    """The device, its peak in TFLOP/s for the run's formats, and the format."""
    device = hardware.find(spec.topology.device)
    peak = device.peak(spec.precision.compute_dtype, spec.precision.quantization) if device else None
    return (device, peak[0] / TERA, peak[1]) if device and peak else None


def _tflops(spec: RunSpec, target: Expectation) -> dict[str, float]:
    """TFLOP/s per device that a target on speed means, by convention; nothing for another target."""
    peak = _peak(spec)
    each = {name: flops.flops_per_token(spec.model, spec.batch.sequence_length, name) for name in flops.CONVENTIONS}
    if target.metric == "tflops_per_second_per_device":
        return dict.fromkeys(each, target.value)
    if target.metric == "mfu":
        return dict.fromkeys(each, target.value * peak[1]) if peak else {}
    if target.metric == "tokens_per_second_per_device":
        return {name: target.value * count / TERA for name, count in each.items()}
    if target.metric == "step_seconds":
        return {name: _tokens_per_second(spec, target.value) * count / TERA for name, count in each.items()}
    return {}


class Asked(NamedTuple):
    """The least work that a target on speed asks for: the convention by which it does, the TFLOP/s by that convention,
    and those that are done, as causal attention needs no more."""

    convention: str
    tflops: float
    done: float


def _least(spec: RunSpec, target: Expectation) -> Asked | None:
    """A target as whoever counts most FLOPs for the same work means it; None for one that is not on speed."""
    length = spec.batch.sequence_length
    causal = flops.flops_per_token(spec.model, length)
    each = (
        Asked(name, value, value * causal / flops.flops_per_token(spec.model, length, name))
        for name, value in _tflops(spec, target).items()
    )
    return min(each, key=lambda asked: asked.done, default=None)


def _tokens_per_second(spec: RunSpec, step_seconds: float) -> float:
    return spec.tokens_per_step / spec.topology.num_devices / step_seconds


def _shown(target: Expectation) -> str:
    if target.metric == "mfu":
        return f"an MFU of {target.value:.0%}"
    return f"{target.value:g} {METRICS[target.metric].unit}"


def _meaning(target: Expectation, tflops: float) -> str:
    """A target converted to TFLOP/s."""
    return "" if target.metric.startswith("tflops") else f"{_shown(target)} mean {tflops:.0f} TFLOP/s, and "


def impossible_targets(finder: Finder) -> Iterator[Problem]:
    """No target lies above what the device can do at its peak, by whatever convention FLOPs are counted."""
    peak = _peak(finder.spec)
    for target in finder.spec.expectations:
        path = f"expectations.{target.metric}"
        asked, least = min(_tflops(finder.spec, target).values(), default=0.0), _least(finder.spec, target)
        if target.metric in ("mfu", "memory_fraction") and target.value > 1:
            why = f"{target.value:g} is above 1, and this is a fraction"
            yield finder.at(path, "warning", "impossible-expectation", why, "use a fraction")
        elif peak and least and least.done > peak[1]:
            device, most, number_format = peak
            is_floor = METRICS[target.metric].better == "higher"
            limit = target.value * most / asked if is_floor else target.value * asked / most
            yield finder.at(
                path, "warning", "impossible-expectation",
                f"{_meaning(target, asked)}{device.name} reaches {most:g} TFLOP/s in {number_format} at its peak "
                f"({device.source}): no run can pass",
                f"expect {'less' if is_floor else 'more'} than {limit:.{0 if is_floor else 2}f}",
            )  # fmt: skip


def _expected(spec: RunSpec, engine: str) -> tuple[StepTime, time_profile.Profile] | None:
    """The time of the run's steps as it is laid out; None where that is not known."""
    profile = time_profile.published(hardware.find(spec.topology.device))
    if profile is None or not mesh_is_sound(spec):
        return None
    found = predict(spec, engine, profile)
    return (found, profile) if found else None


def _tflops_of_step(spec: RunSpec, step_seconds: float) -> float:
    """Causal attention."""
    return _tokens_per_second(spec, step_seconds) * flops.flops_per_token(spec.model, spec.batch.sequence_length) / TERA


def _where_tuned_ones_are(finder: Finder, peak: float) -> str:
    if (known := _expected(finder.spec, finder.engine)) is None:
        return ""
    high, low = (_tflops_of_step(finder.spec, seconds) / peak for seconds in known[0].interval)
    return f", where tuned ones reach {low:.0%} to {high:.0%}"


def unreachable_targets(finder: Finder) -> Iterator[Problem]:
    """No target lies above what the fastest layout of these devices reaches, at the upper end of its interval.

    Of TFLOP/s and MFU by the published convention that counts most FLOPs.
    """
    spec, peak = finder.spec, _peak(finder.spec)
    asked = {target: least for target in spec.expectations if (least := _least(spec, target))}
    asked = {target: least for target, least in asked.items() if peak and least.done <= peak[1]}
    known = _expected(spec, finder.engine) if asked else None
    if known is None:
        return
    own, profile = known
    above = {target: least for target, least in asked.items() if least.done > _done(spec, own)}
    best = fastest(spec, finder.engine, profile) if above else None
    if best is None:
        return
    best = min(best, own, key=lambda time: time.step_seconds)
    for target, least in above.items():
        if least.done > _done(spec, best):
            reached = least.tflops * _done(spec, best) / least.done
            is_usual = least.convention == flops.DEFAULT_CONVENTION
            counted = "" if is_usual else f", FLOPs counted {least.convention.replace('_', '-')}"
            yield finder.at(
                f"expectations.{target.metric}", "warning", "unreachable-expectation",
                f"{_meaning(target, least.tflops)}the fastest layout of {spec.topology.num_devices} {profile.device} "
                f"takes {best.step_seconds:.3g} s a step, and at best ({profile.certainty}) reaches {reached:.0f} "
                f"TFLOP/s{counted}",
                f"expect what {reached:.0f} TFLOP/s mean, or less; seatrial plan --sweep shows the layouts",
            )  # fmt: skip


def _done(spec: RunSpec, time: StepTime) -> float:
    """The TFLOP/s of a step that is as fast as it may be, of causal attention."""
    return _tflops_of_step(spec, time.interval[0])


def weak_targets(finder: Finder) -> Iterator[Problem]:
    """No target is so low, or so tolerant, that a broken run would pass."""
    peak = _peak(finder.spec)
    for index, target in enumerate(finder.spec.expectations):
        asked = max(_tflops(finder.spec, target).values(), default=math.inf)
        if peak and asked < WEAK * peak[1]:
            device, most, number_format = peak
            yield finder.at(
                f"expectations.{target.metric}", "warning", "weak-expectation",
                f"{_meaning(target, asked)}{device.name} reaches {most:g} TFLOP/s in {number_format} at its "
                f"peak: a run at {asked / most:.1%} of it would pass{_where_tuned_ones_are(finder, most)}",
                "correct the number or its unit",
            )  # fmt: skip
        if target.tolerance is not None and target.tolerance >= MOST_TOLERANCE:
            why = f"a tolerance of {target.tolerance:.0%} lets nearly every run pass"
            path = f"expectations.{index}.tolerance"
            yield finder.at(path, "warning", "weak-expectation", why, "use 0.05 or 0.1, for example")


def repeated_targets(finder: Finder) -> Iterator[Problem]:
    """A metric has one target."""
    metrics = [target.metric for target in finder.spec.expectations]
    for index, metric in enumerate(metrics):
        if metric in metrics[:index]:
            why = f"there is a target for {metric} already"
            path = f"expectations.{index}.metric"
            yield finder.at(path, "error", "repeated-expectation", why, "keep one of the two")


def contradicting_targets(finder: Finder) -> Iterator[Problem]:
    """Targets on TFLOP/s, tokens/s, step time and MFU measure one thing: the work per token and step ties them."""
    spec = finder.spec
    targets = {target.metric: target for target in spec.expectations}
    spoken_of: set[str] = set()
    for pair in _PAIRS:
        if not targets.keys() >= set(pair) or spoken_of.intersection(pair):
            continue
        one, other = (targets[metric] for metric in pair)
        mean, means = _tflops(spec, one), _tflops(spec, other)
        if not (mean and means):
            continue
        if any(abs(math.log(mean[name] / means[name])) <= math.log1p(AGREEMENT) for name in mean):
            continue
        spoken_of.update(pair)
        why = _contradiction(spec, one, other, means)
        yield finder.at(
            f"expectations.{other.metric}", "warning", "contradicting-expectations", why, "correct one of the two"
        )


def _contradiction(spec: RunSpec, one: Expectation, other: Expectation, means: dict[str, float]) -> str:
    batch, devices = spec.batch, spec.topology.num_devices
    if (one.metric, other.metric) == ("tokens_per_second_per_device", "step_seconds"):
        return (
            f"{batch.global_batch_size} × {batch.sequence_length} tokens a step on {devices} devices take "
            f"{spec.tokens_per_step / devices / one.value:.5g} s at {one.value:g} tokens/s each, but {other.value:g} s "
            f"are asked for, which take {_tokens_per_second(spec, other.value):.0f} tokens/s"
        )
    if other.metric == "mfu":
        asked = _tflops(spec, one)[flops.DEFAULT_CONVENTION]
        what = "TFLOP/s are expected" if one.metric.startswith("tflops") else f"TFLOP/s are what {_shown(one)} mean"
        return f"{_shown(other)} means {max(means.values()):.0f} TFLOP/s, but {asked:.0f} {what}"
    listed = ", ".join(f"{value:.0f} ({name})" for name, value in means.items())
    shares = {name: one.value / value for name, value in means.items()}
    better = METRICS[other.metric].better == "higher"
    unit = METRICS[other.metric].unit
    wanted = ", ".join(
        f"{other.value * share if better else other.value / share:.{0 if better else 1}f} ({name})"
        for name, share in shares.items()
    )
    return (
        f"{_shown(other)} of {spec.model.name} at {batch.sequence_length} tokens mean {listed} TFLOP/s by the "
        f"published conventions, but {one.value:g} TFLOP/s are expected, which would take {wanted} {unit}"
    )
