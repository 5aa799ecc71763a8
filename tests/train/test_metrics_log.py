"""The files that a run leaves to look at, made without a run: tables, TensorBoard's files, the log."""

from __future__ import annotations

import csv
import json
import math
import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import pytest
from tensorboardX.proto.event_pb2 import Event

from seatrial import events
from seatrial.spec import Execution, Logging
from seatrial.train.mesh import most_memory
from seatrial.train.metrics_log import Journal, Profile
from seatrial.train.startup import Phases, Place
from tests.helpers.trainer import make_spec

SPEC = make_spec(logging=Logging(interval_steps=4, tensorboard=True, parameter_norm=True))


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """TensorBoard's files read by their format: length, its checksum, a protocol buffer, its checksum."""
    found: dict[str, dict[int, float]] = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        data = path.read_bytes()
        while data:
            size = struct.unpack("<Q", data[:8])[0]
            event = Event.FromString(data[12 : 12 + size])
            data = data[16 + size :]
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = value.simple_value
    return found


def a_step(number: int, loss: float = 2.0, **reported: float) -> events.Step:
    return events.Step(
        step=number, seconds=0.5, tokens=512, loss=loss, grad_norm=1.5, learning_rate=1e-3, data_seconds=0.0,
        reported={"params_norm": 7.0, **reported},
    )  # fmt: skip


def write(out: Path, spec=SPEC, first: int = 0, last: int = 9, process: int = 0) -> None:
    journal = Journal(spec, Place(process=process), out)
    journal.write(events.RunStarted(process=process))
    for number in range(first, last + 1):
        journal.step(a_step(number, margin=float(number)), last=number == last)
    journal.evaluation(events.Eval(process=process, step=last + 1, loss=1.25), "evaluated")
    journal.close()


def test_tables_have_every_so_many_th_step_and_the_last(tmp_path, capsys):
    write(tmp_path)
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["0", "4", "8", "9", "10"]
    assert (rows[1]["loss"], rows[1]["parameter_norm"], rows[1]["tokens_per_second_per_device"]) == (
        "2.0",
        "7.0",
        "1024.0",
    )
    assert (rows[1]["consumed_samples"], rows[1]["samples_per_second"], rows[1]["validation_loss"]) == (
        "80",
        "32.0",
        "",
    )
    assert (rows[4]["loss"], rows[4]["validation_loss"]) == ("", "1.25")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 4, 8, 9, 10]
    assert lines[2]["margin"] == 8.0  # what an objective adds
    assert lines[4] == {"step": 10, "validation_loss": 1.25}
    printed = [line.split(",")[0] for line in capsys.readouterr().out.splitlines()]
    assert printed == ["completed step: 0", "completed step: 4", "completed step: 8", "completed step: 9", "evaluated"]
    assert [e.step for e in events.read(tmp_path / "events-0.jsonl") if isinstance(e, events.Step)] == list(range(10))


def test_who_goes_on_adds_to_the_tables(tmp_path):
    write(tmp_path)
    write(tmp_path, first=8, last=12)
    with (tmp_path / "metrics.csv").open(newline="") as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["0", "4", "8", "9", "10", "8", "12", "13"]
    assert scalars(tmp_path / "tensorboard")["reduced_train_loss"].keys() == {0, 4, 8, 9, 12}


def test_numbers_that_are_not_finite_are_strict_json(tmp_path):
    journal = Journal(SPEC, Place(), tmp_path)
    journal.step(a_step(0, loss=math.nan), last=False)
    journal.close()
    line = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert line["loss"] == "nan"


