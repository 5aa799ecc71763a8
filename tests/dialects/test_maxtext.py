"""MaxText: what its commands, files and variables come to, by its own arithmetic and defaults."""

from __future__ import annotations

import json
import math
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial import source
from seatrial.check import lint
from seatrial.dialects import load, maxtext
from seatrial.dialects.maxtext.keys import DEFAULTS, KEYS
from seatrial.dialects.maxtext.values import NAMED
from seatrial.dialects.maxtext.without_effect import IN_TABLE
from seatrial.dialects.table.entries import Request
from seatrial.dialects.table.overrides import Override
from seatrial.spec import AXES, Resolved, RopeScaling, RunSpec, flatten
from seatrial.spec.presets import MODELS
from tests.helpers.specs import without_engine_keys

EXAMPLES = sorted((Path(__file__).parents[2] / "configs" / "maxtext").iterdir())
TRAIN = "python3 MaxText/train.py MaxText/configs/base.yml"


def request(document: source.Document, *overrides: str) -> Request:
    given = [Override(key=word.partition("=")[0], text=word.partition("=")[2]) for word in overrides]
    return Request(document=document, overrides=given, action="run", user="me", home=Path("/home/me"))


def read_words(*words: str) -> Resolved:
    return maxtext.read(request(source.of_words(words, file="command line")))


def read_yaml(text: str, *overrides: str) -> Resolved:
    return maxtext.read(request(source.parse(text, file="run.yml", is_json=False), *overrides))


def read_shell(text: str, *overrides: str) -> Resolved:
    return maxtext.read(request(source.parse_shell(text, file="run.sh"), *overrides))


def sound(resolved: Resolved) -> RunSpec:
    assert [p for p in resolved.problems if p.severity == "error"] == []
    assert resolved.spec is not None
    return resolved.spec


def codes(resolved: Resolved, severity: str = "error") -> dict[str, str]:
    return {problem.path: problem.code for problem in resolved.problems if problem.severity == severity}


# --- defaults, and every key ------------------------------------------------------------------------------------------


def test_what_is_not_said_is_maxtexts_default() -> None:
    resolved = read_words("base.yml")
    spec = sound(resolved)
    assert (spec.steps, spec.batch.sequence_length, spec.batch.micro_batch_size) == (150_001, 2048, 12)
    model = spec.model
    assert (model.hidden_dim, model.num_layers, model.num_heads, model.num_kv_heads) == (2048, 16, 16, 16)
    assert (model.ffn_dim, model.head_dim, model.vocab_size, model.norm_epsilon) == (7168, 128, 32_000, 1e-5)
    optimizer = spec.optimizer
    assert (optimizer.learning_rate, optimizer.beta1, optimizer.beta2, optimizer.epsilon) == (3e-5, 0.9, 0.95, 1e-8)
    assert (optimizer.warmup_steps, optimizer.final_learning_rate_fraction, optimizer.clip_norm) == (15_000, 0.1, 1.0)
    assert (optimizer.schedule, optimizer.weight_decay, optimizer.decay_norms) == ("maxtext_cosine", 0.1, True)
    assert (spec.precision.compute_dtype, spec.precision.params_dtype) == ("bfloat16", "float32")
    assert (spec.execution.remat, spec.execution.scan_layers, spec.data.kind) == ("full", True, "synthetic")
    assert (spec.checkpoint.enabled, spec.checkpoint.interval_steps, spec.checkpoint.keep) == (True, 10_000, None)
    assert spec.parallelism.within_node.fsdp == -1
    assert spec.parallelism.across_nodes.data == -1
    for path in ("steps", "batch.global_batch_size", "optimizer.warmup_steps", "model.hidden_dim", "data.kind"):
        assert "MaxText's default" in resolved.origin(path).note, path


def test_the_defaults_said_in_full_change_nothing() -> None:
    lines = [f"{name}: {_yaml(default)}" for name, default in _written_defaults().items()]
    spec, plain = sound(read_yaml("\n".join(lines))), sound(read_words("base.yml"))
    assert flatten(without_engine_keys(spec)) == flatten(plain)


