"""A run that is killed and started again is the run that was not: the trainer as real processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seatrial import events
from seatrial.spec import (
    Batch,
    Checkpoint,
    Data,
    Execution,
    MeshShape,
    Optimizer,
    Parallelism,
    RunSpec,
    Topology,
)
from tests.helpers.trainer import TINY, make_spec
from tests.helpers.trainer_runs import committed, finish, losses, recorded, resumed_at, start, wait_until

pytestmark = pytest.mark.timeout(1800)  # a dozen kills on a machine that others use
KILLS = int(os.environ.get("SEATRIAL_KILLS", "12"))  # every kind of moment, twice; more of them find rarer ones
MODEL = replace(TINY, vocab_size=256, num_layers=1, hidden_dim=32, ffn_dim=48)
SPEC = make_spec(
    model=MODEL,
    data=Data(kind="text", paths=("stdlib:json/*.py",)),
    batch=Batch(sequence_length=32, global_batch_size=8, micro_batch_size=8),
    steps=40,
    optimizer=Optimizer(learning_rate=1e-2, warmup_steps=4, decay_steps=100),
    execution=Execution(compile_cache=str(Path(tempfile.gettempdir()) / "seatrial-test-resume")),
    checkpoint=Checkpoint(enabled=True, resume=True, interval_steps=20, keep=2),
)


def over(spec: RunSpec, mesh: dict[str, int]) -> RunSpec:
    """The same run over another mesh of one process."""
    shape = MeshShape(**mesh)
    micro = spec.batch.global_batch_size // (shape.data * shape.fsdp)
    return replace(
        spec,
        topology=Topology(devices_per_node=shape.product),
        parallelism=Parallelism(within_node=shape),
        batch=replace(spec.batch, micro_batch_size=micro),
    )


def text_of(out: Path) -> str:
    path = out / "events-0.jsonl"
    return path.read_text() if path.exists() else ""


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[int, float]:
    """The losses of 40 steps in one go."""
    out = tmp_path_factory.mktemp("whole")
    code, text = finish(start(replace(SPEC, checkpoint=Checkpoint()), out))
    assert code == 0, text
    return losses(out)


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> Path:
    """The run directory of a run that is killed when the checkpoint of step 20 is on disk."""
    out = tmp_path_factory.mktemp("killed")
    process = start(SPEC, out)
    wait_until(process, lambda: 20 in committed(out))
    process.kill()
    finish(process)
    assert committed(out) == [20]
    return out


def copy(run_dir: Path, to: Path) -> Path:
    subprocess.run(["cp", "-r", f"{run_dir}/.", to], check=True)
    return to


def test_on_the_same_mesh_it_goes_on_to_the_bit(whole, killed, tmp_path):
    out = copy(killed, tmp_path)
    code, text = finish(start(SPEC, out))
    assert code == 0, text
    assert resumed_at(text) == 20
    assert losses(out) == whole
    assert "WARNING" not in text
    assert committed(out) == [20, 40]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [{"fsdp": 2, "tensor": 2}])
def test_on_another_mesh_it_goes_on_within_rounding(mesh, whole, killed, tmp_path):
    out = copy(killed, tmp_path)
    code, text = finish(start(over(SPEC, mesh), out))
    assert code == 0, text
    assert resumed_at(text) == 20
    np.testing.assert_allclose([*losses(out).values()], [*whole.values()], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_run_that_is_done_has_nothing_left_to_do(killed, tmp_path):
    out = copy(killed, tmp_path)
    before = losses(out)
    code, text = finish(start(replace(SPEC, steps=20), out))
    assert code == 0, text
    assert losses(out) == before


@pytest.mark.slow
def test_preemption_saves_and_a_resumed_run_loses_nothing(whole, tmp_path):
    process = start(SPEC, tmp_path)
    wait_until(process, lambda: len(losses(tmp_path)) >= 3)
    process.send_signal(signal.SIGTERM)
    code, text = finish(process)
    assert code == 130, text
    (step,) = committed(tmp_path)
    assert len(losses(tmp_path)) == step
    code, text = finish(start(SPEC, tmp_path))
    assert (code, resumed_at(text)) == (0, step)
    assert losses(tmp_path) == whole


@pytest.mark.slow
@pytest.mark.timeout(1800 + 60 * KILLS)
def test_killed_at_any_moment_it_resumes_from_the_last_committed_step(whole, tmp_path):
    """Saves follow each other as fast as they can, so most kills hit one."""
    spec = replace(SPEC, steps=100_000, checkpoint=replace(SPEC.checkpoint, interval_steps=2))
    moments = np.random.default_rng(KILLS)
    expected = 0
    for number in range(KILLS):
        process = start(spec, tmp_path)
        if number % 5 == 3:  # while it starts, reads or compiles
            time.sleep(moments.uniform(0, 8))
        else:
            attempts = 1 + sum(isinstance(event, events.RunStarted) for event in recorded(tmp_path))
            wait_until(process, lambda n=attempts: text_of(tmp_path).count('"run_started"') == n)
            if number % 2 == 0:  # on a busy machine a second is less than a save
                wait_until(process, lambda before=expected: max(committed(tmp_path), default=0) > before)
            time.sleep(moments.uniform(0, 1))
        process.kill()
        code, text = finish(process)
        assert code == -signal.SIGKILL, text
        if "resumed from" in text or "starts from scratch" in text:
            assert resumed_at(text) == expected, f"kill {number}: {text}"
        expected = max(committed(tmp_path), default=0)
    last = len(losses(tmp_path)) + 3  # past all that was done and not saved
    code, text = finish(start(replace(spec, steps=last), tmp_path))
    assert (code, resumed_at(text)) == (0, expected), text
    assert [*losses(tmp_path)] == [*range(last)]
    assert {step: loss for step, loss in losses(tmp_path).items() if step in whole} == {
        step: loss for step, loss in whole.items() if step < last
    }


def run_pair(spec: RunSpec, out: Path) -> list[tuple[int, str]]:
    """Two processes of two devices each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    pair = [
        start(spec, out, "--process-id", str(i), "--num-processes", "2", "--coordinator", address) for i in range(2)
    ]
    return [finish(process) for process in pair]


