"""The start of a process: its place among the others, its devices, the phases of the start, its report when ready."""

from __future__ import annotations

import os
import platform
import signal
import socket
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jaxlib.version

from seatrial import __version__, events
from seatrial.estimate import flops
from seatrial.runs.process_start import start_time
from seatrial.spec import RunSpec
from seatrial.train.attention import choose
from seatrial.train.mesh import backend_of
from seatrial.train.trainer import Trainer
from seatrial.xla_flags import flags_of

_FP8 = "f8e"  # how types of fp8 begin in a compiled program
_CACHE_EVENT = "/jax/compilation_cache/cache_"  # + "hits" or "misses", once a program


@dataclass(frozen=True)
class Place:
    """The place of this process in the run, and the devices that it computes on."""

    process: int = 0
    num_processes: int = 1
    coordinator: str | None = None  # host:port
    cpu_devices: int | None = None  # None: the real devices
    attempt: int = 1


class Phases:
    """Seconds of each phase of the start. One begins where the one before ended, the first with the process itself."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.monotonic() - (time.time() - start_time())

    def ended(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name], self._since = now - self._since, now

    def line(self) -> str:
        """All of them in one line."""
        each = " + ".join(f"{name.replace('_', ' ')} {seconds:.1f}" for name, seconds in self.seconds.items())
        return f"start-up: {sum(self.seconds.values()):.1f} s = {each}"


def now(doing: str) -> str:
    """The line that names the phase which begins; the live display shows it."""
    return f"start-up: now {doing}"


def use_cpu(devices: int, processes: int) -> None:
    """Makes processors the devices, so many virtual ones in each process; must come before JAX is first used.

    Where there is one, the thread that calls a program runs it, instead of one of XLA's: only the main thread's malloc
    keeps a step's buffer for the next, however large; those of others map it and unmap it each time. Not of several
    processes: where one has died, the call of the others would raise ValueError, which is an error of the data.
    """
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    jax.config.update("jax_cpu_enable_async_dispatch", devices * processes > 1)


def connect(spec: RunSpec, place: Place) -> None:
    """Sets up devices and joins the other processes; must come before JAX is first used."""
    if place.cpu_devices is not None:
        use_cpu(place.cpu_devices, place.num_processes)
    if place.num_processes > 1:
        # JAX reads none of the environment variables that launchers use for these timeouts.
        start, heartbeat = (
            spec.distributed.initialization_timeout_seconds, spec.distributed.heartbeat_timeout_seconds,
        )  # fmt: skip
        join(place.coordinator, place.num_processes, place.process, start_seconds=start, heartbeat_seconds=heartbeat)
    # The coordination service catches SIGTERM to announce a preemption, Python SIGINT to raise an exception. Until the
    # first step there is nothing to save: both end the process, even while it compiles.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def join(
    coordinator: str | None, processes: int, process: int, *, start_seconds: int = 300, heartbeat_seconds: int = 100
) -> None:
    """Joins the other processes.

    JAX is not to look at its surroundings: under Slurm it would take one device for each process, whatever it is given
    here, and in a pod it would ask the cluster.
    """
    jax.distributed.initialize(
        coordinator_address=coordinator, num_processes=processes, process_id=process,
        initialization_timeout=start_seconds, heartbeat_timeout_seconds=heartbeat_seconds,
        cluster_detection_method="deactivate",
    )  # fmt: skip


def use_compile_cache(folder: str | None, *, on_cpu: bool) -> Counter[str]:
    """Keeps compiled programs in a folder; the counter has its "hits" and "misses" so far."""
    if folder is not None:
        jax.config.update("jax_compilation_cache_dir", str(Path(folder).expanduser()))
        if on_cpu:  # small programs compile within JAX's limit of one second
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    counts: Counter[str] = Counter()

    def count(event: str, **_: Any) -> None:
        if event.startswith(_CACHE_EVENT):
            counts[event.removeprefix(_CACHE_EVENT)] += 1

    jax.monitoring.register_event_listener(count)
    return counts


def started(
    spec: RunSpec, place: Place, trainer: Trainer, *, attempt: int, steps: int, compiled: Any, facts: dict[str, Any]
) -> events.RunStarted:
    """The event of a process that is ready for its first step; `facts` are added to those known here."""
    device, memory = trainer.mesh.devices.flat[0], compiled.memory_analysis()
    return events.RunStarted(
        process=place.process,
        run=spec.name,
        attempt=attempt,
        host=socket.gethostname(),
        num_processes=place.num_processes,
        num_devices=trainer.mesh.size,
        device_kind=device.device_kind,
        planned_steps=steps,
        tokens_per_step=spec.tokens_per_step,
        num_parameters=flops.num_parameters(spec.model),
        facts={
            "versions": {
                "python": platform.python_version(),
                "jax": jax.__version__,
                "jaxlib": jaxlib.version.__version__,
                "seatrial": __version__,
            },
            "backend": backend_of(device),
            "mesh": {axis: size for axis, size in spec.mesh.items() if size > 1},
            "accumulation_steps": spec.accumulation_steps,
            "tokens_counted": "loss" if spec.masks_tokens else "all",
            "remat": spec.execution.remat,
            "attention": choose(spec, backend_of(device)),
            "scan_layers": spec.execution.scan_layers,
            "flops_convention": flops.DEFAULT_CONVENTION,
            "xla_flags": flags_of(os.environ.get("XLA_FLAGS", "")),
            "memory": {
                "argument_bytes": memory.argument_size_in_bytes,
                "output_bytes": memory.output_size_in_bytes,
                "alias_bytes": memory.alias_size_in_bytes,
                "temp_bytes": memory.temp_size_in_bytes,
                "code_bytes": memory.generated_code_size_in_bytes,
            },
            **({"computes_fp8": _FP8 in compiled.as_text()} if spec.precision.quantization else {}),
            **facts,
        },
    )
