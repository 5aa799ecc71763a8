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
BROKEN_SECONDS = 5.0  # for processes to end by themselves after one has died
SAVE_SECONDS = 60.0  # that a process which is asked to stop may take to save


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """The longest time of each phase. A step is overdue after `step_seconds`, or `step_medians` medians if longer.

    A process that is asked to stop has `grace_seconds`, and its agent a few more; then it is killed. Without its peers
    it cannot save, so in a broken run it is killed soon.
    """

    start_seconds: float = 60.0
    lost_seconds: float = 20.0  # of a silent host, while the other hosts stand still too
    deaf_seconds: float = 600.0  # while all hosts are silent: then the connection from here is cut, and they go on
    first_step_seconds: float = 600.0  # compilation included
    step_seconds: float = 58.0  # so that a hang is reported within a minute of the last step
    step_medians: float = 10.0
    shutdown_seconds: float = 30.0
    grace_seconds: float = 5.0
    lease_seconds: float = 15.0  # for which processes on this machine outlive a launcher that was killed

    def stop_seconds(self, reason: str) -> float:
        """Until the processes of a run that ends for this reason are killed."""
        return self.grace_seconds + 10 if reason == "interrupted" else BROKEN_SECONDS


def deadlines_for(spec: RunSpec) -> Deadlines:
    """The deadlines of a run: evaluating and saving are no hang, and a run that is asked to stop may save first.

    Nor are steps that are expected to be slow, or that are not logged.
    """
    every, usual = max(1, spec.logging.interval_steps), Deadlines()
    time = predict(spec, OWN, time_profile.published(hardware.find(spec.topology.device)))
    slow = max((SLOW_START * time.interval[1] if time else 0.0, *_target_seconds(spec))) * every
    saves, evaluates = spec.checkpoint.enabled, spec.evaluation.interval_steps or spec.evaluation.interval_fraction
    blocks = evaluates or (saves and not spec.checkpoint.asynchronous)
    return replace(
        usual,
        first_step_seconds=max(usual.first_step_seconds, usual.step_medians * slow),
        step_seconds=max(usual.step_seconds, usual.step_medians * slow) + (ASIDE_SECONDS if blocks else 0),
        step_medians=usual.step_medians * every,
        shutdown_seconds=usual.shutdown_seconds + (ASIDE_SECONDS if evaluates or saves else 0),
        grace_seconds=SAVE_SECONDS if saves else usual.grace_seconds,
    )


def _target_seconds(spec: RunSpec) -> Iterator[float]:
    """The step times with which a run just meets its targets."""
    for target in spec.expectations:
        if target.metric == "step_seconds":
            yield target.value
        if target.metric == "tokens_per_second_per_device":
            yield spec.tokens_per_step / spec.topology.num_devices / target.value
