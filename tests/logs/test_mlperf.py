"""MLPerf's lines: samples become steps, and whatever is no object is left out."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial import logs, metrics, verdict
from seatrial.events import Eval, RunEnded, RunStarted
from tests.helpers.log_cases import both, steps


def line(key: str, value: Any = None, milliseconds: int = 0, **metadata: Any) -> str:
    said = {"namespace": "", "time_ms": 1_790_000_000_000 + milliseconds, "event_type": "POINT_IN_TIME", "key": key}
    return ":::MLLOG " + json.dumps({**said, "value": value, "metadata": {"file": "/a.py", "lineno": 1, **metadata}})


@given(
    st.integers(1, 4096),
    st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=20),
    st.sampled_from(["step", "samples_count", "epoch_num"]),
)
def test_throughput_comes_back_by_the_step(batch: int, rates: list[float], name: str) -> None:
    text = [line("global_batch_size", batch), line("max_sequence_length", 8192), line("run_start")]
    text += [
        line("tracked_stats", {"throughput": rate}, 1000 * n, **{name: 10 * n * batch})
        for n, rate in enumerate(rates, 1)
    ]
    found = both(text)
    assert [(s.step, s.reported["samples_per_second_total"]) for s in steps(found)] == [
        (10 * n, rate) for n, rate in enumerate(rates, 1)
    ]
    assert {s.seconds for s in steps(found)} == {None}
    (started,) = (event for event in found if isinstance(event, RunStarted))
    assert started.tokens_per_step == batch * 8192


def test_the_time_to_train_stands_in_the_log() -> None:
    text = [
        line("global_batch_size", 8),
        line("run_start", None, 500),
        line("tracked_stats", {"throughput": 2.0}, 9000, step=80),
    ]
    text += [line("run_stop", None, 10_500, status="success")]
    found = both(text)
    started, ended = (next(e for e in found if isinstance(e, kind)) for kind in (RunStarted, RunEnded))
    assert ended.wall_time - started.facts["run_start_seconds"] == 10.0
    assert ended.totals == {"run_seconds": 10.0}


@given(st.integers(1, 9999), st.integers(1, 99), st.booleans(), st.sampled_from(["", "+ echo '"]))
def test_the_system_s_description_names_its_devices(nodes: int, devices: int, as_text: bool, before: str) -> None:
    said: dict[str, Any] = {"submitter": "Example", "number_of_nodes": nodes, "accelerators_per_node": devices}
    if as_text:
        said = {name: str(value) for name, value in said.items()}
    described = f"{before}:::SYSJSON {json.dumps({**said, 'accelerator_model_name': 'NVIDIA B200'})}"
    text = [line("global_batch_size", 8), line("run_start"), line("tracked_stats", {"throughput": 2.0}, 9000, step=80)]
    (started,) = (event for event in both([described, *text]) if isinstance(event, RunStarted))
    assert (started.num_devices, started.device_kind) == (nodes * devices, "NVIDIA B200")


@pytest.mark.parametrize(
    "said",
    [
        {"number_of_nodes": "", "accelerators_per_node": "8"},
        {"number_of_nodes": "2"},
        {"number_of_nodes": "-2", "accelerators_per_node": "8"},
        {"number_of_nodes": "2", "accelerators_per_node": "0"},
        {"number_of_nodes": 2.5, "accelerators_per_node": "8"},
        {"number_of_nodes": "9" * 5000, "accelerators_per_node": "8"},
        {"number_of_nodes": [2], "accelerators_per_node": True, "accelerator_model_name": 7},
    ],
    ids=str,
)
def test_a_system_that_names_no_number_of_devices_says_nothing_of_them(said: dict[str, Any]) -> None:
    text = [line("global_batch_size", 8), line("run_start"), line("tracked_stats", {"throughput": 2.0}, 9000, step=80)]
    (started,) = (e for e in both([f":::SYSJSON {json.dumps(said)}", *text]) if isinstance(e, RunStarted))
    assert (started.num_devices, started.device_kind) == (None, "")


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=6,
)
KEYS = ["tracked_stats", "train_loss", "eval_accuracy", "run_stop", "init_start", "global_batch_size", "max_steps", "x"]


@given(
    st.lists(
        st.fixed_dictionaries(
            {"key": st.one_of(st.sampled_from(KEYS), json_values)},
            optional={
                "value": st.one_of(
                    json_values, st.fixed_dictionaries({"throughput": json_values, "loss": json_values})
                ),
                "metadata": st.one_of(json_values, st.fixed_dictionaries({"step": json_values, "status": json_values})),
                "time_ms": json_values,
            },
        ),
        max_size=5,
    ),
    st.integers(0, 200),
)
def test_any_object_is_read_without_an_error(objects: list[dict[str, Any]], cut: int) -> None:
    text = [":::MLLOG " + json.dumps(found) for found in objects]
    list(logs.parse([line("global_batch_size", 32), *text, *(whole[:cut] for whole in text)]))


def scored(
    benchmark: str, scores: list[tuple[str, float]], *, status: str = "success", division: str = "closed"
) -> verdict.Verdict:
    """The verdict on a run without losses whose evaluations report these scores, one an epoch."""
    told = [line("submission_benchmark", benchmark), line("submission_division", division)]
    told += [line("train_samples", 6400), line("global_batch_size", 64), line("run_start", None, 1)]
    for n, (metric, score) in enumerate(scores, 1):
        told.append(
            line("eval_accuracy", score, 1000 * n, epoch_num=(n + 1) // 2, **({"metric": metric} if metric else {}))
        )
    told += [line("run_stop", None, 1000 * len(scores) + 1000, status=status)] if status else []
    return verdict.judge(metrics.measure(logs.parse(told), None), None, rehearsal="")


@pytest.mark.parametrize(
    ("benchmark", "scores", "passes"),
    [
        ("gnn", [("", 0.69), ("", 0.7201)], True),
        ("gnn", [("", 0.69), ("", 0.7199)], False),
        ("gnn", [("", 0.7201), ("", math.nan)], False),
        ("gnn", [("", math.nan), ("", 0.7201)], False),
        ("rnnt", [("", 0.06), ("", 0.057)], True),
        ("rnnt", [("", 0.06), ("", 0.059)], False),
        ("stable_diffusion", [("FID", 120.0), ("CLIP", 0.14), ("FID", 80.0), ("CLIP", 0.16)], True),
        ("stable_diffusion", [("FID", 80.0), ("CLIP", 0.14)], False),
        ("stable_diffusion", [("FID", 80.0)], False),  # the other one is missing
        ("minigo", [("", 0.6)], False),  # whose target is not known
    ],
)
def test_a_score_decides_where_there_is_no_loss(benchmark: str, scores: list[tuple[str, float]], passes: bool) -> None:
    found = scored(benchmark, scores)
    assert (found.outcome == "pass") is passes
    if passes:
        assert " in its last evaluation" in found.headline
    assert scored(benchmark, scores, status="aborted").outcome not in ("pass", "inconclusive")
    assert scored(benchmark, scores, status="").outcome != "pass"
    # With a target of its own: below that of the closed division, it may be as good.
    assert (scored(benchmark, scores, division="open").outcome == "pass") is passes


def test_in_the_open_division_a_score_counts_from_when_it_comes_to_the_target_of_the_closed_one() -> None:
    assert scored("gnn", [("", 0.69), ("", 0.7199)], division="open").outcome == "inconclusive"
    assert scored("gnn", [("", 0.69), ("", 0.7201)], division="open").outcome == "pass"
    assert scored("gnn", [("", 0.69), ("", 0.7201)], division="open", status="aborted").outcome == "fail"
    assert scored("gnn", [("", 0.7201), ("", 0.69)], division="open").outcome == "fail"


def test_evaluations_without_a_step_wait_for_the_samples_that_are_told_behind_them() -> None:
    told = [line("submission_benchmark", "bert"), line("global_batch_size", 64), line("run_start")]
    told += [line("eval_accuracy", score, 5000 * n, epoch_num=1) for n, score in enumerate((0.6, 0.71), 1)]
    assert steps(both(told)) == []
    placed = both([*told, line("train_samples", 6400, 15000), line("run_stop", None, 16000, status="aborted")])
    assert [step.step for step in steps(placed)] == [100]
    assert [event.score for event in placed if isinstance(event, Eval)][-1] == "score 0.71 (at least 0.72)"


def test_a_success_without_a_known_target_does_not_fail() -> None:
    assert scored("minigo", [("", 0.6)]).outcome == "inconclusive"
    assert scored("gnn", [("", 0.69), ("", 0.71)]).outcome == "fail"


def test_an_epoch_has_steps_only_where_its_samples_are_known() -> None:
    told = [line("submission_benchmark", "gnn"), line("global_batch_size", 64), line("run_start")]
    told.append(line("eval_accuracy", 0.6, 5000, epoch_num=0.5))
    assert steps(both(told)) == []
    assert [step.step for step in steps(both([line("train_samples", 6400), *told]))] == [50]


def judged(text: list[str]) -> verdict.Verdict:
    return verdict.judge(metrics.measure(logs.parse(text), None), None, rehearsal="")


def line_06(key: str, value: Any = None, seconds: float = 0.0, **metadata: Any) -> str:
    said = {"value": value, "metadata": {**metadata, "file": "a.py", "lineno": 1}}
    return f":::MLL {1_560_000_000 + seconds:.3f} {key}: {json.dumps(said)}"


def line_05(key: str, value: Any = None, seconds: float = 0.0, benchmark: str = "gnmt") -> str:
    said = "" if value is None else f": {json.dumps(value)}"
    return f":::MLPv0.5.0 {benchmark} {1_540_000_000 + seconds:.9f} (a.py:1) {key}{said}"


def run_06(benchmark: str, scores: list[Any], status: str = "success") -> list[str]:
    told = [line_06("submission_benchmark", benchmark), line_06("global_batch_size", 8192), line_06("run_start")]
    told += [line_06("eval_accuracy", score, 60.0 * n, epoch_num=n) for n, score in enumerate(scores, 1)]
    return [*told, *([line_06("run_stop", None, 60.0 * len(scores) + 1, status=status)] if status else [])]


def run_05(
    benchmark: str, scores: list[float], target: float, *, success: bool | None = True, begins: float = 0.0
) -> list[str]:
    told = [line_05("run_start", None, begins, benchmark)]
    for epoch, score in enumerate(scores):
        evaluated = begins + 60.0 * epoch + 50
        told.append(line_05("train_epoch", epoch, begins + 60.0 * epoch, benchmark))
        told.append(line_05("eval_accuracy", {"epoch": epoch, "value": score}, evaluated, benchmark))
        told.append(line_05("eval_target", target, evaluated, benchmark))
    ended = [line_05("run_stop", {"success": success}, begins + 60.0 * len(scores), benchmark)]
    return told + ([] if success is None else ended)


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (run_06("gnmt", [5.5, 23.0, 24.25]), "pass"),
        (run_06("gnmt", [5.5, 23.0, "24.25"]), "pass"),  # some print it as text
        (run_06("gnmt", [5.5, 23.0, 23.9]), "fail"),
        (run_06("gnmt", [5.5, 23.0, 24.25], status="aborted"), "fail"),
        (run_06("gnmt", [5.5, 23.0, 24.25], status=""), "inconclusive"),
        (run_06("transformer", [0.26]), "fail"),  # in percent, by these rules
        (run_06("minigo", [0.6]), "inconclusive"),  # whose target is not known
        (run_06("ssd", [0.15, 0.2301]), "pass"),
        (run_05("gnmt", [19.0, 21.9], 21.8), "pass"),
        (run_05("gnmt", [19.0, 21.7], 21.8), "fail"),
        (run_05("gnmt", [19.0, 21.9], 21.8, success=False), "fail"),
        (run_05("gnmt", [19.0, 21.9], 21.8, success=None), "inconclusive"),
        (run_05("gnmt", [9.0, 12.0], 10.0), "fail"),  # a target of its own
        (run_05("resnet", [0.5, 0.7491], 0.749), "pass"),
    ],
)
def test_the_lines_of_older_rules_have_the_targets_of_these(text: list[str], outcome: str) -> None:
    assert judged(text).outcome == outcome


def test_an_epoch_of_the_oldest_rules_counts_from_its_first_number() -> None:
    from_zero = run_05("gnmt", [19.0, 20.0, 21.9], 21.8)
    from_one = [line_05("run_start")]
    for epoch, score in enumerate((19.0, 20.0, 21.9), 1):
        from_one += [line_05("train_epoch", epoch, 60.0 * epoch), line_05("eval_accuracy", score, 60.0 * epoch + 50)]
    assert [step.step for step in steps(both(from_zero))] == [1, 2, 3]
    assert [step.step for step in steps(both(from_one))] == [1, 2, 3]


def test_two_runs_of_the_oldest_rules_in_one_log_are_two_attempts() -> None:
    found = both(run_05("gnmt", [21.9], 21.8) + run_05("gnmt", [21.85], 21.8, begins=900.0))
    assert [event.attempt for event in found if isinstance(event, RunStarted)] == [1, 2]


BEFORE_2021, BEFORE_2022, LATER = 1_592_000_000_000, 1_620_000_000_000, 1_660_000_000_000


@pytest.mark.parametrize(
    ("benchmark", "score", "when", "outcome"),
    [
        ("bert", 0.7125, BEFORE_2021, "pass"),
        ("bert", 0.7115, BEFORE_2021, "fail"),
        ("bert", 0.7125, BEFORE_2022, "fail"),
        ("bert", 0.7125, 0, "fail"),  # a line without a time
        ("ssd", 0.2301, BEFORE_2021, "pass"),
        ("ssd", 0.2301, BEFORE_2022, "pass"),
        ("ssd", 0.2301, LATER, "fail"),
        ("transformer", 0.2501, BEFORE_2021, "pass"),
        ("transformer", 25.01, BEFORE_2021, "pass"),
        ("transformer", 0.2499, BEFORE_2021, "fail"),
        ("gnmt", 24.01, BEFORE_2021, "pass"),
    ],
)
def test_a_target_depends_on_the_rules_of_the_time(benchmark: str, score: float, when: int, outcome: str) -> None:
    shift = when - 1_790_000_000_000
    told = [line("submission_benchmark", benchmark), line("train_samples", 6400), line("global_batch_size", 64)]
    told += [line("run_start", None, shift), line("eval_accuracy", score, shift + (5000 if when else 0), epoch_num=1)]
    assert judged([*told, line("run_stop", None, shift + 6000, status="success")]).outcome == outcome


def test_a_translation_in_percent_that_begins_near_nothing_is_no_fraction() -> None:
    told = [line("submission_benchmark", "transformer"), line("run_start", None, BEFORE_2021 - 1_790_000_000_000)]
    told += [
        line("eval_accuracy", score, BEFORE_2021 - 1_790_000_000_000 + 60_000 * n, epoch_num=n)
        for n, score in enumerate((0.3, 12.0, 0.9), 1)
    ]
    found = [event.score for event in both(told) if isinstance(event, Eval)]
    assert found[1:] == ["score 12 (at least 25)", "score 0.9 (at least 25)"]


@pytest.mark.parametrize(
    "text",
    [
        ":::MLL eval_accuracy: 25.0",
        ":::MLL 1.0 eval_accuracy: ",
        ":::MLL 1.0 eval_accuracy: [25.0]",
        ":::MLPv0.5.0 gnmt 1.0 (a.py:1) eval_accuracy: {",
        ":::MLPv0.5.0 gnmt 1.0 (a.py:1) eval_accuracy",
        ":::MLPv0.5.0 gnmt 1.0 eval_accuracy: 25.0",
        ':::MLPv0.5.0 gnmt 1.0 (a.py:1) run_stop: {"success": "yes"}',
        ":::MLPv0.5.0 gnmt 1.0 (a.py:1) train_epoch: null",
    ],
)
def test_an_older_line_that_was_cut_says_nothing(text: str) -> None:
    assert both([text]) == []
