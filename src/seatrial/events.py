"""The facts of a run, one JSON object per line: `events-<process>.jsonl`.

Six kinds. Units stand in names; nothing here is derived, so any later stage can be redone from the file.
Non-finite numbers are written as the strings "nan", "inf", "-inf", because JSON has none.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, TypeVar

from seatrial.runs.files import append_to, open_regular, read_lines

if TYPE_CHECKING:
    from pydantic import TypeAdapter

VERSION = 1
MOST_BYTES = 1 << 20  # of a file that grows, in one look: of more, the last
HEAD_BYTES = 64 << 10  # in which a run says that it has started
FIRST_CLOCK = 946_684_800.0  # the year 2000: a wall time before it counts seconds, or comes from no clock
NO_CLOCK = 1e11  # a wall time from there on, in the year 5138, comes from none either
E = TypeVar("E", bound="Event")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Event:
    """Common to all events: the process (-1: the launcher), and the time by both clocks (seconds)."""

    kind: ClassVar[str]
    process: int = 0
    wall_time: float = field(default_factory=time.time)
    monotonic_time: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    """The process knows what it will do; written once per attempt, before its first step. None: not reported.

    `facts` holds what the report shows of it: versions, mesh, device memory, compile seconds and so on. A reader of
    logs from other trainers adds `family`, `source` (the file), and `clock`: "log" if the wall times are in the log,
    "counted" if they only add up the seconds of the steps; `unannounced` if no line says that a program began,
    `start_inferred` if only such lines do, and no step follows, `steps_inferred` if the step numbers are those of a
    progress bar, and `steps_redrawn` if each is the description of one. `log` is "empty" or "no steps" for a process
    that reports none, though its log should. `objective` is what the loss is of, where it is no cross-entropy and need
    not fall: "policy"; `loss_optional` if the program may print none. `tokens_counted` says which tokens the steps
    count: "all" of the batch, or only those in the "loss", without padding and prompts.
    """

    kind: ClassVar[str] = "run_started"
    run: str = ""
    attempt: int = 1
    host: str = ""
    num_processes: int | None = None
    num_devices: int | None = None
    device_kind: str = ""  # as the runtime names it
    planned_steps: int | None = None
    tokens_per_step: int | None = None
    num_parameters: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Step(Event):
    """One optimizer step, as one process saw it. None: not reported, which is not the same as 0.

    `seconds` is the time from the previous step's end to this one's; `data_seconds` is what of it was spent waiting
    for data. A log of every n-th step gives the mean of the n. `reported` keeps a log's own figures, by the
    names of `REPORTED`; other names there are an objective's own, such as a loss beside the loss that is not finite.
    `phase` says why the time of a step does not count: "profiler", "batch_rampup"; else "".
    """

    kind: ClassVar[str] = "step"
    step: int
    seconds: float | None = None
    tokens: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    data_seconds: float | None = None
    reported: Mapping[str, float] = field(default_factory=dict)
    phase: str = ""


# What another trainer's log may report of a step in addition to the fields of `Step`: name → unit.
REPORTED: dict[str, str] = {
    "tflops_per_second_per_device": "TFLOP/s",
    "tokens_per_second_per_device": "tokens/s",
    "samples_per_second_total": "samples/s",
    "steps_per_second": "steps/s",
    "mfu": "fraction",
    "memory_fraction": "fraction",
    "memory_bytes": "bytes",
    "global_batch_size": "sequences",
    "consumed_samples": "sequences",
    "consumed_tokens": "tokens",
    "skipped_steps": "steps",  # since the last line: the optimizer did nothing, because of the loss scale
    "nan_steps": "steps",  # since the last line
    "loss_scale": "",
    "params_norm": "",
    "perplexity": "",
    "energy_per_device": "J",
    "power_per_device": "W",
}


@dataclass(frozen=True, kw_only=True)
class Eval(Event):
    """The loss on validation data. Our trainer's `step` is the number of steps done; other logs count their own way.

    Where something else than a loss decides, `score` says what it came to and what it has to, and `shortfall` how far
    it is from that, as a share of it: at most 0 if it is reached, NaN if it is no number.
    """

    kind: ClassVar[str] = "eval"
    step: int
    loss: float | None = None
    seconds: float | None = None
    score: str | None = None
    shortfall: float | None = None


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Event):
    """`action`: "save" or "restore"."""

    kind: ClassVar[str] = "checkpoint"
    action: str
    step: int
    seconds: float | None = None
    bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Fault(Event):
    """Something broke. `fault` names its class, `where` the node, rank or file, `line` and `text` the evidence.

    `facts` holds what the text says of it, as far as it is read: `rank`, `exit_code`, `sequence`, `operation`.
    """

    kind: ClassVar[str] = "fault"
    fault: str
    where: str = ""
    line: int | None = None
    text: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunEnded(Event):
    """`reason`: completed, stopped_early, time_spent, aborted, non_finite_loss, died, no_progress, interrupted or
    could_not_run.

    stopped_early: an evaluation reached what the run was for; time_spent: the trainer ended it at a limit of time of
    its own, which is not the scheduler's; aborted: the run gave up before.

    `evidence` is the line of another trainer's log that says so, `totals` what it says of the whole run, by the names
    of `TOTALS`.
    """

    kind: ClassVar[str] = "run_ended"
    reason: str
    exit_code: int | None = None
    evidence: str = ""
    totals: Mapping[str, float] | None = None


IN_ORDER = ("completed", "stopped_early", "time_spent")  # reasons to end that are none to worry about

# What the end of another trainer's log may say of the whole run, from its first step to its last, with all that came
# between: name → unit.
TOTALS: dict[str, str] = {
    "run_seconds": "s",
    "steps": "",
    "steps_per_second": "steps/s",
    "samples_per_second_total": "samples/s",
    "epochs": "",
    "planned_epochs": "",  # that the run was to do, and did
    "planned_steps": "",  # that the run was to do
}


KINDS: dict[str, type[Event]] = {k.kind: k for k in (RunStarted, Step, Eval, Checkpoint, Fault, RunEnded)}


def encode(value: Any) -> Any:
    """Plain data that JSON can carry: non-finite numbers as strings, tuples as lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): encode(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(v) for v in value]
    return value


