"""Says what a target gets and gives; a further target is one module like `junit.py`, and its row in `TARGETS`.

A target's module has `publish(publications, to)`: it puts judged runs where `to` says, and returns a line that says
where they are now, or the text itself where the user named no file. What it must keep to:

- The same run published twice is there once. `Publication.id` is the same for every copy of a run directory, and
  `Publication.digest` for everything that would be published: a target that keeps what it was given looks for the id.
- Text is data. Names, values and sentences come from runs of other people; they hold no control characters, but any
  quote, bracket, comma, equals sign and markup.
- A loss may be NaN or infinite. Where a target cannot hold that, its docstring says what stands there instead.
- Packages that Seatrial does not need otherwise are imported in `publish`, never at the top, and named in the row.
- What goes wrong is one LaunchError or InputError with the place and the fix; OSError may pass.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from seatrial import metrics as measuring
from seatrial import verdict as judging
from seatrial.report import html
from seatrial.report.gather import RunReport

Parameter = str | int | float | bool


def as_text(value: Parameter) -> str:
    """A parameter where only texts can stand; what is none is JSON."""
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True, kw_only=True)
class Point:
    """The figures of one step, by metric; a figure that is not known is not there.

    `at` is in seconds since the epoch, or since the first event where a log has no clock.
    """

    step: int
    at: float
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Publication:
    """A judged run as targets get it.

    `title` is the name of its directory, `parameters` the resolved configuration that was run, by dotted path, with
    secrets masked. `points` are its steps in ascending order, each as the last attempt left it, and its evaluations
    (`eval_loss`). `figures` are those of the whole run: speeds of the steady window, counts, losses. `tags` tell runs
    apart: outcome, exit code, model, device. `report` has all the rest, the checks of the verdict among it.
    """

    id: str
    digest: str
    title: str
    report: RunReport
    parameters: Mapping[str, Parameter]
    points: tuple[Point, ...]
    figures: Mapping[str, float]
    tags: Mapping[str, str]

    def artefacts(self) -> dict[str, str]:
        """Whole files by name: the report, the verdict, the metrics."""
        report, files = self.report, {"report.html": html.render(self.report)}
        if report.verdict:
            files["verdict.json"] = json.dumps(judging.to_dict(report.verdict), indent=1)
        if report.metrics:
            files["metrics.json"] = json.dumps(measuring.to_dict(report.metrics), indent=1)
        return files


@dataclass(frozen=True, kw_only=True)
class Destination:
    """The place to publish to: a file or folder, a server, a project on it; None where the user did not say."""

    out: Path | None = None
    url: str | None = None
    project: str | None = None


@dataclass(frozen=True, kw_only=True)
class Target:
    """A row of the table of targets.

    `takes` are the options that mean something to it, `needs` those that it cannot do without; `package` is the module
    that has to be installed, and `extra` what `pip install 'seatrial[EXTRA]'` installs it with.
    """

    meaning: str
    takes: tuple[str, ...]
    needs: tuple[str, ...] = ()
    package: str = ""
    extra: str = ""
