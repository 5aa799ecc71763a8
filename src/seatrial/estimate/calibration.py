"""Measurements of a device → its profile: least squares, in relative terms.

Products and attention are measured as operators; what is left of whole steps, bytes moved, optimizer and gaps between
kernels, is found from the steps, each by as much as it explains. Steps on several devices give how much they slow each
other down.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from seatrial.estimate.memory import OWN
from seatrial.estimate.time_model import (
    ATTENTION,
    BUBBLE,
    COMMUNICATION,
    LAUNCHES,
    MATRIX,
    MOVED,
    OPTIMIZER,
    StepTime,
    predict,
    product_seconds,
)
from seatrial.estimate.time_profile import Link, Profile, Rate
from seatrial.estimate.time_work import work_of
from seatrial.spec import RunSpec

OF_NODE = 0  # the fast links connect the devices of a node
# Between these multiples of the estimate lay steps that were not calibrated with, half of them on one device
# (`bench/time_model.py`).
LOW, HIGH, CERTAINTY = 0.85, 1.16, "26 of 28 measured steps on one processor"
MOST_SMALL, MOST_HEAD = 300.0, 600.0  # that a product's dimension or a head can seem to be larger by
LEAST_LEFT = 0.2  # of a measured step, beside its collectives
MOST_FACTOR = 10.0  # between an operator measured alone and within a step
# How much one operator's measurement weighs beside a step's; and a guess: a loop over memory is none of the loops of
# layers, and between two kernels there is a gap of some microseconds.
BELIEVED, LITTLE, GAP = 0.3, 0.03, 1e-5


@dataclass(frozen=True, kw_only=True)
class MeasuredProduct:
    """A product [m, k] × [k, n], on each of so many devices at once."""

    number_format: str
    kind: str
    m: int
    k: int
    n: int
    seconds: float
    devices: int = 1

    @property
    def what(self) -> tuple[Any, ...]:
        """The same on any number of devices."""
        return self.number_format, self.kind, self.m, self.k, self.n


@dataclass(frozen=True, kw_only=True)
class MeasuredAttention:
    """Causal attention with heads of `head_dim`, on each of so many devices at once; `flops` of what it computes, on a
    processor more than the causal half."""

    number_format: str
    kind: str
    head_dim: int
    flops: float
    seconds: float
    devices: int = 1

    @property
    def what(self) -> tuple[Any, ...]:
        """The same on any number of devices."""
        return self.number_format, self.kind, self.head_dim, self.flops


@dataclass(frozen=True, kw_only=True)
class MeasuredCollective:
    """A collective of `total_bytes` over so many devices, which may stand in several processes."""

    kind: str
    devices: int
    total_bytes: float
    seconds: float
    processes: int = 1


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    spec: RunSpec
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Measurements:
    products: tuple[MeasuredProduct, ...]
    attention: tuple[MeasuredAttention, ...]
    collectives: tuple[MeasuredCollective, ...]
    steps: tuple[MeasuredStep, ...]
    memory_bytes_per_second: float
    optimizer_bytes_per_second: float
    # Number of devices → part of a step → bytes per second of each of so many devices at once.
    together: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    host: bool = False


def profile_of(found: Measurements, *, device: str, origin: str, facts: Mapping[str, Any]) -> Profile:
    """The profile that explains the measurements best. Raises ValueError where some are missing."""
    if not (found.products and found.attention and found.steps):
        raise ValueError("nothing was measured of products, attention or steps")
    by_one = [each for each in found.products if each.devices == 1]
    attended = [each for each in found.attention if each.devices == 1]
    formats = sorted({each.number_format for each in by_one})
    products = {
        f"{name}/{kind}": _product_rate([p for p in by_one if (p.number_format, p.kind) == (name, kind)])
        for name, kind in sorted({(each.number_format, each.kind) for each in by_one})
    }
    attention = {
        f"{name}/{kind}": _attention_rate([a for a in attended if (a.number_format, a.kind) == (name, kind)])
        for name, kind in sorted({(each.number_format, each.kind) for each in attended})
    }
    link = Link(bytes_per_second=found.memory_bytes_per_second, latency_seconds=0.0)
    first = Profile(
        device=device, origin=origin, products=products, attention=attention,
        memory_bytes_per_second=found.memory_bytes_per_second,
        optimizer_bytes_per_second=found.optimizer_bytes_per_second, fast=link, slow=link, domain=OF_NODE,
        host=found.host, low=LOW, high=HIGH, certainty=CERTAINTY, facts=facts,
    )  # fmt: skip
    alone = [step for step in found.steps if step.spec.topology.num_devices == 1]
    return _together(_from_steps(first, formats, alone), found)


def completed(measured: Profile, published: Profile | None, *, several: bool) -> Profile:
    """A measured profile of accelerators, with published constants for what one machine cannot show: the network, how
    many devices the fast links connect, overlap, and formats that were not measured. `several`: whether the links
    between devices were measured. The interval is that of published steps, too: none is known of steps on accelerators
    that were measured.
    """
    own = replace(measured, shared={})  # accelerators share no processor
    if published is None:
        return own
    return replace(
        own,
        products={**published.products, **own.products},
        attention={**published.attention, **own.attention},
        fast=own.fast if several else published.fast,
        slow=published.slow, domain=published.domain, hides=published.hides, felt=published.felt,
        jitter=published.jitter, low=published.low, high=published.high, certainty=published.certainty,
    )  # fmt: skip


# --- operators --------------------------------------------------------------------------------------------------------


def _product_rate(measured: Sequence[MeasuredProduct]) -> Rate:
    """Rate, what each dimension loses and the seconds of each, by least squares over the relative errors."""
    best = max(2.0 * p.m * p.k * p.n / p.seconds for p in measured)
    usual = statistics.median(p.seconds for p in measured)
    # In multiples of what is possible, so that all numbers are of the order of 1.
    units = (usual, 1 / best, MOST_SMALL / best, MOST_SMALL / best, MOST_SMALL / best)
    rows = [
        [unit * count / p.seconds for unit, count in zip(
            units, (1, 2 * p.m * p.k * p.n, 2 * p.k * p.n, 2 * p.m * p.n, 2 * p.m * p.k), strict=True)]
        for p in measured
    ]  # fmt: skip
    each, of_flops, m, k, n = _least_squares(rows, [1.0] * len(rows))
    of_flops = max(of_flops, 1 / MOST_FACTOR)
    small = (MOST_SMALL * found / of_flops for found in (m, k, n))
    return Rate(flops_per_second=best / of_flops, **dict(zip("mkn", small, strict=True)), seconds_each=each * usual)


def _attention_rate(measured: Sequence[MeasuredAttention]) -> Rate:
    def off(x: Sequence[float]) -> float:
        return sum(math.log(a.flops * (1 + x[1] / a.head_dim) / x[0] / a.seconds) ** 2 for a in measured)

    found = _search(off, [max(a.flops / a.seconds for a in measured), 16.0], [math.inf, MOST_HEAD])
    return Rate(flops_per_second=found[0], k=found[1])


def _search(off: Callable[[Sequence[float]], float], start: Sequence[float], most: Sequence[float]) -> list[float]:
    """The positive numbers up to `most` at which `off` is least, one after the other in ever smaller steps."""
    x, best, step = list(start), off(start), 2.0
    while step > 1.002:
        moved = False
        for i in range(len(x)):
            for factor in (step, 1 / step):
                tried = [*x[:i], x[i] * factor, *x[i + 1 :]]
                if tried[i] <= most[i] and (value := off(tried)) < best - 1e-12:
                    x, best, moved = tried, value, True
        if not moved:
            step = step**0.5
    return x


# --- whole steps ------------------------------------------------------------------------------------------------------


def _from_steps(profile: Profile, formats: Sequence[str], steps: Sequence[MeasuredStep]) -> Profile:
    """Bytes moved, optimizer, gaps, and how much longer or shorter operators take within a step."""
    names = [*(f"products {name}" for name in formats), ATTENTION, MOVED, OPTIMIZER, LAUNCHES]
    rows, goals = [], []
    for step in steps:
        work, time = work_of(step.spec, OWN), predict(step.spec, OWN, profile)
        if time is None:
            raise ValueError(f"no rate of {profile.device} is known for {step.spec.precision.compute_dtype}")
        row = dict.fromkeys(names, 0.0)
        row |= {name: time.seconds[name] for name in (ATTENTION, MOVED, OPTIMIZER)}
        for product in work.products:
            row[f"products {product.number_format}"] += product_seconds(product, profile)
        row[LAUNCHES] = work.kernels * GAP
        rows.append([row[name] / step.seconds for name in names])
        goals.append(1.0)
    for i, name in enumerate(names):  # what was measured alone is believed, too; a copy is no fused loop
        weight = LITTLE if name in (MOVED, LAUNCHES) else BELIEVED
        rows.append([weight if j == i else 0.0 for j in range(len(names))])
        goals.append(weight)
    factors = dict(zip(names, _least_squares(rows, goals), strict=True))
    factors = {name: min(max(factor, 1 / MOST_FACTOR), MOST_FACTOR) for name, factor in factors.items()}

    return replace(
        profile,
        products={name: rate.scaled(factors[f"products {name.partition('/')[0]}"])
                  for name, rate in profile.products.items()},
        attention={name: rate.scaled(factors[ATTENTION]) for name, rate in profile.attention.items()},
        moved=dict.fromkeys(formats, profile.memory_bytes_per_second / factors[MOVED]),
        optimizer_bytes_per_second=profile.optimizer_bytes_per_second / factors[OPTIMIZER],
        launch_seconds=GAP * factors[LAUNCHES],
    )  # fmt: skip


def _least_squares(rows: Sequence[Sequence[float]], goals: Sequence[float]) -> list[float]:
    """Numbers of at least 0 that bring rows · x nearest to the goals, by coordinate descent."""
    x = [1.0] * len(rows[0])
    for _ in range(2000):
        for i in range(len(x)):
            square = sum(row[i] ** 2 for row in rows)
            if square == 0:
                continue
            rest = sum(
                row[i] * (goal - sum(a * b for j, (a, b) in enumerate(zip(row, x, strict=True)) if j != i))
                for row, goal in zip(rows, goals, strict=True)
            )
            x[i] = max(rest / square, 0.0)
    return x


# --- several devices --------------------------------------------------------------------------------------------------

REST = (MOVED, OPTIMIZER, LAUNCHES)  # parts of which devices share the processor alike
FSDP = f"{COMMUNICATION}: fsdp"  # what is gathered is copied, too, which a collective alone does not show


def _together(profile: Profile, found: Measurements) -> Profile:
    """The profile with the slowdown of devices by each other, and their links, from measurements on several at once."""
    inside = [each for each in found.collectives if each.processes == 1]
    between = [each for each in found.collectives if each.processes > 1]
    fast = _link(inside) if inside else profile.fast
    profile = replace(profile, fast=fast, slow=_link(between) if between else fast)
    virtual = [step for step in found.steps if step.spec.topology.num_nodes == 1]
    counts = sorted({step.spec.topology.num_devices for step in virtual} - {1})
    shared: dict[str, dict[int, float]] = {}
    if counts and inside:
        shared[COMMUNICATION] = {1: 1.0} | {n: _off_link(inside, fast, n) for n in counts}
    with_links = replace(profile, shared=dict(shared))
    for devices in counts:
        steps = [step for step in virtual if step.spec.topology.num_devices == devices]
        for part, factor in _slowdowns(with_links, found, devices, steps).items():
            shared.setdefault(part, {1: 1.0})[devices] = factor
    profile = replace(profile, shared=shared)
    return _apart(profile, [step for step in found.steps if step.spec.topology.num_nodes > 1])


def _apart(profile: Profile, steps: Sequence[MeasuredStep]) -> Profile:
    """The profile with the slowdown of several processes, and the speed of the links between them in whole steps.

    In a step the links are not used in turns, as they are by one measured collective after the other; fsdp's have a
    factor of their own. All that is from processes with one device each; for several, one more factor counts.
    """
    rows: list[list[float]] = []
    alone = [step for step in steps if step.spec.topology.devices_per_node == 1]
    for step in alone:
        if time := predict(step.spec, OWN, profile):
            links, gathers = _links(time), time.seconds.get(FSDP, 0.0)
            parts = (time.step_seconds - links, links - gathers, gathers)
            rows.append([seconds / step.seconds for seconds in parts])
    goals = [1.0] * len(rows)
    believed = (BELIEVED, BELIEVED, LITTLE)
    for i, weight in enumerate(believed):
        rows.append([weight if j == i else 0.0 for j in range(len(believed))])
        goals.append(weight)
    computing, passing, gathering = (max(factor, 1 / MOST_FACTOR) for factor in _least_squares(rows, goals))
    slow = replace(profile.slow, bytes_per_second=profile.slow.bytes_per_second / passing,
                   latency_seconds=profile.slow.latency_seconds * passing)  # fmt: skip
    profile = replace(profile, apart={1: computing}, slow=slow, links_apart={FSDP: gathering / passing})
    longer: dict[int, list[float]] = {}
    for step in (step for step in steps if step not in alone):
        if time := predict(step.spec, OWN, profile):
            computed = time.step_seconds - _links(time)
            left = max(step.seconds - _links(time), LEAST_LEFT * step.seconds)
            longer.setdefault(step.spec.topology.devices_per_node, []).append(left / computed)
    several = {devices: computing * statistics.geometric_mean(found) for devices, found in longer.items()}
    return replace(profile, apart={**profile.apart, **several})


def _links(time: StepTime) -> float:
    """Seconds of a step's collectives."""
    return sum(seconds for name, seconds in time.seconds.items() if name.startswith(COMMUNICATION))


