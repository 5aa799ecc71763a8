"""Two runs compared: how much faster, the same losses or not, and what differs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from seatrial.errors import InputError
from seatrial.history.compare import compare, compare_losses
from seatrial.history.loaded import load
from seatrial.spec import METRICS, Execution, Precision
from seatrial.spec.presets import MODELS
from tests.helpers.history_runs import loaded, make, one_node


@pytest.mark.parametrize(
    ("times", "judgement", "sentence"),
    [
        (0.95, "better", "B is faster than A by 5."),
        (1.05, "worse", "B is slower than A by 4."),
        (1.0, "no_clear_difference", "No clear difference: "),
    ],
)
def test_each_metric_says_better_by_its_own_direction(
    tmp_path: Path, times: float, judgement: str, sentence: str
) -> None:
    found = compare(loaded(tmp_path / "a", seed=1), loaded(tmp_path / "b", seed=2, times=times))
    by_name = {change.metric: change for change in found.changes}
    assert set(by_name) == set(METRICS)
    for metric in ("step_seconds", "tokens_per_second_per_device", "tflops_per_second_per_device", "mfu"):
        change = by_name[metric]
        assert change.judgement == judgement
        ratio = times if metric == "step_seconds" else 1 / times
        assert 1 + change.low <= ratio <= 1 + change.high
        assert change.low <= change.change <= change.high
        assert math.isclose(1 + change.change, change.b.value / change.a.value)
    assert found.sentence.startswith(sentence)
    assert by_name["memory_fraction"].judgement == "not_compared"


def test_turned_around_it_is_the_inverse(tmp_path: Path) -> None:
    a, b = loaded(tmp_path / "a", seed=1), loaded(tmp_path / "b", seed=2, times=0.9)
    there, back = compare(a, b).speed.speed, compare(b, a).speed.speed
    assert math.isclose(there.value * back.value, 1)
    assert math.isclose(there.low * back.high, 1, rel_tol=0.002)


def test_without_the_events_the_two_intervals_have_to_do(tmp_path: Path) -> None:
    a, b = make(tmp_path / "a", seed=1), make(tmp_path / "b", seed=2, times=1.1)
    from_times = compare(load(a), load(b)).speed
    for path in (*a.glob("events-*"), *b.glob("events-*")):
        path.unlink()
    from_intervals = compare(load(a), load(b)).speed
    assert from_intervals.change == pytest.approx(from_times.change)
    assert from_intervals.low == pytest.approx(from_times.low, abs=0.005)
    assert from_intervals.judgement == "worse"


def test_events_that_are_not_those_of_the_metrics_are_not_used(tmp_path: Path) -> None:
    a, b = make(tmp_path / "a"), make(tmp_path / "b", times=1.1)
    (b / "events-0.jsonl").write_bytes((a / "events-0.jsonl").read_bytes())
    run = load(b)
    assert len(run.steady_seconds) == 0
    assert compare(load(a), run).speed.judgement == "worse"


MODEL = MODELS["llama3.1-70b"]
OTHER = {
    "model": {"model": MODELS["llama3.1-8b"]},
    "sequence length": {"batch": replace(one_node().batch, sequence_length=4096)},
    "precision": {"precision": Precision(quantization="fp8")},
}
STILL_COMPARED = {
    "model": {"tflops_per_second_per_device", "mfu"},
    "sequence length": {"tflops_per_second_per_device", "mfu"},
    "precision": {"tflops_per_second_per_device", "tokens_per_second_per_device", "step_seconds"},
    "FLOPs convention": {"tokens_per_second_per_device", "step_seconds"},
}


@pytest.mark.parametrize("what", STILL_COMPARED)
def test_other_work_is_refused_and_compared_anyway_only_where_it_means_something(tmp_path: Path, what: str) -> None:
    a, other = make(tmp_path / "a"), make(tmp_path / "b", spec=one_node(**OTHER.get(what, {})), noise=0.001)
    if what == "FLOPs convention":
        metrics = json.loads((other / "metrics.json").read_text())
        metrics["performance"]["convention"] = "non_causal"
        (other / "metrics.json").write_text(json.dumps(metrics))
    with pytest.raises(InputError, match=f"another {what}"):
        compare(load(a), load(other))
    found = compare(load(a), load(other), anyway=True)
    assert {change.metric for change in found.changes if change.change is not None} == STILL_COMPARED[what]
    assert all(
        what in change.why
        for change in found.changes
        if change.metric not in STILL_COMPARED[what] | {"memory_fraction"}
    )


def test_another_batch_leaves_the_rates(tmp_path: Path) -> None:
    small = one_node(batch=replace(one_node().batch, global_batch_size=24))
    found = compare(loaded(tmp_path / "a"), loaded(tmp_path / "b", spec=small))
    compared = {change.metric for change in found.changes if change.change is not None}
    assert "tokens_per_second_per_device" in compared
    assert "step_seconds" not in compared


def test_a_run_without_speed_is_said_to_have_none(tmp_path: Path) -> None:
    a, b = make(tmp_path / "a"), make(tmp_path / "b")
    metrics = json.loads((b / "metrics.json").read_text())
    metrics["performance"] |= {
        "step_times": None,
        "estimates": {},
        "unavailable": {"step_seconds": "no step has a time"},
    }
    (b / "metrics.json").write_text(json.dumps(metrics))
    found = compare(load(a), load(b))
    assert found.speed is None
    assert "cannot be compared" in found.sentence
    assert "B: no step has a time" in found.sentence


def test_losses_are_held_against_each_other_step_by_step() -> None:
    a = {step: 6.0 - step / 10 for step in range(20)}
    b = {step: value * (1 + (0.002 if step >= 5 else 0) + (0.1 if step >= 12 else 0)) for step, value in a.items()}
    found = compare_losses(a, {step: value for step, value in b.items() if step < 15})
    assert found.num_steps == 15
    assert (found.only_a, found.only_b) == (5, 0)
    assert found.parted == {1e-3: 5, 5e-2: 12}
    assert found.largest == pytest.approx(0.102 / 1.102)
    assert found.last_step == 14
    same = compare_losses(a, a)
    assert same.parted == {1e-3: None, 5e-2: None}
    assert same.largest == 0
    assert compare_losses(a, {}).largest is None


@pytest.mark.parametrize(("one", "other", "apart"), [
    (math.nan, math.nan, False), (math.inf, math.inf, False), (2.0, math.nan, True), (math.inf, 2.0, True),
    (math.inf, -math.inf, True), (0.0, 0.0, False), (0.0, 1e-9, True),
])  # fmt: skip
def test_a_loss_that_is_not_finite_in_one_run_only_is_apart(one: float, other: float, apart: bool) -> None:
    found = compare_losses({3: one}, {3: other})
    assert (found.parted[5e-2] == 3) is apart


def test_what_differs_is_named_by_section(tmp_path: Path) -> None:
    versions = {"jax": "0.10.2", "seatrial": "0.1.0"}
    flags = Execution(remat="minimal", xla_flags={"xla_gpu_x": "true"}, environment={"NCCL_DEBUG": "INFO"})
    a = loaded(tmp_path / "a", versions=versions, phases={"compile": 3.0})
    b = loaded(
        tmp_path / "b", spec=one_node(execution=flags), versions=versions | {"jax": "0.11.0"}, phases={"compile": 9.0}
    )
    found = {(s.section, s.path): (s.a, s.b) for s in compare(a, b).settings}
    assert found == {
        ("versions", "jax"): ("0.10.2", "0.11.0"),
        ("environment", "NCCL_DEBUG"): (None, "INFO"),
        ("flags", "xla_gpu_x"): (None, "true"),
        ("spec", "execution.remat"): ("full", "minimal"),
    }


def test_flags_are_compared_as_the_processes_used_them(tmp_path: Path) -> None:
    """Those of the shell differ too, of one configuration."""
    a = loaded(tmp_path / "a", xla_flags={"xla_a": "1", "xla_b": "2"})
    b = loaded(tmp_path / "b", xla_flags={"xla_a": "1", "xla_b": "3"})
    found = {(s.section, s.path): (s.a, s.b) for s in compare(a, b).settings}
    assert found == {("flags", "xla_b"): ("2", "3")}


def test_nothing_differs_between_a_run_and_itself(tmp_path: Path) -> None:
    run = loaded(tmp_path / "a")
    found = compare(run, run)
    assert found.settings == ()
    assert found.losses.largest == 0
    assert {change.judgement for change in found.changes} <= {"no_clear_difference", "not_compared"}


def test_losses_of_trainers_that_count_from_0_and_from_1_are_of_the_same_steps(tmp_path: Path) -> None:
    a, b = loaded(tmp_path / "a"), loaded(tmp_path / "b")
    later = replace(
        b, losses={step + 1: loss for step, loss in b.losses.items()},
        metrics=replace(b.metrics, completion=replace(b.metrics.completion, counted_from=1)),
    )  # fmt: skip
    for one, other in ((a, later), (later, a)):
        losses = compare(one, other).losses
        assert (losses.largest, losses.only_a, losses.only_b, losses.num_steps) == (0, 0, 0, 30)


SECRET = "hunter2-0123456789abcdef"


def test_secrets_stay_masked_wherever_they_hide(tmp_path: Path) -> None:
    """In variables, in flags, in what a process said of itself, and in a plan that somebody wrote by hand."""
    execution = Execution(
        environment={"HF_TOKEN": SECRET, "my_api_key": SECRET, "X": f"--password={SECRET}"},
        xla_flags={"f": f"a token: {SECRET}"},
    )
    make(tmp_path / "a")
    make(
        tmp_path / "b",
        spec=one_node(execution=execution),
        note=f"API_KEY={SECRET}",
        environment={"WANDB_API_KEY": SECRET},
    )
    plan = json.loads((tmp_path / "b" / "plan.json").read_text())
    for process in plan["processes"]:
        process["environment"] = {"AWS_SECRET_ACCESS_KEY": SECRET}
    (tmp_path / "b" / "plan.json").write_text(json.dumps(plan))
    found = compare(load(tmp_path / "a"), load(tmp_path / "b"))
    assert {"HF_TOKEN", "my_api_key", "AWS_SECRET_ACCESS_KEY", "X", "f"} <= {s.path for s in found.settings}
    assert [setting for setting in found.settings if SECRET in f"{setting.a}{setting.b}"] == []


@pytest.mark.parametrize(("name", "text", "says"), [
    ("metrics.json", None, "not judged"), ("verdict.json", None, "not judged"),
    ("metrics.json", "{", "cannot be read"), ("verdict.json", "[]", "cannot be read"),
    ("metrics.json", '{"v": 1}', "cannot be read"), ("plan.json", "{", "configuration cannot be read"),
    ("events-0.jsonl", "{}\n{}\n", "events"), ("metrics.json", "[" * 100_000, "cannot be read"),
])  # fmt: skip
def test_a_run_that_cannot_be_read_is_one_clear_message(tmp_path: Path, name: str, text: str | None, says: str) -> None:
    run_dir = make(tmp_path / "a")
    if text is None:
        (run_dir / name).unlink()
    else:
        (run_dir / name).write_text(text)
    with pytest.raises(InputError, match=says):
        load(run_dir)
