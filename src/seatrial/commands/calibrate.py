"""`seatrial calibrate`: measures this machine's devices, and keeps a profile by which `plan` estimates times."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from seatrial.commands.device_profile import cpu_name, keep
from seatrial.console import UNLIMITED, Say, show_value, table
from seatrial.engines.native import CPU_MALLOC, TUNABLES
from seatrial.errors import LaunchError
from seatrial.estimate import hardware, time_profile
from seatrial.estimate.calibration import (
    MeasuredAttention,
    MeasuredCollective,
    MeasuredProduct,
    MeasuredStep,
    Measurements,
    completed,
    profile_of,
)
from seatrial.estimate.time_profile import Profile
from seatrial.spec import from_dict

TIME_LIMIT_SECONDS = 1200.0  # of each process; a quiet machine takes about two minutes for all
BUSY = 0.5  # of the cores in use before anything is measured
CPU_DEVICES = (1, 2, 4)  # virtual ones, each number in a process of its own, as runs have them


def calibrate(*, cpu: bool, say: Say) -> tuple[Profile, Path]:
    """Measures the accelerators of this machine, or with `cpu` its processor, and keeps the profile.

    Raises LaunchError where the measuring fails.
    """
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > BUSY * cores:
        say(
            f"note: this machine is busy (load {load:.1f} on {cores} cores), and the profile will be that of a busy one"
        )
    found: list[dict[str, Any]] = []
    for devices in CPU_DEVICES if cpu else (None,):
        say(f"measuring {f'the processor as {devices} virtual' if devices else 'the'} device(s) …")
        found.append(_measured(devices))
    on_cpu = found[0]["backend"] == "cpu"
    known = hardware.find(found[0]["device"])
    device = cpu_name() if on_cpu else known.name if known else str(found[0]["device"])
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    facts = {
        "device": device,
        "date": today,
        "versions": found[0]["versions"],
        "backend": found[0]["backend"],
        "load": load,
    }
    try:
        profile = profile_of(_together(found), device=device, origin=f"measured on {today}", facts=facts)
    except (ValueError, KeyError, TypeError) as error:
        raise LaunchError(f"the measurements make no profile: {error}") from error
    if not on_cpu:
        several = any(one.get("collectives") for one in found)
        profile = completed(profile, time_profile.published(known), several=several)
    return profile, keep(profile)


def _measured(cpu_devices: int | None) -> dict[str, Any]:
    """The measurements of one process; with a number, of so many virtual devices of the processor."""
    variables = dict(os.environ)
    argv = [sys.executable, "-P", "-m", "seatrial.train.calibrate"]
    if cpu_devices:
        argv += ["--cpu-devices", str(cpu_devices)]
        variables["JAX_PLATFORMS"] = "cpu"
        variables.setdefault(TUNABLES, ":".join(f"{name}={value}" for name, value in CPU_MALLOC.items()))
    with TemporaryDirectory(prefix="seatrial-calibrate-") as folder:
        out = Path(folder) / "measured.json"
        try:
            done = subprocess.run(
                [*argv, "--out", str(out)], env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, timeout=TIME_LIMIT_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise LaunchError(f"measuring took more than {TIME_LIMIT_SECONDS:.0f} s") from error
        if done.returncode != 0 or not out.exists():
            last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise LaunchError(f"the devices could not be measured: {last or f'exit code {done.returncode}'}")
        measured: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return measured


def _together(found: Sequence[dict[str, Any]]) -> Measurements:
    first = found[0]
    return Measurements(
        products=tuple(MeasuredProduct(**each) for each in first["products"]),
        attention=tuple(MeasuredAttention(**each) for each in first["attention"]),
        collectives=tuple(MeasuredCollective(**each) for one in found for each in one.get("collectives", ())),
        steps=tuple(
            MeasuredStep(spec=from_dict(s["spec"]), seconds=s["seconds"]) for one in found for s in one["steps"]
        ),
        memory_bytes_per_second=first["memory_bytes_per_second"],
        optimizer_bytes_per_second=first["optimizer_bytes_per_second"],
    )


def render(profile: Profile, path: Path) -> str:
    """A profile for people."""
    rows = [(f"products, {name}", f"{rate.flops_per_second / 1e9:,.0f} GFLOP/s",
             f"dimensions seem larger by {rate.m:.0f}, {rate.k:.0f}, {rate.n:.0f}")
            for name, rate in profile.products.items()]  # fmt: skip
    rows += [(f"attention, {name}", f"{rate.flops_per_second / 1e9:,.0f} GFLOP/s", f"heads seem larger by {rate.k:.0f}")
             for name, rate in profile.attention.items()]  # fmt: skip
    rows += [(f"memory, {name}", f"{rate / 1e9:,.1f} GB/s", "what layers move") for name, rate in profile.moved.items()]
    rows += [
        ("optimizer", f"{profile.optimizer_bytes_per_second / 1e9:,.1f} GB/s", ""),
        ("collectives", f"{profile.fast.bytes_per_second / 1e9:,.1f} GB/s",
         f"{1e6 * profile.fast.latency_seconds:,.0f} µs a hop"),
        *((f"{devices} devices", f"{value:.2f} ×", "the time of one alone") for devices, value in profile.shared.items()
          if devices > 1),
    ]  # fmt: skip
    facts = ", ".join(f"{name} {value}" for name, value in profile.facts.get("versions", {}).items())
    head = f"# {show_value(profile.device)}, {profile.origin}, with {facts}"
    return f"{head}\n\n{table(rows, indent=0, columns=UNLIMITED, widest=48)}\n\nprofile: {path}"
