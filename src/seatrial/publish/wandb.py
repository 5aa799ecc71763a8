"""W&B: a run with its configuration, history, summary and report, in the project `--project`.

Its id is that of the publication. Online, the run of that id is resumed: steps that it has are not sent again, and its
summary and report are replaced. With WANDB_MODE=offline it is written below `--out`/wandb, for `wandb sync`, in the
place of an earlier one of the same id.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seatrial.console import inert
from seatrial.errors import LaunchError
from seatrial.publish.contract import Destination, Publication
from seatrial.runs.files import write_text

PROJECT = "seatrial"
MOST_TAG, MOST_NAME = 64, 128  # characters that W&B takes
_OFFLINE = re.compile(r"offline-run-\d{8}_\d{6}-(?P<id>[0-9a-f]+)")


def publish(publications: Sequence[Publication], to: Destination) -> str:
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    folder = to.out or Path.cwd()
    folder.mkdir(parents=True, exist_ok=True)
    said = []
    for one in publications:
        earlier = _written(folder, one.id)
        try:
            where = _publish(wandb, one, to.project or PROJECT, folder)
        except (wandb.errors.Error, OSError, ValueError) as error:
            why = inert(next(iter(str(error).splitlines()), type(error).__name__))[:300]
            fix = "log in with `wandb login`, or set WANDB_MODE=offline"
            raise LaunchError(f"W&B did not take {one.title}: {why}; {fix}") from error
        for path in earlier:
            shutil.rmtree(path)
        said.append(f"{one.title}: {where}")
    return "\n".join(said)


def _written(folder: Path, run_id: str) -> list[Path]:
    """The folders of the run that earlier publishing offline has left."""
    named = [path for path in folder.glob("wandb/offline-run-*") if path.is_dir() and not path.is_symlink()]
    return [path for path in named if (match := _OFFLINE.fullmatch(path.name)) and match["id"] == run_id]


def _publish(wandb: Any, one: Publication, project: str, folder: Path) -> str:
    settings = wandb.Settings(
        console="off", silent=True, disable_git=True, save_code=False, disable_job_creation=True,
        x_disable_stats=True, x_disable_meta=True, x_disable_machine_info=True, allow_offline_artifacts=True,
    )  # fmt: skip
    tags = [one.tags[name][:MOST_TAG] for name in ("outcome", "model", "device") if one.tags.get(name)]
    config = {**one.parameters, "seatrial": {"run_id": one.id, **one.tags}}
    with wandb.init(
        id=one.id, project=project, name=one.title[:MOST_NAME], config=config, tags=tags, dir=str(folder),
        resume="allow", settings=settings,
    ) as run:  # fmt: skip
        first = run.step if run.resumed else 0
        for step, values in sorted(_by_step(one).items()):
            if step >= first:
                run.log(values, step=step)
        run.summary.update({f"run/{name}": _number(value) for name, value in one.figures.items()} | _checks(one))
        with tempfile.TemporaryDirectory() as files:
            report = wandb.Artifact(f"report-{one.id}", type="report", metadata={"outcome": one.tags["outcome"]})
            for name, text in one.artefacts().items():
                write_text(Path(files, name), text)
                report.add_file(str(Path(files, name)))
            run.log_artifact(report)
        where = str(Path(run.dir).parent) if run.offline else str(run.url)
    return where


def _by_step(one: Publication) -> dict[int, dict[str, float]]:
    """W&B's history has one row a step, in ascending order."""
    found: dict[int, dict[str, float]] = {}
    for point in one.points:
        found.setdefault(point.step, {"_timestamp": point.at}).update(point.values)
    return found


def _number(value: float) -> float | str:
    """A figure for the summary, which drops what is not finite, but takes W&B's words for it."""
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _checks(one: Publication) -> dict[str, str]:
    checks = {f"{check.axis}/{check.title}": check.status for check in one.report.checks}
    return {"outcome": one.tags["outcome"], "exit_code": one.tags["exit_code"], **checks}