def _slowdowns(profile: Profile, found: Measurements, devices: int, steps: Sequence[MeasuredStep]) -> dict[str, float]:
    """The slowdown of each part on so many devices: as measured by itself, corrected by whole steps.

    A product on all devices at once takes as many times as long as there are devices, for one keeps all cores busy.
    What one device does on one core takes no longer on as many devices as there are cores.
    """
    alone = _measured_together(found, devices)
    names = (MATRIX, ATTENTION, *REST)
    rows: list[list[float]] = []
    for step in steps:
        time = predict(step.spec, OWN, profile)
        if time is None:
            continue
        in_turns = sum(time.seconds.get(name, 0.0) for name in (MATRIX, ATTENTION, MOVED))
        waits = 1 + time.seconds.get(BUBBLE, 0.0) / in_turns
        links = _links(time) - time.seconds.get(FSDP, 0.0)
        seconds = {name: time.seconds.get(name, 0.0) * (waits if name in (MATRIX, ATTENTION, MOVED) else 1.0)
                   for name in names}  # fmt: skip
        left = max(step.seconds - links, LEAST_LEFT * step.seconds)
        rows.append([
            seconds[MATRIX] * alone[MATRIX] / left,
            seconds[ATTENTION] * alone[ATTENTION] / left,
            sum(seconds[name] * alone[name] for name in REST) / left,
            time.seconds.get(FSDP, 0.0) / left,
        ])  # fmt: skip
    goals = [1.0] * len(rows)
    believed = (BELIEVED, BELIEVED, BELIEVED, LITTLE)
    for i, weight in enumerate(believed):
        rows.append([weight if j == i else 0.0 for j in range(len(believed))])
        goals.append(weight)
    matrix, attention, rest, gathering = (max(factor, 1 / MOST_FACTOR) for factor in _least_squares(rows, goals))
    factors = {MATRIX: matrix, ATTENTION: attention, **dict.fromkeys(REST, rest)}
    return {FSDP: gathering} | {name: factors[name] * alone[name] for name in names}


