"""The publication of a run: the same for every copy, with secrets masked, and hostile text as it is shown."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial import verdict as judging
from seatrial.errors import InputError
from seatrial.publish.publication import as_float, parameters_of, publication_of
from seatrial.report.gather import clean, gather
from seatrial.spec import flatten
from tests.helpers import attacks, publishing, run_directory


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return publishing.runs(tmp_path_factory.mktemp("runs"))


def test_a_copy_is_the_same_run_and_another_is_not(runs: list[Path], tmp_path: Path) -> None:
    copy = Path(shutil.copytree(runs[0], tmp_path / "elsewhere" / "renamed"))
    one, same, *others = map(publishing.published, [runs[0], copy, *runs[1:]])
    assert (one.id, one.digest) == (same.id, same.digest)
    assert len({one.id, *(other.id for other in others)}) == 3
    assert len({one.digest, *(other.digest for other in others)}) == 3


def test_what_starts_in_the_same_second_differs_by_its_first_steps(tmp_path: Path) -> None:
    one = run_directory.write(tmp_path / "one", run_directory.sound, rehearsing=False)
    other = run_directory.write(tmp_path / "other", run_directory.slow, rehearsing=False)
    assert publishing.published(one).report.started_at == publishing.published(other).report.started_at
    assert publishing.published(one).id != publishing.published(other).id


def test_another_verdict_is_the_same_run_with_another_digest(runs: list[Path], tmp_path: Path) -> None:
    again = Path(shutil.copytree(runs[0], tmp_path / "again"))
    data = json.loads((again / "verdict.json").read_text())
    (again / "verdict.json").write_text(json.dumps(data | {"headline": "Judged once more."}))
    one, other = publishing.published(runs[0]), publishing.published(again)
    assert one.id == other.id
    assert one.digest != other.digest


def test_points_are_the_steps_that_count_and_the_evaluations(runs: list[Path]) -> None:
    report = gather(runs[0])
    points = publishing.published(runs[0]).points
    steps = [point for point in points if "loss" in point.values]
    assert [(point.step, point.at, point.values["loss"]) for point in steps] == [
        (step.step, step.wall_time, step.loss) for step in report.steps
    ]
    assert [(point.step, point.values) for point in points if "eval_loss" in point.values] == [
        (10, {"eval_loss": 4.5}), (30, {"eval_loss": 2.5}),
    ]  # fmt: skip
    assert report.metrics is not None
    estimates = report.metrics.performance.estimates
    assert publishing.published(runs[0]).figures["mfu"] == estimates["mfu"].value
    assert steps[-1].values["mfu"] == pytest.approx(estimates["mfu"].value, rel=0.1)


def test_a_loss_that_is_no_number_stays_so(runs: list[Path]) -> None:
    last = publishing.published(runs[1]).points[-1]
    assert math.isnan(last.values["loss"])
    assert last.values["grad_norm"] == math.inf
    assert as_float(10**400) == math.inf
    assert as_float(-(10**400)) == -math.inf


def test_parameters_are_the_whole_configuration_without_its_secrets() -> None:
    spec = run_directory.asked_for()
    environment = {"HF_TOKEN": "hf_abcdefgh12345", "NOTE": "password=hunter2 and more", "NCCL_DEBUG": "INFO"}
    spec = replace(spec, execution=replace(spec.execution, environment=environment))
    found = parameters_of(spec)
    assert "hunter2" not in str(found)
    assert "hf_abcdefgh12345" not in str(found)
    assert found["execution.environment.HF_TOKEN"] == "***"
    assert found["execution.environment.NCCL_DEBUG"] == "INFO"
    assert found["batch.global_batch_size"] == 48
    assert found["optimizer.learning_rate"] == 3e-4
    plain = {path: value for path, value in flatten(spec).items() if isinstance(value, (int, float))}
    assert {path: found[path] for path in plain} == plain


@given(name=attacks.text, value=attacks.text)
def test_hostile_names_and_values_are_one_inert_line(name: str, value: str) -> None:
    spec = run_directory.asked_for()
    spec = replace(spec, name=value, execution=replace(spec.execution, environment={name: value}))
    for text in (text for pair in parameters_of(spec).items() for text in pair if isinstance(text, str)):
        assert clean(text) == text
        assert "\n" not in text


@given(raw=st.text(max_size=20) | attacks.text)
def test_a_run_of_hostile_text_can_be_published(raw: str) -> None:
    found = publication_of(attacks.poisoned(raw), Path("nowhere"))
    assert found.title == clean(raw)
    assert set(found.artefacts()) == {"report.html", "verdict.json", "metrics.json"}


def test_what_was_not_judged_is_not_published(tmp_path: Path) -> None:
    run_dir = run_directory.write(tmp_path / "run")
    (run_dir / "verdict.json").unlink()
    with pytest.raises(InputError, match="no verdict to publish"):
        publishing.published(run_dir)


def test_files_are_those_of_the_run(runs: list[Path]) -> None:
    found = publishing.published(runs[2])
    assert found.report.verdict is not None
    assert json.loads(found.artefacts()["verdict.json"]) == judging.to_dict(found.report.verdict)
    assert json.loads(found.artefacts()["metrics.json"]) == json.loads((runs[2] / "metrics.json").read_text())
    assert found.tags["outcome"] == "died"
    assert found.tags["exit_code"] == "4"
