"""What a person sees while a run goes on: a live display on a terminal, else a line now and then."""

from __future__ import annotations

import statistics
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from seatrial import events
from seatrial.launch.follow import Progress

if TYPE_CHECKING:
    from rich.console import Console, Group

LINES = 10  # without a terminal, about so many over the whole run
WINDOW = 20  # steps behind the figures shown


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
        except FileNotFoundError:
            return []
        self._offset += len(complete) + len(newline)
        return [events.loads(line) for line in complete.decode("utf-8", "replace").splitlines() if line]


def printable(text: str) -> str:
    """The text with whatever could steer a terminal made visible."""
    return "".join(c if c.isprintable() else "�" for c in text)


class View:
    """The display of one run; a context manager, fed by `update`."""

    def __init__(self, run_dir: Path, *, name: str, planned_steps: int, console: Console | None = None) -> None:
        from rich.console import Console

        self._console = console or Console(highlight=False)
        self._tail = Tail(run_dir / "events-0.jsonl")
        self._name = printable(name)
        self._planned = planned_steps
        self._started: events.RunStarted | None = None
        self._steps: list[events.Step] = []
        self._live: Any = None

    def __enter__(self) -> View:
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(bar_width=None), MofNCompleteColumn(), TimeElapsedColumn(),
                console=self._console, expand=True,
            )  # fmt: skip
            self._task = self._bar.add_task("starting", total=self._planned)
            self._live = Live(self._bar, console=self._console, refresh_per_second=5, transient=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, progress: Progress) -> None:
        """Takes in the new events and what the launcher sees, and shows them."""
        new = self._tail.read()
        for event in new:
            if isinstance(event, events.RunStarted):
                self._started = event
                if self._live is None:
                    self._console.print(self._headline(), markup=False, soft_wrap=True)
            elif isinstance(event, events.Step):
                self._steps.append(event)
                if self._live is None and self._worth_a_line(event.step):
                    self._console.print(f"step {event.step + 1}/{self._planned}  {self._figures()}", soft_wrap=True)
        if self._live is not None:
            self._bar.update(
                self._task,
                completed=self._steps[-1].step + 1 if self._steps else 0,
                description="training" if self._steps else "compiling" if progress.processes else "starting",
            )
            self._live.update(self._picture(progress))

    def _worth_a_line(self, step: int) -> bool:
        every = max(1, self._planned // LINES)
        return step == 0 or (step + 1) % every == 0 or step + 1 == self._planned

    def _headline(self) -> str:
        started = self._started
        if started is None:
            return self._name
        plural = "" if started.num_processes == 1 else "es"
        return (
            f"{self._name}: {(started.num_parameters or 0) / 1e6:,.1f} M parameters on {started.num_devices} × "
            f"{printable(started.device_kind)} in {started.num_processes} process{plural}"
        )

    def _figures(self) -> str:
        """Loss, and from the last steps (without the first, which is slower): tokens/s, step time, time left."""
        last, recent = self._steps[-1], [s.seconds for s in self._steps[1:][-WINDOW:] if s.seconds]
        parts = [f"loss {last.loss:.3f}" if last.loss is not None else "loss unknown"]
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

        rows: list[Any] = [Text(self._headline(), style="bold", overflow="ellipsis", no_wrap=True), self._bar]
        if self._steps:
            rows.append(Text(self._figures(), overflow="ellipsis", no_wrap=True))
        if len(progress.processes) > 1:
            rows += [
                Text(
                    f"rank {process['rank']} on {host}: {process['state']}, {process['log_bytes']:,} bytes of log"
                    + (", SUSPENDED" if process["suspended"] else ""),
                    style="dim",
                    overflow="ellipsis",
                    no_wrap=True,
                )
                for host, process in progress.processes
            ]
        return Group(*rows)
