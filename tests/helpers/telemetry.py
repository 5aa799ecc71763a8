"""The telemetry of a node as its observer writes it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from seatrial.runs import telemetry
from tests.helpers import streams

START = streams.START


def entries(host: str = "local1") -> list[dict[str, Any]]:
    """A node with two devices, one of which gets hot while a port loses its link."""
    gib = 1 << 30
    samples = [
        {"kind": "sample", "at": START + 5 * n, "node": {"utilization": 0.1 * n, "memory_bytes": (100 + n) * gib},
         "devices": {
            "gpu0": {"utilization": 0.9, "memory_bytes": 60 * gib, "watts": 600, "celsius": 60, "throttled": []},
            "gpu1": {"utilization": 0.5, "memory_bytes": 60 * gib, "watts": 400, "celsius": 60 + 5 * n,
                     "throttled": ["power cap"] if n > 1 else [], "uncorrected": int(n > 2)},
         }}
        for n in range(4)
    ]  # fmt: skip
    return [
        {"kind": "begun", "at": START, "v": 1, "host": host, "interval_seconds": 5, "cores": 64,
         "memory_bytes": 105 * gib},
        {"kind": "source", "at": START, "source": "amd-smi", "why": "there is no amd-smi"},
        {"kind": "devices", "at": START, "devices": {
            gpu: {"model": "NVIDIA H100", "memory_bytes": 80 * gib} for gpu in ("gpu0", "gpu1")}},
        {"kind": "counters", "at": START, "counters": {
            "mlx5_0 port 1": {"link_downed": 3, "port_xmit_data": 1000, "symbol_error": 0}}},
        *samples,
        {"kind": "counters", "at": START + 11, "counters": {"mlx5_0 port 1": {"link_downed": 4}}},
        {"kind": "kernel", "at": START + 11, "level": 4, "stamp": 812.5, "text": "mlx5_core 0000:5e:00.0: Link down"},
        {"kind": "counters", "at": START + 20, "counters": {
            "mlx5_0 port 1": {"link_downed": 5, "port_xmit_data": 9000}}},
        {"kind": "ended", "at": START + 20, "cpu_seconds": 0.2, "left_out": {"kernel": 7}},
    ]  # fmt: skip


def put(run_dir: Path, found: Iterable[Any], host: str = "local1") -> None:
    path = run_dir / "nodes" / host / telemetry.TELEMETRY_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in found))