def decode(kind: Callable[..., T], data: Mapping[str, Any]) -> T:
    """The inverse of `encode`, for a dataclass. Raises pydantic.ValidationError for anything else."""
    decoded: T = _adapter(kind).validate_python(dict(data))
    return decoded


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Made once, for it takes longer than all else that is done about a run."""
    from pydantic import TypeAdapter  # late: only the border pays for it

    return TypeAdapter(kind)


def _number(value: Any) -> float:
    if isinstance(value, str) and value in ("nan", "inf", "-inf"):
        return float(value)
    if type(value) not in (int, float):  # a bool is an int to isinstance
        raise TypeError("not a number")
    return value  # type: ignore[no-any-return]


def _is(kind: type, what: str) -> Callable[[Any], Any]:
    """A reader of values of exactly this type."""

    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"not {what}")
        return value

    return read


_mapping = _is(dict, "a mapping")
# Annotation of a field → what reads its JSON value, or raises TypeError.
_READERS: dict[str, Callable[[Any], Any]] = {
    "int": _is(int, "an integer"),  # and no bool
    "float": _number,
    "str": _is(str, "text"),
    "Mapping[str, Any]": _mapping,
    "Mapping[str, float]": lambda value: {name: _number(number) for name, number in _mapping(value).items()},
}
# The least value of a field.
LEAST = {"step": 0, "attempt": 1, "num_processes": 1, "num_devices": 1}


def trusted(kind: type[E], fields: dict[str, Any]) -> E:
    """The event of `kind` with exactly these fields, all of them, unchecked: a third of the price of its constructor.

    For readers that make an event of every line of a long log. Keeps `fields`; do not change it afterwards.
    """
    event = object.__new__(kind)
    object.__setattr__(event, "__dict__", fields)
    return event


def _fields(kind: type[Event]) -> dict[str, Callable[[Any], Any]]:
    return {f.name: _READERS[str(f.type).removesuffix(" | None")] for f in dataclasses.fields(kind)}


_FIELDS = {name: _fields(kind) for name, kind in KINDS.items()}
# Of each kind the values of the fields that a line may leave out, and the names of the others.
_DEFAULTS = {name: {f.name: f.default for f in dataclasses.fields(kind)} for name, kind in KINDS.items()}
_NEEDED = {
    name: {field for field, default in values.items() if default is dataclasses.MISSING}
    for name, values in _DEFAULTS.items()
}
_AT_LEAST = {name: [(each, least) for each, least in LEAST.items() if each in _FIELDS[name]] for name in KINDS}


def dumps(event: Event) -> str:
    """One event as one line of JSON, without its newline; fields that are None are left out."""
    fields = {"v": VERSION, "kind": event.kind, **{k: v for k, v in vars(event).items() if v is not None}}
    try:
        return json.dumps(fields, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError):  # numbers that are not finite, mappings that are no dictionaries
        return json.dumps(encode(fields), ensure_ascii=False)


def loads(line: str) -> Event:
    """The inverse of `dumps`. Unknown fields are ignored, so that an older reader reads a newer file.

    Raises ValueError for a line that is not an event.
    """
    try:
        data = json.loads(line)
    except RecursionError as error:
        raise ValueError(f"not an event, but thousands of brackets: {line[:80]!r}") from error
    if not isinstance(data, dict) or data.get("kind") not in list(KINDS):  # a list: the value may not be hashable
        raise ValueError(f"not an event: {line[:80]!r}")
    kind = data["kind"]
    read = _FIELDS[kind]
    try:
        values = {name: read[name](value) for name, value in data.items() if name in read and value is not None}
        is_whole = _NEEDED[kind] <= values.keys()
        event = trusted(KINDS[kind], {**_DEFAULTS[kind], **values}) if is_whole else KINDS[kind](**values)
    except TypeError as error:
        raise ValueError(f"a broken or incomplete {kind} event ({error}): {line[:80]!r}") from error
    if not math.isfinite(event.wall_time) or any(values.get(name, least) < least for name, least in _AT_LEAST[kind]):
        raise ValueError(f"a {kind} event with an impossible number: {line[:80]!r}")
    return event


class Writer:
    """Appends events to one file; every line is flushed, so a killed process loses none that it wrote.

    A torn line at the end of a file that is there (its writer was killed) is taken away.
    """

    def __init__(self, path: Path) -> None:
        file = append_to(path)
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        self._file: IO[str] = io.TextIOWrapper(file, encoding="utf-8")

    def write(self, event: Event) -> None:
        self._file.write(dumps(event) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> Iterator[Event]:
    """The events of one file in order; a torn last line (the writer was killed) is left out."""
    return read_from(read_lines(path))


def read_from(lines: Iterable[str]) -> Iterator[Event]:
    """`read`, of lines of a file."""
    for line in lines:
        try:
            yield loads(line)
        except ValueError:
            if line.endswith("\n"):
                raise


class Tail:
    """The new events of a growing file that another user may have made: regular files only, and a bounded amount."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._file = path, 0, (0, 0)

    def read(self) -> Iterator[Event]:
        """The events whose lines were completed since the last look; of a file that is replaced, all over again."""
        try:
            with open_regular(self._path) as file:
                found = os.fstat(file.fileno())
                if (found.st_dev, found.st_ino) != self._file or found.st_size < self._offset:
                    self._file, self._offset = (found.st_dev, found.st_ino), 0
                parts = [b""]
                if found.st_size - self._offset > MOST_BYTES:
                    if self._offset == 0:
                        parts.append(file.read(HEAD_BYTES).rpartition(b"\n")[0])
                    self._offset = found.st_size - MOST_BYTES
                    file.seek(self._offset)
                    self._offset += len(file.readline(MOST_BYTES))
                file.seek(self._offset)
                complete, newline, _ = file.read(MOST_BYTES).rpartition(b"\n")
        except OSError:  # not there yet, or nothing to be read
            return
        self._offset += len(complete) + len(newline)
        for line in b"\n".join([*parts, complete]).decode("utf-8", "replace").split("\n"):
            with suppress(ValueError):  # judging says what is wrong with a damaged line
                yield loads(line)
