"""`seatrial plan --sweep`, and the profile that plan's times come from."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from seatrial import dialects
from seatrial.commands import device_profile
from seatrial.estimate import hardware, time_profile
from tests.helpers.command_line import seatrial

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "configs" / "native" / "recipe-llama2-70b-h100.yaml"


# Of its layout, little is that of the fastest one.
OTHERWISE = """
name: otherwise
model: llama3-8b
batch: {sequence_length: 8192, global_batch_size: 64, micro_batch_size: 1}
steps: 50
topology: {num_nodes: 1, devices_per_node: 8, device: h100-sxm}
parallelism:
  within_node: {pipeline: 2, tensor: 4}
  virtual_pipeline: 2
  stage_layers: [7, 9, 9, 7]
execution: {remat: custom, remat_kept: [query, up], remat_offloaded: [up]}
data: {kind: synthetic}
"""


def override(key: str, value: object) -> str:
    return f"{key}={value if isinstance(value, str) else json.dumps(value)}"


def test_layouts_are_ranked_and_check_accepts_them(tmp_path: Path) -> None:
    done = seatrial("plan", str(RECIPE), "--sweep", "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    ranked = found["ranked"]
    assert found["tried"] > 1000
    assert len(ranked) == 200
    times = [each["step_seconds"] for each in ranked]
    assert times == sorted(times)
    assert ranked[0]["why"] == "the fastest"
    assert all(each["why"] for each in ranked)
    assert all(each["memory_bytes"] <= each["process_memory_bytes"] for each in ranked)
    assert all(each["memory_bytes"] > each["process_memory_bytes"] for each in found["not_fitting"])
    # Of these, as a user would write them, `plan` says the same.
    for each in (ranked[0], ranked[57]):
        settings = [override(key, value) for key, value in each["settings"].items()]
        checked = seatrial("check", str(RECIPE), *settings, "--format", "json", cwd=tmp_path)
        assert checked.returncode == 0, checked.stdout
        planned = json.loads(seatrial("plan", str(RECIPE), *settings, "--format", "json", cwd=tmp_path).stdout)
        assert planned["expected"]["time"]["step_seconds"] == pytest.approx(each["step_seconds"])
        assert planned["expected"]["memory_bytes"] == pytest.approx(each["memory_bytes"])


@pytest.fixture(name="otherwise")
def write_otherwise(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(OTHERWISE, encoding="utf-8")
    return path


def test_the_overrides_undo_what_the_configuration_has(otherwise: Path, tmp_path: Path) -> None:
    path = otherwise
    (best, *_) = json.loads(seatrial("plan", str(path), "--sweep", "--format", "json", cwd=tmp_path).stdout)["ranked"]
    words = [override(key, value) for key, value in best["settings"].items()]
    checked = seatrial("check", str(path), *words, cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout
    planned = json.loads(seatrial("plan", str(path), *words, "--format", "json", cwd=tmp_path).stdout)
    assert planned["expected"]["time"]["step_seconds"] == pytest.approx(best["step_seconds"])
    assert planned["expected"]["memory_bytes"] == pytest.approx(best["memory_bytes"])
    spec = dialects.load(path, words, action="plan").spec
    assert spec is not None
    assert spec.mesh["tensor"] == 1
    assert (spec.parallelism.virtual_pipeline, spec.parallelism.stage_layers) == (1, ())
    assert (spec.execution.remat_kept, spec.execution.remat_offloaded) == ((), ())


@pytest.mark.parametrize(
    ("engine", "rows"),
    [("megatron", {"none", "selective", "full"}), ("maxtext", {"minimal_with_context", "save_qkv_proj", "full"})],
)
def test_layouts_are_such_as_the_engine_can_be_told(
    engine: str, rows: set[str], otherwise: Path, tmp_path: Path
) -> None:
    sweep = ("plan", str(otherwise), "--sweep", "--format", "json", "--engine", engine)
    ranked = json.loads(seatrial(*sweep, cwd=tmp_path).stdout)["ranked"]
    assert {each["settings"]["execution.remat"] for each in ranked} <= rows
    for row in {each["settings"]["execution.remat"]: each for each in reversed(ranked)}.values():  # the best of each
        words = [override(key, value) for key, value in row["settings"].items()]
        plan = ("plan", str(otherwise), *words, "--engine", engine, "--on", "slurm")
        assert "does not get execution.remat" not in seatrial(*plan, "--all", cwd=tmp_path).stdout
        planned = json.loads(seatrial(*plan, "--format", "json", cwd=tmp_path).stdout)
        assert planned["expected"]["memory_bytes"] == pytest.approx(row["memory_bytes"])


# Of Megatron's arguments, those that go only with a part of a layout.
TIED = """
CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nproc-per-node=8 --nnodes=1 pretrain_gpt.py \\
  --num-layers 16 --hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 32 --vocab-size 32000 \\
  --max-position-embeddings 4096 --position-embedding-type rope --normalization RMSNorm --swiglu \\
  --disable-bias-linear --untie-embeddings-and-output-weights --attention-dropout 0.0 --hidden-dropout 0.0 \\
  --tokenizer-type NullTokenizer \\
  --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --train-iters 100 --lr 1e-4 --bf16 --mock-data \\
  --eval-interval 100 --log-interval 10 --ckpt-format torch_dist \\
  --tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap \\
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \\
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
"""


def test_a_layout_is_ranked_without_the_arguments_that_it_does_not_go_with(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(TIED, encoding="utf-8")
    sweep = ("plan", "run.sh", "topology.device=h100-sxm", "--sweep", "--engine", "megatron")
    done = seatrial(*sweep, "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ranked = json.loads(done.stdout)["ranked"]
    for each in ranked:
        settings = each["settings"]
        keys = settings.get("execution.engine_keys", dict.fromkeys(("--ckpt-format", "--recompute-method"), ""))
        assert ("--ckpt-format" in keys) == ("fsdp" not in each["layout"]), each
        assert ("--recompute-method" in keys) == (settings["execution.remat"] != "selective"), each
    assert any("execution.engine_keys" not in each["settings"] for each in ranked)
    text = seatrial(*sweep, cwd=tmp_path).stdout
    assert "are ranked without --ckpt-format, which they do not go with" in text
    # The same run in native words, with the first of these layouts, starts.
    converted = seatrial("convert", "run.sh", "topology.device=h100-sxm", "--to", "native", cwd=tmp_path)
    (tmp_path / "run.yaml").write_text(converted.stdout, encoding="utf-8")
    words = shlex.split(text.rpartition("as overrides of a native configuration: ")[2])
    planned = seatrial("plan", "run.yaml", *words, "--engine", "megatron", "--on", "slurm", "--all", cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    command = planned.stdout.partition("pretrain_gpt.py")[2]
    assert "--ckpt-format fsdp_dtensor" in command  # that of its sharding, and not the script's


@pytest.mark.slow
def test_the_table_says_why_the_others_lose(otherwise: Path, tmp_path: Path) -> None:
    text = seatrial("plan", str(otherwise), "--sweep", cwd=tmp_path).stdout
    assert "# Layouts, the fastest first" in text
    assert "do not fit: the fastest of them" in text
    assert "ms" in text.partition("the fastest\n")[2]
    words = shlex.split(text.rpartition("as overrides of a native configuration: ")[2])
    checked = seatrial("check", str(otherwise), *words, cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout


def test_a_run_without_a_device_has_no_layouts_to_compare(tmp_path: Path) -> None:
    done = seatrial("plan", str(ROOT / "configs" / "native" / "tiny-text.json"), "--sweep", cwd=tmp_path)
    assert done.returncode == 2
    assert "topology.device" in done.stderr


def test_a_measured_profile_goes_before_the_published_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(device_profile.FOLDER, str(tmp_path))
    published = time_profile.published(hardware.DEVICES["h100-sxm"])
    assert published is not None
    own = replace(published, origin="measured on 2026-11-25", low=0.9, high=1.1)
    path = device_profile.keep(own)
    assert path.parent == tmp_path
    assert device_profile.measured("h100-sxm") == (own, ())
    planned = json.loads(seatrial("plan", str(RECIPE), "--format", "json", cwd=tmp_path).stdout)
    assert planned["expected"]["time"]["profile"] == "measured on 2026-11-25"
    assert "by measured on 2026-11-25" in seatrial("plan", str(RECIPE), "--all", cwd=tmp_path).stdout
    for broken in ("", "{}", "[1]", '{"v": 99}', path.read_text(encoding="utf-8")[:-40]):
        path.write_text(broken, encoding="utf-8")
        found, (problem,) = device_profile.measured("h100-sxm")
        assert found is None
        assert problem.path == str(path)
        assert ("another version" in problem.why) == ("99" in broken)


@pytest.mark.parametrize("options", [(), ("--all",), ("--format", "json"), ("--sweep",)])
def test_a_profile_of_another_version_is_warned_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.setenv(device_profile.FOLDER, str(tmp_path))
    (tmp_path / "h100-sxm.json").write_text('{"v": 1}', encoding="utf-8")
    done = seatrial("plan", str(RECIPE), *options, cwd=tmp_path)
    assert done.returncode == 0
    (line,) = [line for line in done.stderr.splitlines() if "h100-sxm.json" in line]
    assert "another version" in line
    assert "seatrial calibrate" in line


def test_a_folder_that_cannot_have_profiles_is_known_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv(device_profile.FOLDER, str(tmp_path / "file" / "profiles"))
    done = seatrial("calibrate", "--cpu", cwd=tmp_path)
    assert done.returncode == 2
    assert "measuring" not in done.stderr
    assert "error[unwritable]" in done.stderr
    assert "no profile can be kept there: Not a directory" in done.stderr


def test_the_configurations_own_layout_is_named(tmp_path: Path) -> None:
    """It is the 32nd or so, with micro-batches that no other layout has; elsewhere it does not fit."""
    short = """
