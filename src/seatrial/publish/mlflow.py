"""MLflow: a run with its parameters, step metrics, tags and files, in the experiment `--project`.

The tracking server is `--url`, or that of MLFLOW_TRACKING_URI. The run is found by the tag `seatrial.run_id`; if its
`seatrial.digest` is that of what would be published, nothing is done. Else the run is made again, and the old one goes
to MLflow's trash: its parameters could not be changed, and it may be half of one. Tags of your own are carried over.
Names keep the characters that MLflow allows; in its SQL stores, an infinite metric becomes the largest double.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from seatrial.console import inert
from seatrial.errors import InputError, LaunchError
from seatrial.publish.contract import Destination, Publication
from seatrial.runs.files import write_text

PROJECT = "seatrial"
RUN_ID, DIGEST = "seatrial.run_id", "seatrial.digest"
METRICS, PARAMETERS = 1000, 100  # at most in one request
NAME, VALUE, TAG = 250, 6000, 5000  # characters of a name, a parameter, a tag
_NOT_IN_A_NAME = re.compile(r"[^\w.\- :/]")
_STATUS = {"interrupted": "KILLED", "pass": "FINISHED", "inconclusive": "FINISHED"}  # of any other outcome: FAILED
_NOT_OF_THE_USER = ("seatrial.", "mlflow.runName", "mlflow.user", "mlflow.source")
# Answers within seconds where nobody listens, and tells nobody that it was used; the user's own word counts first.
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}

T = TypeVar("T")


def publish(publications: Sequence[Publication], to: Destination) -> str:
    url = to.url or os.environ.get("MLFLOW_TRACKING_URI")
    if not url:
        why = "nothing says where the tracking server is"
        fix = "give --url http://HOST:PORT, or set MLFLOW_TRACKING_URI"
        raise InputError.single("no-destination", "--url", why, fix)
    shown = _without_password(url)
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        client = MlflowClient(tracking_uri=url)
        experiment = _experiment(client, to.project or PROJECT)
        said = [f"{one.title}: {_publish(client, experiment, one)} in {shown}" for one in publications]
    except (MlflowException, OSError, ValueError) as error:  # requests' errors are OSErrors
        why = _without_password(_reason(error))[:300]
        raise LaunchError(f"MLflow at {shown} did not take it: {why}; check --url and that server's log") from error
    return "\n".join(said)


def _without_password(text: str) -> str:
    return inert(re.sub(r"//[^/@\s]*@", "//", text))


def _reason(error: BaseException) -> str:
    """The operating system's reason for a failed connection, else the first line of MLflow's message."""
    innermost: BaseException = error
    while innermost.__cause__ or innermost.__context__:
        innermost = innermost.__cause__ or innermost.__context__ or innermost
    if isinstance(innermost, OSError) and innermost.strerror:
        return innermost.strerror
    return next(iter(str(error).splitlines()), type(error).__name__)


def _experiment(client: Any, name: str) -> str:
    found = client.get_experiment_by_name(name)
    return str(found.experiment_id if found else client.create_experiment(name))


def _publish(client: Any, experiment: str, one: Publication) -> str:
    from mlflow.exceptions import MlflowException

    there = _runs_of(client, experiment, one)
    if kept := _only_one(client, there, one):
        return f"run {kept} is up to date"
    own = {name: text for run in there for name, text in run.data.tags.items() if not name.startswith(_NOT_OF_THE_USER)}
    start = round((one.report.started_at or 0) * 1000)
    tags = {RUN_ID: one.id, **{f"seatrial.{name}": text[:TAG] for name, text in _all_tags(one).items()}}
    made = client.create_run(experiment, start_time=start, run_name=one.title, tags=own | tags).info.run_id
    try:
        _fill(client, made, one)
        client.set_tag(made, DIGEST, one.digest)  # last: without it, the run is not whole
        end = start + round(one.figures.get("wall_seconds", 0) * 1000)
        client.set_terminated(made, status=_STATUS.get(one.tags["outcome"], "FAILED"), end_time=end)
    except MlflowException:
        if not _is_deleted(client, made):  # by another process, which took it for half a run and has it whole
            raise
    for run in there:
        _delete(client, run.info.run_id)
    return f"run {_only_one(client, _runs_of(client, experiment, one), one) or made}"


def _runs_of(client: Any, experiment: str, one: Publication) -> list[Any]:
    return list(client.search_runs([experiment], filter_string=f"tags.`{RUN_ID}` = '{one.id}'"))


def _only_one(client: Any, runs: Sequence[Any], one: Publication) -> str | None:
    """The id of the run that is kept of those that are whole, without the others; None where none is up to date.

    There are several where several processes publish it at once: each that comes to its end keeps the same one. A run
    that is not whole may be one that another process is filling.
    """
    whole = {run.info.run_id: run.data.tags[DIGEST] for run in runs if DIGEST in run.data.tags}
    kept = min((run_id for run_id, digest in whole.items() if digest == one.digest), default=None)
    for run_id in whole if kept else ():
        if run_id != kept:
            _delete(client, run_id)
    return kept


def _delete(client: Any, run_id: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.delete_run(run_id)
    except MlflowException:
        if not _is_deleted(client, run_id):
            raise


def _is_deleted(client: Any, run_id: str) -> bool:
    return bool(client.get_run(run_id).info.lifecycle_stage == "deleted")


def _all_tags(one: Publication) -> dict[str, str]:
    checks = {f"check.{check.name}": check.status for check in one.report.checks}
    return {_name(name): text for name, text in {**one.tags, **checks}.items()}


def _fill(client: Any, run_id: str, one: Publication) -> None:
    from mlflow.entities import Metric, Param

    parameters = [Param(_name(path), str(value)[:VALUE]) for path, value in one.parameters.items()]
    for some in _chunks(parameters, PARAMETERS):
        client.log_batch(run_id, params=some)
    end = round(max((point.at for point in one.points), default=0) * 1000)
    metrics = [
        *(
            Metric(_name(name), value, round(point.at * 1000), point.step)
            for point in one.points
            for name, value in point.values.items()
        ),
        *(Metric(_name(f"run/{name}"), value, end, 0) for name, value in one.figures.items()),
    ]
    for batch in _chunks(metrics, METRICS):
        client.log_batch(run_id, metrics=batch)
    with tempfile.TemporaryDirectory() as folder:
        for name, text in one.artefacts().items():
            write_text(Path(folder, name), text)
            client.log_artifact(run_id, str(Path(folder, name)))


def _name(text: str) -> str:
    return _NOT_IN_A_NAME.sub("_", text)[:NAME]


def _chunks(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    return (items[start : start + most] for start in range(0, len(items), most))
