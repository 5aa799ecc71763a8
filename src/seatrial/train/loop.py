"""A training run of one process: start, steps and what comes between them, end, and what happens when something breaks.

The host never waits for the step that it has just dispatched: step n is dispatched, then the numbers of n-1 are read
(of one process, a program for one CPU device has run when its call returns).
A step's `seconds` is the time between two such completions, so it is what a wall clock would show. Before anything that
needs the state (evaluation, checkpoint, end) the step that runs is settled: its numbers are read too.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Never

import jax
import numpy as np

from seatrial import events
from seatrial.errors import InputError
from seatrial.spec import RunSpec
from seatrial.train.checkpoint import FULL, Checkpoints
from seatrial.train.data import make_batch, make_sources
from seatrial.train.data.prefetch import Prefetched
from seatrial.train.dpo_reference import FILE, with_reference
from seatrial.train.evaluate import Evaluator, enough, judged, make_evaluator
from seatrial.train.goodput import measure_goodput
from seatrial.train.mesh import make_mesh, most_memory
from seatrial.train.metrics_log import Journal, Profile
from seatrial.train.signals import VOTES, Requests, compile_step, vote
from seatrial.train.startup import Phases, Place, connect, now, started, use_compile_cache
from seatrial.train.step import Batch, State
from seatrial.train.trainer import Trainer, make_trainer

EXIT_NON_FINITE = 1
EXIT_STEP_FAILED = 75  # EX_TEMPFAIL: the same run may well succeed elsewhere or later
EXIT_CANNOT_SAVE = 74  # EX_IOERR
EXIT_INTERRUPTED = 130  # whichever process got the signal, and whichever signal it was
# What can fail between two steps: (error, the fault's kind, exit code). The second are data that turn out to be wrong.
FAILURES: tuple[tuple[type[Exception], str, int], ...] = (
    (jax.errors.JaxRuntimeError, "step_failed", EXIT_STEP_FAILED),
    (ValueError, "dataset_error", InputError.exit_code),
    (OSError, "checkpoint_error", EXIT_CANNOT_SAVE),
)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The ending of a run: its reason as `events.RunEnded` names it, the process's exit code, and the last line."""

    reason: str
    exit_code: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A step that was dispatched and whose numbers have not been read."""

    number: int
    numbers: dict[str, Any]
    data_seconds: float

    @property
    def is_done(self) -> bool:
        """True once its numbers can be read without waiting."""
        return bool(self.numbers["loss"].addressable_data(0).is_ready())


@dataclass(kw_only=True)
class Loop:
    """The steps from `first` to before `last`, and what comes between; `state` and `batch` are those of `first`."""

    spec: RunSpec
    place: Place
    trainer: Trainer
    notes: tuple[str, ...]  # of the data, for people
    batches: Prefetched[Batch]
    checkpoints: Checkpoints
    evaluator: Evaluator | None
    journal: Journal
    profile: Profile
    phases: Phases
    first: int
    last: int
    state: State
    batch: Batch
    losses: dict[str, float]  # the newest by the names of `checkpoint.METRICS`, and what evaluations have come to
    program: Any = None  # see `compile_step`
    sent: Sent | None = None
    ending: Ending | None = None
    save_agreed: bool = False
    stop_agreed: bool = False
    settled: float = 0.0  # when the step before was, or what else came between; monotonic
    waited: float = 0.0  # for the batch of the next step, while no step ran

    def compile(self) -> None:
        self.journal.say(now("compiling the step"))
        self.program = compile_step(self.trainer, self.state, self.batch)
        self.evaluator = self.evaluator and self.evaluator.compiled(self.state["params"], self.batch)
        self.phases.ended("compile")

    def announce(self, attempt: int, cached: dict[str, int] | None) -> None:
        """Says that the process is ready for its first step; `cached`: programs found in the cache, and not."""
        facts = {"phases": dict(self.phases.seconds), "compile_seconds": self.phases.seconds["compile"]}
        facts |= {} if cached is None else {"compile_cache": cached}
        ready = started(
            self.spec, self.place, self.trainer, attempt=attempt, steps=self.last, compiled=self.program, facts=facts
        )
        self.journal.write(ready)
        for note in self.notes:
            self.journal.say(f"note: {note}")
        parameters, memory = ready.num_parameters or 0, ready.facts["memory"]
        self.journal.say(f"number parameters: {parameters / 1e9:.3f} billion ({parameters:,})")
        self.journal.say(
            f"compiled in {self.phases.seconds['compile']:.1f} s; memory per device: "
            f"{memory['argument_bytes'] / 2**20:.1f} MiB state and batch, "
            f"{memory['temp_bytes'] / 2**20:.1f} MiB temporary"
        )

    def run(self) -> Ending:
        """Runs the steps, to the last one or until something ends the run."""
        requests = Requests()
        if self.first == 0:
            self.evaluate(0)
        self.journal.say(now("running the first step"))  # on a GPU that has just booted it may take a minute
        self.settled = time.monotonic()
        for number in range(self.first, self.last):
            if self.profile.begins(number):
                self.settle()
                self.profile.start()
                self.settled = time.monotonic()
            votes = vote(self.trainer.mesh, stop=requests.stop, save=self.checkpoints.overdue(time.monotonic()))
            self.state, numbers = self.program(self.state, self.batch, votes)
            sent = Sent(number=number, numbers=numbers, data_seconds=self.waited)
            self.settle()
            self.sent = sent
            # A program for one CPU device runs within its call. Of several processes, each has to learn what they
            # agreed on in the same iteration, however long its own bookkeeping takes; else one saves, another computes.
            if sent.is_done and self.place.num_processes == 1:
                self.settle()
            unfit = self.fetch(number + 1) if number + 1 < self.last else None
            pauses = self.ending is None and self.pauses_after(number)
            if pauses or unfit:
                self.settle()
            if pauses:
                self.pause(number)
            if self.ending is not None:
                break
            if unfit:
                raise unfit
        self.settle()
        self.profile.stop()
        self.checkpoints.wait()
        return self.ending or Ending(reason="completed", exit_code=0, text="training completed")

    def fetch(self, number: int) -> ValueError | None:
        """Gets the batch of a step while the step before it runs; only time beyond that step counts as waiting.

        Returns what is wrong with its data, if anything: what is due after the step before comes first.
        """
        try:
            self.batch = self.batches.get(number)
        except ValueError as error:
            return error
        is_idle = self.sent is None or self.sent.is_done
        self.waited = self.batches.waited_seconds if is_idle else 0.0
        return None

    def settle(self) -> None:
        """Reads the numbers of the step that was sent, if one was, and what the processes agreed on after it."""
        sent, self.sent = self.sent, None
        if sent is None or self.ending is not None:
            return
        stop, save = np.asarray(sent.numbers.pop(VOTES))
        self.stop_agreed, self.save_agreed = self.stop_agreed or bool(stop), self.save_agreed or bool(save)
        values = {name: float(np.asarray(value.addressable_data(0))) for name, value in sent.numbers.items()}
        now = time.monotonic()
        step = events.Step(
            process=self.place.process,
            step=sent.number,
            seconds=now - self.settled,
            tokens=int(values.pop("weight")),
            loss=values.pop("loss"),
            grad_norm=values.pop("grad_norm"),
            learning_rate=values.pop("learning_rate"),
            data_seconds=sent.data_seconds,
            reported={name: value for name, value in values.items() if name != "skipped_steps" or value}
            | most_memory(self.trainer.mesh.local_devices),
            phase=self.profile.phase(sent.number),
        )
        self.settled, self.losses["loss"] = now, step.loss or 0.0
        self.journal.step(step, last=sent.number == self.last - 1)
        if sent.number == self.first:
            self.phases.ended("first_step")
            if self.spec.logging.startup_times:
                self.journal.say(self.phases.line())
        if self.spec.optimizer.on_non_finite == "abort":
            self.require_finite(step)

    def require_finite(self, step: events.Step) -> None:
        """Ends the run at a non-finite number, with the step: nothing after it means anything."""
        for what, value, fault in (
            ("loss", step.loss, "non_finite_loss"),
            ("gradient norm", step.grad_norm, "non_finite_gradient"),
        ):
            if self.ending is None and value is not None and not math.isfinite(value):
                text, where = f"{what} is {value} at step {step.step}", f"rank {self.place.process}"
                self.journal.write(events.Fault(process=self.place.process, fault=fault, where=where, text=text))
                self.ending = Ending(
                    reason="non_finite_loss", exit_code=EXIT_NON_FINITE, text=f"training stopped: {text}"
                )

    def pauses_after(self, number: int) -> bool:
        """True if something needs the state as this step leaves it."""
        is_evaluated = self.evaluator is not None and self.evaluator.batches_after(number + 1) > 0
        return self.is_saved_after(number) or is_evaluated or self.profile.ends(number)

    def is_saved_after(self, number: int) -> bool:
        return self.save_agreed or self.stop_agreed or self.checkpoints.due(number + 1, self.last)

    def pause(self, number: int) -> None:
        """Does what is due between this step, which is settled, and the next; it is not part of any step's time."""
        if self.profile.ends(number):
            self.profile.stop()
        if self.ending is not None:
            return
        self.evaluate(number + 1)
        if (self.is_saved_after(number) or self.ending is not None) and self.spec.checkpoint.enabled:
            self.checkpoints.save(number + 1, self.state, self.losses)
        if self.stop_agreed and self.ending is None and number + 1 < self.last:
            text = f"training interrupted after step {number}"
            self.ending = Ending(reason="interrupted", exit_code=EXIT_INTERRUPTED, text=text)
        self.save_agreed = False
        self.settled = time.monotonic()

    def evaluate(self, done: int) -> None:
        if self.evaluator is not None and self.evaluator.batches_after(done):
            event, text = self.evaluator.evaluate(self.state["params"], done, self.place.process)
            self.losses |= judged(event.loss or 0.0, self.losses)
            self.journal.evaluation(event, text)
            if 0 < done < self.last and (why := enough(self.losses, self.spec.evaluation)):
                text = f"training stopped early after step {done - 1}: {why}"
                self.ending = Ending(reason="stopped_early", exit_code=0, text=text)


