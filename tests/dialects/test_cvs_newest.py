"""CVS's files as its newest version has them: one test for each, with what CVS's own code makes of the file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from seatrial import dialects
from seatrial.check import lint
from seatrial.errors import Problem
from seatrial.spec import Batch, Expectation, Resolved, RunSpec

XLA_FLAGS = {
    "xla_gpu_enable_triton_gemm": "False",
    "xla_gpu_enable_command_buffer": "''",
    "xla_gpu_memory_limit_slop_factor": "90",
    "xla_gpu_all_reduce_combine_threshold_bytes": "4294967296",
}
VARIABLES = {"GPU_MAX_HW_QUEUES": "2", "NCCL_DEBUG": "WARN", "NCCL_IB_GID_INDEX": "1", "NVTE_FUSED_ATTN": "1"}
LIBRARY = {
    "host_source_file": "/opt/rdma/libcard.so",
    "container_mount_file": "/usr/lib/libcard.so.host",
    "container_dest_file": "/usr/lib/libcard.so",
}
SCRIPTS = {"llama-3": "examples/llama/train_llama3.sh", "llama-2": "examples/llama/train_llama2.sh"}
NETWORK = {"nic_type": "cx7", "nccl_socket_ifname": "eth1", "gloo_socket_ifname": "eth1"}
MESH = {f"{part}_{axis}_parallelism": "1"
        for part in ("dcn", "ici") for axis in ("data", "fsdp", "pipeline", "tensor", "sequence")}  # fmt: skip
COORDINATION = {
    "JAX_COORDINATOR_IP": "<changeme>", "JAX_COORDINATOR_PORT": "12346", "NNODES": "1",
    "JAX_DISTRIBUTED_INITIALIZATION_TIMEOUT_SECONDS": "2400", "INITIALIZATION_TIMEOUT": "2400",
    "JAX_DISTRIBUTED_HEARTBEAT_TIMEOUT_SECONDS": "600",
}  # fmt: skip


def jax_file(model: str, nodes: int, **cell: Any) -> dict[str, Any]:
    """A JAX file of the newest grammar: flags, variables and the card's library stand in `config`."""
    network = {**NETWORK, "nccl_ib_hca": "rdma0,rdma1", "nccl_ib_hca_list": "rdma0,rdma1"} if nodes > 1 else {}
    config = {
        "container_image": "example/jax:26.3", "container_name": "jax", "distributed_training": str(nodes > 1),
        "enable_checkpointing": "False", "nnodes": str(nodes), "training_steps": "40", "shm_size": "256G",
        "coordinator_ip": "10.1.0.1" if nodes > 1 else "localhost", "data_cache_dir": "/scratch/{user-id}",
        "mock_data": "True", "log_dir": "/logs", "__container_image": "an older one", "dataset_source": {}, **network,
        "rdma_lib": LIBRARY, "xla_flags": XLA_FLAGS, "env_vars": VARIABLES,
        "container_config": {"device_list": ["/dev/kfd"], "volume_dict": {"/data": "/data"}, "env_dict": COORDINATION},
    }  # fmt: skip
    across = {"dcn_fsdp_parallelism": "-1"} if nodes > 1 else {"dcn_data_parallelism": "-1"}
    parameters = {
        "model_size": model.rpartition("-")[2].removesuffix("b"), "hardware": "gpu", "attention": "cudnn_flash_te",
        **MESH, **across, "ici_fsdp_parallelism": "8", "remat_policy": "full", "scan_layers": "true",
        "dataset_type": "synthetic", "dtype": "bfloat16", "weight_dtype": "bfloat16", "quantization": "",
        "per_device_batch_size": "2", "max_target_length": "4096", "max_segments_per_seq": "32", "packing": "True",
        "enable_goodput_recording": "False", "monitor_goodput": "False", "optimizer_memory_host_offload": "False",
        "param_scan_axis": "1", "shardy": "False", "base_emb_dim": "1024", "rope_max_timescale": "500_000", **cell,
        "result_dict": {"tflops_per_sec_per_gpu": "400.0", "tokens_per_sec_per_gpu": "900.0"},
    }  # fmt: skip
    topology = "multi_node" if nodes > 1 else "single_node"
    return {"config": config, "model_params": {topology: {model: {"mi300x": parameters}}}}


