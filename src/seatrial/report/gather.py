"""A judged run → RunReport: everything that a report shows, whatever its format; from memory, or its directory.

A run that went wrong leaves pieces out, so each piece is read by itself; what is missing or cannot be read is named in
`missing`, and the rest is shown. Text that the run or its user wrote is made inert here, once: no control character and
no escape sequence gets past this module. (Markup is the formats' business.)
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from seatrial import metrics as measuring
from seatrial import spec as specs
from seatrial import verdict as judging
from seatrial.console import ESCAPE_SEQUENCES, inert, show_value
from seatrial.errors import Mark, Problem
from seatrial.events import FIRST_CLOCK, NO_CLOCK, Eval, Event, RunStarted, Step
from seatrial.metrics import Metrics, Performance
from seatrial.metrics.record import Records
from seatrial.recording import Recording, read_run
from seatrial.report.ranks import RankTimes, rank_times
from seatrial.runs import telemetry
from seatrial.runs.documents import Documents, reduction_of
from seatrial.runs.telemetry import Observed
from seatrial.shrink.rehearsal import Change
from seatrial.spec import Origin, Resolved, RunSpec
from seatrial.verdict import Check, Verdict, cvs_compat
from seatrial.verdict.cvs_compat import CvsAnswer

MAX_TAILS = 4
TAIL_LINES = 40
TAIL_BYTES = 64 << 10
LINE_CHARACTERS = 500
TEXT_CHARACTERS = 4000  # of any other text; the longest flags of a configuration are a few hundred

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Value:
    """One resolved value of the spec that was asked for, and where it came from."""

    path: str
    value: str
    kind: str  # of the origin: "file", "override", "derived" or "default"
    place: str  # file:line:column, where there is one
    key: str
    written: str
    note: str


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process of the plan."""

    rank: int
    host: str
    command: str
    log: str