def train(spec: RunSpec, place: Place, out: Path) -> int:
    """Runs every step of a spec and returns the process's exit code; events and all other outputs go to `out`.

    Raises InputError where the spec does not fit the devices, or its data or checkpoints cannot be read. What fails
    later ends the process at once: JAX's orderly exit would wait for peers that no longer answer.
    """
    phases = Phases()
    phases.ended("imports")
    connect(spec, place)
    cached = use_compile_cache(spec.execution.compile_cache, on_cpu=place.cpu_devices is not None)
    record = out / f"events-{place.process}.jsonl"
    before = events.read(record) if record.exists() else ()
    attempt = place.attempt + sum(isinstance(event, events.RunStarted) for event in before)
    journal = Journal(spec, place, out)
    try:
        loop = _prepare(spec, place, out, journal, phases)
    except ValueError as error:
        raise InputError.single("unfit", "spec", str(error), "change the configuration so that it fits") from error
    loop.compile()
    loop.announce(attempt, dict(cached) if spec.execution.compile_cache is not None else None)
    try:
        ending = loop.run()
    except (jax.errors.JaxRuntimeError, ValueError, OSError) as error:
        _fail(error, journal, place, loop.checkpoints)
    journal.write(events.RunEnded(process=place.process, reason=ending.reason, exit_code=ending.exit_code))
    goodput = measure_goodput(events.read(record))
    journal.say(goodput.line() if goodput else "")
    journal.say(ending.text)
    journal.close()
    return ending.exit_code


