"""A run that goes on, as the events of its first process tell it: how far it is, and how fast its last steps are."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

from seatrial.events import Event, RunStarted, Step
from seatrial.launch.display import WINDOW
from seatrial.metrics import measure
from seatrial.report.steps import STEPS, step_rows
from seatrial.spec import RunSpec


class LastSteps:
    """The last step of an attempt, the median of the last times, and the planned steps; None: not known yet."""

    def __init__(self, spec: RunSpec | None) -> None:
        self._spec = spec
        self._seconds: list[float] = []
        self.performance = measure([], spec).performance
        self.planned = spec.step_limit if spec else None
        self.last: Step | None = None

    def see(self, event: Event) -> None:
        """Takes in an event."""
        if isinstance(event, RunStarted):
            self.planned = min((n for n in (self.planned, event.planned_steps) if n), default=None)
            self.performance = measure([event], self._spec).performance
        elif isinstance(event, Step):
            if self.last is not None and event.seconds:  # the first one is slower
                self._seconds = [*self._seconds, event.seconds][-WINDOW:]
            self.last = event

    @property
    def typical(self) -> Step | None:
        """The last step, with the median of the last times as its own."""
        return self.last and replace(self.last, seconds=statistics.median(self._seconds) if self._seconds else None)

    def figures(self, step: Step) -> dict[str, Any]:
        """The columns of STEPS for a step, which follow from its time."""
        (row,) = step_rows([[step]], self.performance)
        return {column.name: value for column, value in zip(STEPS, row, strict=True)}
