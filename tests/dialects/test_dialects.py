"""The dialect that reads a file: decided by its keys, never by its name."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seatrial import dialects, source
from seatrial.errors import InputError
from tests.helpers.seeds import MEGATRON_COMPLETE, MULTI_70B, ROOT

MEGATRON = {"config": {"training_iterations": "30", "master_address": "x"}, "model_params": {"single_node": {}}}


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (MEGATRON, "cvs-megatron"),
        ({"config": {}, "model_params": {}}, "cvs-jax"),
        ({"schema_version": 1, "framework": "jaxmaxtext"}, "cvs-2026"),
        ({"schema_version": 1, "framework": "torchtitan_single", "config": {}, "model_params": {}}, "cvs-2026"),
        ({"framework": "megatron_single", **MEGATRON}, "cvs-2026-megatron"),
        ({"gpu_name": "MI325X", "train_params": {}}, "cvs-2026-megatron"),
        ({"trainer": {"devices": 8}, "exp_manager": {}, "model": {}}, "nxdt"),
        ({"model_name": "llama2-7b", "per_device_batch_size": 1, "steps": 3}, "maxtext"),
        ({"base_config": "base.yml"}, "maxtext"),
        ({"model": "llama2-7b", "steps": 3}, "native"),
    ],
)
def test_keys_show_the_dialect(data: dict[str, Any], name: str) -> None:
    root = source.parse(json.dumps(data), file="config", is_json=True).root
    assert next(dialect.name for dialect in dialects.DIALECTS if dialect.recognise(root)) == name


@pytest.mark.parametrize("data", [{}, [], 3, "model", None, {"x": 1}])
def test_what_nobody_knows_is_said(data: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InputError) as caught:
        dialects.load(path, (), action="run")
    assert [finding.code for finding in caught.value.problems] == ["unknown-dialect"]


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("torchrun pretrain_t5.py --num-layers 12", "other-program"),
        ("torchrun examples/multimodal/train.py --num-layers 12 --micro-batch-size 1", "other-program"),
        ('MODEL_OPTIONS="--num-layers 12"', "unknown-dialect"),
    ],
)
def test_a_script_for_something_else_is_refused_for_that(script: str, code: str, tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(script + "\n")
    with pytest.raises(InputError) as caught:
        dialects.load(path, (), action="check")
    assert [finding.code for finding in caught.value.problems] == [code]


MODEL = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --micro-batch-size 2 --train-iters 5"


@pytest.mark.parametrize(
    "command",
    [
        "MBS=2 BS=128 TP=1 SEQ_LENGTH=4096 MODEL_SIZE=8 bash examples/llama/train_llama3.sh",
        "env MBS=2 MODEL_SIZE=8 bash train_llama3.sh",
        f"CUDA_DEVICE_MAX_CONNECTIONS=1 NCCL_DEBUG='a b' torchrun --nproc_per_node 8 pretrain_gpt.py {MODEL} --lr x",
        "XLA_FLAGS='--xla_gpu_a=1 --xla_gpu_b=true' python3 -m MaxText.train base.yml model_name=llama2-7b steps=5",
        "HF_TOKEN=hf_abcdefgh1234 python3 -m MaxText.train base.yml model_name=llama2-7b 'run_name=x y'",
        f"docker run -e A=1 -e B img env C=2 torchrun --nproc_per_node 8 pretrain_gpt.py {MODEL}",
    ],
)
def test_a_command_in_words_means_what_it_means_in_a_file(command: str, tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(command)
    first, *words = shlex.split(command)
    in_words = dialects.load(Path(first), words, action="plan")
    in_a_file = dialects.load(path, (), action="plan")
    findings = [[(p.severity, p.code, p.path, p.why) for p in each.problems] for each in (in_words, in_a_file)]
    assert findings[0] == findings[1]
    assert (in_words.spec is None) == (in_a_file.spec is None)
    if in_words.spec and in_a_file.spec:
        assert replace(in_words.spec, name="") == replace(in_a_file.spec, name="")
        assert in_words.spec.execution.environment.keys() <= {"NCCL_DEBUG", "A", "B", "C"}


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python3 -m MaxText.train base.yml base_output_directory=gs://bucket/train_llama2_7b", "maxtext"),
        ("docker run --name train_llama2_7b img python3 -m MaxText.train base.yml steps=5", "maxtext"),
        ("srun -J train_llama2 python3 MaxText/train.py base.yml steps=5", "maxtext"),
        ("python3 -m maxtext.inference.decode base.yml base_output_directory=/out/train_llama2", "maxtext"),
        ("bash examples/llama/train_llama3.sh", "megatron"),
        ("torchrun pretrain_gpt.py --num-layers 4", "megatron"),
        ("torchrun -m pretrain_gpt --num-layers 4", "megatron"),
        ("python3 -m megatron.pretrain_gpt --num-layers 4", "megatron"),
        ("docker run --name maxtext.1 img python3 pretrain_gpt.py --num-layers 4", "megatron"),
    ],
)
def test_the_program_shows_the_dialect_of_a_command(command: str, name: str) -> None:
    root = source.parse_shell(command, file="run.sh").root
    assert next(dialect.name for dialect in dialects.DIALECTS if dialect.recognise(root)) == name


@pytest.mark.parametrize("program", ["pretrain_gpt.py", "-m pretrain_gpt", "-m megatron.pretrain_gpt"])
def test_a_module_is_started_as_its_file_is(program: str) -> None:
    command = f"torchrun --nproc_per_node 4 {program} {MODEL} --max-position-embeddings 64 --lr 1e-3 --mock-data"
    words = f"srun -N 2 bash -c '{command} --tokenizer-type NullTokenizer --vocab-size 99'"
    first, *others = shlex.split(words)
    spec = dialects.load(Path(first), others, action="plan").spec
    assert spec is not None
    assert spec.topology.devices_per_node == 4


def test_names_of_files_say_nothing(tmp_path: Path) -> None:
    path = tmp_path / "llama.yaml"  # JSON is YAML
    path.write_text(MULTI_70B.read_text(encoding="utf-8"))
    resolved = dialects.load(path, ("config.nnodes=2",), action="rehearse")
    assert resolved.spec is not None
    assert resolved.spec.dialect == "cvs-jax"


# What each shipped file needs to be complete; the bars that stand beside one are read with it.
SHIPPED: dict[Path, tuple[str, ...]] = {
    path: MEGATRON_COMPLETE[path] + ("model=llama3_1_8b", "gpu=mi300x" if "mi3xx" in path.name else "gpu=mi355")
    if path in MEGATRON_COMPLETE
    else ("config.nnodes=1",) if "cvs" in path.parts else ()
    for path in sorted(ROOT.glob("configs/*/*")) if not path.stem.endswith("_threshold")
}  # fmt: skip


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_shipped_configuration_is_read(path: Path) -> None:
    resolved = dialects.load(path, SHIPPED[path], action="train")
    assert resolved.spec is not None
    errors = [problem for problem in resolved.problems if problem.severity == "error"]
    assert [problem for problem in errors if problem.code != "no-such-file"] == []  # their data are elsewhere
