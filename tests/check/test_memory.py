"""A run is counted as its engine trains, and held against what a process of that engine gets of a device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from seatrial import dialects
from seatrial.check import lint
from seatrial.errors import Problem
from seatrial.spec import Execution, Resolved, RunSpec
from tests.helpers.compiled import spec_of

# Some 80 GiB, and with our own trainer 84, of the 96 that a device has.
TIGHT = spec_of("llama3.1-8b", 3, 7680, "minimal", scan=False, fsdp=8)
TIGHT = replace(TIGHT, topology=replace(TIGHT.topology, device="h20"))


def found(spec: RunSpec, engine: str | None = None, action: str = "plan") -> list[Problem]:
    return list(lint(Resolved(spec=spec, origins={}, problems=()), action=action, engine=engine).problems)


def exporting(**environment: str) -> RunSpec:
    return replace(TIGHT, execution=replace(TIGHT.execution, environment=environment))


def test_jax_takes_three_quarters_unless_it_is_given_more() -> None:
    (problem,) = found(TIGHT, "maxtext")
    assert (problem.code, problem.severity) == ("out-of-memory", "warning")
    assert "each device needs about 80 GiB" in problem.why
    assert "h20 has 96 GiB, of which JAX gives a process 72 GiB" in problem.why
    assert problem.fix.startswith("export XLA_PYTHON_CLIENT_MEM_FRACTION=0.95, or recompute more")
    assert found(exporting(XLA_PYTHON_CLIENT_MEM_FRACTION="0.95"), "maxtext") == []
    assert found(exporting(XLA_CLIENT_MEM_FRACTION="0.95"), "maxtext") == []
    assert found(exporting(XLA_PYTHON_CLIENT_ALLOCATOR="platform"), "maxtext") == []
    (problem,) = found(exporting(XLA_CLIENT_MEM_FRACTION="0.8"), "native")
    assert "of which XLA_CLIENT_MEM_FRACTION gives 77 GiB" in problem.why
    assert problem.fix.startswith("export XLA_CLIENT_MEM_FRACTION=0.95, or ")


def test_who_is_not_jax_gets_all_of_it_and_our_own_trainer_takes_more() -> None:
    assert found(TIGHT, "megatron") == []
    assert found(TIGHT, "native") == []


@pytest.mark.parametrize(
    ("dialect", "codes"),
    [("native", []), ("maxtext", ["out-of-memory"]), ("cvs-jax", ["out-of-memory"]), ("cvs-2026", ["out-of-memory"]),
     ("megatron", []), ("cvs-megatron", []), ("nxdt", [])],
)  # fmt: skip
def test_where_nobody_says_what_trains_it_is_whose_configuration_it_is(dialect: str, codes: list[str]) -> None:
    assert [problem.code for problem in found(replace(TIGHT, dialect=dialect), action="check")] == codes


def test_a_pipeline_of_our_own_is_counted_alike_in_every_verb() -> None:
    """70B over pp8 × fsdp8 with 64 micro-batches: the compiler needs 139.9 GiB, of which others would hold 35."""
    spec = spec_of("llama3.1-70b", 1, 8192, accumulate=64, fsdp=8, pipeline=8)
    spec = replace(spec, topology=replace(spec.topology, device="h200"))
    for action in ("check", "plan", "run", "rehearse", "train"):
        (problem,) = found(spec, "native" if action in ("plan", "run") else None, action)
        assert "each device needs about 137 GiB" in problem.why
        assert "h200 has 141 GiB, of which JAX gives a process 127 GiB" in problem.why
    assert found(spec, "megatron", "run") == []


def read(tmp_path: Path, command: str, *overrides: str) -> list[Problem]:
    """The findings on a script's memory before it runs."""
    script = tmp_path / "train.sh"
    script.write_text(f"#!/bin/bash\n{command}\n", encoding="utf-8")
    given = ("topology.device=h100-sxm", *overrides)
    resolved = lint(dialects.load(script, given, action="check"), action="check")
    assert resolved.spec is not None
    return [p for p in resolved.problems if p.code in ("out-of-memory", "no-effect")]


