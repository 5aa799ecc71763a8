"""The real MaxText on virtual devices, from a configuration to a verdict: `make test-maxtext` makes what it needs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import psutil
import pytest

from seatrial import source
from seatrial.dialects import maxtext
from seatrial.dialects.table.entries import Request
from seatrial.train.schedules import learning_rate
from tests.helpers.command_line import seatrial
from tests.helpers.seeds import SEEDS

CONFIGS = Path(__file__).parents[2] / "configs"
LOGS = "run/nodes/*/rank*.log"
PROGRAM = os.environ.get("SEATRIAL_MAXTEXT")  # the folder whose python3 has MaxText
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600),
              pytest.mark.skipif(PROGRAM is None, reason="no SEATRIAL_MAXTEXT: run `make test-maxtext`")]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Done:
    """A run that is over: what was printed, and its files."""

    text: str
    run_dir: Path

    def read(self, name: str) -> Any:
        return json.loads((self.run_dir / name).read_text())

    @property
    def logs(self) -> list[str]:
        return [path.read_text() for path in sorted(self.run_dir.glob("nodes/*/rank*.log"))]

    @property
    def meshes(self) -> set[str]:
        """The sizes other than 1 of MaxText's mesh, in its order of the axes."""
        shapes = re.findall(r"Num_devices: \d+, shape \(([\d, ]+)\)", "\n".join(self.logs))
        assert len(shapes) == len(self.logs)
        return {" × ".join(size for size in shape.split(", ") if size != "1") for shape in shapes}


@pytest.fixture(autouse=True)
def first_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(PROGRAM or '').resolve()}:{os.environ['PATH']}")


def run(tmp_path: Path, config: str, *given: str) -> Done:
    """A rehearsal that must pass, and must have taken no longer than it was watched.

    XLA's virtual devices have once waited for each other for ever (of some hundred runs); such a run is done again.
    """
    options = ["--engine", "maxtext", "--rehearse", "--out", "run"]
    result = seatrial("run", CONFIGS / config, *given, *options, cwd=tmp_path)
    if result.returncode == 5 and any("rendezvous.cc" in path.read_text() for path in tmp_path.glob(LOGS)):
        (tmp_path / "run").rename(tmp_path / "hung")
        result = seatrial("run", CONFIGS / config, *given, *options, cwd=tmp_path)
    done = Done(text=result.stdout + result.stderr, run_dir=tmp_path / "run")
    assert result.returncode == 0, done.text
    assert "PASS" in done.text
    status, completion = done.read("status.json"), done.read("metrics.json")["completion"]
    assert 0 < completion["wall_seconds"] <= status["heartbeat"] - status["started"]
    return done


def test_one_process(tmp_path: Path) -> None:
    done = run(tmp_path, "maxtext/maxtext-quick.sh", "topology.devices_per_node=2", "steps=20")
    assert done.meshes == {"2"}
    assert "20 of 20" in done.text


def test_two_processes_whose_tensor_axis_crosses_the_nodes(tmp_path: Path) -> None:
    mesh = ["ici_fsdp_parallelism=2", "dcn_data_parallelism=1", "dcn_tensor_parallelism=2"]
    shape = ["topology.num_nodes=2", "topology.devices_per_node=2"]
    done = run(tmp_path, "maxtext/maxtext-quick.sh", *shape, *mesh, "steps=10")
    assert done.meshes == {"2 × 2"}
    assert len(done.logs) == 2
    assert "other axes cross the nodes than tensor" in " ".join(done.text.split())


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.stem)
def test_the_files_of_cvs(tmp_path: Path, path: Path) -> None:
    nodes = int("distributed" in path.stem) + 1
    given = [f"config.nnodes={nodes}", "coordinator_ip=127.0.0.1", "training_steps=12"]
    done = run(tmp_path, f"cvs/{path.name}", *given)
    assert done.meshes == {"8"}
    assert len(done.logs) == nodes
    assert "12 of 12" in done.text
    text = (done.run_dir / "launch" / "maxtext.yml").read_text()
    assert "rope_type: llama3.1" in text
    assert "use_iota_embed: true" in text


