"""The validation loss: when it is measured, and on how much data."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from seatrial import events
from seatrial.spec import Evaluation, RunSpec
from seatrial.train.data import Sources, make_batch
from seatrial.train.data.examples import Source
from seatrial.train.step import Batch
from seatrial.train.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """Evaluates after every `interval` steps, counted from the start of each `epoch` (in steps) where there are epochs.

    Only in the last of every `every` epochs. Every evaluation uses the first `batches` batches of the validation data,
    `initial` of them before the first step.
    """

    interval: int
    epoch: int | None
    batches: int
    initial: int
    every: int
    trainer: Trainer
    source: Source

    def compiled(self, params: Any, batch: Batch) -> Evaluator:
        """The same, compiled for parameters and batches like these."""
        loss: Any = self.trainer.loss  # which `jax.jit` has made
        return replace(self, trainer=replace(self.trainer, loss=loss.lower(params, batch).compile()))

    def batches_after(self, done: int) -> int:
        """The number of batches to evaluate after this many steps; 0: none."""
        if done == 0:
            return self.initial
        epochs, within = divmod(done - 1, self.epoch) if self.epoch else (0, done - 1)
        is_due = (epochs + 1) % self.every == 0 and (within + 1) % self.interval == 0
        return self.batches if is_due else 0

    def evaluate(self, params: Any, done: int, process: int) -> tuple[events.Eval, str]:
        """An evaluation as an event, and as MaxText prints it."""
        start = time.monotonic()
        loss, weight = self._measure(params, self.batches_after(done))
        event = events.Eval(process=process, step=done, loss=loss, seconds=time.monotonic() - start)
        when = f"after step: {done - 1}" if done else "before step: 0"
        return event, f"eval metrics {when}, loss={loss:.3f}, total_weights={weight:.1f}"

    def _measure(self, params: Any, batches: int) -> tuple[float, float]:
        """Σ weight · loss / Σ weight over the first batches, and Σ weight; while one runs, the next is made.

        No two run at once: nothing would keep their collectives in the same order on all processes.
        """
        sums, trainer = np.zeros(2), self.trainer
        A, B, _ = trainer.batch_shape

        def made(number: int) -> Batch:
            return make_batch(self.source, number * A * B, trainer.batch_shape, trainer.batch_shardings)

        batch = made(0)
        for number in range(batches):
            sent = trainer.loss(params, batch)
            batch = made(number + 1) if number + 1 < batches else {}
            sums += [float(np.asarray(x.addressable_data(0))) for x in sent]
        return float(sums[0] / sums[1]), float(sums[1])


def judged(loss: float, before: Mapping[str, float]) -> dict[str, float]:
    """The evaluation figures after this loss, as numbers for a checkpoint. A NaN never counts as better."""
    best, since = before.get("best_validation_loss", math.nan), before.get("evaluations_since_best")
    if since is None or loss < best or (math.isnan(best) and not math.isnan(loss)):
        best, since = loss, -1
    return {"validation_loss": loss, "best_validation_loss": best, "evaluations_since_best": since + 1}


def enough(found: Mapping[str, float], asked: Evaluation) -> str | None:
    """The reason why a run with these figures of `judged` can stop early; None: it goes on."""
    if asked.target_loss is not None and (loss := found["validation_loss"]) <= asked.target_loss:
        return f"the validation loss {loss:.4f} has reached the target {asked.target_loss:g}"
    if asked.patience is not None and (since := found["evaluations_since_best"]) >= asked.patience:
        return f"the last {since:.0f} evaluations were no better than {found['best_validation_loss']:.4f}"
    return None


def make_evaluator(spec: RunSpec, trainer: Trainer, sources: Sources) -> Evaluator | None:
    """The evaluator of a run; None where evaluation is off. Raises ValueError where the data cannot support it."""
    asked, size, epoch, validation = spec.evaluation, spec.sequences_per_step, None, sources.validation
    if validation is None or (asked.interval_steps is None and asked.interval_fraction is None):
        return None
    for name in ("interval_fraction", "every_epochs"):
        if getattr(asked, name) is not None:
            if sources.train.num_examples is None:
                raise ValueError(f"evaluation.{name} counts in epochs, and this data is endless: set interval_steps")
            epoch = max(1, sources.train.num_examples // size)
    if epoch and asked.interval_steps and asked.interval_steps > epoch:
        raise ValueError(
            f"evaluation.interval_steps is {asked.interval_steps}, and an epoch, in which it counts, has {epoch}, "
            "so nothing would be evaluated; give fewer, or no evaluation.every_epochs "
            "(NxDT: check_val_every_n_epoch: null)"
        )
    whole = None if validation.num_examples is None else max(1, validation.num_examples // size)
    if whole is None and (asked.batches is None or asked.initial_batches < 0):
        raise ValueError("the validation data is endless: set evaluation.batches")
    batches = asked.batches if whole is None else min(whole, asked.batches or max(1, int(whole * asked.fraction)))
    assert batches is not None
    initial = batches if asked.initial_batches < 0 else asked.initial_batches
    return Evaluator(
        interval=asked.interval_steps or max(1, int((epoch or 1) * (asked.interval_fraction or 0.0))),
        epoch=epoch,
        batches=batches,
        initial=initial if whole is None else min(whole, initial),
        every=asked.every_epochs or 1,
        trainer=trainer,
        source=validation,
    )
