"""The figures of a run that goes on, over HTTP: those of the report, and the outcome before the end."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from seatrial.errors import InputError
from seatrial.estimate import flops, hardware
from seatrial.launch.deadlines import Deadlines
from seatrial.launch.follow import Following
from seatrial.launch.progress import Progress
from seatrial.publish import live
from seatrial.report.gather import gather
from tests.helpers import publishing, run_directory

OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}


def scrape(url: str) -> dict[str, tuple[dict[str, str], float]]:
    request = urllib.request.Request(url, headers=OPENMETRICS)
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        families = text_string_to_metric_families(answer.read().decode())
        return {sample.name: (dict(sample.labels), sample.value) for family in families for sample in family.samples}


def value(found: dict[str, tuple[dict[str, str], float]], name: str) -> float:
    return found[f"seatrial_{name}"][1]


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def serving(told: list[str]) -> Iterator[tuple[live.LiveRun, str]]:
    with live.served("0", told.append) as run:
        yield run, told[0].removeprefix("metrics: ")


def agent(step: int | None, state: str = "running") -> dict[str, Any]:
    return {"state": state, "stop_reason": None, "processes": [_process(step)]}


def _process(step: int | None) -> dict[str, Any]:
    return {"rank": 0, "state": "running", "last_step": step, "suspended": False, "lost_bytes": 0}


def following(seen: list[Progress]) -> Following:
    return Following(Deadlines(), seen.append, print)


def test_figures_are_those_of_the_report(tmp_path: Path, serving: tuple[live.LiveRun, str]) -> None:
    run, url = serving
    run_dir = run_directory.write(tmp_path / 'run="1",x', run_directory.sound, rehearsing=False)
    spec, seen = run_directory.asked_for(), list[Progress]()
    whole = (run_dir / "events-0.jsonl").read_text().splitlines(keepends=True)
    (run_dir / "events-0.jsonl").write_text("".join(whole[:13]))  # the start, and 12 of 30 steps
    progress = Progress(planned_steps=spec.steps)
    progress.see({"node0": agent(11), "node1": agent(11), "node2": None}, time.monotonic())
    progress.silent = {"node0": 0.1, "node1": 25.0}
    follow = run.follow(following(seen), run_dir, spec)
    follow.on_progress(progress)
    assert seen == [progress]  # the display has it too
    found = scrape(url)
    labels = {"run": 'run="1",x', "model": "llama3.1-70b", "device": "AMD Instinct MI300X"}
    assert found["seatrial_step"] == (labels, 12)
    assert found["seatrial_outcome"] == (labels | {"outcome": "running"}, 1)
    assert (value(found, "planned_steps"), value(found, "nodes"), value(found, "nodes_alive")) == (30, 3, 1)
    steps = [json.loads(line) for line in whole[1:13]]
    assert value(found, "loss") == steps[-1]["loss"]
    seconds = sorted(step["seconds"] for step in steps[1:])[5]
    assert value(found, "step_seconds") == seconds
    assert value(found, "eta_seconds") == pytest.approx(18 * seconds)
    assert value(found, "tokens_per_second") == pytest.approx(48 * 8192 / seconds)
    assert value(found, "tokens_per_second_per_device") == pytest.approx(48 * 8192 / seconds / 16)
    per_token = flops.flops_per_token(spec.model, 8192, flops.DEFAULT_CONVENTION)
    device = hardware.find("mi300x")
    assert device is not None
    peak = device.peak("bfloat16", "none")
    assert peak is not None
    mfu = 48 * 8192 / seconds / 16 * per_token / peak[0]
    assert value(found, "mfu_ratio") == pytest.approx(mfu)
    metrics = gather(run_dir).metrics
    assert metrics is not None
    assert mfu == pytest.approx(metrics.performance.estimates["mfu"].value, rel=0.05)


def test_without_events_the_agents_know_the_step(tmp_path: Path, serving: tuple[live.LiveRun, str]) -> None:
    run, url = serving
    spec = run_directory.asked_for()
    follow = run.follow(following([]), tmp_path, spec)
    progress = Progress(planned_steps=spec.steps)
    follow.on_progress(progress)
    assert value(scrape(url), "step") == 0
    for step, now in ((3, 100.0), (5, 101.0), (7, 102.0)):
        progress.see({"a": agent(step)}, now)
    follow.on_progress(progress)
    found = scrape(url)
    assert value(found, "step") == 8
    assert value(found, "step_seconds") == 0.5
    assert value(found, "tokens_per_second") == pytest.approx(48 * 8192 / 0.5)
    assert "seatrial_loss" not in found


def test_an_ended_agent_is_not_alive(tmp_path: Path, serving: tuple[live.LiveRun, str]) -> None:
    run, url = serving
    progress = Progress(planned_steps=30)
    progress.see({"a": agent(3, "ended"), "b": agent(3, "stopping")}, 100.0)
    run.follow(following([]), tmp_path, run_directory.asked_for()).on_progress(progress)
    assert value(scrape(url), "nodes_alive") == 1


def test_whoever_scraped_may_fetch_the_outcome(
    tmp_path: Path, serving: tuple[live.LiveRun, str], told: list[str]
) -> None:
    run, url = serving
    report = gather(publishing.runs(tmp_path)[2])
    begun = time.monotonic()
    run.end(report, told.append)
    assert time.monotonic() - begun < 1  # nobody ever came
    scrape(url)
    time.sleep(0.3)
    scrape(url)
    ending = threading.Thread(target=run.end, args=(report, told.append))
    ending.start()
    ending.join(0.2)
    assert ending.is_alive()
    run.samples()  # asked for, but not sent yet
    ending.join(0.2)
    assert ending.is_alive()
    found = scrape(url)
    ending.join(5)
    assert not ending.is_alive()
    assert found["seatrial_outcome"][0]["outcome"] == "died"
    assert value(found, "exit_code") == 4
    run.end(report, told.append)  # whoever does not come again is not waited for longer
    assert "waiting until the outcome is scraped" in told[-1]


def test_it_is_loopback_unless_a_host_is_given(told: list[str]) -> None:
    with live.served("0", told.append):
        assert told[0].startswith("metrics: http://127.0.0.1:")
    assert live.address("9400") == ("127.0.0.1", 9400)
    assert live.address("0.0.0.0:9400") == ("0.0.0.0", 9400)
    assert live.address("[::1]:9400") == ("::1", 9400)
    for text in ("", "x", "-1", "65536", "1.5", "host:", ":1", "a b:1", "http://h:1", "９４00"):
        with pytest.raises(InputError, match="no port"):
            live.address(text)


def test_a_port_that_is_taken_is_one_message(told: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"127.0.0.1:{port} cannot be served"), live.served(str(port), told.append):
            pytest.fail("served")
    assert told == []


def test_nothing_is_kept_where_nobody_asks(tmp_path: Path, told: list[str]) -> None:
    with live.served(None, told.append) as run:
        same = following([])
        assert run.follow(same, tmp_path, run_directory.asked_for()) is same
        run.end(gather(publishing.runs(tmp_path)[0]), told.append)
    assert told == []
