"""The trainer as a process: it learns, it repeats itself exactly, it stops where it must and says why."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pyarrow as pa
import pytest

from seatrial import events
from seatrial.metrics import measure
from seatrial.spec import (
    Batch,
    Checkpoint,
    Data,
    Evaluation,
    Execution,
    Logging,
    MeshShape,
    Objective,
    Optimizer,
    Parallelism,
    Precision,
    RunSpec,
    Topology,
    to_dict,
)
from seatrial.train.data import make_batch
from seatrial.train.goodput import measure_goodput
from seatrial.train.mesh import make_mesh
from seatrial.train.trainer import make_trainer
from seatrial.verdict.completion import judge_completion
from tests.helpers.processes import wait_for
from tests.helpers.trainer import TINY, RandomSource, make_spec

TEXT = make_spec(
    model=replace(
        TINY, vocab_size=256, num_layers=1, hidden_dim=32, num_heads=4, num_kv_heads=2, head_dim=8, ffn_dim=64
    ),
    data=Data(kind="text", paths=("stdlib:*.py",)),
    batch=Batch(sequence_length=32, global_batch_size=8, micro_batch_size=8),
    steps=40,
    optimizer=Optimizer(learning_rate=1e-2, warmup_steps=4),
)


def command(spec: RunSpec, out, *arguments: str) -> list[str]:
    out.mkdir(exist_ok=True)
    (out / "spec.json").write_text(json.dumps(to_dict(spec)))
    devices = str(spec.topology.devices_per_node)
    run = [sys.executable, "-m", "seatrial.train", str(out / "spec.json"), "--out", str(out), "--cpu-devices", devices]
    return [*run, *arguments]


def train(spec: RunSpec, out, flags: str = "") -> subprocess.CompletedProcess:
    variables = {**os.environ, "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {flags}"}
    return subprocess.run(command(spec, out), env=variables, capture_output=True, text=True, timeout=200, check=False)


def steps_of(out, process: int = 0) -> list[events.Step]:
    return [event for event in events.read(out / f"events-{process}.jsonl") if isinstance(event, events.Step)]


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    out = tmp_path_factory.mktemp("learned")
    return out, train(TEXT, out, "--xla_gpu_graph_level=0")


def test_it_learns_real_text(learned):
    out, result = learned
    assert result.returncode == 0, result.stderr
    losses = [step.loss for step in steps_of(out)]
    assert len(losses) == 40
    assert losses[0] == pytest.approx(np.log(256), abs=0.2)  # it begins by knowing nothing
    assert np.mean(losses[-5:]) < losses[0] - 1.5


def test_a_flag_that_would_end_it_is_left_out(learned):
    _, result = learned
    assert "left out of XLA_FLAGS, which this jaxlib does not accept: --xla_gpu_graph_level=0\n" in result.stdout


def test_events_tell_the_whole_run(learned):
    out, _ = learned
    recorded = list(events.read(out / "events-0.jsonl"))
    started, ended = recorded[0], recorded[-1]
    assert isinstance(started, events.RunStarted)
    assert (started.planned_steps, started.tokens_per_step, started.num_devices) == (40, 256, 1)
    assert started.facts["memory"]["temp_bytes"] > 0
    assert started.facts["compile_seconds"] > 0
    assert "computes_fp8" not in started.facts
    assert isinstance(ended, events.RunEnded)
    assert (ended.reason, ended.exit_code) == ("completed", 0)
    assert [step.step for step in steps_of(out)] == list(range(40))
    assert all(step.seconds > 0 and step.tokens == 256 for step in steps_of(out))


def test_standard_output_speaks_maxtext(learned):
    out, result = learned
    line = re.compile(
        r"^completed step: (\d+), seconds: [\d.]+, TFLOP/s/device: [\d.]+, Tokens/s/device: [\d.]+, "
        r"total_weights: 256, loss: ([\d.]+)$",
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


@pytest.mark.slow
def test_another_seed_gives_another_run(learned, tmp_path):
    out, _ = learned
    assert train(replace(TEXT, steps=5, seed=1), tmp_path).returncode == 0
    assert steps_of(tmp_path)[0].loss != steps_of(out)[0].loss


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


@pytest.mark.slow
def test_skipped_updates_are_counted_and_the_run_goes_on(tmp_path):
    optimizer = Optimizer(learning_rate=1e30, clip_norm=None, on_non_finite="skip")
    assert train(replace(TEXT, optimizer=optimizer), tmp_path).returncode == 0
    steps = steps_of(tmp_path)
    assert len(steps) == 40
    for step in steps:
        is_sound = np.isfinite(step.loss) and np.isfinite(step.grad_norm)
        assert step.reported == ({} if is_sound else {"skipped_steps": 1.0})
    assert steps[-1].reported != {}


def test_a_skipped_update_changes_nothing_but_the_step():
    """The targets of one sequence count infinitely, so the loss is no number, on the other device too."""
    spec = make_spec({"fsdp": 2}, model=replace(TINY, num_layers=1), optimizer=Optimizer(on_non_finite="skip"))
    trainer = make_trainer(spec, make_mesh(spec, jax.devices()[: spec.topology.num_devices]))
    source = RandomSource(spec.model.vocab_size, 32)

    BAD = 1

    def run(state, numbers):
        for number in numbers:
            batch = make_batch(source, number * 16, trainer.batch_shape, trainer.batch_shardings)
            if number == BAD:
                batch["weights"] = batch["weights"].at[0, 3].set(np.inf)
            state, metrics = trainer.step(state, batch)
            assert metrics["skipped_steps"] == (number == BAD)
        return state

    before = jax.tree.map(np.asarray, state := run(trainer.init(), [0]))
    after = jax.tree.map(np.asarray, state := run(state, [BAD]))
    assert (before.pop("step"), after.pop("step")) == (1, 2)
    jax.tree.map(np.testing.assert_array_equal, after, before)
    assert not np.array_equal(np.asarray(run(state, [2])["params"]["head"]), before["params"]["head"])


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


# --- what comes between steps -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_evaluation_that_is_good_enough_ends_the_run(tmp_path):
    spec = replace(
        TEXT,
        data=replace(TEXT.data, split="9,1,0"),
        steps=40,
        evaluation=Evaluation(interval_steps=4, batches=1, target_loss=100.0),
        checkpoint=Checkpoint(enabled=True),
    )
    result = train(spec, tmp_path)
    assert result.returncode == 0, result.stderr
    assert "training stopped early after step 3: the validation loss" in result.stdout
    recorded = list(events.read(tmp_path / "events-0.jsonl"))
    assert [e.step for e in recorded if isinstance(e, events.Checkpoint) and e.action == "save"] == [4]
    metrics = measure(recorded, spec)
    assert (metrics.completion.planned_steps, metrics.completion.early_of) == (4, 40)
    checks = judge_completion(metrics.completion)
    assert {check.status for check in checks} <= {"pass", "not_applicable"}
    assert "An evaluation ended the run after 4 of 40 steps" in checks[0].sentence


@pytest.mark.slow
def test_patience_is_not_made_anew_by_a_resume(tmp_path):
    spec = replace(
        TEXT,
        data=replace(TEXT.data, split="9,1,0"),
        evaluation=Evaluation(interval_steps=2, batches=1, patience=3),
        optimizer=replace(TEXT.optimizer, learning_rate=0.0),  # nothing gets better
        checkpoint=Checkpoint(enabled=True, resume=True),
    )
    first = train(replace(spec, steps=5), tmp_path)  # evaluated after 2 and 4 steps
    assert first.returncode == 0, first.stderr
    again = train(replace(spec, steps=40), tmp_path)
    assert again.returncode == 0, again.stderr
    assert "training stopped early after step 7: the last 3 evaluations were no better than" in again.stdout


@pytest.mark.slow
def test_everything_beside_the_steps(tmp_path):
    spec = replace(
        TEXT,
        data=replace(TEXT.data, split="9,1,0"),
        precision=Precision(quantization="te_fp8_currentscaling"),
        steps=12,
        evaluation=Evaluation(interval_steps=5, batches=2, initial_batches=1),
        logging=Logging(interval_steps=4, tensorboard=True, parameter_norm=True),
        execution=Execution(profile_from_step=3, profile_steps=2, compile_cache=str(tmp_path / "cache")),
        checkpoint=Checkpoint(enabled=True, keep=None, interval_steps=7),
    )
    out, again = tmp_path / "one", tmp_path / "again"
    result = train(spec, out)
    assert result.returncode == 0, result.stderr
    recorded = list(events.read(out / "events-0.jsonl"))
    assert [event.step for event in recorded if isinstance(event, events.Eval)] == [0, 5, 10]
    assert [e.step for e in recorded if isinstance(e, events.Checkpoint) and e.action == "save"] == [7, 12]
    steps = steps_of(out)
    assert [step.step for step in steps if step.phase == "profiler"] == [3, 4]
    assert len(list((out / "profile").rglob("*.xplane.pb"))) == 1
    assert all(step.reported["params_norm"] > 0 for step in steps)
    assert [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()] == [
        0,
        0,
        4,
        5,
        8,
        10,
        11,
    ]
    assert len(list((out / "tensorboard").iterdir())) == 1

    losses = [event.loss for event in recorded if isinstance(event, events.Eval)]
    assert losses[0] == pytest.approx(np.log(256), abs=0.3)
    assert losses[2] < losses[0] - 0.3
    assert "eval metrics before step: 0, loss=" in result.stdout
    assert f"eval metrics after step: 9, loss={losses[2]:.3f}" in result.stdout
    assert re.search(
        r"^start-up: [\d.]+ s = imports .* \+ compile [\d.]+ \+ first step [\d.]+$", result.stdout, re.MULTILINE
    )
    goodput = measure_goodput(recorded)
    assert goodput.lost_seconds["evaluation"] > 0
    assert goodput.lost_seconds["checkpoint"] > 0
    assert f"\n{goodput.line()}\ntraining completed" in result.stdout

    # The same program once more comes from the cache, and computes the same.
    assert recorded[0].facts["compile_cache"]["misses"] > 0
    assert train(spec, again).returncode == 0
    started = next(iter(events.read(again / "events-0.jsonl")))
    assert started.facts["compile_cache"].keys() == {"hits"}
    assert started.facts["computes_fp8"]
    assert [step.loss for step in steps_of(again)] == [step.loss for step in steps]


def test_epochs_end_a_run(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(bytes(range(160)) * 4)  # 20 sequences: in two epochs, five steps of 8
    spec = replace(TEXT, steps=9, epochs=2, data=Data(kind="text", paths=(str(path),)))
    assert train(spec, tmp_path).returncode == 0
    assert len(steps_of(tmp_path)) == next(iter(events.read(tmp_path / "events-0.jsonl"))).planned_steps == 5


@pytest.mark.slow
def test_epochs_alone_are_the_length_of_a_run_and_of_its_schedule(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(bytes(range(160)) * 4)  # 20 sequences: in two epochs, five steps of 8
    falling = Optimizer(learning_rate=1.0, schedule="linear", final_learning_rate_fraction=0.0)
    spec = replace(TEXT, steps=None, epochs=2, optimizer=falling, data=Data(kind="text", paths=(str(path),)))
    assert train(spec, tmp_path).returncode == 0
    rates = [step.learning_rate for step in steps_of(tmp_path)]
    np.testing.assert_allclose(rates, [1.0, 0.8, 0.6, 0.4, 0.2], rtol=1e-6)
    found = judge_completion(measure(events.read(tmp_path / "events-0.jsonl"), spec=spec).completion)
    assert {check.status for check in found if check.name in ("all steps done", "ran as configured")} == {"pass"}


@pytest.mark.slow
def test_a_rate_that_falls_once_an_epoch_does(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(bytes(range(160)) * 4)  # 20 sequences: two whole steps of 8 in an epoch
    falls = Optimizer(learning_rate=1.0, schedule="step", decay_factor=0.5, final_learning_rate_fraction=0.0)
    spec = replace(TEXT, steps=5, optimizer=falls, data=Data(kind="text", paths=(str(path),)))
    assert train(spec, tmp_path).returncode == 0
    assert [step.learning_rate for step in steps_of(tmp_path)] == [1.0, 1.0, 0.5, 0.5, 0.25]


# --- signals ----------------------------------------------------------------------------------------------------------


@contextmanager
def running(commands: list[list[str]]) -> Iterator[list[subprocess.Popen]]:
    """Processes that stop at the latest after some 30 steps, until somebody reads what they print."""
    processes = []
    try:
        for each in commands:
            processes.append(subprocess.Popen(each, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
            fcntl.fcntl(processes[-1].stdout, fcntl.F_SETPIPE_SZ, 4096)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def read_until(process: subprocess.Popen, text: str) -> None:
    assert any(text in line for line in process.stdout)


@pytest.mark.slow
def test_a_signal_ends_the_run_behind_a_step_and_another_run_goes_on_there(learned, tmp_path):
    checkpoint = Checkpoint(enabled=True, resume=True, keep=None)
    spec = replace(TEXT, steps=100, optimizer=replace(TEXT.optimizer, decay_steps=40), checkpoint=checkpoint)
    with running([command(spec, tmp_path)]) as [process]:
        read_until(process, "completed step: 0,")
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=200)
        assert process.returncode == 130
    *_, last, saved, ended = events.read(tmp_path / "events-0.jsonl")
    assert (ended.reason, ended.exit_code) == ("interrupted", 130)
    assert 0 < last.step < 99
    assert (saved.action, saved.step) == ("save", last.step + 1)
    assert f"training interrupted after step {last.step}" in printed

    result = train(spec, tmp_path)
    assert result.returncode == 0, result.stderr
    recorded = list(events.read(tmp_path / "events-0.jsonl"))
    assert [(e.attempt, e.kind) for e in recorded if isinstance(e, events.RunStarted)] == [
        (1, "run_started"),
        (2, "run_started"),
    ]
    assert [step.step for step in steps_of(tmp_path)] == list(range(100))
    assert [step.loss for step in steps_of(tmp_path)[:40]] == [step.loss for step in steps_of(learned[0])]
    assert measure_goodput(recorded).lost_seconds["restarts"] > 0


@pytest.mark.slow
def test_a_signal_to_one_process_ends_all_of_them_behind_the_same_step(learned, tmp_path):
    """Until then the two train as one process does."""
    long = replace(TEXT, steps=1000, optimizer=replace(TEXT.optimizer, decay_steps=40))
    spec = over_processes(long, 2, {"tensor": 2}, fsdp=-1)
    with running(commands_of(spec, tmp_path)) as processes:
        read_until(processes[0], "completed step: 0,")
        processes[1].send_signal(signal.SIGINT)
        processes[0].communicate(timeout=200)
        assert [process.wait(timeout=200) for process in processes] == [130, 130]
    one, other = (steps_of(tmp_path, process) for process in range(2))
    assert one[-1].step == other[-1].step < 999
    for alone, *both in zip(steps_of(learned[0])[:4], one, other, strict=False):
        np.testing.assert_allclose([step.loss for step in both], alone.loss, rtol=0, atol=1e-4)


SLOW_TO_RECORD = """
import os, signal, sys, time
from seatrial.train import __main__, loop, metrics_log
fetch, record = loop.Loop.fetch, metrics_log.Journal.step