def megatron_file(nodes: int, *gpus: str, **cell: Any) -> dict[str, Any]:
    """A Megatron file of the newest grammar: Megatron's folder, its scripts and the names of cards are given."""
    network = (
        {**NETWORK, "nccl_ib_hca_list": "rdma0,rdma1", "nccl_ib_gid_index": "3", "nccl_debug": "ERROR"}
        if nodes > 1
        else {}
    )
    config = {
        "container_image": "example/megatron:26", "container_name": "megatron", "nnodes": str(nodes), **network,
        "master_address": "10.1.0.1" if nodes > 1 else "localhost", "training_iterations": "40", "mock_data": "True",
        "hca_id_pattern": "bnxt_|rocep", "data_cache_dir": "/cache", "log_dir": "/logs", "dataset_source": {},
        "megatron_root": "/workspace/Megatron-LM", "training_scripts": SCRIPTS, "scripts_dir": "/scripts",
        "container_config": {"device_list": ["/dev/kfd"], "volume_dict": {"/data": "/data"}},
    }  # fmt: skip
    models = {
        f"llama3_1_{size}b": {
            gpu: {
                "tokenizer_model": f"example/Llama-3-{size}B", "model_size": size, "batch_size": "64",
                "micro_batch_size": "2", "precision": "TE_FP8", "sequence_length": "4096", "recompute": "0",
                "tensor_parallelism": "1" if size == "8" else "8", "pipeline_parallelism": "1", "fsdp": "0", **cell,
                "result_dict": {"tokens_per_gpu": "1000.0"},
            }
            for gpu in gpus
        }
        for size in ("8", "70")
    }  # fmt: skip
    return {"config": config, "model_params": {"multi_node" if nodes > 1 else "single_node": models}}


def load(tmp_path: Path, tree: Mapping[str, Any], *overrides: str) -> Resolved:
    path = tmp_path / "newest.json"
    path.write_text(json.dumps(tree, indent=1), encoding="utf-8")
    return lint(dialects.load(path, overrides, action="check"), action="check")


def spec_of(tmp_path: Path, tree: Mapping[str, Any], *overrides: str) -> RunSpec:
    resolved = load(tmp_path, tree, *overrides)
    assert [problem for problem in resolved.problems if problem.severity == "error"] == []
    assert resolved.spec is not None
    return resolved.spec


def found(resolved: Resolved, code: str) -> list[Problem]:
    return [problem for problem in resolved.problems if problem.code == code]


# --- the four JAX files -----------------------------------------------------------------------------------------------


def is_as_cvs_writes_it(spec: RunSpec) -> None:
    """Asserts what the newest CVS writes into MaxText's YAML, XLA_FLAGS and file of variables for every JAX file."""
    assert (spec.steps, spec.checkpoint.enabled, spec.data.kind) == (40, False, "synthetic")
    assert spec.execution.xla_flags == {**XLA_FLAGS, "xla_gpu_enable_command_buffer": ""}  # XLA takes the quotes off
    assert VARIABLES.items() <= spec.execution.environment.items()
    assert (spec.precision.compute_dtype, spec.precision.params_dtype) == ("bfloat16", "bfloat16")
    assert spec.distributed.coordinator_port == 12346
    assert (spec.distributed.initialization_timeout_seconds, spec.distributed.heartbeat_timeout_seconds) == (2400, 600)
    assert [target.value for target in spec.expectations] == [400.0, 900.0]
    assert (spec.execution.remat, spec.execution.scan_layers, spec.execution.attention) == (
        "full", True, "cudnn_flash_te",
    )  # fmt: skip


@pytest.mark.parametrize(("model", "nodes"), [("llama3.1-70b", 4), ("llama3.1-405b", 16)])
def test_distributed_jax(tmp_path: Path, model: str, nodes: int) -> None:
    spec = spec_of(tmp_path, jax_file(model, nodes))
    is_as_cvs_writes_it(spec)
    assert (spec.model.name, spec.topology.num_nodes, spec.topology.num_devices) == (model, nodes, nodes * 8)
    assert spec.mesh == {"pipeline": 1, "data": 1, "fsdp": nodes * 8, "context": 1, "tensor": 1}
    assert spec.batch == Batch(sequence_length=4096, global_batch_size=nodes * 16, micro_batch_size=2)
    assert {name: spec.execution.environment[name] for name in ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME")} == {
        "NCCL_IB_HCA": "rdma0,rdma1", "NCCL_SOCKET_IFNAME": "eth1",
    }  # fmt: skip
    assert spec.distributed.coordinator_host == "10.1.0.1"
    assert spec.container is not None
    assert spec.container.environment["JAX_COORDINATOR_IP"] == "10.1.0.1"


def test_single_node_jax(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, jax_file("llama3.1-70b", 1))
    is_as_cvs_writes_it(spec)
    assert (spec.topology.num_devices, spec.mesh["fsdp"]) == (8, 8)
    assert spec.batch == Batch(sequence_length=4096, global_batch_size=16, micro_batch_size=2)


