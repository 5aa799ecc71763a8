"""Megatron-LM commands: what their arguments say, what Megatron derives, what it refuses, and back."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seatrial import source
from seatrial.dialects import megatron
from seatrial.dialects.megatron.arguments import ARGUMENTS, LAUNCHER, OTHER_ARGUMENTS, flag, several
from seatrial.dialects.megatron.command import settings as stated
from seatrial.dialects.megatron.settings import ALL
from seatrial.dialects.table.coerce import fraction_of
from seatrial.dialects.table.entries import Request
from seatrial.spec import RopeScaling, RunSpec, flatten
from tests.helpers.megatron_commands import (
    CONTEXT,
    DATA,
    FSDP,
    LEAST,
    PIPELINE,
    TENSOR,
    changes,
    errors,
    gpt,
    read,
    request,
    spec_of,
)
from tests.helpers.seeds import ROOT
from tests.helpers.specs import assert_round_trip, specs, without_engine_keys

# --- what each argument says ------------------------------------------------------------------------------------------

_GLOBAL = "batch.global_batch_size"
_STRATEGY = "parallelism.context_strategy"
_BLEND = {"data.kind": "megatron"}

# The arguments beside the least that a command needs → what they change of its run.
_HALF = {f"precision.{name}_dtype": "float16" for name in ("compute", "gradient", "reduce")}
SAID: dict[str, dict[str, Any]] = {
    "--ffn-hidden-size 1000": {"model.ffn_dim": 1000},
    "--kv-channels 32": {"model.head_dim": 32},
    "--group-query-attention --num-query-groups 2": {"model.num_kv_heads": 2},
    "--group-query-attention": {"model.num_kv_heads": 1},
    "--position-embedding-type rope": {"model.positions": "rope", "model.max_positions": None},
    "--use-rotary-position-embeddings": {"model.positions": "rope", "model.max_positions": None},
    "--rotary-base 500000": {"model.rope_theta": 500_000.0},
    "--rotary-percent 0.5": {"model.rotary_fraction": 0.5},
    "--use-rope-scaling --rope-scaling-factor 32": {
        f"model.rope_scaling.{name}": value for name, value in vars(RopeScaling(factor=32.0)).items()
    } | {"model.rope_scaling": None},
    "--normalization RMSNorm": {"model.norm": "rmsnorm"},
    "--norm-epsilon 1e-6": {"model.norm_epsilon": 1e-6},
    "--layernorm-epsilon 1e-6": {"model.norm_epsilon": 1e-6},
    "--swiglu": {"model.activation": "swiglu", "model.ffn_dim": 1344},
    "--untie-embeddings-and-output-weights": {"model.tied_embeddings": False},
    "--disable-bias-linear": {"model.biases": False},
    "--window-size 127,0": {"model.sliding_window": 128},
    "--window-size '(7, 9)'": {"model.sliding_window": 8},
    "--window-size=-1,-1": {},
    "--make-vocab-size-divisible-by 64": {"model.vocab_multiple": 64},
    "--padded-vocab-size 2048": {"model.vocab_size": 2048, "model.vocab_multiple": 1},
    "--init-method-std 0.006": {"initialization.std": 0.006},
    "--attention-dropout 0": {"dropout.attention": 0.0},
    "--hidden-dropout 0.2": {"dropout.hidden": 0.2},
    "--global-batch-size 64": {_GLOBAL: 64},
    "--exit-interval 30": {"steps": 30, "optimizer.decay_steps": 100},
    "--seed 7": {"seed": 7},
    "--tensor-model-parallel-size 4": {TENSOR: 4, DATA: 2, _GLOBAL: 8},
    "--tensor-model-parallel-size 8 --sequence-parallel": {
        TENSOR: 8, DATA: 1, _GLOBAL: 4, "parallelism.sequence_parallel": True},
    "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2": {
        "parallelism.across_nodes.pipeline": 2, PIPELINE: 2, DATA: 4, "parallelism.across_nodes.data": 1, _GLOBAL: 8,
        "parallelism.virtual_pipeline": 2},
    "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2": {
        "parallelism.across_nodes.pipeline": 2, "parallelism.across_nodes.data": 1, _GLOBAL: 16,
        "parallelism.virtual_pipeline": 2},
    "--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 3 --decoder-last-pipeline-num-layers 5": {
        "parallelism.across_nodes.pipeline": 2, "parallelism.across_nodes.data": 1, _GLOBAL: 16,
        "parallelism.stage_layers": (3, 5)},
    "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*3|t*5L'": {
        "parallelism.across_nodes.pipeline": 2, "parallelism.across_nodes.data": 1, _GLOBAL: 16,
        "parallelism.stage_layers": (3, 5)},
    "--context-parallel-size 2": {CONTEXT: 2, DATA: 4, _GLOBAL: 16, _STRATEGY: "ring"},
    "--context-parallel-size 2 --cp-comm-type all_gather": {CONTEXT: 2, DATA: 4, _GLOBAL: 16},
    "--context-parallel-size 2 --cp-comm-type a2a a2a": {CONTEXT: 2, DATA: 4, _GLOBAL: 16},
    "--cp-comm-type a2a+p2p": {_STRATEGY: "ring"},
    "--use-distributed-optimizer": {"parallelism.zero1": True},
    "--use-torch-fsdp2 --no-gradient-accumulation-fusion --untie-embeddings-and-output-weights": {
        FSDP: 8, "parallelism.across_nodes.fsdp": 2, DATA: 1, "parallelism.across_nodes.data": 1,
        "model.tied_embeddings": False},
    "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --ckpt-format fsdp_dtensor "
    "--num-distributed-optimizer-instances 2": {FSDP: 8, DATA: 1},
    "--use-custom-fsdp --data-parallel-sharding-strategy optim": {"parallelism.zero1": True},
    "--bf16": {"precision.compute_dtype": "bfloat16"},
    "--fp16": {**_HALF, "optimizer.on_non_finite": "skip"},
    "--fp16 --loss-scale 8": {**_HALF, "precision.loss_scale": 8.0},
    "--loss-scale 8 --initial-loss-scale 4 --min-loss-scale 2 --loss-scale-window 9 --hysteresis 3": {
        "precision.loss_scale": 8.0, "precision.initial_loss_scale": 4.0, "precision.min_loss_scale": 2.0,
        "precision.loss_scale_window": 9, "precision.loss_scale_hysteresis": 3,
    },
    "--decoupled-lr 2e-4 --decoupled-min-lr 1e-6": {
        "optimizer.embedding_learning_rate": 2e-4, "optimizer.embedding_final_learning_rate": 1e-6,
    },
    "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split": {
        "parallelism.counts_embedding": True, "parallelism.counts_head": True,
    },
    "--bf16 --grad-reduce-in-bf16": {"precision.compute_dtype": "bfloat16", "precision.gradient_dtype": "bfloat16",
                                     "precision.reduce_dtype": "bfloat16"},
    "--bf16 --accumulate-allreduce-grads-in-fp32": {"precision.compute_dtype": "bfloat16"},
    "--bf16 --use-distributed-optimizer --use-precision-aware-optimizer --main-grads-dtype bf16 --exp-avg-dtype bf16 "
    "--exp-avg-sq-dtype bf16": {
        "precision.compute_dtype": "bfloat16", "precision.gradient_dtype": "bfloat16", "parallelism.zero1": True,
        "precision.reduce_dtype": "bfloat16", "precision.optimizer_dtype": "bfloat16"},
    "--bf16 --fp8-format hybrid": {"precision.compute_dtype": "bfloat16", "precision.quantization": "fp8"},
    "--fp8-hybrid": {"precision.quantization": "fp8"},
    "--fp8-e4m3": {"precision.quantization": "fp8"},
    "--fp8-hybrid --fp8-recipe tensorwise": {"precision.quantization": "te_fp8_currentscaling"},
    "--fp8-format e4m3 --fp8-recipe tensorwise": {"precision.quantization": "fp8_e4m3"},
    "--fp8-hybrid --fp8-recipe blockwise": {"precision.quantization": "fp8"},
    "--fp8-recipe tensorwise": {},
    "--optimizer sgd --sgd-momentum 0.8": {"optimizer.algorithm": "sgd", "optimizer.momentum": 0.8},
    "--min-lr 1e-4": {"optimizer.final_learning_rate_fraction": fraction_of(1e-4, 1e-3)},
    "--lr-decay-style cosine": {"optimizer.schedule": "cosine"},
    "--lr-decay-style constant": {"optimizer.schedule": "constant"},
    "--lr-decay-style inverse-square-root": {"optimizer.schedule": "inverse_square_root"},
    "--lr-decay-style WSD --lr-wsd-decay-style cosine --lr-wsd-decay-iters 20 --lr-warmup-iters 10": {
        "optimizer.schedule": "cosine", "optimizer.hold_steps": 70, "optimizer.warmup_steps": 10},
    "--lr-decay-iters 80": {"optimizer.decay_steps": 80},
    "--lr-decay-iters 80 --lr-warmup-fraction 0.1": {"optimizer.decay_steps": 80, "optimizer.warmup_steps": 8},
    "--lr-warmup-iters 10": {"optimizer.warmup_steps": 10},
    "--weight-decay 0.1": {"optimizer.weight_decay": 0.1},
    "--adam-beta1 0.8 --adam-beta2 0.95 --adam-eps 1e-5": {
        "optimizer.beta1": 0.8, "optimizer.beta2": 0.95, "optimizer.epsilon": 1e-5},
    "--clip-grad 0": {"optimizer.clip_norm": None},
    "--no-check-for-nan-in-loss-and-grad": {"optimizer.on_non_finite": "continue"},
    "--mock-data": {},
    "--data-path a b c --split 9,1,0": {**_BLEND, "data.paths": ("a", "b", "c"), "data.split": "9,1,0"},
    "--data-path 0.3 a 0.7 b": {
        **_BLEND, "data.paths": ("a", "b"), "data.weights": (0.3, 0.7), "data.split": "969,30,1"},
    "--train-data-path 1 a --valid-data-path b --test-data-path c d --data-cache-path /x": {
        **_BLEND, "data.paths": ("a",), "data.weights": (1.0,), "data.validation_paths": ("b",),
        "data.test_paths": ("c", "d"), "data.index_dir": "/x"},
    "--data-path a --split 1,0,0 --reset-position-ids --reset-attention-mask --eod-mask-loss": {
        **_BLEND, "data.paths": ("a",), "data.split": "1,0,0", "data.reset_positions": True,
        "data.reset_attention": True, "data.mask_document_ends": True},
    "--eval-interval 50 --eval-iters 5": {"evaluation.interval_steps": 50, "evaluation.batches": 5},
    "--eval-iters 0": {"evaluation.interval_steps": None, "evaluation.batches": None},
    "--eval-iters -1": {"evaluation.interval_steps": None, "evaluation.batches": None},
    "--full-validation": {"evaluation.batches": None},
    "--log-interval 5": {"logging.interval_steps": 5},
    "--log-params-norm": {"logging.parameter_norm": True},
    "--tensorboard-dir x": {"logging.tensorboard": True},
    "--wandb-exp-name mine": {"name": "mine"},
    "--save /c --save-interval 10": {
        "checkpoint.enabled": True, "checkpoint.directory": "/c", "checkpoint.interval_steps": 10,
        "checkpoint.keep": None, "checkpoint.asynchronous": False},
    "--save /c --persistent-save-interval 100 --async-save --use-persistent-ckpt-worker --load /c": {
        "checkpoint.enabled": True, "checkpoint.directory": "/c", "checkpoint.keep": None, "checkpoint.resume": True},
    "--save /c --save-interval 10 --load /c --exit-on-missing-checkpoint": {
        "checkpoint.enabled": True, "checkpoint.directory": "/c", "checkpoint.resume": True,
        "checkpoint.resume_required": True, "checkpoint.interval_steps": 10, "checkpoint.keep": None,
        "checkpoint.asynchronous": False},
    "--load /old": {"checkpoint.resume_from": "/old"},
    "--load /old --finetune": {"checkpoint.resume_from": "/old", "checkpoint.weights_only": True},
    "--load /old --no-load-optim": {"checkpoint.resume_from": "/old", "checkpoint.weights_only": True},
    "--pretrained-checkpoint /old": {"checkpoint.resume_from": "/old", "checkpoint.weights_only": True},
    "--recompute-activations": {"execution.remat": "selective", "execution.remat_modules": ("core_attn",)},
    "--recompute-granularity selective --recompute-modules mlp layernorm": {
        "execution.remat": "selective", "execution.remat_modules": ("mlp", "layernorm")},
    "--recompute-granularity full --recompute-method block --recompute-num-layers 8": {"execution.remat": "full"},
    "--attention-backend fused": {"execution.attention": "cudnn_flash_te"},
    "--attention-backend unfused": {"execution.attention": "dot_product"},
    "--use-flash-attn": {"execution.attention": "flash"},
    "--profile --profile-step-start 20 --profile-step-end 23": {
        "execution.profile_from_step": 20, "execution.profile_steps": 3},
}  # fmt: skip


@pytest.mark.parametrize("more", SAID)
def test_what_arguments_say_of_a_run(more: str) -> None:
    before, after = spec_of(gpt()), spec_of(gpt(more))
    assert changes(before, after) == SAID[more]


INSTEAD = {
    "--encoder-num-layers 8": "--num-layers 8",
    "--encoder-seq-length 128": "--seq-length 128",
    "--train-samples 3200 --lr-decay-samples 1600 --lr-warmup-samples 320": "--train-iters 100",
    "--tokenizer-type GPT2BPETokenizer": "--tokenizer-type NullTokenizer --vocab-size 999",
}
SAID_INSTEAD: dict[str, dict[str, Any]] = {
    "--encoder-num-layers 8": {},
    "--encoder-seq-length 128": {},
    "--train-samples 3200 --lr-decay-samples 1600 --lr-warmup-samples 320": {
        "optimizer.decay_steps": 50, "optimizer.warmup_steps": 10},
    "--tokenizer-type GPT2BPETokenizer": {"model.vocab_size": 50_257},
}  # fmt: skip


@pytest.mark.parametrize("new", INSTEAD)
def test_what_other_arguments_say_in_their_place(new: str) -> None:
    resolved = gpt(least=LEAST.replace(INSTEAD[new], new))
    assert changes(spec_of(gpt()), spec_of(resolved)) == SAID_INSTEAD[new]


def test_a_schedule_in_sequences_that_is_no_whole_number_of_steps_is_told() -> None:
    samples = "--train-samples 3200 --lr-warmup-samples 330 --lr-decay-samples 1600"
    found = [p for p in gpt(least=LEAST.replace("--train-iters 100", samples)).problems if p.code == "rounded"]
    assert [(p.path, p.severity, p.why) for p in found] == [
        ("--lr-warmup-samples", "info", "330 sequences are 10.31 steps of 32; here the schedule has 10")
    ]


def test_every_argument_that_says_something_is_in_these_tables() -> None:
    words = {word.partition("=")[0] for row in (*SAID, *INSTEAD, LEAST) for word in shlex.split(row)}
    left_out = {"lr-wsd-decay-samples", "tokenizer-model"}  # elsewhere in this file
    assert {f"--{name}" for name in ARGUMENTS if name not in left_out} - words == set()


def test_megatron_s_own_defaults_hold_where_nothing_is_said() -> None:
    spec = spec_of(gpt(launcher=""))
    model, optimizer = spec.model, spec.optimizer
    assert (spec.topology.num_devices, spec.batch.global_batch_size, spec.seed) == (1, 2, 1234)
    assert (model.vocab_size, model.ffn_dim, model.head_dim, model.num_kv_heads) == (1000, 2048, 64, 8)
    assert (model.norm, model.activation, model.positions, model.biases, model.tied_embeddings) == (
        "layernorm", "gelu", "learned", True, True
    )  # fmt: skip
    assert (model.rope_theta, model.norm_epsilon, model.vocab_multiple, model.max_positions) == (
        10_000.0,
        1e-5,
        128,
        256,
    )
    assert (optimizer.algorithm, optimizer.schedule, optimizer.weight_decay, optimizer.clip_norm) == (
        "adamw", "linear", 0.01, 1.0
    )  # fmt: skip
    assert (optimizer.beta1, optimizer.beta2, optimizer.epsilon) == (0.9, 0.999, 1e-8)
    assert (optimizer.final_learning_rate_fraction, optimizer.warmup_steps, optimizer.decay_steps) == (0.0, 0, None)
    assert (spec.dropout.hidden, spec.dropout.attention, spec.initialization.std) == (0.1, 0.1, 0.02)
    assert (spec.evaluation.interval_steps, spec.evaluation.batches, spec.logging.interval_steps) == (1000, 100, 100)
    assert (spec.precision.compute_dtype, spec.checkpoint.enabled, spec.data.kind) == ("float32", False, "synthetic")


# --- the rest of the arguments ----------------------------------------------------------------------------------------


def example(name: str) -> str:
    if OTHER_ARGUMENTS[name].read is flag:
        return f"--{name}"
    return f"--{name} 3 4" if OTHER_ARGUMENTS[name].read is several else f"--{name} 3"


# Arguments that Megatron refuses together with the least that is given here.
NEED = {
    "tp-comm-overlap",
    "overlap-param-gather",
    "fp8-param-gather",
    "distribute-saved-activations",
    "no-position-embedding",
}


@pytest.mark.parametrize("name", OTHER_ARGUMENTS)
def test_every_other_argument_changes_nothing_or_is_refused(name: str) -> None:
    resolved, key = gpt(example(name)), OTHER_ARGUMENTS[name]
    if key.disposition == "rejected":
        assert errors(resolved) == [("not-supported", f"--{name}")]
    elif name not in NEED:
        assert without_engine_keys(spec_of(resolved)) == spec_of(gpt())
        told = [p for p in resolved.problems if p.code == "no-effect"]
        assert [p.path for p in told] == ([f"--{name}"] if key.disposition == "ignored" else [])
    assert key.why
    assert name not in ARGUMENTS


@pytest.mark.parametrize("name", [name for name, key in OTHER_ARGUMENTS.items() if key.quiet])
def test_a_refused_argument_may_ask_for_nothing(name: str) -> None:
    given = spec_of(gpt(f"--{name} {OTHER_ARGUMENTS[name].quiet[0]}"))
    assert without_engine_keys(given) == spec_of(gpt())


def test_a_finding_for_what_has_no_effect_names_all_that_have_none_for_this_reason() -> None:
    resolved = gpt("--log-throughput --timing-log-level 1 --num-workers 4 --log-energy")
    (told,) = [p for p in resolved.problems if p.code == "no-effect"]
    assert (told.path, "(nor do --timing-log-level, --log-energy)" in told.why) == ("--log-throughput", True)


# --- as argparse reads it ---------------------------------------------------------------------------------------------


def argparse_s() -> argparse.ArgumentParser:
    """Megatron's parser, as far as its words go: which argument takes how many values."""
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False, add_help=False)
    for name, key in ALL.items():
        if key.read is flag:
            parser.add_argument(f"--{name}", dest=name, action="store_true", default=argparse.SUPPRESS)
        else:
            nargs = "*" if key.read is several else None
            parser.add_argument(f"--{name}", dest=name, nargs=nargs, default=argparse.SUPPRESS)
    return parser


