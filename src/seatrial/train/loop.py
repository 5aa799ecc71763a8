"""A training run of one process: start, steps, events, and what happens when something breaks.

The host never waits for the step that it has just dispatched: step n is dispatched, then the numbers of n-1 are read.
A step's `seconds` is the time between two such completions, so it is what a wall clock would show.
"""

from __future__ import annotations

import os
import platform
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jaxlib
import numpy as np

from seatrial import __version__, events, flops
from seatrial.errors import InputError
from seatrial.spec import RunSpec
from seatrial.train.attention import choose
from seatrial.train.data import make_batch, make_source
from seatrial.train.mesh import backend_of, make_mesh
from seatrial.train.step import Trainer, make_trainer

EXIT_NON_FINITE = 1
EXIT_STEP_FAILED = 75  # EX_TEMPFAIL: the same run may well succeed elsewhere or later


@dataclass(frozen=True)
class Place:
    """Which process of the run this is, and what it computes on."""

    process: int = 0
    num_processes: int = 1
    coordinator: str | None = None  # host:port
    cpu_devices: int | None = None  # None: the real devices


class Phases:
    """Seconds that each phase of the start took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - start


def connect(spec: RunSpec, place: Place) -> None:
    """Sets up devices and joins the other processes; must come before JAX is first used."""
    if place.cpu_devices is not None:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", place.cpu_devices)
    if place.num_processes > 1:
        # JAX reads none of the environment variables that launchers use for these timeouts.
        jax.distributed.initialize(
            coordinator_address=place.coordinator,
            num_processes=place.num_processes,
            process_id=place.process,
            initialization_timeout=spec.distributed.initialization_timeout_seconds,
            heartbeat_timeout_seconds=spec.distributed.heartbeat_timeout_seconds,
        )
        # The coordination service catches SIGTERM to announce a preemption; whoever stops us means now.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def maxtext_line(spec: RunSpec, step: events.Step) -> str:
    """A step as MaxText prints it, so that tools which read MaxText's log read ours."""
    tokens_per_second = spec.tokens_per_step / step.seconds / spec.topology.num_devices
    per_token = flops.flops_per_token(spec.model, spec.batch.sequence_length)
    return (
        f"completed step: {step.step}, seconds: {step.seconds:.3f}, "
        f"TFLOP/s/device: {tokens_per_second * per_token / 1e12:.3f}, Tokens/s/device: {tokens_per_second:.3f}, "
        f"total_weights: {step.tokens}, loss: {step.loss:.3f}"
    )


def _started(spec: RunSpec, place: Place, trainer: Trainer, memory: Any, phases: Phases) -> events.RunStarted:
    device = trainer.mesh.devices.flat[0]
    return events.RunStarted(
        process=place.process,
        run=spec.name,
        host=socket.gethostname(),
        num_processes=place.num_processes,
        num_devices=trainer.mesh.size,
        device_kind=device.device_kind,
        planned_steps=spec.steps,
        tokens_per_step=spec.tokens_per_step,
        num_parameters=flops.num_parameters(spec.model),
        facts={
            "versions": {
                "python": platform.python_version(),
                "jax": jax.__version__,
                "jaxlib": jaxlib.__version__,
                "seatrial": __version__,
            },
            "backend": backend_of(device),
            "mesh": {axis: size for axis, size in spec.mesh.items() if size > 1},
            "accumulation_steps": spec.accumulation_steps,
            "remat": spec.execution.remat,
            "attention": choose(spec.execution.attention, backend_of(device)),
            "scan_layers": spec.execution.scan_layers,
            "flops_convention": flops.DEFAULT_CONVENTION,
            "compile_seconds": phases.seconds["compile"],
            "phases": phases.seconds,
            "memory": {
                "argument_bytes": memory.argument_size_in_bytes,
                "output_bytes": memory.output_size_in_bytes,
                "alias_bytes": memory.alias_size_in_bytes,
                "temp_bytes": memory.temp_size_in_bytes,
                "code_bytes": memory.generated_code_size_in_bytes,
            },
        },
    )


def _say(place: Place, text: str) -> None:
    if place.process == 0:
        print(text, flush=True)


