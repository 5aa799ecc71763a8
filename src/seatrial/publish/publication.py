"""Makes a `Publication` of a judged run: parameters, points, figures, tags, files, and what tells it apart."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from seatrial import metrics as measuring
from seatrial import verdict as judging
from seatrial.command import MASK, is_secret, masked
from seatrial.errors import InputError
from seatrial.events import encode
from seatrial.metrics import Metrics
from seatrial.plan import leaves, without_secrets
from seatrial.publish.contract import Parameter, Point, Publication
from seatrial.report.gather import RunReport, clean
from seatrial.report.steps import STEPS, step_rows
from seatrial.runs.documents import Documents
from seatrial.spec import RunSpec
from seatrial.verdict import Verdict

ID_CHARACTERS = 16
FIRST_STEPS = 3
EVAL_LOSS = "eval_loss"
_FLOATS = [(place, column.name) for place, column in enumerate(STEPS) if column.type == "float64"]


def publication_of(report: RunReport, run_dir: Path) -> Publication:
    """The publication of a run. Raises InputError for one without metrics or verdict."""
    metrics, verdict = report.metrics, report.verdict
    if metrics is None or verdict is None:
        why = f"it has no verdict to publish: {'; '.join(report.missing) or 'it was not judged'}"
        raise InputError.single("not-judged", str(run_dir), why, f"judge it: seatrial judge {run_dir}")
    own_id, parameters, tags = _id_of(report, run_dir), parameters_of(report.spec), _tags(report, metrics, verdict)
    points = tuple(_points(report, metrics))
    judged = [judging.to_dict(verdict), measuring.to_dict(metrics)]
    everything = [own_id, parameters, tags, [vars(point) for point in points], judged]
    return Publication(
        id=own_id,
        digest=hashlib.sha256(json.dumps(encode(everything), sort_keys=True).encode()).hexdigest(),
        title=report.directory,
        report=report,
        parameters=parameters,
        points=points,
        figures=figures_of(metrics),
        tags=tags,
    )


def parameters_of(spec: RunSpec | None) -> dict[str, Parameter]:
    """The resolved configuration, by dotted path: secrets are masked, lists are JSON, what is not set is left out."""
    if spec is None:
        return {}
    found: dict[str, Parameter] = {}
    for path, value in leaves(without_secrets(spec)).items():
        if value is None or value in ([], {}):
            continue
        plain = json.dumps(encode(value), ensure_ascii=False) if isinstance(value, (list, dict)) else value
        text = clean(masked(plain)) if isinstance(plain, str) else plain
        found[clean(path)] = MASK if is_secret(path) else text
    return found


def figures_of(metrics: Metrics) -> dict[str, float]:
    """The figures of the whole run that are known, by name."""
    completion, numerics, performance = metrics.completion, metrics.numerics, metrics.performance
    known: dict[str, Any] = {
        "num_steps": completion.num_steps,
        "planned_steps": completion.planned_steps,
        "wall_seconds": completion.wall_seconds,
        "num_devices": performance.num_devices,
        "first_loss": numerics.first_loss,
        "last_loss": numerics.last_loss,
        "min_loss": numerics.min_loss,
        "tokens_per_second_total": performance.tokens_per_second_total,
        **{name: estimate.value for name, estimate in performance.estimates.items()},
    }
    return {name: as_float(value) for name, value in known.items() if value is not None}


def as_float(value: float) -> float:
    """A number as a double; one that is too large for it is infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _tags(report: RunReport, metrics: Metrics, verdict: Verdict) -> dict[str, str]:
    tags: dict[str, str] = {
        "outcome": verdict.outcome,
        "exit_code": str(verdict.exit_code),
        "headline": verdict.headline,
        "name": report.name,
        "model": clean(report.spec.model.name) if report.spec else "",
        "device": clean(metrics.performance.device),
        "engine": report.engine or report.family,
        "rehearsal": report.rehearsal,
        **{axis: each.status for axis, each in verdict.axes.items()},
    }
    return {name: text for name, text in tags.items() if text}


def _points(report: RunReport, metrics: Metrics) -> Iterator[Point]:
    """Each step of the record that counts, then the evaluations."""
    rows = step_rows([report.steps], metrics.performance)
    for step, row in zip(report.steps, rows, strict=True):
        values = {name: as_float(row[place]) for place, name in _FLOATS if row[place] is not None}
        yield Point(step=step.step, at=step.wall_time, values=values)
    for event in report.evals:
        if event.loss is not None:
            yield Point(step=event.step, at=event.wall_time, values={EVAL_LOSS: as_float(event.loss)})


def _id_of(report: RunReport, run_dir: Path) -> str:
    """The same for every copy of a run directory: from the run's name, its start, and its first steps.

    The clock of a log may only know seconds, in which several runs of a configuration can start.
    """
    first = [[step.step, step.seconds, step.loss] for attempt in report.attempts[:1] for step in attempt[:FIRST_STEPS]]
    facts = json.dumps(encode([report.name, report.started_at or _launched_at(run_dir), first]))
    return hashlib.sha256(facts.encode("utf-8", "surrogatepass")).hexdigest()[:ID_CHARACTERS]


def _launched_at(run_dir: Path) -> float | None:
    """The wall time at which the launcher started, for a run without a process; None: not known."""
    try:
        status: Mapping[str, Any] = Documents(run_dir).get("status.json")
    except (OSError, ValueError):
        return None
    started = status.get("started")
    return started if isinstance(started, float) else None
