"""A run directory as a row: what it holds, and that nothing that lies in one can break it."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from seatrial.history.listing import list_runs
from seatrial.history.summary import COLUMNS, STATES, stamp, summarise, without_copies
from seatrial.spec import Checkpoint, Distributed, Execution
from tests.helpers import run_directory, streams
from tests.helpers.history_runs import make, one_node


def test_a_row_has_what_the_run_measured(tmp_path: Path) -> None:
    run_dir = make(tmp_path / "a", versions={"jax": "0.10.2"})
    metrics = json.loads((run_dir / "metrics.json").read_text())
    row = summarise(run_dir)
    assert set(row) == set(COLUMNS)
    speed = metrics["performance"]["estimates"]
    assert row["step_seconds"] == speed["step_seconds"]["value"]
    assert row["step_seconds_low"] == speed["step_seconds"]["low"]
    assert row["tokens_per_second_per_device"] == speed["tokens_per_second_per_device"]["value"]
    assert row["mfu"] == speed["mfu"]["value"]
    wanted = {
        "outcome": "pass", "model": "llama3.1-70b", "device": "AMD Instinct MI300X", "num_nodes": 1, "num_devices": 8,
        "precision": "bfloat16", "sequence_length": 8192, "global_batch_size": 48, "convention": "causal",
        "num_steps": 30, "planned_steps": 30, "started_at": streams.START, "family": "native", "rehearsal": "",
        "versions": '{"jax": "0.10.2"}', "last_loss": metrics["numerics"]["last_loss"],
    }  # fmt: skip
    assert {name: row[name] for name in wanted} == wanted


@pytest.mark.parametrize(("story", "outcome"), [("killed", "died"), ("diverged", "fail"), ("slow", "fail")])
def test_the_outcome_is_the_verdicts(tmp_path: Path, story: str, outcome: str) -> None:
    run_dir = run_directory.write(tmp_path / "run", getattr(run_directory, story), rehearsing=False)
    row = summarise(run_dir)
    assert row["outcome"] == outcome
    if story == "diverged":
        assert row["last_loss"] == "nan"  # which is not the same as none


def test_a_run_without_a_verdict_is_where_its_launcher_says(tmp_path: Path) -> None:
    run_dir = make(tmp_path / "a")
    (run_dir / "verdict.json").unlink()
    assert summarise(run_dir)["outcome"] == "not_judged"
    status = {"v": 1, "state": "running", "last_step": 7, "started": 1.7e9, "heartbeat": 1.79e9}
    (run_dir / "status.json").write_text(json.dumps(status))
    assert summarise(run_dir, now=1.79e9 + 5)["outcome"] == "running"
    assert summarise(run_dir, now=1.79e9 + 500)["outcome"] == "not_finished"
    (run_dir / "status.json").write_text(json.dumps(status | {"state": "ended"}))
    assert summarise(run_dir, now=1.79e9 + 5)["outcome"] == "not_judged"


def test_the_fingerprint_is_of_what_decides_how_a_run_goes(tmp_path: Path) -> None:
    original = summarise(make(tmp_path / "a"))["fingerprint"]
    assert summarise(make(tmp_path / "b", spec=one_node(name="other", log_dir="elsewhere")))["fingerprint"] == original
    assert summarise(make(tmp_path / "c", spec=one_node(seed=1)))["fingerprint"] != original
    of_tonight = one_node(
        checkpoint=Checkpoint(directory="/checkpoints/nightly-20261127"),
        distributed=Distributed(coordinator_host="gpu-07", slurm={"time": "04:00:00"}),
        execution=Execution(
            environment={"WANDB_NAME": "nightly", "MASTER_ADDR": "gpu-07", "SLURM_JOB_ID": "4711", "LOCAL_RANK": "0"},
            engine_keys={"--tensorboard-dir": "/logs/20261127"},
        ),
    )
    assert summarise(make(tmp_path / "d", spec=of_tonight))["fingerprint"] == original
    faster = one_node(execution=Execution(environment={"NCCL_ALGO": "Ring", "WANDB_NAME": "nightly"}))
    assert summarise(make(tmp_path / "e", spec=faster))["fingerprint"] != original
    elsewhere = one_node(checkpoint=Checkpoint(resume_from="/checkpoints/other"))
    assert summarise(make(tmp_path / "f", spec=elsewhere))["fingerprint"] != original


def test_every_copy_of_a_run_has_its_record_and_no_other_run(tmp_path: Path) -> None:
    for clock in ("log", "counted"):
        one, other = (make(tmp_path / f"{clock}{seed}", seed=seed, clock=clock) for seed in (1, 2))
        rows = [summarise(path) for path in (shutil.copytree(one, tmp_path / f"a copy, {clock}"), one, other)]
        assert rows[0]["record"] == rows[1]["record"] != rows[2]["record"]
        kept = without_copies([{**row, "started_at": at} for row, at in zip(rows, (9.0, 3.0, 5.0), strict=True)])
        assert [row["directory"] for row in kept] == [str(one), str(other)]  # the one that started first
    (one / "events-0.jsonl").write_text("no event\n")
    empty = summarise(one)
    assert empty["record"] is None
    assert len(without_copies([empty, {**empty, "directory": "/another"}])) == 2


def test_times_that_only_count_the_steps_are_no_date(tmp_path: Path) -> None:
    run_dir = make(tmp_path / "a", clock="counted")
    assert summarise(run_dir)["started_at"] == pytest.approx(
        min(path.stat().st_mtime for path in run_dir.glob("*.json")), abs=1e-3
    )


def test_a_judged_log_is_a_run_too(tmp_path: Path) -> None:
    run_dir = make(tmp_path / "a")
    (run_dir / "plan.json").rename(run_dir / "judged.json")
    (run_dir / "judged.json").write_text(json.dumps({"v": 1, "sources": ["x.log"], "family": "megatron"}))
    row = summarise(run_dir)
    assert (row["outcome"], row["family"], row["model"]) == ("pass", "megatron", "llama3.1-70b")


SECRET = "hunter2-0123456789abcdef"


def test_no_value_of_a_variable_is_stored(tmp_path: Path) -> None:
    """Nor the one that a dying process spelled out in its last line, which the headline quotes."""
    execution = Execution(environment={"HF_TOKEN": SECRET, "PLAIN": SECRET})
    run_dir = make(tmp_path / "a", spec=one_node(execution=execution), note=SECRET)
    verdict = json.loads((run_dir / "verdict.json").read_text())
    verdict["headline"] = f"rank 0 died; its last line: login failed with HF_TOKEN={SECRET}"
    (run_dir / "verdict.json").write_text(json.dumps(verdict))
    row = summarise(run_dir)
    assert SECRET not in json.dumps(row)
    assert str(row["note"]).endswith("HF_TOKEN=***")


@pytest.mark.parametrize("text", [b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"outcome": 1}', b"", b'"' * 9])
@pytest.mark.parametrize("name", ["plan.json", "metrics.json", "verdict.json", "spec.json", "status.json"])
def test_a_broken_file_makes_the_run_unreadable_not_the_history(tmp_path: Path, name: str, text: bytes) -> None:
    run_dir = make(tmp_path / "a")
    (run_dir / name).write_bytes(text)
    row = summarise(run_dir)
    if text == b'{"outcome": 1}' and name != "verdict.json":
        assert row["outcome"] == "pass"  # an object with nothing of ours in it
    else:
        assert row["outcome"] == "unreadable"
        assert name in str(row["note"])


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    run_dir = make(tmp_path / "a")
    (run_dir / "metrics.json").unlink()
    os.mkfifo(run_dir / "metrics.json")
    os.mkfifo(run_dir / "events-1.jsonl")
    assert summarise(run_dir)["outcome"] == "unreadable"


ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1e308, 10**400, "nan", "inf", "", "x", "\ud800", "\x00", [], [1], {}, {"a": 1},
    {"value": "x"}, [[[]]],
)  # fmt: skip


def scrambled(data: Any, rng: random.Random) -> Any:
    """The data with some of its values, at any depth, replaced by odd ones."""
    if rng.random() < 0.08:
        return rng.choice(ODD)
    if isinstance(data, dict):
        return {key: scrambled(value, rng) for key, value in data.items() if rng.random() > 0.03}
    return [scrambled(value, rng) for value in data] if isinstance(data, list) else data


def test_whatever_the_files_say_a_row_can_be_stored(tmp_path: Path) -> None:
    run_dir = make(tmp_path / "a", versions={"jax": "0.10.2"})
    (run_dir / "status.json").write_text(json.dumps({"state": "running", "heartbeat": 1.0, "last_step": 3}))
    original = {path.name: json.loads(path.read_text()) for path in run_dir.glob("*.json")}
    events = [json.loads(line) for line in (run_dir / "events-0.jsonl").read_text().splitlines()[:3]]
    database = sqlite3.connect(":memory:")
    rng = random.Random(17)
    for number in range(300):
        for name, data in original.items():
            (run_dir / name).write_text(json.dumps(scrambled(data, rng)))
        (run_dir / "events-0.jsonl").write_text("\n".join(json.dumps(scrambled(event, rng)) for event in events))
        row = summarise(run_dir)
        assert row["outcome"] in STATES
        values = [row[column] for column in COLUMNS]
        database.execute(f"SELECT {', '.join('?' * len(values))}", values)
        if number % 10 == 0:
            assert list_runs(run_dir, path=tmp_path / "index")
            assert json.loads(list_runs(run_dir, output="json", path=tmp_path / "index"))["total"] == 1
    database.close()


def test_the_stamp_changes_with_each_file(tmp_path: Path) -> None:
    run_dir = make(tmp_path / "a")
    seen = {stamp(run_dir)}
    for name in ("verdict.json", "metrics.json", "events-0.jsonl", "plan.json"):
        path = run_dir / name
        path.write_text(path.read_text() + " ")
        seen.add(stamp(run_dir))
    (run_dir / "status.json").write_text("{}")
    seen.add(stamp(run_dir))
    assert len(seen) == 6
    assert stamp(run_dir) in seen
