"""MaxText commands that are written from runs: they read back the same, and a shell takes them as meant."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from seatrial.dialects import maxtext
from seatrial.spec import Batch, Distributed, Execution, MeshShape, Optimizer, Parallelism, RunSpec, Topology
from seatrial.spec.presets import MODELS
from tests.helpers.specs import assert_round_trip, read_text, specs

RUN = RunSpec(
    name="run", dialect="native", model=MODELS["llama2-7b"], steps=50,
    batch=Batch(sequence_length=4096, global_batch_size=32, micro_batch_size=2),
    topology=Topology(devices_per_node=8),
    parallelism=Parallelism(within_node=MeshShape(fsdp=8)),
    optimizer=Optimizer(schedule="maxtext_cosine", warmup_steps=5),
)  # fmt: skip


@settings(max_examples=60)
@given(specs())
def test_what_is_written_reads_back(spec: RunSpec) -> None:
    assert_round_trip(maxtext.write, maxtext.read, spec)


def test_a_run_that_maxtext_has_words_for_needs_few_notes() -> None:
    written = maxtext.write(RUN)
    assert {note.path for note in written.notes} == set()
    assert "model_name=llama2-7b" in written.text
    assert "gradient_accumulation_steps=2" in written.text


def test_a_shell_hands_on_the_words_and_variables_that_are_meant(tmp_path: Path) -> None:
    nasty = {"MY_TEXT": 'it\'s $HOME; `id` "x" $(id) \\', "NCCL_DEBUG": "INFO"}
    spec = replace(RUN, log_dir="a b'c$HOME", execution=Execution(environment=nasty, xla_flags={"xla_a": "b,c"}))
    text = maxtext.write(spec).text.replace("python3 -m", "show -m", 1)
    program = tmp_path / "show"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$MY_TEXT" "$XLA_FLAGS" "$@"\n')
    program.chmod(0o755)
    script = tmp_path / "run.sh"
    script.write_text(text)
    done = subprocess.run(
        ["bash", script], env={"PATH": f"{tmp_path}:/bin:/usr/bin"}, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert lines[:2] == [nasty["MY_TEXT"], "--xla_a=b,c"]
    assert "steps=50" in lines
    again = read_text(maxtext.read, maxtext.write(spec).text, ".sh").spec
    assert again is not None
    assert (again.log_dir, dict(again.execution.environment)) == (spec.log_dir, nasty)


def test_what_would_mean_something_else_to_maxtext_is_left_out_with_a_note() -> None:
    environment = {"M_STEPS": "3", "HF_TOKEN": "x", "XLA_FLAGS": "--a=b", "KEPT": "1"}
    written = maxtext.write(replace(RUN, execution=Execution(environment=environment), log_dir="none"))
    assert {note.path for note in written.notes} == {"execution.environment", "log_dir"}
    words = shlex.split(written.text, comments=True)
    assert "KEPT=1" in words
    assert not [word for word in words if word.startswith(("M_STEPS", "HF_TOKEN", "XLA_FLAGS", "base_output"))]


def _again(text: str, *overrides: str) -> str:
    resolved = read_text(maxtext.read, text, ".sh")
    assert resolved.spec is not None, [(p.path, p.why) for p in resolved.problems]
    return maxtext.write(resolved.spec).text


def test_of_several_words_for_one_value_the_one_that_was_given_is_written() -> None:
    words = {"opt_type": "adam_pax", "remat_policy": "minimal_with_quantization", "profiler": "nsys"}
    text = maxtext.write(RUN).text
    for name in words:
        text = re.sub(rf" {name}=\S+", "", text)
    given = "".join(f" {name}={word}" for name, word in words.items())
    again = _again(text.rstrip() + given + "\n")
    assert [w for w in shlex.split(again) if w.split("=")[0] in words] == [f"{n}={w}" for n, w in words.items()]
    spec = read_text(maxtext.read, again, ".sh").spec
    assert spec is not None
    other = replace(spec, optimizer=replace(spec.optimizer, algorithm="sgd"))
    assert "opt_type=sgd" in shlex.split(maxtext.write(other).text)


@pytest.mark.parametrize(("nodes", "rank"), [(1, "0"), (3, "2")])
def test_beside_a_coordinator_maxtext_has_all_that_it_reads_with_one(nodes: int, rank: str, tmp_path: Path) -> None:
    run = replace(
        RUN, topology=Topology(num_nodes=nodes, devices_per_node=8), batch=replace(RUN.batch, global_batch_size=48),
        parallelism=Parallelism(within_node=MeshShape(fsdp=8), across_nodes=MeshShape(data=nodes)),
        distributed=Distributed(coordinator_host="$HEAD"),
    )  # fmt: skip
    written = maxtext.write(run)
    assert [note.path for note in written.notes] == ["distributed.coordinator_port"]
    names = ("JAX_COORDINATOR_IP", "JAX_COORDINATOR_PORT", "NNODES", "NODE_RANK")
    script = tmp_path / "run.sh"
    script.write_text(written.text.partition("python3")[0] + "".join(f'echo "${name}"\n' for name in names))
    environment = {"PATH": "/bin:/usr/bin", "HEAD": "host1", "NODE_RANK": "2"}
    done = subprocess.run(["bash", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["host1", "2222", str(nodes), rank]
    assert [p.path for p in read_text(maxtext.read, written.text, ".sh").problems if p.code == "unknown-variable"] == [
        "JAX_COORDINATOR_IP"
    ]


@pytest.mark.parametrize("device", ["h100-sxm", None])
def test_the_devices_kind_is_a_note_where_there_is_one(device: str | None) -> None:
    written = maxtext.write(replace(RUN, topology=Topology(devices_per_node=8, device=device)))
    assert [note.path for note in written.notes] == (["topology.device"] if device else [])