def _prepare(spec: RunSpec, place: Place, out: Path, journal: Journal, phases: Phases) -> Loop:
    """Everything that the first step needs, but for its program. Raises ValueError where the spec cannot be served."""
    mesh = make_mesh(spec)
    phases.ended("connect")
    journal.say(now("reading the data"))
    sources = make_sources(spec)
    spec = _with_epochs(spec, sources.train.num_examples)
    trainer, steps = make_trainer(spec, mesh), _num_steps(spec, sources.train.num_examples)
    evaluator = make_evaluator(spec, trainer, sources)
    phases.ended("data")
    journal.say(now("making the model"))
    checkpoints = Checkpoints(spec, out, trainer, emit=journal.write, say=journal.say)
    restored = checkpoints.restore()
    phases.ended("restore")
    first, state = (restored.step, restored.state) if restored else (0, jax.block_until_ready(trainer.init()))
    phases.ended("init")
    last = max(steps, first + 1)  # one batch is needed to compile, even where nothing is left to do
    if spec.objective.kind == "dpo":
        evaluated = max(evaluator.batches, evaluator.initial) if evaluator else 0
        counts = (checkpoints.examples(last), evaluated * spec.sequences_per_step)
        path = (checkpoints.directory if spec.checkpoint.enabled else out) / FILE
        sources = with_reference(
            trainer, sources, counts, path, lambda: checkpoints.first_params(state), resumed=checkpoints.resumed
        )
        evaluator = make_evaluator(spec, trainer, sources)
        phases.ended("reference")
    train, shape, shardings = sources.train, trainer.batch_shape, trainer.batch_shardings
    batches = Prefetched(lambda step: make_batch(train, checkpoints.examples(step), shape, shardings), first, last)
    batch = batches.get(first)
    phases.ended("first_batch")
    return Loop(
        spec=spec, place=place, trainer=trainer, notes=sources.notes, batches=batches, checkpoints=checkpoints,
        evaluator=evaluator, journal=journal, profile=Profile(spec, place, out, steps), phases=phases,
        first=first, last=steps, state=state, batch=batch, losses=dict(restored.metrics if restored else {}),
    )  # fmt: skip


