"""A run's report for scripts: verdict, metrics, what was asked for and what a rehearsal made of it, in one object."""

from __future__ import annotations

import json
from typing import Any

from seatrial import metrics as measuring
from seatrial import verdict as judging
from seatrial.events import encode
from seatrial.report import nodes
from seatrial.report.gather import RunReport
from seatrial.spec import to_dict
from seatrial.verdict import cvs_compat

VERSION = 1


def render(report: RunReport) -> str:
    """The report as one JSON object."""
    return json.dumps(as_dict(report), indent=1, ensure_ascii=False)


def as_dict(report: RunReport) -> dict[str, Any]:
    """The report as plain data; a part that the run directory does not have is None."""
    return {
        "v": VERSION,
        "run": report.directory,
        "name": report.name,
        "started_at": report.started_at,
        "engine": report.engine,
        "on": report.on,
        "sources": list(report.sources),
        "family": report.family,
        "against": report.against,
        "rehearsal": {"changes": [vars(change) for change in report.changes]} if report.rehearsal else None,
        "verdict": judging.to_dict(report.verdict) if report.verdict else None,
        "cvs": cvs_compat.to_dict(report.cvs) if report.cvs else None,
        "metrics": measuring.to_dict(report.metrics) if report.metrics else None,
        "spec": encode(to_dict(report.spec)) if report.spec else None,
        "values": [vars(value) for value in report.values],
        "problems": [problem.as_dict() for problem in report.problems],
        "processes": [vars(process) for process in report.processes],
        "nodes": [nodes.summary(node) for node in report.nodes],
        "tails": [vars(tail) for tail in report.tails],
        "missing": list(report.missing),
    }
