"""The measured step time beside the expected one, and the cause that is named where it is slower."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from seatrial import events, metrics
from seatrial.estimate import hardware, time_profile
from seatrial.estimate.time_model import predict
from seatrial.spec import Batch, MeshShape, Parallelism, RunSpec
from seatrial.spec.presets import MODELS
from seatrial.verdict.gap import beside_expected
from tests.helpers.streams import make_spec, whole_run

PROFILE = time_profile.published(hardware.DEVICES["h100-sxm"])


def spec_of(nodes: int = 1) -> RunSpec:
    spec = make_spec(processes=nodes)
    return replace(
        spec, model=MODELS["llama3.1-8b"],
        batch=Batch(sequence_length=8192, global_batch_size=16 * nodes, micro_batch_size=1),
        parallelism=Parallelism(within_node=MeshShape(fsdp=4), across_nodes=MeshShape(data=nodes)),
    )  # fmt: skip


def expected(spec: RunSpec) -> float:
    found = predict(spec, "native", PROFILE)
    assert found is not None
    return found.step_seconds


def lines(spec: RunSpec, *, waits: float = 0.0, **fields: Any) -> tuple[str, ...]:
    run = [replace(event, data_seconds=waits) if isinstance(event, events.Step) else event
           for event in whole_run(spec, **fields)]  # fmt: skip
    return beside_expected(metrics.measure(run, spec).performance, spec)


def test_a_run_as_fast_as_expected_is_within() -> None:
    spec = spec_of()
    (line,) = lines(spec, seconds=lambda step: expected(spec))
    assert ": within" in line
    assert "on 4 h100-sxm (+0%)" in line
    (line,) = lines(spec, seconds=lambda step: 0.8 * expected(spec))
    assert "(-20%): faster than" in line


def test_waiting_for_data_is_named_with_its_seconds() -> None:
    spec = spec_of()
    slow = 1.5 * expected(spec)
    first, second = lines(spec, seconds=lambda step: slow, waits=0.45 * expected(spec))
    assert "(+50%): slower than" in first
    assert second.startswith("likeliest gap: data, 90% of it: a step waits")


def test_a_slow_rank_is_named() -> None:
    spec = spec_of(nodes=2)
    run = []
    for event in whole_run(spec):
        seconds = expected(spec) * (1.4 if event.process == 0 else 1.8)
        run.append(replace(event, seconds=seconds) if isinstance(event, events.Step) else event)
    found = beside_expected(metrics.measure(run, spec).performance, spec)
    assert any("likeliest gap: stragglers" in line and "rank 1" in line for line in found)


def test_a_run_that_became_slower_is_named() -> None:
    spec = replace(spec_of(), steps=120)
    found = lines(spec, seconds=lambda step: expected(spec) * (1.3 if step < 40 else 2.6 + 0.001 * (step % 7)))
    assert any("likeliest gap: a change of speed" in line for line in found)


def test_without_evidence_no_cause_is_invented() -> None:
    spec = spec_of()
    _, second = lines(spec, seconds=lambda step: 2 * expected(spec))
    assert second.startswith(
        ("likeliest gap: compute, by exclusion: no rank", "likeliest gap: compute or communication, which")
    )
    assert "data" not in second.partition(":")[2].partition(":")[0]


@pytest.mark.parametrize("changes", [{"device": None}, {"device": "h100"}])
def test_what_is_not_known_is_not_compared(changes: dict[str, Any]) -> None:
    spec = make_spec(**changes)  # one replica, and four devices
    assert beside_expected(metrics.measure(whole_run(spec), spec).performance, spec) == ()
    assert beside_expected(metrics.measure(whole_run(spec), None).performance, None) == ()
