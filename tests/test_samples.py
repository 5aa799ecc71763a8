"""Every shipped configuration is rehearsed by the command line, as somebody would who has filled it in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seatrial import events
from tests.helpers.command_line import seatrial

CONFIGS = Path(__file__).parents[1] / "configs"
SAMPLES = sorted(path for path in CONFIGS.glob("*/*") if "threshold" not in path.name)
STEPS = 10
ONE_NODE = ["config.nnodes=1"]
INTERFACES = ["nccl_socket_ifname=eth0", "gloo_socket_ifname=eth0", "nccl_ib_gid_index=3"]
NODES = ["config.nnodes=2", "config.coordinator_ip=10.0.0.1", "config.nccl_ib_hca=mlx5_0", *INTERFACES]
EXPECTED = ["tflops_per_sec_per_gpu=380", "tokens_per_sec_per_gpu=800"]
ALONE = ["model=llama3_1_8b", *ONE_NODE, "config.master_address=localhost"]
TOGETHER = [
    "model=llama3_1_8b", "gpu=mi300x", "config.nnodes=2", "config.master_address=10.0.0.1", "config.nic_type=thor2",
    "config.nccl_ib_hca_list=rdma0", *INTERFACES, "throughput_per_gpu=610", "tokens_per_gpu=12000",
]  # fmt: skip
OPEN = {  # what is `<changeme>` in a file, by the beginning of its path
    "cvs/mi300x_singlenode": ONE_NODE,
    "cvs/mi35x_singlenode": ONE_NODE,
    "cvs/mi300x_distributed": [*NODES, *EXPECTED],
    "cvs/mi3xx_megatron_llama_single": [*ALONE, "gpu=mi300x"],
    "cvs/mi35x_megatron_llama_single": [*ALONE, "gpu=mi350"],
    "cvs/mi3xx_megatron_llama_distributed": TOGETHER,
}
# What says how long a run is, by the beginning of a path; phases of the schedule have to fit in.
LENGTH = {
    "cvs/jaxmaxtext": [f"steps={STEPS}"],
    "cvs/m": [f"training_iterations={STEPS}"],
    "cvs/mi300x_": [f"training_steps={STEPS}"],
    "cvs/mi35x_singlenode": [f"training_steps={STEPS}"],
    "maxtext/": [f"steps={STEPS}"],
    "megatron/": [f"train-iters={STEPS}"],
    "megatron/megatron-gpt": [f"train-samples={64 * STEPS}"],
    "megatron/megatron-llama3": [f"TOTAL_ITERS={STEPS}"],
    "native/": [f"steps={STEPS}"],
    "nxdt/": [f"trainer.max_steps={STEPS}"],
}


def given(sample: Path) -> list[str]:
    """The overrides with which a sample is run here: of each table those of the longest beginning."""
    name = sample.relative_to(CONFIGS).as_posix()
    tables = ([key for key in table if name.startswith(key)] for table in (OPEN, LENGTH))
    found = [max(keys, key=len, default="") for keys in tables]
    return [*OPEN.get(found[0], ()), *LENGTH[found[1]]]


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_a_sample_takes_its_steps_and_passes(sample: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    done = seatrial("run", sample, *given(sample), "--rehearse", "--out", run_dir, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS" in done.stdout
    assert json.loads((run_dir / "verdict.json").read_text())["outcome"] == "pass"
    steps = {event.step for event in events.read(run_dir / "events-0.jsonl") if isinstance(event, events.Step)}
    assert len(steps) >= STEPS
