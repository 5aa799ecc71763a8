"""This machine's GPU, found by the tools of its vendor."""

from __future__ import annotations

import subprocess

from seatrial.estimate import hardware

_TOOLS = (
    ("rocm-smi", "--showproductname"),
    ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"),
)
_TIMEOUT_SECONDS = 10


def installed_gpu() -> str | None:
    """The name in `hardware.DEVICES` of this machine's GPU; None without one, or without its vendor's tool."""
    for argv in _TOOLS:
        try:
            done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            continue
        device = hardware.find(done.stdout)
        if done.returncode == 0 and device:
            return device.name
    return None
