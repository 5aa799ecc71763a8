"""Deadlines: the longest time that each phase of a run may take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from seatrial.estimate import hardware, time_profile
from seatrial.estimate.memory import OWN
from seatrial.estimate.time_model import predict
from seatrial.spec import RunSpec

ASIDE_SECONDS = 600.0  # that an evaluation or a save may take
SLOW_START = 1.5  # times the step time to expect of a tuned run is no hang
FORWARD = SLOW_START / 3  # of a step's time: the forward pass alone takes a third of it
UNCOUNTED_BATCHES = 1000  # of an evaluation on all of some data, of which only the trainer knows how many they are
PULL_SECONDS = 1800.0  # that fetching an image may take
BROKEN_SECONDS = 5.0  # for processes to end by themselves after one has died
SAVE_SECONDS = 60.0  # that a process which is asked to stop may take to save


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """The longest time of each phase. A step is overdue after `step_seconds`, or `step_medians` medians if longer.

    An evaluation may take as long as `evaluation_steps` steps. Until two steps have told the pace, one may take
    `slow_seconds`; every `logged_steps`-th is seen.

    A process that is asked to stop has `grace_seconds`, and its agent a few more; then it is killed. Without its peers
    it cannot save, so in a broken run it is killed soon.
    """

    start_seconds: float = 60.0
    lost_seconds: float = 20.0  # of a silent host, while the other hosts stand still too
    deaf_seconds: float = 600.0  # while all hosts are silent: then the connection from here is cut, and they go on
    first_step_seconds: float = 600.0  # compilation included
    step_seconds: float = 58.0  # so that a hang is reported within a minute of the last step
    step_medians: float = 10.0
    slow_seconds: float = 58.0
    logged_steps: int = 1
    evaluation_steps: float = 0.0
    shutdown_seconds: float = 30.0
    grace_seconds: float = 5.0
    lease_seconds: float = 15.0  # for which processes on this machine outlive a launcher that was killed

    def between_steps(self, median: float) -> float:
        """Until a step is overdue; `median` is that of a step's seconds, 0 while it is not known."""
        steps = self.step_medians * median if median else self.logged_steps * self.slow_seconds
        return max(self.step_seconds, steps) + self._evaluating(median)

    def at_the_end(self, median: float) -> float:
        """From the last step until all processes have ended; some evaluate validation and test data there."""
        return self.shutdown_seconds + 2 * self._evaluating(median)

    def _evaluating(self, median: float) -> float:
        return self.evaluation_steps * (median or self.slow_seconds)

    def stop_seconds(self, reason: str) -> float:
        """Until the processes of a run that ends for this reason are killed."""
        return self.grace_seconds + 10 if reason == "interrupted" else BROKEN_SECONDS


def deadlines_for(spec: RunSpec) -> Deadlines:
    """The deadlines of a run: evaluating and saving are no hang, and a run that is asked to stop may save first.

    Nor are steps that are expected to be slow, or that are not logged, nor what a run does before its first step.
    """
    every, usual = max(1, min(spec.logging.interval_steps, spec.step_limit)), Deadlines()
    time = predict(spec, OWN, time_profile.published(hardware.find(spec.topology.device)))
    slow = max((SLOW_START * time.interval[1] if time else 0.0, *_target_seconds(spec)))
    slow_seconds = slow or usual.slow_seconds
    saves, evaluates = spec.checkpoint.enabled, spec.evaluation.is_on
    batches = UNCOUNTED_BATCHES if spec.evaluation.batches is None else spec.evaluation.batches
    blocks = evaluates or (saves and not spec.checkpoint.asynchronous)
    return replace(
        usual,
        first_step_seconds=max(usual.first_step_seconds, usual.step_medians * slow * every, slow_seconds * every)
        + FORWARD * slow_seconds * _batches_before(spec)
        + (PULL_SECONDS if spec.container and spec.container.pull in ("missing", "always") else 0),
        step_seconds=max(usual.step_seconds, usual.step_medians * slow * every) + (ASIDE_SECONDS if blocks else 0),
        step_medians=usual.step_medians * every,
        slow_seconds=slow_seconds,
        logged_steps=every,
        evaluation_steps=FORWARD * batches if evaluates else 0.0,
        shutdown_seconds=usual.shutdown_seconds + (ASIDE_SECONDS if evaluates or saves else 0),
        grace_seconds=SAVE_SECONDS if saves else usual.grace_seconds,
    )


def _batches_before(spec: RunSpec) -> int:
    """The batches that a run evaluates before its first step: DPO's reference model sees those of all steps."""
    return spec.evaluation.initial_batches + (spec.step_limit if spec.objective.kind == "dpo" else 0)


def _target_seconds(spec: RunSpec) -> Iterator[float]:
    """The step times with which a run just meets its targets."""
    for target in spec.expectations:
        if target.metric == "step_seconds":
            yield target.value
        if target.metric == "tokens_per_second_per_device":
            yield spec.tokens_per_step / spec.topology.num_devices / target.value