PARSER = argparse_s()
SOME = ["seed", "swiglu", "data-path", "lr", "bf16", "tensorboard-dir", "recompute-modules", "no-rope-fusion", "x"]
WORDS = st.one_of(
    st.sampled_from(SOME).map(lambda name: f"--{name}"),
    st.tuples(st.sampled_from(SOME), st.sampled_from(["1", "", "a b", "-1", "--x", "="])).map(
        lambda pair: f"--{pair[0]}={pair[1]}"
    ),
    st.sampled_from(["7", "-7", "-0.5", "-1e-3", "a", "a=b", "-", "-x", "a b", "/x/y", "0.3"]),
)  # fmt: skip


@given(st.lists(WORDS, max_size=8))
@hypothesis.example(["--data-path", "-1e-3"])
@hypothesis.example(["--tensorboard-dir", "--x=a b"])  # a blank makes a value of what is no argument
def test_words_are_taken_as_argparse_takes_them(words: list[str]) -> None:
    try:
        known, stray = PARSER.parse_known_args(words)
    except (argparse.ArgumentError, SystemExit):
        known, stray = None, ["refused"]
    found = stated(request(f"torchrun pretrain_gpt.py {shlex.join(words)}"))
    refused = {"unknown-argument", "stray-word", "missing-value"} & {p.code for p in found.problems}
    if known is None or stray:
        assert refused or any(p.code == "bad-value" for p in found.problems)
        return
    assert not refused
    for name, value in vars(known).items():
        entry = found.entries[name]
        assert value is True or entry.value == value, name
    assert set(found.entries) == set(vars(known))


