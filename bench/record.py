"""The record that every measurement needs: the machine, the versions, every raw time."""

from __future__ import annotations

import json
import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    "seatrial",
    "click",
    "rich",
    "pydantic",
    "PyYAML",
    "jinja2",
    "numpy",
    "jax",
    "jaxlib",
    "torch",
    "transformers",
    "starlette",
    "uvicorn",
)


def machine() -> dict[str, Any]:
    """Processor, usable cores, memory, system, and how busy it was in the last minute; no names, no paths."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.machine()}",
        "load_average": round(os.getloadavg()[0], 2),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def cpu_name() -> str:
    """The processor's model as part of a file's name: "Intel(R) Xeon(R) Processor" → "intel-xeon-processor"."""
    return "-".join(re.findall(r"[a-z0-9]+", re.sub(r"\((r|tm)\)", " ", _cpu_model().lower())))


def versions() -> dict[str, str]:
    """Python and the packages that matter here, as far as they are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def write(name: str, measured: dict[str, Any]) -> Path:
    """Writes results/<name>.json: the machine, the versions, and what was measured."""
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    content = {"machine": machine(), "versions": versions(), **measured}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path