@pytest.mark.parametrize(
    ("config", "given"),
    [
        ("maxtext/maxtext-llama2-7b-h100.sh", ["topology.devices_per_node=8", "steps=12", "fused_qkv=true"]),
        ("maxtext/maxtext-llama3-8b.yaml", ["steps=12", "num_vocab_tiling=2", "cast_logits_to_fp32=false"]),
    ],
)
def test_keys_that_only_maxtext_reads_are_in_the_run_as_they_stand(
    tmp_path: Path, config: str, given: list[str]
) -> None:
    done = run(tmp_path, config, *given)
    written = (done.run_dir / "launch" / "maxtext.yml").read_text()
    read = "\n".join(done.logs)  # MaxText prints each key with its value at the start
    for word in given[-2:]:
        name, _, value = word.partition("=")
        if name != "steps":
            assert f"{name}: {value}" in written
        assert re.search(rf"Config param {name}: {value}\b", read, re.IGNORECASE), name


def test_a_rank_that_is_killed_is_named(tmp_path: Path) -> None:
    given = [CONFIGS / "maxtext/maxtext-quick.sh", "topology.num_nodes=2", "topology.devices_per_node=2"]
    given += ["ici_fsdp_parallelism=2", "dcn_data_parallelism=2", "steps=100000"]
    command = [sys.executable, "-P", "-m", "seatrial", "run", *given, "--engine", "maxtext", "--rehearse"]
    started = subprocess.Popen(
        [*map(str, command), "--out", "run"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        (rank1,) = _until(lambda: list(tmp_path.glob("run/nodes/*/rank1.log")), seconds=120)
        _until(lambda: "completed step: 3" in rank1.read_text(), seconds=240)
        _process_of(started.pid, NODE_RANK="1").kill()
        said, _ = started.communicate(timeout=180)
    finally:
        started.kill()
        started.wait()
    assert started.returncode == 4, said
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text())
    assert "rank 1" in verdict["headline"]
    assert "SIGKILL" in verdict["headline"]


def _until(found: Callable[[], Any], *, seconds: float) -> Any:
    end = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < end
        time.sleep(0.2)
    return value


def _process_of(launcher: int, **variables: str) -> psutil.Process:
    """The process of a rank: MaxText's Python, below the agents of a launcher."""
    for process in psutil.Process(launcher).children(recursive=True):
        with suppress(psutil.Error):
            if process.environ().items() >= variables.items() and "maxtext.yml" in " ".join(process.cmdline()):
                return process
    raise AssertionError([process.cmdline() for process in psutil.Process(launcher).children(recursive=True)])


RATES = """
import json, sys, types
from maxtext.configs.types import LearningRateScheduleType, WsdDecayStyle
from maxtext.utils.maxtext_utils import create_learning_rate_schedule
for line in sys.stdin:
    given = json.loads(line)
    given["lr_schedule_type"] = LearningRateScheduleType(given["lr_schedule_type"])
    given["wsd_decay_style"] = WsdDecayStyle(given["wsd_decay_style"])
    schedule = create_learning_rate_schedule(types.SimpleNamespace(**given))
    print("RATES", json.dumps([float(schedule(step)) for step in range(given["steps"])]))
"""
SCHEDULES: list[dict[str, Any]] = [
    {"steps": 20}, {"steps": 20, "warmup_steps_fraction": 0.0}, {"steps": 20, "warmup_steps_fraction": 1.0},
    {"steps": 50, "learning_rate_schedule_steps": 30}, {"steps": 30, "warmup_steps_fraction": 0.34},
    {"steps": 50, "lr_schedule_type": "wsd"}, {"steps": 50, "lr_schedule_type": "wsd", "wsd_decay_style": "cosine"},
    {"steps": 10, "lr_schedule_type": "wsd"},  # a decay of one step
]  # fmt: skip


def test_its_learning_rates_are_ours() -> None:
    cases = [
        {"learning_rate": 2e-4, "learning_rate_final_fraction": 0.1, "learning_rate_schedule_steps": case["steps"],
         "warmup_steps_fraction": 0.1, "lr_schedule_type": "cosine", "wsd_decay_style": "linear",
         "wsd_decay_steps_fraction": 0.1} | case
        for case in SCHEDULES
    ]  # fmt: skip
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    done = subprocess.run(["python3", "-c", RATES], input=lines, capture_output=True, text=True, check=True)
    theirs = [json.loads(line.removeprefix("RATES")) for line in done.stdout.splitlines() if line.startswith("RATES")]
    assert len(theirs) == len(cases)
    for case, expected in zip(cases, theirs, strict=True):
        words = source.of_words(["base.yml", *(f"{name}={value}" for name, value in case.items())], file="command")
        spec = maxtext.read(Request(document=words, overrides=[], action="run", user="me", home=Path("/home/me"))).spec
        assert spec is not None
        ours = [learning_rate(jnp.int32(step), spec) for step in range(case["steps"])]
        np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-11, err_msg=str(case))