def fetch_and_signal(self, number):
    fetch(self, number)
    if number == 30:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)

def record_slowly(self, step, *, last):
    record(self, step, last=last)
    if step.step == 29:
        time.sleep(0.5)

loop.Loop.fetch, metrics_log.Journal.step = fetch_and_signal, record_slowly
sys.exit(__main__.main())
"""


@pytest.mark.slow
def test_a_process_that_is_slow_to_record_a_step_stops_behind_the_same_as_others(tmp_path):
    """The step that runs then is done before the slow one looks, and not when the other does."""
    spec = over_processes(replace(TEXT, steps=1000, checkpoint=Checkpoint(enabled=True)), 2, fsdp=2)
    first, second = commands_of(spec, tmp_path)
    with running([[sys.executable, "-c", SLOW_TO_RECORD, *first[3:]], second]) as processes:
        processes[0].communicate(timeout=200)
        assert [process.wait(timeout=200) for process in processes] == [130, 130]
    (last,) = {steps_of(tmp_path, process)[-1].step for process in range(2)}
    assert (tmp_path / "checkpoints" / str(last + 1) / "state").is_dir()


SLOW_TO_SAVE = """
import os, sys, time
from seatrial.train import __main__
rename = os.rename

def rename_slowly(path, target):
    if "orbax" in str(path):
        time.sleep(5)
    rename(path, target)