# --- what Megatron refuses --------------------------------------------------------------------------------------------

FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
_CHUNKED = "--num-layers-per-virtual-pipeline-stage"


@pytest.mark.parametrize(
    ("words", "blamed", "mended"),
    [
        ("--recompute-granularity full --recompute-method uniform", "--recompute-method", FULL),
        ("--recompute-granularity full --recompute-num-layers 1", "--recompute-granularity", FULL),
        ("--recompute-granularity selective --recompute-num-layers 1", "--recompute-num-layers", FULL),
        ("--recompute-activations --recompute-num-layers 1", "--recompute-num-layers", "--recompute-activations"),
        ("--recompute-activations --recompute-method block", "--recompute-method", "--recompute-activations"),
        (f"--tensor-model-parallel-size 2 --sequence-parallel {FULL} --distribute-saved-activations",
         "--distribute-saved-activations", f"--tensor-model-parallel-size 2 {FULL} --distribute-saved-activations"),
        ("--tensor-model-parallel-size 2 --recompute-activations --distribute-saved-activations",
         "--distribute-saved-activations", f"--tensor-model-parallel-size 2 {FULL} --distribute-saved-activations"),
        ("--fp8-format hybrid --fp8-param-gather", "--fp8-param-gather",
         "--fp8-format hybrid --fp8-param-gather --use-distributed-optimizer"),
        (f"--pipeline-model-parallel-size 2 {_CHUNKED} 3", _CHUNKED,
         f"--pipeline-model-parallel-size 2 {_CHUNKED} 2"),
        (f"--pipeline-model-parallel-size 2 {_CHUNKED} 8", _CHUNKED,
         f"--pipeline-model-parallel-size 2 {_CHUNKED} 4"),
        (f"--num-layers 7 --account-for-loss-in-pipeline-split --pipeline-model-parallel-size 2 {_CHUNKED} 3", _CHUNKED,
         f"--num-layers 7 --account-for-loss-in-pipeline-split --pipeline-model-parallel-size 2 {_CHUNKED} 1"),
        (f"{_CHUNKED} 4", _CHUNKED, f"{_CHUNKED} 8"),
        ("--num-virtual-stages-per-pipeline-rank 2", "--num-virtual-stages-per-pipeline-rank",
         "--num-virtual-stages-per-pipeline-rank 1"),
        ("--pipeline-model-parallel-layout 'Et*4|t*4L'", "--pipeline-model-parallel-layout",
         "--pipeline-model-parallel-layout 'Et*4|t*4L' --pipeline-model-parallel-size 2"),
        (f"--pipeline-model-parallel-size 2 {_CHUNKED} 2 --no-overlap-p2p-communication", _CHUNKED,
         f"--pipeline-model-parallel-size 4 {_CHUNKED} 1 --no-overlap-p2p-communication"),
    ],
)  # fmt: skip
def test_what_megatron_refuses_is_an_error_and_the_way_out_is_none(words: str, blamed: str, mended: str) -> None:
    assert errors(gpt(words)) == [("refused-by-megatron", blamed)]
    assert errors(gpt(mended)) == []


