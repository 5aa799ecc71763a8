"""A run that goes on, looked at again and again: its step, loss, speed, nodes, and what happened last."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from seatrial import events
from seatrial.errors import InputError
from seatrial.events import Checkpoint, Eval, Event, Fault, RunEnded, RunStarted, Step
from seatrial.launch.display import STARTING
from seatrial.publish.last_steps import LastSteps
from seatrial.runs.documents import Documents
from seatrial.runs.files import read_object
from seatrial.runs.status import GOES_ON, STATUS_FILE, state_of
from seatrial.spec import RunSpec
from seatrial.verdict import show

TEXT_CHARACTERS = 160


@dataclass(frozen=True, kw_only=True)
class Live:
    """A run that goes on, as far as it is known; None: not known.

    `state` is one of GOES_ON, `phase` what it does before its first step. `step` counts the steps that are done;
    `seconds` is the median of the last ones, as far as events tell it, and speed and `eta_seconds` follow from it.
    `step_at`, `event_at` and `heartbeat` are seconds since the epoch. `nodes_up` are the nodes whose processes run, of
    `nodes`.
    """

    directory: str
    state: str
    phase: str
    step: int
    planned: int | None
    loss: float | None
    seconds: float | None
    tokens_per_second: float | None
    tokens_per_second_per_device: float | None
    mfu: float | None
    eta_seconds: float | None
    step_at: float | None
    heartbeat: float | None
    nodes_up: int
    nodes: int
    event: str
    event_at: float | None
    attempt: int
    is_trouble: bool

    def as_dict(self) -> dict[str, Any]:
        """As plain data; a loss that is not finite is text."""
        plain: dict[str, Any] = events.encode(asdict(self))
        return plain


class Following:
    """One run, from look to look."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._tails = [events.Tail(run_dir / f"events-{name}.jsonl") for name in ("0", "launcher")]
        self._spec: RunSpec | None = None
        with suppress(InputError):
            self._spec = Documents(run_dir).spec()
        self._steps = LastSteps(self._spec)
        self._event: Event | None = None
        self._attempt = 1

    def look(self, now: float) -> Live | None:
        """The run as it is now; None if it is over, or its status cannot be read."""
        try:
            status = read_object(self._run_dir / STATUS_FILE)
        except (OSError, ValueError):
            return None
        state = state_of(self._run_dir, status, now)
        if state not in GOES_ON:
            return None
        for tail in self._tails:
            for event in tail.read():
                self._see(event)
        return self._as_live(status, state)

    def _see(self, event: Event) -> None:
        if isinstance(event, RunStarted):  # nothing is known of the attempt yet
            self._steps, self._event, self._attempt = LastSteps(self._spec), None, event.attempt
        self._steps.see(event)
        is_newer = self._event is None or event.wall_time >= self._event.wall_time
        if not isinstance(event, Step) and is_newer:
            self._event = event

    def _as_live(self, status: Mapping[str, Any], state: str) -> Live:
        planned = min((n for n in (self._steps.planned, _whole(status.get("planned_steps"))) if n), default=None)
        last = self._steps.typical
        step = max(-1 if last is None else last.step, _whole(status.get("last_step"), -1)) + 1
        seconds = last.seconds if last else None
        figures = self._steps.figures(last) if last and seconds is not None else {}
        processes = [each for each in _list(status.get("processes")) if isinstance(each, dict)]
        hosts = {str(each.get("host")) for each in processes}
        down = {str(each.get("host")) for each in processes if each.get("state") != "running" or each.get("suspended")}
        said = STARTING.fullmatch(str(processes[0].get("last_line"))) if processes and not step else None
        return Live(
            directory=str(self._run_dir),
            state=state,
            phase=said[1] if said else "",
            step=step,
            planned=planned,
            loss=last.loss if last else None,
            seconds=seconds,
            tokens_per_second=figures.get("tokens_per_second_total"),
            tokens_per_second_per_device=figures.get("tokens_per_second_per_device"),
            mfu=figures.get("mfu"),
            eta_seconds=seconds * max(0, planned - step) if seconds and planned else None,
            step_at=last.wall_time if last else None,
            heartbeat=_real(status.get("heartbeat")),
            nodes_up=len(hosts - down),
            nodes=max(len(hosts), self._spec.topology.num_nodes if self._spec else 0),
            event=_told(self._event)[:TEXT_CHARACTERS] if self._event else "",
            event_at=self._event.wall_time if self._event else None,
            attempt=self._attempt,
            is_trouble=isinstance(self._event, Fault),
        )


def _told(event: Event) -> str:
    """An event in a few words."""
    if isinstance(event, Checkpoint):
        return f"checkpoint {'saved' if event.action == 'save' else 'restored'} at step {event.step}"
    if isinstance(event, Eval):
        return f"evaluation at step {event.step}" + ("" if event.loss is None else f": loss {show(event.loss)}")
    if isinstance(event, Fault):
        return f"{event.fault.replace('_', ' ')}: {event.text or event.where}"
    if isinstance(event, RunEnded):
        return f"ended: {event.reason.replace('_', ' ')}"
    return f"attempt {event.attempt} started" if isinstance(event, RunStarted) and event.attempt > 1 else "started"


def _whole(value: Any, otherwise: int = 0) -> int:
    return value if type(value) is int and abs(value) < 2**53 else otherwise


def _real(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and abs(value) < 2**53 else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
