"""The scanner: what it reads and when, and that no directory can end or hold it up."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from seatrial.history.summary import summarise
from seatrial.serve import scanner
from seatrial.serve.scanner import Scanner
from tests.helpers import many_runs
from tests.helpers.history_runs import make
from tests.helpers.many_runs import LiveRun


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SWEEP_SECONDS", "STILL_SECONDS"):
        monkeypatch.setattr(scanner, name, 0.0)
    monkeypatch.setattr(scanner, "SHARE", 1e9)


def outcomes(message: dict[str, Any]) -> dict[str, str]:
    return {Path(row["directory"]).name: row["outcome"] for row in message["rows"]}


def whole(looking: Scanner) -> dict[str, Any]:
    """All that several turns say."""
    found: dict[str, Any] = {"rows": [], "gone": [], "live": []}
    for _ in range(3):
        message = looking.turn()
        for name in found:
            found[name] += message[name]
    return found


def test_only_what_has_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = many_runs.write(tmp_path / "runs", 12)
    (root / "deeper" / "still").mkdir(parents=True)
    one = make(root / "deeper" / "still" / "one")
    looking = Scanner([root], {})
    assert len(whole(looking)["rows"]) == 13
    time.sleep(0.01)
    read = list[str]()
    monkeypatch.setattr(scanner, "summarise", lambda path: read.append(path.name) or summarise(path))
    assert whole(looking)["rows"] == []
    assert read == []
    verdict = json.loads((one / "verdict.json").read_text())
    other = one / ".new"
    other.write_text(json.dumps(verdict | {"outcome": "fail"}))
    other.replace(one / "verdict.json")
    assert outcomes(whole(looking)) == {"one": "fail"}
    for file, name, value in (("verdict.json", "outcome", "died"), ("metrics.json", "v", 2)):
        path = one / file  # overwritten where it lies, as `cp -r` and `scp -r` do: the directory's time stays
        path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
        assert outcomes(whole(looking)) == {"one": "died"}
    assert read == ["one"] * 3
    shutil.rmtree(one)
    assert whole(looking)["gone"] == [str(one)]


def test_rows_of_the_index_hold_where_nothing_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = many_runs.write(tmp_path / "runs", 6)
    rows = {str(path): summarise(path) for path in root.iterdir()}
    changed, gone = list(rows)[:2]
    (Path(changed) / "verdict.json").unlink()
    shutil.rmtree(gone)
    read = list[str]()
    monkeypatch.setattr(scanner, "summarise", lambda path: read.append(str(path)) or summarise(path))
    found = whole(Scanner([root], rows))
    assert read == [changed]
    assert outcomes(found) == {Path(changed).name: "not_judged"}
    assert found["gone"] == [gone]


def test_a_run_is_seen_from_its_start_to_its_verdict(tmp_path: Path) -> None:
    root = many_runs.write(tmp_path / "runs", 2)
    looking = Scanner([root], {})
    whole(looking)
    run = LiveRun(root / "live")
    assert outcomes(looking.turn()) == {"live": "running"}
    run.step()
    (figures,) = looking.turn()["live"]
    assert (figures["step"], figures["state"]) == (1, "running")
    many_runs.put_status(run.directory, state="ended")
    assert outcomes(looking.turn()) == {"live": "not_judged"}
    shutil.copy(make(tmp_path / "other") / "verdict.json", run.directory / "verdict.json")
    found = looking.turn()
    assert outcomes(found) == {"live": "pass"}
    assert found["live"] == []


@pytest.mark.timeout(60)
def test_nothing_in_a_directory_ends_it_or_holds_it_up(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    odd = {
        "truncated": lambda run: (run / "verdict.json").write_text('{"outcome": "pa'),
        "deep": lambda run: (run / "metrics.json").write_text("[" * 200_000),
        "fifo": lambda run: ((run / "metrics.json").unlink(), os.mkfifo(run / "metrics.json")),
        "device": lambda run: ((run / "metrics.json").unlink(), (run / "metrics.json").symlink_to("/dev/zero")),
        "folder": lambda run: ((run / "metrics.json").unlink(), (run / "metrics.json").mkdir()),
        "fifo of events": lambda run: ((run / "events-0.jsonl").unlink(), os.mkfifo(run / "events-0.jsonl")),
    }
    for name, spoil in odd.items():
        spoil(make(root / name))
    (root / "loop").symlink_to(root)
    (root / os.fsdecode(b"\xff\xfe<img>")).mkdir()
    (root / os.fsdecode(b"\xff\xfe<img>") / "plan.json").write_text("{}")
    hostile = LiveRun(root / "live")
    many_runs.put_status(hostile.directory, processes=[None, 7, {"host": []}], last_step="x", planned_steps=10**400)
    found = whole(Scanner([root], {}))
    assert outcomes(found) | {"live": "running", "fifo of events": "pass"} == outcomes(found)
    unreadable = {name for name, outcome in outcomes(found).items() if outcome == "unreadable"}
    assert unreadable == {"truncated", "deep", "fifo", "device", "folder"}
    json.dumps(found)
