"""Readings of a node's devices, network and kernel, each from its own format.

Nothing here starts a program: what tools have printed is given.
"""

from __future__ import annotations

import array
import fcntl
import glob
import json
import os
import re
import socket
import struct
import time
from typing import Any, Dict, Iterable, Tuple

Reading = Tuple[Dict[str, Any], Dict[str, Any]]  # of a device: what it is, what it does
MAX_TEXT = 1000
MAX_INTERFACES, MAX_NAMES = 64, 400  # network interfaces; counters of one of them

# Counters that go up when something goes wrong, by their names.
ERRORS = re.compile(
    r"err|drop|discard|fail|retrans|retry|nak|timeout|time_out|overflow|oflow|overrun|invalid|missed|collision|crc"
    r"|reset|out_of|out_buffer|link_downed|carrier_down|symbol|exceeded|no_buffer|lost|bad|abort|fatal|unhealthy"
)

# nvidia-smi's name of a field → ours, and the factor to our unit.
NVIDIA = {
    "utilization.gpu": ("utilization", 0.01),
    "memory.used": ("memory_bytes", float(1 << 20)),
    "power.draw": ("watts", 1.0),
    "temperature.gpu": ("celsius", 1.0),
    "temperature.memory": ("memory_celsius", 1.0),
    "clocks.sm": ("clock_mhz", 1.0),
    "ecc.errors.corrected.volatile.total": ("corrected", 1.0),
    "ecc.errors.uncorrected.volatile.total": ("uncorrected", 1.0),
}
REASONS_FIELD = "clocks_event_reasons.active"
OTHER_NAMES = {REASONS_FIELD: "clocks_throttle_reasons.active"}  # of drivers before 535
NVIDIA_FIRST = ("index", "name", "memory.total", REASONS_FIELD)
# Bits of NVML's reasons for a lower clock; an idle GPU, or one with a clock that was set, is not throttled.
REASONS = {
    0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost", 0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown", 0x80: "power brake",
}  # fmt: skip
# Quantity → its places in amd-smi's JSON, of which the first number counts, and the factor to our unit.
AMD = {
    "utilization": (("usage.gfx_activity",), 0.01),
    "memory_bytes": (("mem_usage.used_vram",), float(1 << 20)),
    "watts": (("power.socket_power", "power.average_socket_power", "power.current_socket_power"), 1.0),
    "celsius": (("temperature.hotspot", "temperature.edge"), 1.0),
    "memory_celsius": (("temperature.mem",), 1.0),
    "clock_mhz": (("clock.gfx_0.clk", "clock.gfx.clk"), 1.0),
    "corrected": (("ecc.total_correctable_count", "ecc.total_correctable"), 1.0),
    "uncorrected": (("ecc.total_uncorrectable_count", "ecc.total_uncorrectable"), 1.0),
}
SIOCETHTOOL, ETHTOOL_GSTRINGS, ETHTOOL_GSTATS, ETHTOOL_GSSET_INFO, ETH_SS_STATS = 0x8946, 0x1B, 0x1D, 0x37, 1


# --- reading ----------------------------------------------------------------------------------------------------------


def read(path: str) -> str | None:
    """A small file of the kernel's; None where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536).strip()
    except OSError:
        return None


def number(value: Any) -> float | None:
    """The number in a tool's value: 7, 7.5, "7", "7 W", {"value": 7, "unit": "W"}; None for "N/A" and the like."""
    if isinstance(value, dict):
        value = value.get("value")
    if isinstance(value, str):
        found = re.match(r"\s*(-?\d{1,18}(?:\.\d{1,9})?)(?![\w.])", value)
        return float(found.group(1)) if found else None
    return float(value) if type(value) in (int, float) and abs(value) < 1e18 else None


def whole(value: Any) -> int | None:
    """The same without what follows the point."""
    found = number(value)
    return None if found is None else int(found)


def _measured(raw: Iterable[tuple[str, float | None, float]]) -> dict[str, Any]:
    """Of (quantity, value, factor), those with a value, in our unit and without digits that nobody measures."""
    scaled = ((quantity, value * factor) for quantity, value, factor in raw if value is not None)
    return {quantity: int(value) if value.is_integer() else round(value, 3) for quantity, value in scaled}


def nvidia_row(line: str, fields: list[str]) -> tuple[str, dict[str, Any], dict[str, Any]] | None:
    """(device, what it is, what it does) from a line of nvidia-smi's CSV without units; None for another line."""
    values = dict(zip(fields, (value.strip() for value in line.split(","))))
    if line.count(",") != len(fields) - 1 or not values["index"].isdigit():
        return None
    about = {"model": values["name"][:MAX_TEXT], "memory_bytes": (number(values.get("memory.total")) or 0) * (1 << 20)}
    found: dict[str, Any] = _measured(
        (quantity, number(values.get(field)), factor) for field, (quantity, factor) in NVIDIA.items()
    )
    mask = next((value for field, value in values.items() if field.endswith("_reasons.active")), "")
    if re.match(r"0x[0-9a-fA-F]{1,16}$", mask):
        found["throttled"] = [reason for bit, reason in REASONS.items() if int(mask, 16) & bit]
    return "gpu" + values["index"], about, found


