"""Nodes and devices by the words of Slurm around a command."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from seatrial import source
from seatrial.dialects import load
from seatrial.dialects.jobs import EACH, NODES, options, requested
from seatrial.launch import slurm_job

TRAIN = "python3 -m maxtext.trainers.pre_train.train maxtext/configs/base.yml model_name=llama3.1-8b"


def numbers(command: str) -> dict[str, int]:
    """The numbers by path that a command requests."""
    argv = source.parse_shell(command, file="launch.sh").root.members["argv"].value
    return {path: entry.value for path, entry in requested(argv).items() if path in (NODES, EACH)}


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
        ("srun -l --exclusive -uN2 --kill-on-bad-exit -W 0 --gpus-per-node 8 python3 train.py", {EACH: 8}),
        ("srun --mpi pmix --pty -K1 --container-writable -N 2 -Zv --exclusive python3 -N 3 train.py", {NODES: 2}),
        ("srun -N2 -n16 python3 train.py", {NODES: 2, EACH: 8}),
        ("sbatch -N 2 --ntasks=16 srun python3 train.py", {NODES: 2, EACH: 8}),
        ("srun -N 2 -n 2 python3 train.py", {NODES: 2}),
        ("srun -N 2 -n 3 python3 train.py", {NODES: 2}),
        ("srun -n 16 python3 train.py", {}),
        ("srun -N 2 -n 16 --gpus-per-node=4 python3 train.py", {NODES: 2, EACH: 4}),
        ("sbatch -W srun -N 2 python3 train.py", {NODES: 2}),
    ],
)
def test_requests(command: str, expected: dict[str, int]) -> None:
    assert numbers(command) == expected


@pytest.mark.parametrize(
    "program",
    [
        "nsys profile -s none -t cuda,nvtx -w true -o out",
        "mpirun -np 16 -npernode 8 -x LD_LIBRARY_PATH -x NCCL_DEBUG",
        "apptainer exec --nv -C x.sif",
        "podman run -it -w work -p 6006 -t img",
        "numactl -C 0-3",
        "docker exec -w /work name",
        "env -C /work A=1",
    ],
)
def test_what_stands_behind_the_program_of_a_job_is_no_request(program: str) -> None:
    command = f"sbatch -p batch srun -N 2 -A team --time=04:00:00 {program} python3 train.py -p x -w y -t z"
    argv = source.parse_shell(command, file="launch.sh").root.members["argv"].items
    found = requested(argv)
    assert options(found) == {"partition": "batch", "account": "team", "time": "04:00:00"}
    assert found[NODES].value == 2


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


JOB = (
    "sbatch -p batch,large --time=1-12 -A team --qos=high -C 'h100&ib' --gres=gpu:8 --signal=B:TERM@90 --mem=10G"
    " srun --account=other -N 2"
)
WANTED = {
    "partition": "batch,large", "time": "1-12", "account": "other", "qos": "high", "constraint": "h100&ib",
    "gres": "gpu:8", "signal": "TERM@90",
}  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [
        f"{TRAIN} ici_fsdp_parallelism=8",
        "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64"
        " --max-position-embeddings 64 --micro-batch-size 1 --train-iters 5 --lr 1e-3 --tokenizer-type NullTokenizer"
        " --vocab-size 99",
        "bash examples/llama/train_llama3.sh",
    ],
)
def test_what_else_a_job_requests_is_requested_again(tmp_path: Path, command: str) -> None:
    path = tmp_path / "launch.sh"
    path.write_text(f"{JOB} {command}\n", encoding="utf-8")
    resolved = load(path, [], action="plan")
    assert resolved.spec is not None
    assert resolved.spec.distributed.slurm == WANTED
    assert resolved.origin("distributed.slurm.partition").key == "-p"
    words = slurm_job.requested(resolved.spec, rehearsing=False)
    assert slurm_job.options(words) == WANTED
    assert slurm_job.options(slurm_job.requested(resolved.spec, rehearsing=True)).keys() == WANTED.keys() - {"gres"}


@pytest.mark.parametrize("value", ["$(reboot)", "a\nb", "a b", "--x", "'", ""])
def test_what_could_be_more_than_a_value_is_not_requested(tmp_path: Path, value: str) -> None:
    path = tmp_path / "launch.sh"
    path.write_text(f"srun --partition={shlex.quote(value)} {TRAIN}\n", encoding="utf-8")
    spec = load(path, [], action="plan").spec
    assert spec is not None
    assert slurm_job.requested(spec, rehearsing=False) == ()


def test_the_options_of_a_job_are_those_that_can_be_requested() -> None:
    argv = source.parse_shell(f"{JOB} {TRAIN}", file="launch.sh").root.members["argv"].value
    assert options(requested(argv)).keys() <= slurm_job.OPTIONS.keys()
