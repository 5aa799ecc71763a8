"""Rates of a device and its links: the constants by which `time_model` estimates a step.

Without a measurement they are published ones: the peaks and bandwidths of data sheets (`hardware.DEVICES`, `LINKS`),
times how much of them tuned runs get (`SHARES`), which half of the published results were used to find
(`bench/time_published.py`). `seatrial calibrate` measures them on a device; a profile says which it is.

    products    a product [m, k] × [k, n] takes 2 (m k n + M k n + K m n + N m k) / rate seconds and a constant, or as
                long as its operands take to be read and written; M, K and N are what small dimensions lose
    attention   FLOPs of the causal half over a rate, forward and backward, where a head seems to be larger by k
    memory      bytes read and written over a bandwidth, by format; the optimizer has one of its own
    links       bytes over a bandwidth, and a latency a hop: fast within a domain, slow between domains
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from seatrial.estimate.hardware import GB, Device
from seatrial.spec import RunSpec

VERSION = 5
HEAD = "head/"  # before the kind of a product of the output head
ATTENTION_FORWARD, ATTENTION_BACKWARD = "forward", "backward"


class OtherVersion(ValueError):
    """A profile whose constants mean something else."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Of matrix products in a format: FLOP/s of large ones, what each dimension seems to be larger by, for the operands
    and the result are moved, and seconds of each product, whatever its size."""

    flops_per_second: float
    m: float = 0.0
    k: float = 0.0
    n: float = 0.0
    seconds_each: float = 0.0

    def seconds(self, m: float, k: float, n: float) -> float:
        moved = self.m * k * n + self.k * m * n + self.n * m * k
        return self.seconds_each + 2 * (m * k * n + moved) / self.flops_per_second

    def scaled(self, factor: float) -> Rate:
        """The rate of products that take so many times as long."""
        return dataclasses.replace(
            self, flops_per_second=self.flops_per_second / factor, seconds_each=self.seconds_each * factor
        )


@dataclass(frozen=True, kw_only=True)
class Link:
    """Bytes per second that a device sends in a collective, and seconds for each hop."""

    bytes_per_second: float
    latency_seconds: float


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A device's constants.

    `products` and `attention` are by format ("bfloat16"), and where they differ by format and kind
    ("bfloat16/weight_gradient", "bfloat16/head/forward", "bfloat16/backward"). `domain` is how many devices the fast
    links connect. `hides`: by mesh axis the share of communication that computing can hide; `felt` is how much of the
    hidden time it takes all the same. `host`: a processor, on which our own trainer's program is another one (`Work`),
    and which its devices share. `shared`: for each part of a step, devices that are there at once → how much longer it
    takes than on one alone; `apart`: devices of each process → how much longer than that where there are several
    processes; `links_apart`: how much longer an axis communicates between those than the link says. `low` and `high`:
    between these multiples of the estimate lie so many step times as `certainty` says.
    """

    device: str
    origin: str
    products: Mapping[str, Rate]
    attention: Mapping[str, Rate]
    memory_bytes_per_second: float
    optimizer_bytes_per_second: float
    fast: Link
    slow: Link
    domain: int  # 0: those of a node
    host: bool = False
    launch_seconds: float = 0.0
    fixed_seconds: float = 0.0  # of a step, whatever it does
    moved: Mapping[str, float] = field(default_factory=dict)  # bytes per second by format, where they differ
    hides: Mapping[str, float] = field(default_factory=dict)
    felt: float = 0.0
    jitter: float = 0.0  # share of a step that is lost with each doubling of the nodes
    shared: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    apart: Mapping[int, float] = field(default_factory=dict)
    links_apart: Mapping[str, float] = field(default_factory=dict)
    low: float = 1.0
    high: float = 1.0
    certainty: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)  # its sources, or versions and date of a measurement

    def product(self, number_format: str, kind: str, is_head: bool = False) -> Rate | None:
        """The rate of a kind of product; the output head's, where it was measured."""
        if is_head and (of_head := self.products.get(f"{number_format}/{HEAD}{kind}")):
            return of_head
        return self.products.get(f"{number_format}/{kind}", self.products.get(number_format))

    def attention_rate(self, number_format: str, kind: str) -> Rate | None:
        return self.attention.get(f"{number_format}/{kind}", self.attention.get(number_format))

    def slowdown_apart(self, spec: RunSpec) -> float:
        """The factor by which everything takes longer because a run has several processes."""
        if spec.topology.num_nodes == 1:
            return 1.0
        fewer = [devices for devices in self.apart if devices <= spec.topology.devices_per_node]
        return self.apart[max(fewer)] if fewer else 1.0

    def slowdown(self, part: str, devices: int) -> float:
        """The slowdown of a part on each of so many devices against one; a power law between measured numbers."""
        known = sorted(self.shared.get(part, {}).items())
        if not known:
            return 1.0
        if devices <= known[0][0]:
            return known[0][1]
        for (fewer, low), (more, high) in itertools.pairwise(known):
            if devices <= more:
                return low * math.pow(high / low, math.log(devices / fewer) / math.log(more / fewer))
        return known[-1][1] * devices / known[-1][0]


