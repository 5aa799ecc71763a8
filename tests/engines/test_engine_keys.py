"""Every key that a configuration states reaches the engine whose key it is."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from seatrial.command import is_secret
from seatrial.dialects import load
from seatrial.dialects.maxtext.keys import KEYS
from seatrial.dialects.table.engine_keys import as_text, value_of
from seatrial.dialects.table.versions import versions
from seatrial.engines import maxtext
from seatrial.plan import Machine, Plan, PlanRequest, make_plan
from seatrial.shrink.rehearsal import rehearse
from seatrial.spec import RunSpec
from tests.helpers.seeds import COMPLETE, SEEDS

HERE = Machine(cores=2, memory_bytes=1 << 33)
MODEL = (
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64"
    " --micro-batch-size 1 --train-iters 5 --lr 1e-3 --tokenizer-type NullTokenizer --vocab-size 99"
)
MAXTEXT = "python3 -m maxtext.trainers.pre_train.train base.yml model_name=llama2-7b steps=5 dataset_type=synthetic"


def planned(spec: RunSpec, engine: str) -> Plan:
    """A rehearsal with MaxText; Megatron has none, and its plan is that of one node."""
    rehearsal = rehearse(spec, cores=2, memory_bytes=1 << 33, fixed=maxtext.FIXED) if engine == "maxtext" else None
    return make_plan(PlanRequest(spec=spec, run_dir=Path("/run"), machine=HERE, engine=engine, rehearsal=rehearsal))


def read(tmp_path: Path, text: str, engine: str) -> RunSpec:
    path = tmp_path / "launch.sh"
    path.write_text(f"{text}\n", encoding="utf-8")
    resolved = load(path, [], action="plan", engine=engine)
    assert resolved.spec is not None, [(p.path, p.why) for p in resolved.problems if p.severity == "error"]
    return resolved.spec


def maxtext_file(plan: Plan) -> dict[str, Any]:
    return dict(yaml.safe_load(plan.files["launch/maxtext.yml"]))


def cell(path: Path) -> dict[str, Any]:
    """The keys of the one cell that a file has."""
    found = json.loads(path.read_text())["model_params"]
    while not any(isinstance(value, str) for value in found.values()):
        found = next(value for name, value in found.items() if not name.startswith("_"))
    return dict(found)


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.stem)
def test_every_stated_key_of_a_seed_is_in_maxtexts_file(path: Path) -> None:
    resolved = load(path, COMPLETE[path], action="rehearse", engine="maxtext")
    assert resolved.spec is not None
    given = maxtext_file(planned(resolved.spec, "maxtext"))
    # Notes of CVS's own, which no version of 2025 reads; and a text that says that nothing is quantized.
    stated = {
        n: v for n, v in cell(path).items() if n in versions("maxtext") and n not in ("micro_batch_size", "batch_size")
    }
    assert len(stated) > 30
    assert {n for n, v in stated.items() if n not in given and v not in ("", None)} == set()
    for name in ("use_iota_embed", "logits_dot_in_fp32", "megablox", "kv_quant_axis"):
        assert given[name] == value_of(str(stated[name])), name


def test_what_maxtexts_command_states_is_in_its_file_as_it_stands(tmp_path: Path) -> None:
    words = "fused_qkv=true num_vocab_tiling=4 logits_dot_in_fp32=true sa_block_q=512 algo=ppo log_period=7"
    given = maxtext_file(planned(read(tmp_path, f"{MAXTEXT} {words}", "maxtext"), "maxtext"))
    expected = dict(word.split("=") for word in words.split())
    assert {name: as_text(given[name]) for name in expected} == expected


def test_what_a_run_decides_is_not_passed_on_and_a_note_says_so(tmp_path: Path) -> None:
    plan = planned(read(tmp_path, f"{MAXTEXT} monitor_goodput=true hf_access_token=hf_x", "maxtext"), "maxtext")
    assert maxtext_file(plan)["monitor_goodput"] is False
    assert "hf_x" not in str(plan.as_dict())
    assert "MaxText does not get monitor_goodput as it stands" in " ".join(plan.notes)


def test_megatrons_arguments_are_among_its_words_as_they_stand(tmp_path: Path) -> None:
    stated = [["--overlap-grad-reduce"], ["--add-skipping"], ["--num-workers", "4"], ["--rerun-mode", "disabled"],
              ["--moe-layer-freq", "([0]*3 + [1])"]]  # fmt: skip
    command = " ".join(shlex.join(words) for words in stated)
    spec = read(tmp_path, f"torchrun pretrain_gpt.py {MODEL} {command}", "megatron")
    made = make_plan(_alone(spec))
    argv = list(made.processes[0].command.argv)
    for words in stated:
        at = argv.index(words[0])
        assert argv[at : at + len(words)] == words
    assert made.dropped == ()


@pytest.mark.parametrize("stated", [
    "--num-experts 8 --moe-router-topk 2", "--qk-layernorm", "--multi-latent-attention", "--mtp-num-layers 1",
    "--rampup-batch-size 2 2 8", "--data-args-path /data.txt", "--optimizer dist_muon", "--xielu",
    "--position-embedding-type none", "--position-embedding-type rope --position-embedding-type none",
    "--fp8-format hybrid --fp8-recipe custom", "--tokenizer-type SFTTokenizer",
])  # fmt: skip
@pytest.mark.parametrize("device", ["h100", "mi300x"])
def test_megatron_trains_with_what_only_it_has(stated: str, device: str, tmp_path: Path) -> None:
    spec = read(tmp_path, f"torchrun pretrain_gpt.py {MODEL} {stated}", "megatron")
    spec = replace(spec, topology=replace(spec.topology, device=device))
    argv = list(make_plan(_alone(spec)).processes[0].command.argv)
    last = f"--{stated.rpartition('--')[2]}".split()
    assert argv[argv.index(last[0]) :][: len(last)] == last


def _alone(spec: RunSpec) -> PlanRequest:
    return PlanRequest(
        spec=spec, run_dir=Path("/run"), engine="megatron",
        machine=Machine(cores=2, memory_bytes=1 << 33, accelerators=("0",), vendor="nvidia"),
    )  # fmt: skip


def test_what_another_engine_does_not_get_is_named_in_the_plan(tmp_path: Path) -> None:
    spec = read(tmp_path, f"{MAXTEXT} fused_qkv=true prompt=x topology.devices_per_node=1", "megatron")
    assert make_plan(_alone(spec)).dropped == ("fused_qkv",)  # the prompt is for inference


def test_what_a_field_says_too_is_not_missing(tmp_path: Path) -> None:
    stated = "--tensorboard-dir /tb --eod-mask-loss --use-precision-aware-optimizer --use-distributed-optimizer"
    llama = "--normalization RMSNorm --swiglu --position-embedding-type rope --disable-bias-linear --rotary-base 10000"
    spec = read(tmp_path, f"torchrun pretrain_gpt.py {MODEL} {llama} {stated} --load /c --no-load-optim", "")
    assert planned(spec, "maxtext").dropped == ("--use-precision-aware-optimizer",)
    spec = read(tmp_path, f"{MAXTEXT} profiler=nsys opt_type=adam_pax topology.devices_per_node=1", "")
    assert make_plan(_alone(spec)).dropped == ()


@pytest.mark.parametrize("value", [True, False, 3, 2.5, 1e-5, "flash", "true", "no", "1", "", "a b", "x: y", "-1",
                                   [1, 2], ["a", "b"], "[1", '"', "~", "null", "1e5"])  # fmt: skip
def test_a_value_comes_back_from_its_text(value: Any) -> None:
    assert value_of(as_text(value)) == value
    assert type(value_of(as_text(value))) is type(value)


@pytest.mark.parametrize("name", [name for name in KEYS if is_secret(name)])
def test_no_secret_is_kept(tmp_path: Path, name: str) -> None:
    spec = read(tmp_path, f"{MAXTEXT} {name}=hf_canary", "maxtext")
    assert "hf_canary" not in str(spec)
