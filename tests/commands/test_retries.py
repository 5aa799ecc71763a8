"""Runs that are tried again: only where machines are to blame, from the last checkpoint, with nothing lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from seatrial import events, recording
from seatrial.cluster import Cluster, Host
from seatrial.commands import retries
from seatrial.commands.judge import judge_run
from seatrial.dialects import load
from seatrial.errors import LaunchError
from seatrial.events import Event, Fault, RunEnded, RunStarted
from seatrial.launch.local import this_machine
from seatrial.plan import Plan, PlanRequest, Site, make_plan
from seatrial.runs.status import write_status
from seatrial.spec import RunSpec
from tests.helpers.command_line import seatrial
from tests.helpers.processes import wait_until
from tests.helpers.tiny_runs import SEATRIAL, TINY, TWO_PROCESSES, end_of, read_json, start, stepping, write_config

HOSTS = tuple(Host(name=f"node{n}", address=f"10.0.0.{n}") for n in range(3))


@pytest.mark.slow
def test_a_process_that_is_killed_is_started_again_from_the_last_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "run"
    checkpoint = {"enabled": True, "interval_steps": 50}
    config = write_config(tmp_path, steps=1000, checkpoint=checkpoint, **TWO_PROCESSES)
    launcher = start(config, out, "--retries", "2")
    pids = stepping(out, 2, launcher)
    told_logs = tmp_path / "logs.txt"
    with told_logs.open("wb") as file:
        reader = subprocess.Popen([*SEATRIAL, "logs", "--follow", "--rank", "1", str(out)], stdout=file)
    wait_until(lambda: list(out.glob("checkpoints/*/commit_success.txt")) or launcher.poll() is not None, 60)
    os.kill(pids[1], signal.SIGKILL)
    code, told = end_of(launcher, 200)
    assert code == 0, told
    assert "attempt 1 of 3 is over; retry: rank 1 on local1" in told
    assert "Completed all 1,000 steps, in 2 attempts" in " ".join(told.split())
    first, whole = out / "attempts" / "1", recording.read_run(out)
    assert read_json(first / "verdict.json")["outcome"] == "died"
    assert reader.wait(30) == 0
    both = [path / "nodes" / "local1" / "rank1.log" for path in (first, out)]
    assert told_logs.read_bytes() == b"".join(path.read_bytes() for path in both)
    assert judge_run(first)[1].exit_code == 4
    begun = [(e.process, e.attempt) for e in whole if isinstance(e, RunStarted)]
    assert sorted(begun) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    restored = [e.step for e in whole if isinstance(e, events.Checkpoint) and e.action == "restore"]
    assert restored
    assert all(step >= 50 for step in restored)
    assert judge_run(out)[1].outcome == "pass"


CLUSTER = "hosts: [127.0.0.1]\nuser: nobody-of-this-name\n"  # whoever listens there knows nobody of the kind


@pytest.mark.parametrize(
    "arguments",
    [
        ("--on", "ssh", "--cluster", "cluster.yaml"),
        ("--on", "ssh", "--cluster", "cluster.yaml", "--no-preflight"),
        ("--on", "slurm"),
        ("--on", "slurm", "--retries", "2"),
    ],
    ids=" ".join,
)
def test_what_could_not_be_started_is_recorded_as_that(
    tmp_path: Path, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On hosts that let nobody in, and under a Slurm that is not installed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    out = tmp_path / "run"
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    done = seatrial("run", write_config(tmp_path, steps=20), "--out", out, *arguments, cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    status = read_json(out / "status.json")
    assert (status["state"], status["reason"]) == ("ended", "could_not_run")
    fault, ended = events.read(out / "events-launcher.jsonl")
    assert isinstance(fault, Fault)
    assert isinstance(ended, RunEnded)
    assert (fault.fault, ended.reason) == ("start_failed", "could_not_run")
    why = fault.text.rpartition("127.0.0.1: ")[2]
    assert why.partition(": ")[0] in " ".join(done.stderr.split())
    judged = seatrial("judge", out, cwd=tmp_path)
    assert judged.returncode == 3
    assert f"The run could not be started: {fault.text[:40]}" in " ".join(judged.stdout.split())
    assert not list(out.rglob("undecided"))


@pytest.mark.parametrize("error", [LaunchError("no host is left"), OSError("no space is left")], ids=str)
def test_a_further_attempt_that_cannot_be_planned_is_recorded_as_that(tmp_path: Path, error: Exception) -> None:
    spec = _spec(tmp_path)
    write_status(tmp_path, spec, "retrying")
    with pytest.raises(LaunchError, match=str(error)), retries.beginning(tmp_path):
        raise error
    status = read_json(tmp_path / "status.json")
    assert (status["state"], status["reason"], status["planned_steps"]) == ("ended", "could_not_run", 20)
    fault, _ = events.read(tmp_path / "events-launcher.jsonl")
    assert isinstance(fault, Fault)
    assert str(error) in fault.text


@pytest.mark.parametrize("change", [{"launcher_pid": 1}, {"state": "running"}, {"state": "ended"}], ids=str)
def test_nothing_is_recorded_in_the_directory_of_another_run(tmp_path: Path, change: dict[str, object]) -> None:
    spec = _spec(tmp_path)
    write_status(tmp_path, spec, "starting")
    status = tmp_path / "status.json"
    status.write_text(json.dumps(read_json(status) | change))
    before = status.read_bytes()
    with pytest.raises(LaunchError), retries.beginning(tmp_path):
        raise LaunchError("it cannot be planned")
    assert {path.name for path in tmp_path.iterdir()} == {"asked", "status.json"}
    assert status.read_bytes() == before


def test_what_a_run_does_by_itself_is_not_tried_again(tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("too short")
    model = TINY["model"] | {"vocab_size": 256}
    config = write_config(tmp_path, steps=20, data={"kind": "text", "paths": [str(short)]}, model=model)
    code, told = end_of(start(config, tmp_path / "run", "--retries", "2"))
    assert code == 3, told
    assert "no retry, because it would end the same way" in " ".join(told.split())
    assert not (tmp_path / "run" / "attempts").exists()


@pytest.mark.parametrize(
    ("fault", "where", "code", "spare", "worth_it", "exclude"),
    [
        ("node_lost", "node1", None, 1, True, ("node1",)),
        ("node_lost", "node1", None, 0, False, ()),
        ("process_died", "rank 1 on node1", 137, 0, True, ()),
        ("process_died", "rank 1 on node1", 75, 0, True, ()),
        ("process_died", "rank 1 on node1", 1, 1, False, ()),
        ("start_failed", "rank 1 on node1", 127, 1, False, ()),
        ("gpu_ecc", "node2", None, 1, True, ("node2",)),
        ("device_oom", "rank 0", None, 1, False, ()),
        ("no_progress", "all ranks", None, 0, True, ()),
        ("preempted", "Kueue", None, 0, True, ()),
        ("cancelled", "node1", None, 0, False, ()),
    ],
)
def test_what_is_worth_another_attempt(
    tmp_path: Path, fault: str, where: str, code: int | None, spare: int, worth_it: bool, exclude: tuple[str, ...]
) -> None:
    interrupted = dict.fromkeys(("preempted", "cancelled"), "interrupted")
    reasons = {"start_failed": "could_not_run", "no_progress": "no_progress", **interrupted}
    reason = reasons.get(fault, "died")
    facts = {"exit_code": code} if code is not None else {}
    recorded: list[Event] = [
        Fault(process=-1, fault=fault, where=where, text=f"{where}: something", facts=facts),
        RunEnded(process=-1, reason=reason, exit_code=code),
    ]
    (tmp_path / "plan.json").write_text(_plan_json(tmp_path))
    (tmp_path / "events-launcher.jsonl").write_text("".join(events.dumps(event) + "\n" for event in recorded))
    report, verdict = judge_run(tmp_path)
    decision = retries.decide_retry(report, verdict, tmp_path, *_on_hosts("native", spare))
    assert (decision.retry, decision.exclude) == (worth_it, exclude), decision


UNHEALTHY = "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):\n{}\nThe tasks have crashed."
KEEP_ALIVE = (
    "WARNING: The node 'node0_77_0' has failed to send a keep-alive heartbeat to the rendezvous 'job' due to an error "
    "of type RendezvousConnectionError."
)


@pytest.mark.parametrize(
    ("engine", "said", "exclude"),
    [
        ("maxtext", UNHEALTHY.format("/job:jax_worker/replica:0/task:2"), ("node2",)),
        ("maxtext", UNHEALTHY.format("2"), ("node2",)),
        ("megatron", KEEP_ALIVE, ()),
        ("megatron", "[rank11]: CUDA error: uncorrectable ECC error encountered", ()),  # a rank of many on its node
    ],
)
def test_the_host_of_whoever_reports_a_lost_peer_is_not_left_out(
    tmp_path: Path, engine: str, said: str, exclude: tuple[str, ...]
) -> None:
    """The first two processes say it, and JAX's abort; the third stands still."""
    plan = json.loads(_plan_json(tmp_path)) | {"engine": engine}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    for rank in (0, 1):
        log = tmp_path / "nodes" / f"node{rank}" / f"rank{rank}.log"
        log.parent.mkdir(parents=True)
        log.write_text(f"completed step: 3, seconds: 0.5, total_weights: 2048, loss: 9.1\n{said}\n")
    recorded: list[Event] = [RunEnded(process=-1, wall_time=9.0, reason="no_progress")]
    if engine == "maxtext":
        facts = {"exit_code": 134, "rank": 0}
        died = Fault(process=-1, wall_time=9.0, fault="process_died", where="rank 0 on node0", facts=facts)
        recorded = [died, RunEnded(process=-1, wall_time=9.0, reason="died")]
    (tmp_path / "events-launcher.jsonl").write_text("".join(events.dumps(event) + "\n" for event in recorded))
    report, verdict = judge_run(tmp_path)
    assert "rank 0 on node0" not in verdict.headline.partition(" before ")[0].partition(", reported by ")[0]
    decision = retries.decide_retry(report, verdict, tmp_path, *_on_hosts(engine, spare=1))
    assert (decision.retry, decision.exclude) == (True, exclude), decision


def _on_hosts(engine: str, spare: int) -> tuple[Plan, Site]:
    """A plan with a process on each of the hosts, and as many hosts to spare."""
    processes = {host: [SimpleNamespace(rank=rank)] for rank, host in enumerate(HOSTS)}
    cluster = Cluster(hosts=(*HOSTS, *(Host(name="spare", address="10.0.0.9"),) * spare), transport="ssh")
    plan = SimpleNamespace(hosts=processes, on="ssh", engine=engine)
    return cast(Plan, plan), cast(Site, SimpleNamespace(cluster=cluster))


def _plan_json(folder: Path) -> str:
    """Of any run: what it was is not looked at."""
    return json.dumps(make_plan(PlanRequest(spec=_spec(folder), run_dir=folder, machine=this_machine())).as_dict())


def _spec(folder: Path) -> RunSpec:
    (folder / "asked").mkdir()
    resolved = load(write_config(folder / "asked", steps=20), (), action="run")
    assert resolved.spec is not None
    return resolved.spec