def test_what_versions_before_core_did_not_refuse_is_a_warning_there() -> None:
    words = "--recompute-granularity full --recompute-method uniform"
    fork = replace(request(f"torchrun pretrain_gpt.py {LEAST} {words} --zero-stage 1\n"), engine="megatron")
    for resolved in (gpt(f"{words} --layernorm-epsilon 1e-6"), megatron.read(fork)):
        assert spec_of(resolved).execution.remat == "full"
        assert [(p.severity, p.path) for p in resolved.problems if p.code == "refused-by-megatron"] == [
            ("warning", "--recompute-method")
        ]


def test_a_seed_is_positive() -> None:
    assert errors(gpt("--seed 0")) == [("bad-value", "--seed")]
    written = megatron.write(replace(spec_of(gpt()), seed=0), "arguments")
    assert "--seed" not in written.text
    assert [(note.path, note.why) for note in written.notes if note.path == "seed"] == [
        ("seed", "Megatron's seeds are positive; here: 1234")
    ]


# --- launchers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "nodes", "each", "host", "port"),
    [
        ("torchrun --nproc_per_node 8 --nnodes=4 --master_addr a --master_port 6000 pretrain_gpt.py", 4, 8, "a", 6000),
        ("torchrun --nproc-per-node=8 --nnodes 2:2 --standalone -m pretrain_gpt", 2, 8, None, None),
        ("torchrun --nproc_per_node 8 --nnodes=4 --rdzv-backend c10d --rdzv-endpoint a:6000 pretrain_gpt.py",
         4, 8, "a", 6000),
        ("torchrun --nproc_per_node 8 --nnodes=4 --master_addr b --master_port 1 --rdzv_endpoint=a pretrain_gpt.py",
         4, 8, "a", None),
        ("torchrun --nproc_per_node 8 --nnodes=4 --rdzv_endpoint=[fd00::1]:70 pretrain_gpt.py", 4, 8, "fd00::1", 70),
        ("torchrun --nproc_per_node 8 --nnodes=4 --rdzv_endpoint=a:$PORT pretrain_gpt.py", 4, 8, "a", None),
        ("torchrun --nproc_per_node 8 --rdzv_backend=c10d --rdzv_endpoint=localhost:0 pretrain_gpt.py",
         1, 8, None, None),
        ("torchrun --nproc_per_node 8 --nnodes=4 --rdzv_backend=etcd --rdzv_endpoint=a:1 pretrain_gpt.py",
         4, 8, None, None),
        ("python -m torch.distributed.run --nproc_per_node=4 --rdzv_backend c10d pretrain_gpt.py", 1, 4, None, None),
        ("srun -N 2 --ntasks-per-node=8 python -u pretrain_gpt.py", 2, 8, None, None),
        ("srun -N2 --nodes 3 torchrun --nproc_per_node 8 --nnodes 3 /x/pretrain_gpt.py", 3, 8, None, None),
        ("python pretrain_gpt.py", 1, 1, None, None),
    ],
)  # fmt: skip
def test_the_launcher_says_how_many_devices_there_are(
    command: str, nodes: int, each: int, host: str | None, port: int | None
) -> None:
    spec = spec_of(read(f"{command} {LEAST}"))
    assert (spec.topology.num_nodes, spec.topology.devices_per_node) == (nodes, each)
    assert (spec.distributed.coordinator_host, spec.distributed.coordinator_port) == (host, port)


