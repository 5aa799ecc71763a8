"""A run that goes on is neither judged nor reported nor listed as over; one whose launcher is gone can be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from seatrial.history.summary import summarise
from seatrial.runs.status import UNDECIDED, launcher_pid, new_status, read_status, require_over, starting_pid, state_of
from tests.helpers.command_line import seatrial
from tests.helpers.history_runs import make

LONG_AGO = 1.7e9
GONE = 2**22 + 1  # no process has this number


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of which nobody has judged what it did until now."""
    folder = make(tmp_path / "run", last=12)
    for name in ("verdict.json", "metrics.json"):
        (folder / name).unlink()
    return folder


def say(run_dir: Path, **changes: Any) -> None:
    status = {"v": 1, "state": "running", "last_step": 12, "launcher_pid": GONE, "started": LONG_AGO}
    (run_dir / "status.json").write_text(json.dumps({**status, "heartbeat": time.time(), **changes}))


def files(run_dir: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in run_dir.rglob("*")}


@pytest.mark.parametrize("verb", [("judge",), ("report",), ("report", "--format", "json")], ids=" ".join)
@pytest.mark.parametrize("state", ["starting", "running", "stopping", "retrying"])
def test_a_run_that_goes_on_is_not_judged(run_dir: Path, state: str, verb: tuple[str, ...]) -> None:
    say(run_dir, state=state)
    before = files(run_dir)
    done = seatrial(verb[0], run_dir, *verb[1:], cwd=run_dir.parent)
    told = done.stdout + done.stderr
    assert done.returncode == 2, told
    assert f"this run goes on ({state}, step 12)" in told
    assert all(f"seatrial {way}" in told for way in ("attach", "logs -f", "stop"))
    assert files(run_dir) == before
    assert summarise(run_dir)["outcome"] == "running"


def test_nor_is_one_whose_launcher_lives_though_nothing_is_heard_of_it(run_dir: Path) -> None:
    say(run_dir, heartbeat=LONG_AGO, launcher_pid=os.getpid(), started=time.time())
    assert seatrial("judge", run_dir, cwd=run_dir.parent).returncode == 2
    assert summarise(run_dir)["outcome"] == "running"


def test_one_whose_launcher_is_gone_is_judged_by_what_there_is(run_dir: Path) -> None:
    say(run_dir, heartbeat=LONG_AGO)
    assert summarise(run_dir)["outcome"] == "not_finished"
    done = seatrial("judge", run_dir, cwd=run_dir.parent)
    assert done.returncode == 4, done.stdout
    assert seatrial("report", run_dir, cwd=run_dir.parent).returncode == 0
    assert summarise(run_dir)["outcome"] == "died"


def test_a_verdict_on_an_earlier_attempt_is_none_on_a_run_that_goes_on(tmp_path: Path) -> None:
    folder = make(tmp_path / "run")
    say(folder, state="retrying")
    assert summarise(folder)["outcome"] == "running"


def test_what_has_ended_goes_on_until_its_launcher_has_decided(run_dir: Path) -> None:
    (run_dir / UNDECIDED).parent.mkdir(exist_ok=True)
    (run_dir / UNDECIDED).write_text(str(GONE))
    say(run_dir, state="ended")
    assert state_of(run_dir, read_status(run_dir)) == "retrying"
    say(run_dir, state="ended", heartbeat=LONG_AGO)  # it was killed before
    assert state_of(run_dir, read_status(run_dir)) == "ended"
    say(run_dir, state="ended", launcher_pid=GONE + 1)  # somebody else has followed it to its end
    assert state_of(run_dir, read_status(run_dir)) == "ended"
    (run_dir / UNDECIDED).unlink()
    say(run_dir, state="ended")
    assert state_of(run_dir, read_status(run_dir)) == "ended"


@pytest.mark.parametrize("odd", [None, True, -1, 10**400, 1e308, "x", [], {}, "nan"], ids=str)
def test_odd_values_are_of_nobody_who_lives(run_dir: Path, odd: Any) -> None:
    for name in ("heartbeat", "launcher_pid", "started", "state", "last_step"):
        say(run_dir, **{"heartbeat": LONG_AGO, name: odd})
        assert state_of(run_dir, read_status(run_dir)) == "abandoned"
        assert launcher_pid(read_status(run_dir)) is None
    require_over(run_dir)


def test_a_number_that_a_process_of_another_kind_has_is_no_launcher() -> None:
    """As of a run in a container, whose launcher is process 1 there."""
    assert launcher_pid({"launcher_pid": 1, "started": time.time()}) is None


@pytest.mark.parametrize("words", [("run", "x.yaml"), ("run", "x.yaml", "--out", "other"), ("plan", "--out", "run")])
def test_nobody_waits_for_a_run_that_nobody_starts(tmp_path: Path, words: tuple[str, ...]) -> None:
    sleeps = [sys.executable, "-c", "import time; time.sleep(600)", "seatrial", *words]
    with subprocess.Popen(sleeps, cwd=tmp_path) as other:
        try:
            assert starting_pid(tmp_path / "run") is None
        finally:
            other.kill()


@pytest.mark.parametrize("words", [("--out", "run"), ("--out=run",), ("--out", "./else/../run")])
def test_who_starts_a_run_is_known_by_its_directory(tmp_path: Path, words: tuple[str, ...]) -> None:
    sleeps = [sys.executable, "-c", "import time; time.sleep(600)", "seatrial", "run", "x.yaml", *words]
    with subprocess.Popen(sleeps, cwd=tmp_path) as other:
        try:
            assert starting_pid(tmp_path / "run") == other.pid
            done = seatrial("attach", "run", cwd=tmp_path)
            assert (done.returncode, f"process {other.pid} follows it already" in done.stderr) == (2, True)
        finally:
            other.kill()


def test_one_of_which_not_all_could_be_copied_is_not_judged(run_dir: Path) -> None:
    say(run_dir, heartbeat=0.0, uncopied={"a": "the disk is full"})
    for verb in ("judge", "report"):
        done = seatrial(verb, run_dir, cwd=run_dir.parent)
        assert done.returncode == 2, done.stdout
        assert "not all that its hosts wrote could be copied here" in done.stderr
        assert "seatrial attach run" in done.stderr
    say(run_dir, state="ended", reason="completed", uncopied={"a": "the disk is full"})
    require_over(run_dir)


def test_of_one_on_hosts_whose_launcher_is_gone_there_may_be_more(run_dir: Path) -> None:
    say(run_dir, heartbeat=LONG_AGO)
    assert require_over(run_dir) == ()
    (run_dir / "launch").mkdir(exist_ok=True)
    (run_dir / "launch" / "places.json").write_text("{}")
    done = seatrial("judge", run_dir, cwd=run_dir.parent)
    assert "it is no longer followed" in done.stderr
    assert "seatrial attach run" in done.stderr


@pytest.mark.parametrize(
    ("state", "found"), [("starting", "abandoned"), ("retrying", "abandoned"), ("running", "running")]
)
def test_a_launcher_that_died_here_before_anything_ran_is_not_waited_for(state: str, found: str) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    status = {**new_status("it", 12, state), "launcher_pid": process.pid}
    assert state_of(Path("run"), status) == found
    assert state_of(Path("run"), {**status, "launcher_at": "another boot"}) == state
    assert state_of(Path("run"), {**status, "launcher_pid": os.getpid()}) == state
