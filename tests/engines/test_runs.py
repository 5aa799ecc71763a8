"""Runs with other engines from a configuration to a verdict, with stand-ins that are as strict as the programs are.

The stand-ins (`programs/`) refuse every argument, key and variable that the real ones refuse, and print their logs; the
agents, the meeting at the coordinator and what is read from the logs are real.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from seatrial.commands.judge import judge_run
from seatrial.dialects import load
from seatrial.launch import local
from seatrial.launch.deadlines import Deadlines
from seatrial.launch.follow import Following
from seatrial.launch.local import free_port
from seatrial.launch.progress import Ending
from seatrial.launch.where import HERE
from seatrial.plan import Machine, Plan, PlanRequest, make_plan
from seatrial.runs.directory import claim, write_inputs
from tests.helpers.command_line import seatrial
from tests.helpers.processes import wait_until

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
SIXTEEN = Machine(cores=2, memory_bytes=1 << 33, vendor="amd", accelerators=tuple(str(n) for n in range(16)))
NETWORK = ["nccl_socket_ifname=lo", "gloo_socket_ifname=lo", "nccl_ib_gid_index=3", "nic_type=thor2"]
JAX = ["nnodes=2", "coordinator_ip=127.0.0.1", "nccl_ib_hca=bnxt_re0", "training_steps=20", *NETWORK]
JAX += ["tflops_per_sec_per_gpu=1", "tokens_per_sec_per_gpu=1"]
MEGATRON = ["nnodes=2", "master_address=127.0.0.1", "nccl_ib_hca_list=bnxt_re0", "training_iterations=20", *NETWORK]
MEGATRON += ["throughput_per_gpu=1", "tokens_per_gpu=1", "gpu=mi300x"]


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun is ours; a step takes long enough for the rate of a real one to be below a device's peak."""
    path = f"{PROGRAMS / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin"  # whose python3 has a jaxlib
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("STAND_IN_SECONDS", "20")
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # other tests' flags, which a stand-in does not know


def play(
    config: str, overrides: list[str], engine: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Plan, Ending, Any]:
    """Plan, ending and verdict of a run on stand-ins for nodes with AMD's devices."""
    monkeypatch.chdir(PROGRAMS / engine)
    path = ROOT / "configs" / config
    resolved = load(path, overrides, action="run")
    assert resolved.spec is not None, resolved.problems
    plan = make_plan(
        PlanRequest(
            spec=resolved.spec, run_dir=run_dir, machine=SIXTEEN, engine=engine, coordinator=f"127.0.0.1:{free_port()}"
        )
    )
    claim(run_dir)
    write_inputs(resolved, path, plan, run_dir)
    following = Following(Deadlines(), lambda progress: None, lambda line: None)
    ending = local.run(plan, run_dir, following, where=HERE, site=None, attempt=1)
    _, verdict = judge_run(run_dir)
    return plan, ending, verdict


def told(run_dir: Path) -> list[str]:
    """The sentences of the checks that failed or are inconclusive."""
    axes = json.loads((run_dir / "verdict.json").read_text())["axes"].values()
    return [
        check["sentence"] for axis in axes for check in axis["checks"] if check["status"] in ("fail", "inconclusive")
    ]


def test_cvs_file_with_maxtext_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, ending, verdict = play("cvs/mi300x_distributed_llama3_1_70b.json", JAX, "maxtext", tmp_path / "run", monkeypatch)
    assert (ending.reason, verdict.exit_code) == ("completed", 0), told(tmp_path / "run")
    log = (tmp_path / "run" / "nodes" / "local1" / "rank1.log").read_text()
    assert "left out of XLA_FLAGS, which this jaxlib does not know: --xla_gpu_graph_level=0" in log
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert [process["last_step"] for process in status["processes"]] == [19, 19]


def test_cvs_file_with_megatrons_script_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA_PATH", "/data/of-somebody-else")  # with which the script would not take mock data
    config = "cvs/mi3xx_megatron_llama_distributed.json"
    overrides = [*MEGATRON, "model=llama3_1_8b"]
    plan, ending, verdict = play(config, overrides, "megatron", tmp_path / "run", monkeypatch)
    assert plan.processes[0].command.argv[-2:] == ("bash", "examples/llama/train_llama3.sh")
    assert (ending.reason, verdict.exit_code) == ("completed", 0), told(tmp_path / "run")
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["last_step"] == 19  # which Megatron calls 20
    for host in ("local0", "local1"):  # its own log beside the agent's, in a folder of the node's own
        assert (tmp_path / "run" / "nodes" / host / "megatron" / "output_perf.log").stat().st_size


def test_megatrons_arguments_are_those_that_pretrain_gpt_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_SECONDS", "0.05")
    plan, ending, _ = play("megatron/megatron-tiny.sh", [], "megatron", tmp_path / "run", monkeypatch)
    assert "torchrun" in plan.processes[0].command.argv
    assert ending.reason == "completed"


