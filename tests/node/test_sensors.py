"""The output of tools and of the kernel, in the forms in which it comes, and damaged."""

from __future__ import annotations

import contextlib
import json
import math
import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.node import sensors

FIELDS = [*sensors.NVIDIA_FIRST, *sensors.NVIDIA]


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("87", 87), (" 612.40 ", 612.4), ("7 W", 7), ({"value": 7, "unit": "W"}, 7), ({"value": "N/A"}, None),
        ("N/A", None), ("[Not Supported]", None), ("[N/A]", None), ("", None), (None, None), (True, None),
        ("0x0000000000000004", None), ("1e400", None), ("nan", None), (math.inf, None), ([7], None), ("-5", -5),
    ],
)  # fmt: skip
def test_a_number_is_what_a_tool_means_by_one(value: Any, meant: float | None) -> None:
    assert sensors.number(value) == meant


def test_a_row_of_nvidia_smi() -> None:
    row = "3, NVIDIA H200, 143771, 0x0000000000000001, 0, 4, 76.31, 30, 33, 345, 0, 1"
    device, about, found = sensors.nvidia_row(row, FIELDS) or ("", {}, {})
    assert (device, about) == ("gpu3", {"model": "NVIDIA H200", "memory_bytes": 143771 << 20})
    assert found == {
        "utilization": 0, "memory_bytes": 4 << 20, "watts": 76.31, "celsius": 30, "memory_celsius": 33,
        "clock_mhz": 345, "corrected": 0, "uncorrected": 1, "throttled": [],
    }  # fmt: skip


@pytest.mark.parametrize("line", ["", "No devices were found", "0, NVIDIA H200", ", ".join(["x"] * len(FIELDS))])
def test_other_lines_are_no_rows(line: str) -> None:
    assert sensors.nvidia_row(line, FIELDS) is None


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_document_of_amd_smi_of_either_form(wrapped: bool) -> None:
    devices = [
        {"gpu": 0, "usage": {"gfx_activity": {"value": 50, "unit": "%"}}, "power": {"socket_power": "N/A"},
         "mem_usage": {"used_vram": 250, "total_vram": 1000}, "clock": {"gfx_0": {"clk": {"value": 2100}}}},
        {"gpu": 1, "usage": "N/A", "temperature": {"edge": {"value": 40, "unit": "C"}, "hotspot": "N/A"},
         "power": {"throttle_status": "THROTTLED"}},
        "a word",
    ]  # fmt: skip
    text = "WARNING: something\n" + json.dumps({"gpu_data": devices} if wrapped else devices, indent=4)
    assert sensors.amd_document(text) == {
        "gpu0": (
            {"model": "AMD", "memory_bytes": 1000 << 20},
            {"utilization": 0.5, "memory_bytes": 250 << 20, "clock_mhz": 2100},
        ),
        "gpu1": ({"model": "AMD", "memory_bytes": 0}, {"celsius": 40, "throttled": ["throttled"]}),
    }


def test_amd_cards_by_the_files_of_their_driver(tmp_path: Path) -> None:
    device = tmp_path / "class/drm/card1/device"
    files = {
        "vendor": "0x1002", "product_name": "AMD Instinct MI300X", "gpu_busy_percent": "93",
        "mem_info_vram_total": str(192 << 30), "mem_info_vram_used": str(150 << 30),
        "ras/umc_err_count": "ue: 1\nce: 12", "hwmon/hwmon4/power1_average": "701500000",
        "hwmon/hwmon4/freq1_input": "2100000000", "hwmon/hwmon4/temp1_label": "junction",
        "hwmon/hwmon4/temp1_input": "83000", "hwmon/hwmon4/temp2_label": "mem", "hwmon/hwmon4/temp2_input": "61500",
    }  # fmt: skip
    for name, text in files.items():
        (device / name).parent.mkdir(parents=True, exist_ok=True)
        (device / name).write_text(text + "\n")
    other = tmp_path / "class/drm/card0/device"
    other.mkdir(parents=True)
    (other / "vendor").write_text("0x1a03\n")
    assert sensors.amd_cards(str(tmp_path)) == {
        "card1": (
            {"model": "AMD Instinct MI300X", "memory_bytes": 192 << 30},
            {"utilization": 0.93, "memory_bytes": 150 << 30, "watts": 701.5, "celsius": 83, "memory_celsius": 61.5,
             "clock_mhz": 2100, "corrected": 12, "uncorrected": 1},
        )
    }  # fmt: skip


