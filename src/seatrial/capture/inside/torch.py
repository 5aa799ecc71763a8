"""Stands for torch in a script's small questions: a machine with eight GPUs."""

from __future__ import annotations

from types import SimpleNamespace

__version__ = "2.7.0"
version = SimpleNamespace(cuda="12.8", hip=None)
cuda = SimpleNamespace(
    device_count=lambda: 8,
    is_available=lambda: True,
    get_device_name=lambda *_: "NVIDIA H100 80GB HBM3",
    get_device_capability=lambda *_: (9, 0),
)
