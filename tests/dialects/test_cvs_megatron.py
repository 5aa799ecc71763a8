"""CVS Megatron configurations: what a spec is made of, what misleads in them, and that each key is accounted for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial import dialects, source
from seatrial.check import lint
from seatrial.dialects.cvs import keys as cvs_keys
from seatrial.dialects.cvs import megatron as cvs_megatron
from seatrial.dialects.cvs import megatron_keys as cvs_megatron_keys
from seatrial.dialects.typed import schema
from seatrial.errors import InputError, Problem
from seatrial.report.problems import render_text
from seatrial.spec import METRICS, Batch, Expectation, MeshShape, Resolved, RunSpec, Topology
from seatrial.spec.presets import MODELS
from tests.helpers.seeds import (
    CVS,
    MEGATRON_CELLS,
    MEGATRON_COMPLETE,
    MEGATRON_MULTI,
    MEGATRON_SINGLE,
    MEGATRON_SINGLE_MI35X,
)

EIGHT = ("model=llama3_1_8b", "gpu=mi300x")
SEVENTY = ("model=llama3_1_70b", "gpu=mi300x")


def load(path: Path, *overrides: str, action: str = "plan") -> Resolved:
    return dialects.load(path, (*MEGATRON_COMPLETE[path], *overrides), action=action)


def spec_of(path: Path, *overrides: str) -> RunSpec:
    resolved = load(path, *overrides)
    assert [p for p in resolved.problems if p.severity == "error"] == []
    assert resolved.spec is not None
    return resolved.spec


def found(resolved: Resolved, code: str) -> list[Problem]:
    return [problem for problem in resolved.problems if problem.code == code]


# --- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(CVS.glob("mi3*.json")), ids=lambda path: path.stem)
def test_every_key_of_every_seed_is_accounted_for(path: Path) -> None:
    """A leaf is a note (`_…`), has a row, or stands in a section of the user's own keys."""
    table = cvs_megatron_keys.TABLE if "megatron" in path.name else cvs_keys.TABLE
    strays = []
    for parts, node in source.walk(source.read(path).root):
        if isinstance(node.value, dict) or any(part.startswith("_") or part.isdecimal() for part in parts):
            continue
        name = ".".join(parts if parts[0] == "config" else parts[4:])
        if name not in table.keys and not any(name.startswith(f"{section}.") for section in table.sections):
            strays.append(name)
    assert strays == []


def test_every_row_goes_to_a_field_of_the_spec_or_says_why_not() -> None:
    fields = {known for known, _ in schema()} | {f"expectations.{metric}" for metric in METRICS}
    for name, key in {**cvs_megatron.KEYS, **cvs_megatron_keys.TABLE.sections}.items():
        assert bool(key.to) != bool(key.why), name
        for path in key.to.split(", ") if key.to else ():
            assert path in fields or path.rpartition(".")[0] in fields, name


@pytest.mark.parametrize(("path", "model", "gpu"), MEGATRON_CELLS)
def test_every_cell_of_the_seeds_is_a_run(path: Path, model: str, gpu: str) -> None:
    spec = spec_of(path, f"model={model}", f"gpu={gpu}")
    assert spec.dialect == "cvs-megatron"
    assert spec.topology.device == {"mi300x": "mi300x", "mi325": "mi325x", "mi350": "mi350x", "mi355": "mi355x"}[gpu]
    assert spec.topology.num_devices == (32 if path == MEGATRON_MULTI else 8)
    assert spec.model.num_layers == (32 if "8b" in model else 80)
    linted = lint(load(path, f"model={model}", f"gpu={gpu}"), action="judge").problems
    assert [p for p in linted if p.severity == "error" and p.code != "not-supported-yet"] == []


# --- what the spec is made of -----------------------------------------------------------------------------------------


def test_a_single_node_of_eight() -> None:
    spec = spec_of(MEGATRON_SINGLE, *EIGHT)
    assert spec.name == "llama3_1_8b-mi300x-single_node"
    assert spec.topology == Topology(num_nodes=1, devices_per_node=8, device="mi300x")
    assert spec.batch == Batch(sequence_length=8192, global_batch_size=128, micro_batch_size=2)
    assert spec.parallelism.within_node == MeshShape(data=8)
    assert (spec.parallelism.zero1, spec.parallelism.sequence_parallel) == (True, False)
    assert spec.accumulation_steps == 8
    assert (spec.precision.compute_dtype, spec.precision.quantization) == ("bfloat16", "fp8")
    assert spec.execution.remat == "none"
    assert spec.expectations == (
        Expectation(metric="tflops_per_second_per_device", value=380.0),
        Expectation(metric="tokens_per_second_per_device", value=6500.0),
        Expectation(metric="step_seconds", value=12.0),  # given in milliseconds
    )


