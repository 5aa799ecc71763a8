"""Megatron's float16 and fp8, its second learning rate, and ends that count as layers of a pipeline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from seatrial import dialects
from seatrial.check import lint
from seatrial.dialects import megatron
from seatrial.estimate import memory
from seatrial.spec import Precision, Resolved, RunSpec
from tests.helpers.command_line import seatrial

TRAIN = """torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py --hidden-size 1024 --num-attention-heads 16 \\
    --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 64 --train-iters 200 \\
    --lr 1e-4 --min-lr 1e-5 --lr-decay-style cosine --mock-data --tokenizer-type NullTokenizer --vocab-size 32000 \\
    --untie-embeddings-and-output-weights --log-interval 10 --eval-iters 0"""
SCALED = "--fp16 --initial-loss-scale 65536 --min-loss-scale 2 --loss-scale-window 500.0 --hysteresis 4"
RATES = "--decoupled-lr 5e-4 --decoupled-min-lr 5e-6"
FP8 = "--bf16 --fp8-format hybrid --recompute-granularity selective"
ENDS = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"


def script(tmp_path: Path, words: str, layers: int = 24) -> Path:
    path = tmp_path / "train.sh"
    path.write_text(f"#!/bin/bash\n{TRAIN} --num-layers {layers} {words}\n", encoding="utf-8")
    return path


def load(tmp_path: Path, words: str, layers: int = 24, engine: str | None = None) -> Resolved:
    resolved = dialects.load(script(tmp_path, words, layers), ("topology.device=h100",), action="check")
    return lint(resolved, action="check", engine=engine)


def errors(resolved: Resolved) -> list[tuple[str, str]]:
    return [(problem.code, problem.path) for problem in resolved.problems if problem.severity == "error"]


def spec_of(tmp_path: Path, words: str, layers: int = 24) -> RunSpec:
    resolved = load(tmp_path, words, layers)
    assert errors(resolved) == []
    assert resolved.spec is not None
    return resolved.spec


def test_the_loss_is_scaled_as_the_arguments_say(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, SCALED)
    assert spec.precision == Precision(
        compute_dtype="float16", gradient_dtype="float16", reduce_dtype="float16", initial_loss_scale=65536.0,
        min_loss_scale=2.0, loss_scale_window=500, loss_scale_hysteresis=4,
    )  # fmt: skip
    assert spec.optimizer.on_non_finite == "skip"


def test_a_constant_scale_and_sums_in_float32(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "--fp16 --loss-scale 1024 --accumulate-allreduce-grads-in-fp32")
    assert (spec.precision.loss_scale, spec.precision.gradient_dtype) == (1024.0, "float32")
    assert spec.optimizer.on_non_finite == "abort"


@pytest.mark.parametrize(
    ("words", "code", "path"),
    [
        ("--fp16 --bf16", "refused-by-megatron", "--fp16"),
        ("--fp16 --loss-scale 0", "bad-value", "--loss-scale"),
        ("--fp16 --loss-scale-window 1.5", "bad-value", "--loss-scale-window"),
        ("--fp16 --hysteresis none", "bad-value", "--hysteresis"),
        ("--bf16 --decoupled-lr 0", "bad-value", "--decoupled-lr"),
        (f"{FP8} --recompute-modules core_attn layernorm", "refused-by-megatron", "--recompute-modules"),
    ],
)
def test_what_megatron_would_not_start_with(tmp_path: Path, words: str, code: str, path: str) -> None:
    assert errors(load(tmp_path, words)) == [(code, path)]


def test_norms_are_not_recomputed_with_delayed_scales(tmp_path: Path) -> None:
    asked = spec_of(tmp_path, f"{FP8} --fp8-recipe tensorwise --recompute-modules mlp layernorm")
    delayed = replace(asked, precision=replace(asked.precision, quantization="fp8"))
    for spec, modules in ((asked, "mlp layernorm"), (delayed, "mlp")):
        words = megatron.write(spec, "arguments").text.replace("\\\n", " ").split()
        place = words.index("--recompute-modules") + 1
        assert words[place : place + len(modules.split())] == modules.split()
        assert words[place + len(modules.split())].startswith("--")


def test_a_scale_without_float16_has_no_effect(tmp_path: Path) -> None:
    resolved = load(tmp_path, "--bf16 --loss-scale 8 --hysteresis 3")
    idle = {problem.path for problem in resolved.problems if problem.code == "no-effect"}
    assert {"--loss-scale", "--hysteresis"} <= idle


@pytest.mark.parametrize(
    "words",
    [
        SCALED, "--fp16 --loss-scale 1024", f"--bf16 {RATES}", "--fp16 --accumulate-allreduce-grads-in-fp32",
        f"--bf16 --pipeline-model-parallel-size 2 {ENDS}",
    ],
)  # fmt: skip
def test_what_is_written_reads_back(tmp_path: Path, words: str) -> None:
    spec = spec_of(tmp_path, words)
    written = megatron.write(spec, "arguments")
    again = script(tmp_path, "")
    again.write_text(written.text, encoding="utf-8")
    read = dialects.load(again, (), action="check").spec
    assert read is not None
    assert (read.precision, read.optimizer, read.parallelism) == (spec.precision, spec.optimizer, spec.parallelism)


def test_the_embedding_and_the_head_have_a_rate_of_their_own(tmp_path: Path) -> None:
    optimizer = spec_of(tmp_path, f"--bf16 {RATES}").optimizer
    assert (optimizer.embedding_learning_rate, optimizer.embedding_final_learning_rate) == (5e-4, 5e-6)


def test_ends_that_count_as_layers(tmp_path: Path) -> None:
    words = f"--bf16 --pipeline-model-parallel-size 4 {ENDS}"
    spec = spec_of(tmp_path, words, layers=30)
    assert (spec.parallelism.counts_embedding, spec.parallelism.counts_head) == (True, True)
    assert [code for code, _ in errors(load(tmp_path, words, layers=32))] == ["not-divisible"]
    assert [code for code, _ in errors(load(tmp_path, "--bf16 --pipeline-model-parallel-size 4", layers=30))] == [
        "not-divisible"
    ]


def test_float16_takes_the_memory_of_bfloat16(tmp_path: Path) -> None:
    half = spec_of(tmp_path, "--fp16 --accumulate-allreduce-grads-in-fp32")
    bfloat = spec_of(tmp_path, "--bf16")
    assert memory.per_device(half, "megatron") == memory.per_device(bfloat, "megatron")


def test_megatron_is_started_with_the_same_words(tmp_path: Path) -> None:
    script(tmp_path, f"{SCALED} {RATES}")
    words = ("train.sh", "--engine", "megatron", "--on", "slurm", "--all", "topology.device=h100")
    done = seatrial("plan", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("--fp16", "--initial-loss-scale 65536.0", "--hysteresis 4", "--decoupled-lr 0.0005"):
        assert word in " ".join(done.stdout.split())


def test_our_own_trainer_refuses_float16_with_the_reason(tmp_path: Path) -> None:
    script(tmp_path, SCALED)
    done = seatrial("run", "train.sh", "--rehearse", cwd=tmp_path)
    assert done.returncode == 2
    assert "float16, whose range needs a scaled loss" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
