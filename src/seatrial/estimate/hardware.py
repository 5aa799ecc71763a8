"""Peak speed and memory of accelerators, each figure with its source.

Peaks are dense (no structured sparsity), in FLOP/s per *visible device* — which is not always a package: an MI250X
shows two, a Trainium2 four logical NeuronCores. A device that is not listed has no peak: then no MFU is printed, rather
than a guessed one. Memory is given as data sheets name it, whose "GB" are 2^30 bytes: an H100 of 80 GB has 81 559 MiB
by its driver, an MI300X of 192 GB has 206.1e9 bytes by rocm-smi. Where a driver gives less, that counts: a B300 of
288 GB has 275 040 MiB, a GB300 284 208.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

GIB = 2**30
GB = 10**9
TERA = 1e12
SIZES_DIFFER = 0.1  # a B200 has 192, 180 or 178 GB, by who says it


_AS_FAST = {"float16": "bfloat16"}  # as all of these devices' data sheets say


@dataclass(frozen=True, kw_only=True)
class Device:
    """`peak_flops` maps a matrix format ("bfloat16", "fp8", "float32") to dense FLOP/s.

    `shown` are the devices that its package shows: a name may state the memory of them all.
    """

    name: str
    vendor: str
    peak_flops: Mapping[str, float]
    memory_bytes: int
    memory_bytes_per_second: float
    source: str
    shown: int = 1

    def has_memory(self, gigabytes: float) -> bool:
        """True if a name that states so much memory may be this device's; drivers and data sheets differ a little."""
        return any(
            math.isclose(each * self.memory_bytes, gigabytes * GIB, rel_tol=SIZES_DIFFER) for each in {1, self.shown}
        )

    def peak(self, compute_dtype: str, quantization: str | None = None) -> tuple[float, str] | None:
        """(dense peak FLOP/s, its format) for a run in these formats; None where no figure is known."""
        name = "fp8" if quantization and "fp8" in quantization else _AS_FAST.get(compute_dtype, compute_dtype)
        return (self.peak_flops[name], name) if name in self.peak_flops else None


def _device(
    name: str, vendor: str, *, bf16: float, fp8: float | None = None, memory: float, bandwidth: float, source: str,
    shown: int = 1,
) -> Device:  # fmt: skip
    """bf16, fp8 in TFLOP/s; memory in GiB; bandwidth in GB/s; all of a package, which shows so many devices."""
    peaks = {"bfloat16": bf16 * TERA / shown} | ({"fp8": fp8 * TERA / shown} if fp8 else {})
    return Device(
        name=name, vendor=vendor, peak_flops=peaks, memory_bytes=int(memory * GIB / shown),
        memory_bytes_per_second=bandwidth * GB / shown, source=source, shown=shown,
    )  # fmt: skip


DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        _device("a100-sxm-80gb", "nvidia", bf16=312, memory=80, bandwidth=2039, source="NVIDIA A100 data sheet"),
        _device("a100-sxm-40gb", "nvidia", bf16=312, memory=40, bandwidth=1555, source="NVIDIA A100 data sheet"),
        _device("a100-pcie-80gb", "nvidia", bf16=312, memory=80, bandwidth=1935, source="NVIDIA A100 data sheet"),
        _device("a100-pcie-40gb", "nvidia", bf16=312, memory=40, bandwidth=1555, source="NVIDIA A100 data sheet"),
        _device("h100-sxm", "nvidia", bf16=989, fp8=1979, memory=80, bandwidth=3350,
                source="NVIDIA H100 data sheet; NVIDIA DGXC recipes use the same rounding"),
        _device("h100-nvl", "nvidia", bf16=835, fp8=1671, memory=94, bandwidth=3900,
                source="NVIDIA H100 NVL data sheet (fp8 = 2 × bf16)"),
        _device("h100-pcie", "nvidia", bf16=756, fp8=1513, memory=80, bandwidth=2039, source="NVIDIA H100 data sheet"),
        _device("h200", "nvidia", bf16=989, fp8=1979, memory=141, bandwidth=4800, source="NVIDIA H200 data sheet"),
        _device("h200-nvl", "nvidia", bf16=835, fp8=1671, memory=141, bandwidth=4800,
                source="NVIDIA H200 NVL data sheet (fp8 = 2 × bf16)"),
        _device("h20", "nvidia", bf16=148, fp8=296, memory=96, bandwidth=4000,
                source="NVIDIA H20 data sheet (fp8 = 2 × bf16)"),
        _device("b200", "nvidia", bf16=2250, fp8=4500, memory=180, bandwidth=7700, source="NVIDIA DGX B200 data sheet"),
        _device("gb200", "nvidia", bf16=2500, fp8=5000, memory=186, bandwidth=8000,
                source="NVIDIA GB200 data sheet (DGXC recipes use 2450/4900)"),
        _device("b300", "nvidia", bf16=2250, fp8=4500, memory=268, bandwidth=8000,
                source="NVIDIA DGXC recipes; NVIDIA DGX B300 data sheet; its memory by nvidia-smi"),
        _device("gb300", "nvidia", bf16=2500, fp8=5000, memory=277, bandwidth=8000,
                source="NVIDIA GB300 data sheet (DGXC recipes use 2450/4900); its memory by nvidia-smi"),
        _device("mi250x", "amd", bf16=383, memory=128, bandwidth=3276, shown=2,
                source="AMD MI250X data sheet, per GCD (one visible device)"),
        _device("mi250", "amd", bf16=362.1, memory=128, bandwidth=3276, shown=2,
                source="AMD MI250 data sheet, per GCD (one visible device)"),
        _device("mi300x", "amd", bf16=1307.4, fp8=2614.9, memory=192, bandwidth=5300, source="AMD MI300X data sheet"),
        _device("mi325x", "amd", bf16=1307.4, fp8=2614.9, memory=256, bandwidth=6000, source="AMD MI325X data sheet"),
        _device("mi350x", "amd", bf16=2306.9, fp8=4613.7, memory=288, bandwidth=8000, source="AMD MI350X data sheet"),
        _device("mi355x", "amd", bf16=2516.6, fp8=5033.2, memory=288, bandwidth=8000, source="AMD MI355X data sheet"),
        _device("tpu-v4", "google", bf16=275, memory=32, bandwidth=1228, source="Google Cloud TPU v4 documentation"),
        _device("tpu-v5e", "google", bf16=197, memory=16, bandwidth=819, source="Google Cloud TPU v5e documentation"),
        _device("tpu-v5p", "google", bf16=459, memory=95, bandwidth=2765, source="Google Cloud TPU v5p documentation"),
        _device("tpu-v6e", "google", bf16=918, memory=32, bandwidth=1640, source="Google Cloud TPU v6e documentation"),
        _device("trainium2", "aws", bf16=667, fp8=1299, memory=96, bandwidth=2900, shown=4,
                source="AWS Neuron documentation, per logical NeuronCore of two (LNC 2, the default)"),
        _device("trainium2-lnc1", "aws", bf16=667, fp8=1299, memory=96, bandwidth=2900, shown=8,
                source="AWS Neuron documentation, per NeuronCore (LNC 1)"),
    )
}  # fmt: skip