def _written_defaults() -> dict[str, Any]:
    """The default of every key, as base.yml writes it."""
    as_written = {"attention": "autoselected", "mlp_activations": ["silu", "linear"]}
    minus_one = ("learning_rate_schedule_steps", "eval_interval", "eval_steps", "num_pipeline_repeats",
                 "compile_topology_num_slices")  # fmt: skip
    given = {name: as_written.get(name, default) for name, default in DEFAULTS.items() if "." not in name}
    given |= dict.fromkeys(minus_one, -1)
    rest = {name: key.quiet[0] for name, key in KEYS.items() if key.quiet and name not in given and "." not in name}
    return given | rest


def _yaml(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def test_every_further_key_is_known_and_quiet_at_its_default() -> None:
    lines = [f"{name}: {_yaml(key.quiet[0])}" for name, key in IN_TABLE.items() if key.quiet and "." not in name]
    assert len(lines) > 500
    resolved = read_yaml("\n".join(["base_config: base.yml", *lines]))
    assert {problem.path for problem in resolved.problems} & IN_TABLE.keys() == set()


def test_flags_that_are_added_to_those_of_the_shell_are_read(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    flags = 'export XLA_FLAGS="$XLA_FLAGS --xla_gpu_enable_latency_hiding_scheduler=true"'
    path.write_text(f"{flags}\npython3 -m MaxText.train base.yml model_name=llama2-7b dataset_type=synthetic\n")
    resolved = load(path, [], action="plan")
    assert resolved.spec is not None
    assert resolved.spec.execution.xla_flags == {"xla_gpu_enable_latency_hiding_scheduler": "true"}


def test_every_further_key_is_worth_a_word_at_another_value() -> None:
    heard = {name: key for name, key in IN_TABLE.items() if key.disposition == "ignored" and "." not in name}
    lines = [f"{name}: {_yaml(_another(key.quiet[0] if key.quiet else None))}" for name, key in heard.items()]
    resolved = read_yaml("\n".join(["base_config: base.yml", *lines]))
    assert codes(resolved) == {}
    assert {name for name in heard if codes(resolved, "info").get(name) != "no-effect"} == set()


def _another(default: Any) -> Any:
    if isinstance(default, bool):
        return not default
    return default + 1 if isinstance(default, (int, float)) else ["a"] if isinstance(default, list) else "other"


def test_no_key_has_two_rows() -> None:
    lines = files("seatrial.dialects.maxtext").joinpath("without_effect.txt").read_text(encoding="utf-8").splitlines()
    names = [
        item.partition("=")[0].partition(":")[0] for line in lines if line.startswith(" ") for item in line.split()
    ]
    assert len(names) == len(set(names)) == len(IN_TABLE)
    assert all(KEYS[name] is IN_TABLE[name] for name in names)
    assert {key.disposition for key in IN_TABLE.values()} == {"equivalent", "ignored", "rejected"}


def test_every_key_says_what_becomes_of_it() -> None:
    for name, key in KEYS.items():
        assert bool(key.to) != bool(key.why), name
        assert (key.disposition == "done") == bool(key.to), name


def test_the_paths_of_the_table_are_the_specs() -> None:
    paths = set(flatten(sound(read_words("base.yml", "rope_type=llama3.1"))))
    for name, key in KEYS.items():
        for path in filter(None, (part.strip() for part in key.to.split(","))):
            assert path in paths or path.startswith("expectations.") or path == "model.rope_scaling", (name, path)


# --- examples and commands as they are met ----------------------------------------------------------------------------


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_have_no_errors(path: Path) -> None:
    resolved = lint(load(path, (), action="run"), action="run")
    spec = sound(resolved)
    assert spec.dialect == "maxtext"
    assert "unknown-key" not in {problem.code for problem in resolved.problems}


COMMANDS = {
    "quick": f"{TRAIN} hardware=gpu run_name=$YOUR_JOB_NAME",
    "dot product": f"""{TRAIN} model_name=llama2-7b per_device_batch_size=2 max_target_length=4096 scan_layers=true \\
        steps=15 remat_policy=minimal use_iota_embed=true logits_dot_in_fp32=false enable_checkpointing=false \\
        base_output_directory=local_train dataset_path=local dataset_type=synthetic attention=dot_product \\
        hardware=gpu run_name=${{YOUR_JOB_NAME}}""",
    "flash": f"""export NVTE_FUSED_ATTN=1
        {TRAIN} model_name=llama2-7b per_device_batch_size=2 max_target_length=4096 steps=15 hardware=gpu \\
        remat_policy=minimal_flash attention=cudnn_flash_te dataset_type=synthetic enable_checkpointing=false""",
    "flags": """XLA_FLAGS="--xla_gpu_enable_latency_hiding_scheduler=true
            --xla_gpu_simplify_all_fp_conversions
            --xla_gpu_graph_level=0
            --xla_gpu_all_reduce_combine_threshold_bytes=1073741824
            --xla_gpu_enable_command_buffer=''
            --xla_disable_hlo_passes=rematerialization" """,
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_of_nvidias_recipe_pass(name: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(COMMANDS[name], encoding="utf-8")
    resolved = lint(load(tmp_path / "run.sh", (), action="run"), action="run")
    spec = sound(resolved)
    if name == "flags":
        assert spec.execution.xla_flags["xla_gpu_simplify_all_fp_conversions"] == "true"
        assert spec.execution.xla_flags["xla_gpu_enable_command_buffer"] == ""
        assert len(spec.execution.xla_flags) == 6
    if name == "flash":
        assert spec.execution.environment == {"NVTE_FUSED_ATTN": "1"}
        assert codes(resolved, "warning")["attention"] == "maxtext-differs"
    if name == "dot product":
        assert spec.model == MODELS["llama2-7b"]
        assert spec.name == "llama2-7b"
        assert codes(resolved, "info")["run_name"] == "unknown-variable"


def test_the_recipe_on_eight_h100() -> None:
    told = ("topology.devices_per_node=8", "topology.device=h100", "expectations.step_seconds=0.721")
    spec = sound(read_shell(COMMANDS["dot product"], *told))
    assert (spec.topology.num_devices, spec.topology.device) == (8, "h100-sxm")
    assert (spec.batch.global_batch_size, spec.batch.micro_batch_size, spec.mesh["fsdp"]) == (16, 2, 8)
    assert [(bar.metric, bar.value) for bar in spec.expectations] == [("step_seconds", 0.721)]


@pytest.mark.parametrize(
    "words",
    [
        "python3 MaxText/train.py MaxText/configs/base.yml steps=5 run_name=x",
        "python3 -m MaxText.train src/MaxText/configs/base.yml steps=5 run_name=x",
        "python3 -m maxtext.trainers.pre_train.train src/maxtext/configs/base.yml --steps=5 --run_name=x",
        "python3 -m maxtext.trainers.pre_train.train steps=5 run_name=x",
        "base.yml run_name=x steps=5",
    ],
)
def test_every_way_to_start_it_means_the_same(words: str) -> None:
    spec = sound(read_words(*words.split()))
    assert (spec.name, spec.steps) == ("x", 5)


def test_the_file_that_cvs_writes_for_maxtext() -> None:
    text = """
    base_config: base.yml
    run_name: llama3.1-405b-job
    hardware: gpu
    steps: 30
    model_name: llama3.1-405b
    enable_checkpointing: False
    attention: cudnn_flash_te
    packing: True
    enable_goodput_recording: False
    monitor_goodput: False
    optimizer_memory_host_offload: False
    param_scan_axis: 1
    shardy: False
    dcn_data_parallelism: 1
    dcn_fsdp_parallelism: -1
    dcn_pipeline_parallelism: 1
    dcn_tensor_parallelism: 1
    dcn_sequence_parallelism: 1
    ici_fsdp_parallelism: 8
    ici_data_parallelism: 1
    ici_sequence_parallelism: 1
    ici_tensor_parallelism: 1
    ici_pipeline_parallelism: 1
    remat_policy: full
    use_iota_embed: True
    scan_layers: True
    dataset_type: synthetic
    hf_path: parquet
    async_checkpointing: False
    logits_dot_in_fp32: False
    megablox: False
    dtype: bfloat16
    quantization: ""
    quantize_kvcache: False
    kv_quant_axis: heads_and_dkv
    kv_quant_dtype: int8
    weight_dtype: bfloat16
    checkpoint_is_quantized: False
    per_device_batch_size: 5
    max_target_length: 8192
    skip_first_n_steps_for_profiler: 3
    """
    spec = sound(read_yaml(text, "topology.num_nodes=16", "topology.device=mi300x"))
    assert spec.model == MODELS["llama3.1-405b"]
    assert (spec.topology.num_devices, spec.mesh["fsdp"], spec.batch.global_batch_size) == (128, 128, 640)
    assert spec.precision.optimizer_dtype == "bfloat16"


# --- arithmetic -------------------------------------------------------------------------------------------------------


@given(
    per_device=st.sampled_from((0.25, 0.5, 1, 2, 3.0, 12)), tensor=st.sampled_from((1, 2, 4)),
    fsdp=st.sampled_from((1, 2, 4)), nodes=st.sampled_from((1, 2, 3)), accumulation=st.integers(1, 4),
)  # fmt: skip
def test_the_batch_is_what_maxtext_makes_of_it(
    per_device: float, tensor: int, fsdp: int, nodes: int, accumulation: int
) -> None:
    resolved = read_words(
        "base.yml", f"per_device_batch_size={per_device}", f"ici_tensor_parallelism={tensor}",
        f"ici_fsdp_parallelism={fsdp}", f"dcn_data_parallelism={nodes}", f"gradient_accumulation_steps={accumulation}",
    )  # fmt: skip
    devices, replicas = tensor * fsdp * nodes, fsdp * nodes
    micro = int(devices * per_device)  # MaxText: int(num_devices * per_device_batch_size)
    if micro != devices * per_device or micro == 0 or micro % replicas:
        assert codes(resolved)["per_device_batch_size"] == "batch-not-whole"
        return
    spec = sound(resolved)
    assert spec.topology.num_devices == devices
    assert spec.batch.global_batch_size == micro * accumulation
    assert spec.accumulation_steps == accumulation


@given(
    steps=st.integers(1, 5000), length=st.none() | st.integers(1, 5000), warmup=st.floats(0, 1),
    decay=st.floats(0, 1), style=st.sampled_from(("linear", "cosine")),
)  # fmt: skip
def test_the_schedule_is_cut_as_maxtext_cuts_it(
    steps: int, length: int | None, warmup: float, decay: float, style: str
) -> None:
    words = ["base.yml", f"steps={steps}", f"warmup_steps_fraction={warmup!r}", f"wsd_decay_steps_fraction={decay!r}"]
    words += ["lr_schedule_type=wsd", f"wsd_decay_style={style}", f"learning_rate_schedule_steps={length or -1}"]
    resolved = read_words(*words)
    whole = length or steps
    rising, falling = int(whole * warmup), int(whole * decay)
    if rising + falling > whole:
        assert codes(resolved)["wsd_decay_steps_fraction"] == "bad-value"
        return
    optimizer = sound(resolved).optimizer
    assert (optimizer.warmup_steps, optimizer.hold_steps) == (rising, whole - rising - falling)
    assert (optimizer.schedule, optimizer.decay_steps) == (f"maxtext_{style}", length)


def test_steps_of_minus_one_are_the_schedules() -> None:
    spec = sound(read_words("base.yml", "steps=-1", "learning_rate_schedule_steps=500"))
    assert (spec.steps, spec.optimizer.warmup_steps) == (500, 50)
    assert codes(read_words("base.yml", "steps=-1")) == {"steps": "bad-value"}


@given(exponent=st.integers(0, 9))
def test_the_global_scale_spreads_over_heads_width_and_depth(exponent: int) -> None:
    model = sound(read_words("base.yml", f"global_parameter_scale={2**exponent}")).model
    base, rest = divmod(int(math.log2(2**exponent)), 3)  # configs/types.py, get_individual_scales
    heads, width = base + int(rest > 0), base + int(rest > 1)
    assert (model.hidden_dim, model.num_layers) == (2048 * 2**width, 16 * 2**base)
    assert (model.num_heads, model.num_kv_heads, model.ffn_dim) == (16 * 2**heads, 16 * 2**heads, 7168 * 2**heads)


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ("", 8),  # all 16 layers: two stages, one layer at a time
        ("num_layers_per_pipeline_stage=2", 4),
        ("num_pipeline_repeats=2 num_layers_per_pipeline_stage=4", 2),
    ],
)
def test_a_pipeline_goes_around_until_all_layers_are_passed(given_: str, expected: int) -> None:
    spec = sound(read_words("base.yml", "ici_pipeline_parallelism=2", "ici_fsdp_parallelism=1", *given_.split()))
    assert spec.parallelism.virtual_pipeline == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("attention_type=local_sliding sliding_window_size=1024", {"model.sliding_window": 1024}),
        ("attention_type=global sliding_window_size=1024", {}),
        ("context_parallel_strategy=ring", {"parallelism.context_strategy": "ring"}),
        ("context_parallel_strategy=ulysses", {}),
        ("context_parallel_strategy=usp", {"parallelism.context_strategy": "ring"}),
        ("abort_on_nan_loss=false abort_on_inf_loss=false", {"optimizer.on_non_finite": "continue"}),
        ("target_eval_loss=2.5", {"evaluation.target_loss": 2.5}),
        ("abort_on_nan_loss=false", {}),
        ("abort_on_inf_loss=false", {}),
    ],
)
def test_what_else_is_read_of_the_model_the_mesh_and_the_steps(words: str, expected: dict[str, Any]) -> None:
    plain, resolved = flatten(sound(read_words("base.yml"))), read_words("base.yml", *words.split())
    changed = {
        path: value for path, value in flatten(without_engine_keys(sound(resolved))).items() if plain[path] != value
    }
    assert changed == expected
    told = {"no-effect", "nearest-strategy", "maxtext-differs"}
    kinds = {problem.code for problem in resolved.problems}
    exact = (
        "context_parallel_strategy=ring", "abort_on_nan_loss=false abort_on_inf_loss=false", "target_eval_loss=2.5",
    )  # fmt: skip
    assert bool(kinds & told) == (words not in exact)