def test_out_of_memory_on_one_node_is_blamed_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_FAILS_AT", "3")
    _, ending, verdict = play("cvs/mi300x_distributed_llama3_1_70b.json", JAX, "maxtext", tmp_path / "run", monkeypatch)
    assert (ending.reason, verdict.exit_code) == ("died", 4)
    assert ending.faults[0].where == "rank 1 on local1"
    assert "RESOURCE_EXHAUSTED" in ending.faults[0].text


def test_command_line_runs_maxtext_on_virtual_devices(tmp_path: Path) -> None:
    """A variable of the configuration says where MaxText is."""
    text = (ROOT / "configs" / "maxtext" / "maxtext-quick.sh").read_text()
    config = tmp_path / "quick.sh"
    config.write_text(text.replace("python3 ", f"export MAXTEXT_ROOT={PROGRAMS / 'maxtext'}\npython3 ", 1))
    given = ["topology.num_nodes=2", "topology.devices_per_node=4", "steps=20"]
    done = seatrial("run", config, *given, "--engine", "maxtext", "--out", tmp_path / "run", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS" in done.stdout
    assert "step 20/20" in done.stdout


def test_scripts_that_end_as_if_all_were_well_are_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So they did before 2026."""
    monkeypatch.setenv("STAND_IN_FAILS_AT", "5")
    monkeypatch.setenv("STAND_IN_OLD", "1")
    config = "cvs/mi3xx_megatron_llama_distributed.json"
    overrides = [*MEGATRON, "model=llama3_1_8b"]
    _, ending, verdict = play(config, overrides, "megatron", tmp_path / "run", monkeypatch)
    assert (ending.reason, verdict.exit_code) == ("completed", 4)
    assert "The run did not end in order: GPU out of memory on rank 1." in told(tmp_path / "run")


CONFIGS = {"maxtext": ("mi300x_distributed_llama3_1_70b", JAX),
           "megatron": ("mi3xx_megatron_llama_distributed", [*MEGATRON, "model=llama3_1_8b"])}  # fmt: skip


QUIET: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "name", "value"),
    [
        ("maxtext", "NODE_RANK", "2"), ("maxtext", "NODE_RANK", "0"), ("maxtext", "NNODES", "3"),
        ("maxtext", "JAX_COORDINATOR_IP", ""), ("maxtext", "JAX_COORDINATOR_PORT", "0"),
        ("maxtext", "JAX_COORDINATOR_ADDRESS", "127.0.0.1"), ("maxtext", "JAX_PROCESS_ID", "0"),
        ("maxtext", "JAX_NUM_PROCESSES", "1"), ("maxtext", "NVTE_FUSED_ATTN", "0"),
        ("maxtext", "CUDA_VISIBLE_DEVICES", "0,1"), ("maxtext", "LD_PRELOAD", "/lib/x.so"),
        ("megatron", "NODE_RANK", "2"), ("megatron", "NODE_RANK", "0"), ("megatron", "NNODES", "3"),
        ("megatron", "MASTER_PORT", "0"), ("megatron", "MODEL_SIZE", "9"), ("megatron", "MBS", "3"),
        ("megatron", "LOG_DIR", "logs"), ("megatron", "TEE_OUTPUT", "0"), ("megatron", "NCCL_SOCKET_IFNAME", ""),
        ("megatron", "MOCK_DATA", "0"), ("megatron", "TE_FP8", "yes"), ("megatron", "SEQ_LENGTH", "4096"),
    ],
)  # fmt: skip
def test_stand_ins_end_at_a_variable_that_is_wrong_on_one_node(
    engine: str, name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the programs do: else no run with them would prove anything."""
    monkeypatch.chdir(PROGRAMS / engine)
    config, overrides = CONFIGS[engine]
    spec = load(ROOT / "configs/cvs" / f"{config}.json", overrides, action="run").spec
    assert spec is not None
    plan = make_plan(
        PlanRequest(spec=spec, run_dir=tmp_path, machine=SIXTEEN, engine=engine, coordinator=f"127.0.0.1:{free_port()}")
    )
    for relative, text in plan.files.items():
        (tmp_path / relative).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / relative).write_text(text)
    processes = []
    for rank, process in enumerate(plan.processes):
        variables = {**os.environ, **{key: str(text) for key, text in process.command.environment.items()}}
        assert (name in variables) is (name != "LD_PRELOAD")
        variables |= {name: value} if rank == 1 else {}
        processes.append(subprocess.Popen(process.command.argv, env=variables, start_new_session=True, **QUIET))
    try:
        wait_until(lambda: any(process.poll() for process in processes))
        assert not any(process.poll() == 0 for process in processes)
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
