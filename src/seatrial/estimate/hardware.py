"""Peak speed and memory of accelerators, each figure with its source.

Peaks are dense (no structured sparsity), in FLOP/s per *visible device* — which is not always a package: an MI250X
shows two. A device that is not listed has no peak: then no MFU is printed, rather than a guessed one. Memory is given
as data sheets name it, whose "GB" are 2^30 bytes: an H100 of 80 GB has 81 559 MiB by its driver, an MI300X of 192 GB
has 206.1e9 bytes by rocm-smi.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

GIB = 2**30
GB = 10**9
TERA = 1e12


_AS_FAST = {"float16": "bfloat16"}  # as all of these devices' data sheets say


@dataclass(frozen=True, kw_only=True)
class Device:
    """`peak_flops` maps a matrix format ("bfloat16", "fp8", "float32") to dense FLOP/s."""

    name: str
    vendor: str
    peak_flops: Mapping[str, float]
    memory_bytes: int
    memory_bytes_per_second: float
    source: str

    def peak(self, compute_dtype: str, quantization: str | None = None) -> tuple[float, str] | None:
        """(dense peak FLOP/s, its format) for a run in these formats; None where no figure is known."""
        name = "fp8" if quantization and "fp8" in quantization else _AS_FAST.get(compute_dtype, compute_dtype)
        return (self.peak_flops[name], name) if name in self.peak_flops else None


def _device(
    name: str, vendor: str, *, bf16: float, fp8: float | None = None, memory: float, bandwidth: float, source: str
) -> Device:
    """bf16, fp8 in TFLOP/s; memory in GiB; bandwidth in GB/s."""
    peaks = {"bfloat16": bf16 * TERA} | ({"fp8": fp8 * TERA} if fp8 else {})
    return Device(
        name=name, vendor=vendor, peak_flops=peaks, memory_bytes=int(memory * GIB),
        memory_bytes_per_second=bandwidth * GB, source=source,
    )  # fmt: skip


DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        _device("a100-sxm-80gb", "nvidia", bf16=312, memory=80, bandwidth=2039, source="NVIDIA A100 data sheet"),
        _device("h100-sxm", "nvidia", bf16=989, fp8=1979, memory=80, bandwidth=3350,
                source="NVIDIA H100 data sheet; NVIDIA DGXC recipes use the same rounding"),
        _device("h100-nvl", "nvidia", bf16=835, fp8=1671, memory=94, bandwidth=3900,
                source="NVIDIA H100 NVL data sheet (fp8 = 2 × bf16)"),
        _device("h100-pcie", "nvidia", bf16=756, fp8=1513, memory=80, bandwidth=2039, source="NVIDIA H100 data sheet"),
        _device("h200", "nvidia", bf16=989, fp8=1979, memory=141, bandwidth=4800, source="NVIDIA H200 data sheet"),
        _device("h20", "nvidia", bf16=148, fp8=296, memory=96, bandwidth=4000,
                source="NVIDIA H20 data sheet (fp8 = 2 × bf16)"),
        _device("b200", "nvidia", bf16=2250, fp8=4500, memory=180, bandwidth=7700, source="NVIDIA DGX B200 data sheet"),
        _device("gb200", "nvidia", bf16=2500, fp8=5000, memory=186, bandwidth=8000,
                source="NVIDIA GB200 data sheet (DGXC recipes use 2450/4900)"),
        _device("b300", "nvidia", bf16=2250, fp8=4500, memory=288, bandwidth=8000,
                source="NVIDIA DGXC recipes; NVIDIA DGX B300 data sheet"),
        _device("gb300", "nvidia", bf16=2500, fp8=5000, memory=288, bandwidth=8000,
                source="NVIDIA GB300 data sheet (DGXC recipes use 2450/4900)"),
        _device("mi250x", "amd", bf16=191.5, memory=64, bandwidth=1638,
                source="AMD MI250X data sheet, per GCD (one visible device)"),
        _device("mi300x", "amd", bf16=1307.4, fp8=2614.9, memory=192, bandwidth=5300, source="AMD MI300X data sheet"),
        _device("mi325x", "amd", bf16=1307.4, fp8=2614.9, memory=256, bandwidth=6000, source="AMD MI325X data sheet"),
        _device("mi350x", "amd", bf16=2306.9, fp8=4613.7, memory=288, bandwidth=8000, source="AMD MI350X data sheet"),
        _device("mi355x", "amd", bf16=2516.6, fp8=5033.2, memory=288, bandwidth=8000, source="AMD MI355X data sheet"),
        _device("tpu-v4", "google", bf16=275, memory=32, bandwidth=1228, source="Google Cloud TPU v4 documentation"),
        _device("tpu-v5e", "google", bf16=197, memory=16, bandwidth=819, source="Google Cloud TPU v5e documentation"),
        _device("tpu-v5p", "google", bf16=459, memory=95, bandwidth=2765, source="Google Cloud TPU v5p documentation"),
        _device("tpu-v6e", "google", bf16=918, memory=32, bandwidth=1640, source="Google Cloud TPU v6e documentation"),
        _device("trainium2", "aws", bf16=667, fp8=1299, memory=96, bandwidth=2900,
                source="AWS Neuron documentation, per chip"),
    )
}  # fmt: skip

# How configurations and runtimes spell a device, without case and separators; tried in order.
_SPELLINGS: tuple[tuple[str, str], ...] = (
    ("mi355", "mi355x"), ("mi350", "mi350x"), ("mi325", "mi325x"), ("mi300", "mi300x"), ("mi250", "mi250x"),
    ("gb300", "gb300"), ("b300", "b300"), ("gb200", "gb200"), ("b200", "b200"), ("h200", "h200"), ("h20", "h20"),
    ("h100nvl", "h100-nvl"), ("h100pcie", "h100-pcie"), ("h100", "h100-sxm"), ("a100", "a100-sxm-80gb"),
    ("tpuv4", "tpu-v4"), ("tpuv6", "tpu-v6e"), ("v6e", "tpu-v6e"), ("tpuv5p", "tpu-v5p"), ("v5p", "tpu-v5p"),
    ("tpuv5", "tpu-v5e"), ("trn2", "trainium2"), ("trainium2", "trainium2"),
)  # fmt: skip


def find(name: str | None) -> Device | None:
    """The device meant by a configuration's or a runtime's name ("mi355", "NVIDIA H200", "AMD Instinct MI300X")."""
    text = name.lower() if name else ""
    letters = re.sub(r"[^a-z0-9]", "", text)
    candidates = ((spelling, device) for spelling, device in _SPELLINGS if spelling in letters)
    return next((DEVICES[device] for spelling, device in candidates if _pattern(spelling).search(text)), None)


@cache
def _pattern(spelling: str) -> re.Pattern[str]:
    """A spelling as a whole word, with what a vendor adds to it: an RTX A1000 is no A100, an MI300A no MI300X."""
    between, begin, end = (
        r"[^a-z0-9]*",
        r"(?<![a-z0-9])(?:\d+x|[dh]gx)?",
        r"(?:x\d*|e|u|sxm\d?|pcie|nvl|lite)?(?![a-z0-9])",
    )
    return re.compile(begin + between.join(spelling) + between + end)