# How configurations and runtimes spell a device, without case, separators and sizes of memory; tried in order. Of rows
# with one spelling the first is meant where no size is stated, else that which has it. None: known not to be listed.
_SPELLINGS: tuple[tuple[str, str | None], ...] = (
    ("mi355", "mi355x"), ("mi350", "mi350x"), ("mi325", "mi325x"), ("mi300", "mi300x"), ("mi250x", "mi250x"),
    ("mi250", "mi250"),
    ("gb300", "gb300"), ("b300", "b300"), ("gb200", "gb200"), ("b200", "b200"), ("h200nvl", "h200-nvl"),
    ("h200", "h200"), ("h203e", None), ("h20", "h20"), ("h100nvl", "h100-nvl"), ("h100pcie", "h100-pcie"),
    ("h100", "h100-sxm"), ("a100pcie", "a100-pcie-80gb"), ("a100pcie", "a100-pcie-40gb"), ("a100", "a100-sxm-80gb"),
    ("a100", "a100-sxm-40gb"), ("tpuv4lite", None), ("tpuv4", "tpu-v4"), ("tpuv6", "tpu-v6e"), ("v6e", "tpu-v6e"),
    ("tpuv5lite", "tpu-v5e"), ("v5litepod", "tpu-v5e"), ("v5e", "tpu-v5e"), ("v5p", "tpu-v5p"),
    ("tpuv5", "tpu-v5p"),  # as JAX names a v5p, and a v5e "TPU v5 lite"
    ("trainium2lnc1", "trainium2-lnc1"), ("trn2", "trainium2"), ("trainium2", "trainium2"),
)  # fmt: skip
_SIZE = re.compile(r"(?<![a-z0-9])(\d+(?:\.\d+)?) ?g(?:i?b)?(?![a-z0-9])")


def find(name: str | None) -> Device | None:
    """The device meant by a configuration's or a runtime's name ("mi355", "NVIDIA H200", "AMD Instinct MI300X").

    None where no row has the memory that the name states: it is a variant, or a part of a device ("MIG 1g.10gb").
    """
    text = name.lower() if name else ""
    sizes = [float(size) for size in _SIZE.findall(text)]
    text = _SIZE.sub("", text)
    letters = re.sub(r"[^a-z0-9]", "", text)
    fitting = (each for each, _ in _SPELLINGS if each in letters and _pattern(each).search(text))
    spelled = next(fitting, None)
    meant = (DEVICES[device] for spelling, device in _SPELLINGS if device and spelling == spelled)
    return next((device for device in meant if all(map(device.has_memory, sizes))), None)


@cache
def _pattern(spelling: str) -> re.Pattern[str]:
    """A spelling as a whole word, with what a vendor adds to it: an RTX A1000 is no A100, an MI300A no MI300X."""
    between, begin, end = (
        r"[^a-z0-9]*",
        r"(?<![a-z0-9])(?:\d+x|[dh]gx)?",
        r"(?:x\d*|e|u|sxm\d?|pcie|nvl|lite)?(?![a-z0-9])",
    )
    return re.compile(begin + between.join(spelling) + between + end)
