"""The real MaxText on virtual devices, from a configuration to a verdict: `make test-maxtext` makes what it needs."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command_line import seatrial

CONFIGS = Path(__file__).parents[2] / "configs"
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
    """A rehearsal that must pass, and must have taken no longer than it was watched."""
    options = ["--engine", "maxtext", "--rehearse", "--out", "run"]
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


def test_a_file_of_cvs(tmp_path: Path) -> None:
    given = ["nnodes=2", "coordinator_ip=127.0.0.1", "training_steps=20"]
    done = run(tmp_path, "cvs/mi300x_distributed_llama3_1_70b.json", *given)
    assert done.meshes == {"8"}
    assert "rope_type: llama3.1" in (done.run_dir / "launch" / "maxtext.yml").read_text()