name: short
model: llama3.2-1b
batch: {sequence_length: 512, global_batch_size: 256, micro_batch_size: 32}
steps: 50
topology: {num_nodes: 1, devices_per_node: 8, device: h200}
parallelism: {within_node: {fsdp: -1}}
execution: {remat: none}
data: {kind: synthetic}
"""
    path = tmp_path / "short.yaml"
    path.write_text(short, encoding="utf-8")
    text = seatrial("plan", str(path), "--sweep", cwd=tmp_path).stdout
    assert re.search(r"^\d+ +fsdp 8 +32 +none +bfloat16 .* as configured: ", text, re.MULTILINE)
    ranked = json.loads(seatrial("plan", str(path), "--sweep", "--format", "json", cwd=tmp_path).stdout)["ranked"]
    (own,) = [each for each in ranked if each["is_own"]]
    planned = json.loads(seatrial("plan", str(path), "--format", "json", cwd=tmp_path).stdout)
    assert own["step_seconds"] == pytest.approx(planned["expected"]["time"]["step_seconds"])
    larger = short.replace("h200", "a100-sxm-40gb").replace("llama3.2-1b", "llama3.1-8b").replace("fsdp: -1", "data: 8")
    path.write_text(larger, encoding="utf-8")
    assert "the layout as configured needs" in seatrial("plan", str(path), "--sweep", cwd=tmp_path).stdout