def test_the_model_is_the_script_s_by_its_size_alone() -> None:
    model, llama = spec_of(MEGATRON_SINGLE, *SEVENTY).model, MODELS["llama3.1-70b"]
    for name in ("hidden_dim", "num_layers", "num_heads", "num_kv_heads", "head_dim", "ffn_dim", "vocab_size"):
        assert getattr(model, name) == getattr(llama, name)
    assert (model.rope_theta, model.rope_scaling, model.vocab_multiple) == (10_000.0, None, 128)
    other = load(MEGATRON_SINGLE, *EIGHT, "model_size=70")
    assert other.spec is not None
    assert other.spec.model.num_layers == 80
    (finding,) = found(other, "architecture-contradicts-name")
    assert "what runs is Llama 3.1 70B" in finding.why


def test_the_script_s_fixed_arguments() -> None:
    spec = spec_of(MEGATRON_SINGLE, *EIGHT)
    optimizer = spec.optimizer
    assert (optimizer.learning_rate, optimizer.schedule, optimizer.decay_steps) == (1e-4, "cosine", 320_000)
    assert optimizer.learning_rate * optimizer.final_learning_rate_fraction == pytest.approx(1e-5)
    assert (optimizer.beta1, optimizer.beta2, optimizer.weight_decay, optimizer.clip_norm) == (0.9, 0.95, 0.1, 1.0)
    assert (spec.data.kind, spec.seed, spec.distributed.coordinator_port) == ("synthetic", 1234, 6000)


def test_a_distributed_run() -> None:
    spec = spec_of(MEGATRON_MULTI, *SEVENTY)
    assert spec.parallelism.within_node == MeshShape(tensor=8)
    assert spec.parallelism.across_nodes == MeshShape(data=4)
    assert spec.parallelism.sequence_parallel
    assert spec.batch == Batch(sequence_length=8192, global_batch_size=256, micro_batch_size=4)
    assert spec.execution.environment == {
        "NCCL_IB_HCA": "bnxt_re0,bnxt_re1", "NCCL_SOCKET_IFNAME": "ens51f1np1", "GLOO_SOCKET_IFNAME": "ens51f1np1",
        "NCCL_IB_GID_INDEX": "3", "NCCL_DEBUG": "ERROR",
    }  # fmt: skip
    assert spec.distributed.coordinator_host == "10.0.0.1"
    assert spec.container is not None
    assert ("/dev/infiniband", "/dev/infiniband") in spec.container.volumes


@pytest.mark.parametrize(
    ("overrides", "path", "value"),
    [
        (("batch_size=64",), "batch.global_batch_size", 64),
        (("recompute=1",), "execution.remat", "full"),
        (("precision=TE_BF16",), "precision.quantization", None),
        (("env_dict.MASTER_PORT=4321",), "distributed.coordinator_port", 4321),
        (("env_dict.HIP_VISIBLE_DEVICES=0,1,2,3",), "topology.devices_per_node", 4),
        (("env_dict.CP=2",), "parallelism.within_node.context", 2),
        (("tensor_parallelism=2", "env_dict.SEQ_PARALLEL=0"), "parallelism.sequence_parallel", False),
        (("env_dict.OPTIMIZER=sgd",), "optimizer.momentum", 0.9),
        (("env_dict.OPTIMIZER=sgd",), "parallelism.zero1", False),
        (("env_dict.GRAD_REDUCE_IN_BF16=1",), "precision.reduce_dtype", "bfloat16"),
        (("env_dict.GEMM_TUNING=0",), "container.environment.GEMM_TUNING", "0"),
        (("mem_usage=0.9",), "expectations.3.value", 0.9),
        (("elapsed_time_per_iteration=1500.5",), "expectations.2.value", 1.5005),
    ],
)
def test_an_override_reaches_the_spec(overrides: tuple[str, ...], path: str, value: Any) -> None:
    got: Any = spec_of(MEGATRON_SINGLE, *EIGHT, *overrides)
    for part in path.split("."):
        got = got[part] if isinstance(got, dict) else got[int(part)] if part.isdigit() else getattr(got, part)
    assert got == value


@given(
    nodes=st.sampled_from((1, 2, 3, 4, 6)), tensor=st.sampled_from((1, 2, 4, 8)), pipeline=st.sampled_from((1, 2, 3, 4))
)
def test_the_mesh_uses_every_device_once(nodes: int, tensor: int, pipeline: int) -> None:
    given_sizes = (f"config.nnodes={nodes}", f"tensor_parallelism={tensor}", f"pipeline_parallelism={pipeline}")
    resolved = load(MEGATRON_MULTI, *EIGHT, *given_sizes)
    if 8 * nodes % (tensor * pipeline):
        assert [p.path.rpartition(".")[2] for p in found(resolved, "mesh-devices")]
        assert resolved.spec is None
        return
    assert resolved.spec is not None
    parallelism, mesh = resolved.spec.parallelism, resolved.spec.mesh
    assert (parallelism.within_node.product, parallelism.across_nodes.product) == (8, nodes)
    assert mesh == {
        "tensor": tensor, "pipeline": pipeline, "data": 8 * nodes // tensor // pipeline, "fsdp": 1, "context": 1,
    }  # fmt: skip


