"""The published figures hold together, and what is compared with them is comparable."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from seatrial.errors import InputError
from seatrial.estimate import flops, hardware
from seatrial.estimate.published import ASPECTS, expectation_from, nearest, results
from seatrial.spec import Batch, MeshShape, Parallelism, Precision, RunSpec, Topology
from seatrial.spec.presets import MODELS

ROUNDED = "rate rounded to 32 tokens/s"  # of a release whose rates are nearly all multiples of 32


def spec(model: str = "llama3.1-8b", *, sequence: int = 8192, batch: int = 128, devices: int = 8) -> RunSpec:
    return RunSpec(
        name="run",
        dialect="native",
        model=MODELS[model],
        batch=Batch(sequence_length=sequence, global_batch_size=batch, micro_batch_size=1),
        steps=50,
        topology=Topology(num_nodes=max(1, devices // 8), devices_per_node=min(8, devices), device="h100"),
    )


def test_every_row_is_a_measured_rate_with_a_source() -> None:
    assert len(results()) > 600
    for row in results():
        assert row.tokens_per_second_per_device > 0
        assert row.num_devices > 0
        assert row.sequence_length > 0
        assert row.source
        assert row.precision in ("bfloat16", "fp8", "fp4")
    assert {row.device for row in results()} <= set(hardware.DEVICES)
    assert len(set(results())) == len(results())


def test_rate_batch_and_step_time_of_each_row_agree() -> None:
    checked = [row for row in results() if row.step_seconds and row.global_batch_size]
    wrong = [
        row
        for row in checked
        if not math.isclose(
            row.global_batch_size * row.sequence_length / row.step_seconds / row.num_devices,
            row.tokens_per_second_per_device,
            rel_tol=0.02,
        )
    ]
    assert wrong == []
    assert len(checked) > 500


def test_flops_and_rate_of_each_row_are_of_the_convention_that_it_names() -> None:
    checked = [
        row
        for row in results()
        if row.model in MODELS and not row.proxy and row.tflops_per_second_per_device is not None
    ]
    for row in checked:
        per_token = row.tflops_per_second_per_device * 1e12 / row.tokens_per_second_per_device
        slack = 0.01 + (16 / row.tokens_per_second_per_device if ROUNDED in row.note else 0)
        fits = {
            name
            for name in flops.CONVENTIONS
            if math.isclose(
                per_token, flops.flops_per_token(MODELS[row.model], row.sequence_length, name), rel_tol=slack
            )
        }
        assert row.convention in fits, row
    assert len(checked) > 150


def test_a_published_run_is_compared_with_itself_first() -> None:
    """However it is looked for, a full model's own figure comes back as exact, or one as close as it."""
    rows = [
        row
        for row in results()
        if row.model in MODELS and not row.proxy and not row.variant and row.device == "h100-sxm"
        and row.precision in ("bfloat16", "fp8") and row.global_batch_size and row.tensor and row.pipeline
    ]  # fmt: skip
    assert len(rows) > 100
    for row in rows:
        mesh = MeshShape(
            tensor=row.tensor,
            pipeline=row.pipeline,
            context=row.context or 1,
            fsdp=row.num_devices // (row.tensor * row.pipeline * (row.context or 1)),
        )
        run = replace(
            spec(row.model, sequence=row.sequence_length, batch=row.global_batch_size),
            topology=Topology(devices_per_node=row.num_devices, device="h100"),
            parallelism=Parallelism(within_node=mesh),
            precision=Precision(quantization="fp8" if row.precision == "fp8" else None),
        )
        found = nearest(run, num_devices=row.num_devices, limit=50)
        assert found[0].differences == ()
        assert row in [comparable.result for comparable in found if comparable.distance == 0]


def test_a_proxy_is_compared_with_nothing() -> None:
    proxies = [row for row in results() if row.proxy]
    assert any(row.model == "llama3.1-405b" for row in proxies)
    found = nearest(spec("llama3.1-405b"), num_devices=32, limit=1000)
    assert found
    assert not any(comparable.result.proxy for comparable in found)


@pytest.mark.parametrize(("device", "model"), [("tpu-v9", "llama3.1-8b"), (None, "llama3.1-8b"), ("h100", "tiny")])
def test_nothing_is_better_than_something_that_is_not_comparable(device: str | None, model: str) -> None:
    run = spec()
    if model == "tiny":
        run = replace(run, model=replace(run.model, num_layers=2))
    run = replace(run, topology=replace(run.topology, device=device))
    assert nearest(run, num_devices=8) == []


def test_each_aspect_is_named_and_costs_what_its_row_says() -> None:
    changed = {
        "precision": replace(spec(), precision=Precision(quantization="fp8")),
        "sequence length": spec(sequence=4096, batch=128),
        "batch per device": spec(batch=120),
        "parallelism": replace(spec(), parallelism=Parallelism(within_node=MeshShape(tensor=8))),
        "vocabulary": replace(spec(), model=replace(spec().model, vocab_size=64_000)),
    }
    original = nearest(spec(), num_devices=8)[0]
    assert original.differences == ()
    for name, run in changed.items():
        found = next(c for c in nearest(run, num_devices=8, limit=1000) if c.result == original.result)
        assert [difference.aspect for difference in found.differences] == [name]
        assert found.distance >= next(aspect.penalty for aspect in ASPECTS if aspect.name == name)
    elsewhere = next(c for c in nearest(spec(batch=64), num_devices=4, limit=1000) if c.result == original.result)
    assert [difference.aspect for difference in elsewhere.differences] == ["scale"]


def test_what_differs_least_ranks_first() -> None:
    found = nearest(spec(batch=256), num_devices=16, limit=1000)
    distances = [comparable.distance for comparable in found]
    assert distances == sorted(distances)
    assert found[0].result.num_devices == 16
    assert len({c.result.device for c in found}) == 1


def test_a_rate_is_carried_over_by_the_work_of_a_token() -> None:
    """At another sequence length the same FLOP/s are another rate; by every convention the two agree on the work."""
    for convention in flops.CONVENTIONS:
        run = spec(sequence=32_768, batch=32)
        found = nearest(run, num_devices=8, convention=convention)
        per_token = flops.flops_per_token(run.model, 32_768, convention)
        other = next(c for c in found if not c.same_work)
        work = other.equivalent_tokens_per_second_per_device * per_token / 1e12
        assert math.isclose(work, other.tflops_per_second_per_device)
        assert other.equivalent_tokens_per_second_per_device < other.tokens_per_second_per_device
        same = nearest(spec(), num_devices=8, convention=convention)[0]
        assert math.isclose(same.equivalent_tokens_per_second_per_device, same.tokens_per_second_per_device)


def test_a_bar_is_made_of_what_may_be_a_bar() -> None:
    best = nearest(spec(batch=64), num_devices=8)[0]
    bar = expectation_from(best, tolerance=0.05)
    assert (bar.metric, bar.value, bar.tolerance) == (
        "tokens_per_second_per_device",
        best.tokens_per_second_per_device,
        0.05,
    )
    for run in (spec(sequence=2048), replace(spec(), model=replace(spec().model, vocab_size=32_000))):
        with pytest.raises(InputError, match="differs in"):
            expectation_from(nearest(run, num_devices=8)[0], tolerance=0.05)
