"""The display of a running run: live on a terminal, else a line now and then."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from seatrial import events
from seatrial.console import Say, inert, short_number
from seatrial.engines import engine
from seatrial.launch.deadlines import Deadlines, deadlines_for
from seatrial.launch.follow import Following
from seatrial.launch.progress import Progress
from seatrial.runs.mirror import NO_ROOM
from seatrial.spec import RunSpec

if TYPE_CHECKING:
    from rich.console import Console, Group

LINES = 10  # without a terminal, about so many over the whole run
WINDOW = 20  # steps behind the figures shown
REFRESHES_PER_SECOND = 5
QUIET_SECONDS = 20.0  # after which a silent host is reported
ROWS = 8  # of processes on a terminal; of more, those that are behind


@contextmanager
def _full_disk_ignored() -> Iterator[None]:
    """The output may be a file on a full disk, which is no reason to stop following a run."""
    try:
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


class Tail:
    """The new events of a growing file, read from where the last look ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[events.Event]:
        """The events whose lines were completed since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                complete, newline, _ = file.read().rpartition(b"\n")
        except OSError:  # not there yet, or not to be read just now
            return []
        self._offset += len(complete) + len(newline)
        found = []
        for line in complete.decode("utf-8", "replace").split("\n"):
            with suppress(ValueError):  # a damaged line is left to `judge`; the run goes on
                found.append(events.loads(line))
        return found


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
        self._tail = Tail(run_dir / "events-0.jsonl")
        self._started: events.RunStarted | None = None
        self._steps: list[events.Step] = []
        self._has_events, self._said_steps = has_events, 0
        self._said_ending = False
        self._silent: list[str] = []
        self._is_uncopied = False
        self._live: Any = None

    def __enter__(self) -> View:
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        if self._to is None and self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(bar_width=None), MofNCompleteColumn(), TimeElapsedColumn(),
                console=self._console, expand=True,
            )  # fmt: skip
            self._task = self._bar.add_task("starting", total=self._planned)
            self._live = Live(self._bar, console=self._console, refresh_per_second=REFRESHES_PER_SECOND)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, progress: Progress) -> None:
        """Takes in the new events and the launcher's progress, and shows them."""
        for event in self._tail.read():
            self._take(event)
        self._say_silent_hosts(progress)
        self._say_uncopied(progress)
        ending = progress.ending if progress.ending and progress.ending.reason != "completed" else None
        # Of a run without events, or whose events are not here, the agents know how far it is.
        by_agents = 0 if self._has_events and not progress.uncopied else _steps_done(progress.last_step)
        if self._live is not None:
            self._show(progress, by_agents)
        elif ending and not self._said_ending:
            self._said_ending = True
            self.say(f"stopping: {ending.reason.replace('_', ' ')}")
        elif by_agents // self._every > self._said_steps // self._every:
            self._said_steps = by_agents
            self.say(f"step {by_agents}/{self._planned}")

    def _show(self, progress: Progress, by_agents: int) -> None:
        doing = "training" if self._steps or by_agents else "compiling" if progress.processes else "starting"
        done = max(self._steps[-1].step + 1 if self._steps else 0, by_agents)
        if progress.ending and progress.ending.reason != "completed":
            doing = "stopping"
        self._bar.update(self._task, completed=done, description=doing)
        self._live.update(self._picture(progress))

    def _say_silent_hosts(self, progress: Progress) -> None:
        """Prints once which hosts are silent, and that they are back."""
        silent = [host for host, seconds in progress.silent.items() if seconds > QUIET_SECONDS]
        if silent != self._silent:
            self._silent = silent
            more = f" and {len(silent) - ROWS:,} more" if len(silent) > ROWS else ""
            hosts = ", ".join(silent[:ROWS]) + more
            self.say(f"nothing is heard from {hosts}; waiting" if silent else "all hosts are heard again")

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
            if self._live is not None:
                self._bar.update(self._task, total=self._planned)
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
        with _full_disk_ignored():
            self._console.print(inert(line), markup=False, soft_wrap=True)

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
            left = round(seconds * (self._planned - last.step - 1))
            parts += [f"{seconds:.3f} s/step", f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"]
        return "  ".join(parts)

    def _picture(self, progress: Progress) -> Group:
        from rich.console import Group
        from rich.text import Text

        def line(text: str, style: str = "") -> Text:
            return Text(text, style=style, overflow="ellipsis", no_wrap=True)

        rows: list[Any] = [line(self._headline(), "bold"), self._bar]
        if self._steps:
            rows.append(line(self._figures()))
        if len(progress.processes) > 1:
            rows += [line(row, "dim") for row in _process_rows(progress)]
        return Group(*rows)


def _process_rows(progress: Progress) -> list[str]:
    """A line for each process; of many, for those that do not run or are behind the others."""

    def urgency(at: tuple[str, dict[str, Any]]) -> tuple[bool, int, int]:
        runs = at[1]["state"] == "running" and not at[1]["suspended"]
        return runs, _steps_done(at[1]["last_step"]), at[1]["rank"]

    shown = progress.processes if len(progress.processes) <= ROWS else sorted(progress.processes, key=urgency)[:ROWS]
    rows = []
    for host, process in shown:
        state, steps = "suspended" if process["suspended"] else process["state"], _steps_done(process["last_step"])
        rows.append(f"rank {process['rank']} on {host}: {state}{f', step {steps}' if steps else ''}")
    left = len(progress.processes) - len(shown)
    return [*rows, f"and {left:,} more"] if left else rows


def _steps_done(last_step: int | None) -> int:
    return 0 if last_step is None else last_step + 1