def test_what_a_cell_leaves_out_is_what_cvs_takes(tmp_path: Path) -> None:
    text = MEGATRON_SINGLE.read_text(encoding="utf-8")
    path = tmp_path / "config.json"
    path.write_text(text.replace('"batch_size": "128",', "").replace('"precision": "TE_FP8",', ""), encoding="utf-8")
    resolved = dialects.load(path, (*MEGATRON_COMPLETE[MEGATRON_SINGLE], *EIGHT), action="plan")
    assert resolved.spec is not None
    assert (resolved.spec.batch.global_batch_size, resolved.spec.precision.quantization) == (128, "fp8")
    assert (resolved.origin("batch.global_batch_size").kind, resolved.origin("steps").kind) == ("default", "override")
    assert resolved.origin("batch.global_batch_size").note == "CVS's default"


def test_every_bar_knows_its_place() -> None:
    resolved = load(MEGATRON_SINGLE, *EIGHT)
    lines = MEGATRON_SINGLE.read_text(encoding="utf-8").splitlines()
    for metric, key in (
        ("tflops_per_second_per_device", "throughput_per_gpu"),
        ("tokens_per_second_per_device", "tokens_per_gpu"),
        ("step_seconds", "elapsed_time_per_iteration"),
    ):
        origin = resolved.origin(f"expectations.{metric}")
        assert origin.key.endswith(f"llama3_1_8b.mi300x.result_dict.{key}")
        assert origin.mark is not None
        assert f'"{key}"' in lines[origin.mark.line - 1]


# --- what misleads ----------------------------------------------------------------------------------------------------


def test_te_fp16_is_bfloat16_and_that_is_said() -> None:
    resolved = load(MEGATRON_SINGLE_MI35X, "model=llama3_1_70b", "gpu=mi355")
    assert resolved.spec is not None
    assert (resolved.spec.precision.compute_dtype, resolved.spec.precision.quantization) == ("bfloat16", None)
    (finding,) = [p for p in found(resolved, "misleading-name") if p.path.endswith("precision")]
    assert finding.severity == "warning"
    assert "not float16" in finding.why
    assert "TE_FP8=1" in finding.why


def test_fsdp_resets_tensor_and_sequence_parallelism_and_that_is_said() -> None:
    resolved = load(MEGATRON_MULTI, *SEVENTY, "fsdp=1")
    assert resolved.spec is not None
    assert resolved.spec.mesh == {"pipeline": 1, "data": 1, "fsdp": 32, "context": 1, "tensor": 1}
    assert not resolved.spec.parallelism.sequence_parallel
    assert not resolved.spec.parallelism.zero1
    (finding,) = found(resolved, "silent-reset")
    assert finding.severity == "warning"
    for part in ("(8 → 1)", "sequence parallelism", "distributed optimizer", "32 devices"):
        assert part in finding.why
    (mild,) = found(load(MEGATRON_SINGLE_MI35X, "model=llama3_1_70b", "gpu=mi355"), "silent-reset")
    assert mild.severity == "info"


def test_dead_keys_and_silent_ways_of_cvs_are_told() -> None:
    def told(*overrides: str) -> set[tuple[str, str]]:
        problems = load(MEGATRON_MULTI, *EIGHT, *overrides).problems
        return {(p.code, p.path.rpartition(".")[2]) for p in problems if p.code != "placeholder"}

    usual = {("no-effect", "tokenizer_model"), ("rope-base", "model_size"), ("misleading-name", "batch_size")}
    assert told() == usual
    assert told("distributed_training=False", "mock_data=False", "nccl_ib_hca=mlx5_0") - usual == {
        ("contradiction", "distributed_training"), ("contradiction", "mock_data"), ("contradiction", "nccl_ib_hca"),
    }  # fmt: skip
    assert told("verify_network_errors=True", "config.shm_size=64G", "nccl_ib_gid_index=1") - usual == {
        ("no-effect", "verify_network_errors"), ("cvs-differs", "shm_size"), ("cvs-differs", "nccl_ib_gid_index"),
    }  # fmt: skip
    assert told("env_dict.GEMM_TUNING=0") - usual == {("cvs-differs", "GEMM_TUNING")}
    assert told("env_dict.BS=1", "elapsed_time_per_iteration=1", "mem_usage=0.5", "tokenizer_model=x/Llama-2-7b") == {
        *usual, ("no-effect", "BS"), ("cvs-differs", "elapsed_time_per_iteration"), ("cvs-differs", "mem_usage"),
        ("cvs-differs", "tokenizer_model"),
    }  # fmt: skip


