"""What one process prints, line after line, as events: attempts, copies of lines, the clock, the end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from seatrial.events import Checkpoint, Eval, Event, RunEnded, RunStarted, Step, trusted
from seatrial.logs.grammar import Family, Note
from seatrial.logs.numbers import quantity

# A step that comes again so few steps later, with the same loss, is another rank's copy and no new attempt.
RANKS_APART = 8

_RUN_FIELDS = ("planned_steps", "num_devices", "num_processes", "tokens_per_step", "num_parameters")
_NUMBERS = (*_RUN_FIELDS, "sequence_length", "global_batch_size")
EVIDENCE = 300  # characters of a line


class Stream:
    """One process of a log: `step`, `note` and `finish` return the events that follow from what was read."""

    def __init__(self, process: int, source: str, host: str = "") -> None:
        self.process = process
        self.source = source
        self._host = host
        self.wall_time = 0.0
        self._family: Family | None = None
        self._clock = "counted"
        self._attempt = 0
        self._last = -1  # step of this attempt; -1 before the first
        self._total: int | None = None
        self._begins = True  # the next step is the first of an attempt
        self._ended = False
        self._facts: dict[str, Any] = {}
        self._figures: dict[str, float] = {}
        # The last few lines: (step, seconds, loss) at step modulo their number.
        self._recent: list[tuple[int, float | None, float | None] | None] = [None] * RANKS_APART

    def blank(self, phase: str) -> dict[str, Any]:
        """The fields of a step of which nothing is known yet."""
        return {
            "process": self.process, "wall_time": 0.0, "monotonic_time": 0.0, "step": 0, "seconds": None,
            "tokens": None, "loss": None, "grad_norm": None, "learning_rate": None, "data_seconds": None,
            "reported": {}, "phase": phase,
        }  # fmt: skip

    def step(self, family: Family, fields: dict[str, Any], total: int | None, time: float | None) -> Sequence[Event]:
        """A step line was read: all `fields` of its step, which are kept, but not the times.

        There is no event for a line that only repeats what another rank has said.
        """
        step, seconds, loss = fields["step"], fields["seconds"], fields["loss"]
        begins = self._begins or (total != self._total and total is not None and self._total is not None)
        if step <= self._last and not begins:
            if self._is_copy(step, seconds, loss):
                return ()
            begins = step != self._last
        if time is not None:
            self.wall_time = time
        elif seconds is not None and math.isfinite(seconds):
            self.wall_time += seconds
        fields["wall_time"] = fields["monotonic_time"] = self.wall_time
        if self._figures:
            self._add_figures(fields)
        event = trusted(Step, fields)
        started = self._start(family, total, timed=time is not None) if begins else None
        if total is not None:
            self._total = total
        self._last, self._ended = step, False
        self._recent[step % RANKS_APART] = (step, seconds, loss)
        return (started, event) if started else (event,)

    def _add_figures(self, fields: dict[str, Any]) -> None:
        """What other lines said of this step, where its own does not."""
        for name, value in self._figures.items():
            of = fields if name in fields else fields["reported"]
            if of.get(name) is None:
                of[name] = value
        self._figures = {}

    def note(self, note: Note, groups: Mapping[str, Any], line: str, time: float | None) -> list[Event]:
        """Another line of the family was read; `groups` is what it says."""
        if time is not None:
            self.wall_time = max(self.wall_time, time)
        when: dict[str, Any] = {"process": self.process, "wall_time": self.wall_time, "monotonic_time": self.wall_time}
        numbers: dict[str, float | None] = {}
        if note.means not in ("facts", "start"):
            numbers = {name: quantity(str(text)) for name, text in groups.items() if text is not None}
        step = numbers.get("step")
        match note.means:
            case "facts" | "start":
                if note.means == "start" and not self._begins:
                    self._begins, self._facts = True, {}
                self._facts |= {name: _fact(name, text) for name, text in groups.items() if text is not None}
            case "figures":
                self._figures |= {name: value / note.per for name, value in numbers.items() if value is not None}
            case "end":
                code = numbers.get("exit_code")
                exit_code = None if code is None else int(code)
                self._ended = True
                reason = "died" if exit_code else "completed"
                return [RunEnded(**when, reason=reason, exit_code=exit_code, evidence=line.strip()[:EVIDENCE])]
            case "eval":
                loss, seconds = numbers.get("loss"), numbers.get("seconds")
                return [Eval(**when, step=int(step or max(0, self._last)), loss=loss, seconds=seconds)]
            case "checkpoint":
                at = int(step) if step is not None else max(0, self._last)
                return [Checkpoint(**when, action=note.action, step=at, seconds=numbers.get("seconds"))]
        return []

    def finish(self) -> list[Event]:
        """The log is over: it ended by itself if its last step is the last of its own count."""
        if self._ended or self._family is None or self._total is None or self._last != self._total:
            return []
        evidence = f"step {self._last} of {self._total} is the last of the log"
        return [
            RunEnded(
                process=self.process,
                wall_time=self.wall_time,
                monotonic_time=self.wall_time,
                reason="completed",
                evidence=evidence,
            )
        ]

    def _is_copy(self, step: int, seconds: float | None, loss: float | None) -> bool:
        """Whether the line repeats a recent one: another rank prints it too, or a doubled print."""
        of_step, said_seconds, said_loss = self._recent[step % RANKS_APART] or (None, None, None)
        if step != of_step or not _same(said_loss, loss):
            return False
        return _same(said_seconds, seconds) or (loss is not None and step != self._last)

    def _start(self, family: Family, total: int | None, *, timed: bool) -> RunStarted:
        self._family, self._begins, self._total = family, False, total
        self._recent = [None] * RANKS_APART
        self._attempt += 1
        self._clock = "log" if timed else "counted"
        facts = dict(self._facts)
        own = {name: facts.pop(name) for name in _RUN_FIELDS if name in facts}
        if total is not None:
            own["planned_steps"] = total + 1 if family.last_is_total else total
        sequence, batch = facts.get("sequence_length"), facts.get("global_batch_size")
        if own.get("tokens_per_step") is None and sequence and batch:
            own["tokens_per_step"] = sequence * batch
        facts |= {
            "family": family.name, "source": self.source, "clock": self._clock, "counted_from": family.counted_from,
        }  # fmt: skip
        device_kind = str(facts.pop("device_kind", ""))
        host = str(facts.pop("host", self._host))
        return RunStarted(
            process=self.process,
            wall_time=self.wall_time,
            monotonic_time=self.wall_time,
            attempt=self._attempt,
            host=host,
            device_kind=device_kind,
            facts=facts,
            **own,
        )


def _same(a: float | None, b: float | None) -> bool:
    return a == b or (a is not None and b is not None and math.isnan(a) and math.isnan(b))


def _fact(name: str, text: Any) -> Any:
    if name not in _NUMBERS:
        return text
    number = quantity(str(text))
    return None if number is None else int(number)
