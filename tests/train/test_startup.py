"""The start of a process among others."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from seatrial.launch.local import free_port

PROGRAM = """
import os, sys
from jax._src import xla_bridge
from seatrial.train.startup import join
join(f"127.0.0.1:{sys.argv[1]}", 2, int(sys.argv[2]))
print(xla_bridge.CUDA_VISIBLE_DEVICES.value, xla_bridge._ROCM_VISIBLE_DEVICES.value, flush=True)
os._exit(0)  # without the barrier of a shutdown
"""
# What a task of srun has, one on each of two nodes; and a pod.
SLURM = {"SLURM_JOB_ID": "77", "SLURM_STEP_NODELIST": "node[1-2]", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0",
         "SLURM_STEP_NUM_NODES": "2"}  # fmt: skip
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


@pytest.mark.parametrize("around", [{}, SLURM, POD], ids=["", "Slurm", "a pod"])
def test_a_process_sees_all_devices_of_its_node_whatever_has_started_it(around: dict[str, str]) -> None:
    port, own = str(free_port()), {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, port, str(rank)], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**own, **around, **({"SLURM_PROCID": str(rank)} if around is SLURM else {}), "JAX_PLATFORMS": "cpu"},
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [process.communicate(timeout=120) for process in processes]
    assert [out for out, _ in said] == ["all all\n"] * 2, said
    assert "Kubernetes environment detected" not in "".join(err for _, err in said)
