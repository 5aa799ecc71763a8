"""MLflow: published to a server that the test starts, and read back by MLflow's own client."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seatrial.launch.local import free_port
from seatrial.publish import Destination, mlflow, publish
from seatrial.publish.contract import Publication
from tests.helpers import publishing
from tests.helpers.command_line import seatrial
from tests.helpers.processes import wait_until

pytestmark = pytest.mark.slow

QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
# argv: server, experiment, what to do; prints every run that is not in the trash, or sets and deletes tags of one.
CLIENT = """
import json, math, sys, tempfile, pathlib
from mlflow import MlflowClient
url, experiment, *action = sys.argv[1:]
client = MlflowClient(tracking_uri=url)
found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
if action:
    client.set_tag(action[0], "owner", "me; 'you'"), client.delete_tag(action[0], "seatrial.digest")
def files(run):
    with tempfile.TemporaryDirectory() as folder:
        return {path.name: path.read_text() for path in pathlib.Path(
            client.download_artifacts(run.info.run_id, "", folder)).iterdir()}
print(json.dumps([{
    "id": run.info.run_id, "name": run.info.run_name, "status": run.info.status, "tags": run.data.tags,
    "seconds": (run.info.end_time - run.info.start_time) / 1000, "params": run.data.params, "files": files(run),
    "metrics": {name: [[m.step, m.timestamp, m.value] for m in client.get_metric_history(run.info.run_id, name)]
                for name in run.data.metrics},
} for run in found]))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    publishing.needed("mlflow", "alembic", "flask", "flask_cors", "gunicorn", "sqlalchemy")
    folder, port = tmp_path_factory.mktemp("mlflow"), free_port()
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{folder}/runs.db", "--artifacts-destination", str(folder / "artifacts")),
        *("--gunicorn-opts", "--threads 4"),  # not uvicorn, whose application needs far more packages
    ]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, **QUIET, "HOME": str(folder)}, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, (folder / "server.log").read_text()
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    try:
        wait_until(answers, 120)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def there(url: str, experiment: str, *action: str) -> dict[str, Any]:
    """The runs of an experiment by their names, as MLflow's client has them."""
    found = json.loads(publishing.python(CLIENT, url, experiment, *action))
    assert len({run["name"] for run in found}) == len(found)
    return {run["name"]: run for run in found}


def test_runs_are_there_once_and_whole(server: str, tmp_path: Path) -> None:
    run_dirs = publishing.runs(tmp_path)
    where = ("--to", "mlflow", "--url", server, "--project", "nightly")
    said = publishing.publish(*run_dirs, *where, cwd=tmp_path)
    assert said.count("\n") == 3
    runs = there(server, "nightly")
    assert {name: run["status"] for name, run in runs.items()} == {
        "sound": "FINISHED" if publishing.published(run_dirs[0]).tags["outcome"] == "pass" else "FAILED",
        "diverged": "FAILED", "killed": "FAILED",
    }  # fmt: skip
    for run_dir in run_dirs:
        one = publishing.published(run_dir)
        run = runs[one.title]
        assert run["params"] == {path: str(value) for path, value in one.parameters.items()}
        tags = {name.removeprefix("seatrial."): text for name, text in run["tags"].items()}
        assert {name: tags[name] for name in one.tags} == one.tags
        assert tags["run_id"] == one.id
        assert one.report.verdict is not None
        for axis in one.report.verdict.axes.values():
            assert all(tags[f"check.{check.name}"] == check.status for check in axis.checks)
        assert run["files"] == one.artefacts()
        assert run["seconds"] == pytest.approx(one.figures["wall_seconds"], abs=0.002)
        for name in {name for point in one.points for name in point.values}:
            wanted = [(p.step, round(p.at * 1000), p.values[name]) for p in one.points if name in p.values]
            for (step, at, value), (step_, at_, value_) in zip(sorted(run["metrics"][name]), wanted, strict=True):
                assert (step, at) == (step_, at_)
                assert value == (sys.float_info.max if value_ == math.inf else pytest.approx(value_, nan_ok=True))
        for name, figure in one.figures.items():
            ((step, _, value),) = run["metrics"][f"run/{name}"]
            assert (step, value) == (0, pytest.approx(figure, nan_ok=True))
    assert sum(math.isnan(value) for _, _, value in runs["diverged"]["metrics"]["loss"]) == 1

    assert "up to date" in publishing.publish(*run_dirs, *where, cwd=tmp_path)  # a copy of it too
    copy = shutil.copytree(run_dirs[0], tmp_path / "copies" / "sound")
    assert "up to date" in publishing.publish(copy, *where, cwd=tmp_path)
    assert there(server, "nightly") == runs


