"""Figures that have to agree with each other and with the configuration, and each way in which they may not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from seatrial import events
from seatrial.estimate import flops
from seatrial.metrics import Identity, Performance, records
from seatrial.metrics.performance import measure_performance
from seatrial.spec import Batch, Data, Objective, Precision, RunSpec, Topology
from seatrial.spec.presets import MODELS
from tests.helpers.streams import START, make_spec

LLAMA = make_spec(
    steps=50,
    model=MODELS["llama2-70b"],
    batch=Batch(sequence_length=4096, global_batch_size=128, micro_batch_size=2),
    topology=Topology(num_nodes=8, devices_per_node=8, device="h100"),
    precision=Precision(compute_dtype="bfloat16"),
)
ALIKE = {"palm", "non_causal"}
TOKENS, TFLOPS = "tokens_per_second_per_device", "tflops_per_second_per_device"


def log(
    spec: RunSpec, convention: str = "non_causal", changes: Callable[[int], dict[str, Any]] = lambda n: {}
) -> list[events.Step]:
    """A log as MaxText would write it, at about 8 s a step, with changed figures."""
    rng, run = random.Random(3), []
    per_token = flops.flops_per_token(spec.model, spec.batch.sequence_length, convention)
    at = START
    for n in range(spec.steps):
        seconds = round(rng.uniform(7.9, 8.1), 3)
        at += seconds
        rate = spec.tokens_per_step / spec.topology.num_devices / seconds
        reported = {TOKENS: round(rate, 3), TFLOPS: round(rate * per_token / 1e12, 3)}
        changed = changes(n)
        run.append(
            events.Step(
                step=n, wall_time=round(at, 3), seconds=changed.get("seconds", seconds),
                tokens=changed.get("tokens", spec.tokens_per_step), loss=6.0 - n / 50,
                reported=reported | changed.get("reported", {}),
            )
        )  # fmt: skip
    return run


def measured(run: Sequence[events.Event], spec: RunSpec | None = LLAMA, **options: Any) -> Performance:
    return measure_performance(run, spec, records(run), **options)


def identity(found: Performance, name: str) -> Identity:
    (match,) = [identity for identity in found.identities if identity.name == name]
    return match


def test_the_recipes_line_names_its_convention() -> None:
    figures = {TFLOPS: 460.480, TOKENS: 1035.970}
    line = [events.Step(step=49, seconds=7.908, tokens=524_288, loss=0.0, reported=figures)]
    found = measured(line)
    assert found.recognised is not None
    assert (found.convention, found.recognised.convention) == ("non_causal", "non_causal")
    assert found.recognised.deviation == pytest.approx(0, abs=1e-5)
    assert 0.4654 < found.estimates["mfu"].value < 0.4656
    assert found.tokens_per_second_total == pytest.approx(66298.43, abs=0.005)
    assert found.days_to_1t_tokens == pytest.approx(174.575, abs=0.001)
    assert found.reported[TFLOPS].value == 460.480
    assert [i.agreement for i in found.identities] == ["agree", "agree"]
    asked = measured(line, convention="causal")
    assert asked.convention == "causal"
    assert asked.recognised == found.recognised


@pytest.mark.parametrize("convention", flops.CONVENTIONS)
def test_the_convention_of_a_log_is_recognised(convention: str) -> None:
    found = measured(log(LLAMA, convention))
    assert found.convention == convention
    assert identity(found, "FLOPs per token").agreement == "agree"
    assert convention.replace("_", "-") in identity(found, "FLOPs per token").sentence


def test_conventions_of_all_models_are_told_apart() -> None:
    rng = random.Random(4)
    for model in MODELS.values():
        for name in flops.CONVENTIONS:
            exact = flops.flops_per_token(model, 8192, name)
            found = flops.recognise(exact * rng.uniform(0.9999, 1.0001), model, 8192)
            assert found is not None
            # With tied embeddings, PaLM's count differs by the norms alone.
            assert found.convention == name or (model.tied_embeddings and {name, found.convention} == ALIKE)
            assert found.vocab_size == model.vocab_size
        assert flops.recognise(exact * 1.5, model, 8192) is None
        assert flops.recognise(6.0 * flops.num_parameters(model) / 3, model, 8192) is None


def test_a_padded_vocabulary_is_seen_through() -> None:
    model = replace(MODELS["llama3.2-1b"], vocab_size=100_000)
    padded = flops.flops_per_token(replace(model, vocab_size=100_352), 2048, "causal")
    found = flops.recognise(padded, model, 2048)
    assert found is not None
    assert (found.convention, found.vocab_size) == ("causal", 100_352)


def test_a_sound_log_agrees_throughout() -> None:
    clocked = [events.RunStarted(wall_time=START, facts={"family": "maxtext", "clock": "log"}), *log(LLAMA)]
    found = measured(clocked)
    assert [(i.name, i.agreement) for i in found.identities] == [
        ("tokens per step", "agree"), ("FLOPs per token", "agree"), ("clock", "agree"),
    ]  # fmt: skip


def scaled(name: str, factor: float) -> Callable[[int], dict[str, Any]]:
    base = log(LLAMA)
    return lambda n: {"reported": {name: base[n].reported[name] * factor}}


CONTRADICTIONS: dict[str, tuple[str, str, Callable[[int], dict[str, Any]], str]] = {
    # name: the identity, its agreement, the change, a part of the sentence
    "tokens/s of half the batch": ("tokens per step", "contradiction", scaled(TOKENS, 0.5), "262,1"),
    "tokens/s 3% off": ("tokens per step", "contradiction", scaled(TOKENS, 1.03), "tokens in a step"),
    "tokens/s wrong at every third step": (
        "tokens per step", "contradiction", lambda n: {"reported": {TOKENS: 1.0}} if n % 3 == 0 else {}, "many of the",
    ),
    "another global batch": (
        "global batch", "contradiction", lambda n: {"reported": {"global_batch_size": 256.0}}, "256 sequences",
    ),
    "half of the sequences consumed": (
        "consumed", "contradiction", lambda n: {"reported": {"consumed_samples": 64.0 * n}}, "64 sequences",
    ),
    "twice the tokens consumed": (
        "consumed", "contradiction", lambda n: {"reported": {"consumed_tokens": 1_048_576.0 * n}}, "1,048,576 tokens",
    ),
    "TFLOP/s of a model of 7B": ("FLOPs per token", "contradiction", scaled(TFLOPS, 0.1), "no known convention"),
    "TFLOP/s with recomputation": ("FLOPs per token", "doubt", scaled(TFLOPS, 4 / 3), "no known convention"),
    "TFLOP/s that alternate": (
        "FLOPs per token", "contradiction",
        lambda n: {"reported": {TFLOPS: 40.0 if n % 2 else 400.0}}, "do not go together",
    ),
    "MFU by an unknown peak": ("MFU", "doubt", lambda n: {"reported": {"mfu": 0.6}}, "989"),
    "MFU above 1": ("peak", "contradiction", lambda n: {"reported": {"mfu": 1.04}}, "no device reaches"),
    "more tokens than the batch has": ("tokens that count", "contradiction", lambda n: {"tokens": 600_000}, "600,000"),
    "always half of the tokens": ("tokens that count", "contradiction", lambda n: {"tokens": 262_144}, "Padding"),
    "more memory than there is": (
        "memory", "contradiction", lambda n: {"reported": {"memory_bytes": 90 * 2**30}}, "112%",
    ),
    "TFLOP/s not a number": (
        "numbers", "contradiction", lambda n: {"reported": {TFLOPS: math.nan}} if n == 30 else {}, "at step 30",
    ),
    "seconds not a number": ("numbers", "contradiction", lambda n: {"seconds": math.nan if n == 2 else 8.0}, "step 2"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_contradiction_is_found(name: str) -> None:
    which, agreement, change, words = CONTRADICTIONS[name]
    found = identity(measured(log(LLAMA, changes=change)), which)
    assert found.agreement == agreement
    assert words in found.sentence


MASKED = replace(LLAMA, objective=Objective(kind="sft"), data=Data(kind="records"))


@pytest.mark.parametrize(
    ("said", "spec", "agreement"),
    [
        ("loss", LLAMA, "agree"),  # answers that are equally long
        ("loss", None, "agree"),
        ("all", LLAMA, "contradiction"),
        ("all", MASKED, "contradiction"),  # what the writer says of itself goes first
        (None, LLAMA, "contradiction"),
        (None, MASKED, "agree"),  # MaxText's total_weights, of a log that is judged with its configuration
        (None, replace(LLAMA, objective=Objective(kind="dpo")), "agree"),
        (None, replace(LLAMA, data=Data(kind="megatron", mask_document_ends=True)), "agree"),
        (None, replace(LLAMA, data=Data(kind="huggingface")), "agree"),
    ],
)  # fmt: skip
def test_always_the_same_number_of_tokens_is_wrong_only_where_all_count(
    said: str | None, spec: RunSpec | None, agreement: str
) -> None:
    facts = {"tokens_counted": said} if said else {}
    begun = events.RunStarted(wall_time=START, tokens_per_step=LLAMA.tokens_per_step, facts=facts)
    run = log(LLAMA, changes=lambda n: {"tokens": 65_536})
    assert identity(measured([begun, *run], spec), "tokens that count").agreement == agreement


def test_where_all_tokens_count_none_is_missing_at_any_step() -> None:
    begun = events.RunStarted(wall_time=START, facts={"tokens_counted": "all"})
    run = log(LLAMA, changes=lambda n: {"tokens": 500_000} if n == 40 else {})
    assert identity(measured([begun, *run]), "tokens that count").agreement == "contradiction"


def test_what_is_consumed_is_a_batch_a_step() -> None:
    for name, amount in (("consumed_samples", 128), ("consumed_tokens", 524_288)):
        run = log(LLAMA, changes=lambda n, a=amount, m=name: {"reported": {m: 1e6 + a * n}})
        assert identity(measured(run[::3]), "consumed").agreement == "agree"
    shortened = log(LLAMA, changes=lambda n: {"reported": {"consumed_tokens": float(f"{1e9 + 524_288 * n:.3g}")}})
    assert "consumed" not in [i.name for i in measured(shortened).identities]


def test_an_mfu_by_the_peak_of_another_format_agrees_and_names_it() -> None:
    base = log(LLAMA)
    change = {n: {"reported": {"mfu": base[n].reported[TFLOPS] / 1979}} for n in range(50)}
    found = identity(measured(log(LLAMA, changes=change.__getitem__)), "MFU")
    assert found.agreement == "agree"
    assert "fp8" in found.sentence


@pytest.mark.parametrize(("pace", "decimals", "agreement"), [(1, 3, "agree"), (1, 0, "agree"), (1.1, 3, "doubt"),
                                                             (1.1, 0, "doubt"), (0.9, 3, "doubt")])  # fmt: skip
def test_the_clock_of_the_log_is_held_against_its_seconds(pace: float, decimals: int, agreement: str) -> None:
    run = [
        replace(step, wall_time=float(round(START + pace * (step.wall_time - START), decimals))) for step in log(LLAMA)
    ]
    for clock, expected in (("log", [agreement]), ("counted", [])):
        begun = events.RunStarted(wall_time=START, facts={"clock": clock})
        assert [i.agreement for i in measured([begun, *run]).identities if i.name == "clock"] == expected


def test_a_pause_between_steps_is_no_contradiction_of_the_clock() -> None:
    run = [replace(step, wall_time=step.wall_time + (600 if step.step > 30 else 0)) for step in log(LLAMA)]
    begun = events.RunStarted(wall_time=START, facts={"clock": "log"})
    assert identity(measured([begun, *run]), "clock").agreement == "agree"


JUMPS: dict[str, Callable[[int], float]] = {
    "the end of summer time": lambda n: -3600.0 if n > 20 else 0.0,
    "its beginning": lambda n: 3600.0 if n > 20 else 0.0,
    "a clock that was corrected": lambda n: -2.0 if n > 20 else 0.0,
    "a checkpoint": lambda n: 45.0 if n > 20 else 0.0,
    "two checkpoints": lambda n: 45.0 * (n // 20),
}


@pytest.mark.parametrize("decimals", [0, 3])
@pytest.mark.parametrize(("pace", "agreement"), [(1, "agree"), (1.1, "doubt"), (3, "doubt"), (0.5, "doubt")])
@pytest.mark.parametrize("name", JUMPS)
def test_a_clock_that_jumps_is_held_against_the_seconds_before_and_behind(
    name: str, pace: float, agreement: str, decimals: int
) -> None:
    run = [
        replace(
            step, wall_time=float(round(START + pace * (step.wall_time - START) + JUMPS[name](step.step), decimals))
        )
        for step in log(LLAMA)
    ]
    begun = events.RunStarted(wall_time=START, facts={"clock": "log"})
    assert identity(measured([begun, *run]), "clock").agreement == agreement


def test_lines_that_come_twenty_at_a_time_are_no_jumps_of_the_clock() -> None:
    run = [events.Step(step=n, seconds=1.0, wall_time=round(START) + n // 20 * 20.0) for n in range(1200)]
    begun = events.RunStarted(wall_time=START, facts={"clock": "log"})
    assert identity(measured([begun, *run], make_spec(steps=1200)), "clock").agreement == "agree"


def test_steps_that_were_only_dispatched_are_held_to_what_their_decimals_say() -> None:
    """MaxText's seconds are from dispatch to dispatch: some steps seem to take milliseconds, of which it prints one."""

    def dispatched(n: int) -> dict[str, Any]:
        seconds = 0.0035 + 0.0001 * (n % 9)
        rate = LLAMA.tokens_per_step / LLAMA.topology.num_devices / seconds
        return {"seconds": round(seconds, 3), "reported": {TOKENS: round(rate, 3)}} if n % 4 == 3 else {}

    name = "tokens per step"
    assert identity(measured(log(LLAMA, changes=dispatched)), name).agreement == "agree"

    def doubled(n: int) -> dict[str, Any]:
        rate = 2 * LLAMA.tokens_per_step / LLAMA.topology.num_devices / 8
        return {"seconds": 8.0, "reported": {TOKENS: rate}} if n % 4 == 3 else dispatched(n)

    assert identity(measured(log(LLAMA, changes=doubled)), name).agreement == "contradiction"


def test_figures_too_coarse_to_tell_prove_nothing() -> None:
    spec = make_spec(steps=40)
    coarse = [
        events.Step(step=n, seconds=0.5 + n % 5 / 1000, reported={TFLOPS: 0.0, TOKENS: 1024.0}) for n in range(40)
    ]
    assert [i.name for i in measured(coarse, spec).identities] == ["tokens per step"]


def test_without_a_configuration_the_log_is_held_against_itself() -> None:
    run = log(LLAMA, changes=lambda n: {"reported": {"mfu": 1.2}})
    found = measured(run, None)
    assert [i.name for i in found.identities] == ["peak"]


def test_a_utilization_of_a_peak_that_was_assumed_proves_nothing() -> None:
    """torchtitan takes an A100's for a device that it does not know, and says so."""
    run = log(LLAMA, changes=lambda n: {"reported": {"mfu": 3.5}})
    facts = {"family": "torchtitan", "peak_assumed": "some other device"}
    started = events.RunStarted(process=0, wall_time=START, facts=facts)
    assert [i.name for i in measured([started, *run], None).identities] == []
    assert "MFU" not in [i.name for i in measured([started, *run]).identities]
