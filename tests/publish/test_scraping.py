"""Debian's Prometheus scrapes a live run and a published one; the Grafana dashboard's queries find data in it."""

from __future__ import annotations

import functools
import http.server
import json
import re
import signal
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from seatrial.launch.local import free_port
from seatrial.publish import GRAFANA
from tests.helpers import publishing, tiny_runs
from tests.helpers.command_line import seatrial
from tests.helpers.processes import wait_until

pytestmark = pytest.mark.slow

RUN = "live run"
PLUGIN = re.compile(r"label_values\((?P<metric>\w+), (?P<label>\w+)\)")


class Scraped(NamedTuple):
    """A Prometheus, and the live run that it scrapes."""

    url: str
    launcher: subprocess.Popen[str]
    run_dir: Path

    def ask(self, path: str, **arguments: str) -> Any:
        query = urllib.parse.urlencode(arguments)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as answer:
            found = json.load(answer)
        assert found["status"] == "success"
        return found["data"]

    def values(self, expression: str) -> list[tuple[dict[str, str], float]]:
        result = self.ask("query", query=expression)["result"]
        return [(each["metric"], float(each["value"][1])) for each in result]

    def value(self, name: str) -> float:
        ((_, value),) = self.values(f'seatrial_{name}{{run="{RUN}"}}')
        return value


class _Silent(http.server.SimpleHTTPRequestHandler):
    extensions_map = {".prom": "text/plain; version=0.0.4"}  # noqa: RUF012 - the standard library's attribute

    def log_message(self, *arguments: Any) -> None:
        """Prints nothing."""


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    publishing.needed("prometheus", "promtool")
    folder = tmp_path_factory.mktemp("scraped")
    over = publishing.runs(folder / "over")
    textfile = folder / "textfile" / "runs.prom"
    assert seatrial("publish", *over, "--to", "prometheus", "--out", textfile, cwd=folder).returncode == 0
    serve = functools.partial(_Silent, directory=str(textfile.parent))
    files = http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve)
    threading.Thread(target=files.serve_forever, daemon=True).start()
    port, live_port = free_port(), free_port()
    run_dir = folder / RUN
    launcher = tiny_runs.start(tiny_runs.write_config(folder), run_dir, "--metrics-port", str(live_port))
    jobs = [
        {"job_name": "live", "static_configs": [{"targets": [f"127.0.0.1:{live_port}"]}]},
        {"job_name": "textfile", "metrics_path": "/runs.prom",
         "static_configs": [{"targets": [f"127.0.0.1:{files.server_port}"]}]},
    ]  # fmt: skip
    config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(json.dumps(config))  # YAML too
    with (folder / "prometheus.log").open("wb") as log:
        server = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{port}"],
            stdout=log, stderr=log,
        )  # fmt: skip
    found = Scraped(f"http://127.0.0.1:{port}", launcher, run_dir)

    def steps() -> bool:
        assert launcher.poll() is None, tiny_runs.end_of(launcher)
        assert server.poll() is None, (folder / "prometheus.log").read_text()
        try:
            return bool(found.values(f'seatrial_eta_seconds{{run="{RUN}"}}')) and bool(
                found.values('seatrial_step{run="sound"}')
            )
        except OSError:
            return False

    try:
        wait_until(steps, 120)
        yield found
    finally:
        server.kill()
        server.wait()
        files.shutdown()
        files.server_close()
        if launcher.poll() is None:
            launcher.send_signal(signal.SIGINT)
            tiny_runs.end_of(launcher)


def test_both_are_scraped_without_an_error(scraped: Scraped) -> None:
    targets = scraped.ask("targets")["activeTargets"]
    assert [(target["health"], target["lastError"]) for target in targets] == [("up", "")] * 2
    meanings = scraped.ask("metadata", metric="seatrial_step")["seatrial_step"]
    assert {(each["type"], each["help"]) for each in meanings} == {("gauge", "Optimizer steps that are done.")}


def test_the_live_figures_are_those_of_the_run(scraped: Scraped) -> None:
    before = scraped.value("step")
    wait_until(lambda: scraped.value("step") > before, 30)
    assert scraped.value("planned_steps") == tiny_runs.FOREVER
    assert (scraped.value("nodes"), scraped.value("nodes_alive")) == (1, 1)
    ((labels, one),) = scraped.values(f'seatrial_outcome{{run="{RUN}"}}')
    assert (labels["outcome"], labels["model"], labels["device"], one) == ("running", "tiny", "cpu", 1)
    seconds, total = (
        scraped.values(f'{name}{{run="{RUN}"}} @ {time.time()}')[0][1]
        for name in ("seatrial_step_seconds", "seatrial_tokens_per_second")
    )
    assert 0 < seconds < 10
    assert total == pytest.approx(2 * 16 / seconds, rel=0.5)  # two scrapes may lie between
    events = [json.loads(line) for line in (scraped.run_dir / "events-0.jsonl").read_text().splitlines()[:-1]]
    losses = {event["loss"] for event in events if event["kind"] == "step"}
    assert scraped.value("loss") in losses
    assert scraped.value("eta_seconds") == pytest.approx(seconds * tiny_runs.FOREVER, rel=0.5)


def test_every_query_of_the_dashboard_finds_data(scraped: Scraped) -> None:
    dashboard = json.loads(seatrial("publish", "--grafana", cwd=scraped.run_dir.parent).stdout)
    assert dashboard == json.loads(GRAFANA.read_text())
    variables = {one["name"]: one for one in dashboard["templating"]["list"] if one["type"] == "query"}
    assert set(variables) == {"run", "model", "device"}
    for one in variables.values():
        match = PLUGIN.fullmatch(one["query"]["query"])
        assert match is not None
        assert scraped.ask(f"label/{match['label']}/values", **{"match[]": match["metric"]}), one["name"]
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) == len(dashboard["panels"]) >= 10
    for expression in expressions:
        for name in variables:
            expression = expression.replace(f"${name}", ".*")
        assert "$" not in expression
        assert scraped.values(expression), expression
    one_run = expressions[0].replace("$run", RUN).replace("$model", ".*").replace("$device", ".*")
    assert [labels["run"] for labels, _ in scraped.values(one_run)] == [RUN]
    assert scraped.values(one_run.replace(RUN, "no such run")) == []


def test_the_outcome_is_scraped_before_the_end(scraped: Scraped) -> None:
    """Last: it ends the live run."""
    scraped.launcher.send_signal(signal.SIGINT)
    code, printed = tiny_runs.end_of(scraped.launcher, 90)
    assert code == 130, printed
    assert "waiting until the outcome is scraped" in printed

    def outcomes() -> list[dict[str, str]]:
        return [labels for labels, _ in scraped.values(f'last_over_time(seatrial_outcome{{run="{RUN}"}}[5m])')]

    wait_until(lambda: "interrupted" in [labels["outcome"] for labels in outcomes()], 30)
    ((_, code),) = scraped.values(f'last_over_time(seatrial_exit_code{{run="{RUN}"}}[5m])')
    assert code == 130