def train(spec: RunSpec, place: Place, out: Path) -> int:
    """Runs every step of a spec and returns the process's exit code; events go to `out`.

    Raises InputError where the spec does not fit the devices or its data cannot be read. A step that fails (a peer is
    gone, a device error) ends the process at once: JAX's orderly exit would wait for peers that no longer answer.
    """
    phases = Phases()
    with phases.phase("connect"):
        connect(spec, place)
    writer = events.Writer(out / f"events-{place.process}.jsonl")
    try:
        trainer = make_trainer(spec, make_mesh(spec))
        with phases.phase("data"):
            source = make_source(spec)
    except ValueError as error:
        raise InputError.single("unfit", "spec", str(error), "change the configuration so that it fits") from error
    with phases.phase("init"):
        state = jax.block_until_ready(trainer.init())
    with phases.phase("compile"):
        batch = make_batch(source, 0, trainer.batch_shape, trainer.batch_shardings)
        compiled = trainer.step.lower(state, batch).compile()
    started = _started(spec, place, trainer, compiled.memory_analysis(), phases)
    writer.write(started)
    memory = started.facts["memory"]
    _say(place, f"number parameters: {started.num_parameters / 1e9:.3f} billion ({started.num_parameters:,})")
    _say(
        place,
        f"compiled in {phases.seconds['compile']:.1f} s; memory per device: "
        f"{memory['argument_bytes'] / 2**20:.1f} MiB state and batch, {memory['temp_bytes'] / 2**20:.1f} MiB temporary",
    )
    try:
        return _steps(spec, place, trainer, compiled, state, batch, source, writer)
    except jax.errors.JaxRuntimeError as error:
        text = str(error).splitlines()[0][:500]
        writer.write(events.Fault(process=place.process, fault="step_failed", where=f"rank {place.process}", text=text))
        print(f"step failed: {text}", flush=True)
        os._exit(EXIT_STEP_FAILED)


def _steps(
    spec: RunSpec,
    place: Place,
    trainer: Trainer,
    compiled: Any,
    state: Any,
    batch: Any,
    source: Any,
    writer: events.Writer,
) -> int:
    """The loop itself: dispatch, prepare the next batch while the devices work, then read the previous numbers."""
    previous: dict[str, jax.Array] | None = None
    finished = time.monotonic()
    waited = 0.0

    def read(number: int, numbers: dict[str, jax.Array], data_seconds: float) -> events.Step:
        nonlocal finished
        values = {name: float(np.asarray(value.addressable_data(0))) for name, value in numbers.items()}
        now = time.monotonic()
        step = events.Step(
            process=place.process,
            step=number,
            seconds=now - finished,
            tokens=int(values["weight"]),
            loss=values["loss"],
            grad_norm=values["grad_norm"],
            learning_rate=values["learning_rate"],
            data_seconds=data_seconds,
        )
        finished = now
        writer.write(step)
        _say(place, maxtext_line(spec, step))
        return step

    for number in range(spec.steps + 1):
        numbers = None
        if number < spec.steps:
            state, numbers = compiled(state, batch)
        if previous is not None:
            step = read(number - 1, previous, waited)
            if not np.isfinite(step.loss):
                return _stop_non_finite(place, writer, step)
        if number + 1 < spec.steps:
            start = time.monotonic()
            batch = make_batch(
                source, (number + 1) * spec.batch.global_batch_size, trainer.batch_shape, trainer.batch_shardings
            )
            waited = time.monotonic() - start
        previous = numbers
    writer.write(events.RunEnded(process=place.process, reason="completed", exit_code=0))
    _say(place, "training completed")
    return 0


def _stop_non_finite(place: Place, writer: events.Writer, step: events.Step) -> int:
    """Nothing that follows a non-finite loss means anything: the run ends here, and says where."""
    text = f"loss is {step.loss} at step {step.step}"
    writer.write(events.Fault(process=place.process, fault="non_finite_loss", where=f"rank {place.process}", text=text))
    writer.write(events.RunEnded(process=place.process, reason="non_finite_loss", exit_code=EXIT_NON_FINITE))
    _say(place, f"training stopped: {text}")
    return EXIT_NON_FINITE