def _measured_together(found: Measurements, devices: int) -> dict[str, float]:
    """By part: the time of an operator on all of so many devices at once, over its time on one; the median of them."""

    def ratio(measured: Sequence[Any]) -> float:
        alone = {each.what: each.seconds for each in measured if each.devices == 1}
        ratios = [each.seconds / alone[each.what] for each in measured if each.devices == devices]
        return statistics.median(ratios) if ratios else float(devices)

    rates = found.together.get(devices, {})
    moved = found.memory_bytes_per_second / rates[MOVED] if MOVED in rates else float(devices)
    return {MATRIX: ratio(found.products), ATTENTION: ratio(found.attention), **dict.fromkeys(REST, moved)}


def _passing(each: MeasuredCollective, link: Link) -> float:
    """Seconds of a collective round a ring."""
    twice = 2 if each.kind == "all-reduce" else 1
    sent = each.total_bytes * (each.devices - 1) / each.devices
    return twice * (sent / link.bytes_per_second + (each.devices - 1) * link.latency_seconds)


def _off_link(collectives: Sequence[MeasuredCollective], link: Link, devices: int) -> float:
    """The median slowdown of collectives of so many devices against a link that serves all numbers of them."""
    ratios = [each.seconds / _passing(each, link) for each in collectives if each.devices == devices]
    return statistics.median(ratios) if ratios else 1.0


def _link(collectives: Sequence[MeasuredCollective]) -> Link:
    """Bandwidth and latency a hop that explain the collectives best; least deviations, for a few of some sizes wait
    for timers of TCP, a hundred times as long as others."""

    def off(x: Sequence[float]) -> float:
        link = Link(bytes_per_second=x[0], latency_seconds=x[1])
        return sum(abs(math.log(_passing(each, link) / each.seconds)) for each in collectives)

    start = [max(each.total_bytes / each.seconds for each in collectives), 1e-5]
    found = _search(off, start, [math.inf, math.inf])
    return Link(bytes_per_second=found[0], latency_seconds=found[1])
