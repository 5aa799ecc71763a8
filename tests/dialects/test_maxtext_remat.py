"""MaxText's remat_policy=custom: which tensors are kept, where, and what has no effect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from seatrial import dialects
from seatrial.check import lint
from seatrial.dialects import maxtext
from seatrial.engines.maxtext import CONFIG_FILE
from seatrial.estimate import memory
from seatrial.spec import Execution, Resolved, RunSpec
from tests.helpers.command_line import seatrial

TRAIN = """python3 -m maxtext.trainers.pre_train.train base.yml model_name=llama2-7b per_device_batch_size=2 steps=15 \\
    max_target_length=4096 ici_fsdp_parallelism=8 dataset_type=synthetic enable_checkpointing=false"""
RECIPE = """remat_policy=custom query_proj=device key_proj=device value_proj=offload context=device \\
    out_proj=offload mlpwo=device decoder_layer_input=offload"""


def load(tmp_path: Path, words: str) -> Resolved:
    script = tmp_path / "train.sh"
    script.write_text(f"{TRAIN} {words}\n", encoding="utf-8")
    return lint(dialects.load(script, ("topology.device=h100",), action="run"), action="run")


def spec_of(tmp_path: Path, words: str) -> RunSpec:
    resolved = load(tmp_path, words)
    assert [problem for problem in resolved.problems if problem.severity == "error"] == []
    assert resolved.spec is not None
    return resolved.spec


def no_effect(resolved: Resolved) -> set[str]:
    return {problem.path for problem in resolved.problems if problem.code == "no-effect"}


def test_each_tensor_is_where_its_key_says(tmp_path: Path) -> None:
    resolved = load(tmp_path, RECIPE)
    spec = spec_of(tmp_path, RECIPE)
    assert spec.execution.remat == "custom"
    assert spec.execution.remat_kept == ("query", "key", "context", "down")
    assert spec.execution.remat_offloaded == ("input", "value", "out")
    assert "value_proj=offload" in resolved.origins["execution.remat_offloaded"].note


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("", ()),
        ("qkv_proj=device", ()),
        ("fused_qkv=true qkv_proj=device", ("query", "key", "value")),
        ("fused_mlp=true mlpwi=device mlpwi_0=device", ("gate", "up")),
        ("mlpwi=device mlpwi_1=device", ("up",)),
        ("attention_out=device", ("context",)),
        ("moe_mlpwo=device mla_q=offload engram=device", ()),
    ],
)
def test_names_that_a_model_does_not_have_keep_nothing(tmp_path: Path, words: str, kept: tuple[str, ...]) -> None:
    execution = spec_of(tmp_path, f"remat_policy=custom {words}").execution
    assert (execution.remat_kept, execution.remat_offloaded) == (kept, ())


def test_what_no_layer_reads_is_said(tmp_path: Path) -> None:
    assert no_effect(load(tmp_path, RECIPE)) == set()
    assert no_effect(load(tmp_path, "remat_policy=full query_proj=device key_proj=remat")) == {"query_proj"}
    words = "remat_policy=custom qkv_proj=device mlpwi=offload mla_kv=device"
    assert no_effect(load(tmp_path, words)) == {"qkv_proj", "mlpwi", "mla_kv"}


def test_a_place_that_maxtext_does_not_know_is_one_error(tmp_path: Path) -> None:
    problems = load(tmp_path, "remat_policy=custom context=host").problems
    assert [(p.code, p.path) for p in problems if p.severity == "error"] == [("bad-value", "context")]


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, RECIPE)
    for activation in ("swiglu", "gelu"):
        model = replace(spec.model, name="mine", activation=activation)
        execution = replace(spec.execution, remat_kept=("query", "up"), remat_offloaded=("input", "down"))
        written = maxtext.write(replace(spec, model=model, execution=execution))
        assert not [note for note in written.notes if "remat" in str(note)]
        assert ("mlpwi=device" in written.text) == (activation == "gelu")


def test_maxtext_is_started_with_the_same_words(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(f"{TRAIN} {RECIPE}\n", encoding="utf-8")
    words = ("train.sh", "topology.devices_per_node=8", "--engine", "maxtext", "--on", "slurm", "--all")
    done = seatrial("plan", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert CONFIG_FILE in done.stdout
    for word in ("remat_policy: custom", "query_proj: device", "value_proj: offload", "decoder_layer_input: offload"):
        assert word in done.stdout


def test_the_estimate_lies_between_the_policies_around_it(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, RECIPE)

    def kept(execution: Execution) -> float:
        return memory.per_device(replace(spec, execution=execution), "native").activations_bytes

    full, qkv = kept(Execution(remat="full")), kept(Execution(remat="save_qkv_proj"))
    products = ("query", "key", "value")
    assert kept(Execution(remat="custom")) == full
    assert kept(Execution(remat="custom", remat_kept=products)) == qkv
    assert kept(Execution(remat="custom", remat_offloaded=products)) == full
    assert kept(Execution(remat="custom", remat_kept=products, remat_offloaded=("key",))) < qkv
    assert kept(Execution(remat="custom", remat_offloaded=("input",))) == 0
