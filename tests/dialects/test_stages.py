"""Pipeline stages with different numbers of layers: NxD's own split, NxDT's cuts, Megatron's ends and layouts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from seatrial.check import lint
from seatrial.commands.check import ConfigArguments
from seatrial.commands.check import read as read_checked
from seatrial.dialects import megatron
from seatrial.dialects.megatron.stages import of_ends, of_layout
from seatrial.errors import Problem
from seatrial.spec import Action, Resolved
from tests.helpers.megatron_commands import errors, gpt, spec_of
from tests.helpers.seeds import ROOT

NXDT = ROOT / "configs" / "nxdt" / "llama2-7b-megatron.yaml"


def nxdt(*overrides: str, action: Action = "check", devices: int = 32) -> Resolved:
    given = (f"trainer.devices={devices}", "distributed_strategy.tensor_model_parallel_size=1", *overrides)
    return read_checked(ConfigArguments(config=NXDT, overrides=given), action=action, engine=None)


def found(resolved: Resolved, code: str) -> list[Problem]:
    return [problem for problem in resolved.problems if problem.code == code]


@pytest.mark.parametrize(("layers", "stages"), [(30, 8), (33, 32), (126, 32), (32, 8), (7, 4), (126, 16)])
def test_nxd_gives_the_last_stages_what_does_not_divide(layers: int, stages: int) -> None:
    spec = nxdt(f"model.num_layers={layers}", f"distributed_strategy.pipeline_model_parallel_size={stages}").spec
    assert spec is not None
    expected = [0] * stages
    for turn in range(layers - layers % stages):
        expected[turn % stages] += 1
    for turn in range(layers % stages):
        expected[stages - 1 - turn] += 1
    assert list(spec.parallelism.stage_layers) == (expected if layers % stages else [])


def test_cuts_say_where_stages_end() -> None:
    cuts = "model.pipeline_cuts=[language_model.layers.4,language_model.layers.20]"
    pipeline = ("distributed_strategy.pipeline_model_parallel_size=3", "model.num_layers=24")
    spec = nxdt(cuts, *pipeline, devices=3).spec
    assert spec is not None
    assert spec.parallelism.stage_layers == (5, 16, 3)
    assert found(nxdt(cuts.replace("20", "30"), *pipeline, devices=3), "stage-layers")
    assert found(nxdt("model.pipeline_cuts=[a,b]", *pipeline, devices=3), "bad-value")
    assert found(nxdt(cuts, "distributed_strategy.pipeline_model_parallel_size=2", devices=4), "stage-layers")


def test_more_stages_than_layers_are_refused_as_by_nxd() -> None:
    resolved = nxdt("model.num_layers=3", "distributed_strategy.pipeline_model_parallel_size=4")
    assert "3 layers cannot be split evenly over 4 stages" in found(resolved, "not-divisible")[0].why


def test_our_trainer_says_that_it_has_no_such_stages_and_a_rehearsal_has_others() -> None:
    uneven = ("model.num_layers=30", "distributed_strategy.pipeline_model_parallel_size=8")
    severities: list[tuple[Action, list[str]]] = [("check", ["warning"]), ("run", ["error"]), ("rehearse", [])]
    for action, expected in severities:
        problems = found(nxdt(*uneven, action=action), "not-supported-yet")
        assert [problem.severity for problem in problems] == expected
        assert all("(2 × 3, 6 × 4)" in problem.why for problem in problems)


# --- Megatron ---------------------------------------------------------------------------------------------------------

PIPELINE = "--num-layers 14 --pipeline-model-parallel-size 4"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--decoder-first-pipeline-num-layers 3 --decoder-last-pipeline-num-layers 1", (3, 5, 5, 1)),
        ("--decoder-first-pipeline-num-layers 2", (2, 4, 4, 4)),
        ("--decoder-last-pipeline-num-layers 5", (3, 3, 3, 5)),
        ("--pipeline-model-parallel-layout 'Et*3|(t*4|)*2t*3L'", (3, 4, 4, 3)),
        ("--pipeline-model-parallel-layout 'Ett|t,t|(tt|)*5,L'", (2, 2, 2, 2, 2, 2, 2, 0)),
    ],
)
def test_megatrons_stages(words: str, expected: tuple[int, ...]) -> None:
    spec = spec_of(gpt(f"{PIPELINE} {words}"))
    assert spec.parallelism.stage_layers == expected
    assert spec.parallelism.virtual_pipeline == len(expected) // 4


@pytest.mark.parametrize(
    "words",
    [
        "--decoder-first-pipeline-num-layers 3", "--decoder-first-pipeline-num-layers 20",
        "--pipeline-model-parallel-layout 'Ett|tt|tt|ttL'", "--pipeline-model-parallel-layout 'Et*14|L'",
        "--pipeline-model-parallel-layout 'Ex|t'", "--pipeline-model-parallel-layout '(((t)*999)*999)*999'",
    ],
)  # fmt: skip
def test_stages_that_megatron_refuses(words: str) -> None:
    assert errors(gpt(f"{PIPELINE} {words}")) == [("refused-by-megatron", words.split()[0])]


def test_ends_share_what_is_left() -> None:
    chance = random.Random(3)
    for _ in range(500):
        stages, chunks, middle = chance.randint(3, 9), chance.randint(1, 3), chance.randint(0, 4)
        first, last = chance.randint(0, 4), chance.randint(0, 4)
        layers = chunks * (first + last + middle * (stages - 2))
        told = of_ends(layers, stages, chunks, first * chunks, last * chunks)
        assert told == (first, *[middle] * (stages - 2), last) * chunks


def test_layouts_are_expanded() -> None:
    assert of_layout("E|(t|)*3(tt|)*2mL") == (0, 1, 1, 1, 2, 2, 0)
    assert of_layout("Et*2|((t|)*2tt|)*2L") == (2, 1, 1, 2, 1, 1, 2, 0)


def test_stages_are_written_for_megatron(tmp_path: Path) -> None:
    spec = spec_of(gpt(f"{PIPELINE} --decoder-first-pipeline-num-layers 3 --decoder-last-pipeline-num-layers 1"))
    path = tmp_path / "run.sh"
    path.write_text(megatron.write(spec).text)
    again = read_checked(ConfigArguments(config=path), action="check", engine=None).spec
    assert again is not None
    assert again.parallelism == spec.parallelism


def test_megatrons_replicas_may_share_what_does_not_divide() -> None:
    spec = spec_of(gpt("--use-distributed-optimizer", launcher="--nproc_per_node 7 --nnodes 2"))
    expected: list[tuple[Action, str]] = [("check", "warning"), ("plan", "warning"), ("run", "error")]
    for action, severity in expected:
        problems = lint(Resolved(spec=spec, origins={}, problems=()), action=action).problems
        of_width = [problem for problem in problems if "width 512" in problem.why]
        assert [problem.severity for problem in of_width] == [severity]
        assert not [problem for problem in problems if problem.code == "not-divisible"]
