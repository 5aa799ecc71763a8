"""The log of one process as events: attempts, copies of lines, the clock, the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seatrial.events import IN_ORDER, TOTALS, Checkpoint, Eval, Event, RunEnded, RunStarted, Step, trusted
from seatrial.logs.grammar import Family, Meaning, Note
from seatrial.logs.numbers import commas_for, commas_of, quantity
from seatrial.logs.opening import Opening
from seatrial.recording import Steps

# A step that comes again so few steps later, with the same loss, is another rank's copy and no new attempt.
RANKS_APART = 8
ROUNDED = 1e-6  # relative: what the order of a sum makes of a loss on another rank
MOST_LATE = 86_400.0  # seconds

_RUN_FIELDS = ("planned_steps", "num_devices", "num_processes", "tokens_per_step", "num_parameters")
_NUMBERS = (*_RUN_FIELDS, "sequence_length", "global_batch_size")
_MEASURES = ("_seconds", "_bytes", "_fraction")
EVIDENCE = 300  # characters of a line


_new, _set = object.__new__, object.__setattr__


class ProcessLog:
    """One process of a log: `step`, `note` and `finish` return the events that follow from what was read.

    `processes` are all of the log: what processes say that report no steps is said for those that do. `opening` is that
    of the whole log, whoever prints its lines.
    """

    def __init__(
        self,
        process: int,
        source: str,
        host: str,
        num_ranks: int | None,
        processes: Mapping[int, ProcessLog],
        opening: Opening | None = None,
    ) -> None:
        self.process = process
        self._num_ranks = num_ranks
        self._processes = processes
        self._opening = opening or Opening()
        self._source = source
        self._host = host
        self.wall_time = 0.0
        self.family: Family | None = None  # of its steps; None before the first
        self._clock = "counted"
        self._attempt = 0
        self._last = -1  # step of this attempt; -1 before the first
        self._total: int | None = None
        self._begins = True  # the next step is the first of an attempt
        self._launched = False  # a program began after the last step; neither a step nor an end of it has come
        self._trains = False  # it can only be a training
        self._restored: int | None = None  # the step of the checkpoint that this program went on from
        self._full_batch: float | None = None  # that the batches grow up to
        self._ended = False
        self._eval_loss: float | None = None
        self._facts: dict[str, Any] = {}
        self._facts_before: dict[str, Any] = {}  # of the program that did the last step
        self._figures: dict[str, float] = {}
        self._summary: dict[str, Any] = {}
        self._checkpoint: tuple[str, int, bool] | None = None  # the last one, and whether its time was given
        # The fields of the last few steps, at the step modulo their number.
        self._recent: list[Mapping[str, Any] | None] = [None] * RANKS_APART

    @property
    def reports(self) -> bool:
        """True if it has reported a step."""
        return self.family is not None

    @property
    def _when(self) -> dict[str, Any]:
        """The fields that every event begins with."""
        return {"process": self.process, "wall_time": self.wall_time, "monotonic_time": self.wall_time}

    # --- steps ---

    def fields_of(self, values: Mapping[str, float], phase: str = "") -> dict[str, Any]:
        """The fields of a step with these values; those that are none of its fields are `reported`."""
        fields: dict[str, Any] = {
            "process": self.process, "wall_time": 0.0, "monotonic_time": 0.0, "step": 0, "seconds": None,
            "tokens": None, "loss": None, "grad_norm": None, "learning_rate": None, "data_seconds": None,
            "reported": {}, "phase": phase,
        }  # fmt: skip
        for name, value in values.items():
            (fields if name in fields else fields["reported"])[name] = value
        return fields

    def step(
        self,
        family: Family,
        fields: dict[str, Any],
        total: int | None,
        time: float | None,
        *,
        inferred: bool = False,
        redrawn: bool = False,
    ) -> Sequence[Event]:
        """A step line was read: all `fields` of its step, which are kept, but not the times.

        `inferred`: the number of the step is a progress bar's. `redrawn`: it is the description of one.
        There is no event for a line that only repeats what another rank has said.
        """
        step = fields["step"]
        if time is not None and self._is_usual and step > self._last and (total is None or total == self._total):
            fields["wall_time"] = fields["monotonic_time"] = self.wall_time = time
            self._last = step
            self._recent[step % RANKS_APART] = fields
            event = _new(Step)
            _set(event, "__dict__", fields)
            return (event,)
        begins = self._begins or (total != self._total and total is not None and self._total is not None)
        if step <= self._last and not begins:
            if self._is_copy(step, fields["seconds"], fields["loss"]):
                return ()
            begins = step != self._last
        self.wall_time = time if time is not None else self.wall_time + self._elapsed(fields, begins=begins)
        if begins:
            self._hear_others()
        fields["wall_time"] = fields["monotonic_time"] = self.wall_time
        self._add_figures(fields)
        said = {"steps_inferred": inferred, "steps_redrawn": redrawn}
        started = (self._start(family, total, timed=time is not None, said=said),) if begins else ()
        if self._full_batch is not None and fields["reported"].get("global_batch_size", math.inf) < self._full_batch:
            fields["phase"] = "batch_rampup"
        self._total = self._total if total is None else total
        self._last, self._ended = step, False
        self._recent[step % RANKS_APART] = fields
        return (*started, trusted(Step, fields))

    @property
    def _is_usual(self) -> bool:
        """True if a step that only goes on needs nothing else to be done about it."""
        return not (self._begins or self._figures or self._ended or self._full_batch)

    def _elapsed(self, fields: Mapping[str, Any], *, begins: bool) -> float:
        """The time of a step line by its own figure, which is a mean over all steps since the last line."""
        seconds: float | None = fields["seconds"]
        if seconds is None or not math.isfinite(seconds):
            return 0.0
        return seconds if begins else seconds * max(1, fields["step"] - self._last)

    def are_usual(self, steps: NDArray[Any], total: int | None) -> bool:
        """True if these just go on, so that `go_on` does all that there is to do about them."""
        if not self._is_usual:
            return False
        rise = bool(steps[0] > self._last and (steps[1:] > steps[:-1]).all())
        return rise and (total is None or total == self._total)

    def go_on(self, steps: Sequence[Step], *, timed: bool) -> None:
        """Takes the usual steps, one after the other; without a time of their own, they get it here."""
        if not timed:
            for step in steps:
                if step.seconds is not None and math.isfinite(step.seconds):
                    self.wall_time += step.seconds * (step.step - self._last)
                vars(step)["wall_time"] = vars(step)["monotonic_time"] = self.wall_time
                self._last = step.step
        self._last, self.wall_time = steps[-1].step, steps[-1].wall_time
        for step in steps[-RANKS_APART:]:
            self._recent[step.step % RANKS_APART] = vars(step)

    def go_on_in_columns(self, steps: Steps, *, timed: bool) -> Steps:
        """`go_on`, of steps in columns: these at their times."""
        if not timed:
            seconds = steps.values("seconds")
            elapsed = np.where(np.isfinite(seconds), seconds, 0.0) * np.diff(steps.numbers, prepend=self._last)
            steps = steps.at_times(np.cumsum(np.append(self.wall_time, elapsed))[1:])
        self.go_on(list(steps[-RANKS_APART:].events()), timed=True)
        return steps

    def _hear_others(self) -> None:
        """Takes over what processes have said that report no steps."""
        for other in self._processes.values():
            if other is not self and not other.reports:
                self._facts = other._facts | self._facts
                self._figures = other._figures | self._figures
                other._figures = {}

    def _add_figures(self, fields: dict[str, Any]) -> None:
        """Adds the figures that other lines give of this step, where its own line does not."""
        for name, value in self._figures.items():
            of = fields if name in fields else fields["reported"]
            if of.get(name) is None:
                of[name] = value
        self._figures = {}

    # --- notes ---

    def note(self, note: Note, groups: Mapping[str, Any], line: str, time: float | None) -> Sequence[Event]:
        """Another line of the family was read; `groups` is what it says."""
        late = self._hear_time(time)
        if note.means in ("facts", "start"):
            if note.means == "start" and not late:
                self._launch(trains=note.trains)
            self._learn({name: _fact(name, text) for name, text in groups.items() if text is not None})
            return ()
        texts = {name: str(text) for name, text in groups.items() if text is not None}
        commas = commas_of(texts.items())
        numbers = {name: quantity(text, commas=commas_for(name, commas)) for name, text in texts.items()}
        return _HANDLERS[note.means](self, note, _Said(groups, numbers, line))

    def _launch(self, *, trains: bool) -> None:
        """A program begins, if it is another one than that which is about to do its first step."""
        if not self._begins or (self.reports and not self._launched):
            if not self._begins:
                self._facts_before = self._facts
            self._begins = self._launched = True
            self._facts, self._restored, self._trains = {}, None, False
        self._trains |= trains

    def _hear_time(self, time: float | None) -> bool:
        """Takes over the time of a note; whether it is a slower rank's, or was longer on its way, and so is late."""
        by_log = self._clock == "log"
        if time is None or (by_log and time < self.wall_time - MOST_LATE):
            return False  # another clock's, or one without a year
        late = by_log and time < self.wall_time
        if self._begins or by_log:
            self.wall_time = max(self.wall_time, time)
        return late

    def _take_other(self, _: Note, __: _Said) -> Sequence[Event]:
        """Forgets the program that began after the last step, and what it said of itself."""
        if self._launched and self.reports:
            self._launched, self._facts = False, self._facts_before
        self._opening.end()
        return ()

    def _take_figures(self, note: Note, said: _Said) -> Sequence[Event]:
        for name, value in said.numbers.items():
            if value is not None:
                least = self._figures.get(name, 0.0) if name.startswith("memory_") else 0.0  # of several ranks
                self._figures[name] = max(value / note.per, least)
        return ()

    def _take_summary(self, note: Note, said: _Said) -> Sequence[Event]:
        means = {name: value / note.per for name, value in said.numbers.items() if value and math.isfinite(value)}
        if means:
            self._summary["family"] = said.groups["family"]
            self._summary["summary"] = {**self._summary.get("summary", {}), **means}
        return ()

    def _take_end(self, _: Note, said: _Said) -> Sequence[Event]:
        code = said.numbers.get("exit_code")
        exit_code = None if code is None else int(code)
        self._ended = True
        reason = said.groups.get("reason") or ("died" if exit_code else "completed")
        evidence = said.line.strip()[:EVIDENCE]
        known = {name: value for name in TOTALS if (value := said.numbers.get(name)) is not None}
        totals = {name: value for name, value in known.items() if math.isfinite(value)}
        started = () if reason in IN_ORDER else self._started_in_vain()
        self._launched = False
        self._opening.end()
        end = RunEnded(**self._when, reason=reason, exit_code=exit_code, evidence=evidence, totals=totals or None)
        return (*started, end)

    def _take_eval(self, _: Note, said: _Said) -> Sequence[Event]:
        step, loss = said.numbers.get("step"), said.numbers.get("loss")
        if step is None and loss == self._eval_loss and not said.groups.get("score"):
            return ()  # lines that go on saying what the last one was
        self._eval_loss = loss
        at = int(step or max(0, self._last))
        seconds, shortfall, score = said.numbers.get("seconds"), said.numbers.get("shortfall"), said.groups.get("score")
        return (Eval(**self._when, step=at, loss=loss, seconds=seconds, score=score, shortfall=shortfall),)

    def _take_checkpoint(self, note: Note, said: _Said) -> Sequence[Event]:
        step, seconds = said.numbers.get("step"), said.numbers.get("seconds")
        at = int(step) if step is not None else max(0, self._last)
        if note.action == "restore" and step is not None:
            self._restored = at
        if self._checkpoint in ((note.action, at, True), (note.action, at, seconds is not None)):
            return ()  # another rank's word, or another format of it
        self._checkpoint = (note.action, at, seconds is not None)
        return (Checkpoint(**self._when, action=note.action, step=at, seconds=seconds),)

    def _learn(self, facts: Mapping[str, Any]) -> None:
        """Keeps the facts read of the run; "versions__jax" goes into the mapping "versions"."""
        for name, value in facts.items():
            outer, _, inner = name.partition("__")
            self._facts[outer] = {**self._facts.get(outer, {}), inner: value} if inner else value

    # --- beginning and end ---

    def finish(self) -> list[Event]:
        """The log is over: it ended by itself if its last step is the last of its own count."""
        if self._summary and not any(other.reports for other in self._processes.values()):  # a run of means alone
            facts = {**self._facts, "source": self._source, "clock": "counted", **self._summary}
            own = {name: facts.pop(name) for name in _RUN_FIELDS if name in facts}
            return [RunStarted(**self._when, facts=facts, **own)]
        if started := self._started_in_vain():
            return list(started)
        if self._ended or self.family is None or self._total is None or self._last != self._total:
            return []
        evidence = f"step {self._last} of {self._total} is the last of the log"
        return [RunEnded(**self._when, reason="completed", evidence=evidence)]

    def _started_in_vain(self) -> Sequence[Event]:
        """The start of a training that did no step, though it was to do some; none where there is no such.

        One that neither says so nor how many steps it plans, nor prints what this log began with and nothing else, may
        be any program: one that evaluates, converts, samples.
        """
        planned = self._facts.get("planned_steps")
        trains = self._launched and (self._trains or planned or "planned_by" in self._facts)
        if self.family is None or not (trains or self._opening.comes_again):
            return ()
        last = self._last if self._total is None else self._total
        last_planned = self.family.counted_from + planned - 1 if planned else last
        if self._restored is not None and self._restored >= last_planned:
            return ()  # nothing was left to do
        if self._launched:
            self._facts = self._facts_before  # what this one says of itself may be another program's
        return (self._start(self.family, self._total, timed=self._clock == "log", said={"start_inferred": True}),)

    def _is_copy(self, step: int, seconds: float | None, loss: float | None) -> bool:
        """True if the line repeats a recent one: another rank prints it too, or a doubled print."""
        said = self._recent[step % RANKS_APART]
        if said is None or step != said["step"] or not _same(said["loss"], loss):
            return False
        return _same(said["seconds"], seconds) or loss is not None

    def _start(self, family: Family, total: int | None, *, timed: bool, said: Mapping[str, bool]) -> RunStarted:
        announced = self._begins
        self.family, self._begins, self._launched, self._total = family, False, False, total
        self._recent = [None] * RANKS_APART
        self._attempt += 1
        self._clock = "log" if timed else "counted"
        facts = dict(self._facts)
        own = {name: facts.pop(name) for name in _RUN_FIELDS if name in facts}
        if planned := facts.pop("planned_by", {}).get(family.name):
            own.setdefault("planned_steps", planned)
        if self._num_ranks is not None:
            own.setdefault("num_devices", self._num_ranks)
        if total is not None:
            own["planned_steps"] = total + 1 if family.last_is_total else total
        sequence, batch = facts.get("sequence_length"), facts.get("global_batch_size")
        self._full_batch = batch if facts.get("rampup_batch_size") else None
        if own.get("tokens_per_step") is None and sequence and batch:
            own["tokens_per_step"] = sequence * batch
        facts |= {
            "family": family.name, "source": self._source, "clock": self._clock, "counted_from": family.counted_from,
        }  # fmt: skip
        facts |= {"objective": family.objective} if family.objective else {}
        facts |= {"loss_optional": True} if family.loss_optional else {}
        facts = {"extra_steps": family.extra_steps, **facts} if family.extra_steps else facts
        facts |= {name: True for name, holds in {"unannounced": not announced, **said}.items() if holds}
        device_kind = str(facts.pop("device_kind", ""))
        host = str(facts.pop("host", self._host))
        return RunStarted(**self._when, attempt=self._attempt, host=host, device_kind=device_kind, facts=facts, **own)


class _Said(NamedTuple):
    """The content of a note: its groups as text, those that are numbers, and the whole line."""

    groups: Mapping[str, Any]
    numbers: Mapping[str, float | None]
    line: str


_HANDLERS: Mapping[Meaning, Callable[[ProcessLog, Note, _Said], Sequence[Event]]] = {
    "other": ProcessLog._take_other,
    "figures": ProcessLog._take_figures,
    "summary": ProcessLog._take_summary,
    "end": ProcessLog._take_end,
    "eval": ProcessLog._take_eval,
    "checkpoint": ProcessLog._take_checkpoint,
}


def _same(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    return math.isclose(a, b, rel_tol=ROUNDED) or (math.isnan(a) and math.isnan(b))


def _fact(name: str, text: Any) -> Any:
    if name not in _NUMBERS and not name.endswith(_MEASURES):
        return text
    number = quantity(str(text))
    return None if number is None or not math.isfinite(number) else int(number) if name in _NUMBERS else number