def test_every_option_of_torchrun_is_taken() -> None:
    for name, key in LAUNCHER.items():
        assert errors(gpt(launcher=f"--{name}" if key.read is flag else f"--{name} 1")) == []


def test_variables_reach_the_processes_but_for_secrets_and_what_the_launcher_sets() -> None:
    secrets = {"HF_TOKEN", "DB_PASSWD", "WANDB_APIKEY"}
    exports = " ".join(f"{name}=hf_abc" for name in secrets)
    text = f"export NCCL_DEBUG=INFO {exports} WORLD_SIZE=8 RANK=0 TRAIN_TOKENS=1\ntorchrun pretrain_gpt.py {LEAST}"
    resolved = read(text)
    assert spec_of(resolved).execution.environment == {"NCCL_DEBUG": "INFO", "TRAIN_TOKENS": "1"}
    assert {problem.path for problem in resolved.problems if problem.code == "secret"} == secrets
    assert "hf_abc" not in repr(resolved)


# --- overrides --------------------------------------------------------------------------------------------------------


def test_overrides_are_arguments_options_of_torchrun_and_a_preset() -> None:
    command = f"torchrun --nproc_per_node 8 pretrain_gpt.py {LEAST} --swiglu"
    given = ("train-iters=7", "micro_batch_size=4", "--nproc_per_node=4", "swiglu=false", "topology.device=mi300x")
    spec = spec_of(read(command, *given))
    assert (spec.steps, spec.batch.micro_batch_size, spec.topology.devices_per_node) == (7, 4, 4)
    assert (spec.model.activation, spec.topology.device) == ("gelu", "mi300x")
    assert spec_of(read(command, "model=llama2-7b")).model.name == "llama2-7b"


