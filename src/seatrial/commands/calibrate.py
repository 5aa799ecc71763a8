"""`seatrial calibrate`: measures this machine's devices, and keeps a profile by which `plan` estimates times."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from seatrial.commands.device_profile import check_folder, cpu_name, keep
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
from seatrial.estimate.time_model import MOVED, OPTIMIZER
from seatrial.estimate.time_profile import Profile
from seatrial.launch.local import free_port
from seatrial.spec import from_dict

TIME_LIMIT_SECONDS = 1200.0  # of each process; two quiet cores take some minutes for all
ENDS_SECONDS = 60.0  # how long a process may take to end after the first one has
BUSY = 0.5  # of the cores in use before anything is measured
# Virtual devices of each process, and processes, that are measured together, as runs have them.
CPU_DEVICES = ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2))


T = TypeVar("T", MeasuredProduct, MeasuredAttention)


def calibrate(*, cpu: bool, say: Say) -> tuple[Profile, Path]:
    """Measures the accelerators of this machine, or with `cpu` its processor, and keeps the profile.

    Raises InputError where a profile cannot be kept, before anything is measured, and LaunchError where that fails.
    """
    check_folder()
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > BUSY * cores:
        busy = f"this machine is busy (load {load:.1f} on {cores} cores)"
        say(f"note: {busy}, and the profile will be that of a busy one")
    found: list[dict[str, Any]] = []
    for devices, processes in CPU_DEVICES if cpu else ((None, 1),):
        each = f" in each of {processes} processes" if processes > 1 else ""
        say(f"measuring {f'the processor as {devices} virtual' if devices else 'the'} device(s){each} …")
        found.append(measured(devices, processes))
    profile = profile_from(found, load)
    return profile, keep(profile)


def profile_from(found: Sequence[dict[str, Any]], load: float) -> Profile:
    """The profile of what all processes have measured, of which the first had one device. Raises LaunchError."""
    first = found[0]
    on_cpu, known = first["backend"] == "cpu", hardware.find(first["device"])
    device = cpu_name() if on_cpu else known.name if known else str(first["device"])
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    facts = {
        "device": device,
        "date": today,
        "versions": first["versions"],
        "backend": first["backend"],
        "load": load,
    }
    try:
        profile = profile_of(_together(found), device=device, origin=f"measured on {today}", facts=facts)
    except (ValueError, KeyError, TypeError) as error:
        raise LaunchError(f"the measurements make no profile: {error}") from error
    if not on_cpu:
        several = any(one.get("collectives") for one in found)
        profile = completed(profile, time_profile.published(known), several=several)
    return profile


def measured(cpu_devices: int | None, processes: int = 1) -> dict[str, Any]:
    """The measurements of processes that belong together; with a number, of so many virtual devices of the processor.

    Raises LaunchError where one of them fails.
    """
    variables = dict(os.environ)
    argv = [sys.executable, "-P", "-m", "seatrial.train.calibrate"]
    if cpu_devices:
        argv += ["--cpu-devices", str(cpu_devices)]
        variables["JAX_PLATFORMS"] = "cpu"
        variables.setdefault(TUNABLES, ":".join(f"{name}={value}" for name, value in CPU_MALLOC.items()))
    with TemporaryDirectory(prefix="seatrial-calibrate-") as folder:
        out = Path(folder) / "measured.json"
        argv += ["--out", str(out)]
        if processes > 1:
            argv += ["--processes", str(processes), "--coordinator", f"127.0.0.1:{free_port()}"]
        with ExitStack() as others:
            for number in range(1, processes):
                others.enter_context(_process([*argv, "--process", str(number)], variables))
            with _process(argv, variables) as first:
                try:
                    said = first.communicate(timeout=TIME_LIMIT_SECONDS)[1]
                except subprocess.TimeoutExpired as error:
                    raise LaunchError(f"measuring took more than {TIME_LIMIT_SECONDS:.0f} s") from error
        if first.returncode != 0 or not out.exists():
            last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise LaunchError(f"the devices could not be measured: {last or f'exit code {first.returncode}'}")
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return found


@contextmanager
def _process(argv: Sequence[str], variables: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that measures; whatever happens, it is gone afterwards."""
    started = subprocess.Popen(
        argv, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        yield started
        started.communicate(timeout=ENDS_SECONDS)
    except subprocess.TimeoutExpired:
        pass  # the first one has what was measured
    finally:
        started.kill()
        started.communicate()


def _together(found: Sequence[dict[str, Any]]) -> Measurements:
    first, several = found[0], [one for one in found if one["processes"] == 1]
    at_once = [one for one in several if one["backend"] == "cpu"] or [first]  # an accelerator shares nothing
    return Measurements(
        products=tuple(_on(one, MeasuredProduct, each) for one in at_once for each in one["products"]),
        attention=tuple(_on(one, MeasuredAttention, each) for one in at_once for each in one["attention"]),
        collectives=tuple(MeasuredCollective(**each) for one in found for each in one.get("collectives", ())),
        steps=tuple(
            MeasuredStep(spec=from_dict(s["spec"]), seconds=s["seconds"]) for one in found for s in one["steps"]
        ),
        memory_bytes_per_second=first["memory_bytes_per_second"],
        optimizer_bytes_per_second=first["optimizer_bytes_per_second"],
        together={
            one["devices"]: {MOVED: one["memory_bytes_per_second"], OPTIMIZER: one["optimizer_bytes_per_second"]}
            for one in at_once
        },
        host=first["backend"] == "cpu",
    )


def _on(one: Mapping[str, Any], kind: type[T], operator: Mapping[str, Any]) -> T:
    """An operator as the devices of a process measured it, those of a processor all at once."""
    return kind(**operator, devices=one["devices"] if one["backend"] == "cpu" else 1)


def render(profile: Profile, path: Path) -> str:
    """A profile for people."""
    rows = [(f"products, {name}", f"{rate.flops_per_second / 1e9:,.0f} GFLOP/s",
             f"dimensions seem larger by {rate.m:.0f}, {rate.k:.0f}, {rate.n:.0f}; {1e6 * rate.seconds_each:.0f} µs")
            for name, rate in profile.products.items()]  # fmt: skip
    rows += [(f"attention, {name}", f"{rate.flops_per_second / 1e9:,.0f} GFLOP/s", f"heads seem larger by {rate.k:.0f}")
             for name, rate in profile.attention.items()]  # fmt: skip
    rows += [(f"memory, {name}", f"{rate / 1e9:,.1f} GB/s", "what layers move") for name, rate in profile.moved.items()]
    rows += [
        ("optimizer", f"{profile.optimizer_bytes_per_second / 1e9:,.1f} GB/s", ""),
        ("collectives", f"{profile.fast.bytes_per_second / 1e9:,.1f} GB/s",
         f"{1e6 * profile.fast.latency_seconds:,.0f} µs a hop"),
        *((f"{part}, {devices} devices", f"{value:.2f} ×", "the time of one alone")
          for part, values in profile.shared.items() for devices, value in values.items() if devices > 1),
    ]  # fmt: skip
    facts = ", ".join(f"{name} {value}" for name, value in profile.facts.get("versions", {}).items())
    head = f"# {show_value(profile.device)}, {profile.origin}, with {facts}"
    return f"{head}\n\n{table(rows, indent=0, columns=UNLIMITED, widest=48)}\n\nprofile: {path}"