def test_a_window_needs_its_size() -> None:
    assert codes(read_words("base.yml", "attention_type=local_sliding"))["attention_type"] == "refused-by-maxtext"


def test_tensor_sequence_is_tensor_with_sequence_parallelism() -> None:
    spec = sound(read_words("base.yml", "ici_tensor_sequence_parallelism=4", "ici_fsdp_parallelism=2"))
    assert (spec.parallelism.within_node.tensor, spec.parallelism.sequence_parallel) == (4, True)
    both = read_words("base.yml", "ici_tensor_sequence_parallelism=4", "ici_tensor_parallelism=2")
    assert codes(both)["ici_tensor_parallelism"] == "not-supported"


@pytest.mark.parametrize(
    ("words", "nodes", "each", "device"),
    [
        ("ici_fsdp_parallelism=8 dcn_data_parallelism=4", 4, 8, None),
        ("ici_fsdp_parallelism=4 ici_tensor_parallelism=2", 1, 8, None),
        ("compile_topology=v5e-256 compile_topology_num_slices=2", 2, 256, "tpu-v5e"),
        ("compile_topology=v5p-128", 1, 64, "tpu-v5p"),
        ("compile_topology=a3 compile_topology_num_slices=16", 16, 8, "h100-sxm"),
        ("topology.num_nodes=2 topology.devices_per_node=8 topology.device=h100", 2, 8, "h100-sxm"),
        ("", 1, 1, None),
    ],
)
def test_the_devices_follow_from_the_mesh_or_are_told(words: str, nodes: int, each: int, device: str | None) -> None:
    topology = sound(read_words("base.yml", *words.split())).topology
    assert (topology.num_nodes, topology.devices_per_node, topology.device) == (nodes, each, device)


