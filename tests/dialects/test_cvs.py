"""CVS JAX configurations: what a spec is made of, where each value came from, and everything that can be wrong."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seatrial import dialects, source
from seatrial.check import lint
from seatrial.dialects import placeholders
from seatrial.dialects.cvs import keys as cvs_keys
from seatrial.dialects.typed import schema
from seatrial.errors import InputError, Problem
from seatrial.report.problems import render_json, render_text
from seatrial.spec import METRICS, Batch, Data, Expectation, MeshShape, Resolved, RunSpec, Topology
from seatrial.spec.presets import MODELS
from tests.helpers.seeds import COMPLETE, MULTI_70B, MULTI_405B, SEEDS, SINGLE_MI300X, SINGLE_MI355X

TEXT = MULTI_70B.read_text(encoding="utf-8")
CELL = "model_params.multi_node.llama3.1-70b.mi300x"


def load(
    path: Path, *overrides: str, action: str = "run", model: str | None = None, gpu: str | None = None
) -> Resolved:
    return dialects.load(path, overrides, action=action, model=model, gpu=gpu)


def spec_of(path: Path, *overrides: str, action: str = "run") -> RunSpec:
    resolved = load(path, *COMPLETE[path], *overrides, action=action)
    assert [p for p in resolved.problems if p.severity == "error"] == []
    assert resolved.spec is not None
    return resolved.spec


def found(resolved: Resolved, code: str) -> list[Problem]:
    return [problem for problem in resolved.problems if problem.code == code]


# --- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.stem)
def test_every_key_of_every_seed_has_its_row(path: Path) -> None:
    resolved = load(path, *COMPLETE[path])
    assert found(resolved, "unknown-key") == []


def test_every_row_goes_to_a_field_of_the_spec_or_says_why_not() -> None:
    fields = {known for known, _ in schema()} | {f"expectations.{metric}" for metric in METRICS}
    for name, key in {**cvs_keys.KEYS, **cvs_keys.TABLE.sections}.items():
        parent = key.to.removesuffix(f".{key.to.rpartition('.')[2]}")
        assert bool(key.to) != bool(key.why), name
        assert not key.to or key.to in fields or parent in fields, name


# --- what the spec is made of -----------------------------------------------------------------------------------------


def test_a_single_node_seed() -> None:
    spec = spec_of(SINGLE_MI300X)
    assert spec.dialect == "cvs-jax"
    assert spec.name == "llama3.1-70b-mi300x-single_node"
    assert spec.model == MODELS["llama3.1-70b"]  # by its name, whatever base_* say
    assert spec.topology == Topology(num_nodes=1, devices_per_node=8, device="mi300x")
    assert spec.batch == Batch(sequence_length=8192, global_batch_size=16, micro_batch_size=2)
    assert spec.mesh == {"pipeline": 1, "data": 1, "fsdp": 8, "context": 1, "tensor": 1}
    assert spec.accumulation_steps == 1
    assert spec.steps == 30
    assert (spec.precision.compute_dtype, spec.precision.params_dtype) == ("bfloat16", "bfloat16")
    assert (spec.precision.optimizer_dtype, spec.precision.quantization) == ("bfloat16", None)
    assert spec.optimizer.warmup_steps == 3
    assert (spec.execution.remat, spec.execution.scan_layers) == ("full", True)
    assert spec.execution.attention == "cudnn_flash_te"
    assert spec.execution.xla_flags["xla_gpu_enable_all_gather_combine_by_dim"] == "FALSE"
    assert spec.expectations == (
        Expectation(metric="tflops_per_second_per_device", value=1800.0),
        Expectation(metric="tokens_per_second_per_device", value=900.0),
    )
    assert not spec.checkpoint.enabled
    assert spec.distributed.coordinator_host == "localhost"
    assert spec.distributed.heartbeat_timeout_seconds == 900


def test_a_distributed_seed() -> None:
    spec = spec_of(MULTI_405B)
    assert spec.model == MODELS["llama3.1-405b"]
    assert spec.topology.num_devices == 16
    assert spec.parallelism.across_nodes == MeshShape(fsdp=-1)
    assert spec.mesh["fsdp"] == 16
    assert spec.batch == Batch(sequence_length=8192, global_batch_size=32, micro_batch_size=2)
    assert spec.nic_type == "thor2"
    assert spec.execution.environment == {
        "NCCL_IB_HCA": "bnxt_re0,bnxt_re1",
        "NCCL_SOCKET_IFNAME": "ens51f1np1",
        "GLOO_SOCKET_IFNAME": "ens51f1np1",
        "NCCL_IB_GID_INDEX": "3",
        "NCCL_DEBUG": "ERROR",
        "NCCL_PROTO": "Simple",
        "GPU_MAX_HW_QUEUES": "2",
        "NCCL_IB_TC": "41",
        "NCCL_IB_SL": "0",
        "NCCL_CHECKS_DISABLE": "1",
        "NVTE_CK_BWD_V3": "1",
        "NVTE_CK_V3_BF16_CVT": "2",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.975",
    }
    assert [(target.metric, target.value) for target in spec.expectations] == [
        ("tflops_per_second_per_device", 380.0),
        ("tokens_per_second_per_device", 145.0),
    ]


def test_the_container_and_its_placeholders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.setenv("HOME", str(tmp_path))
    spec = spec_of(SINGLE_MI300X, "config.log_dir={home}/{user}/{home-mount-dir}/{node-dir-name}")
    container = spec.container
    assert container is not None
    assert (container.image, container.name) == ("rocm/jax-training:maxtext-v25.9", "rocm-jax-llama3.1-70b")
    assert container.devices == ("/dev/dri", "/dev/kfd", "/dev/infiniband/rdma_cm")
    assert container.volumes[0] == ("/home/ada", "/home/ada")  # placeholders stand in keys too
    assert container.shm_size == "256G"
    assert container.environment["JAX_COORDINATOR_IP"] == "localhost"
    assert spec.hf_token_file == "/home/ada/.hf_token"
    assert spec.log_dir == f"{tmp_path}/ada/home/root"


def test_an_unnamed_person_in_a_container_has_no_name_and_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    assert placeholders.values_for("1001", Path("/"))["user-id"] == "1001"
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    assert spec_of(SINGLE_MI300X).hf_token_file is not None


def test_real_data_are_a_hugging_face_data_set() -> None:
    files = ("dataset_type=hf", "hf_path=parquet", "hf_train_files=/data/c4/000*.parquet", "tokenizer_path=/data/tok")
    spec = spec_of(SINGLE_MI300X, *files, action="plan")
    assert (spec.data.kind, spec.data.dataset, spec.data.paths) == (
        "huggingface",
        "parquet",
        ("/data/c4/000*.parquet",),
    )
    assert (spec.data.tokenizer, spec.data.packing, spec.epochs) == ("/data/tok", True, 1)
    assert spec_of(SINGLE_MI300X).data == Data()


# --- overrides and origins --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("training_steps=7", "steps", 7),
        ("config.training_steps=1_000", "steps", 1000),
        (f"{CELL}.max_target_length=4096", "batch.sequence_length", 4096),
        ("dtype=float32", "precision.compute_dtype", "float32"),
        ("quantization=fp8", "precision.quantization", "fp8"),
        ("per_device_batch_size=3.0", "batch.global_batch_size", 48),
        ("ici_tensor_parallelism=2", "topology.devices_per_node", 16),
        ("ici_sequence_parallelism=2", "parallelism.within_node.context", 2),
        ("base_num_decoder_layers=40", "model.num_layers", 40),  # an override of the model is obeyed
        ("logits_via_embedding=TRUE", "model.tied_embeddings", True),
        ("enable_checkpointing=true", "checkpoint.enabled", True),
        ("env_dict.JAX_COORDINATOR_PORT=4321", "distributed.coordinator_port", 4321),
        ("env_dict.NCCL_CROSS_NIC=0", "container.environment.NCCL_CROSS_NIC", "0"),  # added to the user's own keys
        ("xla_flags.xla_gpu_graph_level=1", "execution.xla_flags.xla_gpu_graph_level", "1"),
        ('device_list=["/dev/a"]', "container.devices", ("/dev/a",)),
    ],
)
def test_an_override_reaches_the_spec_and_is_its_origin(override: str, path: str, value: Any) -> None:
    resolved = load(MULTI_70B, *COMPLETE[MULTI_70B], override)
    assert [p for p in resolved.problems if p.severity == "error"] == []
    got: Any = resolved.spec
    for part in path.split("."):
        got = got[part] if isinstance(got, dict) else getattr(got, part)
    assert got == value
    origin = resolved.origin(path)
    if origin.kind != "derived":
        assert (origin.kind, origin.text) == ("override", override.partition("=")[2])
        assert origin.key.endswith(override.partition("=")[0])


def _short(keys: dict[str, str], config: dict[str, str]) -> dict[str, Any]:
    """A CVS file of one node that says no more than it must, and what is given."""
    cell = {"per_device_batch_size": "2", "max_target_length": "4096", "ici_fsdp_parallelism": "8", **keys}
    return {
        "config": {"nnodes": "1", "training_steps": "50", "log_dir": "/logs", **config},
        "model_params": {"single_node": {"llama3.1-8b": {"mi300x": cell}}},
    }


@pytest.mark.parametrize(
    ("keys", "config", "words"),
    [
        ({}, {"enable_checkpointing": "False"}, "enable_checkpointing=false dataset_type=synthetic"),
        ({}, {"enable_checkpointing": "True"}, "enable_checkpointing=true dataset_type=synthetic"),
        (
            {"dataset_type": "hf", "hf_path": "parquet", "hf_train_files": "/d/*.parquet", "tokenizer_path": "/t"},
            {"enable_checkpointing": "False"},
            "enable_checkpointing=false dataset_type=hf hf_path=parquet hf_train_files=/d/*.parquet tokenizer_path=/t",
        ),
    ],
)
def test_what_a_cell_omits_is_as_maxtext_has_it(
    keys: dict[str, str], config: dict[str, str], words: str, tmp_path: Path
) -> None:
    file, command = tmp_path / "short.json", tmp_path / "short.sh"
    file.write_text(json.dumps(_short(keys, config)))
    command.write_text(
        "python3 -m MaxText.train base.yml run_name=x base_output_directory=/logs model_name=llama3.1-8b hardware=gpu "
        f"steps=50 per_device_batch_size=2 max_target_length=4096 ici_fsdp_parallelism=8 {words}\n"
    )
    mine, maxtext = (dialects.load(path, (), action="plan").spec for path in (file, command))
    assert mine is not None
    assert maxtext is not None
    # Aside: what concerns CVS's hosts. The cell names the GPU, and its container keeps neither programs nor metrics.
    aside = {"topology", "parallelism", "logging", "execution", "name", "dialect", "container", "checkpoint"}
    parts = {name: getattr(mine, name) for name in mine.__dataclass_fields__ if name not in aside}
    assert parts == {name: getattr(maxtext, name) for name in parts}
    keep = None if mine.checkpoint.enabled else 1
    assert mine.checkpoint == replace(maxtext.checkpoint, keep=keep)
    assert replace(mine.execution, compile_cache=maxtext.execution.compile_cache) == maxtext.execution
    assert mine.mesh == maxtext.mesh


def test_the_hardware_is_read_in_capitals_too_as_it_is_documented() -> None:
    assert found(load(SINGLE_MI300X, "config.nnodes=1", "hardware=GPU"), "bad-value") == []


def test_a_key_that_the_file_lacks_can_be_added() -> None:
    spec = spec_of(SINGLE_MI300X, "config.nic_type=thor2", "nccl_debug=INFO")
    assert (spec.nic_type, spec.execution.environment["NCCL_DEBUG"]) == ("thor2", "INFO")


def test_the_last_of_two_overrides_of_a_key_holds() -> None:
    assert spec_of(SINGLE_MI300X, "training_steps=5", "config.training_steps=6").steps == 6


def test_every_value_from_the_file_knows_its_place() -> None:
    resolved = load(SINGLE_MI300X, "config.nnodes=1")
    lines = SINGLE_MI300X.read_text(encoding="utf-8").splitlines()
    marked = {path: origin for path, origin in resolved.origins.items() if origin.kind == "file" and origin.text}
    assert len(marked) > 50
    for path, origin in marked.items():
        assert origin.mark is not None, path
        assert origin.text in lines[origin.mark.line - 1][origin.mark.column - 1 :], path
    assert resolved.origin("steps").key == "config.training_steps"
    assert resolved.origin("topology.num_nodes").kind == "override"
    assert resolved.origin("optimizer.learning_rate").note == "MaxText's default"
    assert resolved.origin("container.environment.JAX_COORDINATOR_IP").kind == "derived"


# --- <changeme> -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["run", "plan", "rehearse", "train"])
@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.stem)
def test_every_changeme_is_reported_once_at_its_place(path: Path, action: str) -> None:
    expected = {
        (number, match.start() + 1)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for match in re.finditer(r'"[^"]*<changeme>[^"]*"', line)
    }
    problems = found(load(path, action=action), "placeholder")
    places = [(p.mark.line, p.mark.column) for p in problems if p.mark]
    assert sorted(places) == sorted(expected)
    assert all("<changeme>" in problem.why for problem in problems)


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.stem)
def test_a_rehearsal_needs_the_number_of_nodes_and_nothing_else(path: Path) -> None:
    for action in ("rehearse", "train"):
        blocking = [p.path for p in load(path, action=action).problems if p.severity == "error"]
        assert blocking == ["config.nnodes"]
        nodes = "config.nnodes=2" if "distributed" in path.name else "config.nnodes=1"
        resolved = load(path, nodes, action=action)
        assert [p.path for p in resolved.problems if p.severity == "error"] == []
        assert resolved.spec is not None


def test_a_run_needs_what_is_selected_but_not_what_nothing_reads_or_what_follows() -> None:
    severities = {p.path.removeprefix("config."): p.severity for p in found(load(MULTI_70B), "placeholder")}
    assert severities == {
        "nnodes": "error",
        "coordinator_ip": "error",
        "nccl_ib_hca_list": "warning",  # CVS's JAX tests do not read it
        "nccl_ib_hca": "error",
        "nccl_socket_ifname": "error",
        "gloo_socket_ifname": "error",
        "nccl_ib_gid_index": "error",
        "container_config.env_dict.JAX_COORDINATOR_IP": "warning",  # follows from coordinator_ip
        f"{CELL}.result_dict.tflops_per_sec_per_gpu": "error",
        f"{CELL}.result_dict.tokens_per_sec_per_gpu": "error",
    }


def test_the_example_beside_a_changeme_is_its_hint() -> None:
    hints = {p.path: p.fix for p in found(load(MULTI_70B), "placeholder")}
    assert hints["config.nccl_ib_gid_index"].endswith("for example config.nccl_ib_gid_index=3")
    assert hints[f"{CELL}.result_dict.tokens_per_sec_per_gpu"].endswith("result_dict.tokens_per_sec_per_gpu=800")


def test_a_coordinator_s_address_in_the_environment_follows_from_its_key_and_that_is_said() -> None:
    resolved = load(MULTI_70B, *COMPLETE[MULTI_70B])
    (said,) = [p for p in found(resolved, "placeholder") if p.path.endswith("JAX_COORDINATOR_IP")]
    assert (said.severity, "follows from config.coordinator_ip: 10.0.0.1" in said.why) == ("info", True)
    assert resolved.spec is not None
    assert resolved.spec.container is not None
    assert resolved.spec.container.environment["JAX_COORDINATOR_IP"] == "10.0.0.1"


# --- which cell -------------------------------------------------------------------------------------------------------


@pytest.fixture
def several(tmp_path: Path) -> Path:
    """Two models, one of them on two GPUs."""
    data = json.loads(TEXT)
    cell = data["model_params"]["multi_node"]["llama3.1-70b"]["mi300x"]
    data["model_params"]["multi_node"]["llama3.1-70b"]["mi355"] = cell | {"max_target_length": "<changeme>"}
    data["model_params"]["multi_node"]["llama3.1-405b"] = {"mi300x": cell, "_comments": {"mi300x": {}}}
    data["model_params"]["_comments"] = {"single_node": {}}
    path = tmp_path / "several.json"
    path.write_text(json.dumps(data, indent=1))
    return path


@pytest.mark.parametrize(
    ("overrides", "flags", "name"),
    [
        (("model=llama3.1-405b",), {}, "llama3.1-405b-mi300x-multi_node"),
        (("model=llama3.1-70b", "gpu=mi300x", "topology=multi_node"), {}, "llama3.1-70b-mi300x-multi_node"),
        (("gpu=MI300X",), {"model": "llama3.1-70b"}, "llama3.1-70b-mi300x-multi_node"),
        (("max_target_length=1024",), {"gpu": "mi355x"}, "llama3.1-70b-mi355-multi_node"),
        (("model=llama3.1-405b",), {"model": "llama3.1-70b"}, "llama3.1-405b-mi300x-multi_node"),
    ],
)
def test_a_cell_is_chosen_by_overrides_and_flags(
    several: Path, overrides: tuple[str, ...], flags: dict[str, str], name: str
) -> None:
    resolved = load(several, "config.nnodes=2", *overrides, action="rehearse", **flags)
    assert [p for p in resolved.problems if p.severity == "error"] == []
    assert resolved.spec is not None
    assert resolved.spec.name == name


def test_no_cell_is_chosen_in_silence(several: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    for overrides, choices in (((), 3), (("model=llama3.1-70b",), 2)):
        resolved = load(several, "config.nnodes=2", *overrides)
        assert resolved.spec is None
        (finding,) = found(resolved, "ambiguous-cell")
        assert finding.why.count("topology=") == choices


def test_this_machine_s_gpu_decides_where_only_gpus_are_left(
    several: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tool = tmp_path / "bin" / "rocm-smi"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\necho "GPU[0] : Card Series: AMD Instinct MI300X OAM"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent))
    resolved = load(several, "config.nnodes=2", "model=llama3.1-70b", action="rehearse")
    (said,) = found(resolved, "gpu-detected")
    assert (said.severity, "mi300x" in said.why) == ("info", True)
    assert resolved.spec is not None
    assert resolved.spec.topology.device == "mi300x"


def test_an_unfilled_value_of_another_cell_is_only_a_warning(several: Path) -> None:
    resolved = load(several, "config.nnodes=2", "model=llama3.1-405b", action="rehearse")
    (finding,) = [p for p in found(resolved, "placeholder") if p.path.endswith("mi355.max_target_length")]
    assert finding.severity == "warning"


# --- what can be wrong ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wrong:
    """The distributed 70B seed with `old` replaced by `new`: a finding of this code, at `at` in the new text."""

    name: str
    code: str
    old: str = ""
    new: str = ""
    at: str = ""
    overrides: tuple[str, ...] = ()
    path: str = ""


WRONG = (
    Wrong("trailing comma", "bad-json", '"tokens_per_sec_per_gpu": "<changeme>"', '"x": 1,', ",\n}"),
    Wrong("comment", "bad-json", '"nnodes": "<changeme>",', '"nnodes": "2", // two', "// two"),
    Wrong("no quotes", "bad-json", '"nnodes"', "nnodes", "nnodes"),
    Wrong("a tab in a string", "bad-json", "thor2", "thor\t2", "\t2"),
    Wrong("cut off", "bad-json", TEXT[2000:], "", ""),
    Wrong("key twice", "duplicate-key", '"nnodes": "<changeme>",', '"nnodes": "2", "nnodes": "3",', '"nnodes": "3"'),
    Wrong("misspelt key of config", "unknown-key", '"training_steps"', '"trainig_steps"', '"trainig_steps"'),
    Wrong("misspelt key of the cell", "unknown-key", '"remat_policy"', '"remat_polcy"', '"remat_polcy"'),
    Wrong("misspelt target", "unknown-key", '"tflops_per_sec_per_gpu": "<', '"tflop_per_sec_per_gpu": "<',
          '"tflop_per_sec_per_gpu"'),
    Wrong("misspelt section", "unknown-key", '"container_config"', '"container_cfg"', '"container_cfg"'),
    Wrong("a key beside config", "unknown-key", '"model_params":', '"confg": {}, "model_params":', '"confg"'),
    Wrong("missing steps", "missing-key", '"training_steps": "30",', "", '{\n"container_image"',
          path="config.training_steps"),
    Wrong("missing length", "missing-key", '"max_target_length": "8192",', "", '{\n"tokenizer_model"',
          path=f"{CELL}.max_target_length"),
    Wrong("steps in words", "bad-value", '"30"', '"thirty"', '"thirty"'),
    Wrong("no steps", "bad-value", '"30"', '"0"', '"0",\n"nic_type"'),
    Wrong("steps as a list", "bad-value", '"30"', "[30]", "[30]"),
    Wrong("steps as nothing", "bad-value", '"30"', "null", "null"),
    Wrong("a mapping for a number", "bad-value", '"30"', '{"a": 1}', '{"a": 1}'),
    Wrong("a number for a mapping", "bad-value", '"dataset_source":\n{\n}', '"dataset_source": 3', '3,'),
    Wrong("config is a list", "bad-value", TEXT[: TEXT.index('"model_params"')], '{"config": [],', "[]"),
    Wrong("a bool that is none", "bad-value", '"async_checkpointing": "false"', '"async_checkpointing": "no"', '"no"'),
    Wrong("a dtype that is none", "bad-value", '"dtype": "bfloat16"', '"dtype": "float16"', '"float16"'),
    Wrong("a remat policy that is none", "bad-value", '"remat_policy": "full"', '"remat_policy": "ful"', '"ful"'),
    Wrong("a mesh axis of 0", "bad-value", '"ici_fsdp_parallelism": "8"', '"ici_fsdp_parallelism": "0"',
          '"0",\n"ici_data'),
    Wrong("real data", "bad-value", '"dataset_type": "synthetic"', '"dataset_type": "tfds"', '"tfds"'),
    Wrong("another block", "bad-value", '"decoder_block": "llama2"', '"decoder_block": "mixtral"', '"mixtral"'),
    Wrong("another activation", "bad-value", '"silu","linear"', '"gelu","linear"', '["gelu","linear"]'),
    Wrong("a port that is none", "bad-value", '"1234"', '"123456"', '"123456"'),
    Wrong("a target that is none", "bad-value", '"<changeme>"\n}', '"fast"\n}', '"fast"'),
    Wrong("devices without a list", "bad-value", '[ "/dev/dri", "/dev/kfd", "/dev/infiniband/rdma_cm" ]', '"/dev/dri"',
          '"/dev/dri"'),
    Wrong("an unknown placeholder", "unknown-placeholder", '"/home/{user-id}/LOGS"', '"/home/{userid}/LOGS"',
          '"/home/{userid}/LOGS"'),
    Wrong("an unknown placeholder in a key", "unknown-placeholder", '"/home/{user-id}":', '"/{homes}/x":',
          '"/home/{user-id}",\n"/dev/infiniband"'),
    Wrong("devices of a node left open", "devices-unknown", '"ici_fsdp_parallelism": "8"',
          '"ici_fsdp_parallelism": "-1"', '"-1",\n"ici_data'),
    Wrong("a batch that does not divide", "batch-not-whole", '"per_device_batch_size": "2"',
          '"per_device_batch_size": "0.3"', '"0.3"'),
    Wrong("an unknown model", "unknown-model", '"llama3.1-70b":', '"llama3.1-71b":', '"llama3.1-71b"'),
    Wrong("an unknown topology", "malformed", '"multi_node":', '"two_nodes":', '"two_nodes"'),
    Wrong("no cells", "malformed", TEXT[TEXT.index('"multi_node"') :], "}\n}", "{\n}\n}"),
    Wrong("a cell that is no mapping", "malformed", TEXT[TEXT.index('{\n"tokenizer_model"') :], '"x"}}}}', '"x"}}}}'),
    Wrong("no override", "bad-override", overrides=("nnodes",), path="nnodes"),
    Wrong("an unknown override", "unknown-override", overrides=("nodes=2",), path="nodes"),
    Wrong("an ambiguous override", "ambiguous-override", overrides=("xla_gpu_executable_warn_stuck_timeout=9",)),
    Wrong("an override of a wrong type", "bad-value", overrides=("config.nnodes=two",), path="config.nnodes"),
    Wrong("an override that fills nothing in", "placeholder", overrides=("training_steps=<ChangeMe>",),
          path="config.training_steps"),
    Wrong("a cell that is not there", "unknown-cell", overrides=("gpu=mi355",), path="model_params"),
)  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_what_is_wrong_is_said_at_its_place(wrong: Wrong, tmp_path: Path) -> None:
    text = TEXT.replace(wrong.old, wrong.new, 1) if wrong.old else TEXT
    assert wrong.overrides or text != TEXT
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    try:
        problems = lint(load(path, *wrong.overrides), action="run").problems
    except InputError as error:
        problems = error.problems
    (finding,) = [p for p in problems if p.code == wrong.code and p.path.startswith(wrong.path)]
    assert finding.severity == "error"
    assert finding.why
    assert finding.fix
    if wrong.overrides and wrong.code != "unknown-cell":
        assert finding.mark is None
        return
    assert finding.mark is not None
    rest = "\n".join(text.split("\n")[finding.mark.line - 1 :])[finding.mark.column - 1 :]
    assert wrong.overrides or rest.startswith(wrong.at), rest[:60]
    assert f"error[{wrong.code}]" in render_text(problems)


def test_a_single_node_configuration_for_many_nodes_is_many_jobs() -> None:
    (finding,) = found(load(SINGLE_MI300X, "config.nnodes=2"), "not-supported-yet")
    assert (finding.severity, finding.path) == ("error", "config.nnodes")


def test_all_wrong_values_are_told_in_one_go(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(TEXT.replace('"30"', '"x"').replace('"8192"', '"y"').replace('"bfloat16"', '"z"'))
    assert len(found(load(path), "bad-value")) == 5


# --- findings that block nothing --------------------------------------------------------------------------------------


def test_numbers_of_another_model_are_named_with_their_owner() -> None:
    for path in (SINGLE_MI300X, SINGLE_MI355X, MULTI_70B):
        (finding,) = found(load(path), "architecture-contradicts-name")
        assert finding.severity == "warning"
        assert finding.path.endswith("base_emb_dim")
        for part in ("16384 (not 8192)", "128 (not 64)", "126 (not 80)", "53248 (not 28672)", "those of llama3.1-405b"):
            assert part in finding.why
    assert found(load(MULTI_405B), "architecture-contradicts-name") == []


def test_notes_that_contradict_what_runs_are_warnings_and_those_that_agree_are_silent() -> None:
    def named(*overrides: str) -> set[str]:
        problems = found(load(MULTI_70B, *COMPLETE[MULTI_70B], *overrides), "contradiction")
        return {problem.path.rpartition(".")[2] for problem in problems}

    assert named() == {"batch_size", "fsdp", "recompute", "precision"}
    agreeing = ("batch_size=32", "fsdp=1", "recompute=1", "precision=TE_FP16")
    assert named(*agreeing) == set()
    differing = ("micro_batch_size=3", "sequence_length=1", "tensor_parallelism=2", "pipeline_parallelism=2",
                 "model_size=8", "mock_data=False", "distributed_training=False", "nccl_ib_hca_list=mlx5_0",
                 "config.xla_gpu_executable_warn_stuck_timeout=1")  # fmt: skip
    assert named(*agreeing, *differing) == {item.partition("=")[0].removeprefix("config.") for item in differing}


def test_what_cvs_and_maxtext_make_of_the_seeds_is_told() -> None:
    """Traps of these files: each is a finding at its key."""

    def told(path: Path, *overrides: str) -> set[tuple[str, str, str]]:
        linted = lint(load(path, *COMPLETE[path], *overrides), action="judge")
        return {(p.severity, p.code, p.path.rpartition(".")[2]) for p in linted.problems}

    single, multi = told(SINGLE_MI300X), told(MULTI_70B)
    for finding in (
        ("warning", "architecture-contradicts-name", "base_emb_dim"),  # 405B's numbers under 70B's name
        ("warning", "impossible-expectation", "tflops_per_sec_per_gpu"),  # 1800 TFLOP/s in bfloat16
        ("warning", "contradicting-expectations", "tokens_per_sec_per_gpu"),
        ("info", "cvs-differs", "JAX_COORDINATOR_PORT"),  # CVS exports 12345 after it
        ("info", "synthetic-data", "dataset_type"),  # a loss of 0.000 is no fault
        ("info", "empty-value", "quantization"),
        ("warning", "contradiction", "distributed_training"),  # True, in a file for one node
        ("warning", "contradiction", "precision"),  # TE_FP8, and what runs is bfloat16
    ):
        assert finding in single, finding
    assert any(code == "cvs-differs" and key.startswith("xla_gpu") for _, code, key in single)
    assert any(code == "unknown-xla-flag" and key == "xla_gpu_graph_level" for _, code, key in single)
    assert ("warning", "contradiction", "batch_size") in multi
    assert ("warning", "cvs-differs", "nccl_ib_gid_index") in told(MULTI_70B, "nccl_ib_gid_index=1")
    assert ("info", "cvs-differs", "shm_size") in told(SINGLE_MI300X, "shm_size=64G")


def test_keys_without_effect_are_notes_where_that_may_surprise() -> None:
    resolved = load(SINGLE_MI300X, "config.nnodes=1", "quantize_kvcache=True")
    notes = {p.path.rpartition(".")[2]: p.severity for p in found(resolved, "no-effect")}
    names = {"quantize_kvcache", "data_cache_dir", "hf_path", "hf_train_files", "tokenizer_path", "tokenizer_model"}
    assert notes == dict.fromkeys(names, "info")


def test_an_unknown_gpu_has_no_peak_and_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(TEXT.replace('"mi300x":', '"x9000":'))
    resolved = load(path, *COMPLETE[MULTI_70B])
    (finding,) = found(resolved, "unknown-device")
    assert finding.severity == "warning"
    assert resolved.spec is not None
    assert resolved.spec.topology.device is None


# --- hostile and random text ------------------------------------------------------------------------------------------


def test_a_run_s_name_is_safe_in_a_path(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(TEXT.replace('"mi300x":', '"../../mi300x\\u001b[31m":'))
    resolved = load(path, *COMPLETE[MULTI_70B])
    assert resolved.spec is not None
    assert re.fullmatch(r"[A-Za-z0-9._-]+", resolved.spec.name)
    assert "\x1b" not in render_text(resolved.problems)


def test_a_key_that_only_the_engine_reads_has_its_place(tmp_path: Path) -> None:
    text = SINGLE_MI300X.read_text(encoding="utf-8")
    (tmp_path / "changed.json").write_text(text.replace('"skip_first_n_steps_for_profiler"', '"kv_proj"'), "utf-8")
    resolved = load(tmp_path / "changed.json", "config.nnodes=1", action="plan")
    assert resolved.origins["execution.engine_keys.kv_proj"].key.endswith(".kv_proj")


@settings(max_examples=300)
@given(data=st.data())
def test_a_mutated_seed_never_ends_in_a_traceback(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Parts of the tree are swapped for anything, dropped or doubled; what comes back can always be shown."""
    tree = json.loads(data.draw(st.sampled_from(SEEDS)).read_text(encoding="utf-8"))
    root = source.parse(json.dumps(tree), file="config", is_json=True).root
    paths = [path for path, _ in source.walk(root) if path and "xla_flags" not in path]
    for path in data.draw(st.lists(st.sampled_from(paths), min_size=1, max_size=4)):
        parent: Any = tree
        for part in path[:-1]:
            parent = parent.get(part, {}) if isinstance(parent, dict) else {}
        if not isinstance(parent, dict) or path[-1] not in parent:
            continue
        value = parent.pop(path[-1])
        kind = data.draw(st.sampled_from(["drop", "rename", "replace"]))
        if kind == "rename":
            parent[data.draw(st.text(max_size=8))] = value
        elif kind == "replace":
            scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
            some = st.sampled_from(["", "<CHANGEME>", "-1", "0", "1e9", "{x}", "999999999999", [], {}, [[]], {"a": {}}])
            parent[path[-1]] = data.draw(scalars | some)
    file = tmp_path_factory.getbasetemp() / "mutated.json"
    file.write_text(json.dumps(tree))
    try:
        resolved = load(file, *data.draw(st.sampled_from([(), ("config.nnodes=1",), ("config.nnodes=2",)])))
        resolved = replace(lint(resolved, action="run"))
        problems = resolved.problems
    except InputError as error:
        problems = error.problems
    assert render_text(problems)
    assert json.loads(render_json(problems))