# --- tokenizers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokenizer", "vocab_size"),
    [
        ("meta-llama/Meta-Llama-3-8B", 128_256), ("NousResearch/Meta-Llama-3.1-70B", 128_256),
        ("/data/tokenizer_llama3", 128_256), ("meta-llama/Llama-2-7b-hf", 32_000),
        ("/m/llama2/tokenizer.model", 32_000), ("gpt2", 50_257), ("openai/gpt-2", 50_257),
        ("/data/llama_2025/tokenizers/Meta-Llama-3-8B", 128_256), ("/llama2/to/Llama-3.1-8B/tokenizer.json", 128_256),
        ("/llama3/data/llama2_tokenizer/tokenizer.model", 32_000), ("/ckpt/llama31-70b", 128_256),
        ("meta-llama/Llama-3.2-3B", 128_256), ("codellama/CodeLlama-34b-Instruct-hf", 32_000),
        ("mine --vocab-size 1000", 1000),
    ],
)  # fmt: skip
def test_the_vocabulary_is_that_of_the_tokenizer(tokenizer: str, vocab_size: int) -> None:
    least = LEAST.replace("NullTokenizer --vocab-size 999", f"HuggingFaceTokenizer --tokenizer-model {tokenizer}")
    assert spec_of(gpt(least=least)).model.vocab_size == vocab_size