def test_of_two_that_publish_a_run_at_once_one_stays(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, to = publishing.published(publishing.runs(tmp_path)[0]), Destination(url=server, project="twice")
    fill, said = mlflow._fill, list[str]()

    def fill_while_another_publishes(client: Any, run_id: str, each: Publication) -> None:
        if not said:
            said.append("begun")
            said.append(publish([one], "mlflow", to))
        fill(client, run_id, each)

    monkeypatch.setattr(mlflow, "_fill", fill_while_another_publishes)
    publish([one], "mlflow", to)
    kept = there(server, "twice")[one.title]  # which allows for one of a name
    assert kept["params"] == {path: str(value) for path, value in one.parameters.items()}
    assert publish([one], "mlflow", to).endswith(f"run {kept['id']} is up to date in {server}")


def test_half_a_run_is_replaced_and_the_users_tags_stay(server: str, tmp_path: Path) -> None:
    run_dir, *_ = publishing.runs(tmp_path)
    where = ("--to", "mlflow", "--project", "a 'quoted' \"name\"")
    publishing.publish(run_dir, *where, cwd=tmp_path, MLFLOW_TRACKING_URI=server)
    before = there(server, where[-1])["sound"]
    there(server, where[-1], before["id"])  # as publishing that was killed would leave it
    publishing.publish(run_dir, *where, cwd=tmp_path, MLFLOW_TRACKING_URI=server)
    after = there(server, where[-1])["sound"]
    assert after["id"] != before["id"]
    assert after["tags"]["owner"] == "me; 'you'"
    assert after["metrics"] == before["metrics"]
    assert after["tags"]["seatrial.digest"] == before["tags"]["seatrial.digest"]


def test_hostile_text_comes_back(server: str, tmp_path: Path) -> None:
    evil = "a=b`c' OR 1=1 --\"<script>{{7*7}}</script>\x1b[31m"
    run_dir = publishing.runs(tmp_path)[0].rename(tmp_path / evil.replace("/", "∕"))
    plan = json.loads((run_dir / "plan.json").read_text())
    plan["spec"]["name"] = evil
    plan["spec"]["execution"]["environment"] = {f"X{evil}": evil}
    (run_dir / "plan.json").write_text(json.dumps(plan))
    publishing.publish(run_dir, "--to", "mlflow", "--url", server, "--project", "hostile", cwd=tmp_path)
    one, (run,) = publishing.published(run_dir), there(server, "hostile").values()
    assert run["name"] == one.title
    assert run["params"]["name"] == one.parameters["name"]
    assert "\x1b" not in run["name"] + run["params"]["name"]
    shown = "X" + "".join(c if c.isalnum() or c in "_-. :/" else "_" for c in str(one.parameters["name"]))
    assert run["params"][f"execution.environment.{shown}"] == one.parameters["name"]


def test_a_server_that_is_not_there_is_one_message(tmp_path: Path) -> None:
    publishing.needed("mlflow")
    run_dir = publishing.runs(tmp_path)[0]
    url = f"http://user:hunter2@127.0.0.1:{free_port()}"
    done = subprocess.run(
        [sys.executable, "-m", "seatrial", "publish", str(run_dir), "--to", "mlflow", "--url", url],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "Connection refused" in done.stderr
    assert "hunter2" not in done.stderr + done.stdout


def test_no_server_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publishing.needed("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    done = seatrial("publish", publishing.runs(tmp_path)[0], "--to", "mlflow", cwd=tmp_path)
    assert done.returncode == 2
    assert "set MLFLOW_TRACKING_URI" in done.stderr
