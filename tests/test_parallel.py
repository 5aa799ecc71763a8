"""Many files are read by a pool of processes: to the same end as by one, however they end."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from seatrial import logs, parallel
from seatrial.commands.judge import judge_run
from seatrial.errors import InputError
from seatrial.events import Event, dumps
from tests.helpers.run_directory import write as write_run


def line(step: int, rank: int) -> str:
    return (
        f"completed step: {step}, seconds: {2 + rank / 100:.3f}, TFLOP/s/device: 390.125, Tokens/s/device: 4096.000, "
        f"total_weights: 65536, loss: {9 - step / 100:.3f}\n"
    )


def write(folder: Path, ranks: int, steps: int) -> Path:
    folder.mkdir(exist_ok=True)
    for rank in range(ranks):
        (folder / f"rank{rank}.log").write_text("".join(line(step, rank) for step in range(steps)))
    return folder


def read_pid(path: Path) -> int:
    return os.getpid()


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of two, however small the files are and however few the cores."""
    monkeypatch.setattr(parallel, "WORTHWHILE", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


def shown(events: list[Event]) -> list[str]:
    return [dumps(event) for event in events]


def test_a_pool_reads_what_one_process_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "logs", 9, 30)
    (folder / "rank4.log").write_text(line(0, 4) + "[rank4]: torch.OutOfMemoryError: CUDA out of memory.\n")
    (folder / "rank5.log").write_text("")
    alone = shown(list(logs.read([folder])))
    monkeypatch.setattr(parallel, "WORTHWHILE", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert shown(list(logs.read([folder]))) == alone


def test_other_processes_do_the_work(tmp_path: Path, always: None) -> None:
    paths = sorted(write(tmp_path / "logs", 8, 1).iterdir())
    pids = set(parallel.map_files(read_pid, [(path,) for path in paths], paths))
    assert os.getpid() not in pids
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_small_files_and_single_cores_start_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = sorted(write(tmp_path / "logs", 4, 1).iterdir())
    each = [(path,) for path in paths]
    assert set(parallel.map_files(read_pid, each, paths)) == {os.getpid()}
    monkeypatch.setattr(parallel, "WORTHWHILE", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert set(parallel.map_files(read_pid, each, paths)) == {os.getpid()}


def test_a_damaged_file_has_the_same_message(tmp_path: Path, always: None) -> None:
    run_dir = write_run(tmp_path / "run")
    damaged = run_dir / "events-1.jsonl"
    damaged.write_text("{]\n" + damaged.read_text())
    with pytest.raises(InputError, match="its events cannot be read: ") as pooled:
        judge_run(run_dir)
    parallel.WORTHWHILE = 1 << 40  # the fixture puts it back
    with pytest.raises(InputError) as alone:
        judge_run(run_dir)
    assert pooled.value.problems == alone.value.problems


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, always: None) -> None:
    folder = write(tmp_path / "logs", 4, 5)
    (folder / "rank2.log.gz").write_bytes(b"\x1f\x8b" + 100 * b"no gzip")
    with pytest.raises(OSError, match="compression method") as error:
        logs.read([folder])
    assert error.value.filename == str(folder / "rank2.log.gz")


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has no pool")
def test_an_interrupt_ends_every_process(tmp_path: Path) -> None:
    folder = write(tmp_path / "logs", 64, 12_000)
    # A shell's background job ignores interrupts, and so would all that it starts.
    program = ["env", "--default-signal=INT", sys.executable, "-m", "seatrial", "judge", str(folder)]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    children: list[psutil.Process] = []
    begun = time.monotonic()
    while len(children) < 3 and process.poll() is None and time.monotonic() < begun + 60:
        children = psutil.Process(process.pid).children()  # two that read, and the one that counts semaphores
        time.sleep(0.02)
    assert len(children) >= 3
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, said = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT), (out, said)
    assert b"Traceback" not in said
    assert psutil.wait_procs(children, timeout=20)[1] == []


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has no pool")
def test_no_process_outlives_one_that_is_killed(tmp_path: Path) -> None:
    folder = write(tmp_path / "logs", 64, 12_000)
    program = [sys.executable, "-m", "seatrial", "judge", str(folder)]
    process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    children: list[psutil.Process] = []
    begun = time.monotonic()
    while len(children) < 3 and process.poll() is None and time.monotonic() < begun + 60:
        children = psutil.Process(process.pid).children()
        time.sleep(0.02)
    assert len(children) >= 3
    time.sleep(1.0)  # they have begun
    process.kill()
    process.wait()
    assert psutil.wait_procs(children, timeout=30)[1] == []


def test_what_reads_needs_no_jax() -> None:
    code = "import sys, json, seatrial.logs, seatrial.recording; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"jax", "torch", "click", "rich"} & set(json.loads(done.stdout))


@pytest.mark.parametrize("family", logs.NAMES)
def test_every_family_reaches_another_process(family: str) -> None:
    how = logs.spellings(family)
    again = pickle.loads(pickle.dumps(how))
    assert [each.name for each in again.families] == [each.name for each in how.families]
    for each in again.families:
        assert each.custom_reader is None or callable(each.custom_reader())


def test_many_files_are_worth_a_pool_however_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(parallel, "MANY", 9)
    paths = sorted(write(tmp_path / "logs", 9, 1).iterdir())
    few = parallel.map_files(read_pid, [(path,) for path in paths[:8]], paths[:8])
    many = parallel.map_files(read_pid, [(path,) for path in paths], paths)
    assert set(few) == {os.getpid()}
    assert os.getpid() not in many