@pytest.mark.parametrize(
    "tokenizer",
    [
        "openlm-research/open_llama_3b_v2",
        "huggyllama/llama-30b",
        "llama3b",
        "/data/llama_2025/mine",
        "llama_300M",
        "llama-v2b",
    ],
)
def test_a_number_of_parameters_or_a_year_is_no_version_of_llama(tokenizer: str) -> None:
    least = LEAST.replace("NullTokenizer --vocab-size 999", f"HuggingFaceTokenizer --tokenizer-model {tokenizer}")
    assert errors(gpt(least=least)) == [("unknown-vocabulary", "--tokenizer-model")]


# --- what is shipped, and back ----------------------------------------------------------------------------------------

EXAMPLES = sorted(ROOT.glob("configs/megatron/*.sh"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_reads_without_errors_and_reads_back(path: Path) -> None:
    found = Request(document=source.read(path), overrides=[], action="plan", user="me", home=Path("/"))
    resolved = megatron.read(found)
    spec = spec_of(resolved)
    assert [p.code for p in resolved.problems if p.severity == "warning"] == []
    assert_round_trip(megatron.write, megatron.read, spec)
    origins = [resolved.origin(path) for path in flatten(spec)]
    assert all(origin.mark or origin.kind in ("default", "derived") for origin in origins)


def test_a_whole_script_is_understood() -> None:
    (path,) = [path for path in EXAMPLES if "llama2-70b" in path.name]
    document = source.read(path)
    spec = spec_of(megatron.read(Request(document=document, overrides=[], action="plan", user="me", home=Path("/"))))
    assert (spec.model.name, spec.topology.num_devices, spec.mesh) == (
        "llama2-70b", 64, {"pipeline": 4, "data": 4, "fsdp": 1, "context": 1, "tensor": 4}
    )  # fmt: skip
    assert (spec.parallelism.within_node.tensor, spec.parallelism.within_node.data) == (4, 2)
    assert (spec.parallelism.virtual_pipeline, spec.parallelism.zero1, spec.parallelism.sequence_parallel) == (
        4,
        True,
        True,
    )
    assert (spec.batch.global_batch_size, spec.accumulation_steps, spec.optimizer.warmup_steps) == (128, 32, 20)
    assert (spec.data.paths, spec.data.weights) == (
        ("/data/slimpajama/web_text_document", "/data/slimpajama/code_text_document"), (0.7, 0.3)
    )  # fmt: skip
    assert (spec.checkpoint.resume, spec.checkpoint.directory) == (True, "/checkpoints/llama2-70b")


@settings(max_examples=60)
@given(specs())
def test_what_is_written_as_arguments_reads_back_as_it_was(spec: RunSpec) -> None:
    assert_round_trip(megatron.write, megatron.read, spec)


@settings(max_examples=60)
@given(specs())
def test_what_is_written_as_variables_reads_back_as_it_was(spec: RunSpec) -> None:
    assert_round_trip(partial(megatron.write, style="environment"), megatron.read, spec)


@pytest.mark.parametrize(
    ("launcher", "words", "needy"),
    [
        ("--nproc_per_node 1", "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --ckpt-format "
         "fsdp_dtensor --fp8-format hybrid --fp8-param-gather", "--fp8-param-gather"),
        ("--nproc_per_node 1", "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --ckpt-format "
         "fsdp_dtensor --overlap-param-gather --overlap-grad-reduce", "--overlap-param-gather"),
        ("--nproc_per_node 8", "--sequence-parallel --tp-comm-overlap", "--tp-comm-overlap"),
    ],
)  # fmt: skip
def test_an_argument_is_not_written_without_the_one_that_it_needs(launcher: str, words: str, needy: str) -> None:
    spec = spec_of(gpt(words, launcher))
    assert needy in spec.execution.engine_keys
    assert needy not in megatron.write(spec).text  # nothing is split or sharded, so the other is not written either


def test_chunks_of_one_stage_are_not_written() -> None:
    spec = spec_of(gpt())
    written = megatron.write(replace(spec, parallelism=replace(spec.parallelism, virtual_pipeline=2)))
    assert [note.path for note in written.notes if note.path.startswith("parallelism")] == [
        "parallelism.virtual_pipeline"
    ]


def test_every_reader_s_advice_says_something_of_its_own() -> None:
    resolved = gpt("--lr-warmup-iters x --lr-decay-style y --clip-grad -1 --hidden-dropout 2")
    fixes = [p.fix for p in resolved.problems if p.code == "bad-value"]
    assert fixes == [
        "give a whole number from 0 on",
        "give one of the values named here; if this Megatron-LM has it, run it with --engine megatron",
        "give a number from 0 on",
        "give a number from 0 to 1",
    ]  # fmt: skip


def test_megatron_saves_while_the_training_waits_unless_it_has_a_worker_for_it() -> None:
    saves = "--save /c --save-interval 10 --async-save --use-distributed-optimizer"
    alone = [p.path for p in gpt(saves).problems if p.code == "no-effect" and p.severity == "warning"]
    assert alone == ["--async-save"]
    both = gpt(f"{saves} --use-persistent-ckpt-worker")
    assert [p for p in both.problems if p.code == "no-effect" and p.path == "--async-save"] == []
    words = megatron.write(spec_of(both), "arguments").text.split()
    assert {"--async-save", "--use-persistent-ckpt-worker"} <= set(words)
    assert words.count("--use-persistent-ckpt-worker") == 1


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("--save /c --save-interval 10 --load /c --no-load-optim", "--save /c --save-interval 10 --load /c"
         " --no-load-optim"),
        ("--load /c --no-load-optim", "--load /c --no-load-optim"),
        ("--load /c --finetune --no-load-optim", "--load /c --finetune"),
        ("--load /c", "--load /c"),
        ("--tensorboard-dir /logs/tb", "--tensorboard-dir /logs/tb"),
        ("--wandb-project p --wandb-exp-name mine", "--wandb-exp-name mine --wandb-project p"),
        ("--wandb-exp-name mine", ""),
        ("--bf16 --use-distributed-optimizer --use-precision-aware-optimizer --exp-avg-dtype bf16",
         "--use-distributed-optimizer --bf16 --use-precision-aware-optimizer --exp-avg-dtype bf16"),
        ("--reset-position-ids --reset-attention-mask --eod-mask-loss",
         "--reset-position-ids --reset-attention-mask --eod-mask-loss"),
    ],
)  # fmt: skip
def test_what_a_field_says_less_of_than_an_argument_is_written_as_it_was(given: str, written: str) -> None:
    words = shlex.split(megatron.write(spec_of(gpt(given)), "arguments").text)
    usual = shlex.split(megatron.write(spec_of(gpt()), "arguments").text)
    assert shlex.join(word for word in words if word not in usual) == written
    off = [f"{word.removeprefix('--')}=false" for word in given.split() if word == "--no-load-optim"]
    if off:
        without = spec_of(read(f"torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {LEAST} {given}", *off))
        assert "--no-load-optim" not in without.execution.engine_keys