def amd_document(text: str) -> dict[str, Reading]:
    """The output of `amd-smi metric --json`, by device: (what it is, what it does). Raises ValueError for another.

    A warning may come before it. It is a list of devices, since ROCm 7 below "gpu_data".
    """
    begin = re.search(r"^[\[{]", text, re.MULTILINE)
    document = json.loads(text[begin.start() :] if begin else text)
    entries = document.get("gpu_data") if isinstance(document, dict) else document
    if not isinstance(entries, list):
        raise ValueError("it lists no devices")
    numbered = [entry for entry in entries if isinstance(entry, dict) and type(entry.get("gpu")) is int]
    return {"gpu%d" % entry["gpu"]: _amd_entry(entry) for entry in numbered}


def _amd_entry(entry: dict[str, Any]) -> Reading:
    """(what it is, what it does) of one device in amd-smi's document."""

    def at(place: str) -> Any:
        value: Any = entry
        for key in place.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def first(places: tuple[str, ...]) -> float | None:
        return next((value for value in (number(at(place)) for place in places) if value is not None), None)

    found: dict[str, Any] = _measured((quantity, first(places), factor) for quantity, (places, factor) in AMD.items())
    throttled = str(at("power.throttle_status")).upper()
    if "THROTTLED" in throttled:
        found["throttled"] = [] if throttled.startswith("UN") else ["throttled"]
    return {"model": "AMD", "memory_bytes": (number(at("mem_usage.total_vram")) or 0) * (1 << 20)}, found


def amd_cards(root: str = "/sys") -> dict[str, Reading]:
    """The same from the files of the kernel's amdgpu driver, which cost next to nothing."""
    devices = {}
    for folder in sorted(glob.glob(root + "/class/drm/card*/device")):
        card = folder.split("/")[-2]
        total = number(read(folder + "/mem_info_vram_total"))
        if not re.match(r"card\d+$", card) or not total or read(folder + "/vendor") != "0x1002":
            continue
        own = (sorted(glob.glob(folder + "/hwmon/hwmon*")) or [folder])[0] + "/"
        labels = glob.glob(own + "temp*_label")  # "temp2_label" names what "temp2_input" measures, in thousandths
        degrees = {read(label): number(read(label[: -len("label")] + "input")) for label in labels}
        watts = number(read(own + "power1_average") or read(own + "power1_input"))
        ecc = dict(re.findall(r"(ue|ce): (\d+)", read(folder + "/ras/umc_err_count") or ""))
        raw = (
            ("utilization", number(read(folder + "/gpu_busy_percent")), 0.01),
            ("memory_bytes", number(read(folder + "/mem_info_vram_used")), 1.0),
            ("watts", watts, 1e-6), ("celsius", degrees.get("junction", degrees.get("edge")), 1e-3),
            ("memory_celsius", degrees.get("mem"), 1e-3), ("clock_mhz", number(read(own + "freq1_input")), 1e-6),
            ("corrected", number(ecc.get("ce")), 1.0), ("uncorrected", number(ecc.get("ue")), 1.0),
        )  # fmt: skip
        model = read(folder + "/product_name") or "AMD %s" % read(folder + "/device")
        about = {"model": model, "memory_bytes": total}
        devices[card] = (about, _measured(raw))
    return devices


def memory() -> dict[str, int]:
    """Bytes of the node's memory, by the kernel's names for its parts."""
    found = re.findall(r"^(\w+):\s+(\d+) kB", read("/proc/meminfo") or "", re.MULTILINE)
    return {name: 1024 * int(size) for name, size in found}


