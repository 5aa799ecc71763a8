"""Megatron-LM's own parser takes every command that is written for it, for what it is read as here.

`make test-megatron` fetches the parser. What a command is read as is what `convert` says of it: values that Megatron
cannot have are in its notes.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from seatrial.command import Secret
from seatrial.dialects.convert import TARGETS
from seatrial.dialects.table import written as table_written
from seatrial.engines import Ground, Placement, megatron
from seatrial.spec import RunSpec
from tests.dialects.test_convert import SHIPPED, _load
from tests.helpers.specs import specs

PACKAGE = os.environ.get("SEATRIAL_MEGATRON")  # the folder with the package megatron-core
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900),
              pytest.mark.skipif(PACKAGE is None, reason="no SEATRIAL_MEGATRON: run `make test-megatron`")]  # fmt: skip

DRAWN = 100
Answer = dict[str, Any] | str  # {name: value as Megatron has it}, or why it refuses the command


def parsed(commands: Sequence[tuple[Sequence[str], int, Mapping[str, str]]]) -> list[Answer]:
    """The answer of Megatron's parser to each (words, number of processes, variables)."""
    given = [{"words": words, "world": world, "environment": env} for words, world, env in commands]
    program = str(Path(__file__).with_name("load_megatron.py"))
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    done = subprocess.run(
        [sys.executable, program], input=json.dumps(given), capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers: list[Answer] = json.loads(done.stdout.rpartition("PARSED ")[2])
    assert len(answers) == len(commands) > 0
    return answers


def in_shell(text: str) -> tuple[list[str], dict[str, str]]:
    """(arguments of pretrain_gpt.py, variables) of a command that `convert` has written, as a shell has them."""
    words = shlex.split(text.replace("\\\n", " "), comments=True)
    exports = [words[i + 1] for i, word in enumerate(words) if word == "export"]
    return words[words.index("pretrain_gpt.py") + 1 :], dict(each.split("=", 1) for each in exports)


# --- what Megatron has, by the run ------------------------------------------------------------------------------------

_DTYPES = {"float32": "torch.float32", "bfloat16": "torch.bfloat16", "float16": "torch.float16"}
_FP8 = {"fp8": ("hybrid", "delayed"), "te_fp8_currentscaling": ("hybrid", "tensorwise"),
        "fp8_e4m3": ("e4m3", "tensorwise")}  # fmt: skip
_ATTENTION = {"flash": "flash", "cudnn_flash_te": "fused", "dot_product": "unfused"}
_STYLES = {"inverse_square_root": "inverse-square-root"}


def _is_sharded(s: RunSpec) -> bool:
    return s.mesh["fsdp"] > 1


def _has_files(s: RunSpec) -> bool:
    return s.data.kind == "megatron"


def _is_dynamic(s: RunSpec) -> bool:
    return s.precision.compute_dtype == "float16" and s.precision.loss_scale is None


def _blend(paths: Sequence[str], weights: Sequence[float] = ()) -> list[str] | None:
    words = [word for weight, path in zip(weights, paths, strict=True) for word in (weight, path)] if weights else paths
    return [str(word) for word in words] or None


def _whole(s: RunSpec) -> int:
    return s.optimizer.decay_steps or s.step_limit


# A name of Megatron's, the value that it should have by the run, and for which runs; by default for all.
Row = tuple[str, Callable[[RunSpec], Any]] | tuple[str, Callable[[RunSpec], Any], Callable[[RunSpec], bool]]
ROWS: tuple[Row, ...] = (
    ("num_layers", lambda s: s.model.num_layers),
    ("hidden_size", lambda s: s.model.hidden_dim),
    ("ffn_hidden_size", lambda s: s.model.ffn_dim),
    ("num_attention_heads", lambda s: s.model.num_heads),
    ("kv_channels", lambda s: s.model.head_dim),
    ("group_query_attention", lambda s: s.model.num_kv_heads != s.model.num_heads),
    ("num_query_groups", lambda s: s.model.num_kv_heads, lambda s: s.model.num_kv_heads != s.model.num_heads),
    ("position_embedding_type", lambda s: "rope" if s.model.positions == "rope" else "learned_absolute"),
    ("rotary_base", lambda s: s.model.rope_theta, lambda s: s.model.positions == "rope"),
    ("rotary_percent", lambda s: s.model.rotary_fraction, lambda s: s.model.positions == "rope"),
    ("use_rope_scaling", lambda s: s.model.rope_scaling is not None),
    ("rope_scaling_factor", lambda s: s.model.rope_scaling and s.model.rope_scaling.factor,
     lambda s: s.model.rope_scaling is not None),
    ("normalization", lambda s: {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}[s.model.norm]),
    ("layernorm_epsilon", lambda s: s.model.norm_epsilon),
    ("swiglu", lambda s: s.model.activation == "swiglu"),
    ("untie_embeddings_and_output_weights", lambda s: not s.model.tied_embeddings),
    ("add_bias_linear", lambda s: s.model.biases),
    ("window_size", lambda s: s.model.sliding_window and [s.model.sliding_window - 1, 0]),
    ("make_vocab_size_divisible_by", lambda s: s.model.vocab_multiple),
    ("seq_length", lambda s: s.batch.sequence_length),
    ("micro_batch_size", lambda s: s.batch.micro_batch_size),
    ("global_batch_size", lambda s: s.batch.global_batch_size),
    ("train_iters", lambda s: s.steps),
    ("seed", lambda s: s.seed),
    ("init_method_std", lambda s: s.initialization.std),
    ("hidden_dropout", lambda s: s.dropout.hidden),
    ("attention_dropout", lambda s: s.dropout.attention),
    # the mesh
    ("tensor_model_parallel_size", lambda s: s.mesh["tensor"]),
    ("pipeline_model_parallel_size", lambda s: s.mesh["pipeline"]),
    ("context_parallel_size", lambda s: s.mesh["context"]),
    ("data_parallel_size", lambda s: s.mesh["data"] * s.mesh["fsdp"]),
    ("num_distributed_optimizer_instances", lambda s: s.mesh["data"] if _is_sharded(s) else 1),
    ("cp_comm_type", lambda s: [{"ring": "p2p", "all_gather": "all_gather"}[s.parallelism.context_strategy]],
     lambda s: s.mesh["context"] > 1),
    ("sequence_parallel", lambda s: s.parallelism.sequence_parallel),
    ("virtual_pipeline_model_parallel_size", lambda s: {1: None}.get(n := s.parallelism.virtual_pipeline, n)),
    ("account_for_embedding_in_pipeline_split", lambda s: s.parallelism.counts_embedding),
    ("account_for_loss_in_pipeline_split", lambda s: s.parallelism.counts_head),
    ("use_megatron_fsdp", _is_sharded),
    ("data_parallel_sharding_strategy", lambda s: "optim_grads_params", _is_sharded),
    ("use_distributed_optimizer", lambda s: s.parallelism.zero1, lambda s: not _is_sharded(s)),
    # number formats
    ("params_dtype", lambda s: _DTYPES[s.precision.compute_dtype]),
    ("main_params_dtype", lambda s: _DTYPES[s.precision.params_dtype]),
    ("exp_avg_dtype", lambda s: _DTYPES[s.precision.optimizer_dtype]),
    ("exp_avg_sq_dtype", lambda s: _DTYPES[s.precision.optimizer_dtype]),
    ("grad_reduce_in_bf16", lambda s: s.precision.reduce_dtype == s.precision.compute_dtype == "bfloat16"),
    ("accumulate_allreduce_grads_in_fp32", lambda s: s.precision.gradient_dtype == "float32",
     lambda s: s.precision.compute_dtype != "float32"),
    ("fp8", lambda s: _FP8[s.precision.quantization or ""][0] if s.precision.quantization else None),
    ("fp8_recipe", lambda s: _FP8[s.precision.quantization or ""][1], lambda s: s.precision.quantization is not None),
    ("loss_scale", lambda s: s.precision.loss_scale, lambda s: s.precision.compute_dtype == "float16"),
    ("initial_loss_scale", lambda s: s.precision.initial_loss_scale, _is_dynamic),
    ("min_loss_scale", lambda s: s.precision.min_loss_scale, _is_dynamic),
    ("loss_scale_window", lambda s: s.precision.loss_scale_window, _is_dynamic),
    ("hysteresis", lambda s: s.precision.loss_scale_hysteresis, _is_dynamic),
    # the optimizer
    ("optimizer", lambda s: {"adamw": "adam"}.get(s.optimizer.algorithm, s.optimizer.algorithm)),
    ("lr", lambda s: s.optimizer.learning_rate),
    ("min_lr", lambda s: s.optimizer.learning_rate * s.optimizer.final_learning_rate_fraction),
    ("lr_decay_style", lambda s: "WSD" if s.optimizer.hold_steps else _STYLES.get(n := s.optimizer.schedule, n)),
    ("lr_wsd_decay_style", lambda s: s.optimizer.schedule, lambda s: s.optimizer.hold_steps > 0),
    ("lr_wsd_decay_iters", lambda s: _whole(s) - s.optimizer.warmup_steps - s.optimizer.hold_steps,
     lambda s: s.optimizer.hold_steps > 0),
    ("lr_decay_iters", lambda s: s.optimizer.decay_steps),
    ("lr_warmup_iters", lambda s: s.optimizer.warmup_steps),
    ("weight_decay", lambda s: s.optimizer.weight_decay),
    ("adam_beta1", lambda s: s.optimizer.beta1),
    ("adam_beta2", lambda s: s.optimizer.beta2),
    ("adam_eps", lambda s: s.optimizer.epsilon),
    ("sgd_momentum", lambda s: s.optimizer.momentum, lambda s: s.optimizer.algorithm == "sgd"),
    ("clip_grad", lambda s: s.optimizer.clip_norm or 0.0),
    ("check_for_nan_in_loss_and_grad", lambda s: s.optimizer.on_non_finite == "abort", lambda s: not _is_dynamic(s)),
    # data and evaluation
    ("mock_data", lambda s: not _has_files(s)),
    ("data_path", lambda s: _blend(s.data.paths, s.data.weights) if s.data.split else None, _has_files),
    ("train_data_path", lambda s: None if s.data.split else _blend(s.data.paths, s.data.weights), _has_files),
    ("valid_data_path", lambda s: None if s.data.split else _blend(s.data.validation_paths), _has_files),
    ("test_data_path", lambda s: None if s.data.split else _blend(s.data.test_paths), _has_files),
    ("split", lambda s: s.data.split, _has_files),
    ("tokenizer_model", lambda s: s.data.tokenizer, lambda s: _has_files(s) and s.data.tokenizer != "byte"),
    ("data_cache_path", lambda s: s.data.index_dir, _has_files),
    ("reset_position_ids", lambda s: s.data.reset_positions, _has_files),
    ("reset_attention_mask", lambda s: s.data.reset_attention, _has_files),
    ("eod_mask_loss", lambda s: s.data.mask_document_ends, _has_files),
    ("eval_interval", lambda s: s.evaluation.interval_steps, lambda s: s.evaluation.interval_steps is not None),
    ("eval_iters", lambda s: s.evaluation.batches or 0,
     lambda s: s.evaluation.interval_steps is None or s.evaluation.batches is not None),
    ("full_validation", lambda s: s.evaluation.interval_steps is not None and s.evaluation.batches is None),
    # logs, memory, checkpoints
    ("log_interval", lambda s: s.logging.interval_steps),
    ("log_params_norm", lambda s: s.logging.parameter_norm),
    ("tensorboard_dir", lambda s: s.execution.engine_keys.get("--tensorboard-dir", "tensorboard")
     if s.logging.tensorboard else None),
    ("recompute_granularity", lambda s: {"none": None}.get(s.execution.remat, s.execution.remat)),
    ("recompute_method", lambda s: "uniform", lambda s: s.execution.remat == "full"),
    ("recompute_num_layers", lambda s: 1, lambda s: s.execution.remat == "full"),
    ("recompute_modules", lambda s: list(s.execution.remat_modules), lambda s: s.execution.remat == "selective"),
    ("attention_backend", lambda s: _ATTENTION.get(s.execution.attention, "auto")),
    ("profile", lambda s: s.execution.profile_from_step is not None),
    ("profile_step_start", lambda s: s.execution.profile_from_step,
     lambda s: s.execution.profile_from_step is not None),
    ("profile_step_end", lambda s: (s.execution.profile_from_step or 0) + s.execution.profile_steps,
     lambda s: s.execution.profile_from_step is not None),
    ("save", lambda s: s.checkpoint.directory if s.checkpoint.enabled else None),
    ("save_interval", lambda s: s.checkpoint.interval_steps,
     lambda s: s.checkpoint.enabled and s.checkpoint.interval_steps is not None),  # else it is beyond the end
    ("async_save", lambda s: s.checkpoint.asynchronous, lambda s: s.checkpoint.enabled),
    ("load", lambda s: s.checkpoint.directory if s.checkpoint.resume else s.checkpoint.resume_from),
    ("pretrained_checkpoint", lambda s: s.checkpoint.resume_from, lambda s: s.checkpoint.resume),
    ("exit_on_missing_checkpoint", lambda s: s.checkpoint.resume_required, lambda s: s.checkpoint.resume),
)  # fmt: skip


def wrong(spec: RunSpec, answer: Answer) -> dict[str, Any] | str:
    """The values that Megatron has and the run has not: name → (the run's, Megatron's); or why it was refused."""
    if isinstance(answer, str):
        return answer
    due = {name: value(spec) for name, value, *holds in ROWS if all(where(spec) for where in holds)}
    return {name: (value, answer[name]) for name, value in due.items() if not _same(value, answer[name])}


def _same(value: Any, found: Any) -> bool:
    is_number = isinstance(value, (int, float)) and isinstance(found, (int, float)) and not isinstance(value, bool)
    return found == pytest.approx(value, rel=1e-12) if is_number else bool(found == value)


# --- the commands -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Case:
    """A command, what it is read as, and what Megatron makes of it."""

    name: str
    words: Sequence[str]  # behind pretrain_gpt.py
    world: int
    variables: Mapping[str, str]
    meant: RunSpec


def runs() -> list[tuple[str, RunSpec]]:
    """All configurations that are shipped, and random ones."""
    found = [(f"{path.name} {' '.join(overrides)}", _load(path, *overrides)) for path, overrides in SHIPPED.items()]

    @settings(max_examples=DRAWN, database=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(spec=specs())
    def draw(spec: RunSpec) -> None:
        found.append((f"random run {len(found)}", spec))

    draw()
    return found


def meant_by(text: str) -> RunSpec:
    spec = TARGETS["megatron"].read(table_written.parse(text, ".sh")).spec
    assert spec is not None
    return spec


def converted(name: str, spec: RunSpec) -> Case:
    text = TARGETS["megatron"].write(spec).text
    words, variables = in_shell(text)
    meant = meant_by(text)
    return Case(name=name, words=words, world=meant.topology.num_devices, variables=variables, meant=meant)


def planned(name: str, given_spec: RunSpec) -> Case:
    """Of what Megatron can train, on NVIDIA's devices: on AMD's, ROCm's scripts make the arguments."""
    spec = converted(name, given_spec).meant
    spec = replace(spec, topology=replace(spec.topology, device="h100"))
    hosts = [f"host{rank}" for rank in range(spec.topology.num_nodes)]
    ground = Ground(hosts=hosts, placements=[Placement() for _ in hosts], run_dir=PurePosixPath("/run"),
                    coordinator="10.0.0.1:29500")  # fmt: skip
    command = megatron.commands(spec, ground).each[-1]
    launched = list(command.argv[command.argv.index("torchrun") :])
    place = launched.index(megatron.PROGRAM)
    (each,) = (int(word.partition("=")[2]) for word in launched[:place] if word.startswith("--nproc_per_node="))
    variables = {name: value for name, value in command.environment.items() if not isinstance(value, Secret)}
    return Case(name=f"plan of {name}", words=launched[place + 1 :], world=each * len(hosts), variables=variables,
                meant=meant_by(f"{shlex.join(launched)}\n"))  # fmt: skip


def test_megatron_takes_every_command_for_what_it_is_read_as() -> None:
    cases = [make(name, spec) for name, spec in runs() for make in (converted, planned)]
    answers = parsed([(case.words, case.world, case.variables) for case in cases])
    found = ((case, wrong(case.meant, answer)) for case, answer in zip(cases, answers, strict=True))
    bad = [f"{case.name}: {differences}\n{shlex.join(case.words)}" for case, differences in found if differences]
    assert bad == [], "\n\n".join(bad[:5])


def test_a_command_that_megatron_takes_for_something_else_would_be_noticed() -> None:
    (spec,) = (_load(path) for path in SHIPPED if path.name == "megatron-tiny.sh")
    case = converted("tiny", spec)
    more = (["--no-such-argument"], ["--lr", "fast"], ["--tensor-model-parallel-size", "3"],
            ["--seq-length", "64", "--lr", "0.125"])  # fmt: skip
    *refusals, other = parsed([([*case.words, *words], case.world, case.variables) for words in more])
    for refusal, why in zip(refusals, ("unrecognized arguments", "invalid float value", "divisible"), strict=True):
        assert why in str(wrong(case.meant, refusal))
    assert {"seq_length", "lr"} <= set(wrong(case.meant, other))
