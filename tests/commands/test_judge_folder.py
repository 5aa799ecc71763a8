"""`seatrial judge FOLDER`: which runs a folder holds, their verdicts, and how they scale."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from seatrial import logs
from tests.helpers import mlperf_logs
from tests.helpers.command_line import seatrial

CONFIGS = Path(__file__).parents[2] / "configs"
# The step times, in seconds, that NVIDIA's recipe gives for Llama 2 70B in bfloat16.
RECIPE = {64: 6.999, 128: 7.072, 256: 7.153, 512: 7.091, 1024: 7.084, 2048: 7.066}


def maxtext(devices: int, seconds: float, *, steps: int = 50, first: int = 0, seed: int = 1) -> list[str]:
    """A MaxText log of a run of Llama 2 70B with two sequences of 4096 tokens a device."""
    noise = random.Random(seed)
    lines = [f"Num_devices: {devices}, shape (1, 1, 1, {devices}, 1, 1)"]
    for step in range(first, steps):
        took = seconds * (1 + noise.gauss(0, 0.002)) * (6 if step == first else 1)
        speeds = f"TFLOP/s/device: {8192 * 4.447e11 / took / 1e12:.3f}, Tokens/s/device: {8192 / took:.3f}"
        loss = (10.5 + seed / 7) * 0.97**step
        lines.append(
            f"completed step: {step}, seconds: {took:.3f}, {speeds}, total_weights: {devices * 8192}, loss: {loss:.3f}"
        )
    return lines


def write(folder: Path, name: str, lines: Sequence[str]) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def test_the_recipe_is_one_workload_at_six_sizes(tmp_path: Path) -> None:
    for devices, seconds in RECIPE.items():
        write(tmp_path, f"logs/slurm-{1000 + devices}.out", maxtext(devices, seconds))
    write(tmp_path, "logs/README.txt", ["what these are"])
    config = CONFIGS / "native" / "recipe-llama2-70b-h100.yaml"
    answer = seatrial("judge", "logs", "--against", config, "--format", "json", "--out", "runs", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert list(found["runs"]) == [f"slurm-{1000 + devices}" for devices in RECIPE]
    assert found["others"] == ["logs/README.txt"]
    assert found["scaling"]["kind"] == "weak"
    for size, (devices, seconds) in zip(found["scaling"]["sizes"], RECIPE.items(), strict=True):
        assert (size["num_devices"], size["global_batch_size"]) == (devices, 2 * devices)
        assert size["step_seconds"] == pytest.approx(seconds, rel=1e-3)
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == sorted(found["runs"])

    again = seatrial("judge", "runs", cwd=tmp_path)  # run directories count as well
    assert again.returncode == 0, again.stderr
    assert "Weak scaling" in again.stdout

    runs = tmp_path / "runs"
    shutil.copytree(runs / "slurm-1064", runs / "backup-of-1064")
    (runs / "slurm-1128" / "judged.json").unlink()
    damaged = json.loads(seatrial("judge", "runs", "--format", "json", cwd=tmp_path).stdout)
    assert damaged["told_apart"] == ["backup-of-1064, slurm-1064 are copies of one run, and count once"]
    assert [len(size["runs"]) for size in damaged["scaling"]["sizes"]] == [1] * 5
    assert list(damaged["not_judged"]) == ["runs/slurm-1128"]  # a run directory still, and no folder of logs


def test_without_a_configuration_sizes_and_batches_are_those_of_the_logs(tmp_path: Path) -> None:
    for devices in (64, 128):
        write(tmp_path, f"logs/{devices}.log", maxtext(devices, RECIPE[devices], seed=devices))
    answer = seatrial("judge", "logs", cwd=tmp_path)
    assert answer.returncode == 6  # how many steps were planned is unknown
    assert "Weak scaling" in answer.stdout
    assert "64, 128: The last step was 49" in answer.stdout


def test_copies_of_a_log_are_one_run_in_the_table_of_speeds(tmp_path: Path) -> None:
    for name, seed in (("train", 1), ("copy of train", 1), ("again", 2)):
        write(tmp_path, f"logs/{name}.log", maxtext(1, 7.0, seed=seed))  # of one device: no ranks of one run
    found = json.loads(seatrial("judge", "logs", "--format", "json", cwd=tmp_path).stdout)
    assert len(found["runs"]) == 3
    assert found["told_apart"][-1] == "copy of train, train are copies of one run, and count once"
    assert [size["runs"] for size in found["scaling"]["sizes"]] == [["again", "copy of train"]]


def test_runs_that_are_no_scaling_say_why(tmp_path: Path) -> None:
    write(tmp_path, "logs/slurm-100.out", maxtext(64, 7.0))
    broken = maxtext(128, 7.0)
    broken[20] = broken[20].rpartition(" ")[0] + " nan"
    write(tmp_path, "logs/slurm-101.out", broken)
    answer = seatrial("judge", "logs", cwd=tmp_path)
    assert answer.returncode == 1  # that of the worst
    assert "slurm-101  FAIL" in answer.stdout
    assert "no scaling table: slurm-101: its numerics failed" in " ".join(answer.stdout.split())


# Evaluations of ten runs: most reach the target of 0.925 with the second one to the fourth.
SUBMISSION = [(1.1, 0.95, 0.92), (1.1, 0.92), (1.1, 0.95, 0.93, 0.92)] * 3 + [(1.1, 0.95, 0.92)]


@pytest.mark.parametrize("apart", [60, 86_400], ids=["all at once", "one after the other"])
@pytest.mark.parametrize("aborted", [0, 1, 2])
def test_the_mean_time_to_train_of_a_submission(aborted: int, apart: int, tmp_path: Path) -> None:
    took = []
    for number, evaluations in enumerate(SUBMISSION):
        status = "aborted" if number < aborted else "success"
        lines = mlperf_logs.later(mlperf_logs.only_throughput(evaluations, status), apart * number)
        write(tmp_path, f"logs/llama/result_{number}.txt", lines)
        took += [mlperf_logs.seconds_to_train(evaluations)] if status == "success" else []
    write(tmp_path, "logs/llama/scaling.json", ['{"scaling_factor": 1.0}'])
    write(tmp_path, "logs/once/result_0.txt", mlperf_logs.only_throughput())  # too few for a mean
    answer = seatrial("judge", "logs", "--format", "json", cwd=tmp_path)
    found = json.loads(answer.stdout)
    assert len(found["runs"]) == 11
    (times,) = found["times_to_train"]
    assert times["name"] == "llama"
    assert [seconds for seconds in times["seconds"].values() if seconds] == pytest.approx(took)
    counted = sorted(took)[1:] if aborted else sorted(took)[1:-1]
    assert times["mean_seconds"] == (None if aborted > 1 else pytest.approx(sum(counted) / len(counted)))
    text = " ".join(seatrial("judge", "logs", cwd=tmp_path).stdout.split())
    assert "Time to train" in text
    assert "MFU" not in text  # of no run
    mean = f"llama: time to train, of 10 runs: {sum(counted) / len(counted) / 60:.3f} minutes, the mean without"
    assert mean in text if aborted < 2 else "of 10 runs: no mean, because 2 did not reach their target." in text


def test_a_run_that_goes_on_is_named_and_not_judged(tmp_path: Path) -> None:
    write(tmp_path, "train.log", maxtext(8, 1.0, steps=30))
    for name in ("one", "two"):
        assert seatrial("judge", "train.log", "--steps", "30", "--out", f"runs/{name}", cwd=tmp_path).returncode == 0
    status = {"v": 1, "state": "running", "reason": None, "launcher_pid": os.getpid(), "started": time.time()}
    (tmp_path / "runs/two/status.json").write_text(json.dumps({**status, "heartbeat": time.time(), "last_step": 7}))
    (tmp_path / "runs/two/verdict.json").unlink()
    answer = seatrial("judge", "runs", cwd=tmp_path)
    assert "two: this run goes on (running, step 7)" in " ".join(answer.stdout.split())
    assert (answer.returncode, "PASS" in answer.stdout, "FAIL" in answer.stdout) == (6, True, False)
    assert not (tmp_path / "runs/two/verdict.json").exists()
    shutil.rmtree(tmp_path / "runs/one")
    alone = seatrial("judge", "runs", cwd=tmp_path)
    assert (alone.returncode, alone.stderr.splitlines()[0]) == (2, f"error[run-goes-on] {Path('runs/two')}")


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "logs/a.txt", ["nothing"])
    answer = seatrial("judge", "logs", cwd=tmp_path)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "no line in it was recognised" in answer.stderr


@pytest.mark.parametrize(
    ("files", "runs"),
    [
        pytest.param(
            {f"job_{job}/rank{rank}.log": maxtext(8, 1.0, seed=job) for job in (11, 12) for rank in range(3)},
            {"job_11": 3, "job_12": 3},
            id="a folder per job, with ranks",
        ),
        pytest.param(
            {f"slurm-{job}.out": maxtext(8, 1.0, seed=3) for job in (7001, 7002)},
            {"slurm-7001": 1, "slurm-7002": 1},
            id="one workload twice, to the same losses",
        ),
        pytest.param(
            {"slurm-7001.out": maxtext(8, 1.0, steps=30), "slurm-7002.out": maxtext(8, 1.0, first=28)},
            {"slurm": 2},
            id="a job that goes on from the checkpoint of another",
        ),
        pytest.param(
            {f"{kind}-rank{rank}.log": maxtext(8, 1.0, seed=seed) for seed, kind in enumerate("ab") for rank in (0, 1)},
            {"a-rank": 2, "b-rank": 2},
            id="ranks of two runs in one folder",
        ),
        pytest.param(
            {"slurm-7001.out": maxtext(8, 1.0), "nccl.log": [], "launcher.out": ["starting"]},
            {"logs": 3},
            id="a job with other files",
        ),
        pytest.param(
            {"8/bf16/out.log": maxtext(8, 1.0), "8/fp8/out.log": maxtext(8, 0.7, seed=2), "16/out.log": maxtext(16, 1)},
            {"16/out": 1, "8/bf16/out": 1, "8/fp8/out": 1},
            id="folders in folders",
        ),
        pytest.param(
            {f"node{nodes}.log": maxtext(8 * nodes, 1.0) for nodes in (1, 2, 4)},
            {"node1": 1, "node2": 1, "node4": 1},
            id="by the number of nodes, to the same losses",
        ),
    ],
)
def test_runs_of_a_folder(files: dict[str, list[str]], runs: dict[str, int], tmp_path: Path) -> None:
    for name, lines in files.items():
        write(tmp_path / "logs", name, lines)
    found = logs.read_runs(tmp_path / "logs").runs
    assert {run.name: len(run.paths) for run in found} == runs
    for run in found:  # as if they had been named one by one
        assert list(run.events) == list(logs.read(run.paths))


def test_names_of_files_stay_inert(tmp_path: Path) -> None:
    names = ["a\x1b[31m\x07.log", "b\x9b2J\u202e.log", os.fsdecode(b"c\xff.log")]
    for seed, name in enumerate(names):
        write(tmp_path, f"logs/{name}", maxtext(8, 1.0, seed=seed))
    write(tmp_path, "logs/\x9bd.log", ["nothing"])
    for more in ([], ["--format", "json"], ["--out", "runs"]):
        answer = seatrial("judge", "logs", *more, cwd=tmp_path)
        assert (answer.returncode, answer.stderr) == (6, "")
        assert not [letter for letter in answer.stdout if letter in "\x1b\x07\x9b\u202e"]
    assert len(list((tmp_path / "runs").iterdir())) == len(names)
    assert seatrial("judge", "runs", cwd=tmp_path).returncode == 6