@pytest.mark.parametrize("save", ["", "--save /c --save-interval 10"])
def test_a_run_that_goes_on_without_its_optimizer_is_megatron_s_only(save: str) -> None:
    found = gpt(f"--load /c --no-load-optim {save}").problems
    assert [(p.path, p.severity) for p in found if p.code == "own-resumption"] == [("--no-load-optim", "warning")]
    for more in ("--finetune --no-load-optim", "--finetune"):
        assert "own-resumption" not in {p.code for p in gpt(f"--load /c {more} {save}").problems}


def test_over_several_nodes_each_has_its_rank_and_all_have_the_first_one() -> None:
    launcher = "--nproc_per_node 8 --nnodes 2 --rdzv_backend c10d --rdzv_endpoint $HEAD:29500"
    text = megatron.write(spec_of(read(f"torchrun {launcher} pretrain_gpt.py {LEAST}")), "arguments").text
    assert '--master_addr "$HEAD"' in text
    assert '--node_rank "$NODE_RANK"' in text
    assert [p.path for p in read(text.partition("\n")[2]).problems if p.code == "unknown-variable"] == ["--master_addr"]


def test_no_version_has_a_number_of_checkpoints_to_keep() -> None:
    assert "unknown-argument" in {code for code, _ in errors(gpt("--save /c --save-interval 10 --most-recent-k 3"))}
    assert spec_of(gpt("--save /c --save-interval 10")).checkpoint.keep is None


def test_a_variable_that_may_hold_the_arguments_is_the_one_error() -> None:
    found = megatron.read(request("torchrun --nproc_per_node 8 pretrain_gpt.py ${MEGATRON_PARAMS}"))
    assert [(p.severity, p.code, p.path) for p in found.problems] == [
        ("error", "unknown-variable", "${MEGATRON_PARAMS}")
    ]
