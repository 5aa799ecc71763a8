"""Lints: each rule on a spec that breaks it, and on one that does not; findings in the user's key names."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seatrial import dialects
from seatrial.check import REMAT as CHECKED
from seatrial.check import RULES, lint
from seatrial.check import __file__ as rules
from seatrial.errors import Mark, Problem
from seatrial.estimate import flops
from seatrial.spec import (
    Batch,
    Container,
    Data,
    Execution,
    MeshShape,
    Optimizer,
    Origin,
    Parallelism,
    Precision,
    Resolved,
    RunSpec,
    Topology,
)
from seatrial.spec.presets import MODELS
from tests.helpers.checked_specs import SOUND, bars, findings, within
from tests.helpers.seeds import COMPLETE, MULTI_70B, SINGLE_MI300X, SINGLE_MI355X

# Eight nodes of H100 that train Llama 3.1 70B as NVIDIA's recipe does; the model and its sequences, and a speed that
# was published with the FLOPs of the full square of attention, where there is one.
NODES_OF_H100 = replace(
    SOUND, model=MODELS["llama3.1-70b"], batch=Batch(sequence_length=8192, global_batch_size=128, micro_batch_size=1),
    topology=Topology(num_nodes=8, devices_per_node=8, device="h100-sxm"),
    parallelism=Parallelism(
        within_node=MeshShape(tensor=4, data=2), across_nodes=MeshShape(pipeline=4, data=2), virtual_pipeline=5,
        zero1=True, sequence_parallel=True,
    ),
)  # fmt: skip
LONG_SEQUENCES = replace(
    SOUND, batch=Batch(sequence_length=131_072, global_batch_size=8, micro_batch_size=1),
    topology=Topology(num_nodes=4, devices_per_node=8, device="h100-sxm"),
    parallelism=Parallelism(within_node=MeshShape(context=8), across_nodes=MeshShape(fsdp=4)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "target", "code"),
    [
        (NODES_OF_H100, {"tflops_per_second_per_device": 539.2}, None),
        (NODES_OF_H100, {"tflops_per_second_per_device": 700}, "unreachable-expectation"),
        (LONG_SEQUENCES, {"tflops_per_second_per_device": 480}, None),
        (LONG_SEQUENCES, {"mfu": 0.48}, None),
        (LONG_SEQUENCES, {"tokens_per_second_per_device": 3500}, "unreachable-expectation"),
        (LONG_SEQUENCES, {"tflops_per_second_per_device": 1050}, "unreachable-expectation"),
        (LONG_SEQUENCES, {"tflops_per_second_per_device": 1900}, "impossible-expectation"),
    ],
)
def test_a_target_may_count_flops_by_any_convention(spec: RunSpec, target: dict[str, float], code: str | None) -> None:
    found = [problem.code for problem in findings(replace(spec, expectations=bars(**target)))]
    assert [each for each in found if each.endswith("expectation")] == ([code] if code else [])


def test_a_sound_spec_has_no_findings() -> None:
    assert findings(SOUND) == []


@pytest.mark.parametrize(
    ("change", "severity", "code", "path", "said"),
    [
        # the model
        ({"model": replace(SOUND.model, ffn_dim=28_672)}, "warning", "architecture-contradicts-name", "model.ffn_dim",
         "model.ffn_dim 28672 (not 14336)"),
        ({"model": replace(SOUND.model, name="mine", num_kv_heads=6)}, "error", "not-divisible", "model.num_kv_heads",
         "32 query heads cannot share 6"),
        ({"model": replace(SOUND.model, name="mine", head_dim=127)}, "error", "not-divisible", "model.head_dim", "odd"),
        # mesh and batch
        ({"parallelism": within(fsdp=4)}, "error", "mesh-devices", "parallelism.within_node.fsdp",
         "parallelism.within_node.fsdp 4 is not the 8 devices of a node"),
        ({"parallelism": within(fsdp=3, tensor=-1)}, "error", "mesh-devices", "parallelism.within_node.fsdp",
         "3 does not divide the 8 devices"),
        ({"parallelism": within(fsdp=-1, tensor=-1)}, "error", "mesh-devices", "parallelism.within_node.tensor",
         "are both -1"),
        ({"parallelism": replace(SOUND.parallelism, across_nodes=MeshShape())}, "error", "mesh-devices",
         "parallelism.across_nodes.fsdp", "1 is not the 2 nodes"),
        ({"topology": replace(SOUND.topology, num_nodes=3),
          "parallelism": replace(SOUND.parallelism, across_nodes=MeshShape(data=2))}, "error", "mesh-devices",
         "parallelism.across_nodes.data", "2 is not the 3 nodes"),
        ({"batch": replace(SOUND.batch, global_batch_size=12)}, "error", "not-divisible", "batch.global_batch_size",
         "12 sequences a step are not a multiple of 1 (micro batch) × 8 (data × fsdp)"),
        ({"model": replace(SOUND.model, name="mine", vocab_size=128_255)}, "error", "not-divisible", "model.vocab_size",
         "over tensor = 2"),
        ({"parallelism": replace(SOUND.parallelism, zero1=True), "model": replace(SOUND.model, name="m", hidden_dim=4)},
         "error", "not-divisible", "model.hidden_dim", "over fsdp × data = 8"),
        ({"parallelism": replace(SOUND.parallelism, sequence_parallel=True),
          "batch": replace(SOUND.batch, sequence_length=8191)}, "error", "not-divisible", "batch.sequence_length",
         "sequence_length 8191"),
        ({"optimizer": Optimizer(warmup_steps=100)}, "warning", "endless-warm-up", "optimizer.warmup_steps",
         "still rising when the run ends after 100 steps"),
        # data
        ({"data": Data(kind="text")}, "error", "missing-key", "data.paths", "needs files"),
        ({"data": Data(paths=("x",))}, "warning", "no-effect", "data.paths", "reads no files"),
        ({"data": Data(kind="text", paths=("x",)), "model": replace(SOUND.model, name="mine", vocab_size=128)}, "error",
         "vocabulary-too-small", "model.vocab_size", "256 tokens"),
        # bars
        ({"expectations": bars(tflops_per_second_per_device=1600)}, "warning", "impossible-expectation",
         "expectations.tflops_per_second_per_device", "1307.4 TFLOP/s in bfloat16 at its peak (AMD MI300X data sheet)"),
        ({"expectations": bars(tokens_per_second_per_device=26_000)}, "warning", "impossible-expectation",
         "expectations.tokens_per_second_per_device", "26000 tokens/s mean 1338 TFLOP/s"),
        ({"expectations": bars(tflops_per_second_per_device=1308)}, "warning", "unreachable-expectation",
         "expectations.tflops_per_second_per_device", "TFLOP/s, FLOPs counted palm"),
        ({"expectations": bars(tflops_per_second_per_device=1200)}, "warning", "unreachable-expectation",
         "expectations.tflops_per_second_per_device", "the fastest layout of 16 mi300x takes"),
        ({"expectations": bars(mfu=40)}, "warning", "impossible-expectation", "expectations.mfu", "a fraction"),
        ({"expectations": bars(tflops_per_second_per_device=500, tokens_per_second_per_device=5000)}, "warning",
         "contradicting-expectations", "expectations.tokens_per_second_per_device",
         "mean 257 (causal), 290 (non_causal), 305 (palm) TFLOP/s"),
        # environment and flags
        ({"container": Container(image="x", environment={"NNODES": "1"})}, "warning", "environment-contradicts-config",
         "container.environment.NNODES", "it says 1, but topology.num_nodes is 2"),
        ({"execution": Execution(environment={"NNODES": "3"})}, "warning", "environment-contradicts-config",
         "execution.environment.NNODES", "it says 3"),
        ({"execution": Execution(xla_flags={"xla_gpu_graph_level": "0"})}, "warning", "unknown-xla-flag",
         "execution.xla_flags.xla_gpu_graph_level", "does not know it"),
        ({"execution": Execution(xla_flags={"xla_gpu_autotune_level": "high"})}, "warning", "bad-xla-flag",
         "execution.xla_flags.xla_gpu_autotune_level", "cannot read the value 'high'"),
        ({"execution": Execution(xla_flags={"xla_gpu_autotune_level": "4 --xla_dump_to=/"})}, "error", "bad-xla-flag",
         "execution.xla_flags.xla_gpu_autotune_level", "would become several flags"),
        # what the trainer cannot do yet
        ({"precision": Precision(quantization="te_mxfp8")}, "error", "not-supported-yet", "precision.quantization",
         "te_mxfp8 products, since scales for blocks of a tensor need"),
        ({"execution": Execution(environment={"A B": "1"})}, "error", "bad-variable-name", "execution.environment.A B",
         "is not a valid name of an environment variable"),
        ({"expectations": (*bars(mfu=0.4), *bars(mfu=0.5))}, "error", "repeated-expectation", "expectations.1.metric",
         "a target for mfu already"),
    ],
)  # fmt: skip
def test_each_rule_finds_what_breaks_it(change: dict[str, Any], severity: str, code: str, path: str, said: str) -> None:
    (finding,) = findings(replace(SOUND, **change))
    assert (finding.severity, finding.code, finding.path) == (severity, code, path)
    assert said in finding.why
    assert finding.fix


def test_every_rule_is_in_the_table() -> None:
    names = {rule.__name__ for _, rule in RULES}
    takes_finder = {
        node.name
        for path in Path(rules).parent.glob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and [argument.arg for argument in node.args.args] == ["finder"]
    }
    assert names == takes_finder


def test_a_plan_is_only_warned_of_what_the_trainer_cannot_do() -> None:
    spec = replace(SOUND, precision=Precision(quantization="te_mxfp8"))
    assert [problem.severity for problem in findings(spec, "plan")] == ["warning"]


def test_bars_agree_if_any_published_convention_makes_them_agree() -> None:
    for convention in flops.CONVENTIONS:
        tokens = 5000.0
        tflops = tokens * flops.flops_per_token(SOUND.model, 8192, convention) / 1e12
        for factor in (0.95, 1.0, 1.05):
            both = bars(tflops_per_second_per_device=tflops * factor, tokens_per_second_per_device=tokens)
            assert findings(replace(SOUND, expectations=both)) == []


def test_the_published_pairs_of_the_seeds_agree_except_the_one_that_cannot_be() -> None:
    for path in COMPLETE:
        resolved = lint(dialects.load(path, COMPLETE[path], action="run"), action="run")
        codes = {problem.code for problem in resolved.problems}
        expected = {"impossible-expectation", "contradicting-expectations"} if path == SINGLE_MI300X else set()
        assert codes & {"impossible-expectation", "contradicting-expectations"} == expected


def test_a_device_without_a_known_peak_is_not_judged() -> None:
    spec = replace(SOUND, topology=replace(SOUND.topology, device=None), expectations=bars(mfu=0.4))
    assert findings(replace(spec, expectations=bars(tflops_per_second_per_device=9999))) == []
    assert findings(spec) == []


def test_findings_bear_the_user_s_keys_and_places() -> None:
    mark = Mark(file="mine.json", line=3, column=7)
    origin = Origin(kind="file", key="a.b.ici_fsdp_parallelism", text="4", mark=mark)
    resolved = Resolved(
        spec=replace(SOUND, parallelism=within(fsdp=4)), origins={"parallelism.within_node.fsdp": origin}, problems=()
    )
    (finding,) = lint(resolved, action="run").problems
    assert (finding.path, finding.mark) == ("a.b.ici_fsdp_parallelism", mark)
    assert finding.why.startswith("ici_fsdp_parallelism 4 is not the 8 devices")


def test_what_was_found_before_stays_and_comes_first() -> None:
    before = Problem(severity="error", code="x", path="y", why="", fix="")
    resolved = Resolved(spec=replace(SOUND, data=Data(kind="text")), origins={}, problems=(before,))
    assert [problem.code for problem in lint(resolved, action="run").problems] == ["x", "missing-key"]
    assert lint(replace(resolved, spec=None), action="run").problems == (before,)


@pytest.mark.parametrize("path", COMPLETE, ids=lambda path: path.stem)
def test_the_seeds_are_linted_before_and_after_they_are_filled_in(path: Path) -> None:
    as_it_stands = lint(dialects.load(path, (), action="run"), action="run")
    complete = lint(dialects.load(path, COMPLETE[path], action="run"), action="run")
    assert {problem.severity for problem in as_it_stands.problems} >= {"error", "warning"}
    assert "error" not in {problem.severity for problem in complete.problems}
    expected = {"unknown-xla-flag"}
    if path in (SINGLE_MI300X, SINGLE_MI355X, MULTI_70B):
        expected.add("architecture-contradicts-name")
    if "distributed" in path.name:
        expected.add("environment-contradicts-config")
    for resolved in (as_it_stands, complete):
        assert expected <= {problem.code for problem in resolved.problems}


def test_remat_policies_are_the_trainer_s() -> None:
    from seatrial.train.remat import REMAT

    assert set(CHECKED) == set(REMAT)
