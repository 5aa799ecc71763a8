"""The trainer as a process: it learns, it repeats itself exactly, it stops where it must and says why."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from seatrial import events
from seatrial.spec import Batch, Data, MeshShape, Optimizer, Parallelism, RunSpec, Topology, to_dict

from .conftest import TINY, make_spec

TEXT = make_spec(
    model=replace(TINY, vocab_size=256, num_layers=2),
    data=Data(kind="text", paths=("stdlib:*.py",)),
    batch=Batch(sequence_length=64, global_batch_size=8, micro_batch_size=8),
    steps=40,
    optimizer=Optimizer(learning_rate=1e-2, warmup_steps=4),
)


def command(spec: RunSpec, out, *arguments: str) -> list[str]:
    out.mkdir(exist_ok=True)
    (out / "spec.json").write_text(json.dumps(to_dict(spec)))
    devices = str(spec.topology.devices_per_node)
    run = [sys.executable, "-m", "seatrial.train", str(out / "spec.json"), "--out", str(out), "--cpu-devices", devices]
    return [*run, *arguments]


def train(spec: RunSpec, out) -> subprocess.CompletedProcess:
    return subprocess.run(command(spec, out), capture_output=True, text=True, timeout=200, check=False)


def steps_of(out, process: int = 0) -> list[events.Step]:
    return [event for event in events.read(out / f"events-{process}.jsonl") if isinstance(event, events.Step)]


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    out = tmp_path_factory.mktemp("learned")
    return out, train(TEXT, out)


def test_it_learns_real_text(learned):
    out, result = learned
    assert result.returncode == 0, result.stderr
    losses = [step.loss for step in steps_of(out)]
    assert len(losses) == 40
    assert losses[0] == pytest.approx(np.log(256), abs=0.2)  # it begins by knowing nothing
    assert np.mean(losses[-5:]) < losses[0] - 1.5


def test_events_tell_the_whole_run(learned):
    out, _ = learned
    recorded = list(events.read(out / "events-0.jsonl"))
    started, ended = recorded[0], recorded[-1]
    assert isinstance(started, events.RunStarted)
    assert (started.planned_steps, started.tokens_per_step, started.num_devices) == (40, 512, 1)
    assert started.facts["memory"]["temp_bytes"] > 0
    assert started.facts["compile_seconds"] > 0
    assert isinstance(ended, events.RunEnded)
    assert (ended.reason, ended.exit_code) == ("completed", 0)
    assert [step.step for step in steps_of(out)] == list(range(40))
    assert all(step.seconds > 0 and step.tokens == 512 for step in steps_of(out))


def test_standard_output_speaks_maxtext(learned):
    out, result = learned
    line = re.compile(
        r"^completed step: (\d+), seconds: [\d.]+, TFLOP/s/device: [\d.]+, Tokens/s/device: [\d.]+, "
        r"total_weights: 512, loss: ([\d.]+)$",
        re.MULTILINE,
    )
    found = line.findall(result.stdout)
    assert [int(step) for step, _ in found] == list(range(40))
    assert [loss for _, loss in found] == [f"{step.loss:.3f}" for step in steps_of(out)]


def test_the_same_seed_gives_the_same_run(learned, tmp_path):
    out, _ = learned
    short = replace(TEXT, steps=5, optimizer=replace(TEXT.optimizer, decay_steps=40))
    assert train(short, tmp_path / "again").returncode == 0
    assert [s.loss for s in steps_of(tmp_path / "again")] == [s.loss for s in steps_of(out)[:5]]
    assert train(replace(short, seed=1), tmp_path / "other").returncode == 0
    assert steps_of(tmp_path / "other")[0].loss != steps_of(out)[0].loss


def test_a_loss_that_is_not_finite_ends_the_run_at_its_step(tmp_path):
    broken = replace(TEXT, optimizer=Optimizer(learning_rate=1e30, clip_norm=None))
    result = train(broken, tmp_path)
    assert result.returncode == 1
    steps = steps_of(tmp_path)
    assert [np.isfinite(step.loss) and np.isfinite(step.grad_norm) for step in steps] == [True] * (len(steps) - 1) + [
        False
    ]
    fault, ended = list(events.read(tmp_path / "events-0.jsonl"))[-2:]
    assert (fault.fault, ended.reason) == ("non_finite_gradient", "non_finite_loss")
    assert f"at step {steps[-1].step}" in fault.text
    assert f"at step {steps[-1].step}" in result.stdout


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (replace(TEXT, data=Data(kind="text", paths=("/nonexistent",))), "no file matches '/nonexistent'"),
        (replace(TEXT, topology=Topology(devices_per_node=3)), "needs 1 devices, but there are 3"),
    ],
)
def test_what_does_not_fit_is_one_line(spec, message, tmp_path):
    result = train(spec, tmp_path)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_two_processes_train_as_one(tmp_path):
    one = replace(TEXT, steps=4)
    assert train(one, tmp_path / "one").returncode == 0
    two = replace(
        one,
        topology=Topology(num_nodes=2, devices_per_node=2),
        parallelism=Parallelism(across_nodes=MeshShape(fsdp=-1), within_node=MeshShape(tensor=2)),
        batch=replace(one.batch, micro_batch_size=4),
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    processes = [
        subprocess.Popen(
            command(two, tmp_path / "two", "--process-id", str(i), "--num-processes", "2", "--coordinator", address),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for i in range(2)
    ]
    assert [process.wait(timeout=200) for process in processes] == [0, 0]
    expected = [step.loss for step in steps_of(tmp_path / "one")]
    for process in range(2):
        np.testing.assert_allclose([s.loss for s in steps_of(tmp_path / "two", process)], expected, rtol=0, atol=1e-4)
