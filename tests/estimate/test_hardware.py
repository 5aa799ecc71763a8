"""The device that a name means, and what a visible one has."""

from __future__ import annotations

import pytest

from seatrial.estimate import hardware, time_profile
from seatrial.estimate.hardware import DEVICES, GB, GIB, TERA, find

NAMES = {  # as drivers, JAX, clouds and configurations spell them
    "NVIDIA H200": "h200",
    "NVIDIA H200 NVL": "h200-nvl",
    "AMD Instinct MI300X": "mi300x",
    "8xH100": "h100-sxm",
    "NVIDIA H100 80GB HBM3": "h100-sxm",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H100 NVL": "h100-nvl",
    # one name, two memories: the usual one where none is stated
    "a100": "a100-sxm-80gb",
    "NVIDIA A100-SXM4-80GB": "a100-sxm-80gb",
    "NVIDIA A100-SXM4-40GB": "a100-sxm-40gb",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "a100-40gb": "a100-sxm-40gb",
    # the memory as others round it, or that of a package of two devices
    "NVIDIA B200 192GB": "b200",
    "NVIDIA H200 with 139.80GiB": "h200",
    "AMD Instinct MI250X 128GB": "mi250x",
    "NVIDIA B300 SXM6 AC": "b300",
    "B300 288GB": "b300",
    "NVIDIA GB300": "gb300",
    "GB300-288GB": "gb300",
    # another device than the MI250X; a driver that does not tell them apart names both
    "AMD Instinct MI250": "mi250",
    "MI250 64GB": "mi250",
    "AMD Instinct MI250X/MI250": "mi250x",
    # jax.devices()[0].device_kind, and the types of accelerators of Google Cloud
    "TPU v4": "tpu-v4",
    "TPU v5": "tpu-v5p",
    "TPU v5p": "tpu-v5p",
    "TPU v5 lite": "tpu-v5e",
    "TPU v5e": "tpu-v5e",
    "v5litepod-16": "tpu-v5e",
    "v5p-128": "tpu-v5p",
    "TPU v6 lite": "tpu-v6e",
    "trn2.48xlarge": "trainium2",
}
UNKNOWN = (
    None, "", "cpu", "NVIDIA GeForce RTX 4090", "TPU v4 lite", "NVIDIA GH200 480GB",
    # variants with another memory than any row, and a part of a device
    "NVIDIA A100-SXM-64GB", "NVIDIA H100 64GB HBM2", "NVIDIA H20-3e", "NVIDIA H20 141GB",
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_means_the_device_with_the_memory_that_it_states(name: str) -> None:
    device = find(name)
    assert device is not None
    assert device.name == NAMES[name]


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_listed_has_no_figures(name: str | None) -> None:
    assert find(name) is None


def test_every_device_is_found_by_its_own_name_and_has_links() -> None:
    assert all(find(name) is device for name, device in DEVICES.items())
    assert set(time_profile.LINKS) == set(DEVICES)


def test_a_device_has_a_peak_only_where_one_is_published() -> None:
    assert DEVICES["a100-sxm-80gb"].peak("bfloat16", "fp8") is None
    assert DEVICES["h100-sxm"].peak("bfloat16", "nanoo_fp8") == (1979e12, "fp8")


@pytest.mark.parametrize(("name", "shown"), [("mi250x", 2), ("mi250", 2), ("trainium2", 4), ("trainium2-lnc1", 8)])
def test_figures_are_those_of_a_visible_device(name: str, shown: int) -> None:
    """AWS: 64 ranks on the 16 chips of a trn2.48xlarge by default, with about 24 GiB each."""
    packages = {"mi250x": (383, 128, 3276), "mi250": (362.1, 128, 3276), "trainium2": (667, 96, 2900)}
    package = packages[name.removesuffix("-lnc1")]
    device = hardware.DEVICES[name]
    figures = (
        device.peak_flops["bfloat16"] / TERA, device.memory_bytes / GIB, device.memory_bytes_per_second / GB,
    )  # fmt: skip
    assert [shown * each for each in figures] == pytest.approx(package)


@pytest.mark.parametrize(("name", "mebibytes"), [("b300", 275_040), ("gb300", 284_208), ("h100-sxm", 81_559)])
def test_memory_is_what_the_driver_gives(name: str, mebibytes: int) -> None:
    """As nvidia-smi has it; what data sheets and drivers call a gigabyte differs by less than 1%."""
    assert DEVICES[name].memory_bytes / 2**20 == pytest.approx(mebibytes, rel=0.01)