os.rename = rename_slowly
sys.exit(__main__.main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("process", [0, 1])
def test_a_bad_example_of_one_process_leaves_the_save_of_all_whole(process, tmp_path):
    """Process 0 gives the folder its name long after the batch of step 6 was made, with its bad row."""
    rows = np.random.default_rng(0).integers(0, 256, (80, 32))
    bad = int(np.random.default_rng((TEXT.seed, 0)).permutation(80)[6 * 8 + 4 * process])  # of eight, four each
    rows[bad, 3] = 999
    table = pa.table({"input_ids": rows.tolist()})
    with pa.OSFile(str(tmp_path / "rows.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data = Data(kind="arrow", paths=(str(tmp_path / "rows.arrow"),))
    spec = over_processes(
        replace(TEXT, steps=9, data=data, checkpoint=Checkpoint(enabled=True, interval_steps=5)), 2, fsdp=2
    )
    first, second = commands_of(spec, tmp_path)
    with running([[sys.executable, "-c", SLOW_TO_SAVE, *first[3:]], second]) as processes:
        printed = processes[process].communicate(timeout=200)[0]
        assert processes[process].returncode == 2
        assert processes[1 - process].wait(timeout=200) != 0
    assert f"rows.arrow, row {bad} has token 999" in printed
    assert [folder.name for folder in (tmp_path / "checkpoints").iterdir()] == ["5"]


WAITS_FOR_A_DEVICE = """
import time, jax
from seatrial.train.signals import Requests
jax.config.update("jax_platforms", "cpu")
sleep = jax.jit(lambda: jax.pure_callback(lambda: time.sleep(300) or 1.0, jax.ShapeDtypeStruct((), "float32")))
requests = Requests()
print("waits", flush=True)
sleep().block_until_ready()
"""


def test_a_second_signal_ends_a_process_that_waits_for_a_device():
    with running([[sys.executable, "-c", WAITS_FOR_A_DEVICE]]) as [process]:
        read_until(process, "waits")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)  # which of the two is taken first is up to the kernel
        assert process.wait(timeout=100) in (128 + signal.SIGINT, 128 + signal.SIGTERM)


@pytest.mark.slow
def test_preferences_go_on_with_a_smaller_batch(tmp_path):
    """Eight steps of the small batch alone would not reach what the large ones have consumed."""
    rows = [{"prompt": f"{i}? ", "chosen": f"yes {i}", "rejected": f"no {i}"} for i in range(40)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = replace(
        TEXT,
        objective=Objective(kind="dpo"),
        data=Data(kind="records", paths=(str(tmp_path / "pairs.jsonl"),)),
        checkpoint=Checkpoint(enabled=True, resume=True),
    )
    for steps, size in ((3, 8), (8, 2)):
        batch = replace(spec.batch, global_batch_size=size, micro_batch_size=size)
        result = train(replace(spec, steps=steps, batch=batch), tmp_path / "run")
        assert result.returncode == 0, result.stderr
    assert "(step 3, 48 examples)" in result.stdout
    assert [step.step for step in steps_of(tmp_path / "run")] == list(range(8))


@pytest.mark.slow
@pytest.mark.parametrize("interval", [5, 6])
def test_what_is_due_before_a_bad_example_is_saved(interval, tmp_path):
    """The batch of step 6 has it, and is made while step 5 runs; a save after step 4 is still under way then."""
    rows = np.random.default_rng(0).integers(0, 256, (80, 32))
    bad = int(np.random.default_rng((TEXT.seed, 0)).permutation(80)[6 * 8 + 3])
    rows[bad, 3] = 999
    table = pa.table({"input_ids": rows.tolist()})
    with pa.OSFile(str(tmp_path / "rows.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data = Data(kind="arrow", paths=(str(tmp_path / "rows.arrow"),))
    saving = Checkpoint(enabled=True, interval_steps=interval)
    result = train(replace(TEXT, steps=9, data=data, checkpoint=saving), tmp_path / "run")
    assert result.returncode == 2
    assert f"rows.arrow, row {bad} has token 999, and model.vocab_size is 256" in result.stdout
    assert [step.step for step in steps_of(tmp_path / "run")] == list(range(6))
    assert [folder.name for folder in (tmp_path / "run" / "checkpoints").iterdir()] == [str(interval)]


# --- several processes ------------------------------------------------------------------------------------------------


def over_processes(spec: RunSpec, processes: int, within: dict[str, int] | None = None, **across: int) -> RunSpec:
    """The same run over so many processes; a mesh axis is split across or within them."""
    within_node, across_nodes = MeshShape(**(within or {})), MeshShape(**across)
    replicas = processes // across_nodes.tensor * within_node.data * within_node.fsdp
    return replace(
        spec,
        topology=Topology(num_nodes=processes, devices_per_node=within_node.product),
        parallelism=Parallelism(across_nodes=across_nodes, within_node=within_node),
        batch=replace(spec.batch, micro_batch_size=spec.batch.global_batch_size // replicas),
    )


def commands_of(spec: RunSpec, out: Path) -> list[list[str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    count = str(spec.topology.num_nodes)
    return [
        command(spec, out, "--process-id", str(n), "--num-processes", count, "--coordinator", address)
        for n in range(spec.topology.num_nodes)
    ]


@pytest.mark.slow
@pytest.mark.timeout(1800)  # on a busy machine four processes compile for minutes
@pytest.mark.parametrize(
    ("processes", "within", "across"),
    [
        (2, {"tensor": 2}, {"fsdp": -1}),
        (2, {"tensor": 2}, {"data": 2}),
        (4, {}, {"fsdp": 4}),
        (4, {}, {"data": 2, "tensor": 2}),
    ],
)
def test_several_processes_train_as_one(processes, within, across, learned, tmp_path):
    short = replace(TEXT, steps=4, optimizer=replace(TEXT.optimizer, decay_steps=40))
    commands = commands_of(over_processes(short, processes, within, **across), tmp_path)
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    assert wait_for([subprocess.Popen(each, **silent) for each in commands]) == [0] * processes
    expected = [step.loss for step in steps_of(learned[0])[:4]]
    for process in range(processes):
        np.testing.assert_allclose([s.loss for s in steps_of(tmp_path, process)], expected, rtol=0, atol=1e-4)