@dataclass(frozen=True, kw_only=True)
class Tail:
    """The end of a process's log."""

    log: str
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """The content of a run's report.

    `spec` is what was run (after a rehearsal), `steps` the record that counts and `attempts` what it was made of,
    `evals` its evaluations, `ranks` the step times of all ranks where there are several, `changes` those of a
    rehearsal, as texts, `tails` the ends of the first few logs of a run that broke, the culprit's first, `nodes` their
    telemetry. `sources` are the logs that a run was read from, `family` their trainer, `against` the configuration
    they were judged by, `cvs` ROCm CVS's own answer; the time to train is estimated for `tokens`, the cost by
    `price_per_device_hour`, in the currency of that price.
    """

    directory: str
    name: str
    started_at: float | None  # seconds since the epoch
    engine: str
    on: str
    rehearsal: str  # what the run was, where it was not the one asked for; else empty
    spec: RunSpec | None
    values: tuple[Value, ...]
    changes: tuple[Change, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    processes: tuple[Process, ...]
    tails: tuple[Tail, ...]
    nodes: tuple[Observed, ...]
    started: tuple[RunStarted, ...]
    steps: tuple[Step, ...]
    attempts: tuple[tuple[Step, ...], ...]
    evals: tuple[Eval, ...]
    ranks: RankTimes | None
    sources: tuple[str, ...]
    family: str
    against: str
    metrics: Metrics | None
    verdict: Verdict | None
    cvs: CvsAnswer | None
    tokens: float | None
    price_per_device_hour: float | None
    missing: tuple[str, ...]

    @property
    def performance(self) -> Performance | None:
        """The figures of its speed; None where nothing was measured."""
        return self.metrics.performance if self.metrics else None

    @property
    def checks(self) -> tuple[Check, ...]:
        """The checks of all axes; none where it was not judged."""
        axes = self.verdict.axes.values() if self.verdict else ()
        return tuple(check for axis in axes for check in axis.checks)


class _Pieces:
    """The contents of a run directory, piece by piece; what is missing or damaged is named in `missing`."""

    def __init__(self, documents: Documents) -> None:
        self.documents = documents
        self.missing: list[str] = []

    def read(self, name: str, read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except FileNotFoundError:
            self.missing.append(f"{name} is not there")
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            reason = str(error).splitlines()[0] if str(error) else repr(error)
            self.missing.append(f"{name} cannot be read: {clean(reason)}")
        return otherwise

    def document(self, name: str) -> dict[str, Any]:
        """A document of which every text is inert; empty where there is none."""
        return self.parsed(name, dict[str, Any], {})

    def parsed(self, name: str, parse: Callable[[dict[str, Any]], T], otherwise: T) -> T:
        return self.read(name, lambda: parse(_cleaned(self.documents[name])), otherwise)


def gather(
    run_dir: Path,
    record: Sequence[Event] | None = None,
    documents: Documents | None = None,
    *,
    tokens: float | None = None,
    price_per_device_hour: float | None = None,
) -> RunReport:
    """The report of a run; its events or documents are not read where `record` or `documents` has them.

    Without `tokens` or a price, those count that logs were judged with.
    Raises FileNotFoundError where there is no run directory.
    """
    if not run_dir.is_dir():
        raise FileNotFoundError(f"no run directory: {run_dir}")
    documents = documents or Documents(run_dir)
    pieces, of_logs = _Pieces(documents), documents.is_of_logs
    judged_by = pieces.document("judged.json") if of_logs else {}
    asked = pieces.document("spec.json") if not of_logs or judged_by.get("against") else {}
    plan = {} if of_logs else pieces.document("plan.json")
    verdict = pieces.parsed("verdict.json", judging.from_dict, None)
    metrics = pieces.parsed("metrics.json", measuring.from_dict, None)
    events = Recording.of(
        pieces.read("events-*.jsonl", lambda: read_run(run_dir), Recording.of([])) if record is None else record
    )
    if not events:
        pieces.missing.append("no process recorded an event")
    records = measuring.records(events)
    own = records.main
    processes: tuple[Process, ...] = pieces.read("the processes in plan.json", lambda: _processes(plan), ())
    broken = verdict is None or "fail" in (verdict.axes["completion"].status, verdict.axes["numerics"].status)
    culprit = metrics.completion.culprit if metrics else None
    name, holder = ("spec.json", asked) if of_logs else ("plan.json", plan)
    spec = pieces.read(f"the spec in {name}", lambda: specs.from_dict(holder["spec"]), None) if holder else None
    named = judged_by.get("sources", ())
    sources: tuple[str, ...] = pieces.read("the sources in judged.json", lambda: tuple(map(str, named)), ())
    return RunReport(
        directory=clean(run_dir.name),
        name=spec.name if spec else _name(run_dir, sources),
        started_at=_started_at(events),
        engine=str(plan.get("engine", "")),
        on=str(plan.get("on", "")),
        rehearsal=reduction_of(plan),
        spec=spec,
        values=pieces.read("the values in spec.json", lambda: _values(asked), ()) if asked else (),
        changes=pieces.read("the changes in plan.json", lambda: _changes(plan), ()),
        problems=pieces.read("the findings in spec.json", lambda: _problems(asked), ()),
        notes=tuple(str(note) for note in plan.get("notes", ())),
        processes=processes,
        tails=_tails(run_dir, processes, culprit.where if culprit else "") if broken else (),
        nodes=pieces.read("nodes/*/observed.jsonl", lambda: tuple(map(_cleaned_node, telemetry.read(run_dir))), ()),
        started=tuple(_cleaned_start(record.started) for record in records.by_process if record.started),
        steps=tuple(map(_cleaned_step, own.steps)),
        attempts=tuple(tuple(map(_cleaned_step, attempt)) for attempt in own.attempts),
        evals=tuple(e for e in events.others if isinstance(e, Eval) and e.process == own.process),
        ranks=pieces.read("the step times of the ranks", lambda: _ranks(records, spec, metrics), None),
        sources=sources,
        family=str(judged_by.get("family") or "").replace("auto", ""),
        against=str(judged_by.get("against") or ""),
        metrics=metrics,
        verdict=verdict,
        cvs=pieces.parsed("cvs.json", cvs_compat.from_dict, None) if documents.has("cvs.json") else None,
        tokens=tokens or _given(judged_by, "tokens"),
        price_per_device_hour=price_per_device_hour or _given(judged_by, "price_per_device_hour"),
        missing=tuple(pieces.missing),
    )


def _ranks(records: Records, spec: RunSpec | None, metrics: Metrics | None) -> RankTimes | None:
    found = rank_times(records, spec, metrics.performance) if metrics else None
    return found and replace(found, slowest=tuple(replace(slow, host=clean(slow.host)) for slow in found.slowest))


def _given(judged: Mapping[str, Any], name: str) -> float | None:
    """A number above 0 that the user gave for the report."""
    value = judged.get(name)
    return float(value) if isinstance(value, (int, float)) and 0 < value < math.inf else None


def _name(run_dir: Path, sources: Sequence[str]) -> str:
    """The name of a run that no configuration names: its logs, if it was read from some, else its directory."""
    more = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
    return sources[0].rpartition("/")[2] + more if sources else clean(run_dir.name)


def _started_at(events: Recording) -> float | None:
    """The time of the first event; None where a log without a clock gave the times, or where no calendar has it."""
    counted = any(isinstance(event, RunStarted) and event.facts.get("clock") == "counted" for event in events.others)
    times = events.times
    times = times[(times >= FIRST_CLOCK) & (times < NO_CLOCK)]
    return None if counted or not len(times) else float(times.min())


def clean(text: str) -> str:
    """Text from outside as one harmless line: without escape sequences, with control characters shown."""
    return inert(ESCAPE_SEQUENCES.sub("", text).replace("\t", "    "))


def _cleaned(data: Any) -> Any:
    """Plain data with every text in it made inert, and of a bearable length."""
    if isinstance(data, str):
        return _short(data, TEXT_CHARACTERS)
    if isinstance(data, Mapping):
        return {clean(str(key)): _cleaned(value) for key, value in data.items()}
    return [_cleaned(value) for value in data] if isinstance(data, (list, tuple)) else data


def _cleaned_step(step: Step) -> Step:
    return replace(step, phase=clean(step.phase)) if step.phase else step


def _cleaned_node(node: Observed) -> Observed:
    devices = {_short(name, LINE_CHARACTERS): device for name, device in node.devices.items()}
    for device in devices.values():
        device.model = _short(device.model, LINE_CHARACTERS)
        device.throttled = Counter({_short(reason, LINE_CHARACTERS): n for reason, n in device.throttled.items()})
    return replace(
        node,
        host=clean(node.host),
        lacks=_cleaned(node.lacks),
        devices=devices,
        kernel=[replace(line, text=_short(line.text, LINE_CHARACTERS)) for line in node.kernel],
        counters={(clean(place), clean(name)): counter for (place, name), counter in node.counters.items()},
    )


def _cleaned_start(started: RunStarted) -> RunStarted:
    return replace(started, **{name: _cleaned(getattr(started, name)) for name in ("host", "device_kind", "facts")})


def _values(asked: Mapping[str, Any]) -> tuple[Value, ...]:
    spec = specs.from_dict(asked["spec"])
    resolved = Resolved(spec=spec, origins={path: _origin(o) for path, o in asked["origins"].items()}, problems=())
    return tuple(
        Value(
            path=path,
            value=show_value(value),
            kind=origin.kind,
            place=str(origin.mark) if origin.mark else "",
            key=origin.key,
            written=origin.text,
            note=origin.note,
        )
        for path, value in specs.flatten(spec).items()
        for origin in (resolved.origin(path),)
    )


def _origin(data: Mapping[str, Any]) -> Origin:
    texts = {name: data.get(name, "") for name in ("key", "text", "note")}
    return Origin(kind=data["kind"], mark=_mark(data), **texts)


def _mark(data: Mapping[str, Any]) -> Mark | None:
    return Mark(file=data["file"], line=data["line"], column=data["column"]) if data.get("file") else None


def _changes(plan: Mapping[str, Any]) -> tuple[Change, ...]:
    return tuple(
        Change(path=c["path"], original=show_value(c["original"]), rehearsed=show_value(c["rehearsed"]), why=c["why"])
        for c in (plan.get("rehearsal") or {}).get("changes", ())
    )


def _problems(asked: Mapping[str, Any]) -> tuple[Problem, ...]:
    names = ("severity", "code", "path", "why", "fix")
    return tuple(
        Problem(mark=_mark(data), **{name: data[name] for name in names}) for data in asked.get("problems", ())
    )


def _processes(plan: Mapping[str, Any]) -> tuple[Process, ...]:
    return tuple(
        Process(rank=int(each["rank"]), host=each["host"], command=shlex.join(each["argv"]), log=each["log"])
        for each in plan.get("processes", ())
    )


def _tails(run_dir: Path, processes: Sequence[Process], culprit: str) -> tuple[Tail, ...]:
    """The last lines of the culprit's log and of the first few others."""
    ordered = sorted(processes, key=lambda process: (f"rank {process.rank} on {process.host}" != culprit, process.rank))
    tails = (Tail(log=process.log, lines=_last_lines(run_dir, process.log)) for process in ordered[:MAX_TAILS])
    return tuple(tail for tail in tails if tail.lines)


def _last_lines(run_dir: Path, log: str) -> tuple[str, ...]:
    """Nothing where the log is not there, or not inside the run directory."""
    path = (run_dir / log).resolve()
    if not path.is_relative_to(run_dir.resolve()) or not path.is_file():
        return ()
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL_BYTES))
        text = file.read().decode("utf-8", "replace")
    lines = text.splitlines()[1 if size > TAIL_BYTES else 0 :] or text.splitlines()
    return tuple(_short(line, LINE_CHARACTERS) for line in lines[-TAIL_LINES:])


def _short(text: str, most: int) -> str:
    """Text from outside made inert; of a long one the beginning, and how long it is."""
    cleaned = clean(text[: 4 * most])  # what is cleaned away is seldom more than that
    if len(text) <= 4 * most and len(cleaned) <= most:
        return cleaned
    return f"{cleaned[:most]}… ({len(text):,} characters)"
