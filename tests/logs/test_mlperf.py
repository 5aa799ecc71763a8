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