# 8.8 billion parameters on each device.
LARGE = """--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 --swiglu \\
    --group-query-attention --num-query-groups 8 --normalization RMSNorm --disable-bias-linear --bf16 \\
    --position-embedding-type rope --untie-embeddings-and-output-weights --tokenizer-type NullTokenizer \\
    --vocab-size 128255 --tensor-model-parallel-size 8 --sequence-parallel --use-distributed-optimizer \\
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --mock-data --train-iters 100 \\
    --micro-batch-size 1 --global-batch-size 16 --lr 1e-4 --attention-dropout 0 --hidden-dropout 0"""


@pytest.mark.parametrize(
    ("nodes", "words", "gib"),
    [
        (1, "", 115),
        (8, "--context-parallel-size 8", None),
        (1, "--optimizer-cpu-offload --optimizer-offload-fraction 1.0", None),
        (1, "--optimizer-cpu-offload --optimizer-offload-fraction 0.2", 99),
    ],
)
def test_megatron_s_state_is_where_its_arguments_put_it(
    tmp_path: Path, nodes: int, words: str, gib: int | None
) -> None:
    """Without any of these, 14 bytes for each parameter at least."""
    words = f"{LARGE} {words} --seq-length 8192 --max-position-embeddings 8192"
    problems = read(tmp_path, f"torchrun --nproc-per-node=8 --nnodes={nodes} pretrain_gpt.py {words}")
    told = [(p.severity, p.why) for p in problems if p.code == "out-of-memory"]
    if gib is None:
        assert told == []
    else:
        ((severity, why),) = told
        assert severity == "error"
        assert f"state alone take {gib} GiB" in why
    assert bool([p for p in problems if p.code == "no-effect"]) == (nodes == 1)  # of ZeRO-1


@pytest.mark.parametrize(
    ("words", "is_error"),
    [
        ("ici_fsdp_parallelism=8", True),
        ("ici_fsdp_parallelism=8 optimizer_memory_host_offload=True parameter_memory_host_offload=True", False),
        ("ici_fsdp_parallelism=8 optimizer_memory_host_offload=False", True),
    ],
)
def test_maxtext_s_state_is_where_its_keys_put_it(tmp_path: Path, words: str, is_error: bool) -> None:
    command = f"""python3 -m maxtext.trainers.pre_train.train base.yml model_name=llama3.1-70b hardware=gpu steps=15 \\
    per_device_batch_size=1 max_target_length=4096 remat_policy=full dataset_type=synthetic \\
    enable_checkpointing=false {words}"""
    problems = read(tmp_path, command, "topology.devices_per_node=8", "topology.num_nodes=1")
    assert [p.code for p in problems if p.severity == "error"] == ["out-of-memory"] * is_error


def test_maxtext_splits_parameters_over_its_context_axis_too(tmp_path: Path) -> None:
    command = """python3 -m maxtext.trainers.pre_train.train base.yml model_name=llama3.1-8b hardware=gpu steps=15 \\
    per_device_batch_size=0.125 max_target_length=65536 remat_policy=full attention=cudnn_flash_te \\
    max_segments_per_seq=32 ici_context_parallelism=8 ici_fsdp_parallelism=1 dataset_type=synthetic \\
    enable_checkpointing=false"""
    assert read(tmp_path, command, "topology.devices_per_node=8", "topology.num_nodes=1") == []


def test_a_tpu_s_memory_is_all_for_its_process() -> None:
    tight = replace(TIGHT, topology=replace(TIGHT.topology, device="tpu-v5p"))
    assert found(tight, "maxtext") == []
    (problem,) = found(replace(tight, batch=replace(tight.batch, micro_batch_size=6, global_batch_size=48)), "maxtext")
    assert problem.why.endswith("and tpu-v5p has 95 GiB")
    assert "XLA" not in problem.fix
    twice = replace(tight, execution=replace(tight.execution, environment={"XLA_CLIENT_MEM_FRACTION": "2"}))
    assert found(twice, "maxtext") == []


def test_a_share_is_given_once() -> None:
    both = exporting(XLA_CLIENT_MEM_FRACTION="0.9", XLA_PYTHON_CLIENT_MEM_FRACTION="0.9")
    (problem,) = found(both, "native")
    assert (problem.code, problem.severity) == ("bad-variable", "error")
    assert problem.path == "execution.environment.XLA_PYTHON_CLIENT_MEM_FRACTION"
    (problem,) = found(replace(TIGHT, execution=Execution(environment={"XLA_CLIENT_MEM_FRACTION": "2"})), "maxtext")
    assert "'2' is not a share of a device's memory" in problem.why
    assert found(both, "megatron") == []
