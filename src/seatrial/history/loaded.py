"""A run directory, read for a comparison: metrics, verdict, what was run, the steady step times, the losses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seatrial import events
from seatrial import metrics as measuring
from seatrial import spec as specs
from seatrial import verdict as judging
from seatrial.errors import InputError, reason_of
from seatrial.metrics import Metrics
from seatrial.recording import read_run
from seatrial.report.steps import counted_seconds
from seatrial.runs.documents import Documents
from seatrial.spec import RunSpec
from seatrial.verdict import Verdict

Seconds = NDArray[np.float64]
SAME_MEDIAN = 1e-6


@dataclass(frozen=True, kw_only=True)
class LoadedRun:
    """One side of a comparison.

    `spec` is what was run, or what a log was judged against; None without a configuration. `steady_seconds` are the
    times of the steady window, empty where the events do not give the ones that the metrics are about. `steps` are
    those of the process whose record counts, `attempts` the same for each attempt. `plan` and `started` (the facts of
    the first process) are plain data.
    """

    directory: str
    spec: RunSpec | None
    plan: Mapping[str, Any]
    started: events.RunStarted | None
    hosts: tuple[str, ...]
    metrics: Metrics
    verdict: Verdict
    steady_seconds: Seconds
    losses: Mapping[int, float]
    steps: Sequence[events.Step] = ()
    attempts: Sequence[Sequence[events.Step]] = ()


def load(run_dir: Path) -> LoadedRun:
    """Reads a judged run directory. Raises InputError where a part is missing or cannot be read."""
    documents = Documents(run_dir)
    fix = f"judge it {'again' if documents.has('verdict.json') else 'first'}: seatrial judge {run_dir}"
    try:
        metrics = measuring.from_dict(documents["metrics.json"])
        verdict = judging.from_dict(documents["verdict.json"])
    except FileNotFoundError as error:
        why = f"it has no {Path(error.filename).name}: it was not judged yet"
        raise InputError.single("not-judged", str(run_dir), why, fix) from error
    except (OSError, ValueError, TypeError, RecursionError) as error:
        why = f"its metrics or its verdict cannot be read: {reason_of(error)}"
        raise InputError.single("damaged-run", str(run_dir), why, fix) from error
    try:
        record = read_run(run_dir)
        plan, given = documents.get("plan.json"), documents.spec_data()
        spec = specs.from_dict(given) if given else None
    except (OSError, ValueError, TypeError, RecursionError) as error:
        why = f"its events or its configuration cannot be read: {reason_of(error)}"
        fix = "check its events-*.jsonl, spec.json and plan.json"
        raise InputError.single("damaged-run", str(run_dir), why, fix) from error
    found = measuring.records(record)
    own = found.main
    started = [one.started for one in found.by_process if one.started]
    return LoadedRun(
        directory=str(run_dir),
        spec=spec,
        plan=plan,
        started=own.started or next(iter(started), None),
        hosts=tuple(dict.fromkeys(start.host for start in started if start.host)),
        metrics=metrics,
        verdict=verdict,
        steady_seconds=_steady(own.attempts, metrics),
        losses={step.step: step.loss for step in own.steps if step.loss is not None},
        steps=own.steps,
        attempts=own.attempts,
    )


def _steady(attempts: Sequence[Sequence[events.Step]], metrics: Metrics) -> Seconds:
    """The times that the metrics' median is of; none where the events would give another number or median."""
    times = metrics.performance.step_times
    seconds = np.array(counted_seconds(attempts, metrics.performance), dtype=np.float64)
    if times and len(seconds) == times.n and math.isclose(np.median(seconds), times.median, rel_tol=SAME_MEDIAN):
        return seconds
    return np.array([], dtype=np.float64)
