"""Nodes and devices by the words of Slurm around a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial import source
from seatrial.dialects import load
from seatrial.dialects.jobs import EACH, NODES, requested

TRAIN = "python3 -m maxtext.trainers.pre_train.train maxtext/configs/base.yml model_name=llama3.1-8b"


def numbers(command: str) -> dict[str, int]:
    """The numbers by path that a command requests."""
    argv = source.parse_shell(command, file="launch.sh").root.members["argv"].value
    return {path: entry.value for path, entry in requested(argv).items()}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("srun -N2 --gpus-per-node=8 python3 train.py", {NODES: 2, EACH: 8}),
        ("srun -N 2 --ntasks-per-node 4 python3 train.py", {NODES: 2, EACH: 4}),
        ("sbatch --nodes=4 --gres=gpu:h100:8 srun python3 train.py", {NODES: 4, EACH: 8}),
        ("sbatch --nodes=2-4 --gpus-per-node=h100:4 python3 train.py", {NODES: 2, EACH: 4}),
        ("sbatch -N 8 srun -N 1 python3 train.py", {NODES: 1}),  # the step's, not the job's
        ("srun --ntasks-per-node=1 --gpus-per-node=8 python3 train.py", {EACH: 8}),
        ("srun --ntasks-per-node=1 python3 train.py", {}),  # a process for all devices of a node
        ("sbatch --gres=gpu python3 train.py", {}),
        ("sbatch --nodes=$N --gres=nvme:1 python3 train.py", {}),
        ("/opt/slurm/bin/srun --nodes 3 python3 train.py", {NODES: 3}),
        ("docker run -N 2 image python3 train.py", {}),
        ("python3 train.py -N 2", {}),
    ],
)
def test_requests(command: str, expected: dict[str, int]) -> None:
    assert numbers(command) == expected


def test_a_maxtext_command_has_the_jobs_nodes_and_devices(tmp_path: Path) -> None:
    path = tmp_path / "launch.sh"
    path.write_text(f"srun -N 2 --gpus-per-node=8 {TRAIN} ici_fsdp_parallelism=-1\n", encoding="utf-8")
    spec = load(path, [], action="plan").spec
    assert spec is not None
    topology = spec.topology
    assert (topology.num_nodes, topology.devices_per_node) == (2, 8)


def test_meshes_that_say_it_go_before_the_job(tmp_path: Path) -> None:
    path = tmp_path / "launch.sh"
    path.write_text(f"srun -N 2 --gpus-per-node=8 {TRAIN} ici_fsdp_parallelism=4\n", encoding="utf-8")
    spec = load(path, [], action="plan").spec
    assert spec is not None
    assert spec.topology.devices_per_node == 4
