"""Runs from configuration to verdict, with the real trainer, and what becomes of them when something breaks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from seatrial import events, recording
from seatrial.commands.check import ConfigArguments
from seatrial.commands.run import RunRequest, run
from seatrial.launch.deadlines import Deadlines
from tests.helpers.compiling import quick_flags
from tests.helpers.processes import processes_with, wait_until
from tests.helpers.tiny_runs import (
    CANARY,
    CVS,
    SEATRIAL,
    TINY,
    TWO_PROCESSES,
    end_of,
    read_json,
    start,
    stepping,
    write_config,
)


def reason(run_dir: Path) -> str:
    ended = [e for e in events.read(run_dir / "events-launcher.jsonl") if isinstance(e, events.RunEnded)]
    assert len(ended) == 1
    return ended[0].reason


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run of two processes that passed: (its directory, what it printed)."""
    folder = tmp_path_factory.mktemp("passed")
    secret = TINY["execution"] | {"environment": {"HF_TOKEN": CANARY}}
    config = write_config(folder, steps=20, execution=secret, **TWO_PROCESSES)
    code, text = end_of(start(config, folder / "run"), 200)
    assert code == 0, text
    return folder / "run", text


def test_a_run_that_passes_leaves_everything_behind(passed: tuple[Path, str]) -> None:
    run_dir, text = passed
    assert {str(path.relative_to(run_dir)) for path in run_dir.rglob("*") if path.is_file()} == {
        "config.json", "spec.json", "plan.json", "status.json", "metrics.json", "verdict.json", "report.html",
        "events-0.jsonl", "events-1.jsonl", "events-launcher.jsonl", "metrics.csv", "metrics.jsonl",
        "launch/trainer-spec.json", "launch/agent.py", "launch/agent-local0.json", "launch/agent-local1.json",
        "launch/processes.py", "launch/observer.py", "launch/sensors.py", "launch/lease", "nodes/local0/observed.jsonl",
        "nodes/local0/rank0.log", "nodes/local0/status.json", "nodes/local0/agent.log",
        "nodes/local1/rank1.log", "nodes/local1/status.json", "nodes/local1/agent.log",
    }  # fmt: skip
    assert (run_dir / "config.json").read_bytes() == (run_dir.parent / "tiny.json").read_bytes()
    assert read_json(run_dir / "verdict.json")["outcome"] == "pass"
    assert reason(run_dir) == "completed"
    status = read_json(run_dir / "status.json")
    assert (status["state"], status["reason"], status["last_step"]) == ("ended", "completed", 19)
    assert [p["exit_code"] for p in status["processes"]] == [0, 0]
    assert "step 20/20" in text
    assert "PASS" in text
    assert str(Path("run") / "report.html") in text


def test_a_secret_of_the_configuration_is_in_no_file_but_its_copy(passed: tuple[Path, str]) -> None:
    run_dir, text = passed
    files = [path for path in run_dir.rglob("*") if path.is_file()]
    assert [path.name for path in files if CANARY.encode() in path.read_bytes()] == ["config.json"]
    assert CANARY not in text


def test_it_can_be_judged_and_reported_again(passed: tuple[Path, str]) -> None:
    run_dir, text = passed
    verdict, report = run_dir / "verdict.json", run_dir / "report.html"
    before = verdict.read_bytes()
    verdict.unlink()
    report.unlink()
    plain = dict(os.environ)  # without the COLUMNS that readline puts behind Python's back
    again = subprocess.run([*SEATRIAL, "judge", str(run_dir)], capture_output=True, text=True, check=True, env=plain)
    assert again.stdout.strip() in text
    assert verdict.read_bytes() == before
    subprocess.run([*SEATRIAL, "report", str(run_dir)], capture_output=True, check=True)
    assert report.stat().st_size > 1000
    as_json = subprocess.run([*SEATRIAL, "judge", str(run_dir), "--format", "json"], capture_output=True, check=True)
    assert json.loads(as_json.stdout)


def test_a_directory_in_use_is_refused(passed: tuple[Path, str]) -> None:
    run_dir, _ = passed
    code, text = end_of(start(run_dir.parent / "tiny.json", run_dir))
    assert code == 2
    assert "is not empty" in text
    assert "Traceback" not in text