# --- where things are said --------------------------------------------------------------------------------------------


def test_later_places_go_before_earlier_ones(tmp_path: Path) -> None:
    (tmp_path / "team.yml").write_text("base_config: base.yml\nsteps: 1\nmax_target_length: 128\nadam_b1: 0.8\n")
    (tmp_path / "run.yml").write_text("base_config: team.yml\nsteps: 2\nmax_target_length: 256\n")
    (tmp_path / "run.sh").write_text(
        "export M_LEARNING_RATE=1e-3\npython3 -m maxtext.trainers.pre_train.train run.yml steps=3 dtype=float32\n"
    )
    spec = sound(maxtext.read(request(source.read(tmp_path / "run.sh"), "dtype=bfloat16")))
    assert (spec.steps, spec.batch.sequence_length, spec.optimizer.beta1) == (3, 256, 0.8)
    assert (spec.optimizer.learning_rate, spec.precision.compute_dtype) == (1e-3, "bfloat16")


def test_a_base_file_that_is_not_here_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "run.yml").write_text("base_config: gpu/llama2_7b.yml\nsteps: 2\n")
    assert codes(maxtext.read(request(source.read(tmp_path / "run.yml")))) == {"base_config": "missing-base"}


def test_a_base_file_is_found_from_the_folder_of_base_yml(tmp_path: Path) -> None:
    for name, text in (
        ("configs/base.yml", "steps: 7\n"),
        ("configs/gpu/llama2_7b.yml", "base_config: base.yml\nmodel_name: llama2-7b\n"),
        ("configs/gpu/big/run.yml", "base_config: gpu/llama2_7b.yml\nper_device_batch_size: 1\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    spec = sound(maxtext.read(request(source.read(tmp_path / "configs/gpu/big/run.yml"))))
    assert (spec.steps, spec.model.name) == (7, "llama2-7b")


def test_the_program_is_not_the_one_that_starts_it_on_each_host(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("python runner.py --on=all python3 -u -m MaxText.train base.yml steps=3\n")
    assert sound(maxtext.read(request(source.read(tmp_path / "run.sh")))).steps == 3


def test_files_that_read_each_other_end_in_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("base_config: b.yml\nsteps: 2\n")
    (tmp_path / "b.yml").write_text("base_config: a.yml\n")
    assert codes(maxtext.read(request(source.read(tmp_path / "a.yml")))) == {"base_config": "endless-base"}


def test_a_key_in_a_variable_and_on_the_command_line_is_refused_as_maxtext_refuses_it() -> None:
    assert codes(read_shell(f"export M_STEPS=3\n{TRAIN} steps=4")) == {"steps": "set-twice"}


def test_a_named_model_decides_over_a_file_and_refuses_the_command_line() -> None:
    text = "base_config: base.yml\nmodel_name: llama2-7b\nbase_emb_dim: 8192\n"
    resolved = read_yaml(text)
    assert sound(resolved).model == MODELS["llama2-7b"]
    assert codes(resolved, "warning") == {"base_emb_dim": "architecture-contradicts-name"}
    assert codes(read_words("base.yml", "model_name=llama2-7b", "base_emb_dim=8192")) == {
        "base_emb_dim": "contradicts-model"
    }
    allowed = sound(read_words("base.yml", "model_name=llama2-7b", "base_emb_dim=8192", "override_model_config=true"))
    assert (allowed.model.hidden_dim, allowed.model.name) == (8192, "llama2-7b-changed")
    assert sound(read_words("base.yml", "model_name=llama2-7b", "rope_max_timescale=500000")).model.rope_theta == 5e5


@pytest.mark.parametrize("name", NAMED)
def test_named_models_are_the_presets(name: str) -> None:
    assert sound(read_words("base.yml", f"model_name={name}")).model == MODELS[name]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("mixtral-8x7b", "not-supported"), ("gemma2-9b", "not-supported"), ("qwen3-8b", "not-supported"),
        ("deepseek3-671b", "not-supported"), ("llama4-17b-16e", "not-supported"), ("gpt-oss-20b", "not-supported"),
        ("llama3.2-1b", "unknown-model"), ("llama-7b", "unknown-model"), ("llama2-7B", "unknown-model"),
    ],
)  # fmt: skip
def test_other_models_are_refused_by_name(name: str, code: str) -> None:
    assert codes(read_words("base.yml", f"model_name={name}")) == {"model_name": code}


def test_instruct_is_the_same_architecture_and_rope_type_stretches_positions() -> None:
    assert sound(read_words("base.yml", "model_name=llama3.1-8b-Instruct")).model == MODELS["llama3.1-8b"]
    assert sound(read_words("base.yml", "rope_type=llama3.1")).model.rope_scaling == RopeScaling()


def test_secrets_go_nowhere() -> None:
    secret = "hf_" + "abcdefghij"
    resolved = read_shell(f"export HF_TOKEN={secret} WANDB_API_KEY={secret}\n{TRAIN} hf_access_token={secret}")
    spec = sound(resolved)
    assert secret not in repr(spec)
    assert secret not in repr(resolved.origins)
    assert secret not in " ".join(f"{p.path} {p.why} {p.fix}" for p in resolved.problems)
    assert {path for path, code in codes(resolved, "warning").items() if code == "secret"} == {
        "HF_TOKEN", "WANDB_API_KEY", "hf_access_token"
    }  # fmt: skip


def test_variables_go_where_they_mean_something() -> None:
    text = f"""export JAX_COORDINATOR_IP=10.0.0.1 JAX_COORDINATOR_PORT=12345 NNODES=2 NODE_RANK=0 NCCL_DEBUG=INFO
    export JAX_DISTRIBUTED_HEARTBEAT_TIMEOUT_SECONDS=900
    {TRAIN} ici_fsdp_parallelism=8"""
    spec = sound(read_shell(text))
    assert spec.topology.num_nodes == 2
    assert spec.mesh["data"] == 2
    distributed = spec.distributed
    assert (distributed.coordinator_host, distributed.coordinator_port) == ("10.0.0.1", 12345)
    assert distributed.heartbeat_timeout_seconds == 900
    assert spec.execution.environment == {"NCCL_DEBUG": "INFO"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("dataset_type=hf hf_path=allenai/c4 tokenizer_path=meta-llama/Llama-2-7b",
         {"kind": "huggingface", "dataset": "allenai/c4", "tokenizer": "meta-llama/Llama-2-7b", "packing": True}),
        ("dataset_type=hf hf_path=parquet hf_train_files=gs://x/*.parquet packing=false",
         {"paths": ("gs://x/*.parquet",), "packing": False}),
        ("dataset_type=grain grain_train_files=/d/a*.arecord,0.3;/d/b*.arecord,0.7",
         {"kind": "grain", "paths": ("/d/a*.arecord", "/d/b*.arecord"), "weights": (0.3, 0.7)}),
        ("dataset_type=grain grain_file_type=mmap grain_train_files=/d/text_document",
         {"kind": "megatron", "paths": ("/d/text_document",)}),
        ("dataset_type=tfds dataset_path=gs://bucket", {"kind": "tfds", "dataset": "c4/en:3.1.0",
                                                       "paths": ("gs://bucket",)}),
        ("dataset_type=c4_mlperf dataset_path=gs://bucket", {"kind": "c4_mlperf"}),
    ],
)  # fmt: skip
def test_data_sets_are_taken_from_their_pipelines_keys(words: str, expected: dict[str, Any]) -> None:
    data = sound(read_words("base.yml", *words.split())).data
    assert {name: getattr(data, name) for name in expected} == expected


