"""`seatrial stop`, `logs` and `attach`: what a run that is over, goes on, or is damaged says to them."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from seatrial.commands import logs, retries, stop
from seatrial.launch.launcher import STOP
from seatrial.runs.directory import rank_logs
from seatrial.runs.files import write_json
from seatrial.runs.status import write_status
from seatrial.spec import RunSpec
from tests.helpers import streams
from tests.helpers.command_line import seatrial

SPEC: RunSpec = streams.make_spec()


def say(run_dir: Path, **changes: Any) -> None:
    status = {"v": 1, "state": "running", "reason": None, "launcher_pid": os.getpid(), "started": time.time()}
    write_json(run_dir / "status.json", {**status, "heartbeat": time.time(), **changes})


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of two processes on this machine, which goes on."""
    folder = tmp_path / "run"
    (folder / "launch").mkdir(parents=True)
    plan = {"on": "local", "engine": "native", "processes": [{"rank": 0}, {"rank": 1}]}
    (folder / "plan.json").write_text(json.dumps(plan))
    say(folder)
    return folder


def log(run_dir: Path, text: str, rank: int = 0, host: str = "local0") -> None:
    path = run_dir / "nodes" / host / f"rank{rank}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def refused(run_dir: Path, verb: str, *options: str) -> str:
    """The error message of a verb that cannot do what it is asked for."""
    done = seatrial(verb, run_dir, *options, cwd=run_dir.parent)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("error[") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("text", ["[1,2]", "5", "null", "{", "[" * 100_000, ""], ids=lambda text: text[:5])
@pytest.mark.parametrize("verb", ["stop", "logs", "attach"])
def test_a_status_that_is_none_is_told(run_dir: Path, verb: str, text: str) -> None:
    (run_dir / "status.json").write_text(text)
    assert "its status.json" in refused(run_dir, verb)


@pytest.mark.parametrize("text", ["[]", "5", "{", "{}", '{"on": [], "engine": 1}', "[" * 100_000], ids=lambda t: t[:9])
def test_so_is_a_plan(run_dir: Path, text: str) -> None:
    (run_dir / "plan.json").write_text(text)
    assert "its plan.json" in refused(run_dir, "stop")
    assert "its plan.json" in refused(run_dir, "logs", "--rank", "0")
    say(run_dir, launcher_pid=-1)
    assert "plan.json" in refused(run_dir, "attach")


def test_a_run_of_which_nothing_was_started_has_nothing_to_stop(run_dir: Path) -> None:
    assert "none of its processes has been started" in refused(run_dir, "stop")


def test_a_file_that_is_nearly_a_log_is_none(run_dir: Path) -> None:
    (run_dir / "nodes" / "h" / "rank1.log").mkdir(parents=True)
    (run_dir / "nodes" / "h" / "rankX.log").write_text("odd")
    assert "it holds no logs" in refused(run_dir, "logs")
    log(run_dir, "ours\n")
    assert b"".join(logs.logs(run_dir, rank=None, follow=False)) == b"ours\n"
    say(run_dir, state="ended")
    assert seatrial("judge", run_dir, cwd=run_dir).returncode == 2  # its plan has no spec


@pytest.mark.parametrize("follow", [(), ("--follow",)], ids=["once", "follow"])
@pytest.mark.parametrize("state", ["running", "ended"])
def test_a_rank_that_the_run_has_not_is_not_waited_for(run_dir: Path, state: str, follow: tuple[str, ...]) -> None:
    log(run_dir, "something\n")
    say(run_dir, state=state)
    assert "no rank 7" in refused(run_dir, "logs", "--rank", "7", *follow)
    assert "no rank -1" in refused(run_dir, "logs", "--rank", "-1", *follow)


def test_of_a_run_that_is_over_logs_that_are_not_there_are_told(run_dir: Path) -> None:
    say(run_dir, state="ended")
    assert "it holds no logs" in refused(run_dir, "logs", "-f")
    assert "it holds no log of rank 1" in refused(run_dir, "logs", "-f", "--rank", "1")
    say(run_dir, heartbeat=1.7e9, launcher_pid=-1)  # its launcher was killed
    assert "it holds no logs" in refused(run_dir, "logs", "-f")