def test_bars_that_contradict_each_other_are_told() -> None:
    """6500 tokens/s for 128 × 8192 tokens on 8 GPUs are 20.165 s, and 12 000 ms are asked for."""
    problems = lint(load(MEGATRON_SINGLE, *EIGHT), action="judge").problems
    (finding,) = [p for p in problems if p.code == "contradicting-expectations"]
    assert finding.severity == "warning"
    assert finding.path.endswith("result_dict.elapsed_time_per_iteration")
    assert "20.165 s" in finding.why


# --- <changeme> and what is wrong -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", tuple(MEGATRON_COMPLETE), ids=lambda path: path.stem)
def test_every_changeme_is_reported_once_at_its_place(path: Path) -> None:
    expected = {
        (number, match.start() + 1)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for match in re.finditer(r'"[^"]*<changeme>[^"]*"', line)
    }
    problems = found(dialects.load(path, (), action="run"), "placeholder")
    assert {(p.mark.line, p.mark.column) for p in problems if p.mark} == expected


def test_one_node_needs_no_coordinator() -> None:
    problems = dialects.load(MEGATRON_SINGLE, (*EIGHT, "config.nnodes=1", "training_iterations=1"), action="run")
    assert [p for p in problems.problems if p.severity == "error"] == []


@pytest.mark.parametrize(
    ("overrides", "code", "key"),
    [
        (("model_size=13",), "bad-value", "model_size"),
        (("precision=FP16",), "bad-value", "precision"),
        (("fsdp=2",), "bad-value", "fsdp"),
        (("recompute=yes",), "bad-value", "recompute"),
        (("batch_size=0",), "bad-value", "batch_size"),
        (("mem_usage=85",), "bad-value", "mem_usage"),
        (("tensor_parallelism=3",), "mesh-devices", "tensor_parallelism"),
        (("env_dict.HIP_VISIBLE_DEVICES=0,0",), "bad-value", "HIP_VISIBLE_DEVICES"),
        (("env_dict.TE_FP4=1",), "cannot-be-obeyed", "TE_FP4"),
        (("env_dict.DATA_PATH=/data",), "cannot-be-obeyed", "DATA_PATH"),
        (("config.nnodes=2",), "not-supported-yet", "nnodes"),
        (("ici_fsdp_parallelism=8",), "unknown-override", "ici_fsdp_parallelism"),
    ],
)
def test_what_is_wrong_is_said_of_its_key(overrides: tuple[str, ...], code: str, key: str) -> None:
    problems = found(load(MEGATRON_SINGLE, *EIGHT, *overrides), code)
    assert [(p.severity, p.path.rpartition(".")[2]) for p in problems] == [("error", key)]
    assert problems[0].fix


def test_a_batch_that_does_not_divide_is_an_error() -> None:
    resolved = lint(load(MEGATRON_SINGLE, *EIGHT, "batch_size=100"), action="plan")
    (finding,) = found(resolved, "not-divisible")
    assert finding.path == "model_params.single_node.llama3_1_8b.mi300x.batch_size" or finding.path == "batch_size"


@given(data=st.data())
def test_a_mutated_seed_never_ends_in_a_traceback(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source_path = data.draw(st.sampled_from(tuple(MEGATRON_COMPLETE)))
    tree = json.loads(source_path.read_text(encoding="utf-8"))
    root = source.parse(json.dumps(tree), file="config", is_json=True).root
    paths = [path for path, _ in source.walk(root) if path]
    for path in data.draw(st.lists(st.sampled_from(paths), min_size=1, max_size=4)):
        parent: Any = tree
        for part in path[:-1]:
            parent = parent.get(part, {}) if isinstance(parent, dict) else {}
        if isinstance(parent, dict) and path[-1] in parent:
            value = parent.pop(path[-1])
            kind = data.draw(st.sampled_from(["drop", "rename", "replace"]))
            if kind == "rename":
                parent[data.draw(st.text(max_size=8))] = value
            elif kind == "replace":
                scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
                some = st.sampled_from(["", "<CHANGEME>", "-1", "0", "{x}", "999999999999", [], {}, [[]], {"a": {}}])
                parent[path[-1]] = data.draw(scalars | some)
    file = tmp_path_factory.getbasetemp() / "mutated.json"
    file.write_text(json.dumps(tree))
    try:
        problems = lint(
            dialects.load(file, (*EIGHT, "config.nnodes=1", "training_iterations=3"), action="run"), action="run"
        ).problems
    except InputError as error:
        problems = error.problems
    assert render_text(problems)
