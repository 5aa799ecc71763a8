"""The display of a running run: live on a terminal, else a line now and then."""

from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from seatrial import events
from seatrial.console import Say, heard_or_not, inert, short_number
from seatrial.engines import engine
from seatrial.launch.deadlines import Deadlines, deadlines_for
from seatrial.launch.follow import Following
from seatrial.launch.live import Line, Live, clock, gauge
from seatrial.launch.progress import Progress
from seatrial.runs.mirror import NO_ROOM
from seatrial.spec import RunSpec

if TYPE_CHECKING:
    from rich.console import Console

LINES = 10  # without a terminal, about so many over the whole run
WINDOW = 20  # steps behind the figures shown
QUIET_SECONDS = 20.0  # after which a silent host is reported
TRAINING = "training"
STARTING = re.compile(r"start-up: now ([a-z ]+)")  # as our trainer's first process names the phases of its start
ROWS = 8  # of processes on a terminal; of more, those that are behind


@contextmanager
def dispensable() -> Iterator[None]:
    """A place for output that a run can do without: a full disk behind it, or a reader that has gone, ends nothing."""
    try:
        with heard_or_not():
            yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise


@contextmanager
def watched(
    run_dir: Path, spec: RunSpec, engine_name: str, deadlines: Deadlines | None = None, say: Say | None = None
) -> Iterator[Following]:
    """The display of a run, whose lines `say` takes if it is given, and what else is needed to follow it."""
    has_events = engine(engine_name).FAMILY is None
    with View(run_dir, name=spec.name, planned_steps=spec.step_limit, has_events=has_events, say=say) as view:
        yield Following(deadlines or deadlines_for(spec), view.update, view.say)


