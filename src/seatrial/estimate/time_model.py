"""The time of a step by what it is spent on: arithmetic over a device's profile, before anything runs.

A step takes as long as its parts one after the other: matrix products (a roofline each, by shape and format),
attention, what is bound by memory, the optimizer, and of the collectives of each mesh axis what computing does not
hide; then the turns that a pipeline waits, gaps between kernels, and what more nodes lose by waiting for each other.

A collective passes each device's part round a ring. Within a domain of fast links that takes its bytes over their
bandwidth. Over several domains all devices of a group that stand in one domain send to the next at once, each over its
own rail, while the fast links distribute what has come; the slower of both decides. Each hop has a latency.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from seatrial.estimate.memory import decided
from seatrial.estimate.time_profile import ATTENTION_BACKWARD, ATTENTION_FORWARD, Link, Profile
from seatrial.estimate.time_work import Collective, Product, Work, work_of
from seatrial.spec import AXES, RunSpec

OPERAND_BYTES = {"float32": 4, "bfloat16": 2, "fp8": 1}
MATRIX, ATTENTION, MOVED, OPTIMIZER = "matrix products", "attention", "memory-bound", "optimizer"
COMMUNICATION = "communication"  # of all axes; what devices share of a processor is in its measurement
BUBBLE, LAUNCHES, NODES = "pipeline bubble", "launches", "waiting for other nodes"
SCALES = "scales"
# Axes whose collectives stand in the middle of a layer, which its products wait for; and engines that cut both to let
# the parts overlap (Transformer Engine's userbuffers). XLA does not by default.
INSIDE_LAYERS = {"tensor", "context"}
OVERLAP_INSIDE = ("megatron",)


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """A step's seconds by part; their sum is the estimate; `low` and `high` times it are the interval of the profile.

    `hidden_seconds`: communication by mesh axis that computing hides; it is not in the sum.
    """

    seconds: Mapping[str, float]
    hidden_seconds: Mapping[str, float]
    low: float
    high: float
    profile: Profile
    remat: str

    @property
    def step_seconds(self) -> float:
        return sum(self.seconds.values())

    @property
    def interval(self) -> tuple[float, float]:
        return self.step_seconds * self.low, self.step_seconds * self.high


def predict(spec: RunSpec, engine: str, profile: Profile | None) -> StepTime | None:
    """The time of a step by an engine on devices of a profile; None where that has no rate for the run's formats.

    The mesh must fit the devices. Recomputation that is left open ("auto") is decided as `memory.decided` does.
    """
    spec = decided(spec, engine)
    if profile is None:
        return None
    work = work_of(spec, engine)
    formats_known = all(profile.product(each.number_format, each.kind) for each in work.products)
    if not formats_known or profile.attention_rate(work.attention_format, ATTENTION_FORWARD) is None:
        return None
    devices, apart = spec.topology.num_devices, profile.slowdown_apart(spec)
    slow = {name: profile.slowdown(name, devices) * apart for name in (MATRIX, ATTENTION, MOVED, OPTIMIZER)}
    computed = _computed(work, profile, slow)
    launches = work.kernels * profile.launch_seconds + profile.fixed_seconds
    layers = sum(seconds for name, seconds in computed.items() if name != OPTIMIZER)
    in_turns = layers if work.head_in_turns else layers - sum(_of_head(work, profile, slow).values())
    exposed, hidden = _communication(spec, work, profile, engine, layers, in_turns)
    in_turns += sum(exposed.get(axis, 0.0) for axis in INSIDE_LAYERS)
    parts = {
        **computed,
        **{_name(axis): seconds for axis, seconds in exposed.items()},
        BUBBLE: in_turns * work.waits,
        LAUNCHES: launches * profile.slowdown(LAUNCHES, devices) * apart,
    }
    nodes = max(1.0, devices / max(profile.domain, spec.topology.devices_per_node))
    parts[NODES] = sum(parts.values()) * profile.jitter * math.log2(nodes)
    return StepTime(
        seconds={name: seconds for name, seconds in parts.items() if seconds > 0},
        hidden_seconds={_name(axis): seconds for axis, seconds in hidden.items() if seconds > 0},
        low=profile.low, high=profile.high, profile=profile, remat=spec.execution.remat,
    )  # fmt: skip


def _name(axis: str) -> str:
    return f"{COMMUNICATION}: {axis}"


# --- computing --------------------------------------------------------------------------------------------------------


def _computed(work: Work, profile: Profile, slow: Mapping[str, float]) -> dict[str, float]:
    """Seconds by part, each so many times as long as on a device alone."""
    attention = (work.blocks if profile.host else 1.0) * sum(
        flops * (1 + rate.k / work.head_dim) / rate.flops_per_second
        for kind, flops in ((ATTENTION_FORWARD, work.attention_forward_flops),
                            (ATTENTION_BACKWARD, work.attention_backward_flops))
        if (rate := profile.attention_rate(work.attention_format, kind))
    )  # fmt: skip
    bytes_moved, head = work.moved.layers + (work.host.layers if profile.host else 0.0), _of_head(work, profile, slow)
    of_layers = sum(product_seconds(each, profile) for each in work.products if not each.is_head)
    return {
        MATRIX: of_layers * slow[MATRIX] + head[MATRIX],
        ATTENTION: attention * slow[ATTENTION],
        MOVED: bytes_moved / _moves(work, profile) * slow[MOVED] + head[MOVED],
        OPTIMIZER: work.optimizer_bytes / profile.optimizer_bytes_per_second * slow[OPTIMIZER],
    }


def _of_head(work: Work, profile: Profile, slow: Mapping[str, float]) -> dict[str, float]:
    """Seconds of the output head's products, and of what it and the tables move."""
    bytes_moved = work.moved.head + (work.host.head if profile.host else 0.0)
    return {
        MATRIX: sum(product_seconds(each, profile) for each in work.products if each.is_head) * slow[MATRIX],
        MOVED: bytes_moved / _moves(work, profile) * slow[MOVED],
    }