def test_counters_of_ports_and_interfaces(tmp_path: Path) -> None:
    files = {
        "class/infiniband/mlx5_0/ports/1/counters/link_downed": "1",
        "class/infiniband/mlx5_0/ports/1/counters/port_xmit_wait": "N/A (no PMA)",
        "class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence": "77",
        "class/infiniband/mlx5_0/ports/1/hw_counters/lifespan": "10",
        "class/net/ens1/statistics/rx_errors": "5",
        "class/net/ens1/carrier_down_count": "2",
        "class/net/lo/statistics/rx_errors": "5",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert sensors.counters(str(tmp_path)) == {
        "ens1": {"rx_errors": 5, "carrier_down_count": 2},
        "mlx5_0 port 1": {"link_downed": 1, "out_of_sequence": 77},
    }


def test_what_drivers_count_is_asked_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensors, "ERRORS", re.compile(""))
    found = {name: sensors.ethtool(name) for _, name in socket.if_nameindex()}
    drivers = {name for name in found if Path(f"/sys/class/net/{name}/device/driver").exists()}
    assert sensors.ethtool("no-such-card") == {}
    assert found.get("lo", {}) == {}
    if not any(found[name] for name in drivers):
        pytest.skip("no driver here counts anything of its own")
    assert all(name.startswith("ethtool ") and value >= 0 for each in found.values() for name, value in each.items())


@pytest.mark.parametrize(
    "name",
    ["link_downed", "out_of_sequence", "rx_dropped", "ethtool rx_discards_phy", "local_ack_timeout_err",
     "rx_crc_errors", "packet_seq_err", "symbol_error", "carrier_down_count", "rnr_nak_retry_err",
     "duplicate_request_retransmits",
     "out_of_buffer", "port_rcv_errors", "roce_adp_retrans", "excessive_buffer_overrun_errors"],
)  # fmt: skip
def test_errors_are_known_by_their_names(name: str) -> None:
    assert sensors.ERRORS.search(name)


@pytest.mark.parametrize("name", ["rx_bytes", "port_xmit_data", "multicast", "np_cnp_sent", "rx_packets", "tx_pause"])
def test_traffic_is_no_error(name: str) -> None:
    assert not sensors.ERRORS.search(name)


def test_records_of_the_kernel() -> None:
    text = r"mlx5_core 0000:5e:00.0 eth2: Link down\x0a"
    assert sensors.kernel_record(f"4,812,49579647259,-;{text}\n SUBSYSTEM=pci\n") == (
        4, 49579.647259, "mlx5_core 0000:5e:00.0 eth2: Link down\n"
    )  # fmt: skip
    assert sensors.kernel_record("6,1,12,-,caller=T99;hello") == (6, 0.000012, "hello")
    assert sensors.kernel_record("12,1,12,-;written there by a program") is None
    assert sensors.kernel_record("nothing") is None


def test_records_of_the_journal() -> None:
    entry = {"__REALTIME_TIMESTAMP": "1795307290116000", "_SOURCE_MONOTONIC_TIMESTAMP": "49579647259", "PRIORITY": "4"}
    assert sensors.journal_record(json.dumps({**entry, "MESSAGE": "a"})) == (1795307290.116, 4, 49579.647259, "a")
    assert sensors.journal_record(json.dumps({**entry, "MESSAGE": [1, 2]})) is None
    assert sensors.journal_record("[]") is None


def test_the_clock_tells_when_a_stamp_was_though_it_is_read_late(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "time", lambda: 1e9 + now)
    clock, told = sensors.Clock(), []
    for stamp, now in ((100.0, 50.0), (110.0, 60.0), (112.0, 75.0)):  # the last one 13 s after it was said
        told.append(clock.wall(stamp, now) - 1e9)
    assert told == pytest.approx([50, 60, 62], abs=0.01)


@given(st.text(max_size=300))
def test_no_text_breaks_a_reader(text: str) -> None:
    sensors.nvidia_row(text, FIELDS)
    sensors.kernel_record(text)
    sensors.journal_record(text)
    sensors.number(text)
    with contextlib.suppress(ValueError, RecursionError):
        sensors.amd_document(text)


json_like = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["gpu", "usage", "gfx_activity", "value", "gpu_data", "power", "MESSAGE"]), inner
        )
    ),
    max_leaves=12,
)


@given(json_like)
def test_no_document_breaks_a_reader(document: Any) -> None:
    text = json.dumps(document)
    sensors.journal_record(text)
    try:
        found = sensors.amd_document(text)
    except ValueError:
        return
    assert all(isinstance(about, dict) and isinstance(values, dict) for about, values in found.values())