def test_the_objective_follows_the_trainer_or_its_keys() -> None:
    sft = read_words("python3", "-m", "maxtext.trainers.post_train.sft.train_sft", "base.yml")
    assert sound(sft).objective.kind == "sft"
    words = ("use_dpo=true", "dpo.algo=orpo", "dpo.orpo_lambda=0.2", "dpo.max_prompt_length=512")
    objective = sound(read_words("base.yml", *words)).objective
    assert (objective.kind, objective.beta, objective.max_prompt_length) == ("orpo", 0.2, 512)
    nested = sound(read_yaml("base_config: base.yml\nuse_dpo: true\ndpo:\n  dpo_beta: 0.3\n")).objective
    assert (nested.kind, nested.beta) == ("dpo", 0.3)


def test_the_options_of_the_command_line_name_model_and_device(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"{TRAIN} ici_fsdp_parallelism=8\n", encoding="utf-8")
    spec = sound(load(tmp_path / "run.sh", (), action="run", model="llama3-8b", gpu="mi300x"))
    assert (spec.model, spec.topology.device) == (MODELS["llama3-8b"], "mi300x")


def test_the_mesh_has_all_axes_of_the_table() -> None:
    words = [f"{part}_{axis}_parallelism=1" for part in ("ici", "dcn") for axis in AXES]
    assert sound(read_words("base.yml", *words)).topology.num_devices == 1


def test_a_window_of_null_is_none_as_in_the_base_yml_of_forks(tmp_path: Path) -> None:
    path = tmp_path / "mine.yml"
    path.write_text("model_name: llama2-7b\nsteps: 5\nsliding_window_size: null\n")
    found = load(path, [], action="plan")
    assert found.spec is not None
    assert found.spec.model.sliding_window is None