def test_logs_are_followed_from_one_attempt_to_the_next(run_dir: Path) -> None:
    log(run_dir, "first ")
    log(run_dir, "of another rank", rank=1)
    told = logs.logs(run_dir, rank=0, follow=True)
    assert next(told) == b"first "
    log(run_dir, "to the end, ")
    say(run_dir, state="ended", reason="died")
    retries.mark_undecided(run_dir)
    (run_dir / "config.json").write_text("{}")
    retries.archive_attempt(run_dir, SPEC, 1)
    assert json.loads((run_dir / "status.json").read_text())["state"] == "retrying"
    assert json.loads((run_dir / "attempts/1/status.json").read_text())["state"] == "ended"
    assert not list(run_dir.rglob("undecided"))
    log(run_dir, "second")  # shorter than what was read of the one before
    say(run_dir, state="ended", reason="completed")
    assert b"".join(told) == b"to the end, second"


def test_logs_may_be_set_aside_while_they_are_looked_for(run_dir: Path) -> None:
    over = threading.Event()

    def set_aside() -> None:
        for number in itertools.takewhile(lambda _: not over.is_set(), itertools.count()):
            log(run_dir, "something")
            (run_dir / "nodes").rename(run_dir / str(number))

    other = threading.Thread(target=set_aside)
    other.start()
    try:
        for _ in range(2000):
            rank_logs(run_dir)
    finally:
        over.set()
        other.join()


@pytest.mark.parametrize(
    ("on", "advice"), [("local", "it runs on this machine, and ends with that process"), ("ssh", "kill -HUP")]
)
def test_the_advice_on_a_run_that_is_followed_does_not_end_it(run_dir: Path, on: str, advice: str) -> None:
    (run_dir / "plan.json").write_text(json.dumps({"on": on, "engine": "native"}))
    assert advice in refused(run_dir, "attach")


def test_nothing_is_over_between_two_attempts(run_dir: Path) -> None:
    """Neither while the end of the first is looked at, nor while the second begins."""
    told: list[bytes] = []
    log(run_dir, "first ")
    say(run_dir, state="ended", reason="died")
    retries.mark_undecided(run_dir)
    reader = threading.Thread(target=lambda: told.extend(logs.logs(run_dir, rank=None, follow=True)))
    reader.start()
    time.sleep(3 * logs.POLL_SECONDS)
    assert reader.is_alive()
    assert f"process {os.getpid()} follows it already" in refused(run_dir, "attach")
    retries.archive_attempt(run_dir, SPEC, 1)
    time.sleep(3 * logs.POLL_SECONDS)
    assert reader.is_alive()
    assert f"process {os.getpid()} follows it already" in refused(run_dir, "attach")
    log(run_dir, "second")
    say(run_dir, state="ended", reason="completed")
    reader.join(20)
    assert b"".join(told) == b"first second"


def test_who_is_stopped_between_two_attempts_is_not_tried_again(run_dir: Path) -> None:
    write_status(run_dir, SPEC, "retrying")
    over = threading.Timer(1.0, lambda: say(run_dir, state="ended", reason="died"))
    over.start()
    told = stop.stop(run_dir, now=False)
    over.join()
    assert "it is over (died), without a retry" in told
    assert (run_dir / STOP).exists()


def test_who_is_stopped_while_it_begins_is_told_as_soon_as_it_runs(run_dir: Path) -> None:
    write_status(run_dir, SPEC, "starting")

    def begin() -> None:
        (run_dir / "nodes" / "local0").mkdir(parents=True)
        say(run_dir)

    begun = threading.Timer(1.0, begin)
    begun.start()
    told = stop.stop(run_dir, now=False)
    begun.join()
    assert "its processes are asked to checkpoint and stop" in told
    assert (run_dir / "nodes" / "local0" / "stop").exists()


def test_hosts_that_were_left_are_told_though_the_run_is_over(run_dir: Path) -> None:
    """Here nobody can be told; that it was tried shows in what is said."""
    (run_dir / "plan.json").write_text(json.dumps({"on": "ssh", "engine": "native"}))
    hosts = [{"name": "gone", "address": "host.invalid", "ranks": [0]}]
    places = {"root": "/var/tmp/x", "transport": "asyncssh", "user": "x", "key_file": None, "hosts": hosts}
    (run_dir / "launch" / "places.json").write_text(json.dumps(places))
    say(run_dir, state="ended", reason="interrupted", left=[])
    assert "this run is over (interrupted)" in refused(run_dir, "stop")
    say(run_dir, state="ended", reason="interrupted", left=["gone"])
    done = seatrial("stop", run_dir, cwd=run_dir)
    assert done.returncode == 3
    assert "gone: it cannot be reached" in done.stderr
    assert json.loads((run_dir / "status.json").read_text())["left"] == ["gone"]