def test_a_current_folder_that_is_gone_is_said(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'rmdir "$PWD"; exec "$@"'
    command = ["sh", "-c", script, "sh", *SEATRIAL, "plan", str(write_config(tmp_path))]
    done = subprocess.run(command, cwd=gone, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "the current folder has been removed" in done.stderr


def test_what_cannot_be_a_run_directory_is_refused(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    for out, said in (
        (str(config), "is a file, and a run needs a folder"),
        ("/dev/null", "is no folder, and a run needs a folder"),
        ("", "it names no folder"),
    ):
        done = subprocess.run(
            [*SEATRIAL, "run", str(config), "--out", out], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert said in done.stderr
        assert "Traceback" not in done.stderr


ANSWER = {"input": "What is it? ", "output": "A"}
PREFERENCE = {"prompt": "Is it so? ", "chosen": "yes", "rejected": "no!"}


@pytest.mark.parametrize(
    ("kind", "record", "packing"),
    [
        ("sft", ANSWER, False),
        pytest.param("sft", ANSWER, True, marks=pytest.mark.slow),
        pytest.param("dpo", PREFERENCE, False, marks=pytest.mark.slow),
        pytest.param("orpo", PREFERENCE, False, marks=pytest.mark.slow),
    ],
)
def test_answers_that_are_equally_long_are_no_contradiction(
    tmp_path: Path, run_dir: Path, kind: str, record: dict[str, str], packing: bool
) -> None:
    data = tmp_path / "records.jsonl"
    data.write_text(f"{json.dumps(record)}\n" * 40)
    changes = {
        "model": TINY["model"] | {"vocab_size": 258},
        "batch": {"sequence_length": 64, "global_batch_size": 2, "micro_batch_size": 1},
        "objective": {"kind": kind},
        "data": {"kind": "records", "paths": [str(data)], "packing": packing},
    }
    code, text = end_of(start(write_config(tmp_path, steps=20, **changes), run_dir), 200)
    assert code == 0, text
    counted = {event.tokens for event in events.read(run_dir / "events-0.jsonl") if isinstance(event, events.Step)}
    assert len(counted) == 1
    assert max(counted) < 2 * 64


@pytest.mark.slow
def test_a_run_that_has_to_resume_stops_where_there_is_no_checkpoint(tmp_path: Path, run_dir: Path) -> None:
    asked = {"enabled": True, "resume": True, "resume_required": True, "directory": str(tmp_path / "checkpoints")}
    code, text = end_of(start(write_config(tmp_path, steps=3, checkpoint=asked), run_dir), 200)
    assert code == 3
    assert "there is no checkpoint to resume from" in " ".join(text.split())
    assert "checkpoint.resume_required" in text
    assert reason(run_dir) == "could_not_run"
    assert "Traceback" not in text


@pytest.mark.slow
def test_flags_of_the_shell_are_used_and_the_configuration_s_come_after_them(tmp_path: Path, run_dir: Path) -> None:
    own = {**quick_flags(), "xla_cpu_enable_fast_math": "false"}
    config = write_config(tmp_path, steps=3, execution={"xla_flags": own})
    flags = f"--xla_dump_to={tmp_path / 'dump'} --xla_cpu_enable_fast_math=true"
    code, text = end_of(start(config, run_dir, XLA_FLAGS=flags), 200)
    assert code == 0, text
    assert f"note: XLA_FLAGS of this shell are used, and the configuration's come after them: {flags}\n" in text
    (process,) = read_json(run_dir / "plan.json")["processes"]
    planned = process["environment"]["XLA_FLAGS"].split()
    assert f"--xla_dump_to={tmp_path / 'dump'}" in planned
    assert "--xla_cpu_enable_fast_math=false" in planned
    assert "--xla_cpu_enable_fast_math=true" not in planned
    begun = next(event for event in events.read(run_dir / "events-0.jsonl") if isinstance(event, events.RunStarted))
    assert begun.facts["xla_flags"].items() >= {**own, "xla_dump_to": str(tmp_path / "dump")}.items()
    assert any((tmp_path / "dump").iterdir())


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_killed_process_is_named_and_its_peer_is_stopped(tmp_path: Path, run_dir: Path, mark: str, rank: int) -> None:
    launcher = start(write_config(tmp_path, **TWO_PROCESSES), run_dir)
    pids = stepping(run_dir, 2, launcher)
    os.kill(pids[rank], signal.SIGKILL)
    killed = time.monotonic()
    trainers = f"{run_dir}/launch/trainer-spec.json"
    wait_until(lambda: not processes_with(trainers), 10)
    assert time.monotonic() - killed < 10
    code, text = end_of(launcher)
    assert code == 4
    assert f"rank {rank} on local{rank} was ended by SIGKILL" in " ".join(text.split())
    assert reason(run_dir) == "died"
    assert (run_dir / "report.html").exists()
    assert "Traceback" not in text


def test_ctrl_c_ends_a_run_in_order(tmp_path: Path, run_dir: Path) -> None:
    launcher = start(write_config(tmp_path), run_dir)
    stepping(run_dir, 1, launcher)
    launcher.send_signal(signal.SIGINT)
    code, text = end_of(launcher)
    assert code == 130
    assert reason(run_dir) == "interrupted"
    assert read_json(run_dir / "status.json")["state"] == "ended"
    assert (run_dir / "report.html").exists()
    assert "Traceback" not in text


@pytest.mark.parametrize("when", ["before its directory is there", "while it begins"])
def test_a_run_that_is_only_being_started_is_stopped(tmp_path: Path, run_dir: Path, when: str) -> None:
    launcher = start(write_config(tmp_path), run_dir)
    if when == "while it begins":
        wait_until(lambda: (run_dir / "status.json").exists() or launcher.poll() is not None)
    else:
        assert not run_dir.exists()
    stopped = subprocess.run([*SEATRIAL, "stop", str(run_dir)], capture_output=True, text=True, timeout=100)
    assert stopped.returncode == 0, stopped.stderr
    code, text = end_of(launcher)
    assert code == 130, text
    assert reason(run_dir) == "interrupted"
    assert "Traceback" not in text


def test_a_loss_that_is_not_finite_fails_the_run(tmp_path: Path, run_dir: Path) -> None:
    config = write_config(tmp_path, steps=50, optimizer={"learning_rate": 1e9, "weight_decay": 1e9})
    code, text = end_of(start(config, run_dir), 200)
    assert code == 1
    assert reason(run_dir) == "non_finite_loss"
    assert read_json(run_dir / "verdict.json")["axes"]["numerics"]["status"] == "fail"
    assert "nan at step" in text


@pytest.mark.slow
def test_a_suspended_process_is_found_by_the_lack_of_steps(tmp_path: Path, run_dir: Path) -> None:
    config = write_config(tmp_path, **TWO_PROCESSES)

    def suspend() -> None:
        os.kill(stepping(run_dir, 2)[1], signal.SIGSTOP)

    helper = threading.Thread(target=suspend)
    helper.start()
    soon = Deadlines(step_seconds=3, step_medians=10)
    verdict = run(RunRequest(config=ConfigArguments(config=config), out=run_dir, deadlines=soon))
    helper.join()
    assert (verdict.outcome, verdict.exit_code) == ("no_progress", 5)
    (fault,) = [e for e in events.read(run_dir / "events-launcher.jsonl") if isinstance(e, events.Fault)]
    assert (fault.fault, fault.where) == ("no_progress", "rank 1 on local1")


def test_killing_the_launcher_leaves_nothing_behind(tmp_path: Path, run_dir: Path, mark: str) -> None:
    program = """
import sys
from pathlib import Path
from seatrial.commands.check import ConfigArguments
from seatrial.launch.deadlines import Deadlines
from seatrial.commands.run import RunRequest, run
config = ConfigArguments(config=Path(sys.argv[1]))
run(RunRequest(config=config, out=Path(sys.argv[2]), deadlines=Deadlines(lease_seconds=2)))
"""
    launcher = subprocess.Popen(
        [sys.executable, "-c", program, str(write_config(tmp_path)), str(run_dir)], stdout=subprocess.PIPE, text=True
    )
    stepping(run_dir, 1, launcher)
    launcher.kill()
    launcher.communicate()
    assert processes_with(mark)
    wait_until(lambda: not processes_with(mark), 15)
    assert read_json(run_dir / "nodes" / "local0" / "status.json")["stop_reason"] == "lease_expired"


def test_what_the_trainer_refuses_could_not_be_run(tmp_path: Path, run_dir: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("too short")
    config = write_config(
        tmp_path, data={"kind": "text", "paths": [str(short)]}, model=TINY["model"] | {"vocab_size": 256}
    )
    code, text = end_of(start(config, run_dir))
    assert code == 3
    assert "less than one sequence of" in " ".join(text.split())


def test_files_that_are_not_there_are_wrong_input(tmp_path: Path, run_dir: Path) -> None:
    config = write_config(
        tmp_path, data={"kind": "text", "paths": ["absent/*.txt"]}, model=TINY["model"] | {"vocab_size": 256}
    )
    code, text = end_of(start(config, run_dir))
    assert code == 2
    assert "absent/*.txt" in text
    assert not run_dir.exists()


def test_without_the_devices_the_way_out_is_told(tmp_path: Path) -> None:
    code, text = end_of(start(CVS / "mi300x_singlenode_llama3_1_70b.json", tmp_path / "run", "config.nnodes=1"))
    assert code == 3
    assert "--rehearse" in text
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_train_is_one_trainer_process(tmp_path: Path, run_dir: Path) -> None:
    config = write_config(tmp_path, steps=5)
    done = subprocess.run(
        [*SEATRIAL, "train", str(config), "--out", str(run_dir)], capture_output=True, text=True, check=True
    )
    assert "completed step: 4" in done.stdout
    assert reason_of_trainer(run_dir) == "completed"
    judged = subprocess.run([*SEATRIAL, "judge", str(run_dir)], capture_output=True, text=True, check=False)
    assert judged.returncode == 0


def reason_of_trainer(run_dir: Path) -> str:
    return [e.reason for e in events.read(run_dir / "events-0.jsonl") if isinstance(e, events.RunEnded)][-1]


@pytest.mark.slow
def test_train_joins_the_nodes_that_a_launcher_names(tmp_path: Path, run_dir: Path) -> None:
    from seatrial.launch.local import free_port

    config = write_config(tmp_path, steps=5, **TWO_PROCESSES)
    environment = os.environ | {"NNODES": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [*SEATRIAL, "train", str(config), "--out", str(run_dir)]
    nodes = [
        subprocess.Popen(command, env=environment | {"NODE_RANK": str(rank)}, stdout=subprocess.DEVNULL)
        for rank in range(2)
    ]
    assert [node.wait(120) for node in nodes] == [0, 0]
    started = [e for e in recording.read_run(run_dir) if isinstance(e, events.RunStarted)]
    assert sorted(event.process for event in started) == [0, 1]


def test_train_says_what_a_launcher_must_give(tmp_path: Path) -> None:
    command = [*SEATRIAL, "train", str(write_config(tmp_path, **TWO_PROCESSES))]
    environment = {name: value for name, value in os.environ.items() if name not in ("NNODES", "NODE_RANK")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert done.returncode == 3
    assert "NNODES" in done.stderr


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_plan_shows_the_run_and_touches_nothing(tmp_path: Path, as_json: bool) -> None:
    environment = {"environment": {"HF_TOKEN": "canary-77"}}
    config = write_config(tmp_path, execution=environment, container={"image": "it"} | environment)
    output = ["--format", "json"] if as_json else ["--all"]
    command = [*SEATRIAL, "plan", str(config), "--rehearse", "steps=500", *output]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "canary-77" not in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.json"]
    if as_json:
        shown = json.loads(done.stdout)
        assert shown["asked"]["spec"]["steps"] == 500
        assert shown["asked"]["origins"]["steps"]["kind"] == "override"
        assert shown["plan"]["spec"]["steps"] == 50
    else:
        assert "500 → 50" in done.stdout
        assert "tiny.json:1:" in done.stdout
        assert "-m seatrial.train" in done.stdout
