"""ROCm's train_llama2.sh and train_llama3.sh: every variable, what the scripts reset, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from seatrial.dialects.megatron.script import SCRIPTS, VARIABLES
from seatrial.spec import RunSpec
from tests.helpers.megatron_commands import DATA, FSDP, TENSOR, changes, errors, read, spec_of
from tests.helpers.specs import without_engine_keys

LLAMA3 = "MODEL_SIZE=8 TP=1 bash examples/llama/train_llama3.sh"


def rocm(variables: str, command: str = LLAMA3) -> RunSpec:
    return spec_of(read(f"{variables} {command}"))


_ACROSS = "parallelism.across_nodes"
_WITHIN = "parallelism.within_node"

# Variables → what they change of the run of train_llama3.sh with Llama 3 8B and nothing else said.
SAID: dict[str, dict[str, Any]] = {
    "PP=2": {f"{_WITHIN}.pipeline": 2, DATA: 4},
    "CP=2": {f"{_WITHIN}.context": 2, DATA: 4, "parallelism.context_strategy": "ring"},
    "MBS=2": {"batch.micro_batch_size": 2},
    "BS=64": {"batch.global_batch_size": 64},
    "SEQ_LENGTH=8192": {"batch.sequence_length": 8192},
    "TOTAL_ITERS=50": {"steps": 50},
    "SEQ_PARALLEL=0": {},
    "FSDP=1 SEQ_PARALLEL=0": {FSDP: 8, DATA: 1, "parallelism.zero1": False},
    "MEGATRON_FSDP=1": {FSDP: 8, DATA: 1},
    "MEGATRON_FSDP=1 ENABLE_HSDP=1 HSDP_NUM_REPLICAS=4": {FSDP: 2, DATA: 4},
    "OPTIMIZER=sgd": {"optimizer.algorithm": "sgd", "optimizer.momentum": 0.9, "optimizer.beta2": 0.999,
                      "parallelism.zero1": False},
    "TE_FP8=1": {"precision.quantization": "fp8"},
    "TE_FP8=1 TE_FP8_RECIPE=tensorwise": {"precision.quantization": "te_fp8_currentscaling"},
    "TE_FP8=1 TE_FP8_RECIPE=mxfp8": {"precision.quantization": "fp8"},
    "GRAD_REDUCE_IN_BF16=0": {"precision.gradient_dtype": "float32", "precision.reduce_dtype": "float32"},
    "RECOMPUTE=1": {"execution.remat": "full"},
    "USE_FLASH_ATTN=1": {"execution.attention": "flash"},
    "TOKENIZER_MODEL=meta-llama/Llama-2-7b-hf": {"model.vocab_size": 32_000},
    "TOKENIZER_TYPE=Llama2Tokenizer TOKENIZER_MODEL=x/llama2": {"model.vocab_size": 32_000},
    "DATA_PATH='0.4 /a 0.6 /b'": {
        "data.kind": "megatron", "data.paths": ("/a", "/b"), "data.weights": (0.4, 0.6), "data.split": "969,30,1",
        "data.tokenizer": "NousResearch/Meta-Llama-3-8B"},
    "MOCK_DATA=1": {},
    "SAVE_CKPT_PATH=/c SAVE_INTERVAL=4 EVAL_INTERVAL=5 EVAL_ITERS=2": {
        "checkpoint.enabled": True, "checkpoint.directory": "/c", "checkpoint.interval_steps": 4,
        "checkpoint.keep": None, "checkpoint.asynchronous": False, "evaluation.interval_steps": 5,
        "evaluation.batches": 2},
    "LOAD_CKPT_PATH=/c": {"checkpoint.resume_from": "/c", "checkpoint.weights_only": True},
    "LOG_INTERVAL=5": {"logging.interval_steps": 5},
    "LOG_DIR=/l": {"log_dir": "/l"},
    "EXP_NAME=mine": {"name": "mine"},
    "ENABLE_PROFILING=1": {"execution.profile_from_step": 10, "execution.profile_steps": 2},
    "NNODES=2 BS=16 MASTER_ADDR=a MASTER_PORT=7 NODE_RANK=1 NCCL_SOCKET_IFNAME=e": {
        "topology.num_nodes": 2, f"{_ACROSS}.data": 2, "batch.global_batch_size": 16,
        "distributed.coordinator_host": "a", "distributed.coordinator_port": 7,
        "execution.environment": {"NCCL_SOCKET_IFNAME": "e"}},
    "NNODES=2 BS=16 DATA_PATH=/a DATA_CACHE_PATH=/x": {
        "topology.num_nodes": 2, f"{_ACROSS}.data": 2, "batch.global_batch_size": 16, "data.kind": "megatron",
        "data.paths": ("/a",), "data.split": "969,30,1", "data.tokenizer": "NousResearch/Meta-Llama-3-8B",
        "data.index_dir": "/x"},
    "HIP_VISIBLE_DEVICES=0,1,2,3": {"topology.devices_per_node": 4, DATA: 4},
    "ROCR_VISIBLE_DEVICES=5": {"topology.devices_per_node": 1, DATA: 1},
    "CUDA_VISIBLE_DEVICES=0,1": {"topology.devices_per_node": 2, DATA: 2},
    "NCCL_PROTO=LL128 NCCL_DEBUG=INFO": {"execution.environment": {"NCCL_PROTO": "LL128", "NCCL_DEBUG": "INFO"}},
}  # fmt: skip


@pytest.mark.parametrize("variables", SAID)
def test_what_variables_say_of_a_run(variables: str) -> None:
    assert changes(rocm(""), rocm(variables)) == SAID[variables]


# A value that each may have; all others may be 1.
VALUES = {
    "TE_FP8_RECIPE": "delayed", "TE_FP4_RECIPE": "nvfp4", "CROSS_ENTROPY_FUSION_IMPL": "te", "MODEL_SIZE": "70",
    "CKPT_FORMAT": "torch", "TOKENIZER_TYPE": "HuggingFaceTokenizer", "TOKENIZER_MODEL": "x/llama3", "TE_FP4": "0",
    "NO_TRAINING": "0", "BS": "8", "ENABLE_HSDP": "0", "HSDP_NUM_REPLICAS": "2",
}  # fmt: skip


@pytest.mark.parametrize("name", VARIABLES)
def test_every_variable_is_known_in_both_places_and_as_an_override(name: str) -> None:
    value = VALUES.get(name, "0,1,2,3,4,5,6,7" if name.endswith("VISIBLE_DEVICES") else "1")
    before, behind = read(f"{name}={value} bash train_llama3.sh"), read(f"bash train_llama3.sh {name}={value}")
    assert spec_of(before) == spec_of(behind) == spec_of(read("bash train_llama3.sh", f"{name}={value}"))
    key = VARIABLES[name]
    assert key.to or key.why
    if key.disposition == "equivalent":
        assert without_engine_keys(spec_of(before)) == spec_of(read("bash train_llama3.sh"))


def test_every_variable_that_says_something_is_in_the_table() -> None:
    said = " ".join(SAID)
    named = [name for name, key in VARIABLES.items() if key.to and not key.to.startswith("execution.environment.")]
    assert [name for name in named if f"{name}=" not in said] == ["MODEL_SIZE", "TP"]  # elsewhere in this file


@pytest.mark.parametrize(
    ("script", "size", "preset"),
    [
        ("train_llama2.sh", 7, "llama2-7b"),
        ("train_llama2.sh", 13, "llama2-13b"),
        ("train_llama2.sh", 70, "llama2-70b"),
        ("train_llama3.sh", 8, "llama3-8b-changed"),  # Megatron's base of rotary positions, and not Llama 3's
        ("train_llama3.sh", 70, "llama3-70b-changed"),
    ],
)
def test_a_script_knows_its_models(script: str, size: int, preset: str) -> None:
    spec = rocm(f"MODEL_SIZE={size}", f"bash {script}")
    assert (spec.model.name, spec.model.rope_theta, spec.mesh["tensor"]) == (preset, 10_000.0, 8)
    assert spec.parallelism.sequence_parallel


def test_the_scripts_defaults_and_what_they_fix() -> None:
    spec = rocm("")
    optimizer = spec.optimizer
    assert (optimizer.learning_rate, optimizer.final_learning_rate_fraction, optimizer.decay_steps) == (
        1e-4,
        0.1,
        320_000,
    )
    assert (optimizer.schedule, optimizer.weight_decay, optimizer.beta2, optimizer.clip_norm) == (
        "cosine",
        0.1,
        0.95,
        1.0,
    )
    assert (spec.batch.sequence_length, spec.batch.global_batch_size, spec.batch.micro_batch_size) == (2048, 8, 1)
    assert (spec.steps, spec.logging.interval_steps, spec.evaluation.interval_steps) == (12, 1, None)
    assert (spec.precision.compute_dtype, spec.precision.gradient_dtype) == ("bfloat16", "bfloat16")
    llama2 = rocm("MODEL_SIZE=7 TP=1", "bash train_llama2.sh")
    assert (llama2.batch.sequence_length, llama2.precision.gradient_dtype) == (4096, "float32")
    assert all(script.sizes for script in SCRIPTS.values())


def test_what_stands_behind_the_script_s_name_wins_over_the_environment_and_an_override_over_both() -> None:
    text = "export BS=16\nMBS=1 bash train_llama3.sh MBS=2 TP=1 MODEL_SIZE=8"
    resolved = read(text)
    assert (spec_of(resolved).batch.micro_batch_size, spec_of(resolved).batch.global_batch_size) == (2, 16)
    assert resolved.origin("batch.micro_batch_size").key == "MBS"
    assert spec_of(read(text, "mbs=4")).batch.micro_batch_size == 4


@pytest.mark.parametrize("fsdp", ["FSDP", "MEGATRON_FSDP"])
def test_fsdp_resets_what_was_asked_for_and_says_so(fsdp: str) -> None:
    resolved = read(f"{fsdp}=1 TP=8 SEQ_PARALLEL=1 MODEL_SIZE=8 bash train_llama3.sh")
    spec = spec_of(resolved)
    assert (spec.mesh["tensor"], spec.mesh["fsdp"], spec.parallelism.sequence_parallel) == (1, 8, False)
    told = [p.path for p in resolved.problems if p.code == "reset-by-script"]
    assert told == (["TP", "SEQ_PARALLEL"] if fsdp == "FSDP" else ["TP"])
    silent = read(f"{fsdp}=1 MODEL_SIZE=8 bash train_llama3.sh")
    assert [(p.severity, p.path) for p in silent.problems if p.code == "reset-by-script"] == [("info", fsdp)]
    assert TENSOR in changes(spec, rocm("TP=8", "MODEL_SIZE=8 bash train_llama3.sh"))


def test_an_empty_variable_is_an_absent_one_but_for_the_path_of_data() -> None:
    assert rocm("BS= TOTAL_ITERS=") == rocm("")
    assert errors(read("DATA_PATH= bash train_llama3.sh")) == []