def machine() -> dict[str, int]:
    """The node's processors and memory."""
    return {"cores": os.cpu_count() or 1, "memory_bytes": memory().get("MemTotal", 0)}


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process; 0 where there is none."""
    fields = (read("/proc/%d/stat" % pid) or "").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if len(fields) > 12 else 0.0


class Node:
    """Processors and memory of the node as a whole."""

    def __init__(self) -> None:
        self.before = self._times()

    @staticmethod
    def _times() -> tuple[int, int]:
        """(ticks in which the processors worked, all ticks)"""
        fields = [int(each) for each in (read("/proc/stat") or "").split("\n")[0].split()[1:9] if each.isdigit()]
        return sum(fields) - sum(fields[3:5]), sum(fields)

    def sample(self) -> dict[str, float]:
        """The share of the processors that was used since the last sample, and the memory that is used now."""
        found, now = {}, self._times()
        if now[1] > self.before[1]:
            found["utilization"] = round((now[0] - self.before[0]) / (now[1] - self.before[1]), 4)
        self.before = now
        has = memory()
        if "MemTotal" in has and "MemAvailable" in has:
            found["memory_bytes"] = has["MemTotal"] - has["MemAvailable"]
        return found


def counters(root: str = "/sys") -> dict[str, dict[str, int]]:
    """The counters of network interfaces and RDMA ports since their start, by place and name."""
    found: dict[str, dict[str, int]] = {}
    interfaces = [path for path in glob.glob(root + "/class/net/*") if not path.endswith("/lo")]
    for path in sorted(interfaces, key=lambda path: (not os.path.exists(path + "/device"), path))[:MAX_INTERFACES]:
        name = os.path.basename(path)
        files = [*glob.glob(path + "/statistics/*"), path + "/carrier_down_count"]
        found[name] = {**_numbers(files), **(ethtool(name) if root == "/sys" else {})}
    for path in sorted(glob.glob(root + "/class/infiniband/*/ports/*"))[:MAX_INTERFACES]:
        card, _, port = path.split("/")[-3:]
        found["%s port %s" % (card, port)] = _numbers(
            glob.glob(path + "/counters/*") + glob.glob(path + "/hw_counters/*")
        )
    return {place: values for place, values in found.items() if values}


def _numbers(paths: list[str]) -> dict[str, int]:
    """The files that hold a number; "lifespan" is no counter, but how old the others may be."""
    read_all = ((os.path.basename(path), read(path)) for path in sorted(paths)[:MAX_NAMES])
    return {name: int(value) for name, value in read_all if value and value.isdigit() and name != "lifespan"}


def ethtool(interface: str) -> dict[str, int]:
    """The counters of `ethtool -S` that rise when something is wrong, asked of the kernel itself."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            answer = _ethtool(control, interface, struct.pack("=IIQI", ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_STATS, 0), 20)
            mask, count = struct.unpack_from("=QI", answer, 8)
            if not mask or not count:
                return {}
            room = 2 * count + 64  # the driver may have more by the next call, and writes as many as it has
            ask = struct.pack("=III", ETHTOOL_GSTRINGS, ETH_SS_STATS, count)
            names = _ethtool(control, interface, ask, 12 + 32 * room)
            values = _ethtool(control, interface, struct.pack("=II", ETHTOOL_GSTATS, count), 8 + 8 * room)
    except OSError:
        return {}
    count = min(struct.unpack_from("=I", names, 8)[0], struct.unpack_from("=I", values, 4)[0], room)
    found: dict[str, int] = {}
    for index in range(count):
        name = names[12 + 32 * index : 44 + 32 * index].split(b"\0")[0].decode("ascii", "replace").strip()
        if name and ERRORS.search(name) and len(found) < MAX_NAMES:
            found["ethtool " + name] = struct.unpack_from("=Q", values, 8 + 8 * index)[0]
    return found


def _ethtool(control: socket.socket, interface: str, ask: bytes, size: int) -> bytes:
    buffer = array.array("B", ask + bytes(size - len(ask)))
    request = struct.pack("16sP16x", interface.encode()[:15], buffer.buffer_info()[0])
    fcntl.ioctl(control, SIOCETHTOOL, request)
    return buffer.tobytes()


# --- the kernel's log -------------------------------------------------------------------------------------------------


def kernel_record(record: str) -> tuple[int, float, str] | None:
    """(level, the kernel's seconds, text) of a record of /dev/kmsg; None for what programs have written there."""
    head, semicolon, rest = record.partition(";")
    fields = head.split(",")
    if not semicolon or len(fields) < 3 or not all(field.isdigit() for field in fields[:3]) or int(fields[0]) >> 3:
        return None
    text = re.sub(r"\\x([0-9a-f]{2})", lambda match: chr(int(match.group(1), 16)), rest.split("\n")[0])
    return int(fields[0]) & 7, int(fields[2]) / 1e6, text[:MAX_TEXT]


def journal_record(line: str) -> tuple[float, int, float, str] | None:
    """(when, level, the kernel's seconds, text) of a line of `journalctl --dmesg --output=json`."""
    try:
        entry = json.loads(line)
        stamp = float(entry.get("_SOURCE_MONOTONIC_TIMESTAMP", 0)) / 1e6
        when, text = float(entry["__REALTIME_TIMESTAMP"]) / 1e6, entry["MESSAGE"]
        return (when, int(entry.get("PRIORITY", 6)), stamp, text[:MAX_TEXT]) if isinstance(text, str) else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


class Clock:
    """Wall time of the kernel's stamps, whose clock drifts a little.

    Lines that are read at once give the difference of the clocks; lines that are read late are dated by their stamp.
    """

    def __init__(self) -> None:
        self.ahead: float | None = None
        self.last = 0.0

    def wall(self, stamp: float, now: float) -> float:
        """Seconds since the epoch of a stamp that is read at the monotonic time `now`."""
        drift = 1e-4 * (now - self.last)
        self.ahead, self.last = now - stamp if self.ahead is None else min(now - stamp, self.ahead + drift), now
        return time.time() - (now - (stamp + self.ahead))