def _moves(work: Work, profile: Profile) -> float:
    return profile.moved.get(work.attention_format, profile.memory_bytes_per_second)


def product_seconds(product: Product, profile: Profile) -> float:
    """Seconds of a step's products of a kind and shape."""
    rate = profile.product(product.number_format, product.kind, product.is_head)
    if rate is None:
        return math.inf
    m, k, n = product.m, product.k, product.n
    size = OPERAND_BYTES[product.number_format]
    moved = (m * k + k * n) * size + m * n * max(size, 2)
    return product.times * max(rate.seconds(m, k, n), moved / profile.memory_bytes_per_second)


# --- communication ----------------------------------------------------------------------------------------------------


def group_sizes(spec: RunSpec, axis: str, domain: int) -> tuple[int, int]:
    """Devices of an axis's group that stand in one domain of fast links, and the number of domains that it spans."""
    topology = spec.topology
    domain = domain or topology.devices_per_node
    fast = spec.parallelism.within_node.resolve(topology.devices_per_node).sizes
    slow = spec.parallelism.across_nodes.resolve(topology.num_nodes).sizes
    if domain < topology.devices_per_node:  # neighbours along the last axes share a domain
        stride = math.prod(fast[later] for later in AXES[AXES.index(axis) + 1 :])
        inside = max(1, min(fast[axis], domain // stride))
        return inside, fast[axis] * slow[axis] // inside
    nodes = max(1, domain // topology.devices_per_node)
    stride = math.prod(slow[later] for later in AXES[AXES.index(axis) + 1 :])
    inside = fast[axis] * max(1, min(slow[axis], nodes // stride))
    return inside, -(-fast[axis] * slow[axis] // inside)


def _ring(total_bytes: float, size: int, link: Link, rails: int = 1) -> float:
    sent = total_bytes * (size - 1) / size
    return sent / link.bytes_per_second / rails + (size - 1) * link.latency_seconds


def collective_seconds(collective: Collective, spec: RunSpec, profile: Profile) -> float:
    """All collectives of this kind in a step, one after the other."""
    if collective.axis == SCALES:  # a few bytes: a tree's latency, up and down
        hops = 2 * math.ceil(math.log2(spec.data_parallel_size))
        far = spec.topology.num_devices > max(profile.domain or spec.topology.devices_per_node, 1)
        return collective.times * hops * (profile.slow if far else profile.fast).latency_seconds
    sizes = [group_sizes(spec, axis, profile.domain) for axis in collective.over or (collective.axis,)]
    inside, domains = (math.prod(each) for each in zip(*sizes, strict=True))
    if collective.kind == "permute":
        link = profile.slow if domains > 1 else profile.fast
        return collective.times * (collective.total_bytes / link.bytes_per_second + link.latency_seconds)
    total_bytes = collective.total_bytes * (collective.on_host if profile.host else 1.0)
    within = _ring(total_bytes, inside, profile.fast) if inside > 1 else 0.0
    between = _ring(total_bytes, domains, profile.slow, rails=inside) if domains > 1 else 0.0
    twice = 2 if collective.kind == "all-reduce" else 1
    return collective.times * twice * max(within, between)


def _communication(
    spec: RunSpec, work: Work, profile: Profile, engine: str, layers: float, in_turns: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds by axis that a step waits, and that it does not, because it computes meanwhile; `layers` are the seconds
    of all passes, `in_turns` those of them that a pipeline's waiting is in proportion to.

    What happens inside of layers can hide behind their own work, where the engine overlaps it; all else behind the
    passes, the turns that a pipeline waits included, as far as the links are not in use.
    """
    each: dict[str, float] = {}
    devices = spec.topology.num_devices
    for collective in work.collectives:
        seconds = collective_seconds(collective, spec, profile) * profile.slowdown(COMMUNICATION, devices)
        name = _name(collective.axis)  # of some axes they take longer: within a process, and between processes
        seconds *= (
            profile.slowdown(name, devices) if spec.topology.num_nodes == 1 else profile.links_apart.get(name, 1.0)
        )
        each[collective.axis] = each.get(collective.axis, 0.0) + seconds
    exposed: dict[str, float] = {}
    hidden: dict[str, float] = {}

    def hide(axes: Iterable[str], room: float, overlaps: bool = True) -> float:
        for axis in sorted(axes):
            beside = min(each[axis] * profile.hides.get(axis, 0.0), room) if overlaps else 0.0
            room -= beside
            hidden[axis] = beside * (1 - profile.felt)
            exposed[axis] = each[axis] - hidden[axis]
        return room

    inside = each.keys() & INSIDE_LAYERS
    used = layers - hide(inside, layers, overlaps=engine in OVERLAP_INSIDE)
    waiting = sum(exposed[axis] for axis in inside)
    passes = layers + waiting + (in_turns + waiting) * work.waits
    hide(each.keys() - inside, passes - used)
    return exposed, hidden