class View:
    """The display of one run; a context manager, fed by `update`. Rank 0's events are the run's.

    Without them (`has_events`), only the number of steps is known, from the agents. `say` takes the lines in the place
    of the console.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        name: str,
        planned_steps: int,
        has_events: bool = True,
        console: Console | None = None,
        say: Say | None = None,
    ) -> None:
        from rich.console import Console

        self._console = console or Console(highlight=False)
        self._to = say
        self._name = inert(name)
        self._planned = planned_steps
        self._tail = events.Tail(run_dir / "events-0.jsonl")
        self._started: events.RunStarted | None = None
        self._steps: list[events.Step] = []
        self._has_events, self._said_steps = has_events, 0
        self._said_ending = False
        self._silent: list[str] = []
        self._is_uncopied = False
        self._live: Live | None = None
        self._began = self._phase_began = time.monotonic()
        self._phase = ""

    def __enter__(self) -> View:
        # With FORCE_COLOR, which CI sets for colours in its log, rich takes any file for a terminal.
        forced = "FORCE_COLOR" in os.environ and not self._console.file.isatty()
        if self._to is None and self._console.is_terminal and not (self._console.is_dumb_terminal or forced):
            self._live = Live(self._console)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        live, self._live = self._live, None
        if live is not None:
            with suppress(OSError):  # the terminal has gone away
                live.end(f"step {self._steps[-1].step + 1}/{self._planned}  {self._figures()}" if self._steps else "")

    def update(self, progress: Progress) -> None:
        """Takes in the new events and the launcher's progress, and shows them."""
        for event in self._tail.read():
            self._take(event)
        self._say_silent_hosts(progress)
        self._say_uncopied(progress)
        # Of a run without events, or whose events are not here, the agents know how far it is.
        by_agents = 0 if self._has_events and not progress.uncopied else _steps_done(progress.last_step)
        if self._live is not None:
            with suppress(OSError):  # a closed terminal is a signal, which is heeded elsewhere
                self._live.draw(self._picture(progress, by_agents, self._live.size()[0]))
        elif (stopping := _stopping(progress)) and not self._said_ending:
            self._said_ending = True
            self.say(stopping)
        elif by_agents // self._every > self._said_steps // self._every:
            self._said_steps = by_agents
            self.say(f"step {by_agents}/{self._planned}")

    def _say_silent_hosts(self, progress: Progress) -> None:
        """Prints once which hosts are silent, and why if it is known; and that they are back."""
        silent = [host for host, seconds in progress.silent.items() if seconds > QUIET_SECONDS]
        silent = list(dict.fromkeys([*silent, *progress.unreached]))
        if silent != self._silent:
            self._silent = silent
            whys = "".join(f" ({why})" for why in list(progress.unreached.values())[:1])
            says = f"nothing is heard from {_named(silent)}; waiting{whys}" if silent else "all hosts are heard again"
            self.say(says)

    def _say_uncopied(self, progress: Progress) -> None:
        """Prints once that files of the hosts cannot be copied here, and that they are again."""
        if bool(progress.uncopied) == self._is_uncopied:
            return
        self._is_uncopied = bool(progress.uncopied)
        if self._is_uncopied:
            why = next(iter(progress.uncopied.values()))
            self.say(
                f"what the hosts write cannot be copied here: {why}. The run goes on there, and its progress is still "
                "reported; copying resumes by itself"
            )
        else:
            self.say("all that the hosts have written is copied again")

    def _take(self, event: events.Event) -> None:
        if isinstance(event, events.RunStarted):
            self._started = event
            self._planned = min(self._planned, event.planned_steps or self._planned)  # epochs may be over sooner
            if self._live is None:
                self.say(self._headline())
        elif isinstance(event, events.Step):
            self._steps.append(event)
            if self._live is None and self._worth_a_line(event.step):
                self.say(f"step {event.step + 1}/{self._planned}  {self._figures()}")

    def say(self, line: str) -> None:
        """Prints a line, above the display where there is one."""
        if self._to is not None:
            self._to(inert(line))
            return
        with dispensable():
            if self._live is not None:
                self._live.say(inert(line))
                return
            print(inert(line), file=self._console.file, flush=True)

    @property
    def _every(self) -> int:
        return max(1, self._planned // LINES)

    def _worth_a_line(self, step: int) -> bool:
        return step == 0 or (step + 1) % self._every == 0 or step + 1 == self._planned

    def _headline(self) -> str:
        started = self._started
        if started is None:
            return self._name
        return (
            f"{self._name}: {short_number(started.num_parameters or 0)} parameters on {started.num_devices} × "
            f"{inert(started.device_kind)} in {started.num_processes} "
            f"{'process' if started.num_processes == 1 else 'processes'}"
        )

    def _figures(self) -> str:
        """The loss, and from the last steps (except the first, which is slower) tokens/s, step time and time left."""
        last, recent = self._steps[-1], [step.seconds for step in self._steps[1:][-WINDOW:] if step.seconds]
        parts = ["loss unknown" if last.loss is None else f"loss {last.loss:.3f}"]
        if recent:
            seconds = statistics.median(recent)
            if last.tokens:
                parts.append(f"{last.tokens / seconds:,.0f} tokens/s")
            parts += [f"{seconds:.3f} s/step", f"{clock(seconds * (self._planned - last.step - 1))} left"]
        return "  ".join(parts)

    def _picture(self, progress: Progress, by_agents: int, columns: int) -> list[Line]:
        """The lines of the display: what is run, how far it is, its figures, and the state of its nodes."""
        done = max(self._steps[-1].step + 1 if self._steps else 0, by_agents)
        phase, now = _phase(progress, done), time.monotonic()
        if phase != self._phase:
            self._phase, self._phase_began = phase, now
        lines: list[Line] = [(self._headline(), "bold")]
        if done:
            share, said = done / self._planned, "" if phase == TRAINING else f"{phase}  "
            counted = f"{said}step {done:,}/{self._planned:,}  {share:4.0%}  {clock(now - self._began)}"
            lines.append((f"{gauge(share, columns - len(counted) - 3)}  {counted}".lstrip(), "green"))
        else:
            lines.append((f"{phase}  {clock(now - self._phase_began)}", "cyan"))
        if self._steps:
            lines.append((self._figures(), ""))
        if progress.missing:
            lines.append((f"no sign yet of {_named(progress.missing)}", "dim"))
        if len(progress.processes) > 1:
            lines += [(row, "dim") for row in _process_rows(progress)]
        return lines


def _stopping(progress: Progress) -> str:
    """The reason that the processes are being stopped; "" while they are not."""
    ending = progress.ending
    return f"stopping: {ending.reason.replace('_', ' ')}" if ending and ending.reason != "completed" else ""


def _phase(progress: Progress, done: int) -> str:
    """The phase of the run; before its first step, as its first process says."""
    if stopping := _stopping(progress):
        return stopping
    if done:
        return TRAINING
    if not progress.processes:
        return "starting"
    said = STARTING.fullmatch(progress.processes[0][1]["last_line"])
    return said[1] if said else "starting up"


def _named(hosts: Sequence[str]) -> str:
    more = f" and {len(hosts) - ROWS:,} more" if len(hosts) > ROWS else ""
    return inert(", ".join(hosts[:ROWS]) + more)


def _process_rows(progress: Progress) -> list[str]:
    """A line for each process; of many, for those that do not run or are behind the others."""

    def urgency(at: tuple[str, dict[str, Any]]) -> tuple[bool, int, int]:
        runs = at[1]["state"] == "running" and not at[1]["suspended"]
        return runs, _steps_done(at[1]["last_step"]), at[1]["rank"]

    shown = progress.processes if len(progress.processes) <= ROWS else sorted(progress.processes, key=urgency)[:ROWS]
    rows = []
    for host, process in shown:
        state, steps = "suspended" if process["suspended"] else process["state"], _steps_done(process["last_step"])
        silent = progress.silent.get(host, 0.0)
        unheard = f", not heard for {silent:.0f} s" if silent > QUIET_SECONDS else ""
        rows.append(f"rank {process['rank']} on {inert(host)}: {state}{f', step {steps}' if steps else ''}{unheard}")
    left = len(progress.processes) - len(shown)
    return [*rows, f"and {left:,} more"] if left else rows


def _steps_done(last_step: int | None) -> int:
    return 0 if last_step is None else last_step + 1