@pytest.mark.parametrize(
    ("dialect", "names"),
    [
        ("nxdt", {"reduced_train_loss": 2.0, "lr": 1e-3, "gradient_norm": 1.5, "parameter_norm": 7.0}),
        ("native", {"reduced_train_loss": 2.0, "throughput": 32.0, "consumed_samples": 80.0}),
        ("maxtext", {"learning/loss": 2.0, "perf/step_time_seconds": 0.5, "learning/param_norm": 7.0}),
        ("cvs-jax", {"learning/loss": 2.0, "perf/per_device_tokens_per_sec": 1024.0, "learning/total_weights": 512.0}),
        ("cvs-megatron", {"lm_loss": 2.0, "learning-rate": 1e-3, "iteration-time": 0.5, "margin": 4.0}),
    ],
)
def test_tensorboard_has_the_names_that_a_dialects_users_know(dialect, names, tmp_path):
    write(tmp_path, replace(SPEC, dialect=dialect))
    found = scalars(tmp_path / "tensorboard")
    assert {name: found[name][4] for name in names} == pytest.approx(names)
    validation = {name: points for name, points in found.items() if "val" in name}
    assert list(validation.values()) == [{10: 1.25}]


def test_tensorboard_does_not_wait_for_pytorch(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("Tensor = type('Tensor', (), {})\nprint('PyTorch is loaded')\n")
    program = (
        "from pathlib import Path; from seatrial.spec import Logging; from tests.helpers.trainer import make_spec;"
        "from seatrial.train.metrics_log import Journal, Place; spec = make_spec(logging=Logging(tensorboard=True));"
        "Journal(spec, Place(), Path('.')).close(); print('written'); import torch; print(torch.Tensor)"
    )
    paths = os.pathsep.join((str(tmp_path), str(Path(__file__).parents[2])))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=os.environ | {"PYTHONPATH": paths}, text=True,
        capture_output=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["written", "PyTorch is loaded", "<class 'torch.Tensor'>"]
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1


def test_other_processes_write_events_alone(tmp_path, capsys):
    write(tmp_path, process=1)
    assert [path.name for path in tmp_path.iterdir()] == ["events-1.jsonl"]
    assert capsys.readouterr().out == ""


def test_what_happens_before_the_start_is_written_behind_it(tmp_path):
    journal = Journal(make_spec(), Place(), tmp_path)
    journal.write(events.Checkpoint(action="restore", step=4))
    journal.write(events.RunStarted())
    journal.write(events.RunEnded(reason="completed"))
    journal.close()
    assert [event.kind for event in events.read(tmp_path / "events-0.jsonl")] == [
        "run_started",
        "checkpoint",
        "run_ended",
    ]


def test_phases_leave_no_gap():
    phases = Phases()
    before = sum(phases.seconds.values())
    phases.ended("imports")
    phases.ended("first_step")
    assert before == 0
    assert phases.seconds["imports"] > 0  # since the process began
    assert phases.line().startswith(f"start-up: {sum(phases.seconds.values()):.1f} s = imports ")
    assert phases.line().endswith("+ first step 0.0")


def test_a_profile_ends_with_the_run_at_the_latest(tmp_path):
    asked = replace(SPEC, execution=Execution(profile_from_step=3, profile_steps=5))
    other = Profile(
        asked, Place(process=1), tmp_path, steps=6
    )  # traces nothing, but its steps wait for the one that does
    assert [other.phase(n) for n in range(6)] == ["", "", "", *["profiler"] * 3]
    assert [n for n in range(6) if other.begins(n)] == [3, 4, 5]  # the first that is run: a resumed run may begin later
    other.start()
    assert [n for n in range(6) if other.begins(n)] == []
    assert [n for n in range(6) if other.ends(n)] == [5]
    none = Profile(SPEC, Place(), tmp_path, steps=6)
    assert not any(none.phase(n) or none.begins(n) or none.ends(n) for n in range(6))


def test_the_device_that_held_most_counts():
    """As JAX gives it on an H200; a CPU has no figures."""

    class Device:
        def __init__(self, held):
            self.held = held

        def memory_stats(self):
            if self.held == "unknown":
                raise jax.errors.JaxRuntimeError("UNIMPLEMENTED")
            return self.held

    held = {"peak_bytes_in_use": 103_283_615_744, "bytes_limit": 135_100_628_992}
    assert most_memory([Device(held), Device({**held, "peak_bytes_in_use": 7})]) == {"memory_bytes": 103_283_615_744.0}
    assert most_memory([Device(None), Device({})]) == most_memory([Device("unknown")]) == {}