@pytest.mark.slow
def test_two_processes_go_on_from_one_and_agree_on_what_is_damaged(whole, killed, tmp_path):
    """Of the newest checkpoint, only what the second process reads is damaged; the first leaves it out as well."""
    out = copy(killed, tmp_path)
    two = replace(
        SPEC,
        steps=26,
        topology=Topology(num_nodes=2, devices_per_node=2),
        parallelism=Parallelism(across_nodes=MeshShape(fsdp=2), within_node=MeshShape(tensor=2)),
        batch=replace(SPEC.batch, micro_batch_size=4),
        checkpoint=replace(SPEC.checkpoint, interval_steps=3),
    )
    (code, text), (other_code, other_text) = run_pair(two, out)
    assert (code, other_code) == (0, 0), text + other_text
    assert resumed_at(text) == 20
    assert committed(out) == [24, 26]
    parts = (out / "checkpoints" / "26" / "state" / "ocdbt.process_1").rglob("*")
    max((path for path in parts if path.is_file()), key=lambda path: path.stat().st_size).write_bytes(b"")
    (code, text), (other_code, other_text) = run_pair(replace(two, steps=40), out)
    assert (code, other_code) == (0, 0), text + other_text
    assert resumed_at(text) == 24
    assert "26 is damaged and left out: another process cannot read it" in text
    for process in range(2):
        seen = losses(out, process)
        np.testing.assert_allclose([*seen.values()], [whole[step] for step in seen], rtol=0, atol=1e-5)
    assert [*losses(out)] == [*range(40)]
