"""NxDT files: every documented key accounted for, what a spec is made of, and the traps of the originals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings

from seatrial import dialects
from seatrial.check import lint
from seatrial.dialects import nxdt
from seatrial.dialects.convert import convert
from seatrial.dialects.megatron.write import command as megatron_command
from seatrial.dialects.nxdt.deviations import DEVIATIONS
from seatrial.dialects.nxdt.keys import ALIGNMENT, OLD_ALIGNMENT
from seatrial.dialects.nxdt.optimizer import OPTIMIZERS, SCHEDULES
from seatrial.dialects.spec_fields import schema
from seatrial.errors import InputError, Problem
from seatrial.spec import (
    Batch,
    Checkpoint,
    Data,
    Dropout,
    Evaluation,
    Execution,
    Initialization,
    MeshShape,
    Objective,
    Optimizer,
    Precision,
    Resolved,
    RopeScaling,
    RunSpec,
    Topology,
)
from seatrial.spec.presets import MODELS
from tests.helpers.seeds import ROOT
from tests.helpers.specs import assert_round_trip, specs
from tests.helpers.wrong_cases import Case, cases

CONFIGS = ROOT / "configs" / "nxdt"
MEGATRON, GPT, HF, SFT, DPO = (
    CONFIGS / f"{name}.yaml"
    for name in ("llama2-7b-megatron", "gpt-6.7b-megatron", "llama2-7b-hf", "llama3-8b-sft", "llama3-8b-dpo")
)

# A run with nothing to say about: written so that each test changes one thing.
PLAIN: dict[str, Any] = {
    "name": "small",
    "model_source": "megatron",
    "trainer": {"devices": 8, "max_steps": 100, "gradient_clip_val": 1.0, "limit_val_batches": 0},
    "exp_manager": {"create_tensorboard_logger": False},
    "distributed_strategy": {"tensor_model_parallel_size": 2},
    "data": {"micro_batch_size": 2, "global_batch_size": 16, "data_prefix": ["/data/x"]},
    "model": {
        "encoder_seq_length": 128, "num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 128,
        "num_attention_heads": 4, "vocab_size": 512, "activations_checkpoint_granularity": "full",
        "optim": {"name": "adamw", "lr": 0.001},
    },
    "precision": {"type": "mixed_precision"},
}  # fmt: skip


def load(path: Path, *overrides: str, action: str = "plan") -> Resolved:
    return dialects.load(path, overrides, action=action)


def spec_of(path: Path, *overrides: str) -> RunSpec:
    resolved = load(path, *overrides)
    assert [(p.path, p.why) for p in resolved.problems if p.severity == "error"] == []
    assert resolved.spec is not None
    return resolved.spec


def made(tmp_path: Path, *overrides: str, **sections: Any) -> Resolved:
    """PLAIN with keys of some sections added, and overrides."""
    data = {key: dict(value) if isinstance(value, dict) else value for key, value in PLAIN.items()}
    for name, given_ in sections.items():
        data[name] = {**data.get(name, {}), **given_} if isinstance(given_, dict) else given_
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(data))
    return load(path, *overrides)


def spec_made(tmp_path: Path, *overrides: str, **sections: Any) -> RunSpec:
    resolved = made(tmp_path, *overrides, **sections)
    assert [(p.path, p.why) for p in resolved.problems if p.severity == "error"] == []
    assert resolved.spec is not None
    return resolved.spec


def found(resolved: Resolved, code: str) -> list[Problem]:
    return [problem for problem in resolved.problems if problem.code == code]


# --- the table --------------------------------------------------------------------------------------------------------

# Every key that NxDT's documentation, its samples, its code or HyperPod's schema has, by section.
DOCUMENTED = {
    "": "name model_source seed compiler_flags compiler_cache_url aync_exec_max_inflight_requests "
    "bucket_size_collectives neuron_rt_exec_timeout neuron_experimental_compress_rg hydra defaults",
    "run": "name results_dir time_limit model_type compile",
    "trainer": "devices lnc num_nodes max_epochs max_steps log_every_n_steps val_check_interval "
    "check_val_every_n_epoch num_sanity_val_steps limit_val_batches limit_test_batches gradient_clip_val "
    "sequential_move_factor limit_train_batches min_epochs min_steps max_time fast_dev_run overfit_batches "
    "enable_progress_bar profiler detect_anomaly benchmark deterministic inference_mode "
    "reload_dataloaders_every_n_epochs precision logger enable_checkpointing plugins accelerator strategy "
    "default_root_dir barebones use_distributed_sampler accumulate_grad_batches gradient_clip_algorithm "
    "enable_model_summary",
    "exp_manager": "log_local_rank_0_only create_tensorboard_logger explicit_log_dir exp_dir name resume_if_exists "
    "resume_ignore_no_checkpoint create_checkpoint_callback log_parameter_norm log_gradient_norm "
    "enable_recovery_time_instrumentation save_xser load_xser save_bf16 async_checkpointing resume_from_checkpoint "
    "ckpt_ptl_version version use_datetime_version resume_past_end summary_writer_kwargs create_wandb_logger "
    "wandb_logger_kwargs create_mlflow_logger mlflow_logger_kwargs create_early_stopping_callback "
    "early_stopping_callback_params create_preemption_callback files_to_copy log_step_timing log_delta_step_timing "
    "step_timing_kwargs log_global_rank_0_only disable_validation_on_resume ema max_time_per_run seconds_to_sleep "
    "create_straggler_detection_callback create_fault_tolerance_callback log_tflops_per_sec_per_gpu",
    "exp_manager.checkpoint_callback_params": "monitor save_top_k mode save_last filename every_n_train_steps "
    "model_parallel_size use_master_weights_in_ckpt dirpath filepath prefix postfix every_n_epochs "
    "train_time_interval save_on_train_epoch_end save_nemo_on_train_end save_weights_only auto_insert_metric_name "
    "verbose async_save save_last_n_optim_states save_best_model always_save_nemo enable_version_counter",
    "distributed_strategy": "tensor_model_parallel_size pipeline_model_parallel_size "
    "virtual_pipeline_model_parallel_size context_parallel_size expert_model_parallel_size token_shuffle_group_size "
    "pipeline_model_parallel_split_rank zero1 sequence_parallel kv_replicator",
    "data": "micro_batch_size global_batch_size data_prefix index_mapping_dir data_impl splits_string seq_length "
    "skip_warmup num_workers dataloader_type reset_position_ids reset_attention_mask eod_mask_loss "
    "validation_drop_last pad_samples_to_global_batch_size no_seqlen_plus_one_input_tokens fine_tuning train_ds "
    "validation_ds test_ds use_sft_style_data_module packing train_dir val_dir test_dir dev_choose_samples "
    "dataset_name subset_name prompt_name",
    "data.tokenizer": "library type model vocab_file merge_file delimiter sentencepiece_legacy use_fast",
    "model": "model_config encoder_seq_length max_position_embeddings num_layers hidden_size qkv_linear fuse_qkv "
    "rope_theta transpose_nki_inputs pipeline_cuts use_cpu_initialization weight_init_only "
    "activations_checkpoint_granularity activations_checkpoint_recompute do_layer_norm_weight_decay save_logits "
    "ffn_hidden_size num_attention_heads num_kv_heads init_method_std use_scaled_init_method hidden_dropout "
    "attention_dropout ffn_dropout kv_channels apply_query_key_layer_scaling normalization layernorm_epsilon "
    "make_vocab_size_divisible_by persist_layer_norm share_embeddings_and_output_weights position_embedding_type "
    "rotary_percentage position_freq_base position_abf_factor positition_interpolation_factor sliding_window_size "
    "activation has_bias transformer_block_type fp32_residual_connection fp16_lm_cross_entropy "
    "activations_checkpoint_method activations_checkpoint_num_layers activations_checkpoint_layers_per_pipeline "
    "precision masked_softmax_fusion gradient_accumulation_fusion use_emha megatron_amp_o2 "
    "disable_layer_norm_checkpointing",
    "model.fusions": "softmax flash_attention ring_attention",
    "model.moe": "num_experts frequency dropout capacity_factor dropless routing_algorithm router_activation "
    "sinkhorn_iterations sinkhorn_tol top_k output_router_logits router_aux_loss_coef normalize_top_k_affinities "
    "glu_mlp",
    "model.optim": "name lr betas weight_decay eps capturable amsgrad momentum dampening nesterov rho lr_decay alpha "
    "centered etas step_sizes luc correct_bias scale_parameter relative_step",
    "model.optim.sched": "name warmup_steps warmup_ratio constant_steps constant_ratio hold_steps hold_ratio min_lr "
    "max_steps d_model decay_rate power cycle step_size gamma",
    "model_alignment_strategy.dpo": "kl_beta loss_type max_dpo_prompt_length max_prompt_length "
    "precompute_ref_log_probs truncation_mode",
    "data.alignment_strategy.dpo": "kl_beta loss_type max_dpo_prompt_length precompute_ref_log_probs truncation_mode",
    "model_alignment_strategy.sft": "packing",
    "data.alignment_strategy.sft": "packing",
    "model_alignment_strategy.orpo": "beta max_prompt_length truncation_mode",
    "model_alignment_strategy.peft": "lora_rank lora_alpha lora_dropout lora_bias lora_verbose target_modules "
    "load_lora_from_ckpt save_lora_base merge_lora save_lora_config_adapter merge_sharded_lora",
    "precision": "type master_weights fp32_grad_acc xla_use_bf16 xla_downcast_bf16 neuron_rt_stochastic_rounding_en "
    "parallel_layers_reduce_dtype fp32_grads_cc",
}


def test_every_documented_key_has_its_row() -> None:
    wanted = {f"{section}.{name}".lstrip(".") for section, names in DOCUMENTED.items() for name in names.split()}
    assert sorted(wanted - set(nxdt.KEYS)) == []


def test_every_row_goes_to_a_field_of_the_spec_or_says_why_not() -> None:
    fields = {known for known, _ in schema()}
    parts = {known[:at] for known in fields for at, character in enumerate(known) if character == "."}
    for name, key in nxdt.KEYS.items():
        assert bool(key.to) != bool(key.why), name
        assert key.disposition == "done" or key.why, name
        for path in filter(None, key.to.split(",")):
            assert path in fields | parts, (name, path)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_key_of_the_examples_has_its_row(path: Path) -> None:
    resolved = load(path)
    assert [p for p in resolved.problems if p.severity == "error"] == []
    assert len([p for p in resolved.problems if p.severity == "warning"]) <= 3, "nobody reads more than a few"


# --- what the spec is made of -----------------------------------------------------------------------------------------


def test_a_megatron_model() -> None:
    spec = spec_of(MEGATRON)
    assert spec.name == "megatron_llama"
    assert spec.model == replace(MODELS["llama2-7b"], name="custom", vocab_multiple=8)
    assert spec.topology == Topology(num_nodes=1, devices_per_node=32)
    assert spec.mesh == {"pipeline": 1, "data": 4, "fsdp": 1, "context": 1, "tensor": 8}
    assert spec.batch == Batch(sequence_length=4096, global_batch_size=1024, micro_batch_size=1)
    assert spec.accumulation_steps == 256
    assert (spec.steps, spec.epochs, spec.seed) == (20_000, None, 1234)
    assert (spec.parallelism.zero1, spec.parallelism.sequence_parallel) == (True, True)
    assert spec.precision == Precision()
    assert spec.initialization == Initialization(std=0.021, scaled=True)
    assert spec.dropout == Dropout()
    assert spec.optimizer == Optimizer(
        algorithm="adamw", learning_rate=3e-4, schedule="nemo_cosine", warmup_steps=2000, constant_steps=0,
        final_learning_rate_fraction=0.1, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1, decay_norms=False,
        clip_norm=1.0,
    )  # fmt: skip
    assert spec.data == Data(
        kind="megatron",
        paths=("/data/books/books_text_document",),
        split="980,10,10",
        tokenizer="/data/llama2-tokenizer",
    )
    assert spec.evaluation == Evaluation(interval_steps=20_000, batches=1)
    assert (spec.execution.remat, spec.execution.remat_modules) == ("selective", ("core_attn",))
    assert spec.execution.attention == "dot_product"
    assert spec.checkpoint == Checkpoint(enabled=True, asynchronous=False, interval_steps=200, keep=1, resume=True)


def test_a_gpt() -> None:
    model = spec_of(GPT).model
    assert (model.norm, model.activation, model.positions, model.biases) == ("layernorm", "gelu", "learned", True)
    assert (model.max_positions, model.tied_embeddings, model.vocab_size) == (2048, True, 50_257)
    assert (model.vocab_multiple, model.head_dim, model.num_kv_heads) == (128, 128, 32)
    assert spec_of(GPT).dropout == Dropout(hidden=0.1, attention=0.1)


def test_a_hugging_face_model_by_its_sizes() -> None:
    spec = spec_of(HF)
    assert spec.model == replace(MODELS["llama2-7b"], name="llama2-7b-changed", num_layers=4)
    assert spec.initialization == Initialization(std=0.02, scaled=False)
    assert spec.optimizer.algorithm == "adamw_fp32"
    assert spec.optimizer.epsilon == 1e-6
    assert (spec.optimizer.schedule, spec.optimizer.final_learning_rate_fraction) == ("linear", 0.0)
    assert spec.data == Data(kind="arrow", paths=("/data/wikicorpus_llama2_4k",))
    assert spec.evaluation == Evaluation()


def test_fine_tuning() -> None:
    spec = spec_of(SFT)
    assert spec.objective == Objective(kind="sft")
    assert spec.model == MODELS["llama3-8b"]
    assert spec.batch.sequence_length == 4096
    assert (spec.data.kind, spec.data.packing, spec.data.max_examples) == ("records", True, 2250)
    assert spec.checkpoint.resume_from == "/data/llama3-8b-pretrained"
    assert spec.checkpoint.weights_only
    assert spec_of(DPO).objective == Objective(kind="dpo", beta=0.01, max_prompt_length=2048, truncation="keep_start")


@pytest.mark.parametrize("place", [ALIGNMENT, OLD_ALIGNMENT])
@pytest.mark.parametrize("length", ["max_prompt_length", "max_dpo_prompt_length"])
def test_every_generation_of_the_alignment_block_is_the_same(place: str, length: str, tmp_path: Path) -> None:
    block: Any = {"dpo": {"kl_beta": 0.2, length: 77, "truncation_mode": "keep_end"}}
    for name in reversed(place.split(".")):
        block = {name: block}
    data = {"train_dir": "/x.jsonl", "tokenizer": {"type": "/t"}, **block.pop("data", {})}
    spec = spec_made(tmp_path, **block, data=data)
    assert spec.objective == Objective(kind="dpo", beta=0.2, max_prompt_length=77, truncation="keep_end")


def test_an_override_reaches_an_older_spelling() -> None:
    spec = spec_of(SFT, "model_alignment_strategy.sft.packing=false", "trainer.max_steps=50")
    assert (spec.data.packing, spec.steps) == (False, 50)


def test_orpo(tmp_path: Path) -> None:
    data = {"train_dir": "/x.jsonl", "tokenizer": {"type": "/t"}}
    spec = spec_made(tmp_path, model_alignment_strategy={"orpo": {"max_prompt_length": 9}}, data=data)
    assert spec.objective == Objective(kind="orpo", beta=0.01, max_prompt_length=9)  # NxDT's documented default


# dp = devices · nodes / (TP · PP · CP); tensor fills a node first, then context, data and pipeline.
@pytest.mark.parametrize(
    ("devices", "nodes", "tp", "pp", "cp", "within", "across"),
    [
        (32, 1, 8, 1, 1, MeshShape(tensor=8, data=4), MeshShape()),
        (32, 4, 32, 1, 1, MeshShape(tensor=32), MeshShape(data=4)),
        (32, 8, 8, 16, 1, MeshShape(tensor=8, data=2, pipeline=2), MeshShape(pipeline=8)),
        (32, 16, 32, 8, 2, MeshShape(tensor=32), MeshShape(context=2, pipeline=8)),
        (64, 1, 16, 1, 1, MeshShape(tensor=16, data=4), MeshShape()),
        (6, 2, 4, 1, 1, MeshShape(tensor=2, data=3), MeshShape(tensor=2)),
    ],
)  # fmt: skip
def test_meshes(
    devices: int, nodes: int, tp: int, pp: int, cp: int, within: MeshShape, across: MeshShape, tmp_path: Path
) -> None:
    spec = spec_made(
        tmp_path,
        trainer={"devices": devices, "num_nodes": nodes},
        distributed_strategy={
            "tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp, "context_parallel_size": cp,
        },
    )  # fmt: skip
    assert (spec.parallelism.within_node, spec.parallelism.across_nodes) == (within, across)
    assert spec.data_parallel_size == devices * nodes // (tp * pp * cp)


@pytest.mark.parametrize(
    ("trainer", "device"),
    [({}, "trainium2"), ({"lnc": 2}, "trainium2"), ({"lnc": 1}, "trainium2-lnc1"), ({"lnc": None}, "trainium2")],
)
def test_devices_are_logical_neuron_cores(trainer: dict[str, Any], device: str, tmp_path: Path) -> None:
    found_ = spec_made(tmp_path, "topology.device=trainium2", trainer=trainer).topology.device
    assert found_ == device
    assert spec_made(tmp_path, "topology.device=h100", trainer=trainer).topology.device == "h100-sxm"


@pytest.mark.parametrize(
    ("trainer", "expected"),
    [
        ({"limit_val_batches": 1, "val_check_interval": 7, "check_val_every_n_epoch": None},
         Evaluation(interval_steps=7, batches=1, initial_batches=2)),
        ({"limit_val_batches": 1.0, "val_check_interval": 7, "check_val_every_n_epoch": None},
         Evaluation(interval_steps=7, fraction=1.0, initial_batches=2)),
        ({"limit_val_batches": 0.5, "val_check_interval": 0.25, "num_sanity_val_steps": 0},
         Evaluation(interval_fraction=0.25, fraction=0.5)),
        ({"limit_val_batches": 1.0, "num_sanity_val_steps": -1}, Evaluation(interval_fraction=1.0, initial_batches=-1)),
        ({"limit_val_batches": 0, "val_check_interval": 7}, Evaluation()),
        ({"limit_val_batches": 0.0, "val_check_interval": 7}, Evaluation()),
    ],
)  # fmt: skip
def test_a_whole_number_counts_and_a_number_with_a_point_is_a_share(
    trainer: dict[str, Any], expected: Evaluation, tmp_path: Path
) -> None:
    assert spec_made(tmp_path, trainer=trainer).evaluation == expected


@pytest.mark.parametrize(
    ("trainer", "arrow", "megatron"),
    [
        # Lightning's default: within each epoch. Of .bin and .idx files NxDT's loader makes one epoch of the run.
        ({"val_check_interval": 7}, (7, None, 1), (7, None, None)),
        ({"val_check_interval": 7, "check_val_every_n_epoch": 1}, (7, None, 1), (7, None, None)),
        ({"val_check_interval": 7, "check_val_every_n_epoch": 3}, (7, None, 3), (7, None, 3)),
        ({"val_check_interval": 7, "check_val_every_n_epoch": None}, (7, None, None), (7, None, None)),
        ({"check_val_every_n_epoch": 3}, (None, 1.0, 3), (None, 1.0, 3)),
        ({"val_check_interval": 0.5, "check_val_every_n_epoch": 2}, (None, 0.5, 2), (None, 0.5, 2)),
        ({"val_check_interval": 0.5, "check_val_every_n_epoch": 1}, (None, 0.5, None), (None, 0.5, None)),
    ],
)
def test_validation_in_every_so_many_epochs(
    trainer: dict[str, Any], arrow: tuple[Any, ...], megatron: tuple[Any, ...], tmp_path: Path
) -> None:
    files = ("data.train_dir=/llama2", "data.val_dir=/y", "trainer.limit_val_batches=1")
    flat = [f"trainer.{name}={'null' if value is None else value}" for name, value in trainer.items()]
    for spec, expected in (
        (spec_of(HF, *files, "trainer.val_check_interval=1.0", "trainer.check_val_every_n_epoch=1", *flat), arrow),
        (spec_made(tmp_path, trainer={"limit_val_batches": 1, **trainer}), megatron),
    ):
        e = spec.evaluation
        assert (e.interval_steps, e.interval_fraction, e.every_epochs) == expected
        assert nxdt.write(spec).text.count("check_val_every_n_epoch:") == 1


def test_epochs_alone_are_the_length_of_a_run(tmp_path: Path) -> None:
    block = {"data": {"train_dir": "/x.jsonl", "tokenizer": {"type": "/t"}},
             "model_alignment_strategy": {"sft": {"packing": False}}}  # fmt: skip
    spec = spec_made(tmp_path, "trainer.max_epochs=3", "trainer.max_steps=-1", **block)
    assert (spec.steps, spec.epochs) == (None, 3)
    assert "max_steps: -1" in nxdt.write(spec).text
    cosine = ("model.optim.sched.name=CosineAnnealing",)
    resolved = made(tmp_path, "trainer.max_epochs=3", "trainer.max_steps=-1", *cosine, **block)
    assert any("the rate is constant" in problem.why for problem in found(resolved, "documented-otherwise"))
    share = made(tmp_path, "trainer.max_epochs=3", "trainer.max_steps=-1", *cosine,
                 "model.optim.sched.warmup_ratio=0.1", **block)  # fmt: skip
    assert [problem.path for problem in found(share, "steps-unknown")] == ["model.optim.sched.warmup_ratio"]


def test_a_run_without_any_length_is_an_error(tmp_path: Path) -> None:
    (problem,) = found(made(tmp_path, "trainer.max_steps=-1"), "steps-unknown")
    assert (problem.path, problem.fix) == ("trainer.max_steps", "give trainer.max_steps=… or trainer.max_epochs=…")
    resolved = made(tmp_path, "trainer.max_steps=-1", "trainer.max_epochs=2")  # of .bin and .idx files
    (problem,) = found(lint(resolved, action="check"), "steps-unknown")
    assert "samples of .bin and .idx files are counted out for a number of steps" in problem.why


@pytest.mark.parametrize("to", ["megatron", "maxtext", "cvs"])
def test_epochs_alone_are_refused_where_there_are_none(to: str, tmp_path: Path) -> None:
    spec = replace(spec_made(tmp_path), steps=None, epochs=2, data=Data(kind="records", paths=("/x",)))
    with pytest.raises(InputError, match="for a number of steps, and this run for 2 epochs"):
        convert(Resolved(spec=spec, origins={}, problems=()), to)


FULL, HALF = "float32", "bfloat16"


@pytest.mark.parametrize(
    ("given_", "formats", "rounding"),
    [
        ({"type": "mixed_precision"}, (HALF, FULL, FULL, FULL, FULL), False),
        ({"type": "mixed_precisionSR"}, (HALF, FULL, FULL, FULL, FULL), True),
        ({"type": "mixed_precision_SR"}, (HALF, FULL, FULL, FULL, FULL), True),
        ({"type": "bf16SR"}, (HALF, HALF, HALF, HALF, HALF), True),
        ({"type": "fp32"}, (FULL, FULL, FULL, FULL, FULL), False),
        ({"type": "autocast"}, (HALF, FULL, FULL, FULL, FULL), False),
        ({"type": "manual", "xla_downcast_bf16": "1"}, (HALF, HALF, HALF, HALF, HALF), False),
        ({"type": "manual", "xla_downcast_bf16": "1", "master_weights": True}, (HALF, FULL, FULL, HALF, HALF), False),
        ({"type": "manual", "xla_downcast_bf16": "1", "fp32_grad_acc": True, "neuron_rt_stochastic_rounding_en": "1"},
         (HALF, HALF, HALF, FULL, FULL), True),
        ({"type": "manual"}, (FULL, FULL, FULL, FULL, FULL), False),
    ],
)  # fmt: skip
def test_precision(given_: dict[str, Any], formats: tuple[str, ...], rounding: bool, tmp_path: Path) -> None:
    p = spec_made(tmp_path, precision=given_).precision
    assert (p.compute_dtype, p.params_dtype, p.optimizer_dtype, p.gradient_dtype, p.reduce_dtype) == formats
    assert p.stochastic_rounding is rounding


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ({"type": "mixed_precision"}, None),
        ({"type": "mixed_precision", "parallel_layers_reduce_dtype": "bf16"}, None),  # as the products are
        ({"type": "mixed_precision", "parallel_layers_reduce_dtype": "fp32"}, FULL),
        ({"type": "bf16SR", "parallel_layers_reduce_dtype": "fp32"}, FULL),
        ({"type": "fp32"}, None),
        ({"type": "fp32", "parallel_layers_reduce_dtype": "bf16"}, None),  # this type implies fp32
        ({"type": "manual"}, HALF),  # bf16 "in all other cases unless specified", though the products are float32
        ({"type": "manual", "parallel_layers_reduce_dtype": "fp32"}, None),
        ({"type": "manual", "xla_downcast_bf16": "1"}, None),
    ],
)
def test_sums_over_tensor_parallelism(given_: dict[str, Any], expected: str | None, tmp_path: Path) -> None:
    spec = spec_made(tmp_path, precision=given_)
    assert spec.precision.tensor_reduce_dtype == expected
    assert [note for note in nxdt.write(spec).notes if note.path.startswith("precision")] == []


# Defaults of torch.optim, NxD's AdamW and NeMo 2.1: epsilon, weight decay, betas.
@pytest.mark.parametrize(
    ("name", "algorithm", "epsilon", "decay", "betas"),
    [
        ("adamw", "adamw", 1e-8, 0.01, (0.9, 0.999)),
        ("adamw_fp32OptState", "adamw_fp32", 1e-6, 0.0, (0.9, 0.999)),
        ("adam", "adam", 1e-8, 0.0, (0.9, 0.999)),
        ("adadelta", "adadelta", 1e-6, 0.0, (0.9, 0.9)),
        ("adamax", "adamax", 1e-8, 0.0, (0.9, 0.999)),
        ("adagrad", "adagrad", 1e-10, 0.0, (0.9, 0.999)),
        ("rmsprop", "rmsprop", 1e-8, 0.0, (0.9, 0.99)),
        ("novograd", "novograd", 1e-8, 0.0, (0.95, 0.98)),
    ],
)
def test_optimizers_have_their_own_defaults(
    name: str, algorithm: str, epsilon: float, decay: float, betas: tuple[float, float], tmp_path: Path
) -> None:
    optimizer = spec_made(tmp_path, model={**PLAIN["model"], "optim": {"name": name, "lr": 0.1}}).optimizer
    assert (optimizer.algorithm, optimizer.schedule, optimizer.epsilon) == (algorithm, "constant", epsilon)
    assert (optimizer.weight_decay, (optimizer.beta1, optimizer.beta2)) == (decay, betas)


def scheduled(tmp_path: Path, lr: float = 0.001, **sched: Any) -> Resolved:
    return made(tmp_path, model={**PLAIN["model"], "optim": {"name": "adamw", "lr": lr, "sched": sched}})


@pytest.mark.parametrize(
    ("sched", "expected"),
    [
        ({"name": "LinearAnnealingWithWarmUp", "warmup_steps": 5}, ("linear", 5, 0, 0, 0.0, 1.0)),
        ({"name": "CosineAnnealing", "warmup_ratio": 0.25, "constant_ratio": 0.5, "min_lr": 1e-4},
         ("nemo_cosine", 25, 0, 50, 0.1, 1.0)),
        ({"name": "WarmupHoldPolicy", "warmup_steps": 5, "hold_steps": 9}, ("warmup_hold", 5, 9, 0, 0.0, 1.0)),
        ({"name": "SquareAnnealing"}, ("square", 0, 0, 0, 0.01, 1.0)),  # min_lr 1e-5 of its own
        ({"name": "NoamHoldAnnealing", "hold_ratio": 0.1}, ("noam_hold", 0, 10, 0, 0.0, 0.5)),
        ({"name": "PolynomialDecayAnnealing", "power": 2, "min_lr": 0.0005}, ("polynomial", 0, 0, 0, 0.5, 2.0)),
    ],
)  # fmt: skip
def test_schedules(sched: dict[str, Any], expected: tuple[Any, ...], tmp_path: Path) -> None:
    spec = scheduled(tmp_path, **sched).spec
    assert spec is not None
    o = spec.optimizer
    assert (
        o.schedule, o.warmup_steps, o.hold_steps, o.constant_steps, o.final_learning_rate_fraction, o.decay_power
    ) == expected  # fmt: skip


@pytest.mark.parametrize(
    ("sched", "interval", "factor"),
    [
        ({"name": "StepLR", "step_size": 30}, 30, 0.1),  # torch's gamma
        ({"name": "StepLR", "step_size": 30, "gamma": 0.5}, 30, 0.5),
        ({"name": "ExponentialLR", "gamma": 0.9}, None, 0.9),  # once an epoch
    ],
)
def test_a_rate_that_falls_in_steps(sched: dict[str, Any], interval: int | None, factor: float, tmp_path: Path) -> None:
    spec = scheduled(tmp_path, **sched).spec
    assert spec is not None
    o = spec.optimizer
    assert (o.schedule, o.decay_interval_steps, o.decay_factor) == ("step", interval, factor)
    assert (o.warmup_steps, o.final_learning_rate_fraction) == (0, 0.0)
    (again,) = (yaml.safe_load(nxdt.write(spec).text)["model"]["optim"]["sched"],)
    assert again == {"gamma": 0.1, **sched}


@pytest.mark.parametrize(
    ("sched", "code", "path"),
    [
        ({"name": "StepLR"}, "missing-key", "model.optim.sched.step_size"),
        ({"name": "ExponentialLR"}, "missing-key", "model.optim.sched.gamma"),
        ({"name": "ExponentialLR", "gamma": 0.9, "step_size": 3}, "unknown-argument", "model.optim.sched.step_size"),
        ({"name": "StepLR", "step_size": 3, "warmup_steps": 3}, "unknown-argument", "model.optim.sched.warmup_steps"),
        ({"name": "CosineAnnealing", "gamma": 0.9}, "unknown-argument", "model.optim.sched.gamma"),
        ({"gamma": 0.9}, "missing-key", "model.optim.sched.name"),
    ],
)
def test_torchs_schedules_take_torchs_arguments(sched: dict[str, Any], code: str, path: str, tmp_path: Path) -> None:
    assert [problem.path for problem in found(scheduled(tmp_path, **sched), code)] == [path]


def test_every_optimizer_and_schedule_of_the_documentation_is_known_or_refused() -> None:
    documented = "adamw adamw_fp32OptState sgd adam adadelta adamax adagrad rmsprop rprop novograd adafactor"
    assert set(documented.split()) == set(OPTIMIZERS)
    schedules = (
        "LinearAnnealingWithWarmUp CosineAnnealing WarmupPolicy WarmupHoldPolicy SquareAnnealing NoamAnnealing "
        "WarmupAnnealing StepLR ExponentialLR"
    )
    assert set(schedules.split()) <= set(SCHEDULES)


# --- the traps --------------------------------------------------------------------------------------------------------


def test_lengths_that_disagree_are_explained() -> None:
    (problem,) = found(load(SFT), "sequence-length-mismatch")
    assert problem.severity == "warning"
    assert "4096" in problem.why
    assert "8192" in problem.why
    assert found(load(SFT, "model.encoder_seq_length=4096"), "sequence-length-mismatch") == []


@pytest.mark.parametrize(
    ("path", "changes", "used", "said"),
    [
        (SFT, ("data.seq_length=1024",), 1024, "NxDT stops at the first batch; here 1024 tokens are trained on"),
        (DPO, ("data.seq_length=1024",), 1024, "as in NxDT, 1024 tokens are trained on"),  # it checks no pair's length
        (MEGATRON, ("data.seq_length=1024",), 1024, "as in NxDT, 1024 tokens are trained on"),
        (HF, ("+data.seq_length=1024",), 4096, "NxDT does not read data.seq_length for data of a hf model: 4096"),
    ],
)
def test_of_lengths_that_disagree_the_one_that_nxdt_uses_counts(
    path: Path, changes: tuple[str, ...], used: int, said: str
) -> None:
    resolved = load(path, *changes, "model.encoder_seq_length=4096")
    assert resolved.spec is not None
    assert resolved.spec.batch.sequence_length == used
    assert said in found(resolved, "sequence-length-mismatch")[0].why


def test_a_schedule_without_a_decay_is_explained() -> None:
    (problem,) = found(load(GPT), "no-decay")
    assert "drops from 0.00015 to 1e-05" in problem.why
    assert found(load(GPT, "sched.constant_steps=19249"), "no-decay") == []
    assert len(found(load(GPT, "sched.constant_steps=19250"), "no-decay")) == 1


def test_rprop_is_no_schedule() -> None:
    (problem,) = found(load(HF, "sched.name=rprop"), "unknown-schedule")
    assert problem.severity == "error"
    assert "rprop is an optimizer" in problem.why


def test_the_trainers_steps_are_the_schedules() -> None:
    resolved = load(HF, "model.optim.sched.max_steps=77")
    (problem,) = found(resolved, "contradiction")
    assert "trainer.max_steps decides" in problem.why
    assert load(HF, "trainer.max_steps=500").spec.optimizer.decay_steps is None  # type: ignore[union-attr]
    assert found(load(HF, "trainer.max_steps=500"), "contradiction") == []  # ${trainer.max_steps} moved with it


def test_what_the_sizes_come_to_is_said(tmp_path: Path) -> None:
    (problem,) = found(made(tmp_path), "derived")
    assert "data 4" in problem.why
    assert "4 replicas × 2 micro-batches of 2" in problem.why


def test_deviations_are_told_in_two_findings_at_most(tmp_path: Path) -> None:
    assert found(made(tmp_path), "documented-otherwise") == []
    problems = found(made(tmp_path, trainer={"gradient_clip_val": 0.5}), "documented-otherwise")
    assert [problem.severity for problem in problems] == ["warning"]
    assert "clipped at 1.0" in problems[0].why
    for path in CONFIGS.glob("*.yaml"):
        assert len(found(load(path), "documented-otherwise")) <= 2
    assert len(DEVIATIONS) >= 22


def test_equal_weights_are_weights_for_those_who_would_mix_by_size(tmp_path: Path) -> None:
    spec = spec_made(tmp_path, data={"data_prefix": [0.5, "/data/a", 0.5, "/data/b"]})
    assert (spec.data.paths, spec.data.weights) == (("/data/a", "/data/b"), (0.5, 0.5))
    arguments = next(words for words in megatron_command(spec)[2] if words[0] == "--train-data-path")
    assert arguments[1:] == ["0.5", "/data/a", "0.5", "/data/b"]


def test_none_is_null_and_yes_is_true(tmp_path: Path) -> None:
    spec = spec_made(tmp_path, exp_manager={"explicit_log_dir": "None", "log_gradient_norm": "yes"})
    assert (spec.log_dir, spec.logging.gradient_norm) == (None, True)


def test_values_that_are_still_open(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps({**PLAIN, "data": {**PLAIN["data"], "data_prefix": ["<changeme>"]}}))
    assert [p.severity for p in found(load(path), "placeholder")] == ["warning"]
    assert [p.severity for p in found(load(path, action="run"), "placeholder")] == ["error"]


@pytest.mark.parametrize(
    "case", [case for case in cases() if case.path.parent.name == "nxdt"], ids=lambda case: case.name
)
def test_every_wrong_configuration_is_wrong_whatever_the_trainer_can_do(case: Case) -> None:
    try:
        resolved = lint(dialects.load(case.path, case.arguments, action="run"), action="run")
    except InputError:
        return
    wrong = {problem.code for problem in resolved.problems if problem.severity == "error"}
    assert wrong - {"not-supported-yet"}


@pytest.mark.parametrize("path", [None, "None"])
def test_data_that_is_null_is_missing(path: str | None, tmp_path: Path) -> None:
    data = {"train_dir": path, "tokenizer": {"type": path}}
    resolved = made(tmp_path, data=data, model_alignment_strategy={"sft": {"packing": True}})
    assert [problem.path for problem in found(resolved, "missing-key")] == ["data.train_dir", "data.tokenizer.type"]


def test_nemo_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "nemo.yaml"
    path.write_text("trainer: {devices: 8}\nexp_manager: {}\nmodel: {micro_batch_size: 1}")
    with pytest.raises(InputError, match="NeMo"):
        load(path)


@pytest.mark.parametrize("window", [None, 64, 128])
def test_a_window_is_the_models(window: int | None, tmp_path: Path) -> None:
    """NxDT masks nothing in one that is not as long as the sequence: it computes something else there."""
    resolved = made(tmp_path, model={**PLAIN["model"], "sliding_window_size": window})
    assert resolved.spec is not None
    assert resolved.spec.model.sliding_window == window
    said = [p.why for p in found(resolved, "documented-otherwise") if p.severity == "warning"]
    assert any("tokens see those behind them" in why for why in said) == (window == 64)


@pytest.mark.parametrize(
    ("given", "context", "strategy"),
    [(None, 1, "all_gather"), (None, 2, "ring"), (True, 2, "ring"), (True, 1, "ring"), (False, 2, "all_gather")],
)
def test_parts_of_a_sequence_go_around(given: bool | None, context: int, strategy: str, tmp_path: Path) -> None:
    spec = spec_made(
        tmp_path,
        distributed_strategy={"context_parallel_size": context},
        model={**PLAIN["model"], **({} if given is None else {"fusions": {"ring_attention": given}})},
    )
    assert spec.parallelism.context_strategy == strategy


@pytest.mark.parametrize(
    ("given", "resume", "required"),
    [
        ({}, False, False),
        ({"resume_if_exists": True}, True, True),  # the documented default is to stop
        ({"resume_if_exists": True, "resume_ignore_no_checkpoint": False}, True, True),
        ({"resume_if_exists": True, "resume_ignore_no_checkpoint": True}, True, False),
        ({"resume_if_exists": False, "resume_ignore_no_checkpoint": False}, False, False),
    ],
)
def test_a_run_that_finds_no_checkpoint_stops_unless_told_otherwise(
    tmp_path: Path, given: dict[str, bool], resume: bool, required: bool
) -> None:
    checkpoint = spec_made(tmp_path, exp_manager=given).checkpoint
    assert (checkpoint.resume, checkpoint.resume_required) == (resume, required)


def test_all_training_batches_is_1_with_a_point(tmp_path: Path) -> None:
    spec_made(tmp_path, trainer={"limit_train_batches": 1.0})
    assert found(made(tmp_path, trainer={"limit_train_batches": 1}), "not-possible")


@pytest.mark.parametrize("path", [HF, MEGATRON], ids=["hf", "megatron"])
def test_of_a_mixture_of_experts_nothing_but_the_mixture_is_reported(path: Path) -> None:
    resolved = load(path, "name=mixtral", "model.num_layers=7", "+model.moe.num_experts=8", "+model.moe.top_k=2")
    assert resolved.spec is None
    (problem,) = [each for each in resolved.problems if each.severity == "error"]
    assert (problem.code, problem.path) == ("not-possible", "model.moe.num_experts")
    assert "no engine here starts NxDT itself" in problem.why


def test_nothing_is_recomputed_where_the_granularity_is_not_given(tmp_path: Path) -> None:
    model = {name: value for name, value in PLAIN["model"].items() if name != "activations_checkpoint_granularity"}
    data = {**PLAIN, "model": model}
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(data))
    assert spec_of(path).execution.remat == "none"


def test_minus_one_keeps_what_the_model_has() -> None:
    kept = ("model.num_layers=-1", "model.hidden_size=-1", "+model.rope_theta=-1")
    assert spec_of(HF, "model.model_config=llama3-8b", *kept).model == MODELS["llama3-8b"]


# --- keys of one's own, and what is not read --------------------------------------------------------------------------


def test_keys_of_ones_own_in_data_and_model_are_noted_once(tmp_path: Path) -> None:
    resolved = made(
        tmp_path, "data.shards=4", data={**PLAIN["data"], "my_filter": {"a": [1]}, "_note": 1},
        model={**PLAIN["model"], "router": {"kind": "${nothing}"}},
    )  # fmt: skip
    (problem,) = found(resolved, "own-key")
    assert (problem.severity, problem.path) == ("info", "data.my_filter")
    assert "3 keys of your own (my_filter, shards, router)" in problem.why
    assert resolved.spec is not None
    assert not [p for p in resolved.problems if p.severity == "error"]


@pytest.mark.parametrize(
    ("section", "key", "severity", "fix"),
    [
        ("data", "seq_lenght", "error", "did you mean data.seq_length?"),
        ("model", "num_layer", "error", "did you mean model.num_layers?"),
        ("model", "optims", "error", "did you mean model.optim?"),
        ("model", "max_steps", "warning", "did you mean trainer.max_steps or model.optim.sched.max_steps?"),
        ("trainer", "my_flag", "error", ""),  # goes to Lightning, which knows no other arguments
    ],
)
def test_a_key_that_looks_like_a_known_one_is_reported(
    section: str, key: str, severity: str, fix: str, tmp_path: Path
) -> None:
    (problem,) = found(made(tmp_path, **{section: {**PLAIN[section], key: 3}}), "unknown-key")
    assert (problem.severity, problem.path) == (severity, f"{section}.{key}")
    assert fix in problem.fix


def test_an_argument_of_an_optimizer_is_nobodys_own(tmp_path: Path) -> None:
    model = {**PLAIN["model"], "optim": {"name": "adamw", "lr": 0.1, "my_option": 3}}
    (problem,) = found(made(tmp_path, model=model), "unknown-key")
    assert (problem.severity, problem.path) == ("error", "model.optim.my_option")


@pytest.mark.parametrize("text", ["${base_results_dir}/${.name}", "${hydra:runtime.cwd}", "${oc.env:HOME}", "${data}"])
def test_an_interpolation_in_an_ignored_key_may_lead_nowhere(text: str, tmp_path: Path) -> None:
    resolved = made(tmp_path, run={"name": "x", "results_dir": text}, bucket_size_collectives=text)
    assert [p for p in resolved.problems if p.severity == "error"] == []
    assert resolved.spec is not None
    (problem,) = (p for p in found(resolved, "no-effect") if "HyperPod" in p.why)
    assert "results_dir" in problem.why


def test_an_interpolation_that_something_depends_on_may_not(tmp_path: Path) -> None:
    resolved = made(tmp_path, "seed=${run.name}", run={"name": "${nowhere}"})
    assert "unknown-reference" in [p.code for p in resolved.problems if p.severity == "error"]


# --- config.json and tokenizers that are here -------------------------------------------------------------------------

LLAMA = {
    "model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 5e5, "rms_norm_eps": 1e-5,
    "initializer_range": 0.01, "tie_word_embeddings": True, "attention_dropout": 0.1,
}  # fmt: skip


def of_config(tmp_path: Path, config: dict[str, Any], *overrides: str) -> Resolved:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return load(HF, f"model.model_config={tmp_path}", "model.num_layers=-1", "model.hidden_size=-1", *overrides)


def test_a_config_json_that_is_here(tmp_path: Path) -> None:
    spec = of_config(tmp_path, LLAMA).spec
    assert spec is not None
    model = spec.model
    assert (model.vocab_size, model.hidden_dim, model.ffn_dim, model.num_layers) == (1000, 64, 256, 3)
    assert (model.num_heads, model.num_kv_heads, model.head_dim, model.tied_embeddings) == (4, 2, 16, True)
    assert (model.rope_theta, model.norm_epsilon) == (5e5, 1e-5)
    assert spec.initialization == Initialization(std=0.01, scaled=False)
    assert spec.dropout == Dropout(attention=0.1)
    assert model.sliding_window is None
    narrow = of_config(tmp_path, LLAMA | {"sliding_window": 32}).spec
    assert narrow is not None
    assert narrow.model.sliding_window == 32
    changed = of_config(tmp_path, LLAMA, "model.num_layers=5", "model.hidden_size=128", "model.rope_theta=7").spec
    assert changed is not None
    assert (changed.model.num_layers, changed.model.hidden_dim, changed.model.head_dim) == (5, 128, 32)
    assert changed.model.rope_theta == 7.0


def test_a_config_json_of_transformers_5_has_its_rotary_positions_in_one_key(tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "rope_theta": 7e5, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = {name: value for name, value in LLAMA.items() if name != "rope_theta"}
    spec = of_config(tmp_path, config | {"rope_parameters": rope | {"original_max_position_embeddings": 4096}}).spec
    assert spec is not None
    assert spec.model.rope_theta == 7e5
    assert spec.model.rope_scaling == RopeScaling(factor=32.0, original_max_positions=4096)
    plain = of_config(tmp_path, config | {"rope_parameters": {"rope_type": "default", "rope_theta": 7e5}}).spec
    assert plain is not None
    assert (plain.model.rope_theta, plain.model.rope_scaling) == (7e5, None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rope_parameters": {"rope_type": "yarn"}}, "yarn"),
        ({"model_type": "mixtral"}, "mixtral"), ({"hidden_act": "gelu"}, "silu"), ({"vocab_size": "x"}, "vocab_size"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "yarn"), ({"hidden_size": 66}, "66"), ({"mlp_bias": True}, "biases"),
    ],
)  # fmt: skip
def test_a_config_json_of_another_model_is_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    (problem,) = found(of_config(tmp_path, LLAMA | change), "bad-model-config")
    assert said in problem.why


@pytest.mark.parametrize("preset", list(MODELS))
def test_every_preset_can_be_named(preset: str) -> None:
    spec = spec_of(HF, f"model.model_config={preset}", "model.num_layers=-1", "model.hidden_size=-1")
    assert spec.model == MODELS[preset]


def test_a_model_that_nothing_identifies_is_an_error() -> None:
    (problem,) = found(load(HF, "model.hidden_size=100"), "no-model-config")
    assert problem.severity == "error"
    assert "model.model_config=" in problem.fix


def test_a_tokenizer_that_is_here_gives_the_vocabulary(tmp_path: Path) -> None:
    tokens = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 2}, {"id": 0}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokens))
    resolved = load(MEGATRON, f"data.tokenizer.type={tmp_path}")
    assert resolved.spec is not None
    assert resolved.spec.model.vocab_size == 3
    assert found(resolved, "vocabulary-assumed") == []


# A Megatron model of the sizes of Llama 3 8B, as those of Mistral 7B are; each case changes what tells them apart.
_EIGHT_B = (
    "model.num_kv_heads=8", "model.ffn_hidden_size=14336", "data.tokenizer.type=/data/tokenizer",
)  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [("model.position_freq_base=500000",), ("model.position_freq_base=500000", "model.layernorm_epsilon=1e-6")],
)
def test_the_vocabulary_is_that_of_the_preset_with_this_architecture(changes: tuple[str, ...]) -> None:
    resolved = load(MEGATRON, *_EIGHT_B, *changes)
    assert resolved.spec is not None
    assert resolved.spec.model.vocab_size == 128_256
    (problem,) = found(resolved, "vocabulary-assumed")
    assert problem.why.endswith("that of llama3-8b")
    assert (problem.severity, problem.fix) == ("warning", "give the size: model.vocab_size=128256")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ((), "the sizes are those of llama3-8b, but not its rope_theta"),
        (("model.sliding_window_size=4096",), "but not its rope_theta, sliding_window"),
        (("model.position_freq_base=500000", "model.sliding_window_size=4096"), "but not its sliding_window"),
        (("model.position_freq_base=500000", "model.num_layers=4"), "no known model has these sizes"),
        (("model.position_freq_base=500000", "name=megatron_mistral"), "the file's name for the model is another's"),
    ],
)
def test_a_vocabulary_that_nothing_states_is_asked_for(changes: tuple[str, ...], why: str) -> None:
    resolved = load(MEGATRON, *_EIGHT_B, *changes)
    assert resolved.spec is None
    (problem,) = found(resolved, "vocabulary-unknown")
    assert (problem.severity, problem.path) == ("error", "model.vocab_size")
    assert problem.why.endswith(why)
    assert "model.vocab_size=…" in problem.fix
    assert problem.mark is not None  # the section that it belongs into
    assert spec_of(MEGATRON, *_EIGHT_B, *changes, "model.vocab_size=32000").model.vocab_size == 32_000


_NAMELESS = ("data.train_dir=/data/tokens", "model.num_layers=32")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (_NAMELESS, "could be llama2-7b, llama3-8b, llama3.1-8b"),  # of the training's length alone no model follows
        ((*_NAMELESS, "model.encoder_seq_length=8192"), "could be llama2-7b, llama3-8b, llama3.1-8b"),
        (("model.model_config=/models/mistral-7b",), "only Llama models are supported"),
        (("name=hf_mixtral",), "only Llama models are supported"),
    ],
)
def test_a_hugging_face_model_of_no_certain_vocabulary_is_asked_for(changes: tuple[str, ...], said: str) -> None:
    (problem,) = found(load(HF, *changes), "no-model-config")
    assert problem.severity == "error"
    assert said in problem.why


@pytest.mark.parametrize(
    ("changes", "model"),
    [
        (("data.train_dir=/data/llama3_8k", "model.encoder_seq_length=8192"), "llama3-8b"),
        (("model.vocab_size=32000",), "llama2-7b"),
        (("model.rope_theta=500000", "model.encoder_seq_length=8192"), "llama3-8b"),
    ],
)
def test_what_the_file_says_of_a_hugging_face_models_vocabulary_tells_which_it_is(
    changes: tuple[str, ...], model: str
) -> None:
    assert spec_of(HF, *_NAMELESS, *changes).model == MODELS[model]


def test_of_presets_of_one_size_the_vocabulary_is_that_of_the_one_that_fits() -> None:
    sizes = ("num_layers=80", "hidden_size=8192", "num_attention_heads=64", "num_kv_heads=8", "ffn_hidden_size=28672")
    given = [*(f"model.{size}" for size in sizes), "data.tokenizer.type=/data/tokenizer"]
    assert spec_of(MEGATRON, *given).model.vocab_size == 32_000
    assert spec_of(MEGATRON, *given, "model.position_freq_base=500000").model.vocab_size == 128_256


@pytest.mark.parametrize(
    ("tokenizer", "size"),
    [("/data/llama3_tokenizer", 128_256), ("/data/Llama-2-7b-hf", 32_000), ("GPT2BPETokenizer", 50_257),
     ("mistralai/Mistral-7B-v0.1", 32_000)],
)  # fmt: skip
def test_a_tokenizer_that_is_known_by_name_decides_before_the_sizes_do(tokenizer: str, size: int) -> None:
    resolved = load(MEGATRON, *_EIGHT_B, "model.sliding_window_size=4096", f"data.tokenizer.type={tokenizer}")
    assert resolved.spec is not None
    assert resolved.spec.model.vocab_size == size
    assert found(resolved, "vocabulary-assumed") == []


# --- the way back -----------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(specs())
def test_what_is_written_reads_back(spec: RunSpec) -> None:
    written = assert_round_trip(nxdt.write, nxdt.read, spec)
    assert isinstance(yaml.safe_load(written.text), dict)  # what NxDT itself reads it with


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_examples_are_written_without_loss(path: Path) -> None:
    """But for the name of a model, which only presets have."""
    notes = {note.path for note in nxdt.write(spec_of(path)).notes}
    assert notes <= {"model.name"}


# What NxDT reads as attributes, so that it does not start without: of every file, and of Megatron's data and models.
ATTRIBUTES = (
    "aync_exec_max_inflight_requests", "bucket_size_collectives", "compiler_cache_url", "compiler_flags",
    "neuron_experimental_compress_rg", "neuron_rt_exec_timeout", "model.fusions.flash_attention",
    "model.max_position_embeddings", "exp_manager.resume_from_checkpoint",
)  # fmt: skip
OF_MEGATRON = (
    "data.data_impl", "data.dataloader_type", "data.num_workers", "data.splits_string", "data.seq_length",
    "data.tokenizer.library", "data.tokenizer.type", "data.tokenizer.model", "data.tokenizer.vocab_file",
    "data.tokenizer.merge_file", "model.ffn_hidden_size", "model.num_attention_heads",
)  # fmt: skip


def converted(path: Path, *overrides: str) -> dict[str, Any]:
    text = convert(load(path, *overrides, action="convert"), "nxdt").text
    return _flat(yaml.safe_load(text))


def _flat(tree: dict[str, Any], above: str = "") -> dict[str, Any]:
    return {
        name: leaf
        for key, value in tree.items()
        for name, leaf in (
            _flat(value, f"{above}{key}.") if isinstance(value, dict) and value else {f"{above}{key}": value}
        ).items()
    }


def test_everything_that_nxdt_does_not_start_without_is_written() -> None:
    spec = replace(spec_of(MEGATRON), execution=Execution())
    text = yaml.safe_load(nxdt.write(spec).text)
    assert [name for name in (*ATTRIBUTES, *OF_MEGATRON) if name not in _flat(text)] == []
    text = yaml.safe_load(nxdt.write(replace(spec_of(HF), execution=Execution())).text)
    assert [name for name in ATTRIBUTES if name not in _flat(text)] == []


@pytest.mark.parametrize("path", [MEGATRON, HF, SFT, GPT, DPO], ids=lambda path: path.stem)
def test_a_file_that_is_written_again_keeps_what_has_no_effect_here(path: Path) -> None:
    before, after = _flat(yaml.safe_load(path.read_text())), converted(path)
    for name, key in nxdt.KEYS.items():
        if name in before and key.disposition in ("ignored", "equivalent") and key.effective is None:
            assert name in after, name
            assert "${" in str(before[name]) or after[name] == before[name]
    assert after.get("model.model_config") == before.get("model.model_config")


def test_a_file_that_is_written_again_keeps_keys_of_ones_own_and_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    own = {"data": {**PLAIN["data"], "my_filter": {"kind": "${nowhere}", "api_token": "s3cr3t-value"}}}
    extra = {"run": {"results_dir": "${base}/${.name}"}, "compiler_cache_url": "s3://bucket/cache"}
    flags = {"compiler_flags": "--opt '\\${x}'", "exp_manager": {"wandb_logger_kwargs": {"api_key": "s3cr3t-value"}}}
    path.write_text(json.dumps({**PLAIN, **own, **extra, **flags}))
    after = converted(path)
    assert after["data.my_filter.kind"] == "${nowhere}"
    assert after["run.results_dir"] == "${base}/${.name}"
    assert after["compiler_cache_url"] == "s3://bucket/cache"
    assert after["compiler_flags"] == "--opt '\\${x}'"
    assert "s3cr3t-value" not in str(after)