def test_single_node_jax_of_the_older_grammar(tmp_path: Path) -> None:
    """One of the newest files is still of 2025: flags in the cell, variables by keys of their own."""
    tree = jax_file("llama3.1-70b", 1, xla_flags={"xla_gpu_autotune_level": "4"})
    for name in ("rdma_lib", "xla_flags", "env_vars"):
        del tree["config"][name]
    tree["config"] |= {"gpu_max_hw_queues": "2", "nvte_ck_bwd_v3": "1", "xla_python_client_mem_fraction": ".975"}
    spec = spec_of(tmp_path, tree)
    assert spec.execution.xla_flags == {"xla_gpu_autotune_level": "4"}
    assert spec.execution.environment == {
        "GPU_MAX_HW_QUEUES": "2", "NVTE_CK_BWD_V3": "1", "XLA_PYTHON_CLIENT_MEM_FRACTION": ".975",
    }  # fmt: skip
    differs = [problem.path for problem in found(load(tmp_path, tree), "cvs-differs")]
    assert any(path.endswith("xla_flags.xla_gpu_autotune_level") for path in differs)
    assert any(path.endswith("JAX_COORDINATOR_PORT") for path in differs)


def test_the_port_of_a_newer_file_is_the_one_that_cvs_exports(tmp_path: Path) -> None:
    assert found(load(tmp_path, jax_file("llama3.1-70b", 4)), "cvs-differs") == []


def test_a_variable_of_env_vars_counts_before_the_key_of_the_same(tmp_path: Path) -> None:
    tree = jax_file("llama3.1-70b", 4)
    tree["config"]["env_vars"] = {"NCCL_IB_HCA": "mlx5_0", "NCCL_SOCKET_IFNAME": "eth1"}
    resolved = load(tmp_path, tree)
    assert resolved.spec is not None
    assert resolved.spec.execution.environment["NCCL_IB_HCA"] == "mlx5_0"
    assert "config.nccl_ib_hca" in [problem.path for problem in found(resolved, "contradiction")]
    overridden = spec_of(tmp_path, tree, "config.nccl_ib_hca=mlx5_7")
    assert overridden.execution.environment["NCCL_IB_HCA"] == "mlx5_7"


# --- the three Megatron files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", ["mi300x", "mi325", "mi350", "mi355"])
@pytest.mark.parametrize(("model", "tensor"), [("llama3_1_8b", 1), ("llama3_1_70b", 8)])
def test_single_node_megatron(tmp_path: Path, model: str, tensor: int, gpu: str) -> None:
    gpus = ("mi300x", "mi325") if gpu < "mi350" else ("mi350", "mi355")
    spec = spec_of(tmp_path, megatron_file(1, *gpus), f"model={model}", f"gpu={gpu}")
    assert spec.batch == Batch(sequence_length=4096, global_batch_size=64, micro_batch_size=2)
    assert (spec.mesh["tensor"], spec.mesh["data"]) == (tensor, 8 // tensor)
    assert (spec.steps, spec.precision.quantization, spec.execution.remat) == (40, "fp8", "none")
    assert spec.expectations == (Expectation(metric="tokens_per_second_per_device", value=1000.0),)


@pytest.mark.parametrize("model", ["llama3_1_8b", "llama3_1_70b"])
def test_distributed_megatron(tmp_path: Path, model: str) -> None:
    spec = spec_of(tmp_path, megatron_file(4, "mi300x"), f"model={model}")
    assert spec.topology.num_devices == 32
    assert spec.execution.environment == {
        "NCCL_IB_HCA": "rdma0,rdma1", "NCCL_SOCKET_IFNAME": "eth1", "GLOO_SOCKET_IFNAME": "eth1",
        "NCCL_IB_GID_INDEX": "3", "NCCL_DEBUG": "ERROR",
    }  # fmt: skip
    assert spec.distributed.coordinator_host == "10.1.0.1"


@pytest.mark.parametrize(
    ("scripts", "starts"),
    [
        ({"llama-3": "mine/train_llama3.sh"}, None),
        ({"llama": "examples/llama/train_llama2.sh"}, "train_llama2.sh"),
        ({"llama-[2": "a.sh", "LLAMA-3": "b.sh"}, "b.sh"),
        ({"mixtral": "train_mixtral.sh"}, "no script at all"),
    ],
)
def test_the_script_of_a_family_of_models(tmp_path: Path, scripts: dict[str, str], starts: str | None) -> None:
    tree = megatron_file(1, "mi300x")
    tree["config"]["training_scripts"] = scripts
    differs = found(load(tmp_path, tree, "model=llama3_1_8b"), "cvs-differs")
    assert [starts in problem.why for problem in differs] == ([True] if starts else [])


# --- lists on the command line ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cards", ["a,b", '["a", "b"]', "[1, 2]"])
def test_a_list_of_cards_on_the_command_line_is_text_or_one_finding(tmp_path: Path, cards: str) -> None:
    for tree, model in ((megatron_file(4, "mi300x"), "llama3_1_8b"), (jax_file("llama3.1-70b", 4), "llama3.1-70b")):
        resolved = load(tmp_path, tree, f"config.nccl_ib_hca_list={cards}", f"model={model}")
        wrong = [problem.path for problem in found(resolved, "bad-value")]
        assert wrong == ([] if cards == "a,b" else ["config.nccl_ib_hca_list"])