def as_dict(profile: Profile) -> dict[str, Any]:
    """A profile as plain data."""
    return {"v": VERSION, **dataclasses.asdict(profile)}


def from_dict(data: Mapping[str, Any]) -> Profile:
    """The inverse of `as_dict`. Raises OtherVersion; ValueError, KeyError or TypeError for what is no profile."""
    given = dict(data)
    if given.pop("v") != VERSION:
        raise OtherVersion("another version of Seatrial has measured it")
    given["products"] = {name: Rate(**rate) for name, rate in given["products"].items()}
    given["attention"] = {name: Rate(**rate) for name, rate in given["attention"].items()}
    given["fast"], given["slow"] = Link(**given["fast"]), Link(**given["slow"])
    given["shared"] = {
        part: {int(devices): value for devices, value in values.items()} for part, values in given["shared"].items()
    }
    given["apart"] = {int(devices): value for devices, value in given["apart"].items()}
    return Profile(**given)


# --- published constants ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Links:
    """Published: GB/s per device and direction within a domain of so many devices, and to the network."""

    fast: float
    domain: int
    slow: float
    source: str


LINKS: dict[str, Links] = {
    "a100-sxm-80gb": Links(fast=300, domain=8, slow=25, source="NVIDIA DGX A100 data sheet: 600 GB/s, 8 × 200 Gb/s"),
    "a100-sxm-40gb": Links(fast=300, domain=8, slow=25, source="NVIDIA DGX A100 data sheet: 600 GB/s, 8 × 200 Gb/s"),
    "a100-pcie-80gb": Links(fast=300, domain=2, slow=25, source="NVIDIA A100 data sheet: bridge of 600 GB/s for two"),
    "a100-pcie-40gb": Links(fast=300, domain=2, slow=25, source="NVIDIA A100 data sheet: bridge of 600 GB/s for two"),
    "h100-sxm": Links(fast=450, domain=8, slow=50, source="NVIDIA DGX H100 data sheet: NVLink 900 GB/s, 8 × 400 Gb/s"),
    "h100-nvl": Links(fast=300, domain=2, slow=50, source="NVIDIA H100 NVL data sheet: bridge of 600 GB/s for two"),
    "h100-pcie": Links(fast=300, domain=2, slow=50, source="NVIDIA H100 data sheet: bridge of 600 GB/s for two"),
    "h200": Links(fast=450, domain=8, slow=50, source="NVIDIA DGX H200 data sheet: NVLink 900 GB/s, 8 × 400 Gb/s"),
    "h200-nvl": Links(fast=450, domain=4, slow=50, source="NVIDIA H200 NVL data sheet: bridge of 900 GB/s for four"),
    "h20": Links(fast=450, domain=8, slow=50, source="NVIDIA HGX H20 data sheet: NVLink 900 GB/s"),
    "b200": Links(fast=900, domain=8, slow=50, source="NVIDIA DGX B200 data sheet: NVLink 1.8 TB/s, 8 × 400 Gb/s"),
    "gb200": Links(fast=900, domain=72, slow=50, source="NVIDIA GB200 NVL72 data sheet: 1.8 TB/s, 400 Gb/s"),
    "b300": Links(fast=900, domain=8, slow=100, source="NVIDIA DGX B300 data sheet: NVLink 1.8 TB/s, 8 × 800 Gb/s"),
    "gb300": Links(fast=900, domain=72, slow=100, source="NVIDIA GB300 NVL72 data sheet: 1.8 TB/s, 800 Gb/s"),
    "mi250x": Links(fast=150, domain=8, slow=25, source="AMD MI250X data sheet, per GCD; 200 Gb/s"),
    "mi250": Links(fast=150, domain=8, slow=25, source="AMD MI250 data sheet, per GCD; 200 Gb/s"),
    "mi300x": Links(fast=448, domain=8, slow=50, source="AMD MI300X data sheet: 7 links of 64 GB/s; 8 × 400 Gb/s"),
    "mi325x": Links(fast=448, domain=8, slow=50, source="AMD MI325X data sheet: 7 links of 64 GB/s; 8 × 400 Gb/s"),
    "mi350x": Links(fast=538, domain=8, slow=50, source="AMD MI350X data sheet: 7 links of 76.8 GB/s; 8 × 400 Gb/s"),
    "tpu-v4": Links(fast=300, domain=4096, slow=6.25, source="Google Cloud TPU v4 documentation: 2400 Gb/s"),
    "tpu-v5e": Links(fast=200, domain=256, slow=12.5, source="Google Cloud TPU v5e documentation: 1600 Gb/s"),
    "tpu-v5p": Links(fast=600, domain=8960, slow=6.25, source="Google Cloud TPU v5p documentation: 4800 Gb/s"),
    "tpu-v6e": Links(fast=448, domain=256, slow=12.5, source="Google Cloud TPU v6e documentation: 3584 Gb/s"),
    # A chip's, shared by four logical NeuronCores, or eight.
    "trainium2": Links(fast=125, domain=64, slow=6.25, source="AWS EC2 Trn2: NeuronLink 1 TB/s, EFA 3.2 Tb/s for 16"),
    "trainium2-lnc1": Links(
        fast=62.5, domain=128, slow=3.125, source="AWS EC2 Trn2: NeuronLink 1 TB/s, EFA 3.2 Tb/s for 16"
    ),
    "mi355x": Links(fast=538, domain=8, slow=50, source="AMD MI355X data sheet: 7 links of 76.8 GB/s; 8 × 400 Gb/s"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Shares:
    """The shares of a data sheet's peak that tuned runs reach, by format; found from published results."""

    bfloat16: float
    fp8: float
    attention: float  # of the peak of bfloat16, forward; the backward pass gets 0.76 of that, as FlashAttention-3 does
    felt: float
    low: float
    high: float
    certainty: str = "80% of tuned runs"


MEMORY, FAST, SLOW = 0.85, 0.75, 0.85  # of the data sheets' bandwidths
BACKWARD = 0.76  # 470 of 620 TFLOP/s, d = 128 and causal: FlashAttention-3 (arXiv 2407.08608), figures 5 and 6
FAST_LATENCY, SLOW_LATENCY = 1.5e-6, 10e-6  # seconds a hop: NCCL's NVLink and InfiniBand rings
LAUNCH = 2e-6  # seconds between two kernels
LOSS_OF_SMALL = 16.0  # what each dimension of a product seems to be larger by
HIDES = {"fsdp": 1.0, "data": 1.0, "pipeline": 1.0, "tensor": 0.95, "context": 0.95}
JITTER = 0.001

FELT = 0.17
HOPPER = Shares(bfloat16=0.70, fp8=0.72, attention=0.46, felt=FELT, low=0.94, high=1.12)
BLACKWELL = Shares(bfloat16=0.63, fp8=0.74, attention=0.31, felt=FELT, low=0.94, high=1.12)
# Of B300 and GB300 nothing is published in bfloat16: in proportion to fp8. Their clocks are above those of the peak.
ULTRA = Shares(bfloat16=0.80, fp8=0.94, attention=0.33, felt=FELT, low=0.94, high=1.12)
# Of these hardly anything is published: as of Hopper and Blackwell, less a tenth, in a wider interval.
OTHERS = Shares(bfloat16=0.60, fp8=0.65, attention=0.35, felt=FELT, low=0.75, high=1.3, certainty="an assumed range")
SHARES: dict[str, Shares] = {
    "h100-sxm": HOPPER, "h100-nvl": HOPPER, "h100-pcie": HOPPER, "h200": HOPPER, "h200-nvl": HOPPER,
    "h20": HOPPER,
    "b200": BLACKWELL, "gb200": BLACKWELL, "b300": ULTRA, "gb300": ULTRA,
}  # fmt: skip


def published(device: Device | None, shares: Shares | None = None) -> Profile | None:
    """A device's profile from data sheets; None where its links are not known. `shares`: instead of its own."""
    links = LINKS.get(device.name) if device else None
    if device is None or links is None:
        return None
    share = shares or SHARES.get(device.name, OTHERS)
    of_format = {"bfloat16": share.bfloat16, "fp8": share.fp8}
    small = {"m": LOSS_OF_SMALL, "k": LOSS_OF_SMALL, "n": LOSS_OF_SMALL}
    attention = device.peak_flops["bfloat16"] * share.attention
    memory = device.memory_bytes_per_second * MEMORY
    return Profile(
        device=device.name,
        origin="published constants",
        facts={"sources": [device.source, links.source]},
        products={
            name: Rate(flops_per_second=device.peak_flops[name] * part, **small)
            for name, part in of_format.items()
            if name in device.peak_flops
        },
        attention={
            "bfloat16": Rate(flops_per_second=attention),
            f"bfloat16/{ATTENTION_BACKWARD}": Rate(flops_per_second=attention * BACKWARD),
        },
        memory_bytes_per_second=memory,
        optimizer_bytes_per_second=memory,
        fast=Link(bytes_per_second=links.fast * GB * FAST, latency_seconds=FAST_LATENCY),
        slow=Link(bytes_per_second=links.slow * GB * SLOW, latency_seconds=SLOW_LATENCY),
        domain=links.domain,
        launch_seconds=LAUNCH,
        hides=HIDES,
        felt=share.felt,
        jitter=JITTER,
        low=share.low,
        high=share.high,
        certainty=share.certainty,
    )
