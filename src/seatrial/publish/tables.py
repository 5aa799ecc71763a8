"""Published runs as four tables, for files that data frames read: runs, parameters, checks, steps.

Each row names its run by `run_id`, by which they join; the figures of a whole run are columns of `runs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from seatrial.publish.contract import Publication, as_text
from seatrial.publish.publication import as_float
from seatrial.report.columns import Column, Table
from seatrial.report.steps import STEPS, step_rows

_RUN = (
    Column(name="run_id", type="string", unit="", meaning="the same for every copy of a run directory"),
    Column(name="run", type="string", unit="", meaning="name of the run directory"),
)
_TAGS = ("outcome", "exit_code", "headline", "name", "model", "device", "engine", "rehearsal")
_FIGURES = {
    "num_steps": "", "planned_steps": "", "wall_seconds": "s", "num_devices": "", "first_loss": "", "last_loss": "",
    "min_loss": "", "step_seconds": "s", "tokens_per_second_total": "tokens/s",
    "tokens_per_second_per_device": "tokens/s", "tflops_per_second_per_device": "TFLOP/s", "mfu": "fraction",
    "memory_fraction": "fraction",
}  # fmt: skip
RUNS = (
    *_RUN,
    Column(name="started_at", type="float64", unit="s", meaning="since the epoch"),
    *(Column(name=name, type="string", unit="", meaning=name.replace("_", " ")) for name in _TAGS),
    *(
        Column(name=name, type="float64", unit=unit, meaning=f"of the run: {name.replace('_', ' ')}")
        for name, unit in _FIGURES.items()
    ),
)
PARAMETERS = (
    *_RUN,
    Column(name="parameter", type="string", unit="", meaning="dotted path in the resolved configuration"),
    Column(name="value", type="string", unit="", meaning="its text, or JSON"),
)
CHECKS = (
    *_RUN,
    Column(name="axis", type="string", unit="", meaning="completion, numerics or performance"),
    Column(name="check", type="string", unit="", meaning="name of the check"),
    Column(name="status", type="string", unit="", meaning="pass, fail, inconclusive or not_applicable"),
    Column(name="measured", type="float64", unit="", meaning="in `unit`; not given where it is no number"),
    Column(name="bound", type="float64", unit="", meaning="in `unit`; not given where it is no number"),
    Column(name="unit", type="string", unit="", meaning="of measured and bound"),
    Column(name="sentence", type="string", unit="", meaning="why"),
)


def tables(publications: Sequence[Publication]) -> dict[str, Table]:
    """The four tables by name."""
    return {
        "runs": Table.of_rows(RUNS, map(_run, publications)),
        "parameters": Table.of_rows(PARAMETERS, _each(publications, _parameters)),
        "checks": Table.of_rows(CHECKS, _each(publications, _checks)),
        "steps": Table.of_rows((*_RUN, *STEPS), _each(publications, _steps)),
    }


def _each(publications: Sequence[Publication], rows: Any) -> Iterator[tuple[Any, ...]]:
    for one in publications:
        yield from ((one.id, one.title, *row) for row in rows(one))


def _run(one: Publication) -> tuple[Any, ...]:
    tags = (one.tags.get(name) for name in _TAGS)
    return one.id, one.title, one.report.started_at, *tags, *(one.figures.get(name) for name in _FIGURES)


def _parameters(one: Publication) -> Iterator[tuple[Any, ...]]:
    for path, value in one.parameters.items():
        yield path, as_text(value)


def _checks(one: Publication) -> Iterator[tuple[Any, ...]]:
    for check in one.report.checks:
        measured, bound = (
            as_float(value) if isinstance(value, (int, float)) else None for value in (check.measured, check.bound)
        )
        yield check.axis, check.title, check.status, measured, bound, check.unit, check.sentence


def _steps(one: Publication) -> Iterator[tuple[Any, ...]]:
    """Of every attempt, repeated steps too."""
    return step_rows(one.report.attempts, one.report.performance)