def _fail(error: Exception, journal: Journal, place: Place, checkpoints: Checkpoints) -> Never:
    """Writes down what broke a step, and ends the process; the others of the run end with it."""
    fault, code = next((fault, code) for kind, fault, code in FAILURES if isinstance(error, kind))
    if isinstance(error, OSError) and error.errno in FULL:
        fault = "disk_full"
    text = str(error).partition("\n")[0][:500]
    print(f"{fault.replace('_', ' ')}: {text}", flush=True)
    if isinstance(error, ValueError):  # devices and disks are sound, and all processes still write a save under way
        with suppress(OSError):
            checkpoints.wait()
    try:
        journal.write(events.Fault(process=place.process, fault=fault, where=f"rank {place.process}", text=text))
    finally:  # also where there is no room to say so
        os._exit(code)


def _with_epochs(spec: RunSpec, num_examples: int | None) -> RunSpec:
    """The spec with what its data alone can tell: its steps, and those of an epoch for a rate that falls with each."""
    optimizer = spec.optimizer
    if num_examples is not None and optimizer.schedule == "step" and optimizer.decay_interval_steps is None:
        optimizer = replace(optimizer, decay_interval_steps=max(1, num_examples // spec.sequences_per_step))
    return replace(spec, optimizer=optimizer, steps=spec.steps or _num_steps(spec, num_examples))


def _num_steps(spec: RunSpec, num_examples: int | None) -> int:
    """The steps of a run, which may be ended sooner by its epochs. Raises ValueError where data have no epochs."""
    if spec.epochs is None and spec.steps is not None:
        return spec.steps
    if num_examples is None or spec.epochs is None:
        data = "no epochs are given" if spec.epochs is None else f"epochs = {spec.epochs}, but this data is endless"
        raise ValueError(f"{data}: set only the number of steps")
    return min(spec.step_limit, max(1, spec.epochs * num_examples // spec.sequences_per_step))
